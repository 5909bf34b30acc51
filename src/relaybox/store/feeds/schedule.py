"""Feeds that are refreshed by themselves: which are due, how it went, and what somebody should know."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import NamedTuple

from ...op import Op
from ..schema import Schema
from . import Refreshed


class DueFeed(NamedTuple):
    id: int
    name: str
    timeout: timedelta
    failures: int  # in a row
    slow: bool  # the last time it was


class Attempt(NamedTuple):
    """How a refresh by schedule went: it was rolled back, if there is an error."""

    done: Refreshed | None
    failures: int  # in a row
    error: str | None


class FeedSchedule(NamedTuple):
    """When a feed is refreshed by itself, and how that went."""

    every: timedelta | None  # None: when somebody asks
    timeout: timedelta
    next_at: datetime | None
    seen_at: datetime | None  # the last refresh by schedule that succeeded, or found nothing to do
    took: timedelta | None  # the last one that had something to do
    failures: int  # in a row
    failed_at: datetime | None
    error: str | None  # of the last failure, until a refresh succeeds
    wrong: int | None  # rows that were not as the query says without a change that waited, when it was verified
    verified_at: datetime


class FeedLook(NamedTuple):
    """What of a feed is worth an alert, or is measured."""

    name: str
    topic: str
    paused: bool
    schedule: FeedSchedule
    age: timedelta | None  # since the last refresh; None: there was none
    late: bool
    deaf: bool  # its triggers or partitions are not as they were left
    waiting: int | None  # None: this role may not see it, here and below
    kept_deltas: int
    kept_bytes: int | None
    log_bytes: int

    @property
    def failing(self) -> bool:
        """Nobody tries a paused one."""
        return self.schedule.failures > 0 and not self.paused

    @property
    def bytes(self) -> int:
        """What is kept for readers, on the disk."""
        return (self.kept_bytes or 0) + self.log_bytes


class ScheduleOps(Schema):
    def due(self, slow: timedelta, now: datetime | None) -> Op[list[DueFeed]]:
        """The longest due first. `slow`: what takes longer is so."""
        result = yield self.sql["feed.due"].bind(slow=slow, now=now)
        return [DueFeed(*row) for row in result.rows]

    def take(self, feed: int, now: datetime | None) -> Op[timedelta | None]:
        """Locks it to the end of the transaction, in which each statement has the feed's timeout, and says how often it
        is to be refreshed. None: somebody else is at it, or it is not due any more."""
        result = yield self.sql["feed.take"].bind(feed=feed, now=now)
        if not result.rows:
            return None
        every, timeout = result.rows[0]
        yield self.sql["feed.patience"].bind(timeout=timeout)
        found: timedelta = every
        return found

    def attempt(self, name: str, now: datetime | None) -> Op[Attempt]:
        """Refreshes it. What fails is written down, and the caller commits that."""
        result = yield self.sql["feed.attempt"].bind(name=name, now=now)
        n, how, reasons, inserted, deleted, claim_check, seq, failures, error = result.rows[0]
        if how is None:
            return Attempt(None, failures, error)
        done = Refreshed(how, inserted, deleted, n if seq is not None else None, seq, claim_check, tuple(reasons))
        return Attempt(done, failures, error)

    def put_off(self, feed: int, pause: timedelta, now: datetime | None) -> Op[None]:
        yield self.sql["feed.next"].bind(feed=feed, pause=pause, now=now)

    def failed(self, name: str, error: str, pause: timedelta | None, now: datetime | None) -> Op[int | None]:
        """How often in a row. None: somebody has it in hand. `pause`: put it off for so long."""
        result = yield self.sql["feed.failed"].bind(name=name, error=error, pause=pause, now=now)
        return int(result.rows[0][0]) if result.rows else None

    def verifiable(self, interval: timedelta, now: datetime | None) -> Op[tuple[int, str, timedelta] | None]:
        """The feed whose turn it is, with its timeout. It is asked for once in each interval."""
        result = yield self.sql["feed.verifiable"].bind(interval=interval, now=now)
        return (result.rows[0][0], result.rows[0][1], result.rows[0][2]) if result.rows else None

    def verified(self, feed: int, name: str, timeout: timedelta) -> Op[int]:
        """How many rows are wrong without a change that waits. Needs a transaction of its own."""
        yield self.sql["feed.patience"].bind(timeout=timeout)
        began, wrong = (yield self.sql["feed.wrong"].bind(name=name)).rows[0]
        yield self.sql["feed.verified"].bind(feed=feed, began=began, wrong=wrong)
        return int(wrong)

    def fallen(self) -> Op[list[tuple[str, str, str]]]:
        """(feed, topic, why) of those that had to be evaluated as a whole since somebody asked this."""
        return [(row[0], row[1], row[2]) for row in (yield self.sql["feed.fallen"].bind()).rows]

    def look(self, late: timedelta, now: datetime | None, name: str | None = None) -> Op[list[FeedLook]]:
        """All feeds. `late`: how long after its time a feed may be refreshed."""
        result = yield self.sql["feed.look"].bind(late=late, now=now, name=name)
        return [
            FeedLook(row[0], row[1], row[2] == "paused", FeedSchedule(*row[3:13]), *row[13:]) for row in result.rows
        ]
