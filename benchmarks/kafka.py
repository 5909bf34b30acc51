"""The one Kafka of a run: private and real, a fresh topic per measurement, and the topic itself says what happened."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from functools import cache

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from benchmarks.spi import PeerFailed, Unsupported
from relaybox.testing.servers import KafkaServer, ServerUnavailable, shared
from relaybox.testing.servers.jars import KAFKA_VERSION

PARTITIONS = 6
WARM_UP = 200_000
STALL = 30.0
FACTS = {"kafka": f"{KAFKA_VERSION}, one broker", "topic": f"{PARTITIONS} partitions"}


@dataclass(frozen=True)
class Audit:
    """What is in a topic. Times are the broker's, at which it appended."""

    last: float
    messages: int
    distinct: int
    out_of_order: int  # messages behind a later one of their key, repetitions apart


@cache
def server() -> KafkaServer:
    """Started at the first call, warm, and gone when the program ends."""
    try:
        broker = shared("kafka")
    except ServerUnavailable as missing:
        raise Unsupported(str(missing)) from None
    topic = broker.fresh_topic(PARTITIONS)
    producer = Producer({**broker.client_settings, "queue.buffering.max.messages": WARM_UP})
    for number in range(WARM_UP):
        producer.produce(topic, b"x" * 256, str(number))
    producer.flush()
    return broker


def fresh_topic(name: str) -> str:
    """The broker's own clock stamps the messages, so that nobody has to watch them arrive."""
    topic = f"{name}-{time.time_ns()}"
    server().create_topic(topic, PARTITIONS, {"message.timestamp.type": "LogAppendTime"})
    return topic


def wait(topic: str, total: int) -> None:
    """Until the topic holds `total` messages; fails when none arrives for a while."""
    admin = AdminClient({**server().client_settings, "log_level": 3})
    newest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    ends = {TopicPartition(topic, number): newest for number in range(PARTITIONS)}
    seen, since = -1, time.monotonic()
    while True:
        there = sum(end.result().offset for end in admin.list_offsets(ends).values())
        if there >= total:
            return
        if there != seen:
            seen, since = there, time.monotonic()
        elif time.monotonic() - since > STALL:
            raise PeerFailed(f"stalled at {there} of {total} messages in the topic")
        time.sleep(0.1)


def audit(topic: str) -> Audit:
    """Read the whole topic."""
    reader = Consumer({**server().client_settings, "group.id": "audit", "enable.partition.eof": True})
    reader.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    newest: dict[bytes, int] = {}
    seen: set[int] = set()
    messages = out_of_order = ended = last = 0
    while ended < PARTITIONS:
        for message in reader.consume(1000, timeout=1.0):
            if message.error() is not None:
                ended += 1
                continue
            seq, key = json.loads(message.value() or b"")["seq"], message.key() or b""
            messages += 1
            last = max(last, message.timestamp()[1])
            out_of_order += seq not in seen and seq < newest.get(key, -1)
            newest[key] = max(seq, newest.get(key, -1))
            seen.add(seq)
    reader.close()
    return Audit(last / 1000, messages, len(seen), out_of_order)
