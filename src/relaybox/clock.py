"""Time as an argument: the only module that asks the operating system for it.

Leases and due times are compared inside the database with its own clock, so workers with skewed clocks
cannot steal from one another: `Clock.database_now()` is None in production and SQL says
`coalesce(:now, <database clock>)`. A test's ManualClock returns a time instead, and every
statement then lives in the test's time.
"""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """What relaybox asks for the time, and waits by."""

    def now(self) -> datetime:
        """The time of day here, in UTC."""
        ...

    def monotonic(self) -> float:
        """Seconds that only go forward."""
        ...

    def database_now(self) -> datetime | None:
        """What leases and schedules are compared with. None: the clock of the database, as in production."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Waits for so long."""
        ...


class SystemClock:
    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    def database_now(self) -> datetime | None:
        return None

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


SYSTEM_CLOCK = SystemClock()


def utc_now() -> datetime:
    return datetime.now(UTC)


def epoch_ms() -> int:
    return time.time_ns() // 1_000_000
