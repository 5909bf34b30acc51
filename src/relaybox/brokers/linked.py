"""Sinks that hold one connection, which is replaced when it is lost or silent: NATS and RabbitMQ."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from typing import Any, Generic, Protocol, TypeVar

from ..errors import Closed
from .connection import C, Connected

GLANCE_SECONDS = 0.25  # between two looks at whether an answer is late because the connection is gone


class Link(Protocol):
    """One connection."""

    @property
    def alive(self) -> bool: ...

    async def answers(self) -> bool:
        """Whether the broker does, within half a second."""
        ...

    async def close(self) -> None: ...

    async def abort(self) -> None:
        """At once: what is still in our buffers must not be sent some day."""
        ...


L = TypeVar("L", bound=Link)


class LinkedSink(Connected[C], ABC, Generic[C, L]):
    def __init__(self) -> None:
        self._link: L | None = None
        self._connecting = asyncio.Lock()
        self._closed = False

    @abstractmethod
    async def _connect(self) -> L:
        """Raises ConnectionError, which says why."""

    async def open(self) -> None:
        self._closed = False
        await self._linked()

    async def probe(self) -> None:
        link = await self._linked()
        if not await link.answers():
            await self._linked(instead_of=link)

    async def close(self) -> None:
        self._closed = True
        async with self._connecting:
            link, self._link = self._link, None
        if link is not None:
            await link.close()

    async def _linked(self, instead_of: L | None = None) -> L:
        """The connection, or a new one in place of one that is lost or that the caller found silent."""
        async with self._connecting:
            if self._closed:
                raise Closed(f"{self!r} is closed")
            old = self._link
            if old is not None and old.alive and old is not instead_of:
                return old
            try:
                new = self._link = await self._connect()
            except ConnectionError as error:
                raise self._unavailable(str(error)) from None
            if old is not None:
                await old.abort()
            return new


async def answered(
    futures: Collection[asyncio.Future[Any]], seconds: float, worth_waiting: Callable[[], bool]
) -> set[asyncio.Future[Any]]:
    """Wait for all of them, but not for longer than `seconds`, nor when it is no longer worth it. Returns the rest."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    rest = set(futures)
    while rest and worth_waiting() and (left := deadline - loop.time()) > 0:
        _, rest = await asyncio.wait(rest, timeout=min(left, GLANCE_SECONDS))
    return rest
