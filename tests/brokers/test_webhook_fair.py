"""Endpoints that do not answer hold nothing that the others need: no call, no worker, no place in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from scripted_endpoint import Behaviour, Request, ScriptedEndpoint, answer, endpoint
from test_webhook_faults import SECRET

from relaybox import ALL, AsyncOutbox, AsyncRelay, Event, Retry, Settings
from relaybox.brokers.webhook.sink import Endpoint, WebhookSink
from relaybox.facts import CallsUnderWay, DestinationChanged, Retried
from relaybox.testing import Probe
from relaybox.testing.servers import require
from relaybox.topic import Topic

SLOW = 12  # endpoints, with 8 calls each: more than half of `relay.calls`
EVENTS = 60  # for each of them: all of them are more than a relay holds
KEYS = 6
HONEST = 30
SETTINGS = Settings().replaced(
    {"relay.in_flight": 300, "relay.calls": 64, "relay.slow": "200ms", "delivery.batch": 20, "delivery.poll": "100ms"}
    | {
        "delivery.lease": "10m",
        "delivery.instance_ttl": "2m",
        "delivery.database_timeout": "1m",
    }  # however busy it is here
)


def url_for(engine: str, folder: Path) -> str:
    if engine == "sqlite":
        return f"sqlite:///{folder / 'shop.db'}"
    return require("mariadb" if engine == "mysql" else "postgres-wheel", durable=False).create_database()


class Gate:
    """Endpoints that answer well, once it is open."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self._answered: set[str] = set()  # ids of events
        self._changed = asyncio.Event()

    async def late(self, request: Request, writer: Any) -> None:
        await self.open.wait()
        await self.soon(request, writer)

    async def soon(self, request: Request, writer: Any) -> None:
        await answer(204)(request, writer)
        self._answered.add(request.headers["webhook-id"])
        self._changed.set()

    async def wait(self, count: int) -> None:
        """Until so many events have been answered."""
        async with asyncio.timeout(120):
            while len(self._answered) < count:
                self._changed.clear()
                await self._changed.wait()


def events_of(name: str, count: int, **options: Any) -> list[Event]:
    return [Event("E", n, key=f"{name}-{n % KEYS}", tenant=name, **options) for n in range(count)]


@asynccontextmanager
async def endpoints(behaviours: dict[str, Behaviour], **options: Any) -> AsyncIterator[tuple[WebhookSink, Any]]:
    async with AsyncExitStack() as stack:
        servers = {name: await stack.enter_async_context(endpoint(does)) for name, does in behaviours.items()}
        given: dict[str, Any] = {
            "endpoints": {name: Endpoint(url=server.url(), secrets=[SECRET]) for name, server in servers.items()},
            "allow_networks": ["127.0.0.0/8"],
            "ports": [server.port for server in servers.values()],
            "insecure_http": True,
            "timeout": timedelta(seconds=600),
            "read_timeout": timedelta(seconds=600),
        }
        yield WebhookSink(**given | options), servers


def by_key(server: ScriptedEndpoint) -> dict[str, list[int]]:
    """First copies, in the order in which they came."""
    found: dict[str, list[int]] = {}
    for request in server.requests:
        numbers = found.setdefault(request.headers["aggregate-id"], [])
        if (number := int(request.body)) not in numbers:
            numbers.append(number)
    return found


def in_order(name: str, count: int) -> dict[str, list[int]]:
    return {f"{name}-{k}": list(range(k, count, KEYS)) for k in range(KEYS)}


@pytest.mark.parametrize("ordered", [True, False], ids=["ordered", "any order"])
@pytest.mark.parametrize("engine", ["postgres", "sqlite", "mysql"])
async def test_an_outbox(engine: str, ordered: bool, tmp_path: Path, probe: Probe) -> None:
    """The honest tenant wrote last, and gets everything while nobody else has been answered once."""
    url, gate, honest = url_for(engine, tmp_path), Gate(), Gate()
    slow = [f"slow{n}" for n in range(SLOW)]
    async with (
        AsyncOutbox(url) as outbox,
        endpoints({**dict.fromkeys(slow, gate.late), "honest": honest.soon}) as (
            sink,
            servers,
        ),
    ):
        await outbox.migrate()
        async with outbox.transaction() as tx:
            for events in [*(events_of(name, EVENTS) for name in slow), events_of("honest", HONEST)]:
                await outbox.write_all(tx, events)
        strategy = "rows" if engine == "mysql" else "shards"
        settings = SETTINGS.replaced({"order.strategy": strategy})
        async with AsyncRelay(url, sink, to="{tenant}", ordered=ordered, settings=settings, observers=[probe]):
            await honest.wait(HONEST)
            assert not gate.open.is_set()
            async with outbox.transaction() as tx:
                await outbox.write_all(tx, events_of("honest", HONEST))
            await honest.wait(2 * HONEST)
            gate.open.set()
            await gate.wait(SLOW * EVENTS)
    broken = [fact for fact in probe.of(Retried) if "to do" not in fact.error]
    requests = sum(len(servers[name].requests) for name in slow)
    assert requests <= SLOW * EVENTS + len(broken), "twice only where a connection broke"
    for name in slow:
        assert servers[name].most_open <= 8
        if ordered:
            assert by_key(servers[name]) == in_order(name, EVENTS)
    if ordered:
        assert by_key(servers["honest"]) == in_order("honest", HONEST)


