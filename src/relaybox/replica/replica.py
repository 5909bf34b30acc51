"""`Replica`: a table of another database that has the rows of a feed, as twins.

    replica = Replica("mysql://crm/db", "totals", feed="totals", source=Outbox("postgresql://reader@shop/db"))
    replica.migrate()
    replica.follow().run()                           straight from the other database
    group.deliver(lambda event: replica.apply(None, event))      from a group of the feed's topic
    inbox.process(lambda event, tx: replica.apply(tx, event))    from a broker, by way of an inbox

Whatever the way, every delta is applied once: the place of the table is in the transaction of its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ..clock import SYSTEM_CLOCK, Clock
from ..drivers import open_async, open_sync, parse, wrap
from ..drivers.spi import AsyncHandle, Connection, Handle
from ..errors import Closed, ConfigError, FeedError, NoTransaction, StoreError
from ..event import Event
from ..facts import Observer, Observers, Replicated
from ..feed import ColumnNames
from ..forks import renew_after_fork
from ..op import Op
from ..outbox import AsyncOutbox, Outbox
from ..service import AsyncService, Owning, Service, stop_all
from ..settings import Settings, chosen
from ..store.feeds.reading import FeedReading
from ..store.names import identifier
from ..store.replica import Position, open_replica_store
from ..store.replica.kept import KeptTable
from ..store.replica.mapping import read_type
from ..store.schema import Migration
from ..twins import AsyncClosing, Closing, told_by
from .apply import Applied, Applying, check_same
from .follow import Following
from .message import FeedMessage, micros
from .moves import Moves, T, aplay, lender, play, there, transact

CLOCKS_DIFFER = 3_600_000_000  # microseconds, at most, between that of a source and ours


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """How far a replicated table is."""

    table: str
    feed: str
    epoch: str | None  # None: it has nothing of the feed yet
    n: int  # every delta up to this one is in the table
    applied_at: datetime | None
    source_epoch: str | None  # None: the replica has no source
    source_n: int | None
    by_rows: bool  # messages of single rows go beyond n

    @property
    def behind(self) -> int | None:
        """Deltas that are not in the table. None: nobody knows, without a source, or of another epoch."""
        if self.source_n is None or self.source_epoch != self.epoch or self.by_rows:
            return None
        return max(0, self.source_n - self.n)


class _Shared(Owning):
    """What the twins have in common: what is decided."""

    def __init__(
        self,
        target: Any,
        table: str,
        *,
        feed: str,
        source: Outbox | AsyncOutbox | None = None,
        key: ColumnNames | None = None,
        columns: Mapping[str, str] | None = None,
        schema: str | None = None,
        settings: Settings | None = None,
        observers: Sequence[Observer] = (),
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """
        target     the database of the table: a URL, an engine or a pool of a library that relaybox knows
        table      made by migrate(), or there already
        feed       which feed it follows
        source     the outbox that has the feed: for gaps, for large deltas and to follow. The replica has
                   connections of its own
        key        of the feed, where there is no source
        columns    of the feed, and their types on PostgreSQL, where there is no source. Without either the table must
                   be there, and its columns are the feed's
        schema     of the table, and of the place of it
        settings   how much, how often, how long; as the environment and the settings file say, if it is not given
        observers  told of what happens
        """
        if source is not None and not isinstance(source, (Outbox, AsyncOutbox)):
            raise ConfigError(
                f"expected source to be the Outbox that has the feed, such as Outbox(url), got {type(source).__name__}"
            )
        if columns is not None and (not isinstance(columns, Mapping) or not columns):
            raise ConfigError(f"expected columns to be names and their types, got {columns!r}")
        for name, type_ in (columns or {}).items():
            read_type(name, type_)
        if isinstance(target, str) and parse(target).in_memory:
            raise ConfigError("an in-memory SQLite database belongs to one connection; use a file")
        self.settings = chosen(settings, Settings.load)
        self.table = identifier("table name", table)
        self.feed = feed
        self._target = target
        self._source = source
        self._key = (key,) if isinstance(key, str) else None if key is None else tuple(key)
        self._types = dict(columns or {})
        self._schema = schema
        self._observers = Observers(observers)
        self._clock = clock
        self._running: list[Any] = []  # its services
        self._closed = False
        self._reading = None if source is None else FeedReading(source._tables, feed)
        self._open()
        renew_after_fork(self)

    def _open(self) -> None:
        raise NotImplementedError

    def after_fork(self) -> None:
        """Services stay with the parent."""
        self._running.clear()

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"the replica {self.table!r} is closed; make a new one")

    def _connected(self, dialect: str) -> None:
        self.store = open_replica_store(dialect, self._schema)
        self.kept = KeptTable(self.store, self.table, self._schema)
        self._applying = Applying(self.store, self.kept, self.feed, self._reading)

    # -- what both twins do ---------------------------------------------------------------------------

    def _said(self) -> Moves[tuple[Sequence[str] | None, dict[str, str]]]:
        """Key and types of the feed's columns, as the source has them or as they were given."""
        if self._reading is None:
            return self._key, self._types
        place = yield from there(self._reading.place())
        return tuple(place.key), (yield from there(self._reading.columns(place)))

    def _migrate(self) -> Moves[list[Migration]]:
        key, types = yield from self._said()
        return (yield from self.store.locked(self._make(key, types)))

    def _make(self, key: Sequence[str] | None, types: dict[str, str]) -> Op[list[Migration]]:
        done = yield from self.store.migrate()
        was = yield from self.store.position(self.table)
        key, types = key or (was and was.key), types or dict(was.types if was else {})
        columns = yield from self.kept.read_columns()
        if key is None or not (columns or types):
            raise ConfigError(
                f"nobody says what columns feed {self.feed!r} has, and what its key is: give the replica its source, "
                "or key= and columns={'customer': 'integer', …}; with key= alone the table must be there"
            )
        if was is not None and was.feed != self.feed and columns:
            raise FeedError(
                f"table {self.table!r} follows feed {was.feed!r}: drop it first, or choose another table for "
                f"{self.feed!r}",
                "table",
            )
        yield from self.kept.check_beside()
        made = not columns
        if made:
            yield from self.kept.create(key, types)
            columns = yield from self.kept.read_columns()
        yield from self.kept.check(columns, key, types)
        if made or was is None or (list(was.key), dict(was.types)) != (list(key), types):
            yield from self.kept.make_beside(key, columns)
            yield from self.store.begin(self.table, self.feed, key, types)
        self.kept.stale = True
        return done

    def _verify(self) -> Moves[None]:
        yield from self.store.verify_schema()
        position = yield from self._there()
        yield from self.kept.know(position.key, position.types)
        yield from self.kept.check((yield from self.kept.read_columns()), position.key, position.types)
        if self._reading is not None:
            place = yield from there(self._reading.place())
            check_same(self.table, position, place, (yield from there(self._reading.columns(place))))

    def _status(self) -> Moves[ReplicaStatus]:
        at = yield from self._there()
        head = None if self._reading is None else (yield from there(self._reading.head()))
        epoch, n = (None, None) if head is None else (head.epoch, head.n)
        return ReplicaStatus(self.table, at.feed, at.epoch, at.n, at.applied_at, epoch, n, at.by_rows)

    def _there(self) -> Op[Position]:
        found = yield from self.store.position(self.table)
        if found is None:
            raise FeedError(f"table {self.table!r} follows no feed yet; {self.store.advice}", "table")
        return found

    def _applied(self, event: Event[Any]) -> Moves[Applied]:
        if not isinstance(event, Event):
            raise ConfigError(f"expected an event of a feed, got {type(event).__name__}")
        latest = micros(self._clock.now()) + CLOCKS_DIFFER
        return (yield from self._applying.take(FeedMessage.of(event), self._clock.database_now(), latest))

    def _told(self, done: Applied) -> bool:
        if done.first:
            self._observers(Replicated(self.table, self.feed, done.inserted, done.deleted, done.copied))
        return done.first

    def _wrapped(self, handle: Any, *, is_async: bool) -> Any:
        connection = wrap(handle)
        if connection.dialect != self.store.dialect:
            raise ConfigError(
                f"this replica is on {self.store.dialect}, the handle is a {connection.dialect} connection"
            )
        if connection.is_async != is_async:
            other = "AsyncReplica" if connection.is_async else "Replica"
            raise ConfigError(f"{type(handle).__qualname__} does not fit a {type(self).__name__}; use {other}")
        if not connection.in_transaction():
            raise NoTransaction(
                "apply() needs an open transaction, so that rows and place are committed together; this "
                f"{type(handle).__module__}.{type(handle).__qualname__} is in autocommit mode. Begin one first, or "
                "pass None"
            )
        return connection

    def _following(self, owner: Any) -> Following:
        self._check_open()
        if self._source is None:
            raise ConfigError("follow() asks the source for what is new: give the replica source=Outbox(…)")
        return Following(
            self._target,
            self._source,
            self._applying,
            self.settings,
            self._observers,
            self._clock,
            owner,
        )


