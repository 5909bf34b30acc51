"""Backfill: what was written before a group came, and is not complete yet, waits for that group too.

A topic tracked by offset needs none: there the group's place says all. With bitmaps or acks the group is added to what
open events require, in batches that each carry their checkpoint. A job that was killed, cancelled or failed goes on
where it was; two never run for one group. Complete events stay complete: the group reads them as it passes.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from math import ceil
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from ..drivers.script import Script, aplay, commit, look
from ..drivers.spi import AsyncRunner
from ..errors import ConfigError, GroupError, NotFound, StoreBusy, StoreError
from ..ids import new_token
from ..store.topics import GroupRow, TopicRow
from ..store.topics.completion import BackfillRow
from ..values import Progress
from .context import TopicContext

if TYPE_CHECKING:
    from ..store.topics.store import TopicStore

log = logging.getLogger("relaybox")

LEASE = timedelta(seconds=30)
SAMPLES = 100
LONGEST_PAUSE = 5.0
SMALLEST_BATCH = 100
PATIENCE = 5  # times a batch may find its rows locked
IN_PLACE = 100_000

Pace = Literal["gentle", "normal", "fast"]


class BackfillLimits(NamedTuple):
    batch: int
    latency: float  # seconds that a small write may take meanwhile, p95
    rate: float  # events per second


PACES: dict[Pace, BackfillLimits] = {
    "gentle": BackfillLimits(5_000, 0.005, 10_000),
    "normal": BackfillLimits(10_000, 0.010, 50_000),
    "fast": BackfillLimits(50_000, 0.050, 200_000),
}


def pace_of(name: str) -> BackfillLimits:
    if name not in get_args(Pace):
        raise ConfigError(f"expected pace to be gentle, normal or fast, got {name!r}")
    return PACES[name]  # type: ignore[index]


def progress_of(row: BackfillRow) -> Progress | None:
    """None: there was none."""
    if row.state == "not_started":
        return None
    rate = f", {row.rate:,.0f} events/s" if row.state == "in_progress" and row.rate else ""
    error = f": {row.error}" if row.error else ""
    return Progress(row.done, row.total, f"backfill {row.state.replace('_', ' ')}{rate}{error}")


class Throttle:
    """How large the next batch may be and how long to wait before it. Decides from the latency of a small write of our
    own, which is what others feel, not from that of the batch."""

    def __init__(self, limits: BackfillLimits) -> None:
        self._target = limits.latency
        self._rate = limits.rate
        # A second's worth at most, so that no pause outlasts the lease.
        self._largest = max(1, min(limits.batch, int(limits.rate)))
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


class Job:
    def __init__(
        self,
        context: TopicContext[Any],
        topic: TopicRow,
        group: GroupRow,
        limits: BackfillLimits = PACES["normal"],
        tell: Callable[[Progress], object] | None = None,
    ) -> None:
        self._store: TopicStore = context.store
        self._clock = context.clock
        self._topic = topic
        self._group = group
        self._limits = limits
        self._tell = tell
        self._token = new_token()

    def run(self) -> Script[Progress]:
        """To its end, unless another process is at it."""
        return (yield from self.begin()) or (yield from self.go_on())

    def begin(self) -> Script[Progress | None]:
        """Takes the job. Progress: there is nothing for us to do."""
        begun = yield self._store.begin_backfill(self._topic, self._group, self._token, LEASE, self._now)
        if begun == "gone":
            raise GroupError(
                f"group {self._group.name!r} of topic {self._topic.topic.name!r} is neither active nor paused: no "
                "event can wait for it. Resume it first"
            )
        if begun in ("completed", "busy"):
            return (yield from self._progress())
        if begun == "resumed":
            log.info("backfill of group %r of topic %r goes on where it was", self._group.name, self._topic.topic.name)
        return None

    def total(self) -> Script[int]:
        return (yield from self._row()).total

    def go_on(self) -> Script[Progress]:
        try:
            mine = yield from self._batches()
        except Exception as error:
            cause = f"{type(error).__name__}: {error}"
            log.error("backfill of group %r of topic %r: %s", self._group.name, self._topic.topic.name, cause)
            yield from commit(self._store.fail_backfill(self._group, self._token, cause, self._now))
            raise
        except (asyncio.CancelledError, KeyboardInterrupt):  # the next process goes on at once
            with suppress(StoreError):  # its lease ends then
                yield from commit(self._store.leave_backfill(self._group, self._token))
            raise
        row = yield from self._row()
        if not mine and row.group_state not in ("active", "paused"):
            yield from commit(self._store.cancel_backfill(self._group, self._now))
        return (yield from self._progress())

    def _batches(self) -> Script[bool]:
        """False: it was cancelled or taken over, or the group is gone."""
        throttle = Throttle(self._limits)
        began, added, busy = self._clock.monotonic(), 0, 0
        while True:
            before = self._clock.monotonic()
            rate = added / (before - began) if before > began else 0.0
            if (yield self._store.hold_backfill(self._group, self._token, LEASE, rate, self._now)) is None:
                return False
            if (pause := throttle.probed(self._clock.monotonic() - before)) > 0:
                yield pause
            before = self._clock.monotonic()
            try:
                step = yield self._store.backfill_step(
                    self._topic, self._group, self._token, throttle.batch, LEASE, rate, self._now
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
            if self._tell is not None:
                self._tell((yield from self._progress()))
            if ended:
                return True
            if (pause := throttle.spent(count, self._clock.monotonic() - before)) > 0:
                yield pause

    def _progress(self) -> Script[Progress]:
        found = progress_of((yield from self._row()))
        assert found is not None
        return found

    def _row(self) -> Script[BackfillRow]:
        row = yield from commit(self._store.backfill(self._group))
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


def waited_for(context: TopicContext[Any], topic: TopicRow, group: GroupRow) -> Script[None]:
    """A group's place says what it reads. Where events wait for acks, open ones are told to wait for it too."""
    if topic.topic.tracking in ("bitmap", "acks"):
        yield from Job(context, topic, group).run()


def finish(context: TopicContext[Any], group: GroupRow) -> Script[bool]:
    """Goes on with a backfill of the group that was begun and that nobody is at: it came back from the dead, or the
    process that was at it ended. False: somebody else is at it."""
    row = yield from look(context.store.backfill(group))
    if row is None or row.state != "in_progress":
        return True
    topic = yield from look(context.known(group.topic))
    yield from Job(context, topic, group).run()
    row = yield from look(context.store.backfill(group))
    return row is None or row.state != "in_progress"


async def start_backfill(
    context: TopicContext[AsyncRunner], topic: TopicRow, group: GroupRow, *, in_place: int = IN_PLACE
) -> asyncio.Task[None] | None:
    """None: it was a matter of at most `in_place` events, and is done, or another process is at it. One that fails is
    logged, and `group.info()` tells of it."""
    job, db = Job(context, topic, group), context.db.within(None)

    async def go_on() -> None:
        with suppress(StoreError):
            await aplay(job.go_on(), db, context.clock)

    if await aplay(job.begin(), db, context.clock) is not None:
        return None
    if await aplay(job.total(), db, context.clock) <= in_place:
        await go_on()
        return None
    task = asyncio.create_task(go_on(), name=f"backfill-{group.name}")
    await asyncio.sleep(0)  # it has begun: from here on it gives the job back when it is cancelled
    return task
