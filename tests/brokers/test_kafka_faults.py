"""What only Kafka does: topics, partitions, batches that are refused whole, and copies in the producer's queue."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta

import pytest
from aiokafka.partitioner import DefaultPartitioner
from confluent_kafka.admin import AdminClient
from kafka_harness import KafkaHarness

from relaybox.brokers.kafka.sink import KafkaSink
from relaybox.errors import BrokerUnavailable, DeliveryError, Reject
from relaybox.testing.servers import TcpGate, require
from relaybox.testing.servers.kafka import KafkaServer
from relaybox.testing.sink_contract import arrived, deliver, messages, publish
from relaybox.testing.sink_contract.harness import RESUME_SECONDS, probe, until_back
from relaybox.testing.sink_contract.outage import OutageContract


@pytest.fixture
def harness() -> KafkaHarness:
    return KafkaHarness(require("kafka"))


@pytest.fixture
async def sink(harness: KafkaHarness) -> AsyncIterator[KafkaSink]:
    made = harness.sink()
    await made.open()
    yield made
    await made.close()


def kinds(answers: list[BaseException | None]) -> list[type]:
    return [type(answer) for answer in answers]


# -- Topics and partitions --------------------------------------------------------------------------


async def test_keys_go_where_java_puts_them(harness: KafkaHarness, sink: KafkaSink) -> None:
    topic = await harness.topic(partitions=7)
    keys = [f"order-{n}" for n in range(100)] + ["ключ", "ü", "x"]
    sent = messages(sink, topic, keys)
    assert await publish(sink, sent) == [None] * len(sent)
    numbers, java = list(range(7)), DefaultPartitioner()
    found = {record.key.decode(): record.partition for record in await harness.records(topic, len(sent))}
    assert found == {key: java(key.encode(), numbers, numbers) for key in keys}


async def test_messages_without_a_key_are_spread(harness: KafkaHarness, sink: KafkaSink) -> None:
    topic = await harness.topic(partitions=3)
    for _ in range(30):
        assert await publish(sink, messages(sink, topic, [None])) == [None]
    assert {record.partition for record in await harness.records(topic, 30)} == {0, 1, 2}


async def test_a_topic_that_is_made_later(harness: KafkaHarness, sink: KafkaSink) -> None:
    topic = f"later-{await harness.topic()}"
    sent = messages(sink, topic, ["a"])
    for _ in range(2):
        async with asyncio.timeout(2):  # the producer alone would wait for the topic
            [answer] = await sink.publish(sent)
        assert type(answer) is DeliveryError
    harness.server.create_topic(topic)
    await harness.records(topic, 0)
    assert await publish(sink, sent) == [None]
    await arrived(harness, topic, sent)


async def test_a_topic_that_is_deleted(harness: KafkaHarness, sink: KafkaSink) -> None:
    """The producer waits for it to return until the message runs out of time. That is no outage of the broker."""
    topic, other = await harness.topic(), await harness.topic()
    assert await publish(sink, messages(sink, topic, ["a"])) == [None]
    admin = AdminClient(harness.server.client_settings)
    await asyncio.wrap_future(admin.delete_topics([topic])[topic])
    async with asyncio.timeout(30):
        while (answer := (await publish(sink, messages(sink, topic, ["a"])))[0]) is None:
            pass  # the broker finishes what it has begun
    assert type(answer) is DeliveryError
    assert f"no topic '{topic}'" in str(answer)
    assert kinds(await publish(sink, messages(sink, topic, ["a"]) + messages(sink, other, ["a"]))) == [
        DeliveryError,
        type(None),
    ]


@pytest.mark.parametrize("name", ["", "a/b", "a b", "ü", "x" * 250, "a\0b"])
async def test_names_that_no_topic_has(sink: KafkaSink, name: str) -> None:
    assert kinds(await publish(sink, messages(sink, name, ["a"]))) == [DeliveryError]


# -- Batches that are refused whole -----------------------------------------------------------------


async def test_a_topic_for_small_batches(harness: KafkaHarness, sink: KafkaSink) -> None:
    """Every message fits, but not with the others: the broker's answer is the same as for one that is too large."""
    topic = await harness.topic(partitions=1, **{"max.message.bytes": "2000"})
    sent = messages(sink, topic, [f"key-{n}" for n in range(50)])
    large = messages(sink, topic, ["large"], b"x" * 3000)
    answers = await publish(sink, [*sent[:25], *large, *sent[25:]])
    assert kinds(answers) == [type(None)] * 25 + [Reject] + [type(None)] * 25
    assert "max.message.bytes" in str(answers[25])
    await arrived(harness, topic, sent)


async def test_a_topic_that_wants_keys(harness: KafkaHarness, sink: KafkaSink) -> None:
    topic = await harness.topic(partitions=1, **{"cleanup.policy": "compact"})
    good = messages(sink, topic, ["a", "b"])
    [keyless] = messages(sink, topic, [None])
    assert kinds(await publish(sink, [good[0], keyless, good[1]])) == [type(None), Reject, type(None)]
    await arrived(harness, topic, good)


async def test_larger_than_the_producer_takes(harness: KafkaHarness, sink: KafkaSink) -> None:
    topic = await harness.topic()
    huge = messages(sink, topic, ["a"], b"x" * 5_000_000)
    assert kinds(await publish(sink, huge)) == [Reject]


