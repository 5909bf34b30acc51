"""The service: leads or stands by, and runs each job at its own pace.

with Maintainer("postgresql://localhost/shop"): ...        # beside a program
Maintainer(outbox).once()                                  # every job once, for cron
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from datetime import UTC, datetime, time, timedelta
from functools import partial
from typing import Any

from ..drivers import open_async
from ..errors import ConfigError, LeaseLost, StoreError
from ..facts import Observer, Standing
from ..ids import new_token
from ..outbox import AsyncOutbox, Outbox
from ..service import AsyncService, Service, made_as
from ..settings import Settings, chosen
from ..store.grants.tenants import sees_all
from ..store.topics import open_topic_store
from ..store.topics.maintenance import AlertCondition
from ..tasks import cancelled, forever
from ..values import Counts
from ..words import did_you_mean
from .cleanup import Cleanup
from .context import JOB, JobContext
from .feeds import FeedJobs
from .groups import Groups
from .report import Report
from .watch import Watch

log = logging.getLogger("relaybox")
ALL_JOBS = ("ticks", "thin", "partitions", "detect", "cleanup", "groups", "feeds", "verify", "watch")


class AsyncMaintainer(AsyncService):
    """Keeps the topics of an outbox in order: a service. Any number may run; one of them works, the others stand by.

    Of its `counts`, `done` are the events that were deleted; `report` has the rest."""

    def __init__(
        self,
        outbox: Outbox | AsyncOutbox | str,
        *,
        jobs: Sequence[str] = ALL_JOBS,
        settings: Settings | None = None,
        observers: Sequence[Observer] = (),
    ) -> None:
        """
        outbox     whose topics, or its URL. The maintainer has connections of its own
        jobs       which of the jobs; all of them unless said
        settings   the sections `topics` and `feeds`; if it is not given, as the outbox has them
        observers  told of what happens, beside those of the outbox
        """
        if unknown := set(jobs) - set(ALL_JOBS):
            hint = did_you_mean(min(unknown), ALL_JOBS)
            raise ConfigError(f"unknown job {min(unknown)!r}{hint or ';'} the jobs are {', '.join(ALL_JOBS)}")
        box = AsyncOutbox(outbox, settings=settings) if isinstance(outbox, str) else outbox
        if not isinstance(box, (Outbox, AsyncOutbox)):
            raise ConfigError(f"expected an outbox or its URL, got {type(box).__name__}")
        super().__init__(box._clock)
        self.settings = chosen(settings, lambda: box.settings)
        self._pages = self.settings.listen
        self.upkeep = self.settings.topics
        self._report = Report()
        self._owner_name = f"{self.settings.delivery.owner or socket.gethostname()}-{os.getpid()}-{new_token() % 10**6}"
        self._observers = box._observers.joined(observers)
        self._db = open_async(box._target, size=3, timeout=self.settings.delivery.batch_seconds)
        # A long batch must not cost us the lead.
        self._term_db = open_async(box._target, size=1, timeout=self.settings.term_seconds)
        self.store = open_topic_store(box.store.dialect, box._tables)
        self._context = context = JobContext(self._db, self.store, self.upkeep, self._observers, self._clock)
        feeds = self.settings.feeds
        self._feed_db = open_async(box._target, size=feeds.at_once + 1, timeout=None)  # and one that is verified
        self._feeds = FeedJobs(context, self._feed_db, feeds)
        cleanup, groups, watch, upkeep = Cleanup(context), Groups(context), Watch(context, self._feeds), self.upkeep
        self._jobs: Mapping[str, tuple[Callable[[], Awaitable[Report]], timedelta | None]] = {
            "ticks": (cleanup.tick, upkeep.tick_interval),
            "thin": (cleanup.thin, upkeep.thin_interval),
            "partitions": (cleanup.partition, upkeep.partition_interval),
            "detect": (groups.detect, upkeep.detect_interval),
            "cleanup": (cleanup.clean, upkeep.cleanup_interval),
            "groups": (groups.forget, None),
            "feeds": (self._refresh, feeds.interval),
            "verify": (self._feeds.verify, upkeep.watch_interval),
            "watch": (watch.look, upkeep.watch_interval),
        }
        self._wanted = tuple(name for name in self._jobs if name in jobs)
        self._locks = {name: asyncio.Lock() for name in self._jobs}
        self._taking = asyncio.Lock()
        self._leading = asyncio.Event()
        self._over = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []  # the one that keeps the term first
        self._single = False  # for once(): nothing is repeated
        self._answered: float | None = None
        self._foreign = False

    @property
    def name(self) -> str:
        return f"maintenance of the topics of {self.store.tables.event}: {', '.join(self._wanted)}"

    @property
    def counts(self) -> Counts:
        return Counts(done=self._report.deleted)

    @property
    def report(self) -> Report:
        """What all jobs have done since the start."""
        return self._report

    # -- start and stop ---------------------------------------------------------------------------

    async def _start(self) -> None:
        await self._db.run(self.store.verify_schema(), tx=False)
        await self._db.run(sees_all(self.store, "parked"), tx=False)
        loops: dict[str, Callable[[], Awaitable[None]]] = {"term": self._keep_term}
        loops |= {} if self._single else {name: partial(self._step, name) for name in self._wanted}
        for name, step in loops.items():
            self._tasks.append(asyncio.create_task(self._loop(name, step), name=f"relaybox-maintain-{name}"))

    async def _loop(self, name: str, step: Callable[[], Awaitable[None]]) -> None:
        async def once() -> None:
            if self._over.is_set():
                raise asyncio.CancelledError
            await step()

        with suppress(asyncio.CancelledError):
            await forever(name, once, self._observers, self._clock)

    def halt(self) -> None:
        self._over.set()

    async def _stop(self, timeout: float | None) -> None:
        """Batches that run end, then the term is given up."""
        self.halt()
        self._context.stopping = True
        async with AsyncExitStack() as ending:  # last in, first out, each also when another failed
            ending.push_async_callback(self._term_db.close)
            ending.push_async_callback(self._db.close)
            ending.push_async_callback(self._feed_db.close)
            ending.push_async_callback(self._give_up)
            ending.push_async_callback(cancelled, *self._tasks, *self._feeds.running)
            if jobs := [*self._tasks[1:], *self._feeds.running]:
                patience = self.upkeep.stop_timeout.total_seconds() if timeout is None else timeout
                await asyncio.wait(jobs, timeout=patience)

    async def once(self) -> Counts:
        """Every job once, one after another. `report` says what they did; nothing, while another maintainer leads."""
        self._single = True
        return await super().once()

    async def _drain(self) -> None:
        """Every job runs once more, unless another maintainer leads."""
        if await self._take_term():
            for name in self._wanted:
                await self._run(name)
        else:
            self._report.leading = False

    # -- leading ----------------------------------------------------------------------------------

    @property
    def leading(self) -> bool:
        """Whether this one works; if not, it stands by."""
        return self._leading.is_set()

    async def _keep_term(self) -> None:
        try:
            await self._take_term()
        except StoreError:
            self._lose()
            raise
        await self._pause(self.upkeep.term_ttl.total_seconds() / 3)

    async def _take_term(self) -> bool:
        async with self._taking:
            now = self._clock.database_now()
            term = await self._term_db.run(self.store.acquire_term(JOB, self._owner_name, self.upkeep.term_ttl, now))
            self._answered = self._clock.monotonic()
            if term is None:
                self._lose()
                return False
            self._context.term = term
            if not self.leading and await self._at_home():
                log.info("maintenance: %s leads, term %d", self._owner_name, term.number)
                self._leading.set()
            return self.leading

    async def _at_home(self) -> bool:
        """Nothing may be done by transaction numbers of another cluster."""
        incarnation = await self._term_db.run(self.store.incarnation(), tx=False)
        self._foreign = incarnation.foreign
        text = "these topics come from another cluster: run `relaybox doctor --repair` before anything else"
        conditions = [AlertCondition("foreign_cluster", "", "", text)] if incarnation.foreign else []
        await self._context.alerts.found(("foreign_cluster",), conditions)
        return not incarnation.foreign

    def _lose(self) -> None:
        self._context.term = None
        if self.leading:
            self._leading.clear()
            log.info("maintenance: %s leads no more", self._owner_name)
            self._context.backlog = None
            self._observers(Standing(None, None))
            self._feeds.lost()

    async def _give_up(self) -> None:
        term = self._context.term
        self._lose()
        if term is not None:
            with suppress(StoreError):
                await self._term_db.run(self.store.release_term(term, self._clock.database_now()))

    # -- jobs -------------------------------------------------------------------------------------

    async def _step(self, name: str) -> None:
        interval = self._jobs[name][1]
        if interval is None:
            await self._pause(self._until(self.upkeep.groups_at))
        await self._leading_or_stop()
        if self._over.is_set():
            return
        with suppress(LeaseLost):  # the next turn comes when we lead again
            await self._run(name)
        if interval is not None:
            await self._pause(interval.total_seconds())

    async def _run(self, name: str) -> None:
        async with self._locks[name]:
            start = self._clock.monotonic()
            try:
                report = await self._jobs[name][0]()
            except LeaseLost:
                self._lose()
                raise
            report.seconds[name] = self._clock.monotonic() - start
            self._report.add(report)

    async def _refresh(self) -> Report:
        """A slow feed keeps nothing else waiting, unless every job is run once, one after another."""
        return await (self._feeds.refresh() if self._tasks and not self._single else self._feeds.all())

    def _until(self, moment: time) -> float:
        now = self._clock.now().astimezone(UTC)
        today = datetime.combine(now.date(), moment, UTC)
        return ((today if today > now else today + timedelta(days=1)) - now).total_seconds()

    async def _leading_or_stop(self) -> None:
        await self._first(self._leading.wait())

    async def _pause(self, seconds: float) -> None:
        await self._first(self._clock.sleep(seconds))

    async def _first(self, waiting: Any) -> None:
        """Until that, or the end."""
        tasks = [asyncio.ensure_future(waiting), asyncio.ensure_future(self._over.wait())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()

    def _complaints(self) -> Iterator[str]:
        """None while it leads or stands by."""
        if not self._tasks:
            yield "not running"
        elif self._foreign:
            yield "the topics come from another cluster"
        elif self._answered is None or self._clock.monotonic() - self._answered > self.upkeep.term_ttl.total_seconds():
            yield "no answer from the database"


class Maintainer(Service):
    """Keeps the topics of an outbox in order: a service. Any number may run; one of them works, the others stand by.

    Of its `counts`, `done` are the events that were deleted; `report` has the rest."""

    _inner: AsyncMaintainer

    @made_as(AsyncMaintainer)
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(AsyncMaintainer(*args, **options))

    def once(self) -> Counts:
        """Every job once, one after another. `report` says what they did; nothing, while another maintainer leads."""
        self._inner._single = True
        return super().once()

    @property
    def leading(self) -> bool:
        """Whether this one works; if not, it stands by."""
        return self._inner.leading

    @property
    def report(self) -> Report:
        """What all jobs have done since the start."""
        return self._inner.report
