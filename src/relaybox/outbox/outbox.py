"""The public face: Outbox and AsyncOutbox, twins over the same ops.

    outbox = Outbox("postgresql://localhost/shop")
    outbox.migrate()
    with Session.begin() as session:
        session.add(order)
        outbox.write(session, Event("OrderPlaced", {"id": 7}, key="order-7"))

`single_node`, `multi_node`, `ordered` and `writer_only` give the same object with delivery running inside
its `with` block.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, cast

from ..clock import SYSTEM_CLOCK
from ..codec import JSON_CODEC
from ..contracts import Contracts
from ..drivers import open_async, open_sync, parse, wrap
from ..drivers.script import Async, Script, Sync, commit, look, slow, twin
from ..drivers.spi import AsyncRunner, Dialect, Runner
from ..engine.threads import ListenerThreads
from ..engine.wakeups import Notifier, ThreadNotifier
from ..errors import ConfigError, ServiceClosed
from ..event import Event
from ..facts import Observers, Purged
from ..forks import renew_after_fork
from ..op import Op, arun, run
from ..settings import Settings
from ..store.instances import Instance
from ..store.names import Tables
from ..store.outbox import OutboxStore, open_store
from ..store.outbox.values import BlockedKey, Status
from ..store.schema import Migration
from ..store.topics import open_topic_store
from ..tasks import LoopThread
from .dead import AsyncDeadLetters, DeadLetters, Progress
from .deliver import Dispatch, Interceptor
from .listeners import Registry
from .node import Node, Role
from .options import NodeOptions, Options
from .purge import PurgePlan, PurgeService
from .resolve import PATIENCE, resolve
from .route import Routes, migrate, plan, verify
from .transaction import AsyncManualTransaction, ManualTransaction, async_transaction, transaction
from .write import HandOver, Writer

if TYPE_CHECKING:  # topics stand on the outbox; here is only the door to them
    from ..store.topics.store import TopicStore
    from ..topics.home import Home
    from ..topics.topics import AsyncTopics, Topics

log = logging.getLogger("relaybox")
R = TypeVar("R", Runner, AsyncRunner)


class _Shared:
    """What the twins have in common: names, store, settings, and how a purge is planned."""

    def __init__(self, target: Any, **options: Unpack[Options]) -> None:
        for name in sorted(set(options) - set(Options.__annotations__)):
            if name in NodeOptions.__annotations__:
                raise ConfigError(f"{name} is for delivery; give it to single_node, multi_node or ordered")
            raise ConfigError(f"unknown option {name!r}; expected {', '.join(NodeOptions.__annotations__)}")
        contracts = options.get("contracts")
        if contracts is not None and not isinstance(contracts, Contracts):
            raise ConfigError(f"expected contracts to be a Contracts registry, got {type(contracts).__name__}")
        self._target = target
        self._options = options
        self.settings = options.get("settings") or Settings.load()
        self._clock = options.get("clock") or SYSTEM_CLOCK
        self._observers = Observers(options.get("observers") or ())
        self._tables = Tables(options.get("table") or "outbox_event", options.get("schema"))
        self.store: OutboxStore
        self._writer: Writer
        self._notifier: Notifier | ThreadNotifier | None = None
        self._node: Node | None = None
        self._role: Role | None = None
        self._listeners: Registry | None = None
        self._interceptors: Sequence[Interceptor] = ()
        self._threads = ListenerThreads(self.settings.delivery.workers, self._observers)
        self._purger: PurgeService | None = None
        self._plain = False
        self._closed = False
        self._orphaned = False  # forked off a process that delivers, and not told yet
        self._codec = options.get("codec") or JSON_CODEC
        self._routing: Routes | None = None

    def after_fork(self) -> None:
        """Threads and tasks stay with the parent, which goes on delivering. What is written here is not claimed under
        the parent's name: nobody would hand it over."""
        self.__dict__.pop("topics", None)
        self._orphaned, self._node, self._purger = self._node is not None, None, None
        self._writer = self._make_writer()

    # -- composites ---------------------------------------------------------------------------------

    @classmethod
    def single_node(cls, target: Any, listeners: Registry, **options: Unpack[NodeOptions]) -> Self:
        """One delivering process: takes over everything when it starts."""
        return cls._composite("single", target, listeners, options)

    @classmethod
    def multi_node(cls, target: Any, listeners: Registry, **options: Unpack[NodeOptions]) -> Self:
        """Many delivering processes share the work."""
        return cls._composite("multi", target, listeners, options)

    @classmethod
    def ordered(cls, target: Any, listeners: Registry, **options: Unpack[NodeOptions]) -> Self:
        """Many delivering processes; the events of a key strictly one after the other, retries included."""
        return cls._composite("ordered", target, listeners, options)

    @classmethod
    def writer_only(cls, target: Any, **options: Unpack[Options]) -> Self:
        """No delivery by relaybox (change data capture reads the table); purged by age if outbox.retention is set."""
        box = cls(target, **options)
        box._plain = True
        box._writer = box._make_writer()
        return box

    @classmethod
    def _composite(cls, role: Role, target: Any, listeners: Registry, options: NodeOptions) -> Self:
        given = {name: value for name, value in options.items() if name != "interceptors"}
        box = cls(target, **cast(Options, given))
        box._run_as(role, listeners)
        box._interceptors = options.get("interceptors") or ()
        return box

    @property
    def role(self) -> str | None:
        """The composite this is, by its method's name; None when it only writes and operates."""
        if self._plain:
            return "writer_only"
        return {"single": "single_node", "multi": "multi_node", "ordered": "ordered"}.get(self._role or "")

    def _connected(self, dialect: Dialect, notifier: Callable[[], Notifier | ThreadNotifier]) -> None:
        self.store = open_store(dialect, self._tables, self._codec)
        if self.store.capabilities.listen and self.settings.delivery.notify:
            self._notifier = notifier()
        self._writer = self._make_writer()
        renew_after_fork(self)

    def _run_as(self, role: Role, listeners: Registry) -> None:
        if not hasattr(listeners, "find"):
            raise ConfigError(f"expected listeners to be a Listeners registry, got {type(listeners).__name__}")
        if isinstance(self._target, str) and parse(self._target).in_memory:
            raise ConfigError(
                "an in-memory SQLite database belongs to one connection, so nobody else could write to it; "
                "use a file such as sqlite:///outbox.db"
            )
        self._role, self._listeners = role, listeners

    # -- delivery -----------------------------------------------------------------------------------

    @property
    def _works(self) -> bool:
        """Whether something runs inside its `with` block."""
        return self._role is not None or (self._plain and bool(self.settings.outbox.retention))

    async def _begin(self, db: AsyncRunner) -> None:
        if self._role is None:
            patient = db.within(self.settings.delivery.batch_seconds)
            self._purger = PurgeService(patient, self.store, self.settings, self._observers, self._clock, by_age=True)
            self._purger.start()
            return
        assert self._listeners is not None
        node = Node(
            self._role,
            db,
            self.store,
            Dispatch(self._listeners, self._interceptors, self._threads),
            self.settings,
            observers=self._observers,
            clock=self._clock,
        )
        await node.start()
        self._node = node
        self._writer = self._make_writer()

    def _end(self, last_first: AsyncExitStack) -> None:
        if self._node is not None:
            last_first.callback(self._threads.close)
            last_first.push_async_callback(self._node.stop)
        if self._purger is not None:
            last_first.push_async_callback(self._purger.stop)

    def _make_writer(self) -> Writer:
        notifier = None if self._plain else self._notifier
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
            hook=self._options.get("hook"),
            contracts=self._options.get("contracts"),
            claim=(lambda: None) if node is None else node.claim,  # who does not deliver claims nothing
            committed=committed,
            unseen=unseen,
            plain=self._plain,
            routes=self._routes if self.store.dialect == "postgres" else None,
            notifier=notifier,
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
            self._routing = Routes(self.topic_store)
        return self._routing

    def _home(self, db: R, services: R) -> Home[R]:
        from ..topics.home import Home

        store = self.topic_store or open_topic_store(self.store.dialect, self._tables)  # which says what is needed
        shared = (store, self.settings, self._clock, self._observers, self._codec, self._wake)
        return Home(self._target, db, *shared, services=services)

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
    def migrate(self) -> Script[list[Migration]]:
        """Create or upgrade the tables. Safe to call from many processes at once, and again."""
        return commit(migrate(self.store, self.topic_store))

    @twin
    def plan(self) -> Script[list[Migration]]:
        """What migrate() would apply."""
        return look(plan(self.store, self.topic_store))

    @twin
    def verify(self) -> Script[None]:
        """Raise SchemaMissing, SchemaTooNew or SchemaDrift unless the tables fit this release."""
        return look(verify(self.store, self.topic_store))

    # -- operate --------------------------------------------------------------------------------------

    @twin
    def resolve(self, event_ids: Sequence[str], *, patience: timedelta = PATIENCE) -> Script[dict[str, bool]]:
        """After CommitUnknown: which of these events are stored. A transaction that may yet store them is waited for;
        StillCommitting if it has not ended within `patience`."""
        return resolve(self.store, self._stored, event_ids, patience, self._clock)

    @twin
    def status(self) -> Script[Status]:
        return look(self.store.status(self._clock.database_now()))

    @twin
    def instances(self) -> Script[list[Instance]]:
        return look(self.store.instances(self._clock.database_now()))

    @twin
    def blocked_keys(self, limit: int = 100) -> Script[list[BlockedKey]]:
        return look(self.store.blocked(limit))

    @twin
    def unblock(self, key: str) -> Script[bool]:
        """Let an ordered key go on without its failed head."""
        unblocked = yield from commit(self.store.unblock(key))
        self._wake()
        return unblocked

    @twin
    def purge(
        self,
        *,
        older_than: timedelta | None = timedelta(days=7),
        dead_older_than: timedelta | None = None,
        progress: Progress | None = None,
    ) -> Script[int]:
        """Delete finished events older than this, and dead letters only when asked. Returns how many."""
        for name, value in (("older_than", older_than), ("dead_older_than", dead_older_than)):
            if value is not None and value < timedelta(0):
                raise ConfigError(f"expected {name} to be a duration of at least zero, got {value}")
        plan = PurgePlan(
            self.store,
            self._clock.database_now(),
            retention=older_than,
            dead_retention=dead_older_than,
            batch_size=self.settings.outbox.purge_batch,
            by_age=self._plain,
        )
        total = yield from plan.run(progress)
        if total:
            self._observers(Purged(total))
        return total

    def _check_open(self) -> None:
        if self._closed:
            raise ServiceClosed("this outbox is closed; make a new one")
        if self._orphaned:
            self._orphaned = False
            log.warning(
                "this process was forked after delivery had started: it delivers nothing itself, and what it writes "
                "waits for the processes that do. Start delivery after the fork"
            )


