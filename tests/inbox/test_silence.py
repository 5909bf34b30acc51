"""A network that swallows packets while a handler has a connection: it is given up in time, with what it had locked."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker

from kit import need_mariadb
from relaybox import Event, Inbox
from relaybox.testing.servers import require
from relaybox.testing.servers.gate import TcpGate

from .effects import QUICK, asay, effects, say, text_of, with_effects
from .kit import PATIENCE, arrived, migrated, serving

LIMIT = 1.5
SLACK = 2.0  # a cancelled handler has a second to end, and a busy machine needs some time
# The server, what the target or the session is made of, whether the handler is async.
OWN = [
    ("postgres-wheel", "asyncpg", True),
    ("postgres-wheel", "psycopg", True),
    ("postgres-wheel", "psycopg", False),
    ("mariadb", "asyncmy", True),
    ("mariadb", "pymysql", False),
]
GIVEN = [
    ("postgres-wheel", "engine asyncpg", True),
    ("postgres-wheel", "engine psycopg", True),
    ("postgres-wheel", "engine psycopg", False),
    ("postgres-wheel", "session asyncpg", True),
    ("postgres-wheel", "session psycopg", True),
    ("postgres-wheel", "session psycopg", False),
    ("mariadb", "session pymysql", False),
]


class Place(NamedTuple):
    direct: str
    target: Any
    options: dict[str, Any]
    gate: TcpGate
    is_async: bool


@pytest.fixture
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    name, made_of, is_async = request.param
    server = require(name, durable=False)
    direct = with_effects(migrated(server.create_database()))
    kind, _, driver = made_of.rpartition(" ")
    with TcpGate(urlsplit(direct).port or 0) as gate:
        url = gate.through(direct).replace("://", f"+{driver}://", 1)
        if not kind:
            yield Place(direct, url, {}, gate, is_async)
            return
        engine: Any = create_async_engine(url) if is_async else sa.create_engine(url)
        make: Any = async_sessionmaker if is_async else sessionmaker
        options = {"session": make(engine)} if kind == "session" else {}
        yield Place(direct, direct if options else engine, options, gate, is_async)
        gate.open()  # an end for what waits for one


class Hands:
    """The first message falls silent in its handler; each is noted as it begins."""

    def __init__(self, gate: TcpGate, then: Callable[[Any, str], Any] | None) -> None:
        self.begun: list[int] = []
        self._gate = gate
        self._then = then
        self._lock = threading.Lock()

    def _silent(self, number: int) -> bool:
        with self._lock:
            self.begun.append(number)
            if number != 1 or self.begun.count(1) > 1:
                return False
        self._gate.strand()
        return self._then is not None

    def sync(self, event: Event, handle: Any) -> None:
        say(handle, text_of(event))
        if self._silent(event.payload["n"]):
            assert self._then is not None
            self._then(handle, "SELECT 1")

    async def asynchronous(self, event: Event, handle: Any) -> None:
        await asay(handle, text_of(event))
        if self._silent(event.payload["n"]):
            assert self._then is not None
            answer = self._then(handle, "SELECT 1")
            if inspect.isawaitable(answer):
                await answer


async def nested(handle: Any, text: str) -> None:
    """Its end, too, says something to the server."""
    if not hasattr(handle, "transaction"):
        await asay(handle, text)
        return
    async with handle.transaction():
        await asay(handle, text)


def handled(place: Place, hands: Hands, settings: Any, wanted: list[int], **options: Any) -> float:
    """Seconds until the effects are there, with one worker."""
    with Inbox(place.direct) as there:
        events = {number: arrived(number) for number in (1, 2)}
        inbox = Inbox(place.target) if not place.options else there
        handler = hands.asynchronous if place.is_async else hands.sync
        with serving(inbox, handler, settings=settings, **place.options, **options):
            there.accept(None, events[1])
            started = time.monotonic()
            while not hands.begun:
                assert time.monotonic() < started + PATIENCE
                time.sleep(0.01)
            started = time.monotonic()
            there.accept(None, events[2])
            while not {events[number].id for number in wanted} <= set(effects(place.direct)):
                assert time.monotonic() < started + PATIENCE, f"in vain; begun: {hands.begun}"
                time.sleep(0.02)
            took = time.monotonic() - started
        found = effects(place.direct)
        assert len(found) == len(set(found))
        if inbox is not there:
            inbox.close()
    return took


ONE = QUICK.replaced({"delivery.workers": 1, "delivery.retry.attempts": 60})


@pytest.mark.parametrize("batch", [1, 5])
@pytest.mark.parametrize("place", OWN, ids=lambda case: "-".join(map(str, case)), indirect=True)
async def test_a_handler_that_waits_for_an_answer_is_given_up_with_its_locks(place: Place, batch: int) -> None:
    if place.direct.startswith("mysql"):
        need_mariadb("it ends a session that is idle in a transaction")
    settings = ONE.replaced(
        {"delivery.timeout": timedelta(seconds=LIMIT), "delivery.database_timeout": timedelta(seconds=LIMIT)}
    )
    hands = Hands(place.gate, nested if place.is_async else say)
    took = await asyncio.to_thread(partial(handled, place, hands, settings, [1, 2], batch=batch))
    assert took < (batch + 1) * LIMIT + SLACK, "its locks are free, and it was handled again"


@pytest.mark.parametrize("place", [*OWN, *GIVEN], ids=lambda case: "-".join(map(str, case)), indirect=True)
async def test_it_frees_its_worker(place: Place) -> None:
    settings = ONE.replaced(
        {"delivery.timeout": timedelta(seconds=LIMIT), "delivery.database_timeout": timedelta(seconds=LIMIT)}
    )
    hands = Hands(place.gate, nested if place.is_async else say)
    assert await asyncio.to_thread(handled, place, hands, settings, [2]) < LIMIT + SLACK


@pytest.mark.parametrize("place", [*OWN, *GIVEN], ids=lambda case: "-".join(map(str, case)), indirect=True)
async def test_a_commit_that_is_not_answered_frees_its_worker(place: Place) -> None:
    """However long handlers may take."""
    settings = ONE.replaced({"delivery.timeout": "1m", "delivery.database_timeout": timedelta(seconds=LIMIT)})
    assert await asyncio.to_thread(handled, place, Hands(place.gate, None), settings, [2]) < LIMIT + SLACK