async def test_calls_that_a_slow_destination_may_have_take_nobody_elses_turn(tmp_path: Path) -> None:
    """Its answer lets it have two calls instead of one. Who is woken for the other tenant's event finds that first."""
    url, honest, held, asked = url_for("sqlite", tmp_path), Gate(), asyncio.Event(), asyncio.Event()
    first = asyncio.Event()

    async def slow(request: Request, writer: Any) -> None:
        if first.is_set():
            asked.set()
            await held.wait()
        first.set()
        await answer(204)(request, writer)

    async with AsyncOutbox(url) as outbox, endpoints({"slow": slow, "honest": honest.soon}) as (sink, _):
        await outbox.migrate()
        async with outbox.transaction() as tx:
            await outbox.write_all(tx, events_of("slow", KEYS))  # no key has a second one, that would wake somebody
        async with AsyncRelay(url, sink, to="{tenant}", settings=SETTINGS):
            await asyncio.wait_for(asked.wait(), 30)
            async with outbox.transaction() as tx:
                await outbox.write_all(tx, events_of("honest", 1))
            async with asyncio.timeout(20):
                await honest.wait(1)
            held.set()


async def test_what_waits_for_an_endpoint_that_is_away_stays_here(tmp_path: Path, probe: Probe) -> None:
    """Only what was sent goes back to the database, to be tried again: nothing is claimed again and again."""
    url, gate = url_for("sqlite", tmp_path), Gate()
    outage = iter([503] * 3)

    async def away(request: Request, writer: Any) -> None:
        status = next(outage, None)
        await (gate.soon(request, writer) if status is None else answer(status)(request, writer))

    async with AsyncOutbox(url) as outbox, endpoints({"slow": away}) as (sink, servers):
        await outbox.migrate()
        async with outbox.transaction() as tx:
            await outbox.write_all(tx, [Event("E", n, key=f"key-{n}", tenant="slow") for n in range(40)])
        async with AsyncRelay(url, sink, to="{tenant}", settings=SETTINGS, observers=[probe]):
            await gate.wait(40)
    assert len(probe.of(Retried)) == 3
    assert len(servers["slow"].requests) == 43


async def test_a_queue_of_topics(tmp_path: Path) -> None:
    """One tracked by rows has a queue of its own for each destination, as an outbox has."""
    url, gate, honest = url_for("postgres", tmp_path), Gate(), Gate()
    async with AsyncOutbox(url) as outbox, endpoints({"slow": gate.late, "honest": honest.soon}) as (sink, servers):
        await outbox.migrate()
        await outbox.topics.configure(Topic.queue("hooks"))
        async with outbox.transaction() as tx:
            await outbox.write_all(tx, events_of("slow", EVENTS, topic="hooks"))
            await outbox.write_all(tx, events_of("honest", HONEST, topic="hooks"))
        async with AsyncRelay(outbox.topics.queue("hooks"), sink, to="{tenant}", settings=SETTINGS):
            await honest.wait(HONEST)
            assert not gate.open.is_set()
            gate.open.set()
            await gate.wait(EVENTS)
    assert by_key(servers["slow"]) == in_order("slow", EVENTS)
    assert by_key(servers["honest"]) == in_order("honest", HONEST)


async def test_long_queues_behind_few_keys(tmp_path: Path) -> None:
    """What waits behind a call that takes long does not fill the memory either."""
    url, gate, honest = url_for("postgres", tmp_path), Gate(), Gate()
    async with AsyncOutbox(url) as outbox, endpoints({"slow": gate.late, "honest": honest.soon}) as (sink, servers):
        await outbox.migrate()
        async with outbox.transaction() as tx:
            await outbox.write_all(tx, events_of("slow", 700))
            await outbox.write_all(tx, events_of("honest", HONEST))
        async with AsyncRelay(url, sink, to="{tenant}", settings=SETTINGS):
            await honest.wait(HONEST)
            assert len(servers["slow"].requests) <= KEYS
            gate.open.set()
            await gate.wait(700)
    assert by_key(servers["slow"]) == in_order("slow", 700)
    assert by_key(servers["honest"]) == in_order("honest", HONEST)


async def test_it_is_told(tmp_path: Path, probe: Probe) -> None:
    url, gate = url_for("sqlite", tmp_path), Gate()
    async with AsyncOutbox(url) as outbox, endpoints({"slow": gate.late}) as (sink, _):
        await outbox.migrate()
        async with outbox.transaction() as tx:
            await outbox.write_all(tx, events_of("slow", 2))
        async with AsyncRelay(url, sink, to="slow", settings=SETTINGS, observers=[probe]):
            await probe.wait(CallsUnderWay, 1, 30, where=lambda fact: fact.slow == 1 and fact.waiting == 1)
            gate.open.set()
            [changed] = await probe.wait(DestinationChanged, 1, 30)
    assert (changed.sink, changed.destination, changed.state) == ("webhook", "the webhook endpoint slow", "slow")


@pytest.fixture
def probe() -> Probe:
    return Probe()


async def test_a_drain_does_not_wait_for_an_endpoint_that_rests(tmp_path: Path, probe: Probe) -> None:
    """What waits here for it is tried again later, whether its pause is short or long."""
    url = url_for("sqlite", tmp_path)
    for pause in ("5s", "1h"):
        resting = SETTINGS.replaced({"relay.retry": Retry(base=pause, max=pause, jitter=0)})
        async with AsyncOutbox(url) as outbox, endpoints({"slow": answer(503)}) as (sink, servers):
            await outbox.migrate()
            async with outbox.transaction() as tx:
                await outbox.write_all(tx, [Event("E", n, key=f"key-{n}", tenant="slow") for n in range(40)])
            relay = AsyncRelay(url, sink, to="{tenant}", settings=resting, observers=[probe], ordered=False)
            async with asyncio.timeout(4):
                await relay.once()
            assert len(servers["slow"].requests) < 40
            assert (await outbox.status()).due == 0
            await outbox.events.discard(ALL, reason="the next pause")
