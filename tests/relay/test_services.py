"""A relay as a service: in threads and loops, of an outbox and of a group; stopped, asked, and ill."""

from __future__ import annotations

import asyncio
import inspect
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from relay_kit import numbered, settings, write
from scripted_sink import ScriptedSink

from kit import migrated
from relaybox import (
    AsyncIngest,
    AsyncMaintainer,
    AsyncOutbox,
    AsyncRelay,
    Event,
    Ingest,
    Maintainer,
    Outbox,
    Relay,
    StartFrom,
    Topic,
)
from relaybox.errors import BrokerUnavailable, Closed, ConfigError
from relaybox.facts import Delivered, Depths, Written
from relaybox.testing import Probe
from relaybox.testing.servers import require
from relaybox.types import AsyncService, Counts, Health, Service

PATIENCE = 30  # seconds; a stop that waits in vain takes 600
PATIENT = {"delivery.stop_timeout": "10m", "delivery.lease": "1h"}


@pytest.mark.parametrize(("plain", "twin"), [(Relay, AsyncRelay), (Ingest, AsyncIngest), (Maintainer, AsyncMaintainer)])
def test_twins_take_the_same_arguments_and_say_the_same(plain: Any, twin: Any) -> None:
    assert issubclass(plain, Service)
    assert issubclass(twin, AsyncService)
    assert inspect.signature(plain) == inspect.signature(twin)
    assert plain.__doc__ == twin.__doc__
    assert plain.__init__.__doc__ == twin.__init__.__doc__
    for name, member in vars(twin).items():
        if inspect.iscoroutinefunction(member) and not name.startswith("_") and hasattr(plain, name):
            assert getattr(plain, name).__doc__ == member.__doc__
            assert inspect.signature(getattr(plain, name)) == inspect.signature(member)


def test_once_in_a_synchronous_program(url: str, tmp_path: Path) -> None:
    write(url, numbered(20, 4))
    relay = Relay(url, f"jsonl://{tmp_path}/out.jsonl", to="orders")
    assert relay.name == "relay of outbox_event to json-lines"
    assert relay.health() == Health("critical", ("not running",))
    assert relay.status().due == 20
    assert len(relay.preview(5)) == 5
    assert relay.once() == Counts(done=20)
    assert (relay.status().due, relay.failing()) == (0, 0)
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 20
    with pytest.raises(Closed):
        relay.start()


def test_beside_a_synchronous_program(sqlite: str) -> None:
    sink = ScriptedSink()
    with Outbox(sqlite) as box, Relay(box, sink, to="orders") as relay:
        assert relay.health() == Health()
        with box.transaction() as tx:
            box.write_all(tx, numbered(5, 5))
        assert relay.drain(timeout=PATIENCE).done == 5
        assert relay.status().due == 0
    assert (sink.opened, sink.closed) == (1, 1)
    with pytest.raises(Closed):
        relay.drain()


def test_a_drain_ends_with_its_service(sqlite: str) -> None:
    sink = ScriptedSink()
    sink.away = "connection refused"
    write(sqlite, numbered(5, 5))
    relay = Relay(sqlite, sink, to="x", settings=settings(PATIENT)).start()

    async def main() -> None:
        async with asyncio.timeout(PATIENCE):
            draining = asyncio.create_task(asyncio.to_thread(relay.drain))
            await asyncio.sleep(0)
            await asyncio.to_thread(relay.stop)
            with pytest.raises(Closed):
                await draining

    asyncio.run(main())


async def test_an_outbox_brings_its_table_settings_and_observers(tmp_path: Path, probe: Probe) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    sink, own = ScriptedSink(), Probe()
    async with AsyncOutbox(url, table="shop_event", settings=settings({"relay.batch": 3}), observers=[probe]) as box:
        await box.migrate()
        async with box.transaction() as tx:
            await box.write_all(tx, numbered(9, 9))
        relay = AsyncRelay(box, sink, to="x", observers=[own, probe])
        await relay.once()
    assert relay.name == "relay of shop_event to scripted"
    assert max(len(call) for call in sink.calls) == 3
    assert (probe.count(Delivered), own.count(Delivered)) == (9, 9)
    assert (probe.count(Written), own.count(Written)) == (9, 0)


@pytest.mark.parametrize("source", [None, 7, object()])
def test_what_is_no_source_is_refused(source: Any) -> None:
    with pytest.raises(ConfigError, match="expected an outbox, a group or the URL of an outbox"):
        Relay(source, ScriptedSink(), to="x")


# -- stopping while the broker is away ----------------------------------------------------------------


