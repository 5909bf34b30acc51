"""A network that swallows packets: old connections neither answer nor end, new ones work. Whatever runs in the
background goes on within twice `database_timeout`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest

from relaybox import AsyncGuard, Settings
from relaybox.errors import InProgress
from relaybox.testing.servers import require
from relaybox.testing.servers.gate import TcpGate
from relaybox.types import DeliverySettings

from .products import MARIADB, POSTGRES, Product, Running

TIMEOUT = timedelta(seconds=1.5)
SETTINGS = Settings(delivery=DeliverySettings(database_timeout=TIMEOUT, poll="100ms", instance_ttl="10s"))
TWICE = 2 * TIMEOUT.total_seconds()
PATIENCE = 20.0
CASES = [
    *(("postgres-wheel", "asyncpg", name) for name in POSTGRES),
    *(("postgres-wheel", "psycopg", name) for name in ("delivery", "group")),
    *(("mariadb", "asyncmy", name) for name in MARIADB),
]
# Not an inbox: the transaction of the message in hand is lost with its connection.
IN_HAND = [case for case in CASES if case[2] in ("delivery", "ordered", "relay", "group", "queue_by_rows", "consumer")]


class Place(NamedTuple):
    direct: str
    url: str
    gate: TcpGate
    product: Product


@pytest.fixture
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    name, driver, product = request.param
    server = require(name, durable=False)
    direct = server.create_database()
    with TcpGate(urlsplit(direct).port or 0) as gate:
        url = gate.through(direct).replace("://", f"+{driver}://", 1)
        yield Place(direct, url, gate, POSTGRES[product])
    server.drop_database(direct)


@asynccontextmanager
async def running(place: Place, work: Callable[[], Any]) -> AsyncIterator[Running]:
    """Its connections are warm: two events have come through."""
    async with place.product(place.direct, place.url, SETTINGS, work) as product:
        await product.write(1)
        await product.write(2)
        for number in (1, 2):
            await arrival(product, number, PATIENCE)
        yield product


async def arrival(product: Running, number: int, patience: float) -> None:
    async with asyncio.timeout(patience):
        while number not in product.arrived:
            await asyncio.sleep(0.01)


async def at_once() -> None: ...


@pytest.mark.parametrize("place", CASES, ids="-".join, indirect=True)
async def test_new_events_arrive(place: Place) -> None:
    async with running(place, at_once) as product:
        place.gate.strand()
        started = time.monotonic()
        await product.write(3)
        await arrival(product, 3, PATIENCE)
        assert time.monotonic() - started < TWICE
    assert sorted(product.arrived) == [1, 2, 3]


@pytest.mark.parametrize("place", IN_HAND, ids="-".join, indirect=True)
async def test_what_is_being_handled_is_settled_and_does_not_run_twice(place: Place) -> None:
    """Also the outcome of what was in hand when the network fell silent gets through, on a new connection."""
    under_way, go_on = asyncio.Event(), asyncio.Event()
    go_on.set()

    async def work() -> None:
        under_way.set()
        await go_on.wait()

    async with running(place, work) as product:
        go_on.clear()
        under_way.clear()
        await product.write(3)
        async with asyncio.timeout(PATIENCE):
            await under_way.wait()
        place.gate.strand()
        go_on.set()
        started = time.monotonic()
        await product.write(4)
        await arrival(product, 4, PATIENCE)
        assert time.monotonic() - started < TWICE
    assert sorted(product.arrived) == [1, 2, 3, 4]


async def test_the_lease_of_a_guard_is_renewed() -> None:
    """While its block runs, for longer than the lease: nobody else may enter."""
    server = require("postgres-wheel", durable=False)
    direct = server.create_database()
    lease = 6.0
    with TcpGate(urlsplit(direct).port or 0) as gate:
        async with (
            AsyncGuard.sql(gate.through(direct), consumer="c", lease=f"{lease}s") as guard,
            AsyncGuard.sql(direct, consumer="c") as other,
        ):
            await guard.migrate()
            async with guard("m") as first:
                assert first
                gate.strand()
                await asyncio.sleep(lease * 1.2)
                with pytest.raises(InProgress):
                    async with other("m"):
                        pass
    server.drop_database(direct)
