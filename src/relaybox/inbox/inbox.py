"""Inbox and AsyncInbox, twins over the same ops: accept messages of other services once, and process each once.

    inbox = Inbox("postgresql://localhost/billing", "orders_inbox")
    inbox.migrate()
    inbox.accept(None, event)           # in a transaction of its own
    inbox.accept(session, event)        # or in yours: stored if and when you commit

    def handle(event, connection):      # its writes and the mark "processed" are one transaction
        connection.execute("INSERT INTO invoice …")

    inbox.process(handle)               # what is due now
    with inbox.processor(handle): ...   # or in the background

An id is a duplicate from the commit on that brought it, however long ago that was. Two transactions that accept the
same id at once are never both told that it is new: the second waits for the first to end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, Self, Unpack

from ..clock import SYSTEM_CLOCK, Clock
from ..drivers import open_async, open_sync, parse, wrap
from ..drivers.script import Async, Sync
from ..drivers.spi import AsyncConnection, Connection
from ..engine.wakeups import Notifier, ThreadNotifier
from ..errors import ConfigError, InvalidEvent, NoTransaction
from ..event import Event
from ..facts import Accepted, Observer, Observers
from ..forks import renew_after_fork
from ..op import Op, arun, run
from ..settings import Settings
from ..store.inbox import InboxStore, InboxTables, check_source, open_inbox_store
from ..store.inbox.meta import Plan
from ..store.inbox.order import Order, Priority
from ..store.rows import in_one_statement
from ..twins import told_by
from .operations import Operations
from .process import MessageHandler
from .processor import AsyncProcessor, Options, Processed, Processor
from .together import AsyncTogether, Together

NO_EVENTS = "accept_all() takes a list of events, accept() takes one; Event(type, payload) makes one"
Letters = Mapping[str, str] | None


def check_events(events: Sequence[Event]) -> None:
    if isinstance(events, Event) or not all(isinstance(event, Event) for event in events):
        raise InvalidEvent(NO_EVENTS)


class _Shared(Operations):
    """What the twins have in common: the checks before anything reaches the database."""

    def __init__(self, target: Any, store: InboxStore, plan: Plan, observers: Sequence[Observer], clock: Clock) -> None:
        super().__init__(store, plan, clock)
        self._target = target
        self._observers = Observers(observers)
        self._processors: set[Callable[[], None]] = set()
        self._notifier: Notifier | ThreadNotifier | None = None
        self._heard = True  # False: nobody listened lately, so that nobody need be told at once
        renew_after_fork(self)

    def after_fork(self) -> None:
        """Processors stay with the parent; it is told as any other process is."""
        self._processors.clear()

    def _processor(self, handler: MessageHandler, options: Options) -> AsyncProcessor:
        if isinstance(self._target, str) and parse(self._target).in_memory:
            raise ConfigError("an in-memory SQLite database belongs to one connection; use a file")
        return AsyncProcessor(
            self._target, self.store, handler, options, self.settings, self._plan, self._clock, self._processors
        )

    def _wake(self) -> None:
        """Processors need not wait for their next poll: those of this process, and of others where the database can
        tell them. They are told beside the transaction, a few times per burst: accepting does not wait for it."""
        with suppress(RuntimeError):  # a loop that has just been closed, a program that is ending: polling finds it
            for wake in tuple(self._processors):
                wake()
            if self._notifier is not None:
                self._notifier.soon()

    def _op(self, events: Sequence[Event], source: str | None, letters: Letters = None) -> tuple[Op[list[bool]], bool]:
        """How they are accepted, and whether that needs a transaction around it."""
        now = self._clock.database_now()
        if letters or not self.store.single:
            return self.store.accept_or_bury(events, letters or {}, source, now), True
        if len(events) == 1:
            return self.store.accept_one(events[0], source, now), False
        return self.store.accept(events, source, now), not in_one_statement(events)

    def _connection(self, handle: Any) -> Connection | AsyncConnection:
        connection = wrap(handle)
        if connection.dialect != self.store.dialect:
            raise ConfigError(
                f"this inbox is on {self.store.dialect}, the handle is a {connection.dialect} connection; "
                "pass one to the inbox's database, or None for a transaction of its own"
            )
        if not connection.in_transaction():
            raise NoTransaction(
                "accept() needs an open transaction, or None for one of its own; this "
                f"{type(handle).__module__}.{type(handle).__qualname__} is in autocommit mode. Begin one first"
            )
        listened = self._notifier is not None and self._heard
        seen = (self._processors or listened) and connection.after_commit(self._waker())
        if not seen and self._notifier is not None:
            self._notifier.later()
        return connection

    def _counted(self, answers: list[bool]) -> list[bool]:
        if self._observers:
            new = sum(answers)
            self._observers(Accepted(self.name, new, len(answers) - new))
        return answers

    def _waker(self) -> Callable[[], None]:
        """For a commit that may happen in any thread."""
        return self._wake


class Inbox(_Shared, Sync):
    """For synchronous programs. Safe to use from many threads."""

    def __init__(
        self,
        target: Any,
        name: str = "inbox",
        *,
        schema: str | None = None,
        order: Order | None = None,
        priority: Priority | None = None,
        settings: Settings | None = None,
        observers: Sequence[Observer] = (),
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        plan = Plan(order, priority)
        tables = InboxTables(name, schema)
        self.settings = settings or Settings.load()
        self._db = open_sync(target).within(self.settings.delivery.batch_seconds)
        super().__init__(target, open_inbox_store(self._db.dialect, tables), plan, observers, clock)
        self._together = Together(self._alone, self._accept_together)
        if self.store.capabilities.listen:
            self._notifier = ThreadNotifier(self._notify)

    def _notify(self) -> bool:
        self._heard = self._db.run(self.store.notify(self._clock.database_now()), tx=False)
        return self._heard

    def accept(self, handle: Any, event: Event, *, source: str | None = None) -> bool:
        """Store it in the handle's transaction (None: in one of its own). False: it was there already.

        When the reply of its own commit is lost this raises ConnectionLost: accept it again, the id tells.
        """
        if not isinstance(event, Event):
            raise InvalidEvent(NO_EVENTS)
        source = check_source(source)
        if handle is not None:
            return self._accept_in(handle, (event,), source)[0]
        return self._together.accept(event, source) if self.store.single else self._alone(event, source)

    def accept_all(
        self, handle: Any, events: Sequence[Event], *, source: str | None = None, letters: Letters = None
    ) -> list[bool]:
        """The same for many, all or none, in list order. Those whose ids are in `letters` become dead letters at once,
        with the reason that is given there: what arrived and cannot be read."""
        check_events(events)
        source = check_source(source)
        if handle is None:
            return self._accept(events, source, letters)
        return self._accept_in(handle, events, source, letters)

    def _accept_in(
        self, handle: Any, events: Sequence[Event], source: str | None, letters: Letters = None
    ) -> list[bool]:
        op, _ = self._op(events, source, letters)
        connection = self._connection(handle)
        if connection.is_async:
            raise ConfigError(f"{type(handle).__qualname__} is an async handle; use AsyncInbox")
        return self._counted(run(op, connection))

    def _accept(self, events: Sequence[Event], source: str | None, letters: Letters = None) -> list[bool]:
        op, tx = self._op(events, source, letters)
        answers = self._db.run(op, tx=tx)
        self._wake()
        return self._counted(answers)

    def _alone(self, event: Event, source: str | None) -> bool:
        return self._accept((event,), source)[0]

    def _accept_together(self, events: Sequence[Event], sources: Sequence[str | None]) -> list[bool]:
        answers = self._db.run(self.store.accept_together(events, sources, self._clock.database_now()), tx=False)
        self._wake()
        return self._counted(answers)

    def processor(self, handler: MessageHandler, **options: Unpack[Options]) -> Processor:
        """Processes in the background while its `with` block runs."""
        return Processor(self._processor(handler, options))

    def process(self, handler: MessageHandler, **options: Unpack[Options]) -> Processed:
        """Processes what is due now (at most `limit` messages), and says what became of it."""
        with self.processor(handler, **options) as processor:
            return processor.drained()

    def close(self) -> None:
        try:
            if isinstance(self._notifier, ThreadNotifier):
                self._notifier.stop()
        finally:
            self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


@told_by(Inbox)
class AsyncInbox(_Shared, Async):
    """For asyncio programs."""

    def __init__(
        self,
        target: Any,
        name: str = "inbox",
        *,
        schema: str | None = None,
        order: Order | None = None,
        priority: Priority | None = None,
        settings: Settings | None = None,
        observers: Sequence[Observer] = (),
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        plan = Plan(order, priority)
        tables = InboxTables(name, schema)
        self.settings = settings or Settings.load()
        self._db = open_async(target).within(self.settings.delivery.batch_seconds)
        super().__init__(target, open_inbox_store(self._db.dialect, tables), plan, observers, clock)
        self._together = AsyncTogether(self._alone, self._accept_together)
        if self.store.capabilities.listen:
            self._notifier = Notifier(self._notify)

    def _waker(self) -> Callable[[], None]:
        loop = asyncio.get_running_loop()

        def wake() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._wake)

        return wake

    async def _notify(self) -> bool:
        notice = self.store.notify(self._clock.database_now())
        self._heard = await self._db.within(self.settings.delivery.statement_seconds).run(notice, tx=False)
        return self._heard

    async def accept(self, handle: Any, event: Event, *, source: str | None = None) -> bool:
        if not isinstance(event, Event):
            raise InvalidEvent(NO_EVENTS)
        source = check_source(source)
        if handle is None:
            return await (self._together.accept(event, source) if self.store.single else self._alone(event, source))
        op, _ = self._op((event,), source)
        connection = self._connection(handle)
        return self._counted(await arun(op, connection) if connection.is_async else run(op, connection))[0]

    async def accept_all(
        self,
        handle: Any,
        events: Sequence[Event],
        *,
        source: str | None = None,
        letters: Letters = None,
        timeout: timedelta | None = None,
    ) -> list[bool]:
        """`timeout`, for a transaction of its own: if the database has not answered by then this raises
        ConnectionLost, and the connection is given up. Accept them again, the ids tell."""
        check_events(events)
        source = check_source(source)
        if handle is None:
            return await self._accept(events, source, letters, timeout)
        if timeout is not None:
            raise ConfigError("a timeout goes with a transaction of its own: pass None as handle, or omit it")
        op, _ = self._op(events, source, letters)
        connection = self._connection(handle)
        return self._counted(await arun(op, connection) if connection.is_async else run(op, connection))

    async def _accept(
        self, events: Sequence[Event], source: str | None, letters: Letters = None, timeout: timedelta | None = None
    ) -> list[bool]:
        op, tx = self._op(events, source, letters)
        db = self._db if timeout is None else self._db.within(timeout.total_seconds())
        answers = await db.run(op, tx=tx)
        self._wake()
        return self._counted(answers)

    async def _alone(self, event: Event, source: str | None) -> bool:
        return (await self._accept((event,), source))[0]

    async def _accept_together(self, events: Sequence[Event], sources: Sequence[str | None]) -> list[bool]:
        op = self.store.accept_together(events, sources, self._clock.database_now())
        answers = await self._db.run(op, tx=False)
        self._wake()
        return self._counted(answers)

    def processor(self, handler: MessageHandler, **options: Unpack[Options]) -> AsyncProcessor:
        return self._processor(handler, options)

    async def process(self, handler: MessageHandler, **options: Unpack[Options]) -> Processed:
        async with self.processor(handler, **options) as processor:
            return await processor.drained()

    async def close(self) -> None:
        try:
            if isinstance(self._notifier, Notifier):
                await self._notifier.stop()
        finally:
            await self._db.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()
