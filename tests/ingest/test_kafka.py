"""Kafka into an inbox: filled with aiokafka, read with confluent-kafka."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Sequence
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import Consumer, KafkaError, TopicPartition

from kit import rows, until, until_stored
from relaybox import Event, Inbox
from relaybox.brokers import source_from_url
from relaybox.brokers.kafka import source as kafka
from relaybox.brokers.kafka.source import KafkaSource
from relaybox.errors import BrokerUnavailable, ConfigError
from relaybox.facts import CircuitChanged, LoopFailed
from relaybox.settings import IngestSettings, Settings
from relaybox.testing.servers import TcpGate
from relaybox.types import Health, Reading

from .ingest_kit import (
    PATIENCE,
    arrivals,
    command,
    events,
    in_order,
    inbox_url,
    ingesting,
    plain,
    totals,
)
from .kafka_behind_gate import SESSION, KafkaBehindGate

GROUP = "billing"


@pytest.fixture
def server(kafka_server: KafkaBehindGate) -> KafkaBehindGate:
    return kafka_server


@pytest.fixture
def url(tmp_path: Path) -> str:
    return inbox_url("postgres", tmp_path)


def source(server: KafkaBehindGate, topics: str, **options: Any) -> KafkaSource:
    return KafkaSource(f"kafka://{server.bootstrap}", topics=topics, group=GROUP, **options)


async def produce(server: KafkaBehindGate, topic: str, sent: Sequence[Event]) -> None:
    async with AIOKafkaProducer(bootstrap_servers=server.bootstrap) as producer:
        waiting = []
        for event in sent:
            message = plain(event, topic)
            headers = [(name, value.encode()) for name, value in message.attributes.items()]
            headers.append(("content-type", message.content_type.encode()))
            key = None if message.key is None else message.key.encode()
            waiting.append(await producer.send(topic, message.body, key, headers=headers))
        await asyncio.gather(*waiting)


def committed(server: KafkaBehindGate, topic: str, partitions: int = 1) -> int:
    """What the group has acknowledged of a topic."""
    consumer = Consumer({**server.client_settings, "group.id": GROUP})
    try:
        found = consumer.committed([TopicPartition(topic, n) for n in range(partitions)], timeout=10)
        return sum(max(0, one.offset) for one in found)
    finally:
        consumer.close()


async def test_messages_arrive_once_in_order_and_are_acknowledged(server: KafkaBehindGate, url: str) -> None:
    topic, other = server.fresh_topic(3), server.fresh_topic(1)
    sent, more = events(300), events(20)
    await produce(server, topic, sent)
    await produce(server, other, more)
    await produce(server, topic, sent[:50])
    async with ingesting(
        source(server, f"{topic},{other}"), url, sender="shop", settings=Settings(ingest=IngestSettings(batch=64))
    ) as (ingest, _):
        await until(lambda: totals(ingest).accepted + totals(ingest).duplicates == 370)
        await ingest.drain()
    found = arrivals(url)
    ids = {event.id for event in sent}
    assert in_order(sent, [row for row in found if row[1] in ids])
    assert in_order(more, [row for row in found if row[1] not in ids])
    assert totals(ingest) == (320, 50, 0)
    assert committed(server, topic, 3) + committed(server, other) == 370


@pytest.mark.parametrize("point", ["write.before", "write.committed"])
async def test_a_process_that_is_killed_loses_and_doubles_nothing(
    server: KafkaBehindGate, url: str, point: str
) -> None:
    """Before the commit, and between commit and acknowledgement, of the second batch of three."""
    topic = server.fresh_topic(2)
    sent = events(30)
    await produce(server, topic, sent)
    address = f"kafka://{server.bootstrap}/{topic}?group={GROUP}&{SESSION}"
    once = ("ingest", "--from", address, "--batch", "10", "--once", "--json")
    code, _, _ = await command(*once, url=url, crash=f"{point}:2:kill")
    assert code == -signal.SIGKILL
    known = len(arrivals(url))
    doubled = known - committed(server, topic, 2)
    assert 0 < known < 30
    assert (doubled > 0) == (point == "write.committed")
    async with ingesting(source(server, topic, session_timeout=timedelta(seconds=1)), url) as (ingest, _):
        await until_stored(lambda: len(arrivals(url)) == 30 and committed(server, topic, 2) == 30)
    assert in_order(sent, arrivals(url))
    assert totals(ingest) == (30 - known, doubled, 0)


async def test_members_of_a_group_share_the_partitions(server: KafkaBehindGate, url: str) -> None:
    """One joins while another reads, and one leaves: nothing is lost, nothing comes twice, each key is in order."""
    topic = server.fresh_topic(4)
    sent = events(400, keys=16)
    first_part, second_part, third_part = sent[:100], sent[100:250], sent[250:]
    await produce(server, topic, first_part)
    async with ingesting(source(server, topic), url, settings=Settings(ingest=IngestSettings(batch=10))) as (early, _):
        await until(lambda: totals(early).accepted >= 50)
        async with ingesting(source(server, topic), url, settings=Settings(ingest=IngestSettings(batch=10))) as (
            late,
            _,
        ):
            await produce(server, topic, second_part)
            await until_stored(lambda: len(arrivals(url)) == 250)
            assert totals(late).accepted > 0
        await produce(server, topic, third_part)
        await until_stored(lambda: len(arrivals(url)) == 400 and committed(server, topic, 4) == 400)
        assert in_order(sent, arrivals(url))
        assert totals(early).accepted + totals(late).accepted == 400
        assert totals(early).duplicates == totals(late).duplicates == 0


async def test_a_member_without_its_database_does_not_hold_up_the_others(
    server: KafkaBehindGate, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has received and cannot store: it still takes part in the rebalance, and acknowledges nothing of what went."""
    monkeypatch.setattr(kafka, "KEEP_SECONDS", 0.2)
    topic = server.fresh_topic(4)
    sent = events(80, keys=16)
    with closing(TcpGate(int(url.rpartition("/")[0].rpartition(":")[2]))) as gate:
        async with ingesting(source(server, topic), gate.through(url)) as (stuck, facts):
            gate.refuse()
            await produce(server, topic, sent)
            await until(lambda: any(isinstance(fact, LoopFailed) for fact in facts))
            async with ingesting(source(server, topic), url) as (healthy, _):
                await until(lambda: totals(healthy).accepted > 0)
                assert committed(server, topic, 4) == len(arrivals(url)) < 80
                gate.open()
                await until_stored(lambda: committed(server, topic, 4) == 80)
                assert totals(stuck).accepted + totals(healthy).accepted == 80
    assert sorted(event.id for event in sent) == sorted(event_id for _, event_id in arrivals(url))