class Replica(_Shared, Closing):
    """A table of another database that follows a feed: every delta is applied to it once. For synchronous programs,
    safe to use from many threads; its service works in a thread of its own."""

    def _open(self) -> None:
        self._db = open_sync(self._target, callers=True)
        self._source_db = None if self._source is None else open_sync(self._source._target, callers=True)
        self._connected(self._db.dialect)

    def migrate(self) -> list[Migration]:
        """Makes the table with the feed's columns, unless it is there, and what a replica keeps beside it. Safe to
        repeat. Where the columns of the feed are not those of before, all its rows are copied anew. FeedError: the
        table cannot have the rows of this feed."""
        return self._transact(self._migrate())

    def verify(self) -> None:
        """Raises unless the tables fit this release, and the table the feed."""
        self._transact(self._verify())

    def status(self) -> ReplicaStatus:
        """How far the table is."""
        return self._transact(self._status())

    def apply(self, handle: Handle | None, event: Event[Any]) -> bool:
        """Does to the table what the event of the feed says: in the handle's transaction, or with None in one of its
        own. False: it was applied before, or says nothing new. FeedError: there is a gap, and no source to fill it."""
        self._check_open()
        if handle is None:
            return self._told(self._transact(self._applied(event)))
        connection = self._wrapped(handle, is_async=False)
        with ExitStack() as closing:
            return self._told(play(self._applied(event), connection, self._lender(closing)))

    def follow(self) -> Service:
        """The service that asks the source for what is new, and applies it. Any number may run; one of them works."""
        return Service(self._following(None), self)

    def close(self) -> None:
        """Stops its services, then closes its connections. Safe to repeat."""
        self._closed = True
        with ExitStack() as last_first:
            last_first.callback(self._db.close)
            if self._source_db is not None:
                last_first.callback(self._source_db.close)
            self._stop_services(last_first)

    def _transact(self, moves: Moves[T]) -> T:
        with ExitStack() as closing, self._db.connection() as connection:
            connection.begin()
            try:
                value = play(moves, connection, self._lender(closing))
            except BaseException:
                with suppress(StoreError):
                    connection.rollback()
                raise
            connection.commit()
            return value

    def _lender(self, closing: ExitStack) -> Callable[[], Connection]:
        lent: list[Connection] = []

        def lend() -> Connection:
            assert self._source_db is not None
            if not lent:
                lent.append(closing.enter_context(self._source_db.connection()))
            return lent[0]

        return lend


