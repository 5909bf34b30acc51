"""`inbox.process(handlers)`: the service that processes the messages of an inbox in this process.

The delivery engine works on the inbox's pending rows. A plain function is run in threads, an async one in the event
loop; `delivery.workers` at the same time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ..drivers import check_shared, open_async, open_sync
from ..drivers.spi import Runner
from ..engine.rows.engine import RowEngine
from ..engine.threads import STRAYS, ListenerThreads
from ..engine.wakeups import Ears
from ..errors import ConfigError
from ..listeners import Listeners, registry
from ..locking import ensure_sound
from ..service import AsyncService, Owner
from ..settings import Settings
from ..store.grants.tenants import sees_all
from ..store.inbox.claim import Share
from ..store.inbox.meta import Plan
from ..values import Counts
from .alerts import AlertService
from .handle import Handling, MessageMarks
from .presence import InboxRegistration
from .purge import InboxPurgeLoop, retention_of
from .source import InboxSource
from .transactions import Steps, TransactionBody, check_session, given, own

if TYPE_CHECKING:
    from .inbox import AsyncInbox, Inbox

log = logging.getLogger("relaybox")


class Processing(AsyncService):
    def __init__(
        self,
        box: Inbox | AsyncInbox,
        owner: Owner | None,
        handlers: Listeners[Any] | Callable[..., object],
        *,
        session: Any,
        batch: int,
        share: Share | None,
    ) -> None:
        super().__init__(box._clock, owner)
        self._pages = box.settings.listen
        check_shared(box._target)
        if type(batch) is not int or batch < 1:
            raise ConfigError(f"expected batch to be a positive number of messages, got {batch!r}")
        if share is not None and not isinstance(share, Share):
            raise ConfigError(f"expected share to be a Share, such as Share(0, 4), got {share!r}")
        if session is not None:
            check_session(session)
        self._box = box
        self._listeners = listeners = registry(handlers)
        self._session = session
        self._batch = batch
        self._share = share or Share()
        for listener in listeners.all():
            if listener.size is not None:
                raise ConfigError(
                    f"{listener.name} takes batches, which an inbox does not hand out: register it with on(), and say "
                    "process(batch=…) for several messages in one transaction"
                )
        self._plain = any(not listener.is_async for listener in listeners.all())
        if self._plain and any(one.is_async for one in listeners.all()) and (session is not None or batch > 1):
            raise ConfigError(
                "expected listeners to be all plain or all async functions: one transaction, and so one session, "
                "serves either kind"
            )
        self._closing = AsyncExitStack()
        self._engine: RowEngine | None = None  # None: not started, or inbox.enabled is off
        self._registration: InboxRegistration | None = None
        self._handling: Handling | None = None

    @property
    def name(self) -> str:
        return f"processing of {self._box.store.tables.event}"

    async def _start(self) -> None:
        """What is started is stopped the other way round, also when the next one cannot start."""
        box, stack = self._box, self._closing
        store, clock, observers, settings = box.store, box._clock, box._observers, box.settings
        if not settings.inbox.enabled:
            log.warning("inbox.enabled is off: this process leaves inbox %r alone", store.tables.event)
            return
        db = open_async(box._target, timeout=settings.delivery.statement_seconds)
        patient = db.within(settings.delivery.batch_seconds)
        stack.push_async_callback(db.close)
        await db.run(store.verify_schema(), tx=False)
        await db.run(sees_all(store, "message"), tx=False)
        plan = await patient.run(store.plan_of(), tx=False)
        settings = self._settings(plan)
        source = InboxSource(db, store, settings, clock, order=plan.order, priority=plan.priority, share=self._share)
        handling = self._handling = self._make_handling(MessageMarks(store, plan.order, clock), settings)
        if self._session is not None and self._listeners.all():
            await handling.try_session()
        handler = handling.row if self._batch == 1 else handling
        self._engine = engine = RowEngine(source, handler, settings, observers, clock, asked=handling)
        source.freed = engine.wake
        self._registration = registration = InboxRegistration(
            db, store, source, engine, settings, plan.order, observers, clock
        )
        await registration.start()
        stack.push_async_callback(registration.stop)
        await ensure_sound(db, store, clock, partial(store.probe_instance, source.owner))
        engine.start()
        stack.push_async_callback(self._stop_engine)
        told = store.capabilities.listen and store.adoption is None  # who inserts into an adopted table tells nobody
        listen = partial(db.listen, store.tables.channel) if db.listen and told else None
        ears = Ears(engine, listen, settings.delivery.poll, observers, clock)
        retention = plan.retention or retention_of(settings.inbox)
        purge = InboxPurgeLoop(patient, store, retention, settings, observers, clock)
        alerts = AlertService(patient, store, settings.inbox, plan.order, observers, clock)
        for service in (ears, purge, alerts):
            service.start()
            stack.push_async_callback(service.stop)
        wake = _from_anywhere(engine.wake)
        box._wakers.add(wake)
        stack.callback(box._wakers.discard, wake)

    def _make_handling(self, marks: MessageMarks, settings: Settings) -> Handling:
        """Transactions have connections of their own: the engine must not wait for a listener. Should the network
        swallow one, what it has locked is free soon after the listener's time."""
        box, workers = self._box, settings.delivery.workers
        ours = settings.delivery.database_timeout.total_seconds()
        handlers = settings.delivery.timeout.total_seconds() * self._batch if settings.delivery.timeout else None
        pause = None if handlers is None else handlers + ours
        last = box.store.last_word if self._batch == 1 else None  # a batch sees it by its savepoints
        in_loop = open_async(box._target, size=workers, pause=pause)
        self._closing.push_async_callback(in_loop.close)
        in_thread: Runner | None = None
        if self._plain:
            in_thread = open_sync(box._target, size=workers + STRAYS, pause=pause)  # one that hangs keeps its own
            self._closing.callback(in_thread.close)
        threads = ListenerThreads(workers, box._observers)
        self._closing.callback(threads.close)
        session, dialect = self._session, box.store.dialect

        def begin(is_async: bool, work: TransactionBody) -> Steps[None]:
            if session is not None:
                return given(session, dialect, is_async, work)
            return own(in_loop if is_async or in_thread is None else in_thread, is_async, last, work)

        return Handling(
            self._listeners,
            threads,
            marks,
            begin,
            partial(own, in_loop, True, last),
            settings.delivery,
            box._clock,
            seconds=None if dialect == "sqlite" else ours,  # which is no network, and has its own
            size=self._batch,
        )

    def _settings(self, plan: Plan) -> Settings:
        """One writer at a time needs one worker. A failed head of an ordered key is settled before others of it run."""
        changes: dict[str, object] = {"order.on_exhausted": "park" if plan.order is not None else "skip"}
        if plan.retry is not None:
            changes["delivery.retry"] = plan.retry
        elif self._box.store.adoption is not None:
            changes["delivery.retry.attempts"] = self._box.store.adoption.max_attempts
        if not self._box.store.capabilities.skip_locked:
            changes["delivery.workers"] = 1
        return self._box.settings.replaced(changes)

    def halt(self) -> None:
        if self._engine is not None:
            self._engine.halt()

    async def _stop(self, timeout: float | None) -> None:
        self._patience = timeout
        self.halt()
        await self._closing.aclose()

    async def _stop_engine(self) -> None:
        if self._engine is not None:
            await self._engine.stop(self._patience)

    async def _drain(self) -> None:
        if self._engine is not None:
            await self._engine.until_idle()

    def _complaints(self) -> Iterator[str]:
        if self._engine is not None and self._registration is not None:
            if self._registration.presence.silent:
                yield "no heartbeat reaches the database"
            if self._engine.missing + self._registration.presence.missing:
                yield "a background task ended and is being replaced"

    @property
    def counts(self) -> Counts:
        if self._engine is None or self._handling is None:
            return Counts()
        return replace(self._engine.counts, ignored=self._handling.ignored)


def _from_anywhere(wake: Callable[[], None]) -> Callable[[], None]:
    loop = asyncio.get_running_loop()

    def call() -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(wake)

    return call
