"""The answer to a commit whose reply was lost: whether its events are stored, when all that could store them has ended.

An event that is not there may belong to a COMMIT that the server is still at: it waits for a standby, or runs deferred
triggers. PostgreSQL names the transactions that write, and those are waited for; MySQL and SQLite wait by themselves.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

from ..clock import Clock
from ..drivers.spi import AsyncRunner, Runner
from ..errors import StillCommitting, StoreBusy
from ..op import Op
from ..store.spi import OutboxStore

PATIENCE = timedelta(seconds=30)
LOOK_AGAIN = 0.05  # seconds between two looks

Stored = Callable[[Sequence[str]], Op[dict[str, bool]]]


class _Wait:
    """For the transactions that were under way at the first look."""

    def __init__(self, stored: dict[str, bool], patience: timedelta, clock: Clock) -> None:
        self.missing = [event_id for event_id, found in stored.items() if not found]
        self.goes_on = bool(self.missing)
        self._clock = clock
        self._deadline = clock.monotonic() + patience.total_seconds()
        self._left: set[str] | None = None

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Where the database itself waits, it does so for as long as it waits for any lock."""
        try:
            yield
        except StoreBusy as error:
            raise StillCommitting(self.missing) from error

    def saw(self, under_way: set[str]) -> float:
        """Seconds until the next look."""
        self._left = under_way if self._left is None else self._left & under_way
        self.goes_on = bool(self._left)
        if self.goes_on and self._clock.monotonic() > self._deadline:
            raise StillCommitting(self.missing)
        return LOOK_AGAIN if self.goes_on else 0.0


def resolve(
    db: Runner, store: OutboxStore, stored: Stored, event_ids: Sequence[str], patience: timedelta, clock: Clock
) -> dict[str, bool]:
    answer = db.run(stored(event_ids), tx=False)
    wait = _Wait(answer, patience, clock)
    while wait.goes_on:
        with wait.looking():
            time.sleep(wait.saw(db.run(store.under_way(wait.missing))))
    return db.run(stored(event_ids), tx=False) if wait.missing else answer


async def aresolve(
    db: AsyncRunner, store: OutboxStore, stored: Stored, event_ids: Sequence[str], patience: timedelta, clock: Clock
) -> dict[str, bool]:
    answer = await db.run(stored(event_ids), tx=False)
    wait = _Wait(answer, patience, clock)
    while wait.goes_on:
        with wait.looking():
            await asyncio.sleep(wait.saw(await db.run(store.under_way(wait.missing))))
    return await db.run(stored(event_ids), tx=False) if wait.missing else answer
