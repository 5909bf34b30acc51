"""How an inbox gets rid of what it is done with: messages after days, the ids it has seen much later.

Every purge also folds the journal of the numbers by type into their totals, be anything deleted or not.

Purging ends no sequence: the next number of a key is kept in its state, not in old messages.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from .. import faults
from ..audit import Auditor
from ..clock import Clock
from ..drivers.script import Script, aplay, commit, look
from ..drivers.spi import AsyncRunner
from ..engine.loops import Loops
from ..facts import Observers, Purged
from ..op import Op
from ..settings import InboxSettings, Settings
from ..store.events import Kind
from ..store.inbox import InboxStore
from ..store.inbox.meta import Retention

FOLD = 10  # rows of the journal for one that is deleted: they are small
FOLD_EVERY = timedelta(seconds=10)  # at least: who reads the numbers adds up what was not folded
NOTHING = Retention(done=None, dead=None, seen=None)


def retention_of(settings: InboxSettings) -> Retention:
    return Retention(settings.retention, settings.dead_retention, settings.seen_retention)


def purge(
    store: InboxStore,
    retention: Retention,
    batch: int,
    clock: Clock,
    committed: Callable[[Op[int]], Script[int]] = commit,
) -> Script[int]:
    """Batch by batch, a transaction each; those of messages are `committed`. Returns how many messages are gone; ids do
    not count."""
    total = yield from _batches(store.purge_done, retention.done, batch, clock, committed)
    total += yield from _batches(store.purge_dead, retention.dead, batch, clock, committed)
    yield from _batches(store.purge_seen, retention.seen, batch, clock)
    if (yield from look(store.unfolded())):
        yield from _batches(lambda _, limit, __: store.fold(limit * FOLD), timedelta(0), batch, clock)
    return total


def purgeable(store: InboxStore, retention: Retention, clock: Clock) -> Op[int]:
    """How many messages it would be."""
    total = 0
    kinds: tuple[tuple[Kind, timedelta | None], ...] = (("done", retention.done), ("dead", retention.dead))
    for kind, age in kinds:
        if age is not None:
            total += yield from store.purgeable(kind, age, clock.database_now())
    return total


def _batches(
    remove: Callable[[timedelta, int, datetime | None], Op[int]],
    age: timedelta | None,
    batch: int,
    clock: Clock,
    committed: Callable[[Op[int]], Script[int]] = commit,
) -> Script[int]:
    total, gone = 0, batch
    while age is not None and gone >= batch:
        faults.hit("purge.before")
        gone = yield from committed(remove(age, batch, clock.database_now()))
        faults.hit("purge.after")
        total += gone
    return total


@dataclass(eq=False)
class InboxPurgeLoop:
    """Purges every `inbox.purge_interval`, and folds more often."""

    _db: AsyncRunner
    _store: InboxStore
    _retention: Retention
    _settings: Settings
    _observers: Observers
    _clock: Clock

    def __post_init__(self) -> None:
        self._next = self._clock.monotonic()
        self._loops = Loops(self._observers, self._clock)
        self.stop = self._loops.close

    def start(self) -> None:
        self._loops.repeat("purge", self._step)

    async def _step(self) -> None:
        settings = self._settings.inbox
        due = self._clock.monotonic() >= self._next
        script = purge(self._store, self._retention if due else NOTHING, settings.purge_batch, self._clock)
        if gone := await aplay(script, self._db, self._clock):
            self._observers(Purged(gone))
        if due:
            self._next = self._clock.monotonic() + settings.purge_interval.total_seconds()
            await self._db.run(Auditor(self._store, self._settings, self._observers, self._clock).purge())
        await self._clock.sleep(min(settings.purge_interval, FOLD_EVERY).total_seconds())
