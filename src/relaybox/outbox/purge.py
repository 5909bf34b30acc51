"""Deleting what is finished and old, in short transactions. Nothing waiting, nothing dead unless asked."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime, timedelta

from .. import faults
from ..clock import Clock
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
        now: datetime,
        *,
        retention: timedelta | None,
        dead_retention: timedelta | None,
        batch_size: int,
        by_age: bool = False,
    ) -> None:
        self._store = store
        self._before = now - retention if retention is not None else None
        self._dead_before = now - dead_retention if dead_retention is not None else None
        self._batch = batch_size
        self._by_age = by_age
        self._after = 0

    def next_batch(self) -> Op[Purge] | None:
        """The next op to run, or None when everything old is gone. Tell `ran` what it answered."""
        if self._before is not None:
            return (
                self._age(self._before)
                if self._by_age
                else self._store.purge_done(self._before, self._after, self._batch)
            )
        if self._dead_before is not None:
            return self._dead(self._dead_before)
        return None

    def ran(self, batch: Purge) -> int:
        faults.hit("purge.after")
        self._after = batch.last
        if batch.seen < self._batch:  # a short batch: this kind is exhausted
            if self._before is not None:
                self._before = None
            else:
                self._dead_before = None
        return batch.gone

    def _age(self, before: datetime) -> Op[Purge]:
        gone = yield from self._store.purge_age(before, self._batch)
        return Purge(gone, 0, gone)

    def _dead(self, before: datetime) -> Op[Purge]:
        gone = yield from self._store.purge_dead(before, self._batch)
        return Purge(gone, 0, gone)


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
            self._clock.now(),
            retention=settings.purge_retention,
            dead_retention=settings.purge_dead_retention,
            batch_size=settings.purge_batch_size,
            by_age=self._by_age,
        )
        total = 0
        while (batch := plan.next_batch()) is not None:
            faults.hit("purge.before")
            total += plan.ran(await self._db.run(batch))
        if total:
            log.info("purged %d events", total)
            self._observers(Purged(total))
        return total