async def test_a_broker_that_is_killed_and_starts_again(server: KafkaBehindGate, url: str) -> None:
    topic = server.fresh_topic(2)
    sent = events(60)
    await produce(server, topic, sent[:40])
    quick = source(server, topic, session_timeout=timedelta(seconds=1))
    async with ingesting(quick, url, settings=Settings(ingest=IngestSettings(batch=4))) as (ingest, facts):
        await until(lambda: totals(ingest).accepted >= 8)
        await asyncio.to_thread(server.kill)
        await until(lambda: ingest.health() == Health("critical", ("kafka is unavailable",)))
        await asyncio.to_thread(server.start)
        await produce(server, topic, sent[40:])
        await until_stored(lambda: len(arrivals(url)) == 60 and committed(server, topic, 2) == 60)
    assert [fact.open for fact in facts if isinstance(fact, CircuitChanged)][:2] == [True, False]
    assert in_order(sent, arrivals(url))


async def test_nothing_is_acknowledged_of_a_partition_that_went(server: KafkaBehindGate) -> None:
    topic = server.fresh_topic(1)
    await produce(server, topic, events(5, keys=1))
    old, new = source(server, topic), source(server, topic)
    await old.open()
    try:
        batch = await old.receive(3, PATIENCE)
        assert len(batch) == 3
        old._revoked(None, [TopicPartition(topic, 0)])
        old._assigned(None, [TopicPartition(topic, 0)])
        await old.acknowledge(batch)
        assert committed(server, topic) == 0
    finally:
        await old.close()
    await new.open()
    try:
        assert [m.place for m in await new.receive(3, PATIENCE)] == [m.place for m in batch]
    finally:
        await new.close()


