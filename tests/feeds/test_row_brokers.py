"""Rows of a feed in real brokers: a compacted topic of Kafka, through a kill and an outage, and NATS, which has no
tombstones."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from kafka_harness import KafkaHarness
from nats_harness import NatsHarness, private_server
from rows_kit import Sent, as_table, compacted, exact, fill, firsts, make, relay, table

from kit import make_postgres, rows, until
from relaybox import AsyncInbox, AsyncIngest, Inbox, Outbox
from relaybox.brokers.kafka import KafkaSink
from relaybox.testing.servers import KafkaServer, require

COMPACTED = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.001",
    "delete.retention.ms": "0",
    "segment.ms": "1000",
}
CLEANS_OFTEN = {"log.cleaner.backoff.ms": "200"}
# Kills itself as it is about to publish for the nth time.
KILLED = """
import asyncio, os, signal, sys
sys.path[:0] = sys.argv[5:]
from rows_kit import relay
from relaybox.brokers.kafka import KafkaSink

url, kafka, topic, last = sys.argv[1:5]

class Killed(KafkaSink):
    calls = 0
    async def publish(self, messages):
        self.calls += 1
        if self.calls == int(last):
            os.kill(os.getpid(), signal.SIGKILL)
        return await super().publish(messages)

async def main():
    async with relay(url, Killed(kafka), to=topic) as running:
        await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def kafka() -> Iterator[KafkaHarness]:
    require("kafka")  # skips where there is none
    with KafkaServer(settings=CLEANS_OFTEN) as server:
        yield KafkaHarness(server)


@pytest.fixture
def url() -> str:
    return make_postgres()


@pytest.fixture
def box(url: str) -> Iterator[Outbox]:
    with Outbox(url) as box:
        yield box


async def read(kafka: KafkaHarness, topic: str, count: int = 0) -> list[Sent]:
    """Partition by partition."""
    return [
        Sent(record.key.decode(), record.value, {name: value.decode() for name, value in record.headers})
        for record in await kafka.records(topic, count)
    ]


async def sent_all(url: str, box: Outbox, sink: Any, **options: Any) -> None:
    info = box.feeds.get("items")
    assert info is not None
    async with relay(url, sink, **options) as running:
        await until(lambda: running.counts.done == info.deltas)


def change(url: str, box: Outbox) -> None:
    """Two deltas: rows, and then some of them changed, gone and new."""
    fill(url, 1, 60)
    box.feeds.refresh(None, "items")
    rows(url, "UPDATE item SET big = 0, price = price + 0.00 WHERE price < 31")
    rows(url, "DELETE FROM item WHERE price > 45")
    fill(url, 61, 80)
    box.feeds.refresh(None, "items")


@pytest.mark.parametrize("mode", ["differential", "full"])
@pytest.mark.parametrize("inline_rows", [10_000, 0])
async def test_a_compacted_topic_has_the_table(
    kafka: KafkaHarness, url: str, box: Outbox, mode: str, inline_rows: int
) -> None:
    make(box, url, mode=mode, inline_rows=inline_rows, chunk_rows=7)
    change(url, box)
    topic = await kafka.topic(3, **COMPACTED)
    await sent_all(url, box, kafka.sink(), to=topic)
    messages = await read(kafka, topic, 60 + 30 + 2 * 16 + 20)
    assert as_table(messages) == table(url)
    tombstones = [m for m in messages if m.body is None]
    assert len(tombstones) == 16
    assert all(m.key not in compacted(messages) for m in tombstones)
    ops = {m.key: [] for m in messages}
    for message in messages:  # a key is in one partition
        ops[message.key].append(message.op)
    assert {tuple(of) for of in ops.values()} == {("c",), ("c", "u"), ("c", "d", "tombstone")}


async def test_what_the_brokers_cleaner_leaves_is_the_table(kafka: KafkaHarness, url: str, box: Outbox) -> None:
    """Kafka compacts closed segments, which later messages close."""
    make(box, url)
    change(url, box)
    topic = await kafka.topic(1, **COMPACTED)
    await sent_all(url, box, kafka.sink(), to=topic)
    messages = await read(kafka, topic, 142)
    async with asyncio.timeout(60), relay(url, kafka.sink(), to=topic) as running:
        while any(m.op in ("d", "tombstone") for m in messages):
            rows(url, "UPDATE item SET big = big + 1 WHERE code = 'c\"1'")
            count = running.counts.done
            box.feeds.refresh(None, "items")
            await until(lambda count=count: running.counts.done > count)  # type: ignore[misc]
            messages = await read(kafka, topic)
    assert len({m.key for m in messages}) == len(table(url))
    assert as_table(messages) == table(url)


