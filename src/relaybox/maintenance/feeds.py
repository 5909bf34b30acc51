"""Feeds: refreshed when they are due, compared with their queries, and watched.

A refresh is no step of the maintainer: it runs beside the other jobs, with connections of its own. It is not fenced by
the term, because it is right in any process: the feed is locked meanwhile, and whether it is due is asked under that
lock. Holding the term for so long would cost the lead.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Coroutine
from contextlib import suppress
from datetime import timedelta
from typing import Any

from ..drivers.spi import AsyncRunner
from ..errors import StoreError
from ..facts import FeedFailed, FeedRefreshed, FeedStanding, LoopFailed
from ..op import Op
from ..retry import Retry
from ..settings import FeedSettings
from ..store.feeds.schedule import Attempt, DueFeed, FeedLook
from ..store.topics.maintenance import AlertCondition
from .context import JobContext
from .report import Report

log = logging.getLogger("relaybox")
LOOKED = ("feed_failing", "feed_late", "feed_deaf", "feed_drift", "feed_storage")
GRACE = 30.0  # seconds beyond its own timeout after which a refresh loses its connection
EARLY = 0.1  # part of an interval by which chance makes it shorter, so that feeds do not come all at once


class FeedJobs:
    def __init__(self, context: JobContext, db: AsyncRunner, settings: FeedSettings) -> None:
        self._context = context
        self._db = db
        self._settings = settings
        self._retry = Retry(base=settings.back_off, max=settings.longest_back_off, jitter=EARLY)
        self._queue: deque[DueFeed] = deque()
        self._slow: set[int] = set()
        self._tasks: dict[int, asyncio.Task[None]] = {}  # by feed
        self._not_before: dict[int, float] = {}  # what cannot even be written down
        self._told: set[str] = set()
        self._are_there = False
        self.report = Report()

    # -- refreshing -------------------------------------------------------------------------------

    @property
    def running(self) -> list[asyncio.Task[None]]:
        return list(self._tasks.values())

    async def refresh(self) -> Report:
        """Begins what is due, and does not wait for it."""
        if await self._there():
            due = await self._context.read(self._context.feeds.due(self._settings.slow, self._context.now))
            moment = self._context.clock.monotonic()
            self._queue = deque(feed for feed in due if self._not_before.get(feed.id, 0.0) <= moment)
            self._begin()
        report, self.report = self.report, Report()
        return report

    async def all(self) -> Report:
        """The same, to its end."""
        report = await self.refresh()
        while self._tasks:
            await asyncio.wait(self.running)
        report.add(self.report)
        self.report = Report()
        return report

    def _begin(self) -> None:
        """As many as may run. Slow ones have half of the places: others need not wait for them."""
        kept = deque[DueFeed]()
        while self._queue and len(self._tasks) < self._settings.at_once and self._may_work():
            feed = self._queue.popleft()
            if feed.id in self._tasks:
                continue
            if feed.slow and len(self._slow) >= max(1, self._settings.at_once // 2):
                kept.append(feed)
                continue
            self._start(feed.id, feed.slow, self._one(feed))
        self._queue.extendleft(reversed(kept))

    def _may_work(self) -> bool:
        return self._context.term is not None and not self._context.stopping

    def _start(self, number: int, slow: bool, work: Coroutine[Any, Any, None]) -> None:
        def ended(task: asyncio.Task[None]) -> None:
            del self._tasks[number]
            self._slow.discard(number)
            if not task.cancelled() and (error := task.exception()) is not None:
                log.error("feeds failed and will be tried again: %s", error)
                self._context.observers(LoopFailed("feeds", f"{type(error).__name__}: {error}"))
            self._begin()

        if slow:
            self._slow.add(number)
        task = self._tasks[number] = asyncio.create_task(work, name=f"relaybox-feed-{number}")
        task.add_done_callback(ended)

    async def _one(self, feed: DueFeed) -> None:
        context, begun = self._context, self._context.clock.monotonic()
        try:
            attempt = await self._attempt(feed)
        except StoreError as error:  # nothing could be written down with it
            await self._note(feed, error)
            return
        if attempt is None:
            return
        if attempt.error is not None:
            self._failed(feed, attempt.failures, attempt.error)
        elif (done := attempt.done) is not None:
            took = context.clock.monotonic() - begun
            context.observers(FeedRefreshed(feed.name, done.how, done.inserted, done.deleted, took))
            self.report.feeds_refreshed += 1
            if done.number is not None:
                with suppress(StoreError):  # they poll
                    await context.db.run(context.store.notify(context.now), tx=False)

    async def _attempt(self, feed: DueFeed) -> Attempt | None:
        """One transaction, which a failed refresh leaves with nothing but the note of that."""
        feeds, now = self._context.feeds, self._context.now

        def op() -> Op[Attempt | None]:
            every = yield from feeds.take(feed.id, now)
            if every is None:
                return None
            attempt = yield from feeds.attempt(feed.name, now)
            yield from feeds.put_off(feed.id, self._pause(every, attempt.failures), now)
            return attempt

        return await self._db.within(feed.timeout.total_seconds() + GRACE).run(op())

    def _pause(self, every: timedelta, failures: int) -> timedelta:
        """A feed that is refreshed seldom is tried again before its next time."""
        return self._retry.pause(failures) if failures else every * random.uniform(1 - EARLY, 1)

    async def _note(self, feed: DueFeed, error: StoreError) -> None:
        """In a transaction of its own. The type of the error only: its text may quote rows."""
        context, pause = self._context, self._retry.pause(feed.failures + 1)
        self._not_before[feed.id] = context.clock.monotonic() + pause.total_seconds()
        told = f"{type(error).__name__}; its text is in the log of the maintainer"
        log.error("feed %s could not be refreshed: %s", feed.name, error)
        failures = await context.db.run(context.feeds.failed(feed.name, told, pause, context.now))
        if failures is not None:
            self._failed(feed, failures, told)

    def _failed(self, feed: DueFeed, failures: int, error: str) -> None:
        self.report.feeds_failed += 1
        self._context.observers(FeedFailed(feed.name, failures, error))

    async def _there(self) -> bool:
        """Asked until there are tables of feeds."""
        self._are_there = self._are_there or await self._context.read(self._context.feeds.there())
        return self._are_there

    # -- comparing with the query -----------------------------------------------------------------

    async def verify(self) -> Report:
        """Every feed whose turn it is, one after another. What takes too long has its next turn like the others."""
        context, interval, report = self._context, self._settings.verify_interval, Report()
        while interval is not None and self._may_work() and await self._there():
            turn = await context.db.run(context.feeds.verifiable(interval, context.now))
            if turn is None:
                break
            number, name, timeout = turn
            try:
                await self._db.within(timeout.total_seconds() + GRACE).run(
                    context.feeds.verified(number, name, timeout)
                )
                report.feeds_verified += 1
            except StoreError as error:
                log.warning("feed %s could not be compared with its query: %s", name, error)
        return report

    # -- what somebody should know ----------------------------------------------------------------

    async def look(self) -> None:
        context = self._context
        if not await self._there():
            return
        for name, topic, why in await context.fenced(context.feeds.fallen()):
            await context.alerts.happened("outbox_full_refresh", topic, name, f"the whole query was evaluated: {why}")
        looks = await context.read(context.feeds.look(self._settings.late, context.now))
        await context.alerts.found(LOOKED, [condition for look in looks for condition in self._conditions(look)])
        for look in looks:
            context.observers(FeedStanding(look.name, look.age, look.schedule.took, look.waiting, look.bytes))
        self._forget({look.name for look in looks})

    def _conditions(self, look: FeedLook) -> list[AlertCondition]:
        plan, mib = look.schedule, look.bytes / 2**20
        texts = {
            "feed_failing": look.failing and f"failed {plan.failures} time(s) in a row: {plan.error}",
            "feed_late": look.late and f"is to be refreshed every {plan.every}, and was not for {look.age or 'ever'}",
            "feed_deaf": look.deaf and "a trigger was dropped or disabled, or a partition came or went",
            "feed_drift": plan.wrong and f"{plan.wrong} row(s) are not as the query says, and no change waits",
            "feed_storage": mib > self._settings.critical_mb and f"{mib:,.0f} MiB are kept for its readers",
        }
        return [AlertCondition(name, look.topic, look.name, text) for name, text in texts.items() if text]

    def lost(self) -> None:
        """Another maintainer measures now."""
        self._forget(set())

    def _forget(self, there: set[str]) -> None:
        for name in self._told - there:
            self._context.observers(FeedStanding(name, None, None, None, None))
        self._told = there
