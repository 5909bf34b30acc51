"""Sources whose broker lends messages for a time: NATS, Redis Streams, SQS, Pub/Sub.

One fetch at a time runs in a task of its own: a receive that is cancelled or runs out of time loses nothing, the next
one takes what came. Whatever is here and not acknowledged is extended every third of its lease, so that a slow commit
makes nothing come again.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import ClassVar

from ..errors import BrokerUnavailable, Closed
from .spi import Incoming

ROUND_TRIP = 0.25  # seconds that a receive without patience gives the broker for its answer
CLOSE_SECONDS = 2.0


class LeasedSource(ABC):
    """A source whose broker lends messages. A subclass says how to connect, fetch, acknowledge, extend and give back;
    its methods raise BrokerUnavailable and nothing else, but for `_connect`."""

    name: ClassVar[str]

    def __init__(self, lease: timedelta) -> None:
        self._lease = lease.total_seconds()
        self._ready: deque[Incoming] = deque()
        self._handed: dict[str, Incoming] = {}  # by place: what comes again has a new receipt
        self._fetching: asyncio.Task[Sequence[Incoming]] | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._extending = asyncio.Lock()

    # Of each broker

    @abstractmethod
    async def _connect(self) -> None:
        """Raises ConfigError for what is missing or wrong at the broker."""

    @abstractmethod
    async def _disconnect(self) -> None: ...

    @abstractmethod
    async def _fetch(self, limit: int, wait: float) -> Sequence[Incoming]:
        """May wait less: it is called again."""

    @abstractmethod
    async def _settle(self, messages: Sequence[Incoming]) -> None:
        """Acknowledge them, and wait for the broker's word."""

    @abstractmethod
    async def _extend(self, messages: Sequence[Incoming]) -> None:
        """Begin their lease anew."""

    @abstractmethod
    async def _give_back(self, messages: Sequence[Incoming]) -> None:
        """Let them come again at once."""

    # The source

    async def open(self) -> None:
        await self._let_go()
        await self._disconnect()
        try:
            await self._connect()
            await self._return_all()
        except BaseException:
            await self._disconnect()
            raise
        self._extending = asyncio.Lock()  # of this event loop
        self._keeping = asyncio.create_task(self._keep())

    async def receive(self, limit: int, wait: float) -> Sequence[Incoming]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait
        left = wait
        while not self._ready:
            self._check_open()
            if self._fetching is None:
                self._fetching = asyncio.create_task(self._fetch(limit, left))
            fetching = self._fetching
            await asyncio.wait({fetching}, timeout=max(left, ROUND_TRIP))
            if not fetching.done():
                return []
            if fetching.cancelled():
                raise Closed(f"{self!r} was closed")
            self._fetching = None
            self._ready.extend(fetching.result())
            left = deadline - loop.time()
            if left <= 0:
                break
        taken = [self._ready.popleft() for _ in range(min(limit, len(self._ready)))]
        for message in taken:
            self._handed.pop(message.place, None)
            self._handed[message.place] = message
        return taken

    async def acknowledge(self, messages: Sequence[Incoming]) -> None:
        self._check_open()
        places = {message.place for message in messages}
        handed = list(self._handed.values())
        last = max((number for number, message in enumerate(handed, 1) if message.place in places), default=0)
        await self._settle(handed[:last])
        for message in handed[:last]:
            self._handed.pop(message.place, None)

    async def close(self) -> None:
        was_open = self._keeping is not None
        await self._let_go()
        try:
            if was_open:
                async with asyncio.timeout(CLOSE_SECONDS):
                    await self._return_all()
        except (BrokerUnavailable, TimeoutError):
            pass  # they come again when their leases end
        finally:
            await self._disconnect()

    def _check_open(self) -> None:
        if self._keeping is None:
            raise Closed(f"{self!r} is not open")

    async def _let_go(self) -> None:
        """End both tasks; what the fetch had got is kept. Not amid an extension: the broker could come to it after what
        we ask for next, and keep from others what we give back."""
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS), self._extending:
                pass
        fetching, self._fetching = self._fetching, None
        keeping, self._keeping = self._keeping, None
        tasks = [task for task in (fetching, keeping) if task is not None]
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, list):
                self._ready.extend(result)

    async def _return_all(self) -> None:
        held = [*self._handed.values(), *self._ready]
        self._handed.clear()
        self._ready.clear()
        if held:
            await self._give_back(held)

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(self._lease / 3)
            held = [*self._handed.values(), *self._ready]
            if held:
                with suppress(BrokerUnavailable):  # the next receive or acknowledge says so
                    async with self._extending:
                        await self._extend(held)
