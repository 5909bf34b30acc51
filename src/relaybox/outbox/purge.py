"""Deleting what is finished and old, in short transactions. Nothing waiting, nothing dead unless asked."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from datetime import datetime, timedelta

from .. import faults
from ..audit import Auditor
from ..clock import Clock
from ..drivers.script import Script, aplay, commit
from ..drivers.spi import AsyncRunner
from ..engine.loops import Loops
from ..errors import Closed
from ..facts import Observers, Purged
from ..op import Op
from ..settings import Settings
from ..store.events import Kind, Search
from ..store.outbox import OutboxStore
from ..store.outbox.values import Purge
from ..values import ALL

log = logging.getLogger("relaybox")


@dataclass(eq=False, slots=True)
class PurgePlan:
    """The batches of one purge, as ops: each runs in a transaction of its own. Shared by sync and async."""

    store: OutboxStore
    now: datetime | None  # None: ask the database, whose clock dated the events
    _: KW_ONLY
    retention: timedelta | None
    dead_retention: timedelta | None
    batch_size: int
    by_age: bool = False
    _after: int = 0

    @property
    def more(self) -> bool:
        return self.retention is not None or self.dead_retention is not None

    def run(
        self,
        committed: Callable[[Op[int]], Script[int]] = commit,
        progress: Callable[[int], object] = lambda gone: None,
    ) -> Script[int]:
        """All of it. Returns how many events are gone."""
        total = 0
        while self.more:
            faults.hit("purge.before")
            total += yield from committed(self.batch())
            faults.hit("purge.after")
            progress(total)
        return total

    def count(self) -> Op[int]:
        """How many it would be."""
        total = 0
        kinds: tuple[tuple[Kind, timedelta | None], ...] = (("done", self.retention), ("dead", self.dead_retention))
        for kind, age in kinds:
            if age is not None:
                search = Search(ALL, until=(yield from self._ago(age)))
                total += yield from self.store.count_events(kind, search)
        return total

    def batch(self) -> Op[int]:
        """One transaction of it."""
        if self.retention is not None:
            batch = yield from self._finished(self.retention)
        else:
            assert self.dead_retention is not None
            batch = yield from self._dead(self.dead_retention)
        self._after = batch.last
        if batch.seen < self.batch_size:  # a short batch: this kind is exhausted
            if self.retention is not None:
                self.retention = None
            else:
                self.dead_retention = None
        return batch.gone

    def _finished(self, age: timedelta) -> Op[Purge]:
        before = yield from self._ago(age)
        if not self.by_age:
            return (yield from self.store.purge_done(before, self._after, self.batch_size))
        gone = yield from self.store.purge_age(before, self.batch_size)
        return Purge(gone, 0, gone)

    def _dead(self, age: timedelta) -> Op[Purge]:
        before = yield from self._ago(age)
        gone = yield from self.store.purge_dead(before, self.batch_size)
        return Purge(gone, 0, gone)

    def _ago(self, age: timedelta) -> Op[datetime]:
        """The same moment for all batches of a purge."""
        if self.now is None:
            _, self.now = yield from self.store.newest(None)
        return self.now - age


@dataclass(eq=False)
class OutboxPurgeLoop:
    """Runs a purge every `outbox.purge_interval`; errors are logged and the next run tries again."""

    _db: AsyncRunner
    _store: OutboxStore
    _settings: Settings
    _observers: Observers
    _clock: Clock
    by_age: bool = False
    purged: int = 0
    _closed: bool = False

    def __post_init__(self) -> None:
        self._loops = Loops(self._observers, self._clock)

    def start(self) -> None:
        if self._closed:
            raise Closed("this purge was stopped; make a new one")
        self._loops.repeat("purge", self._step)

    async def stop(self) -> None:
        self._closed = True
        await self._loops.close()

    async def _step(self) -> None:
        await self.run_once()
        await self._clock.sleep(self._settings.outbox.purge_interval.total_seconds())

    async def run_once(self) -> int:
        settings = self._settings
        plan = PurgePlan(
            self._store,
            self._clock.database_now(),
            retention=settings.outbox.retention,
            dead_retention=settings.outbox.dead_retention,
            batch_size=settings.outbox.purge_batch,
            by_age=self.by_age,
        )
        total = await aplay(plan.run(), self._db, self._clock)
        await self._db.run(Auditor(self._store, settings, self._observers, self._clock).purge())
        self.purged += total
        if total:
            log.info("purged %d events", total)
            self._observers(Purged(total))
        return total
