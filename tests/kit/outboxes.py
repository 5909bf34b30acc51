"""One face for both kinds of outbox, and a look into their tables past relaybox."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from relaybox import AsyncOutbox, Event, Listeners, Outbox, Retry, Settings
from relaybox.types import DeliverySettings

from .databases import one
from .delivering import WAYS
from .probe import Probe

QUICK = Settings(
    delivery=DeliverySettings(retry=Retry(base="5ms", max="20ms"), instance_ttl="1s", lease="3s", stop_timeout="5s")
)


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