async def test_a_stop_does_not_wait_for_a_broker_that_is_away(url: str) -> None:
    write(url, numbered(20, 4))
    sink = ScriptedSink()
    sink.away = "connection refused"
    async with asyncio.timeout(PATIENCE):
        async with AsyncRelay(url, sink, to="x", settings=settings(PATIENT)) as relay:
            while (await relay.status()).claimed < 20:
                await asyncio.sleep(0.01)
    with Outbox(url) as box:
        status = box.status()
        assert (status.due, status.claimed, status.retrying, box.instances()) == (20, 0, 0, [])
    assert sink.sent == []


async def test_a_stop_does_not_wait_when_the_broker_goes_meanwhile(sqlite: str) -> None:
    """The publish under way is answered; that the broker is away by then keeps nobody."""
    write(sqlite, numbered(8, 1))

    def verdict(message: Any) -> BaseException | None:
        return BrokerUnavailable("it went") if message.event.payload else None

    sink = ScriptedSink(verdict)
    sink.gate = asyncio.Event()
    async with asyncio.timeout(PATIENCE):
        relay = await AsyncRelay(sqlite, sink, to="x", settings=settings(PATIENT)).start()
        while not sink.calls:
            await asyncio.sleep(0.01)
        stopping = asyncio.create_task(relay.stop())
        await asyncio.sleep(0)
        sink.gate.set()
        await stopping
    with Outbox(sqlite) as box:
        assert (box.status().due, box.status().claimed) == (7, 0)


# -- of a group ---------------------------------------------------------------------------------------


@pytest.fixture
def orders(request: pytest.FixtureRequest) -> str:
    fresh = require("postgres-wheel", durable=False).create_database()
    with migrated(fresh) as box:
        box.topics.configure(Topic.pub_sub("orders", spread=getattr(request, "param", 1)))
        box.topics.group("orders", "relay", start=StartFrom.earliest()).create()
        with box.transaction() as tx:
            box.write_all(tx, [Event("T", n, key=f"k{n % 3}", topic="orders") for n in range(12)])
    return fresh


@pytest.mark.parametrize("orders", [1, 4], ids=["one table", "spread"], indirect=True)
def test_a_group_in_a_synchronous_program(orders: str) -> None:
    sink = ScriptedSink(sequences=True)
    with Outbox(orders) as box:
        relay = Relay(box.topics.group("orders", "relay"), sink, to="out")
        assert relay.name == "relay of topic orders as group relay to scripted"
        assert (relay.status().due, relay.status().oldest_due > timedelta(0)) == (12, True)
        assert relay.once().done == 12
        assert relay.status().due == 0
        with pytest.raises(ConfigError, match="a preview shows what waits in the outbox"):
            relay.preview()
    assert all(numbers == sorted(numbers) for numbers in sink.by_key().values())


async def test_a_group_whose_broker_is_away_has_an_age_and_stops_at_once(orders: str, probe: Probe) -> None:
    sink = ScriptedSink(sequences=True)
    sink.away = "connection refused"
    async with AsyncOutbox(orders) as box, asyncio.timeout(PATIENCE):
        source = box.topics.group("orders", "relay")
        async with AsyncRelay(source, sink, to="out", settings=settings(PATIENT), observers=[probe]) as relay:
            assert relay.health() == Health("critical", ("scripted is unavailable",))
            while not any(fact.oldest and fact.cold == 12 for fact in probe.of(Depths)):
                await asyncio.sleep(0.01)
            assert (await relay.status()).oldest_due > timedelta(0)
        sink.away = None
        assert (await AsyncRelay(source, sink, to="out").once()).done == 12, "it was given back"


# -- health -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("of", ["outbox", "group"])
async def test_a_key_behind_a_poisoned_event_is_a_worry(orders: str, of: str) -> None:
    """It does its work, so it is ready; somebody should look."""
    poisoned = True
    sink = ScriptedSink(lambda m: OSError("no") if poisoned and m.event.payload == 0 else None)
    few = settings({"relay.retry.attempts": 2})
    async with AsyncOutbox(orders) as box, asyncio.timeout(PATIENCE):
        async with box.transaction() as tx:
            await box.write_all(tx, numbered(6, 3))
        async with AsyncRelay(
            box.topics.group("orders", "relay") if of == "group" else box, sink, to="out", settings=few
        ) as relay:
            while relay.health().level == "ok":
                await asyncio.sleep(0.01)
            health = relay.health()
            assert (health.level, health.ready, len(health.reasons)) == ("degraded", True, 1)
            assert health.reasons[0].startswith("1 event(s) failed too often and keep their keys waiting, such as ")
            poisoned = False
            await relay.drain()
