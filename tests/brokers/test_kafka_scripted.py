"""Errors that a healthy broker does not give: elections, missing replicas, rights taken away, a fenced producer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
from confluent_kafka import KafkaError
from kafka_script import INIT_PRODUCER_ID, PRODUCE, Script, scripted_sink

from relaybox.brokers.kafka.sink import KafkaSink
from relaybox.errors import BrokerUnavailable, Reject
from relaybox.testing.sink_contract import messages, publish

FOREVER = 100


@pytest.fixture
async def sink() -> AsyncIterator[KafkaSink]:
    made = scripted_sink(delivery_timeout=timedelta(seconds=2))
    await made.open()
    assert await publish(made, messages(made, "orders", ["a"])) == [None]
    yield made
    await made.close()


async def outcome(sink: KafkaSink) -> BaseException | None:
    return (await publish(sink, messages(sink, "orders", ["a"])))[0]


@pytest.mark.parametrize(
    "name",
    [
        "LEADER_NOT_AVAILABLE",
        "NOT_LEADER_FOR_PARTITION",
        "NOT_ENOUGH_REPLICAS",
        "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
        "REQUEST_TIMED_OUT",
        "KAFKA_STORAGE_ERROR",
        "INVALID_MSG",
        "UNKNOWN_PRODUCER_ID",
    ],
)
async def test_passing_errors(sink: KafkaSink, name: str) -> None:
    """The producer tries again by itself; what does not pass is an outage of the topic, as the broker answers."""
    code = getattr(KafkaError, name)
    Script(sink).answer(PRODUCE, code)
    assert await outcome(sink) is None
    Script(sink).answer(PRODUCE, *[code] * FOREVER)
    answer = await outcome(sink)
    assert isinstance(answer, BrokerUnavailable)
    assert answer.destination == "orders"


@pytest.mark.parametrize(
    "name",
    [
        "CLUSTER_AUTHORIZATION_FAILED",
        "INVALID_PRODUCER_EPOCH",
        "INVALID_REQUIRED_ACKS",
        "INVALID_TIMESTAMP",  # of a clock that is wrong, not of one message: we send the present time
        "POLICY_VIOLATION",
        "PRODUCER_FENCED",
        "THROTTLING_QUOTA_EXCEEDED",
        "UNKNOWN",
        "UNSUPPORTED_COMPRESSION_TYPE",
    ],
)
async def test_errors_that_are_no_messages_fault(sink: KafkaSink, name: str) -> None:
    Script(sink).answer(PRODUCE, getattr(KafkaError, name))
    answer = await outcome(sink)
    assert isinstance(answer, BrokerUnavailable)
    assert answer.destination is None
    assert await outcome(sink) is None


async def test_a_topic_we_may_not_write_to(sink: KafkaSink) -> None:
    """Somebody must act; meanwhile other topics go on."""
    Script(sink).answer(PRODUCE, KafkaError.TOPIC_AUTHORIZATION_FAILED)
    answer = await outcome(sink)
    assert isinstance(answer, BrokerUnavailable)
    assert answer.destination == "orders"
    assert await publish(sink, messages(sink, "bills", ["a"])) == [None]


async def test_a_message_that_is_refused(sink: KafkaSink) -> None:
    """The sink asks again with each message in a batch of its own, so the right one is refused."""
    large = messages(sink, "orders", ["b"], b"x" * 5_000_000)
    Script(sink).answer(PRODUCE, KafkaError.MSG_SIZE_TOO_LARGE)
    answers = await publish(sink, messages(sink, "orders", ["a"]) + large)
    assert [type(answer) for answer in answers] == [type(None), Reject]


# -- A producer that is broken for good -------------------------------------------------------------


async def test_a_broken_sequence(sink: KafkaSink, caplog: pytest.LogCaptureFixture) -> None:
    """The broker has lost what it had acknowledged. This producer cannot go on; the next one can."""
    Script(sink).answer(PRODUCE, KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert isinstance(await outcome(sink), BrokerUnavailable)
    assert await outcome(sink) is None
    assert "replaced after a fatal error" in caplog.text


async def test_a_fatal_error_between_publishes(sink: KafkaSink) -> None:
    Script(sink).fatal(KafkaError.INVALID_PRODUCER_EPOCH)
    answer = await outcome(sink)
    assert isinstance(answer, BrokerUnavailable)
    assert "as the script has it" in str(answer)
    await sink.probe()
    assert await outcome(sink) is None


async def test_no_right_to_be_idempotent() -> None:
    """The producer asks for it by itself as soon as it is made: a slow broker leaves time to write the script."""
    sink = scripted_sink(delivery_timeout=timedelta(seconds=10), config={"test.mock.broker.rtt": 2000})
    await sink._producer()
    script = Script(sink)
    script.answer(INIT_PRODUCER_ID, KafkaError.CLUSTER_AUTHORIZATION_FAILED)
    script.answer_at_once()
    await sink.open()
    answer = await outcome(sink)
    assert isinstance(answer, BrokerUnavailable)
    assert "Cluster authorization failed" in str(answer)
    await sink.close()
