"""This process as the database knows it: a row with a heartbeat.

A process that dies stops beating; within its time to live another one frees what it had claimed. One that was only slow
learns at its next beat that it was declared dead: its claims are gone, it registers anew. Until then it starts nothing,
by its own monotonic clock, because others may have what it holds.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import random
import secrets
import socket
from collections.abc import Awaitable, Callable
from dataclasses import KW_ONLY, dataclass
from datetime import timedelta
from typing import Protocol

from ..clock import Clock
from ..facts import Observers
from .loops import Every, Loops

log = logging.getLogger("relaybox")

BEATS = 5  # per time to live
SIGN_OFF = 2.0  # seconds a stop gives the database to take note of it


def default_name() -> str:
    """Unique even when two pods share a host name: pid and a random part."""
    return f"{socket.gethostname()[:80]}-{os.getpid()}-{secrets.token_hex(4)}"


def keep_beating(loops: Loops, beat: Callable[[], Awaitable[None]], ttl: timedelta, clock: Clock) -> None:
    """Several times per time to live, not all processes at the same moment; one that failed is tried again soon."""
    seconds = ttl.total_seconds()
    loops.repeat("heartbeat", Every(seconds / BEATS, beat, clock, first=random.random()), longest=seconds / 3)


class Registration(Protocol):
    """Where this process is written down; one for each product. Errors are raised, the presence tries again."""

    async def register(self, ttl: timedelta) -> None: ...

    async def beat(self, ttl: timedelta) -> bool:
        """False: this process was declared dead."""
        ...

    async def tend(self) -> None:
        """After every beat: take over from the dead, and what else is to be looked after."""
        ...

    async def retire(self) -> None:
        """Leave: whatever is still claimed under our name is free at once."""
        ...


@dataclass(eq=False)
class Presence:
    _registration: Registration
    _ttl: timedelta
    _observers: Observers
    _clock: Clock
    _: KW_ONLY
    heard: Callable[[], None]  # a silence is over
    lost: Callable[[], None]  # what is here may be another's
    alive_until: float = math.inf  # after it we may have been declared dead

    def __post_init__(self) -> None:
        self._loops = Loops(self._observers, self._clock)
        self._beaten = asyncio.Event()

    @property
    def silent(self) -> bool:
        return self._clock.monotonic() >= self.alive_until

    @property
    def missing(self) -> int:
        return self._loops.missing

    async def start(self) -> None:
        await self._register()
        try:
            await self._registration.tend()
        except BaseException:  # a failed start leaves nothing behind
            await self.stop()
            raise
        keep_beating(self._loops, self._beat, self._ttl, self._clock)
        self._loops.repeat("tend", self._tend)

    async def stop(self) -> None:
        await self._loops.close()
        try:
            async with asyncio.timeout(SIGN_OFF):
                await self._registration.retire()
        except Exception as error:
            log.error("could not sign off; this process will expire by itself: %s", error or type(error).__name__)

    async def _register(self) -> None:
        started = self._clock.monotonic()
        await self._registration.register(self._ttl)
        self.alive_until = started + self._ttl.total_seconds()

    async def _beat(self) -> None:
        was_silent, started = self.silent, self._clock.monotonic()
        if await self._registration.beat(self._ttl):
            self.alive_until = started + self._ttl.total_seconds()
        else:
            log.warning("this process was declared dead after a silence; its claims were given to others")
            self.lost()
            await self._register()
        if was_silent:
            self.heard()
        self._beaten.set()

    async def _tend(self) -> None:
        """In a loop of its own: what takes long here must not make the next beat late."""
        await self._beaten.wait()
        self._beaten.clear()
        await self._registration.tend()
