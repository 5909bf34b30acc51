"""A relay as a group of a topic: order per key, nothing lost, refusals alone, and a real broker."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psycopg
import pytest
from relay_kit import write
from scripted_sink import ScriptedSink

from kit import until
from relaybox import AsyncOutbox, AsyncRelay, Event, Outbox, Settings
from relaybox.errors import DeliveryError, Reject
from relaybox.spi import Answer, Message
from relaybox.testing.servers import require
from relaybox.topic import Topic
from relaybox.topics.start import StartFrom

sys.path.insert(0, str(Path(__file__).parent.parent / "brokers"))
from nats_harness import SECRET, USER, NatsHarness, private_server

from relaybox import Retry
from relaybox.types import DeliverySettings, RelaySettings

QUICK = Settings(
    delivery=DeliverySettings(instance_ttl="1s", lease="3s"),
    relay=RelaySettings(batch=50, retry=Retry(base="5ms", max="20ms")),
)


@pytest.fixture
def url() -> str:
    fresh = require("postgres-wheel", durable=False).create_database()
    with Outbox(fresh) as box:
        box.migrate()
        box.topics.configure(Topic.pub_sub("orders"))
    return fresh


def numbered(count: int, keys: int) -> list[Event]:
    return [Event("T", n, key=f"k{n % keys}", topic="orders") for n in range(count)]


class Sequential(ScriptedSink):
    """As a broker that keeps sequences: behind one that failed, nothing of its key goes out in the same call."""

    async def publish(self, messages: Sequence[Message]) -> Sequence[Answer]:
        failed: set[str | None] = set()
        answers: list[Answer] = []
        self.calls.append(list(messages))
        self._reach()
        for message in messages:
            answer = DeliveryError("behind a failed one") if message.key in failed else self.verdict(message)
            if answer is None:
                self.sent.append(message)
            else:
                failed.add(message.key)
            answers.append(answer)
        return answers


def relay(url: str, sink: ScriptedSink, **options: Any) -> AsyncRelay:
    source = AsyncOutbox(url).topics.group("orders", "kafka", start=StartFrom.earliest())
    return AsyncRelay(source, sink, **{"settings": QUICK, "to": "out", **options})


@pytest.mark.parametrize("sequences", [True, False])
async def test_every_event_goes_out_once_and_in_the_order_of_its_key(url: str, sequences: bool) -> None:
    sink = ScriptedSink(sequences=sequences)
    write(url, numbered(300, 7))
    async with relay(url, sink) as running:
        await until(lambda: len(sink.sent) == 300)
        await running.drain()
        assert (await running.status()).due == 0
    by_key = sink.by_key()
    assert all(numbers == sorted(numbers) for numbers in by_key.values())
    assert sum(map(len, by_key.values())) == 300
    if not sequences:  # the next of a key goes out when the one before it is acknowledged
        assert all(len({message.key for message in call}) == len(call) for call in sink.calls)


@pytest.mark.parametrize("sequences", [True, False])
async def test_what_fails_is_sent_again_before_the_rest_of_its_key(url: str, sequences: bool) -> None:
    failed: list[int] = []

    def verdict(message: Message) -> Answer:
        number = message.event.payload
        if number in (30, 31) and failed.count(number) < 2:
            failed.append(number)
            return OSError("not now")
        return Reject("never") if number == 50 else None

    sink = (Sequential if sequences else ScriptedSink)(verdict, sequences=sequences)
    write(url, numbered(100, 5))
    async with relay(url, sink, settings=QUICK.replaced({"order.on_exhausted": "skip"})):
        await until(lambda: len(sink.sent) == 99)
    firsts = {key: list(dict.fromkeys(numbers)) for key, numbers in sink.by_key().items()}
    assert all(numbers == sorted(numbers) for numbers in firsts.values())
    assert sorted(failed) == [30, 30, 31, 31]
    assert 50 not in [message.event.payload for message in sink.sent]


async def test_an_outage_fails_nothing_and_counts_nothing(url: str) -> None:
    sink = ScriptedSink(sequences=True)
    sink.away = "maintenance"
    write(url, numbered(50, 3))
    async with relay(url, sink) as running:
        await asyncio.wait_for(sink.refused.wait(), 20)
        assert not sink.sent
        sink.away = None
        await until(lambda: len(sink.sent) == 50)
        assert await running.failing() == 0


@pytest.mark.parametrize("ordered", [True, False])
async def test_a_queue_tracked_by_rows(url: str, ordered: bool) -> None:
    """It is delivered as an outbox is: what a sink refuses is tried again alone, what is done is gone."""
    with Outbox(url) as box:
        box.topics.configure(Topic.queue("jobs"))
    failed: list[int] = []

    def verdict(message: Message) -> Answer:
        if message.event.payload == 30 and len(failed) < 2:
            failed.append(30)
            return DeliveryError("not yet")
        return None

    sink = Sequential(verdict, sequences=True)
    write(url, [Event("T", n, key=f"k{n % 5}", topic="jobs") for n in range(100)])
    queue = AsyncOutbox(url).topics.queue("jobs")
    async with AsyncRelay(queue, sink, to="out", ordered=ordered, settings=QUICK) as running:
        await until(lambda: len(sink.sent) == 100)
        await running.drain()
        status = await running.status()
        assert (status.due, status.dead, running.counts.done) == (0, 0, 100)
    assert len(failed) == 2
    if ordered:
        assert all(numbers == sorted(numbers) for numbers in sink.by_key().values())


async def test_the_command_sends_a_topic_to_a_real_broker(url: str) -> None:
    """Two relays of one group, one of them killed: NATS has every event, in the order of its key."""
    with private_server() as server:
        harness = NatsHarness(server)
        stream = await harness.destination()
        sink = harness.url.replace("nats://", f"nats://{USER}:{SECRET}@")
        first, second = _start(url, sink, stream), _start(url, sink, stream)
        try:
            await until(lambda: _members(url) == 2)  # so that the kill hits one that works
            for start in range(0, 600, 100):
                write(url, [Event("T", n, key=f"k{n % 9}", topic="orders") for n in range(start, start + 100)])
                if start == 200:
                    first.kill()
                    first.wait()
            async with asyncio.timeout(60):
                while len(dict.fromkeys(entry.id for entry in await harness.read(stream, 0))) < 600:
                    await asyncio.sleep(0.2)
            received = await harness.read(stream, 0)
        finally:
            for process in (first, second):
                process.kill()
                process.wait()
    firsts: dict[str | None, list[int]] = {}
    for entry in {entry.id: entry for entry in reversed(received)}.values():  # the first of each id, last to first
        firsts.setdefault(entry.key, []).append(int(entry.body))
    assert sum(map(len, firsts.values())) == 600
    assert all(numbers == sorted(numbers, reverse=True) for numbers in firsts.values())


def _members(url: str) -> int:
    with psycopg.connect(url, autocommit=True) as look:
        row = look.execute("SELECT count(*) FROM outbox_event_member").fetchone()
        assert row is not None
        return int(row[0])


def _start(url: str, sink: str, stream: str) -> subprocess.Popen[bytes]:
    command = ["relay", "--sink", sink, "--to", stream, "--topic", "orders", "--group", "nats", "--from", "earliest"]
    settings = ["--set", "delivery.instance_ttl=1s", "--set", "delivery.lease=3s"]
    return subprocess.Popen([sys.executable, "-m", "relaybox", "--url", url, *command, *settings])


async def test_a_relay_whose_group_is_paused_is_not_ready_and_says_why(url: str) -> None:
    with Outbox(url) as box:
        group = box.topics.group("orders", "kafka")
        group.create()
        group.pause(reason="the broker is full")
        async with AsyncRelay(group, ScriptedSink(), to="out", settings=QUICK) as relay:
            health = relay.health()
            assert not health.ready
            assert "the broker is full" in health.reasons[0]
            assert "relaybox groups resume orders kafka" in health.reasons[0]
            group.resume()
            async with asyncio.timeout(20):
                while not relay.health().ready:
                    await asyncio.sleep(0.02)
