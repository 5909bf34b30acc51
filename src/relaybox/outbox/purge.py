"""Deleting what is finished and old, in short transactions. Nothing waiting, nothing dead unless asked."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime, timedelta

from .. import faults
from ..clock import Clock
from ..drivers.script import Script, aplay, commit
from ..drivers.spi import AsyncRunner
from ..errors import ServiceClosed
from ..lifecycle import Observers, Purged
from ..op import Op
from ..runtime.loops import Loops
from ..settings import Settings
from ..store.spi import OutboxStore, Purge

log = logging.getLogger("relaybox")

Progress = Callable[[int], None]


class PurgePlan:
    """The batches of one purge, as ops: each runs in a transaction of its own. Shared by sync and async."""

    def __init__(
        self,
        store: OutboxStore,
        now: datetime | None,
        *,
        retention: timedelta | None,
        dead_retention: timedelta | None,
        batch_size: int,
        by_age: bool = False,
    ) -> None:
        self._store = store
        self._now = now  # None: ask the database, whose clock dated the events
        self._retention = retention
        self._dead_retention = dead_retention
        self._batch = batch_size
        self._by_age = by_age
        self._after = 0

    def next_batch(self) -> Op[Purge] | None:
        """The next op to run, or None when everything old is gone. Tell `ran` what it answered."""
        if self._retention is not None:
            return self._finished(self._retention)
        if self._dead_retention is not None:
            return self._dead(self._dead_retention)
        return None

    def ran(self, batch: Purge) -> int:
        faults.hit("purge.after")
        self._after = batch.last
        if batch.seen < self._batch:  # a short batch: this kind is exhausted
            if self._retention is not None:
                self._retention = None
            else:
                self._dead_retention = None
        return batch.gone

    def run(self, progress: Progress | None = None) -> Script[int]:
        """All of it. Returns how many events are gone."""
        total = 0
        while (batch := self.next_batch()) is not None:
            faults.hit("purge.before")
            total += self.ran((yield from commit(batch)))
            if progress is not None:
                progress(total)
        return total

    def _finished(self, age: timedelta) -> Op[Purge]:
        before = yield from self._ago(age)
        if not self._by_age:
            return (yield from self._store.purge_done(before, self._after, self._batch))
        gone = yield from self._store.purge_age(before, self._batch)
        return Purge(gone, 0, gone)

    def _dead(self, age: timedelta) -> Op[Purge]:
        before = yield from self._ago(age)
        gone = yield from self._store.purge_dead(before, self._batch)
        return Purge(gone, 0, gone)

    def _ago(self, age: timedelta) -> Op[datetime]:
        """The same moment for all batches of a purge."""
        if self._now is None:
            self._now = yield from self._store.time(None)
        return self._now - age


class PurgeService:
    """Runs a purge every `purge_interval`; errors are logged and the next run tries again."""

    def __init__(
        self,
        db: AsyncRunner,
        store: OutboxStore,
        settings: Settings,
        observers: Observers,
        clock: Clock,
        *,
        by_age: bool = False,
    ) -> None:
        self._db = db
        self._store = store
        self._settings = settings
        self._observers = observers
        self._clock = clock
        self._by_age = by_age
        self._loops = Loops(observers, clock)
        self._closed = False

    def start(self) -> None:
        if self._closed:
            raise ServiceClosed("this purge service was stopped; make a new one")
        self._loops.repeat("purge", self._step)

    async def stop(self) -> None:
        self._closed = True
        await self._loops.close()

    async def _step(self) -> None:
        await self.run_once()
        await self._clock.sleep(self._settings.purge_interval.total_seconds())

    async def run_once(self) -> int:
        settings = self._settings
        plan = PurgePlan(
            self._store,
            self._clock.database_now(),
            retention=settings.purge_retention,
            dead_retention=settings.purge_dead_retention,
            batch_size=settings.purge_batch_size,
            by_age=self._by_age,
        )
        total = await aplay(plan.run(), self._db, self._clock)
        if total:
            log.info("purged %d events", total)
            self._observers(Purged(total))
        return total