class Outbox(_Shared, Sync):
    """For synchronous programs. Delivery, when asked for, runs in a thread of its own."""

    _notifier: ThreadNotifier | None

    def __init__(self, target: Any, **options: Unpack[Options]) -> None:
        super().__init__(target, **options)
        self._db = open_sync(target).within(self.settings.delivery.batch_seconds)
        self._services: Runner = open_sync(target, timeout=self.settings.delivery.statement_seconds)
        self._thread: LoopThread | None = None
        self._background: AsyncRunner | None = None
        self._connected(self._db.dialect, lambda: ThreadNotifier(self._notify))
        self.dead = DeadLetters(self._db, self.store, self._clock, self._observers, self._wake)

    def after_fork(self) -> None:
        super().after_fork()
        self._thread = self._background = None

    def __enter__(self) -> Self:
        self._check_open()
        if self._options.get("migrate"):
            self.migrate()
        if self._works:
            self._thread = LoopThread()
            try:
                self._thread.call(self._start())
            except BaseException:
                self.close()
                raise
        return self

    async def _start(self) -> None:
        self._background = open_async(self._target, timeout=self.settings.delivery.statement_seconds)
        await self._begin(self._background)

    async def _stop(self) -> None:
        async with AsyncExitStack() as last_first:
            if self._background is not None:
                last_first.push_async_callback(self._background.close)
            self._end(last_first)

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop purge, poller and workers (draining), then close our connections. Safe to repeat."""
        if self._closed:
            return
        self._closed = True
        with ExitStack() as last_first:  # all of it, also when one fails or somebody is impatient
            last_first.callback(self._db.close)
            last_first.callback(self._services.close)
            if self._notifier is not None:
                last_first.callback(self._notifier.stop)
            if self._thread is not None:
                last_first.callback(self._thread.stop)
                self._thread.call(self._stop())

    # -- write ----------------------------------------------------------------------------------------

    def write(self, handle: Any, event: Event) -> str | None:
        """Store the event in the handle's transaction. Returns its id, or None when a hook suppressed it."""
        ids = self.write_all(handle, (event,))
        return ids[0] if ids else None

    def write_all(self, handle: Any, events: Sequence[Event]) -> list[str]:
        """The same for many, in list order and one round trip; with topics one for each of them."""
        return self._write(handle, events)[0]

    def _write(self, handle: Any, events: Sequence[Event]) -> tuple[list[str], Sequence[int]]:
        self._check_open()
        writer = self._writer
        connection = writer.connection(handle)
        if connection.is_async:
            raise ConfigError(f"{type(handle).__qualname__} is an async handle; use AsyncOutbox")
        ticket = writer.prepare(events, connection)
        if ticket is None:
            return [], ()
        seqs = run(writer.op(ticket, connection), connection)
        ids = writer.finish(ticket, seqs, connection)
        if isinstance(connection, ManualTransaction):
            connection.event_ids += ids
        return ids, seqs

    @contextmanager
    def transaction(self, handle: Any = None) -> Iterator[ManualTransaction]:
        """Begin and commit here: on the given connection, or on one of ours."""
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

        return Topics(self._home(self._db, self._services), self._write)

    def _notify(self) -> bool:
        return self._services.run(self._notification(), tx=False)