async def test_a_full_queue_is_a_pause(harness: KafkaHarness) -> None:
    sink = harness.sink(config={"queue.buffering.max.messages": 10})
    await sink.open()
    topic = await harness.topic()
    sent = messages(sink, topic, [f"key-{n}" for n in range(50)])
    answers = await publish(sink, sent)
    assert kinds(answers) == [type(None)] * 10 + [BrokerUnavailable] * 40
    await deliver(sink, sent[10:])
    await sink.close()
    await arrived(harness, topic, sent)


# -- Copies in the producer's queue -----------------------------------------------------------------


@pytest.fixture
async def patient(harness: KafkaHarness) -> AsyncIterator[KafkaSink]:
    """Tries for longer than a broker takes to start."""
    made = harness.sink(delivery_timeout=timedelta(seconds=60))
    await made.open()
    yield made
    await made.close()


async def test_what_was_cancelled_in_an_outage_does_not_follow(harness: KafkaHarness, patient: KafkaSink) -> None:
    """Nor does it take others with it: they wait for the broker and arrive once."""
    topic = await harness.topic()
    before = messages(patient, topic, ["a", "b"])
    assert await publish(patient, before) == [None, None]
    cancelled, kept = messages(patient, topic, ["a"], first=2), messages(patient, topic, ["b"], first=3)
    await harness.outage()
    try:
        going, staying = (asyncio.create_task(patient.publish(batch)) for batch in (cancelled, kept))
        await asyncio.wait([going], timeout=0.2)
        going.cancel()
        await asyncio.wait([going], timeout=0.2)
    finally:
        await harness.recovery()
    assert await staying == [None]
    found = await arrived(harness, topic, before + kept)
    assert cancelled[0].id not in {received.id for received in found}


async def test_an_outage_shorter_than_the_timeout_goes_unnoticed(harness: KafkaHarness, patient: KafkaSink) -> None:
    """The broker dies with requests in flight. The producer sends them again under the same numbers."""
    topic = await harness.topic()
    sent = messages(patient, topic, ["a"])
    assert await publish(patient, sent) == [None]
    tasks = []
    for round_ in range(20):
        batch = messages(patient, topic, [f"key-{round_}-{n}" for n in range(50)])
        tasks.append(asyncio.create_task(patient.publish(batch)))
        sent += batch
        await asyncio.sleep(0)
    await harness.outage()
    await harness.recovery()
    assert {answer for answers in await asyncio.gather(*tasks) for answer in answers} == {None}
    await arrived(harness, topic, sent)


# -- A network that swallows ------------------------------------------------------------------------


class GatedHarness(KafkaHarness):
    """A broker that can only be reached through a gate."""

    def __init__(self, server: KafkaServer, gate: TcpGate) -> None:
        super().__init__(server)
        self.gate = gate

    @property
    def url(self) -> str:
        return f"kafka://127.0.0.1:{self.gate.port}"

    async def recovery(self) -> None:
        self.gate.open()


class BlackholeHarness(GatedHarness):
    async def outage(self) -> None:
        self.gate.blackhole()


class LostRepliesHarness(GatedHarness):
    async def outage(self) -> None:
        self.gate.drop_replies()


@pytest.fixture(scope="module")
def gated() -> Iterator[tuple[KafkaServer, TcpGate]]:
    require("kafka")
    with TcpGate() as gate:
        with KafkaServer(settings={"advertised.listeners": f"PLAINTEXT://127.0.0.1:{gate.port}"}) as server:
            gate.target_port = server.port
            yield server, gate


class TestBlackhole(OutageContract):
    @pytest.fixture
    def harness(self, gated: tuple[KafkaServer, TcpGate]) -> BlackholeHarness:
        return BlackholeHarness(*gated)


class TestLostReplies(OutageContract):
    """The broker has what the sink believes it has not: copies come in a row, never behind their successor."""

    @pytest.fixture
    def harness(self, gated: tuple[KafkaServer, TcpGate]) -> LostRepliesHarness:
        return LostRepliesHarness(*gated)


class DeadEnds:
    """A way to the broker. Connections that it saw while `broken` stay open and lead nowhere, for ever."""

    broken = False

    async def open(self, target_port: int) -> int:
        self._target_port = target_port
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._target_port)
        await asyncio.gather(self._pump(reader, back), self._pump(there, writer), return_exceptions=True)
        for end in (writer, back):
            end.close()

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        dead = False
        while data := await source.read(65536):
            dead = dead or self.broken
            if not dead:
                sink.write(data)


async def test_connections_that_never_come_back(gated: tuple[KafkaServer, TcpGate]) -> None:
    """The network is whole again, but forgot our connections: those of the producer would hang for many seconds."""
    server, gate = gated
    harness, way = GatedHarness(server, gate), DeadEnds()
    topic = await harness.topic()
    gate.target_port = await way.open(server.port)
    sink = harness.sink()
    await sink.open()
    before, during = messages(sink, topic, ["a", "b"]), messages(sink, topic, ["a", "b"], first=2)
    assert await publish(sink, before) == [None, None]
    way.broken = True
    for _ in range(2):
        assert kinds(await publish(sink, during)) == [BrokerUnavailable] * 2
    assert isinstance(await probe(sink), BrokerUnavailable)
    way.broken = False
    await until_back(sink, RESUME_SECONDS)
    assert await publish(sink, during) == [None, None]
    await sink.close()
    gate.target_port = server.port
    await arrived(harness, topic, before + during, repeated=True)