@told_by(Replica)
class AsyncReplica(_Shared, AsyncClosing):
    """A table of another database that follows a feed: every delta is applied to it once. For asyncio programs; its
    service works in the event loop that starts it."""

    def _open(self) -> None:
        self._db = open_async(self._target, callers=True)
        self._source_db = None if self._source is None else open_async(self._source._target, callers=True)
        self._connected(self._db.dialect)

    async def migrate(self) -> list[Migration]:
        return await self._transact(self._migrate())

    async def verify(self) -> None:
        await self._transact(self._verify())

    async def status(self) -> ReplicaStatus:
        return await self._transact(self._status())

    async def apply(self, handle: AsyncHandle | None, event: Event[Any]) -> bool:
        self._check_open()
        if handle is None:
            return self._told(await self._transact(self._applied(event)))
        connection = self._wrapped(handle, is_async=True)
        async with AsyncExitStack() as closing:
            return self._told(await aplay(self._applied(event), connection, lender(self._source_db, closing)))

    def follow(self) -> AsyncService:
        return self._following(self)

    async def close(self) -> None:
        self._closed = True
        async with AsyncExitStack() as last_first:
            last_first.push_async_callback(self._db.close)
            if self._source_db is not None:
                last_first.push_async_callback(self._source_db.close)
            await stop_all(self._running)

    async def _transact(self, moves: Moves[T]) -> T:
        return await transact(moves, self._db, self._source_db)