async def test_killed_between_two_chunks(kafka: KafkaHarness, url: str, box: Outbox) -> None:
    """The delta goes again from its beginning, with the same ids, and all of it before the next."""
    make(box, url, inline_rows=0, chunk_rows=10)
    fill(url, 1, 200)
    box.feeds.refresh(None, "items")
    rows(url, "UPDATE item SET big = 0")
    box.feeds.refresh(None, "items")
    topic = await kafka.topic(3, **COMPACTED)
    folders = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]
    command = [sys.executable, "-c", KILLED, url, kafka.url, topic, "13", *folders]
    died = await asyncio.to_thread(subprocess.run, command, timeout=60, check=False)
    assert died.returncode == -signal.SIGKILL
    before = await read(kafka, topic)
    assert 0 < len(before) < 200
    assert {m.n for m in before} == {1}
    await sent_all(url, box, kafka.sink(), to=topic)
    messages = await read(kafka, topic, 400)
    assert len(list(firsts(messages))) == 400
    ids = {m.headers["event_id"] for m in before}
    assert {m.headers["event_id"] for m in messages if m.n == 1} > ids
    by_key: dict[str, list[int]] = {}
    for message in messages:
        by_key.setdefault(message.key, []).append(message.n)
    assert all(numbers == sorted(numbers) for numbers in by_key.values())
    assert max(numbers.count(1) for numbers in by_key.values()) == 2  # it was sent in part, and again
    assert as_table(messages) == table(url)


async def test_a_broker_that_goes_away_in_the_middle(kafka: KafkaHarness, url: str, box: Outbox) -> None:
    make(box, url, inline_rows=0, chunk_rows=10)
    fill(url, 1, 500)
    box.feeds.refresh(None, "items")
    topic = await kafka.topic(3, **COMPACTED)
    under_way = asyncio.Event()

    class Outage(KafkaSink):
        calls = 0

        async def publish(self, messages: Any) -> Any:
            self.calls += 1
            if self.calls == 12:
                await kafka.outage()
                under_way.set()
            return await super().publish(messages)

    async with relay(url, Outage(kafka.url, delivery_timeout="1s"), to=topic) as running:
        await asyncio.wait_for(under_way.wait(), 30)
        await until(lambda: not running.health().ready)
        await kafka.recovery()
        await until(lambda: running.counts.done == 1, 60)
        assert (running.counts.failed, running.counts.dead) == (0, 0)
    messages = await read(kafka, topic, 500)
    assert len(list(firsts(messages))) == 500
    assert as_table(messages) == table(url)


async def test_a_row_that_is_too_large_for_the_topic(kafka: KafkaHarness, url: str, box: Outbox) -> None:
    """The delta is parked until the topic takes it, and the next one behind it."""
    make(box, url)
    fill(url, 1, 3)
    rows(url, "UPDATE item SET note = to_json(repeat('x', 20000)) WHERE shop = 2")
    box.feeds.refresh(None, "items")
    fill(url, 4, 4)
    box.feeds.refresh(None, "items")
    topic = await kafka.topic(1, **COMPACTED, **{"max.message.bytes": "10000"})
    group = box.topics.group("items", "broker")
    async with relay(url, kafka.sink(), to=topic) as running:
        await until(lambda: running.counts.dead == 1, 30)
        [letter] = group.dead.list()
        assert "bytes are too much for topic" in str(letter.error)
        assert {m.n for m in await read(kafka, topic)} <= {1}
        await asyncio.to_thread(_raise_limit, kafka.server, topic)
        group.dead.replay(letter.event.id)
        await until(lambda: running.counts.done == 2, 30)
    assert as_table(await read(kafka, topic)) == table(url)


def _raise_limit(server: KafkaServer, topic: str) -> None:
    entry = ConfigEntry("max.message.bytes", "1000000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient(server.client_settings)
    admin.incremental_alter_configs([resource])[resource].result(30)


async def test_nats_has_no_tombstones(url: str, box: Outbox) -> None:
    make(box, url, inline_rows=0, chunk_rows=7)
    change(url, box)
    with private_server() as server:
        harness = NatsHarness(server)
        stream = await harness.destination()
        async with asyncio.timeout(60):
            await sent_all(url, box, harness.sink(), to=stream)
            received = await harness.read(stream, 0)
    messages = [Sent(str(m.key), m.body, m.attributes) for m in received]
    assert [m.op for m in messages].count("d") == 16
    assert len(messages) == 60 + 30 + 16 + 20
    last = {m.key: exact(m.body or b"") for m in messages}
    kept = sorted((row["after"]["shop"], row["after"]["code"]) for row in last.values() if row["op"] != "d")
    assert kept == sorted(rows(url, "SELECT shop, code FROM feed_items"))
    assert {str(row["after"]["price"]) for row in last.values() if row["op"] == "u"} == {
        str(price) for (price,) in rows(url, "SELECT price FROM feed_items WHERE big = 0")
    }


async def test_an_inbox_that_reads_the_topic_has_each_row_once(kafka: KafkaHarness, url: str, box: Outbox) -> None:
    """A tombstone has the id of the message before it: a repetition."""
    make(box, url)
    change(url, box)
    topic = await kafka.topic(3, **COMPACTED)
    await sent_all(url, box, kafka.sink(), to=topic)
    inbox = make_postgres()
    with Inbox(inbox, "items") as receiver:
        receiver.migrate()
    async with AsyncIngest(f"{kafka.url}/{topic}?group=items", AsyncInbox(inbox, "items"), sender="shop") as ingest:
        await until(lambda: ingest.counts.done == 142, 30)
        assert (ingest.counts.ignored, ingest.counts.dead) == (16, 0)