class AsyncOutbox(_Shared, Async):
    """For asyncio programs. Delivery runs in the same loop."""

    _notifier: Notifier | None

    def __init__(self, target: Any, **options: Unpack[Options]) -> None:
        super().__init__(target, **options)
        self._db = open_async(target).within(self.settings.delivery.batch_seconds)
        # Connections of their own: the program's transactions must not keep heartbeats, renewals and settles waiting.
        self._services: AsyncRunner = open_async(target, timeout=self.settings.delivery.statement_seconds)
        self._connected(self._db.dialect, lambda: Notifier(self._notify))
        self.dead = AsyncDeadLetters(self._db, self.store, self._clock, self._observers, self._wake)

    async def __aenter__(self) -> Self:
        self._check_open()
        try:
            if self._options.get("migrate"):
                await self.migrate()
            if self._works:
                await self._begin(self._services)
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._node is not None:
            self._node.halt()
        async with AsyncExitStack() as last_first:  # all of it, also when one fails or somebody is impatient
            last_first.push_async_callback(self._db.close)
            last_first.push_async_callback(self._services.close)
            if self._notifier is not None:
                last_first.push_async_callback(self._notifier.stop)
            self._end(last_first)
            if "topics" in self.__dict__:  # somebody asked for them
                await self.topics.close()

    async def write(self, handle: Any, event: Event) -> str | None:
        ids = await self.write_all(handle, (event,))
        return ids[0] if ids else None

    async def write_all(self, handle: Any, events: Sequence[Event]) -> list[str]:
        return (await self._write(handle, events))[0]

    async def _write(self, handle: Any, events: Sequence[Event]) -> tuple[list[str], Sequence[int]]:
        self._check_open()
        writer = self._writer
        connection = writer.connection(handle)
        ticket = writer.prepare(events, connection)
        if ticket is None:
            return [], ()
        op = writer.op(ticket, connection)
        seqs = await arun(op, connection) if connection.is_async else run(op, connection)
        ids = writer.finish(ticket, seqs, connection)
        if isinstance(connection, (ManualTransaction, AsyncManualTransaction)):
            connection.event_ids += ids
        return ids, seqs

    @asynccontextmanager
    async def transaction(self, handle: Any = None) -> AsyncIterator[AsyncManualTransaction]:
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

        return AsyncTopics(self._home(self._db, self._services), self._write)

    async def _notify(self) -> bool:
        return await self._services.run(self._notification(), tx=False)


__all__ = ["AsyncOutbox", "NodeOptions", "Options", "Outbox"]
