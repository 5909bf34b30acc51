"""What processes an inbox in the background: the delivery engine of the core over the inbox's pending rows.

    with inbox.processor(handle) as processor:      # async with, of an AsyncInbox
        processor.drained()                         # until nothing is due any more

A plain function is run in threads, an async one in the event loop; of either kind `delivery.workers` at the same time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, Self, TypedDict

from ..clock import Clock
from ..drivers import open_async, open_sync
from ..engine.rows.engine import DeliveryEngine
from ..engine.threads import STRAYS, ListenerThreads
from ..engine.wakeups import Ears
from ..engine.work import BatchHandler, Handler
from ..errors import ConfigError
from ..facts import Delivered, Died, Fact, Observer, Observers, Retried
from ..forks import renew_after_fork
from ..listeners import is_async
from ..settings import Settings
from ..store.inbox import InboxStore
from ..store.inbox.claim import Share
from ..store.inbox.meta import Plan
from ..tasks import LoopThread
from .adopt import retention_from
from .alerts import Alerting, AlertService
from .drain import KEEP_ALL, DrainService, Retention
from .instance import Instance
from .process import Marks, MessageHandler, check_handler, make_async, make_sync
from .source import InboxSource
from .transactions import async_factory, sync_factory

log = logging.getLogger("relaybox")


class Options(TypedDict, total=False):
    session: Any  # sessionmaker, engine, or a function that gives a transaction; none: connections of our own
    batch: int  # messages per transaction, each in a savepoint
    share: Share  # only the keys of one worker of several
    limit: int | None  # claim no more than so many
    retention: Retention | None  # what to delete; none: nothing; not given: as agreed, or as the settings say
    alerts: Alerting | None  # when to tell people what; none: never; not given: as the settings say
    observers: Sequence[Observer]
    settings: Settings | None  # none: those of the inbox


@dataclass(slots=True)
class Processed:
    """What a processor has done: messages processed, attempts that failed and are due again, messages given up."""

    done: int = 0
    retried: int = 0
    dead: int = 0

    def __call__(self, fact: Fact) -> None:
        if isinstance(fact, Delivered):
            self.done += fact.count
        elif isinstance(fact, Retried):
            self.retried += 1
        elif isinstance(fact, Died):
            self.dead += 1


class AsyncProcessor:
    def __init__(
        self,
        target: Any,
        store: InboxStore,
        handler: MessageHandler,
        options: Options,
        settings: Settings,
        plan: Plan,
        clock: Clock,
        running: set[Callable[[], None]],
    ) -> None:
        check_handler(handler)
        unknown = set(options) - set(Options.__annotations__)
        if unknown:
            raise ConfigError(f"unknown option {sorted(unknown)[0]!r}; expected {', '.join(Options.__annotations__)}")
        self.processed = Processed()
        self._target = target
        self._store = store
        self._handler = handler
        self._options = options
        self._given = options.get("settings") or settings
        self._wanted = plan
        self._clock = clock
        self._running = running  # what an accept in this process wakes
        self._batch = options.get("batch", 1)
        if type(self._batch) is not int or self._batch < 1:
            raise ConfigError(f"expected batch to be at least 1, got {self._batch!r}")
        self._observers = Observers([*options.get("observers", ()), self.processed])
        self._closing = AsyncExitStack()
        self.engine: DeliveryEngine | None = None  # while it runs

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            await self._start(stack)
            self._closing = stack.pop_all()
        return self

    async def _start(self, stack: AsyncExitStack) -> None:
        """What is started is stopped the other way round, also when the next one cannot start."""
        store, clock, observers = self._store, self._clock, self._observers
        if not self._given.inbox.enabled:
            log.warning("inbox.enabled is off: this process leaves inbox %r alone", store.tables.event)
            return
        db = open_async(self._target, timeout=self._given.delivery.statement_seconds)
        patient = db.within(self._given.delivery.batch_seconds)
        stack.push_async_callback(db.close)
        await db.run(store.verify_schema(), tx=False)
        plan = await patient.run(store.agree(self._wanted, clock.database_now()))
        settings = self._settings(plan)
        source = InboxSource(
            db,
            store,
            settings,
            clock,
            order=plan.order,
            priority=plan.priority,
            share=self._options.get("share") or Share(),
            limit=self._options.get("limit"),
        )
        handler = self._make_handler(stack, Marks(store, plan.order, clock), settings)
        self.engine = engine = DeliveryEngine(source, handler, settings, observers, clock)
        source.freed = engine.wake
        instance = Instance(db, store, source, engine, settings, plan.order, observers, clock)
        await instance.start()
        stack.push_async_callback(instance.stop)
        engine.start()
        stack.push_async_callback(engine.stop)
        told = store.capabilities.listen and store.adoption is None  # who inserts into an adopted table tells nobody
        listen = partial(db.listen, store.tables.channel) if db.listen and told else None
        ears = Ears(engine, listen, settings.delivery.poll, observers, clock)
        ears.start()
        stack.push_async_callback(ears.stop)
        agreed = retention_from(store.limits) or Retention.of(settings)
        drain = DrainService(patient, store, self._options.get("retention", agreed) or KEEP_ALL, observers, clock)
        drain.start()
        stack.push_async_callback(drain.stop)
        alerting = self._options.get("alerts", Alerting.of(settings))
        if alerting is not None:
            alerts = AlertService(patient, store, alerting, plan.order, observers, clock)
            alerts.start()
            stack.push_async_callback(alerts.stop)
        wake = _wake_from_anywhere(engine)
        self._running.add(wake)
        stack.callback(self._running.discard, wake)

    def _make_handler(self, stack: AsyncExitStack, marks: Marks, settings: Settings) -> Handler | BatchHandler:
        """Transactions have connections of their own: the engine must not wait for a handler. Should the network
        swallow one, what it has locked is free soon after the handler's time."""
        session, size = self._options.get("session"), settings.delivery.workers
        ours = settings.delivery.database_timeout.total_seconds()
        handlers = settings.delivery.timeout.total_seconds() * self._batch if settings.delivery.timeout else None
        pause = None if handlers is None else handlers + ours
        last = self._store.last_word if self._batch == 1 else None  # a batch sees it by its savepoints
        if is_async(self._handler):
            work = open_async(self._target, size=size, pause=pause)
            stack.push_async_callback(work.close)
            return make_async(self._handler, async_factory(session, work, ours, last), marks, settings, self._batch)
        threads = ListenerThreads(size, self._observers)
        database = open_sync(self._target, size=size + STRAYS, pause=pause)  # a handler that hangs keeps its connection
        stack.callback(database.close)
        stack.callback(threads.close)
        begin = sync_factory(session, database, ours, last)
        return make_sync(self._handler, begin, marks, threads, settings, self._batch)

    def _settings(self, plan: Plan) -> Settings:
        """One writer at a time needs one worker. A failed head of an ordered key is settled before others of it run."""
        changes: dict[str, object] = {"order.on_exhausted": "park" if plan.order is not None else "skip"}
        if "max_attempts" in self._store.limits:
            changes["delivery.retry.attempts"] = self._store.limits["max_attempts"]
        if not self._store.capabilities.skip_locked:
            changes["delivery.workers"] = 1
        return self._given.replaced(changes)

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Let running handlers finish within delivery.stop_timeout, give the rest back, sign off. Safe to repeat."""
        if self.engine is not None:
            self.engine.halt()
        await self._closing.aclose()

    async def drained(self) -> Processed:
        """Until nothing is due and nothing is under way. What failed and is due later is not waited for."""
        if self.engine is not None:
            await self.engine.until_idle()
        return self.processed


def _wake_from_anywhere(engine: DeliveryEngine) -> Callable[[], None]:
    loop = asyncio.get_running_loop()

    def wake() -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(engine.wake)

    return wake


class Processor:
    """The same for synchronous programs: an event loop in a thread of its own."""

    def __init__(self, inner: AsyncProcessor) -> None:
        self._inner = inner
        self._thread: LoopThread | None = None
        renew_after_fork(self)

    def after_fork(self) -> None:
        """It runs in the parent."""
        self._thread = None

    def __enter__(self) -> Self:
        self._thread = LoopThread("relaybox-inbox")
        try:
            self._thread.call(self._inner.__aenter__())
        except BaseException:
            self._thread.stop()
            self._thread = None
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def stop(self) -> None:
        if self._thread is not None:
            self._thread.call(self._inner.stop())
            self._thread.stop()
            self._thread = None

    @property
    def processed(self) -> Processed:
        return self._inner.processed

    def drained(self) -> Processed:
        if self._thread is None:
            raise ConfigError("this processor is not running; use it in a `with` block")
        return self._thread.call(self._inner.drained())
