"""The public face: Outbox and AsyncOutbox, twins over the same ops.

outbox = Outbox("postgresql://localhost/shop")
outbox.migrate()
with Session.begin() as session:
    session.add(order)
    outbox.write(session, Event("OrderPlaced", {"id": 7}, key="order-7"))

with outbox.deliver(listeners):
    ...
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from ..audit import Audit, Auditor
from ..clock import SYSTEM_CLOCK, Clock
from ..codec import JSON_CODEC, Codec
from ..contracts import Contracts
from ..drivers import check_shared, open_async, open_sync, wrap
from ..drivers.script import Async, Script, Sync, commit, look, slow, twin
from ..drivers.spi import AsyncHandle, AsyncRunner, DialectName, Handle, Runner
from ..durations import Duration, parse_duration
from ..engine.wakeups import Notifier, ThreadNotifier, notifier
from ..errors import Closed, ConfigError
from ..event import Event
from ..facts import Observer, Observers, Purged
from ..forks import renew_after_fork
from ..hooks import WriterHook
from ..listeners import Listeners, registry
from ..locking import made
from ..op import Op, arun, run
from ..operate import AsyncDeadLetters, AsyncEvents, AsyncKeys, DeadLetters, Desk, Events, Keys
from ..sealing import arun as aseal
from ..sealing import run as seal
from ..sealing import sealing
from ..service import AsyncService, Owner, Owning, Service, stop_all
from ..settings import Fair, OnExhausted, Settings, chosen
from ..store.grants import DatabaseRole, checked_role
from ..store.grants.ops import statements
from ..store.instances import Instance
from ..store.names import Tables
from ..store.outbox import OutboxStore, open_store
from ..store.schema import Migration
from ..store.topics import open_topic_store
from ..twins import AsyncClosing, Closing, told_by
from ..values import LIMITS, AuditEntry, Health, Limits, Progress, Status
from .caps import caps_of
from .delivery import OutboxDelivery, OutboxPurger
from .node import Node
from .purge import PurgePlan
from .resolve import PATIENCE, resolve
from .route import Routes, migrate, plan, verify
from .source import with_fair
from .transaction import AsyncTransaction, Transaction, async_transaction, transaction
from .write import HandOver, Writer, numbers_of

if TYPE_CHECKING:  # topics and feeds stand on the outbox; here are only the doors
    from ..feeds.feeds import AsyncFeeds, Feeds
    from ..store.topics.store import TopicStore
    from ..topics.context import TopicContext
    from ..topics.topics import AsyncTopics, Topics

R = TypeVar("R", Runner, AsyncRunner)


class _Shared(Owning):
    """What the twins have in common: names, store, settings, services, and how a purge is planned."""

    def __init__(
        self,
        target: Any,
        *,
        table: str = "outbox_event",
        schema: str | None = None,
        cdc: bool = False,
        contracts: Contracts | None = None,
        hooks: Sequence[WriterHook] = (),
        settings: Settings | None = None,
        observers: Sequence[Observer] = (),
        codec: Codec = JSON_CODEC,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """
        target     a URL; a SQLAlchemy engine; a pool of psycopg_pool or asyncpg; or a function that returns one
        table      the event table; the others are named after it
        cdc        change data capture reads the table: events are only written, and relaybox delivers none
        contracts  write() refuses events that do not keep theirs
        hooks      called around writes
        settings   how much, how often, how long; as the environment and the settings file say, if it is not given
        observers  told of what happens
        codec      reads payloads; a `Vault` also encrypts them
        """
        if contracts is not None and not isinstance(contracts, Contracts):
            raise ConfigError(f"expected contracts to be a Contracts registry, got {type(contracts).__name__}")
        self._target = target
        self._contracts = contracts
        self._hooks = tuple(hooks)
        self.settings = chosen(settings, Settings.load)
        self._clock = clock
        self._observers = Observers(observers)
        self._tables = Tables(table, schema)
        self._codec = codec
        self._cdc = cdc
        self.store: OutboxStore
        self._writer: Writer
        self._notifier: Notifier | ThreadNotifier | None = None
        self._node: Node | None = None
        self._running: list[Any] = []  # its services
        self._closed = False
        self._routing: Routes | None = None
        self._open(target)

    def _open(self, target: Any) -> None:
        raise NotImplementedError

    def after_fork(self) -> None:
        """Threads and tasks stay with the parent, which goes on delivering. What is written here is not claimed under
        the parent's name: nobody would hand it over."""
        self.__dict__.pop("topics", None)
        self._forked()
        self._node = None
        self._writer = self._make_writer()

    # -- services -----------------------------------------------------------------------------------

    def _delivery(
        self,
        owner: Owner | None,
        listeners: Listeners | Callable[..., object],
        ordered: bool,
        on_exhausted: OnExhausted | None,
        alone: bool,
        fair: Fair | None,
    ) -> OutboxDelivery:
        self._check_open()
        self._check_deliverable()
        if ordered and alone:
            raise ConfigError("expected ordered or alone, got both: shards are taken over when their leases have ended")
        found = registry(listeners)
        return OutboxDelivery(self, owner, found, ordered=ordered, on_exhausted=on_exhausted, alone=alone, fair=fair)

    def _check_deliverable(self) -> None:
        """For services that have connections of their own."""
        if self._cdc:
            raise ConfigError("change data capture delivers the events of this outbox: make another without cdc=True")
        check_shared(self._target)

    def _connect(self, closing: AsyncExitStack) -> AsyncRunner:
        """Connections for a service, in the loop that runs."""
        raise NotImplementedError

    def _hand_over_to(self, node: Node | None) -> None:
        """What is committed in this process from now on."""
        if node is not None and self._node is not None:
            raise ConfigError(
                "this outbox delivers already; give deliver() all listeners at once, or make another Outbox"
            )
        self._node = node
        self._writer = self._make_writer()

    def _connected(self, dialect: DialectName, notifier: Callable[[], Notifier | ThreadNotifier]) -> None:
        self.store = open_store(dialect, self._tables, self._codec)
        self._caps = caps_of(self.settings, self._clock, self._observers, cdc=self._cdc)
        if self.store.capabilities.listen and self.settings.delivery.notify:
            self._notifier = notifier()
        self._writer = self._make_writer()
        renew_after_fork(self)

    def _make_writer(self) -> Writer:
        notifier = None if self._cdc else self._notifier
        node = self._node
        committed: Callable[[HandOver], None] | None = None
        unseen: Callable[[], None] | None = None
        if node is not None:
            committed, unseen = node.committed, node.unseen
        elif notifier is not None:
            committed, unseen = (lambda _: notifier.soon()), notifier.later
        return Writer(
            store=self.store,
            clock=self._clock,
            observers=self._observers,
            hooks=self._hooks,
            contracts=self._contracts,
            claim=(lambda: None) if node is None else node.claim,  # who does not deliver claims nothing
            committed=committed,
            unseen=unseen,
            plain=self._cdc,
            called=self.settings.outbox.write_function,
            routes=self._routes if self.store.dialect == "postgres" else None,
            notifier=notifier,
            caps=self._caps,
            sealing=sealing(self._codec),
        )

    def _wake(self) -> None:
        if self._node is not None:
            self._node.unseen()
        elif self._notifier is not None:
            self._notifier.soon()

    @cached_property
    def topic_store(self) -> TopicStore | None:
        """None: this database keeps no topics."""
        return open_topic_store("postgres", self._tables) if self.store.dialect == "postgres" else None

    def _routes(self) -> Routes:
        if self._routing is None:
            assert self.topic_store is not None
            self._routing = Routes(self.topic_store, self.settings.outbox.unknown_topics)
        return self._routing

    def _context_of(self, db: R, services: R) -> TopicContext[R]:
        from ..topics.context import TopicContext

        store = self.topic_store or open_topic_store(self.store.dialect, self._tables)  # which says what is needed
        shared = (store, self.settings, self._clock, self._observers, self._codec, self._wake)
        return TopicContext(self._target, db, *shared, services=services)

    def _feed_context(self, db: R, services: R) -> TopicContext[R]:
        context = self._context_of(db, services)
        self._routes()  # readers of topics are to be woken, too
        return context

    def _notification(self) -> Op[bool]:
        now = self._clock.database_now()
        return self.store.notify(now) if self._routing is None else self._routing.notify(self.store, now)

    def _stored(self, event_ids: Sequence[str]) -> Op[dict[str, bool]]:
        found = yield from self.store.stored(event_ids)
        missing = [event_id for event_id in event_ids if event_id not in found]
        if missing and self.topic_store is not None:
            found |= yield from self._routes().stored(missing)
        return {event_id: event_id in found for event_id in event_ids}

    # -- schema ---------------------------------------------------------------------------------------

    @slow
    def migrate(self, *, dry_run: bool = False, fair: Fair | None = None) -> Script[list[Migration]]:
        """Create or upgrade the tables, and say by which migrations. Safe to call from many processes at once, and
        again. `dry_run`: only say it. `fair="tenant"`: also the indexes that fair claims need, from this outbox and the
        queues there are; as the settings say, if it is not given."""
        wanted = with_fair(self.settings, fair, ordered=False).delivery.fair == "tenant" or self._caps is not None
        if dry_run:
            return look(plan(self.store, self.topic_store, wanted))
        return made(self.store, migrate(self.store, self.topic_store, wanted))

    @twin
    def verify(self) -> Script[None]:
        """Raise SchemaMissing, SchemaTooNew or SchemaDrift unless the tables fit this release."""
        return look(
            verify(self.store, self.topic_store, self._caps is not None or self.settings.delivery.fair == "tenant")
        )

    # -- operate --------------------------------------------------------------------------------------

    @property
    def _auditor(self) -> Auditor:
        return Auditor(self.store, self.settings, self._observers, self._clock)

    def _desk(self, db: Runner | AsyncRunner) -> Desk:
        return Desk(db, self.store, self._auditor, self._observers, self._wake)

    @twin
    def resolve(self, event_ids: Sequence[str], *, patience: Duration = PATIENCE) -> Script[dict[str, bool]]:
        """After CommitUnknown: which of these events are stored. A transaction that may yet store them is waited for;
        StillCommitting if it has not ended within `patience`."""
        return resolve(self.store, self._stored, event_ids, patience, self._clock)

    @twin
    def status(self) -> Script[Status]:
        """How many events wait, are claimed, are tried again and are dead, and how old the oldest is."""
        return look(self.store.status(self._clock.database_now()))

    @twin
    def health(self, limits: Limits = LIMITS) -> Script[Health]:
        """Whether somebody should look: much waits, waits for long or is dead, or nobody delivers what waits."""
        return look(self._health(limits))

    def _health(self, limits: Limits) -> Op[Health]:
        now = self._clock.database_now()
        found = yield from self.store.status(now)
        alive = yield from self.store.instances(now)
        return limits.judge(found.due + found.claimed, found.dead, found.oldest_due, len(alive))

    @twin
    def instances(self) -> Script[list[Instance]]:
        """The processes that deliver the events of this outbox, by their heartbeats."""
        return look(self.store.instances(self._clock.database_now()))

    @twin
    def purge(
        self,
        *,
        done: Duration | None = "7d",
        dead: Duration | None = None,
        dry_run: bool = False,
        progress: Callable[[Progress], object] | None = None,
        **audit: Unpack[Audit],
    ) -> Script[int]:
        """Delete finished events that are older than `done`, and dead letters that died longer ago than `dead`; None
        leaves them. Returns how many, or with `dry_run` how many it would be."""
        plan = PurgePlan(
            self.store,
            self._clock.database_now(),
            retention=_age("done", done),
            dead_retention=_age("dead", dead),
            batch_size=self.settings.outbox.purge_batch,
            by_age=self._cdc,
        )
        if dry_run:
            return (yield from look(plan.count()))
        change = self._auditor.begin("purge", "events", audit)
        yield from plan.run(change.commit, lambda gone: progress and progress(Progress(gone, None, "purge")))
        yield from commit(self._auditor.purge())
        change.tell()
        if change.changed:
            self._observers(Purged(change.changed))
        return change.changed or 0

    @twin
    def grants(self, role: DatabaseRole, *, to: str) -> Script[list[str]]:
        """The statements that give a role of the database what it needs of this outbox and its topics to be a writer,
        worker, relay, maintainer, operator, reader, dashboard or tenant. Nothing is changed: the owner of the tables
        runs them."""
        return look(statements("outbox", self.store, self.topic_store, checked_role(role), to))

    @twin
    def audit(self, *, limit: int = 100, before: int | None = None) -> Script[list[AuditEntry]]:
        """What operators changed here, the newest first. Page on with `before=entries[-1].id`."""
        return look(self._auditor.entries(limit, before))

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("this outbox is closed; make a new one")


