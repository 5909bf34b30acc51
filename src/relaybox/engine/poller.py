"""When an engine looks for work again, and how much it asks for."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta

QUIET = 0.05  # seconds without a wake-up after which a poller counts as idle
RAMP = 0.25  # full claims that follow one another faster than this (seconds) earn larger ones
EAGER = 0.005  # seconds between two looks while a commit that cannot be seen is expected


class Poller:
    """Pure waiting: the engine that owns it claims."""

    def __init__(self, least: int, most: int) -> None:
        self.least = least
        self.most = most  # the engine may lower it while payloads are large
        self.portion = least  # events to ask for, or to have here: grows while handlers keep up
        self.closed = False  # the engine stops
        self.drains = 0  # so many wait until it is idle
        self._woken = asyncio.Event()
        self._wakes = self._wakes_seen = 0  # in all, and before the look that is under way
        self._room = asyncio.Event()
        self._idle = asyncio.Event()  # set while a claim found nothing and nothing is under way
        self._interval = 0.5
        self._eager_until = 0.0
        self._last_full = 0.0
        self._fruitless = 0  # looks in a row that found nothing although something is due

    def wake(self) -> None:
        """There may be something to claim."""
        self._wakes += 1
        self._woken.set()

    def room(self) -> None:
        """There is more room than before."""
        self._room.set()

    def every(self, interval: timedelta) -> None:
        self._interval = interval.total_seconds()
        self._woken.set()

    def expect(self, seconds: float = 0.2) -> None:
        """A write whose commit we cannot see: look often for a moment."""
        self._eager_until = _now() + seconds
        self._woken.set()

    @property
    def woken(self) -> bool:
        return self._woken.is_set()

    def begin(self) -> None:
        """A look begins: whatever wakes from now on asks for another one."""
        self._woken.clear()
        self._wakes_seen = self._wakes

    def ended(self, *, found: bool, empty: bool) -> None:
        """A look is over. `empty`: nothing is under way either. What woke meanwhile may be news to the next look."""
        if found:
            self._fruitless = 0
            self._idle.clear()
        elif empty and self._wakes == self._wakes_seen:
            self._idle.set()

    def was_full(self) -> None:
        """Ask for more while full claims follow one another quickly, for less when handlers are slow."""
        now = _now()
        if now - self._last_full < RAMP:
            self.portion = min(self.portion * 2, self.most)
        elif now - self._last_full > 4 * RAMP:
            self.portion = max(self.portion // 2, self.least)
        self._last_full = now

    async def more_room(self, within: float | None = None) -> None:
        self._room.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                await self._room.wait()

    async def rest(self, next_due: Callable[[], Awaitable[timedelta | None]]) -> None:
        """Nothing more is due: sleep until woken, until the next row is due, or for the poll interval.

        Under load the next wake-up is milliseconds away, so the question that only an idle poller needs answered
        waits for a moment of silence.
        """
        if _now() < self._eager_until:
            await self.woken_within(EAGER)
        elif not await self.woken_within(QUIET):
            await self.woken_within(self.until(await next_due()))

    def until(self, due: timedelta | None) -> float:
        """Seconds to the next due row. One that is due and yet not claimed (behind a parked head, in another's shard)
        gets one look at once, in case it has just become due, and then ever fewer."""
        if due is None or due > timedelta(0):
            self._fruitless = 0
            return math.inf if due is None else due.total_seconds()
        self._fruitless += 1
        return 0.0 if self._fruitless == 1 else QUIET * 2.0 ** min(self._fruitless, 20)

    async def woken_within(self, seconds: float) -> bool:
        """At most for the poll interval."""
        if self._woken.is_set() or seconds <= 0:
            return self._woken.is_set()
        try:
            async with asyncio.timeout(min(seconds, self._interval)):
                return await self._woken.wait()
        except TimeoutError:
            return False

    async def until_idle(self) -> None:
        """Until a claim finds nothing and nothing is under way, or the engine stops. Asks more often than when idle."""
        self._idle.clear()
        self.drains += 1
        try:
            while not (self._idle.is_set() or self.closed):
                self._woken.set()
                with suppress(TimeoutError):
                    async with asyncio.timeout(QUIET):
                        await self._idle.wait()
        finally:
            self.drains -= 1


def _now() -> float:
    return asyncio.get_running_loop().time()
