"""The service: leads or stands by, and runs each job at its own pace."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from datetime import UTC, datetime, time, timedelta
from functools import partial
from typing import Any, Self

from ..clock import SYSTEM_CLOCK, Clock
from ..drivers import open_async
from ..errors import Closed, ConfigError, LeaseLost, StoreError
from ..facts import Observer, Observers, Standing
from ..ids import new_token
from ..settings import Settings
from ..store.names import Tables
from ..store.topics import open_topic_store
from ..store.topics.upkeep import Condition
from ..tasks import cancelled, forever
from .cleanup import Cleanup
from .groups import Groups
from .report import Report
from .watch import Watch
from .work import JOB, Work

log = logging.getLogger("relaybox")
JOBS = ("ticks", "thin", "partitions", "detect", "cleanup", "groups", "watch")


class Maintainer:
    """Works while its `async with` block is open, if no other does; otherwise stands by."""

    def __init__(
        self,
        target: Any,
        *,
        table: str = "outbox_event",
        schema: str | None = None,
        settings: Settings | None = None,
        jobs: Sequence[str] = JOBS,
        observers: Sequence[Observer] = (),
        clock: Clock = SYSTEM_CLOCK,
        owner: str | None = None,
    ) -> None:
        if unknown := set(jobs) - set(JOBS):
            raise ConfigError(f"unknown job(s) {', '.join(sorted(unknown))}; the jobs are {', '.join(JOBS)}")
        self.settings = settings or Settings.load()
        self.upkeep = self.settings.topics
        self.owner = owner or f"{socket.gethostname()}-{os.getpid()}-{new_token() % 10**6}"
        self._clock = clock
        self._observers = Observers(observers)
        self._db = open_async(target, size=3, timeout=self.settings.delivery.batch_seconds)
        # A long batch must not cost us the lead.
        self._term_db = open_async(target, size=1, timeout=self.settings.term_seconds)
        self.store = open_topic_store(self._db.dialect, Tables(table, schema))
        self._work = Work(self._db, self.store, self.upkeep, self._observers, clock)
        cleanup, groups, watch = Cleanup(self._work), Groups(self._work), Watch(self._work)
        runs: Mapping[str, tuple[Callable[[], Awaitable[Report]], timedelta | None]] = {
            "ticks": (cleanup.tick, self.upkeep.tick_interval),
            "thin": (cleanup.thin, self.upkeep.thin_interval),
            "partitions": (cleanup.partition, self.upkeep.partition_interval),
            "detect": (groups.detect, self.upkeep.detect_interval),
            "cleanup": (cleanup.clean, self.upkeep.cleanup_interval),
            "groups": (groups.forget, None),
            "watch": (watch.look, self.upkeep.watch_interval),
        }
        self._jobs = {name: runs[name] for name in JOBS if name in jobs}
        self._leading = asyncio.Event()
        self._stop = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._term_task: asyncio.Task[None] | None = None
        self._answered: float | None = None
        self._foreign = False
        self._closed = False

    # -- start and stop ---------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def start(self) -> None:
        if self._closed:
            raise Closed("this maintainer is closed; make a new one")
        await self._db.run(self.store.verify_schema(), tx=False)
        self._term_task = self._background("term", self._keep_term)
        for name in self._jobs:
            self._tasks.append(self._background(name, partial(self._turn, name)))

    def _background(self, name: str, step: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        return asyncio.create_task(self._loop(name, step), name=f"relaybox-maintain-{name}")

    async def _loop(self, name: str, step: Callable[[], Awaitable[None]]) -> None:
        async def once() -> None:
            if self._stop.is_set():
                raise asyncio.CancelledError
            await step()

        with suppress(asyncio.CancelledError):
            await forever(name, once, self._observers, self._clock)

    async def close(self) -> None:
        """Running batches end, then the term is given up. Safe to repeat."""
        if self._closed:
            return
        self._closed = self._work.stopping = True
        self._stop.set()
        async with AsyncExitStack() as ending:  # last in, first out, each also when another failed
            ending.push_async_callback(self._term_db.close)
            ending.push_async_callback(self._db.close)
            ending.push_async_callback(self._give_up)
            ending.push_async_callback(cancelled, *self._tasks, self._term_task)
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=self.upkeep.stop_timeout.total_seconds())

    # -- leading ----------------------------------------------------------------------------------

    @property
    def leading(self) -> bool:
        return self._leading.is_set()

    async def until_leading(self) -> None:
        await self._leading.wait()

    async def _keep_term(self) -> None:
        try:
            await self._take_term()
        except StoreError:
            self._lose()
            raise
        await self._pause(self.upkeep.term_ttl.total_seconds() / 3)

    async def _take_term(self) -> bool:
        now = self._clock.database_now
        term = await self._term_db.run(self.store.acquire_term(JOB, self.owner, self.upkeep.term_ttl, now()))
        self._answered = self._clock.monotonic()
        if term is None:
            self._lose()
            return False
        self._work.term = term
        if not self.leading and await self._at_home():
            log.info("maintenance: %s leads, term %d", self.owner, term.number)
            self._leading.set()
        return self.leading

    async def _at_home(self) -> bool:
        """Nothing may be done by transaction numbers of another cluster."""
        incarnation = await self._term_db.run(self.store.incarnation(), tx=False)
        self._foreign = incarnation.foreign
        text = "these topics come from another cluster: run `relaybox doctor --repair` before anything else"
        conditions = [Condition("foreign_cluster", "", "", text)] if incarnation.foreign else []
        await self._work.alerts.found(("foreign_cluster",), conditions)
        return not incarnation.foreign

    def _lose(self) -> None:
        self._work.term = None
        if self.leading:
            self._leading.clear()
            log.info("maintenance: %s leads no more", self.owner)
            self._work.backlog = None
            self._observers(Standing(None, None))

    async def _give_up(self) -> None:
        term = self._work.term
        self._lose()
        if term is not None:
            with suppress(StoreError):
                await self._term_db.run(self.store.release_term(term, self._clock.database_now()))

    # -- jobs -------------------------------------------------------------------------------------

    async def _turn(self, name: str) -> None:
        interval = self._jobs[name][1]
        if interval is None:
            await self._pause(self._until(self.upkeep.groups_at))
        await self._leading_or_stop()
        if self._stop.is_set():
            return
        with suppress(LeaseLost):  # the next turn comes when we lead again
            await self._run(name)
        if interval is not None:
            await self._pause(interval.total_seconds())

    async def _run(self, name: str) -> Report:
        start = self._clock.monotonic()
        try:
            report = await self._jobs[name][0]()
        except LeaseLost:
            self._lose()
            raise
        report.seconds[name] = self._clock.monotonic() - start
        return report

    async def run_once(self, *names: str) -> Report:
        """These jobs, or all, now and one after another. Does nothing while another maintainer leads. For a maintainer
        that is not started; a started one runs them itself."""
        total = Report()
        if self._term_task is not None:
            raise ConfigError("run_once() is for a maintainer that is not running")
        if not await self._take_term():
            total.leading = False
            return total
        renewal = self._background("term", self._keep_term)
        try:
            for name in names or self._jobs:
                total.add(await self._run(name))
        finally:
            await cancelled(renewal)
            await self._give_up()
        return total

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
        tasks = [asyncio.ensure_future(waiting), asyncio.ensure_future(self._stop.wait())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()

    # -- looking ----------------------------------------------------------------------------------

    def problems(self) -> list[str]:
        """Why this process is not ready; empty while it leads or stands by."""
        if self._closed or self._term_task is None:
            return ["not running"]
        if self._foreign:
            return ["the topics come from another cluster"]
        late = self._answered is None or self._clock.monotonic() - self._answered > self.upkeep.term_ttl.total_seconds()
        return ["no answer from the database"] if late else []
