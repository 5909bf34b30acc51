"""Answers that a healthy broker never gives, from librdkafka's mock cluster.

Its scripting is part of librdkafka's C interface and not of the Python one, so it is called in the shared library that
confluent_kafka brings along.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from relaybox.brokers.kafka.connection import KafkaConnection
from relaybox.brokers.kafka.sink import BATCHES, KafkaSink

PRODUCE, INIT_PRODUCER_ID = 0, 22
_HANDLE_OFFSET = 2 * ctypes.sizeof(ctypes.c_void_p)  # behind the head of a Python object


def scripted_sink(**options: Any) -> KafkaSink:
    config = {"test.mock.num.brokers": 1, **options.pop("config", {})}
    return KafkaSink(KafkaConnection("kafka://mock:9092", config=config), **options)


class Script:
    """For the mock cluster that lives in the sink's present producer."""

    def __init__(self, sink: KafkaSink) -> None:
        self._library = _library()
        producer = sink._producers[BATCHES]._producer
        self._handle = ctypes.c_void_p.from_address(id(producer) + _HANDLE_OFFSET)
        self._library.rd_kafka_name.restype = ctypes.c_char_p
        assert b"producer" in self._library.rd_kafka_name(self._handle), "confluent_kafka keeps its handle elsewhere"
        self._library.rd_kafka_handle_mock_cluster.restype = ctypes.c_void_p
        self._cluster = ctypes.c_void_p(self._library.rd_kafka_handle_mock_cluster(self._handle))

    def answer(self, request: int, *errors: int) -> None:
        """The next requests of a kind get these answers."""
        array = (ctypes.c_int * len(errors))(*errors)
        count = ctypes.c_size_t(len(errors))
        self._library.rd_kafka_mock_push_request_errors_array(self._cluster, ctypes.c_int16(request), count, array)

    def answer_at_once(self) -> None:
        """From the next request on, whatever the sink's configuration says of the broker's pace."""
        assert self._library.rd_kafka_mock_broker_set_rtt(self._cluster, ctypes.c_int32(1), ctypes.c_int(0)) == 0

    def fatal(self, error: int) -> None:
        self._library.rd_kafka_test_fatal_error(self._handle, error, b"as the script has it")


def _library() -> Any:
    folder = Path(confluent_kafka.__file__).parent.with_name("confluent_kafka.libs")
    found = sorted(folder.glob("librdkafka*.so*"))
    if not found:
        pytest.skip("confluent_kafka was built against a librdkafka of the system")
    return ctypes.CDLL(str(found[0]))