async def test_what_was_received_comes_again_also_after_a_rest(
    server: KafkaBehindGate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Partitions are paused while nobody receives; opening again goes back to what was not acknowledged."""
    monkeypatch.setattr(kafka, "KEEP_SECONDS", 0.05)
    topic = server.fresh_topic(1)
    await produce(server, topic, events(6, keys=1))
    reader = source(server, topic)
    await reader.open()
    try:
        first = await reader.receive(2, PATIENCE)
        await reader.acknowledge(first)
        held = await reader.receive(2, PATIENCE)
        await until(lambda: bool(reader._paused))
        await reader.open()
        again = [*await reader.receive(1, PATIENCE), *await reader.receive(1, PATIENCE)]
        assert [m.place for m in again] == [m.place for m in held]
        await reader.acknowledge(again)
        assert committed(server, topic) == 4
    finally:
        await reader.close()


class _Polled:
    """As librdkafka hands over: a message, or an error in its place."""

    def __init__(self, partition: int, error: KafkaError | None = None) -> None:
        self._partition = partition
        self._error = error

    def error(self) -> KafkaError | None:
        return self._error

    def __getattr__(self, name: str) -> Any:
        answers = {"partition": self._partition, "topic": "orders", "offset": 7, "timestamp": (0, 0)}
        return lambda: answers.get(name)


def test_an_error_among_messages_makes_none_of_them_forgotten() -> None:
    """Its position has moved past them: a consumer that does not know of them would skip them when it goes back."""
    reader = KafkaSource("kafka://localhost:9092/orders", group=GROUP)
    with pytest.raises(BrokerUnavailable):
        reader._take([_Polled(0), _Polled(1, KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)), _Polled(2)])
    assert reader._floors == {("orders", 0): 7, ("orders", 2): 7}


async def test_messages_of_other_systems(server: KafkaBehindGate, url: str) -> None:
    """Without headers, without a key, without a value, not UTF-8; and one that pretends to be a CloudEvent."""
    topic = server.fresh_topic(1)
    async with AIOKafkaProducer(bootstrap_servers=server.bootstrap) as producer:
        for value, key, headers in (
            (b'{"n": 1}', b"order-1", []),
            (None, b"order-1", [("kind", b"Deleted")]),
            (b"\xff", b"\xff", [("kind", b"\xff")]),
            (b"{}", None, [("content-type", b"application/cloudevents+json")]),
        ):
            await producer.send_and_wait(topic, value, key, headers=headers)
    async with ingesting(source(server, topic), url, reading=Reading(type_header="kind")) as (ingest, _):
        await until(lambda: sum(totals(ingest)[:2]) == 4)
    with Inbox(url) as inbox:
        (letter,) = inbox.dead.list()
        assert letter.event.body == b"{}"
        assert letter.error is not None
        assert topic in letter.error
    found = rows(url, "SELECT event_type, aggregate_id, payload FROM inbox ORDER BY seq")
    assert [(row[0], row[1], bytes(row[2])) for row in found[:3]] == [
        (topic, "order-1", b'{"n": 1}'),
        ("Deleted", "order-1", b""),
        ("�", "�", b"\xff"),
    ]


async def test_a_topic_that_is_not_there_yet(server: KafkaBehindGate, url: str) -> None:
    topic = f"{server.fresh_topic()}-late"
    async with ingesting(source(server, topic), url) as (ingest, facts):
        assert ingest.health() == Health("critical", ("kafka is unavailable",))
        server.create_topic(topic)
        await produce(server, topic, events(2))
        await until(lambda: totals(ingest).accepted == 2)
    reasons = [fact.reason for fact in facts if isinstance(fact, CircuitChanged)]
    assert topic in reasons[0]


async def test_the_command_reads_file_environment_and_arguments(
    server: KafkaBehindGate, url: str, tmp_path: Path
) -> None:
    topic = server.fresh_topic(1)
    await produce(server, topic, events(5))
    file = tmp_path / "relaybox.toml"
    file.write_text(
        f'[relaybox.ingest]\nsender = "file"\nbatch = 2\nwait = "500ms"\n'
        f'[relaybox.source]\nurl = "kafka://{server.bootstrap}"\ntopics = "{topic}"\ngroup = "elsewhere"\n'
    )
    code, out, err = await command(
        *("ingest", "--once", "--json", "--config", str(file), "--source-option", f"group={GROUP}"),
        url=url,
        RELAYBOX_INGEST_SENDER="environment",
    )
    assert code == 0, err
    assert json.loads(out) == {"accepted": 5, "duplicates": 0, "malformed": 0}
    assert {row[0] for row in rows(url, "SELECT sender FROM inbox")} == {"environment"}
    assert committed(server, topic) == 5


@pytest.mark.parametrize(
    ("url", "options", "reason"),
    [
        ("kafka://localhost:9092", {"group": "g"}, "topics"),
        ("kafka://localhost:9092/orders", {}, "group"),
        ("kafka://localhost:9092/,", {"group": "g"}, "topics"),
        ("kafka:///orders", {"group": "g"}, "expected kafka://"),
        ("kafka://localhost:9092/orders", {"group": "g", "start": "middle"}, "start"),
        ("kafka://localhost:9092/orders", {"group": "g", "session_timeout": "1ms"}, "session_timeout"),
        (
            "kafka://localhost:9092/orders",
            {"group": "g", "config": {"enable.auto.commit": True}},
            "before it is stored",
        ),
        ("kafka://me:secret@kafka.example:9092/orders", {"group": "g", "sasl": "PLAIN"}, "in clear text"),
        ("rabbit://localhost", {}, "unknown kind of source"),
    ],
)
def test_wrong_settings(url: str, options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        source_from_url(url, options)
    assert "secret" not in str(caught.value)


def test_tls_and_sasl_are_those_of_the_sink() -> None:
    made = source_from_url("kafkas://me:secret@localhost:9092/orders?group=g&sasl=SCRAM-SHA-256", {})
    assert isinstance(made, KafkaSource)
    assert made._config["security.protocol"] == "sasl_ssl"
    assert made._config["sasl.password"] == "secret"
    assert "secret" not in repr(made)
