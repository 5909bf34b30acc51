"""How long an inbox keeps what it is done with: messages for days, the ids it has seen for much longer.

Every drain also folds the journal of the numbers by type into their totals, be anything deleted or not.

Draining ends no sequence: the next number of a key is kept in its state, not in old messages.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal, Self, assert_never

from .. import faults
from ..clock import Clock
from ..drivers.script import Script, aplay, commit, look
from ..drivers.spi import AsyncRunner
from ..engine.loops import Loops
from ..errors import ConfigError
from ..facts import Observers, Purged
from ..op import Op
from ..settings import Settings
from ..store.inbox import InboxStore

Kind = Literal["processed", "dead", "seen", "folded"]
FOLD = 10  # rows of the journal for one that is deleted: they are small


@dataclass(frozen=True, slots=True)
class Retention:
    """None: for ever. An id must be known for longer than any sender may repeat its message."""

    processed: timedelta | None = timedelta(hours=72)
    dead: timedelta | None = None
    seen: timedelta | None = timedelta(days=90)
    batch: int = 1000  # rows per transaction
    interval: timedelta = timedelta(minutes=1)  # between two drains in the background

    def __post_init__(self) -> None:
        for name in ("processed", "dead", "seen"):
            value = getattr(self, name)
            if value is not None and value < timedelta(0):
                raise ConfigError(f"expected {name} to be a duration or None, got {value}")
        if self.batch < 1 or self.interval <= timedelta(0):
            raise ConfigError(f"expected batch and interval to be positive, got {self.batch} and {self.interval}")
        if self.seen is not None and self.processed is not None and self.seen < self.processed:
            raise ConfigError(
                f"expected ids to be kept at least as long as messages ({self.processed}), got {self.seen}: "
                "a message that comes again after its id was forgotten takes effect again"
            )

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """What the settings, and so the environment, say."""
        return cls(
            processed=settings.inbox.retention,
            dead=settings.inbox.dead_retention,
            seen=settings.inbox.seen_retention,
            batch=settings.inbox.purge_batch,
            interval=settings.inbox.purge_interval,
        )

    def ages(self) -> Iterator[tuple[Kind, timedelta]]:
        """What to do, and from which age on."""
        ages: tuple[tuple[Kind, timedelta | None], ...] = (
            ("processed", self.processed),
            ("dead", self.dead),
            ("seen", self.seen),
        )
        yield from ((kind, age) for kind, age in ages if age is not None)
        yield "folded", timedelta(0)


@dataclass(slots=True)
class Drained:
    """How many messages and ids went, and changes of the numbers by type into the totals."""

    processed: int = 0
    dead: int = 0
    seen: int = 0
    folded: int = 0

    def add(self, kind: Kind, count: int) -> None:
        setattr(self, kind, getattr(self, kind) + count)


def drain_op(store: InboxStore, kind: Kind, age: timedelta, limit: int, now: datetime | None) -> Op[int]:
    match kind:
        case "processed":
            return store.drain_processed(age, limit, now)
        case "dead":
            return store.drain_dead(age, limit, now)
        case "seen":
            return store.drain_seen(age, limit, now)
        case "folded":
            return store.fold(limit * FOLD)
        case _:
            assert_never(kind)


KEEP_ALL = Retention(processed=None, dead=None, seen=None, interval=timedelta(days=1))
FOLD_EVERY = timedelta(seconds=10)  # at least: who reads the numbers adds up what was not folded


@dataclass(eq=False)
class DrainService:
    _db: AsyncRunner
    _store: InboxStore
    _retention: Retention
    _observers: Observers
    _clock: Clock

    def __post_init__(self) -> None:
        self._next = self._clock.monotonic()  # drain, and not only fold
        self._loops = Loops(self._observers, self._clock)

    def start(self) -> None:
        self._loops.repeat("drain", self._step)

    async def stop(self) -> None:
        await self._loops.close()

    async def _step(self) -> None:
        retention, interval = self._retention, self._retention.interval.total_seconds()
        if self._clock.monotonic() < self._next:
            retention = KEEP_ALL
        else:
            self._next = self._clock.monotonic() + interval
        drained = await aplay(drain(self._store, retention, self._clock), self._db, self._clock)
        if drained.processed or drained.dead:
            self._observers(Purged(drained.processed + drained.dead))
        await self._clock.sleep(min(interval, FOLD_EVERY.total_seconds()))


def drain(store: InboxStore, retention: Retention, clock: Clock) -> Script[Drained]:
    """Batch by batch, a transaction each."""
    drained = Drained()
    for kind, age in retention.ages():
        gone = retention.batch
        if kind == "folded" and not (yield from look(store.unfolded())):
            continue
        while gone >= retention.batch:
            faults.hit("purge.before")
            gone = yield from commit(drain_op(store, kind, age, retention.batch, clock.database_now()))
            faults.hit("purge.after")
            drained.add(kind, gone)
    return drained
