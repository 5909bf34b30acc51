"""Dead letters: look, count, replay. Errors are raised: an outage must not look like "no dead events"."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from .. import faults
from ..clock import Clock
from ..drivers.spi import AsyncRunner, Runner
from ..errors import ConfigError
from ..lifecycle import Observers, Replayed
from ..op import Op
from ..store.spi import DeadFilter, DeadLetter, OutboxStore

Progress = Callable[[int], None]
BATCH = 500
ANY = DeadFilter()


class _Ops:
    """What both twins do, as ops."""

    def __init__(self, store: OutboxStore, clock: Clock, observers: Observers) -> None:
        self.store = store
        self.clock = clock
        self.observers = observers

    def list(self, limit: int, after: int, where: DeadFilter) -> Op[list[DeadLetter]]:
        if limit < 1:
            raise ConfigError(f"expected limit to be a positive int, got {limit}")
        return self.store.dead(where, after, limit)

    def replay(self, event_id: str) -> Op[bool]:
        """Back to the queue with fresh attempts, due now. False: there is no such dead letter."""
        letter = yield from self.store.dead_one(event_id)
        if letter is None or letter.event.seq is None:
            return False
        faults.hit("replay.before")
        done = yield from self.store.replay([letter.event.seq], letter.dead_at, self.clock.database_now())
        faults.hit("replay.after")
        return bool(done)

    def cutoff(self) -> Op[tuple[int, datetime]]:
        return self.store.newest_dead(self.clock.database_now())

    def replay_batch(
        self, where: DeadFilter, after: int, newest: int, cutoff: datetime, limit: int
    ) -> Op[tuple[int, int] | None]:
        """(where it got to, how many) or None at the end. What dies again after the cut-off is left alone."""
        seqs = yield from self.store.dead_numbers(where, after, newest, limit)
        if not seqs:
            return None
        faults.hit("replay.before")
        replayed = yield from self.store.replay(seqs, cutoff, self.clock.database_now())
        faults.hit("replay.after")
        return max(seqs), len(replayed)


class DeadLetters:
    """`outbox.dead`: query and replay from any process."""

    def __init__(self, db: Runner, store: OutboxStore, clock: Clock, observers: Observers, woken: Callable[[], None]):
        self._db, self._ops, self._woken = db, _Ops(store, clock, observers), woken

    def list(self, *, limit: int = 100, after: int = 0, where: DeadFilter = ANY) -> list[DeadLetter]:
        """Oldest first. Page on with `after=letters[-1].event.seq`."""
        return self._db.run(self._ops.list(limit, after, where), tx=False)

    def get(self, event_id: str) -> DeadLetter | None:
        return self._db.run(self._ops.store.dead_one(event_id), tx=False)

    def count(self, where: DeadFilter = ANY) -> int:
        return self._db.run(self._ops.store.count_dead(where), tx=False)

    def replay(self, event_id: str) -> bool:
        return self._told(int(self._db.run(self._ops.replay(event_id)))) > 0

    def replay_all(self, where: DeadFilter = ANY, *, batch_size: int = BATCH, progress: Progress | None = None) -> int:
        """Each letter at most once per call, even if it dies again meanwhile. Batches commit one by one."""
        newest, cutoff = self._db.run(self._ops.cutoff(), tx=False)
        total = after = 0
        while step := self._db.run(self._ops.replay_batch(where, after, newest, cutoff, batch_size)):
            after, count = step
            total += count
            if progress is not None:
                progress(total)
        return self._told(total)

    def _told(self, count: int) -> int:
        if count:
            self._ops.observers(Replayed(count))
            self._woken()
        return count


class AsyncDeadLetters:
    def __init__(
        self,
        db: AsyncRunner,
        store: OutboxStore,
        clock: Clock,
        observers: Observers,
        woken: Callable[[], None],
    ):
        self._db, self._ops, self._woken = db, _Ops(store, clock, observers), woken

    async def list(self, *, limit: int = 100, after: int = 0, where: DeadFilter = ANY) -> list[DeadLetter]:
        return await self._db.run(self._ops.list(limit, after, where), tx=False)

    async def get(self, event_id: str) -> DeadLetter | None:
        return await self._db.run(self._ops.store.dead_one(event_id), tx=False)

    async def count(self, where: DeadFilter = ANY) -> int:
        return await self._db.run(self._ops.store.count_dead(where), tx=False)

    async def replay(self, event_id: str) -> bool:
        return self._told(int(await self._db.run(self._ops.replay(event_id)))) > 0

    async def replay_all(
        self, where: DeadFilter = ANY, *, batch_size: int = BATCH, progress: Progress | None = None
    ) -> int:
        newest, cutoff = await self._db.run(self._ops.cutoff(), tx=False)
        total = after = 0
        while step := await self._db.run(self._ops.replay_batch(where, after, newest, cutoff, batch_size)):
            after, count = step
            total += count
            if progress is not None:
                progress(total)
        return self._told(total)

    def _told(self, count: int) -> int:
        if count:
            self._ops.observers(Replayed(count))
            self._woken()
        return count
