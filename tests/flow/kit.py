"""What the flow tests stand on: a probe to wait on, a fresh database per test, one face for both kinds of outbox."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from kit import WAYS
from relaybox import AsyncOutbox, Event, Listeners, Outbox, Retry, Settings
from relaybox.facts import Fact
from relaybox.types import DeliverySettings

PATIENCE = 20.0
F = TypeVar("F", bound=Fact)

QUICK = Settings(
    delivery=DeliverySettings(retry=Retry(base="5ms", max="20ms"), instance_ttl="1s", lease="3s", stop_timeout="5s")
)


@dataclass
class Seen:
    event: Event
    attempts: int
    source: str
    at: float


@dataclass
class Probe:
    """Collects facts and deliveries. Tests wait for a condition on them, never for seconds."""

    facts: list[Fact] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def __call__(self, fact: Fact) -> None:
        with self._changed:
            self.facts.append(fact)
            self._changed.notify_all()

    def deliver(self, event: Event, delivery: Any) -> None:
        with self._changed:
            self.seen.append(Seen(event, delivery.attempts, delivery.source, time.monotonic()))
            self._changed.notify_all()

    def wait(self, condition: Callable[[], Any], timeout: float = PATIENCE) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, timeout), (
                f"waited {timeout} s in vain; delivered {len(self.seen)}, last facts {self.facts[-5:]}"
            )

    async def until(self, condition: Callable[[], Any], timeout: float = PATIENCE) -> None:
        await asyncio.to_thread(self.wait, condition, timeout)

    def of(self, kind: type[F]) -> list[F]:
        return [fact for fact in list(self.facts) if isinstance(fact, kind)]

    @property
    def ids(self) -> list[str]:
        return [seen.event.id for seen in list(self.seen)]

    def count(self, event_id: str) -> int:
        return self.ids.count(event_id)

    def has(self, *event_ids: str) -> Callable[[], bool]:
        return lambda: set(event_ids) <= set(self.ids)

    def wrote(self, count: int) -> Callable[[], bool]:
        return lambda: len(self.seen) >= count


def recording(probe: Probe, *types: str) -> Listeners:
    listeners = Listeners()

    async def listen(event: Event, delivery: Any) -> None:
        probe.deliver(event, delivery)

    for name in types or ("Happened",):
        listeners.on(name)(listen)
    return listeners


def happened(n: int = 0, **options: Any) -> Event:
    return Event("Happened", {"n": n}, **options)


class Box:
    """Outbox or AsyncOutbox behind awaitable calls, so that one test body serves both. With listeners it delivers while
    its `async with` block is open."""

    def __init__(
        self,
        box: Outbox | AsyncOutbox,
        listeners: Listeners | None = None,
        *,
        migrate: bool = False,
        **way: bool,
    ) -> None:
        self.raw: Any = box
        self.is_async = isinstance(box, AsyncOutbox)
        self.service: Any = None if listeners is None else box.deliver(listeners, **way)
        self._migrate = migrate

    async def __aenter__(self) -> Box:
        try:
            if self._migrate:
                await self.call("migrate")
            if self.service is not None:
                await (self.service.start() if self.is_async else asyncio.to_thread(self.service.start))
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    @contextmanager
    def running(self) -> Iterator[Any]:
        """The synchronous outbox itself, which delivers meanwhile."""
        with self.raw:
            self.service.start()
            yield self.raw

    async def close(self) -> None:
        await self.call("close")

    async def call(self, name: str, *args: Any, **options: Any) -> Any:
        method = self.raw
        for part in name.split("."):
            method = getattr(method, part)
        if self.is_async:
            return await method(*args, **options)
        return await asyncio.to_thread(method, *args, **options)

    async def write(self, handle: Any, event: Event) -> str:
        """On this thread: client connections may not travel between threads. Its id."""
        return (await self.write_all(handle, [event]))[0]

    async def write_all(self, handle: Any, events: Sequence[Event]) -> list[str]:
        written = self.raw.write_all(handle, events)
        if self.is_async:
            await written
        return [event.id for event in events]


def make_box(kind: str, url: Any, probe: Probe, *, is_async: bool = True, **options: Any) -> Box:
    listeners = options.pop("listeners", None) or recording(probe)
    options.setdefault("settings", QUICK)
    options.setdefault("observers", [probe])
    cls: Any = AsyncOutbox if is_async else Outbox
    migrate = options.pop("migrate", False)
    if kind in ("plain", "cdc"):
        return Box(cls(url, cdc=kind == "cdc", **options), migrate=migrate)
    return Box(cls(url, **options), listeners, migrate=migrate, **WAYS[kind])


def sqlite_url(folder: Path) -> str:
    return f"sqlite:///{folder / 'flow.db'}"


def with_driver(url: str, driver: str) -> str:
    scheme, rest = url.split("://", 1)
    return f"{scheme.partition('+')[0]}+{driver}://{rest}"


def rows(url: str, text: str) -> list[tuple[Any, ...]]:
    """Raw SQL on a connection of the test's own, past relaybox."""
    if url.startswith("sqlite"):
        import sqlite3

        with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
            found = connection.execute(text).fetchall()
        connection.close()
        return found
    if url.startswith("mysql"):
        import pymysql

        from relaybox.drivers.mysql_session import options

        raw = pymysql.connect(**options(url))
        try:
            with raw.cursor() as cursor:
                cursor.execute(text)
                return list(cursor.fetchall())
        finally:
            raw.close()
    import psycopg

    with psycopg.connect(url, autocommit=True) as other:
        cursor = other.execute(text)  # type: ignore[call-overload]
        return cursor.fetchall() if cursor.description else []


def one(url: str, text: str) -> Any:
    return rows(url, text)[0][0]


def stored(url: str) -> int:
    return int(one(url, "SELECT count(*) FROM outbox_event"))


def waiting(url: str) -> int:
    """Events that still have work: waiting or claimed."""
    alone = int(one(url, "SELECT count(*) FROM outbox_event_pending"))
    return alone + in_claims(url) if url.startswith("postgres") else alone


def claimed(url: str) -> int:
    """Events that somebody holds."""
    if url.startswith("postgres"):
        return in_claims(url, "WHERE owner IS NOT NULL")
    return int(one(url, "SELECT count(*) FROM outbox_event_pending WHERE owner IS NOT NULL"))


def in_claims(url: str, where: str = "") -> int:
    return int(one(url, f"SELECT coalesce(sum(cardinality(items)), 0) FROM outbox_event_claim {where}"))