def _age(name: str, given: Duration | None) -> timedelta | None:
    age = None if given is None else parse_duration(given, name)
    if age is not None and age < timedelta(0):
        raise ConfigError(f"expected {name} to be a duration of at least zero, got {given!r}")
    return age


class Outbox(_Shared, Sync, Closing):
    """Stores events in the transaction of your own rows, delivers them after the commit, and shows what became of
    them. For synchronous programs, safe to use from many threads; its services work in threads of their own."""

    _notifier: ThreadNotifier | None

    def _open(self, target: Any) -> None:
        self._db = open_sync(target, callers=True).within(self.settings.delivery.batch_seconds)
        self._services: Runner = open_sync(target, timeout=self.settings.delivery.statement_seconds)
        self._connected(self._db.dialect, lambda: notifier(self._notify, here=self._db.here))
        desk = self._desk(self._db)
        self.dead, self.events, self.keys = DeadLetters(desk), Events(desk), Keys(desk)

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def close(self) -> None:
        """Stops its services, then closes its connections. Safe to repeat."""
        if self._closed:
            return
        with ExitStack() as last_first:  # all of it, also when one fails or somebody is impatient
            last_first.callback(self._db.close)
            last_first.callback(self._services.close)
            if self._notifier is not None:
                last_first.callback(self._notifier.stop)
            self._closed = True
            self._stop_services(last_first)

    def deliver(
        self,
        listeners: Listeners | Callable[..., object],
        *,
        ordered: bool = False,
        on_exhausted: OnExhausted | None = None,
        alone: bool = False,
        fair: Fair | None = None,
    ) -> Service:
        """The service that delivers the events of this outbox, to listeners or to one function that takes all.

        ordered       the events of a key one after the other, retries included, over all processes
        on_exhausted  what becomes of the key of an event that has failed too often, if `ordered`: "block" goes on
                      trying, "park" holds the key until the dead letter is replayed or released, "skip" goes on with
                      the next; as the settings say, if it is not given
        alone         no other process delivers: take over at once what an earlier run of this program held. Not with
                      `ordered`
        fair          "tenant": claims go round the tenants, so that one with much waiting delays the others' next event
                      by a round at most; needs `migrate(fair="tenant")`, and not `ordered`. "off", or as the settings
                      say
        """
        return Service(self._delivery(None, listeners, ordered, on_exhausted, alone, fair), self)

    def purger(self) -> Service:
        """The service that deletes what is older than the settings say: for an outbox that no process delivers."""
        return Service(OutboxPurger(self, None, by_age=self._cdc), self)

    def _connect(self, closing: AsyncExitStack) -> AsyncRunner:
        db = open_async(self._target, timeout=self.settings.delivery.statement_seconds)
        closing.push_async_callback(db.close)
        return db

    def _topic_context(self, closing: AsyncExitStack) -> TopicContext[AsyncRunner]:
        db = self._connect(closing)
        context = self._context_of(db, db)
        closing.push_async_callback(context.close)
        return context

    # -- write ----------------------------------------------------------------------------------------

    def write(self, handle: Handle, event: Event) -> int | None:
        """Stores the event in the handle's transaction. Returns its number; None: a hook dropped it."""
        return self.write_all(handle, (event,))[0]

    def write_all(self, handle: Handle, events: Sequence[Event]) -> list[int | None]:
        """As `write`, for many events: in list order and one round trip, with topics one for each of them."""
        self._check_open()
        self._tell_of_fork()
        writer = self._writer
        connection = writer.connection(handle)
        if connection.is_async:
            raise ConfigError(f"{type(handle).__qualname__} is an async handle; use AsyncOutbox")
        ticket = writer.prepare(events, connection)
        if ticket is None:
            return [None] * len(events)
        if writer.caps is not None:
            ticket = run(writer.capped(ticket), connection)
        if writer.sealing is not None:
            ticket = ticket._replace(events=seal(writer.sealing.seal(ticket.events), connection))
        seqs = run(writer.op(ticket, connection), connection)
        ids = writer.finish(ticket, seqs, connection)
        if isinstance(connection, Transaction):
            connection.event_ids += ids
        return numbers_of(events, ids, seqs)

    @contextmanager
    def transaction(self, handle: Handle | None = None) -> Iterator[Transaction]:
        """A transaction that begins here and commits at the end of the block, on the given connection or on a new one.
        Its events are handed over at once, also where the client library cannot tell of a commit."""
        self._check_open()
        if handle is None:
            with self._db.connection() as connection, transaction(connection) as tx:
                yield tx
        else:
            wrapped = wrap(handle)
            if wrapped.is_async:
                raise ConfigError(f"{type(handle).__qualname__} is an async handle; use AsyncOutbox")
            with transaction(wrapped) as tx:
                yield tx

    @cached_property
    def topics(self) -> Topics:
        """Topics, their groups and consumers. PostgreSQL only."""
        from ..topics.topics import Topics

        return Topics(self._context_of(self._db, self._services), self, self.write)

    @cached_property
    def feeds(self) -> Feeds:
        """Results of queries kept as tables, and their changes as events. PostgreSQL only."""
        from ..feeds.feeds import Feeds

        return Feeds(self._feed_context(self._db, self._services), lambda: self._writer)

    def _notify(self) -> bool:
        return self._services.run(self._notification(), tx=False)


