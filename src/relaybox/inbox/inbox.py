"""Inbox and AsyncInbox, twins over the same ops: accept messages of other services once, and process each once.

    inbox = Inbox("postgresql://localhost/billing", "orders")
    inbox.migrate()
    inbox.accept(None, event)           # in a transaction of its own
    inbox.accept(session, event)        # or in yours: stored if and when you commit

    def handle(event, connection):      # its writes and the mark "processed" are one transaction
        connection.execute("INSERT INTO invoice …")

    with inbox.process(handle): ...     # in the background
    inbox.process(handle).once()        # or what is due now

With a `vault` messages are stored encrypted as a whole, under keys of the receiver's own, and opened for listeners and
for those who look and have the keys.

A duplicate is the same id of the same sender, from the commit on that brought it, however long ago that was. Who the
sender is says the program that accepts, never the message: nobody takes another's ids. Two transactions that accept the
same message at once are never both told that it is new: the second waits for the first to end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, suppress
from typing import TYPE_CHECKING, Any, TypeAlias

from ..clock import SYSTEM_CLOCK, Clock
from ..codec import JSON_CODEC, Codec
from ..drivers import open_async, open_sync, wrap
from ..drivers.script import Async, Sync
from ..drivers.spi import AsyncConnection, AsyncHandle, Connection, DialectName, Handle
from ..engine.wakeups import Notifier, ThreadNotifier, notifier
from ..errors import Closed, ConfigError, InvalidEvent, NoTransaction
from ..event import Event
from ..facts import Accepted, Observer, Observers
from ..forks import renew_after_fork
from ..listeners import C, Listeners
from ..op import Op, arun, run
from ..operate import AsyncDeadLetters, AsyncEvents, AsyncKeys, DeadLetters, Events, Keys
from ..sealing import SealingSteps, arun_beside, run_beside, sealing
from ..sealing import arun as aseal
from ..sealing import run as seal
from ..service import AsyncService, Owning, Service, stop_all
from ..settings import Settings, chosen
from ..store.event_rows import in_one_statement
from ..store.inbox import InboxTables, check_sender, open_inbox_store
from ..store.inbox.adopted.make import InboxInfo
from ..store.inbox.claim import Share
from ..twins import AsyncClosing, Closing, told_by
from .arrivals import Arrivals, AsyncArrivals
from .operations import Operations
from .process import Processing

if TYPE_CHECKING:
    from ..vault import Vault

NO_EVENTS = "accept_all() takes a list of events, accept() takes one; Event(type, payload) makes one"
Answers: TypeAlias = list[bool]  # of each event whether it is new
Infos: TypeAlias = list[InboxInfo]


class _Shared(Operations, Owning):
    """What the twins have in common: the checks before anything reaches the database, and services."""

    def __init__(
        self,
        target: Any,
        name: str = "inbox",
        *,
        schema: str | None = None,
        settings: Settings | None = None,
        observers: Sequence[Observer] = (),
        codec: Codec = JSON_CODEC,
        vault: Vault | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """
        target     a URL; a SQLAlchemy engine; a pool of psycopg_pool or asyncpg; or a function that returns one
        name       of the message table; the others are named after it
        schema     where the tables are, unless in the default schema
        settings   how much, how often, how long; as the environment and the settings file say, if it is not given
        observers  told of what happens
        codec      reads payloads; a `Vault` also decrypts what senders have encrypted with it
        vault      a `Vault` on this database: what is accepted is stored encrypted with its keys
        """
        if vault is not None and sealing(vault) is None:
            raise ConfigError(f"expected vault to be a Vault, got {type(vault).__name__}")
        self.settings = chosen(settings, Settings.load)
        self._tables = InboxTables(name, schema)
        self._target = target
        self._clock = clock
        self._vault = vault
        self._sent_codec = codec  # reads what was accepted, as it came
        self._codec = codec if vault is None else vault.reading(codec)
        self._observers = Observers(observers)
        self._running: list[Any] = []  # its services
        self._wakers: set[Callable[[], None]] = set()  # called when something was accepted in this process
        self._notifier: Notifier | ThreadNotifier | None = None
        self._heard = True  # False: nobody listened lately, so that nobody need be told at once
        self._closed = False
        self._open(target)
        renew_after_fork(self)

    def _open(self, target: Any) -> None:
        raise NotImplementedError

    def _connected(self, dialect: DialectName, notifier: Callable[[], Notifier | ThreadNotifier]) -> None:
        super().__init__(open_inbox_store(dialect, self._tables, self._codec), self._clock)
        if self.store.capabilities.listen:
            self._notifier = notifier()

    def after_fork(self) -> None:
        """Services stay with the parent; it is told as any other process is."""
        self._forked()
        self._wakers.clear()

    # -- services -----------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"inbox {self.name!r} is closed; make a new one")

    def _wake(self) -> None:
        """Services need not wait for their next poll: those of this process, and of others where the database can
        tell them. They are told beside the transaction, a few times per burst: accepting does not wait for it."""
        self._tell_of_fork()
        with suppress(RuntimeError):  # a loop that has just been closed, a program that is ending: polling finds it
            for wake in tuple(self._wakers):
                wake()
            if self._notifier is not None:
                self._notifier.soon()

    # -- accept -------------------------------------------------------------------------------------

    def _sealed(
        self, events: Sequence[Event], sender: str, letters: dict[str, str] | None = None
    ) -> SealingSteps[Sequence[Event]]:
        """The events as they are stored."""
        if isinstance(events, Event) or not all(isinstance(event, Event) for event in events):
            raise InvalidEvent(NO_EVENTS)
        if self._vault is None:
            return events
        shown, senders = self.settings.admin.shown(), [sender] * len(events)
        return (
            yield from self._vault.seal_messages(events, senders, shown=shown, codec=self._sent_codec, letters=letters)
        )

    def _op(
        self, events: Sequence[Event], sender: str, letters: Mapping[str, str] | None = None
    ) -> tuple[Op[Answers], bool]:
        """How they are accepted, and whether that needs a transaction around it. `letters`: what arrived and cannot be
        read is a dead letter from the start; why, by its id."""
        now = self._clock.database_now()
        if letters or not self.store.single:
            return self.store.accept_or_bury(events, letters or {}, sender, now), True
        if len(events) == 1:
            return self.store.accept_one(events[0], sender, now), False
        return self.store.accept(events, sender, now), not in_one_statement(events)

    def _connection(self, handle: Any) -> Connection | AsyncConnection:
        connection, kind = wrap(handle), type(handle)
        if connection.dialect != self.store.dialect:
            raise ConfigError(
                f"this inbox is on {self.store.dialect}, the handle is a {connection.dialect} connection; "
                "pass one to the inbox's database, or None for a transaction of its own"
            )
        if not connection.in_transaction():
            raise NoTransaction(
                "accept() needs an open transaction, or None for one of its own; this "
                f"{kind.__module__}.{kind.__qualname__} is in autocommit mode. Begin one first"
            )
        listened = self._notifier is not None and self._heard
        seen = (self._wakers or listened) and connection.after_commit(self._waker())
        if not seen and self._notifier is not None:
            self._notifier.later()
        return connection

    def _counted(self, answers: Answers) -> Answers:
        if self._observers:
            new = sum(answers)
            self._observers(Accepted(self.name, new, len(answers) - new))
        return answers

    def _waker(self) -> Callable[[], None]:
        """For a commit that may happen in any thread."""
        return self._wake


class Inbox(_Shared, Sync, Closing):
    """Messages of other services, each stored once and processed once. For synchronous programs; safe to use from many
    threads. Its services work in threads of their own."""

    _notifier: ThreadNotifier | None

    def _open(self, target: Any) -> None:
        self._db = open_sync(target, callers=True).within(self.settings.delivery.batch_seconds)
        self._connected(self._db.dialect, lambda: notifier(self._notify, here=self._db.here))
        self._arrivals = Arrivals(self._alone, self._accept_together)
        desk = self._desk(self._db)
        self.dead, self.events, self.keys = DeadLetters(desk), Events(desk), Keys(desk)

    @classmethod
    def list(cls, target: Any, *, clock: Clock = SYSTEM_CLOCK) -> Infos:
        """Every inbox of a database."""
        db = open_sync(target, callers=True)
        try:
            return db.run(_infos(db.dialect, clock), tx=False)
        finally:
            db.close()

    def accept(self, handle: Handle | None, event: Event, *, sender: str = "") -> bool:
        """Stores a message in the handle's transaction (None: in one of its own). False: it was there already.

        sender  who sent it, as you know and the message cannot say: a duplicate is the same id of the same sender

        When the reply of its own commit is lost this raises ConnectionLost: accept it again, the id tells.
        """
        if handle is not None or not isinstance(event, Event) or not self.store.single:
            return self.accept_all(handle, (event,), sender=sender)[0]
        check_sender(sender)
        if self._vault is not None:
            (event,) = run_beside(self._sealed((event,), sender), self._vault)
        return self._arrivals.accept(event, sender)

    def accept_all(self, handle: Handle | None, events: Sequence[Event], *, sender: str = "") -> Answers:
        """As `accept`, for many messages: all or none, in list order."""
        steps = self._sealed(events, check_sender(sender))
        if handle is None:
            return self._stored(run_beside(steps, self._vault), sender)
        connection = self._connection(handle)
        if connection.is_async:
            raise ConfigError(f"{type(handle).__qualname__} is an async handle; use AsyncInbox")
        return self._counted(run(self._op(seal(steps, connection), sender)[0], connection))

    def _stored(self, events: Sequence[Event], sender: str) -> Answers:
        op, tx = self._op(events, sender)
        answers = self._db.run(op, tx=tx)
        self._wake()
        return self._counted(answers)

    def _alone(self, event: Event, sender: str) -> bool:
        return self._stored((event,), sender)[0]

    def _accept_together(self, events: Sequence[Event], senders: Sequence[str]) -> Answers:
        answers = self._db.run(self.store.accept_together(events, senders, self._clock.database_now()), tx=False)
        self._wake()
        return self._counted(answers)

    def _notify(self) -> bool:
        self._heard = self._db.run(self.store.notify(self._clock.database_now()), tx=False)
        return self._heard

    def process(
        self,
        handlers: Listeners[C] | Callable[[Event, C], object] | Callable[[Event], object],
        *,
        session: Any = None,
        batch: int = 1,
        share: Share | None = None,
    ) -> Service:
        """The service that processes the messages of this inbox: with listeners, or with one function that takes all.
        A listener's second argument is the connection or session of the transaction in which its message is marked as
        processed: what it writes there and the mark are committed together, or not at all.

        session  whose transactions are used: a sessionmaker, an engine, or a function that gives a context manager of a
                 transaction; connections of relaybox, if it is not given
        batch    messages per transaction, a savepoint for each
        share    only the keys of one of several workers
        """
        return Service(Processing(self, None, handlers, session=session, batch=batch, share=share), self)

    def close(self) -> None:
        """Stops its services, then closes its connections. Safe to repeat."""
        self._closed = True
        with ExitStack() as last_first:
            last_first.callback(self._db.close)
            if self._notifier is not None:
                last_first.callback(self._notifier.stop)
            self._stop_services(last_first)


@told_by(Inbox)
class AsyncInbox(_Shared, Async, AsyncClosing):
    """Messages of other services, each stored once and processed once. For asyncio programs; its services work in the
    same loop."""

    _notifier: Notifier | None

    def _open(self, target: Any) -> None:
        self._db = open_async(target, callers=True).within(self.settings.delivery.batch_seconds)
        self._connected(self._db.dialect, lambda: Notifier(self._notify))
        self._arrivals = AsyncArrivals(self._alone, self._accept_together)
        desk = self._desk(self._db)
        self.dead, self.events, self.keys = AsyncDeadLetters(desk), AsyncEvents(desk), AsyncKeys(desk)

    @classmethod
    async def list(cls, target: Any, *, clock: Clock = SYSTEM_CLOCK) -> Infos:
        """Every inbox of a database."""
        db = open_async(target, callers=True)
        try:
            return await db.run(_infos(db.dialect, clock), tx=False)
        finally:
            await db.close()

    def _waker(self) -> Callable[[], None]:
        loop = asyncio.get_running_loop()

        def wake() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._wake)

        return wake

    async def accept(self, handle: AsyncHandle | None, event: Event, *, sender: str = "") -> bool:
        if handle is not None or not isinstance(event, Event) or not self.store.single:
            return (await self.accept_all(handle, (event,), sender=sender))[0]
        check_sender(sender)
        if self._vault is not None:
            (event,) = await arun_beside(self._sealed((event,), sender), self._vault)
        return await self._arrivals.accept(event, sender)

    async def accept_all(self, handle: AsyncHandle | None, events: Sequence[Event], *, sender: str = "") -> Answers:
        steps = self._sealed(events, check_sender(sender))
        if handle is None:
            return await self._stored(await arun_beside(steps, self._vault), sender)
        connection = self._connection(handle)
        if connection.is_async:
            return self._counted(await arun(self._op(await aseal(steps, connection), sender)[0], connection))
        if self.store.dialect != "sqlite":  # a file answers without a network
            raise ConfigError(
                f"{type(handle).__qualname__} is a synchronous handle, which would block the event loop; use Inbox"
            )
        return self._counted(run(self._op(seal(steps, connection), sender)[0], connection))

    async def _stored(self, events: Sequence[Event], sender: str) -> Answers:
        op, tx = self._op(events, sender)
        answers = await self._db.run(op, tx=tx)
        self._wake()
        return self._counted(answers)

    async def _alone(self, event: Event, sender: str) -> bool:
        return (await self._stored((event,), sender))[0]

    async def _accept_together(self, events: Sequence[Event], senders: Sequence[str]) -> Answers:
        op = self.store.accept_together(events, senders, self._clock.database_now())
        answers = await self._db.run(op, tx=False)
        self._wake()
        return self._counted(answers)

    async def _notify(self) -> bool:
        notice = self.store.notify(self._clock.database_now())
        self._heard = await self._db.within(self.settings.delivery.statement_seconds).run(notice, tx=False)
        return self._heard

    def process(
        self,
        handlers: Listeners[C] | Callable[[Event, C], object] | Callable[[Event], object],
        *,
        session: Any = None,
        batch: int = 1,
        share: Share | None = None,
    ) -> AsyncService:
        return Processing(self, self, handlers, session=session, batch=batch, share=share)

    async def close(self) -> None:
        self._closed = True
        async with AsyncExitStack() as last_first:
            last_first.push_async_callback(self._db.close)
            if self._notifier is not None:
                last_first.push_async_callback(self._notifier.stop)
            await stop_all(self._running)


def _infos(dialect: str, clock: Clock) -> Op[Infos]:
    found: Infos = []
    for name, schema in (yield from open_inbox_store(dialect, InboxTables()).names()):
        store = open_inbox_store(dialect, InboxTables(name, schema))
        found.append((yield from store.info(clock.database_now())))
    return found
