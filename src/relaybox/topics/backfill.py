"""Backfill: what was written before a group came, and is not complete yet, waits for that group too.

    Job(home, topic, group, Backfill()).run()                      a script: ends when it is done
    running = await start_backfill(home, topic, group, Backfill()) up to 100,000 events in place, more behind

A topic tracked by offset needs none: there the group's place says all. With bitmaps or acks the group is added to what
open events require, in batches that each carry their checkpoint. A job that was killed, cancelled or failed goes on
where it was; two never run for one group. Complete events stay complete: the group reads them as it passes.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import ceil
from typing import TYPE_CHECKING, Generic, Literal, TypeVar

from ..clock import Clock
from ..drivers.script import Script, aplay, commit, look
from ..drivers.spi import AsyncRunner, Runner
from ..errors import ConfigError, NotFound, StoreBusy, StoreError
from ..ids import new_token
from ..store.topics import GroupRow, TopicRow
from ..store.topics.completion import BackfillRow, BackfillState
from .home import Home

if TYPE_CHECKING:
    from ..store.topics.store import TopicStore

log = logging.getLogger("relaybox")

LEASE = timedelta(seconds=30)
SAMPLES = 100
LONGEST_PAUSE = 5.0
SMALLEST_BATCH = 100
PATIENCE = 5  # times a batch may find its rows locked
IN_PLACE = 100_000

R = TypeVar("R", Runner, AsyncRunner)
Outcome = Literal["completed", "limit_reached", "already_completed", "cancelled", "failed", "in_progress"]


@dataclass(frozen=True, slots=True)
class Backfill:
    """How much, and how gently. Each batch is a checkpoint."""

    batch: int = 10_000
    max_messages: int | None = 1_000_000  # None: all of them
    target_latency: timedelta = timedelta(milliseconds=10)  # p95 of a small write meanwhile
    max_rate: float = 50_000  # per second
    oldest_first: bool = False  # which part, if there are more than `max_messages`: by default the newest

    def __post_init__(self) -> None:
        if self.batch < 1 or self.max_rate <= 0 or (self.max_messages is not None and self.max_messages < 1):
            raise ConfigError(
                f"expected positive batch, max_rate and max_messages, got {self.batch}, {self.max_rate} and "
                f"{self.max_messages}; max_messages=None means all"
            )

    @classmethod
    def conservative(cls) -> Backfill:
        return cls(batch=5_000, target_latency=timedelta(milliseconds=5), max_rate=10_000)

    @classmethod
    def aggressive(cls) -> Backfill:
        return cls(batch=50_000, target_latency=timedelta(milliseconds=50), max_rate=200_000)

    @classmethod
    def unlimited(cls) -> Backfill:
        return cls(max_messages=None)


@dataclass(frozen=True, slots=True)
class BackfillResult:
    """`in_progress`: another process is at it."""

    outcome: Outcome
    processed: int
    total: int
    cause: str | None = None


@dataclass(frozen=True, slots=True)
class BackfillProgress:
    state: BackfillState
    processed: int
    total: int
    percent: float
    started_at: datetime | None
    elapsed: timedelta | None
    rate: float  # events per second, lately
    eta: timedelta | None
    error: str | None

    @classmethod
    def of(cls, row: BackfillRow) -> BackfillProgress:
        ended = row.state == "completed"
        percent = 100.0 if ended else min(100.0, 100 * row.done / row.total) if row.total else 0.0
        left = max(0, row.total - row.done)
        eta = timedelta(seconds=left / row.rate) if row.state == "in_progress" and row.rate > 0 else None
        return cls(row.state, row.done, row.total, percent, row.started_at, row.elapsed, row.rate, eta, row.error)


class Pace:
    """How large the next batch may be and how long to wait before it. Decides from the latency of a small write of our
    own, which is what others feel, not from that of the batch."""

    def __init__(self, config: Backfill) -> None:
        self._target = config.target_latency.total_seconds()
        self._rate = config.max_rate
        # A second's worth at most, so that no pause outlasts the lease.
        self._largest = max(1, min(config.batch, int(config.max_rate)))
        self._smallest = min(SMALLEST_BATCH, self._largest)
        self._samples: deque[float] = deque(maxlen=SAMPLES)
        self.batch = max(self._smallest, self._largest // 10)

    def probed(self, latency: float) -> float:
        """Seconds to hold back for. Halves the batch when others wait too long, else lets it grow."""
        self._samples.append(latency)
        if latency > self._target:
            self.batch = max(self._smallest, self.batch // 2)
        else:
            self.batch = min(self._largest, self.batch + max(1, self._largest // 10))
        return min(LONGEST_PAUSE, max(0.0, self.p95 - self._target))

    @property
    def p95(self) -> float:
        ordered = sorted(self._samples)
        return ordered[ceil(0.95 * len(ordered)) - 1]

    def spent(self, count: int, took: float) -> float:
        """Seconds to wait so as not to exceed the rate."""
        return max(0.0, count / self._rate - took)


class Job(Generic[R]):
    def __init__(self, home: Home[R], topic: TopicRow, group: GroupRow, config: Backfill) -> None:
        self._store: TopicStore = home.store
        self._clock: Clock = home.clock
        self._topic = topic
        self._group = group
        self._config = config
        self._token = new_token()

    def run(self) -> Script[BackfillResult]:
        early = yield from self.begin()
        return early or (yield from self.go_on())

    def begin(self) -> Script[BackfillResult | None]:
        """Takes the job. A result: there is nothing for us to do."""
        begun = yield self._store.begin_backfill(
            self._topic,
            self._group,
            self._token,
            LEASE,
            self._now,
            limit=self._config.max_messages,
            oldest=self._config.oldest_first,
        )
        if begun == "gone":
            return BackfillResult("failed", 0, 0, f"group {self._group.name!r} is neither active nor paused")
        if begun in ("completed", "busy"):
            return (yield from self._result("already_completed" if begun == "completed" else "in_progress"))
        if begun == "resumed":
            log.info("backfill of group %r of topic %r goes on where it was", self._group.name, self._topic.topic.name)
        return None

    def total(self) -> Script[int]:
        return (yield from self._row()).total

    def go_on(self) -> Script[BackfillResult]:
        try:
            mine = yield from self._batches()
        except Exception as error:
            cause = f"{type(error).__name__}: {error}"
            yield from commit(self._store.fail_backfill(self._group, self._token, cause, self._now))
            row = yield from self._row()
            log.error("backfill of group %r of topic %r: %s", self._group.name, self._topic.topic.name, cause)
            return BackfillResult("failed", row.done, row.total, cause)
        except (asyncio.CancelledError, KeyboardInterrupt):  # the next process goes on at once
            with suppress(StoreError):  # its lease ends then
                yield from commit(self._store.leave_backfill(self._group, self._token))
            raise
        if not mine:
            return (yield from self._stopped())
        row = yield from self._row()
        return BackfillResult("limit_reached" if row.limited else "completed", row.done, row.total)

    def _batches(self) -> Script[bool]:
        """False: it was taken from us."""
        pace = Pace(self._config)
        began, added, busy = self._clock.monotonic(), 0, 0
        while True:
            before = self._clock.monotonic()
            rate = added / (before - began) if before > began else 0.0
            if (yield self._store.hold_backfill(self._group, self._token, LEASE, rate, self._now)) is None:
                return False
            if (pause := pace.probed(self._clock.monotonic() - before)) > 0:
                yield pause
            before = self._clock.monotonic()
            try:
                step = yield self._store.backfill_step(
                    self._topic, self._group, self._token, pace.batch, LEASE, rate, self._now
                )
            except StoreBusy:
                busy += 1
                if busy > PATIENCE:
                    raise
                yield 0.1 * busy
                continue
            if step is None:
                return False
            count, ended = step
            busy, added = 0, added + count
            if ended:
                return True
            if (pause := pace.spent(count, self._clock.monotonic() - before)) > 0:
                yield pause

    def _stopped(self) -> Script[BackfillResult]:
        """Somebody else's word: cancelled, taken over, or the group is gone."""
        row = yield from self._row()
        if row.group_state not in ("active", "paused"):
            yield from commit(self._store.cancel_backfill(self._group, self._now))
            return BackfillResult("cancelled", row.done, row.total, f"the group is {row.group_state}")
        return BackfillResult("in_progress" if row.state == "in_progress" else "cancelled", row.done, row.total)

    def _result(self, outcome: Outcome) -> Script[BackfillResult]:
        row = yield from self._row()
        return BackfillResult(outcome, row.done, row.total)

    def _row(self) -> Script[BackfillRow]:
        row = yield from commit(self._store.backfill(self._group, self._now))
        if row is None:
            raise NotFound(
                "group",
                self._group.name,
                f"group {self._group.name!r} of topic {self._topic.topic.name!r} is gone",
            )
        return row

    @property
    def _now(self) -> datetime | None:
        return self._clock.database_now()


