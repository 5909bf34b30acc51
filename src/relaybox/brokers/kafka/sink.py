"""Apache Kafka: every event a message, its ordering key the message's key.

The producer is idempotent and waits for all in-sync replicas. It rides out short outages by itself, without a
duplicate; what it could not deliver within `delivery_timeout` has left its queue, so that no old copy follows when the
relay sends again.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

from confluent_kafka import KafkaError, KafkaException

from ...durations import Duration
from ...errors import BrokerUnavailable, Closed, ConfigError, DeliveryError, Reject
from ..connection import Connected
from ..options import check_choice
from ..spi import Answer, Features, Message
from .connection import KafkaConnection, hide_secrets, milliseconds
from .producer import KafkaProducer

log = logging.getLogger("relaybox")
Compression: TypeAlias = Literal["none", "gzip", "snappy", "lz4", "zstd"]
OPEN_SECONDS = 5.0
PROBE_SECONDS = 0.5  # on the connections we have; twice that on new ones
TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")

# Durable and in order; impatient, because the relay has a patience of its own.
DEFAULTS: Mapping[str, Any] = {
    "acks": "all",
    "enable.idempotence": True,
    "max.in.flight": 5,
    "partitioner": "murmur2_random",  # puts a key where Java producers put it
    "retry.backoff.ms": 50,
    "retry.backoff.max.ms": 250,
    "message.max.bytes": 4_194_304,  # events are smaller: what is too large is for the broker to say
}

# What an error says of its message. Every other one is nobody's fault: brokers away or electing, too few replicas,
# credentials refused, a queue that is full.
TOO_LARGE = {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_MSG_SIZE, KafkaError.RECORD_LIST_TOO_LARGE}
NO_TOPIC = {
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.TOPIC_EXCEPTION,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
}
PERHAPS_THE_TOPIC = NO_TOPIC | {KafkaError._MSG_TIMED_OUT}
# The broker refuses batches of messages: one bad message is an error of its whole batch.
PERHAPS_ANOTHER = TOO_LARGE | {KafkaError.INVALID_RECORD, KafkaError._INVALID_DIFFERENT_RECORD}
BATCHES, SINGLY = "batches", "singly"
ONE_PER_BATCH = {"batch.num.messages": 1, "linger.ms": 0}


class KafkaSink(Connected[KafkaConnection]):
    """Sends events to Kafka topics. The first argument is a URL or a KafkaConnection.

        KafkaSink("kafka://localhost:9092", compression="zstd")

    linger            how long a message may wait for company, up to 5 ms; batches come whole, so hardly at all
    compression       of batches
    delivery_timeout  how long the producer tries; keep it below the relay's publish timeout
    """

    name = "kafka"
    features = Features(keyed_order=True, dedup=False, tombstones=True)
    connection_type = KafkaConnection

    def __init__(
        self,
        connection: str | KafkaConnection = "kafka://localhost:9092",
        *,
        linger: Duration = "1ms",
        compression: Compression = "none",
        delivery_timeout: Duration = "7s",
    ) -> None:
        check_choice("compression", compression, Compression)
        timeout = milliseconds("delivery_timeout", delivery_timeout, 1000, 300_000)
        self._connection = KafkaConnection.of(connection)
        if self._connection.hosts.path.strip("/"):
            raise ConfigError(f"expected the URL of a Kafka sink to end behind its hosts, got {self._connection.hosts}")
        self._config = self._connection.properties(
            {
                **DEFAULTS,
                "linger.ms": milliseconds("linger", linger, 0, 5),
                "compression.type": compression,
                "delivery.timeout.ms": timeout,
                "socket.timeout.ms": timeout // 2,  # leaves time for another try on another connection
            }
        )
        self._producers: dict[str, KafkaProducer] = {}
        self._starting = asyncio.Lock()
        self._topics: set[str] = set()  # those known to exist
        self._closed = False

    async def open(self) -> None:
        await self._ask(await self._producer(), OPEN_SECONDS)

    async def publish(self, messages: Sequence[Message]) -> Sequence[Answer]:
        producer = await self._producer()
        new = {message.destination for message in messages} - self._topics
        faults = {topic: fault for topic in new if (fault := await self._fault(producer, topic, OPEN_SECONDS))}
        if not faults:
            return await self._send(producer, messages)
        answers = iter(await self._send(producer, [m for m in messages if m.destination not in faults]))
        return [faults.get(message.destination) or next(answers) for message in messages]

    async def probe(self) -> None:
        """On the connections there are; then on new ones, as the old may hang in a network that is whole again."""
        try:
            await self._ask(await self._producer(), PROBE_SECONDS)
        except BrokerUnavailable:
            async with self._starting:
                fresh = await self._start(BATCHES)
                try:
                    await self._ask(fresh, 2 * PROBE_SECONDS)
                except BaseException:
                    await fresh.close()
                    raise
                await self._install(BATCHES, fresh)

    async def close(self) -> None:
        async with self._starting:
            self._closed = True
            while self._producers:
                await self._producers.popitem()[1].close()

    # Producers

    async def _producer(self, kind: str = BATCHES) -> KafkaProducer:
        """The one we have; a new one if that is broken for good, by a fenced epoch for example."""
        producer = self._producers.get(kind)
        if producer is None or producer.fatal is not None:
            async with self._starting:
                producer = self._producers.get(kind)
                if producer is None or producer.fatal is not None:
                    producer = await self._start(kind)
                    await self._install(kind, producer)
        return producer

    async def _start(self, kind: str) -> KafkaProducer:
        if self._closed:
            raise Closed(f"{self!r} is closed")
        try:
            return await KafkaProducer.start(self._config if kind == BATCHES else {**self._config, **ONE_PER_BATCH})
        except KafkaException as failure:
            error = failure.args[0]
            if error.code() != KafkaError._INVALID_ARG:  # no token, for example
                raise self._outage(error) from None
            raise ConfigError(f"librdkafka refuses the settings: {self._text(error)}") from None

    async def _install(self, kind: str, producer: KafkaProducer) -> None:
        old = self._producers.get(kind)
        self._producers[kind] = producer
        if old is not None:
            if old.fatal is not None:
                log.warning("Kafka producer replaced after a fatal error: %s", self._text(old.fatal))
            await old.close()

    # Messages

    async def _ask(self, producer: KafkaProducer, seconds: float) -> None:
        """Whether a broker answers. A topic that takes nothing is an outage of its own and must not stop the others."""
        try:
            await producer.metadata(next(iter(self._topics), None), seconds)
        except KafkaException as error:
            raise self._outage(error.args[0], producer) from None

    async def _fault(self, producer: KafkaProducer, topic: str, seconds: float) -> DeliveryError | None:
        """Why nothing can be sent to a topic. The producer itself would wait for a missing one to appear."""
        if not TOPIC_NAME.fullmatch(topic):
            return DeliveryError(f"{topic!r} is no name of a Kafka topic: letters, digits, '.', '_' and '-', up to 249")
        try:
            error = (await producer.metadata(topic, seconds)).topics[topic].error
        except KafkaException as failure:
            raise self._outage(failure.args[0], producer) from None
        if error is not None and error.code() != KafkaError.LEADER_NOT_AVAILABLE:
            return self._meaning(producer, error, topic, 0)
        self._topics.add(topic)
        return None

    async def _send(self, producer: KafkaProducer, messages: Sequence[Message]) -> list[Answer]:
        reports = await producer.send(messages)
        again = [n for n, error in enumerate(reports) if error is not None and error.code() in PERHAPS_ANOTHER]
        if again:
            singly = await self._producer(SINGLY)
            for n, error in zip(again, await singly.send([messages[n] for n in again]), strict=True):
                reports[n] = error
        failed = {n: error for n, error in enumerate(reports) if error is not None}
        unsure = {messages[n].destination for n, error in failed.items() if error.code() in PERHAPS_THE_TOPIC}
        topics = await self._ask_about(producer, unsure)
        answers: list[Answer] = [None] * len(messages)
        for n, error in failed.items():
            topic = messages[n].destination
            if error.code() in PERHAPS_THE_TOPIC and topic in topics:
                answers[n] = topics[topic]
            else:
                answers[n] = self._meaning(producer, error, topic, len(messages[n].body))
        return answers

    async def _ask_about(self, producer: KafkaProducer, topics: set[str]) -> dict[str, DeliveryError]:
        """What is wrong with topics whose messages ran out of time. If nobody answers, it is not the topic."""
        found: dict[str, DeliveryError] = {}
        for topic in topics:
            self._topics.discard(topic)
            try:
                fault = await self._fault(producer, topic, PROBE_SECONDS)
            except BrokerUnavailable:
                self._topics.add(topic)
                break
            found[topic] = fault or BrokerUnavailable(
                f"topic {topic!r} takes no messages: it has no leader, or too few replicas", destination=topic
            )
        return found

    def _meaning(self, producer: KafkaProducer, error: KafkaError, topic: str, size: int) -> DeliveryError:
        code = error.code()
        if code in TOO_LARGE:
            return Reject(f"{size:,} bytes are too much for topic {topic!r}: raise its max.message.bytes, or send less")
        if code == KafkaError.INVALID_RECORD:
            return Reject(f"topic {topic!r} refuses this message: {self._text(error)}")
        if code in NO_TOPIC:
            return DeliveryError(f"there is no topic {topic!r} at {self._connection}: create it, or correct the name")
        if code == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            return BrokerUnavailable(f"we may not write to topic {topic!r}: give us the right to", destination=topic)
        return self._outage(error, producer)

    def _outage(self, error: KafkaError, producer: KafkaProducer | None = None) -> BrokerUnavailable:
        reason = self._text(error)
        if producer and (more := producer.fatal.str() if producer.fatal else producer.trouble):
            reason += f" ({hide_secrets(more, self._config)})"
        return self._unavailable(reason)

    def _text(self, error: KafkaError) -> str:
        return hide_secrets(error.str(), self._config)
