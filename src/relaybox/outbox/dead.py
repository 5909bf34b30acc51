"""Dead letters: look, count, replay. Errors are raised: an outage must not look like "no dead events"."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from .. import faults
from ..clock import Clock
from ..drivers.script import Async, Script, Sync, commit, look, twin
from ..errors import ConfigError
from ..facts import Observers, Replayed
from ..op import Op
from ..store.outbox import OutboxStore
from ..store.outbox.values import DeadFilter, DeadLetter

Progress = Callable[[int], None]
BATCH = 500
ANY = DeadFilter()


class _Letters:
    """What both twins do, as scripts."""

    def __init__(
        self, db: Any, store: OutboxStore, clock: Clock, observers: Observers, woken: Callable[[], None]
    ) -> None:
        self._db = db
        self._store = store
        self._clock = clock
        self._observers = observers
        self._woken = woken

    @twin
    def get(self, event_id: str) -> Script[DeadLetter | None]:
        return look(self._store.dead_one(event_id))

    @twin
    def count(self, where: DeadFilter = ANY) -> Script[int]:
        return look(self._store.count_dead(where))

    @twin
    def replay(self, event_id: str) -> Script[bool]:
        """Back to the queue with fresh attempts, due now. False: there is no such dead letter."""
        return self._told((yield from commit(self._replay(event_id)))) > 0

    @twin
    def replay_all(
        self, where: DeadFilter = ANY, *, batch_size: int = BATCH, progress: Progress | None = None
    ) -> Script[int]:
        """Each letter at most once per call, even if it dies again meanwhile. Batches commit one by one."""
        newest, cutoff = yield from look(self._store.newest_dead(self._clock.database_now()))
        total = after = 0
        while step := (yield from commit(self._replay_batch(where, after, newest, cutoff, batch_size))):
            after, count = step
            total += count
            if progress is not None:
                progress(total)
        return self._told(total)

    @twin
    def list(self, *, limit: int = 100, after: int = 0, where: DeadFilter = ANY) -> Script[list[DeadLetter]]:
        """Oldest first. Page on with `after=letters[-1].event.seq`."""
        if limit < 1:
            raise ConfigError(f"expected limit to be a positive int, got {limit}")
        return look(self._store.dead(where, after, limit))

    def _replay(self, event_id: str) -> Op[int]:
        letter = yield from self._store.dead_one(event_id)
        if letter is None or letter.event.seq is None:
            return 0
        faults.hit("replay.before")
        done = yield from self._store.replay([letter.event.seq], letter.dead_at, self._clock.database_now())
        faults.hit("replay.after")
        return len(done)

    def _replay_batch(
        self, where: DeadFilter, after: int, newest: int, cutoff: datetime, limit: int
    ) -> Op[tuple[int, int] | None]:
        """(where it got to, how many) or None at the end. What dies again after the cut-off is left alone."""
        seqs = yield from self._store.dead_numbers(where, after, newest, limit)
        if not seqs:
            return None
        faults.hit("replay.before")
        replayed = yield from self._store.replay(seqs, cutoff, self._clock.database_now())
        faults.hit("replay.after")
        return max(seqs), len(replayed)

    def _told(self, count: int) -> int:
        if count:
            self._observers(Replayed(count))
            self._woken()
        return count


class DeadLetters(_Letters, Sync):
    """`outbox.dead`: query and replay from any process."""


class AsyncDeadLetters(_Letters, Async):
    """The same in an event loop."""