def finish(home: Home[R], group: GroupRow) -> Script[bool]:
    """Goes on with a backfill of the group that was begun and that nobody is at: it came back from the dead, or the
    process that was at it ended. False: somebody else is at it."""
    row = yield from look(home.store.backfill(group, home.clock.database_now()))
    if row is None or row.state != "in_progress":
        return True
    topic = yield from look(home.known(group.topic))
    result = yield from Job(home, topic, group, Backfill()).run()
    return result.outcome != "in_progress"


async def start_backfill(
    home: Home[AsyncRunner], topic: TopicRow, group: GroupRow, config: Backfill, *, in_place: int | None = None
) -> asyncio.Future[BackfillResult]:
    """Done already if it was a matter of `in_place` events; else a task of the running loop is at it."""
    job = Job(home, topic, group, config)
    db = home.db.within(None)
    early = await aplay(job.begin(), db, home.clock)
    if early is None and await aplay(job.total(), db, home.clock) <= (IN_PLACE if in_place is None else in_place):
        early = await aplay(job.go_on(), db, home.clock)
    if early is not None:
        future: asyncio.Future[BackfillResult] = asyncio.get_running_loop().create_future()
        future.set_result(early)
        return future
    task = asyncio.create_task(aplay(job.go_on(), db, home.clock), name=f"backfill-{group.name}")
    await asyncio.sleep(0)  # it has begun: from here on it gives the job back when it is cancelled
    return task