@told_by(Outbox)
class AsyncOutbox(_Shared, Async, AsyncClosing):
    """Writes, delivers and operates from asyncio programs: as `Outbox`. Its services work in the loop that starts
    them."""

    _notifier: Notifier | None

    def _open(self, target: Any) -> None:
        self._db = open_async(target, callers=True).within(self.settings.delivery.batch_seconds)
        # Connections of their own: the program's transactions must not keep heartbeats, renewals and settles waiting.
        self._services: AsyncRunner = open_async(target, timeout=self.settings.delivery.statement_seconds)
        self._connected(self._db.dialect, lambda: Notifier(self._notify))
        desk = self._desk(self._db)
        self.dead, self.events, self.keys = AsyncDeadLetters(desk), AsyncEvents(desk), AsyncKeys(desk)

    async def __aenter__(self) -> Self:
        self._check_open()
        return self

    async def close(self) -> None:
        """Stops its services, then closes its connections. Safe to repeat."""
        if self._closed:
            return
        self._closed = True
        async with AsyncExitStack() as last_first:  # all of it, also when one fails or somebody is impatient
            last_first.push_async_callback(self._db.close)
            last_first.push_async_callback(self._services.close)
            if self._notifier is not None:
                last_first.push_async_callback(self._notifier.stop)
            if "topics" in self.__dict__:  # somebody asked for them
                last_first.push_async_callback(self.topics._context.close)
            await stop_all(self._running)

    def deliver(
        self,
        listeners: Listeners | Callable[..., object],
        *,
        ordered: bool = False,
        on_exhausted: OnExhausted | None = None,
        alone: bool = False,
        fair: Fair | None = None,
    ) -> AsyncService:
        return self._delivery(self, listeners, ordered, on_exhausted, alone, fair)

    def purger(self) -> AsyncService:
        return OutboxPurger(self, self, by_age=self._cdc)

    def _connect(self, closing: AsyncExitStack) -> AsyncRunner:
        return self._services

    def _topic_context(self, closing: AsyncExitStack) -> TopicContext[AsyncRunner]:
        return self.topics._context

    async def write(self, handle: AsyncHandle, event: Event) -> int | None:
        return (await self.write_all(handle, (event,)))[0]

    async def write_all(self, handle: AsyncHandle, events: Sequence[Event]) -> list[int | None]:
        self._check_open()
        self._tell_of_fork()
        writer = self._writer
        connection = writer.connection(handle)
        if not connection.is_async and self.store.dialect != "sqlite":  # a file answers without a network
            raise ConfigError(
                f"{type(handle).__qualname__} is a synchronous handle, which would block the event loop; use Outbox"
            )
        ticket = writer.prepare(events, connection)
        if ticket is None:
            return [None] * len(events)
        if writer.caps is not None:
            capped = writer.capped(ticket)
            ticket = await arun(capped, connection) if connection.is_async else run(capped, connection)
        if writer.sealing is not None:
            steps = writer.sealing.seal(ticket.events)
            events = await aseal(steps, connection) if connection.is_async else seal(steps, connection)
            ticket = ticket._replace(events=events)
        op = writer.op(ticket, connection)
        seqs = await arun(op, connection) if connection.is_async else run(op, connection)
        ids = writer.finish(ticket, seqs, connection)
        if isinstance(connection, (Transaction, AsyncTransaction)):
            connection.event_ids += ids
        return numbers_of(events, ids, seqs)

    @asynccontextmanager
    async def transaction(self, handle: AsyncHandle | None = None) -> AsyncIterator[AsyncTransaction]:
        self._check_open()
        if handle is None:
            async with self._db.connection() as connection, async_transaction(connection) as tx:
                yield tx
        else:
            wrapped = wrap(handle)
            if not wrapped.is_async:
                raise ConfigError(f"{type(handle).__qualname__} is a synchronous handle; use Outbox")
            async with async_transaction(wrapped) as tx:
                yield tx

    @cached_property
    def topics(self) -> AsyncTopics:
        from ..topics.topics import AsyncTopics

        return AsyncTopics(self._context_of(self._db, self._services), self, self.write)

    @cached_property
    def feeds(self) -> AsyncFeeds:
        from ..feeds.feeds import AsyncFeeds

        return AsyncFeeds(self._feed_context(self._db, self._services), lambda: self._writer)

    async def _notify(self) -> bool:
        return await self._services.run(self._notification(), tx=False)


__all__ = ["AsyncOutbox", "Outbox"]
