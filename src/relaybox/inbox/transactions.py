"""The transaction of one message, or of several: the mark, the handler's writes, and one commit for both.

    own       begun and committed here, on a connection of the inbox; the handler is given the client library's object
    session   yours: `sessionmaker`, an engine, or any function that gives a context manager of a transaction, such as

        @contextmanager
        def unit_of_work():
            with transaction.atomic():
                yield django.db.connection

What enters must commit when its block ends and roll back on an error: the mark goes into it.

A network can fall silent. Every statement of ours, begin, commit and rollback with them, ends within
`delivery.database_timeout`. The handler's own end with its time: its connection is cut then, and thrown away.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from typing import Any, NamedTuple

from ..drivers import wrap
from ..drivers.layers import translate_cause
from ..drivers.limits import Limits, Watched
from ..drivers.spi import AsyncConnection, AsyncRunner, Connection, Runner
from ..errors import (
    BrokerUnavailable,
    ConfigError,
    ConnectionLost,
    NoTransaction,
    StoreBusy,
    StoreError,
    StoreFull,
    TransactionEnded,
)
from ..op import Copy, Query, Result, Statement
from ..store.inbox.settle import GONE

_SAVEPOINT = Query("inbox.savepoint", "SAVEPOINT relaybox_inbox", "count")
_RELEASE = Query("inbox.release", "RELEASE SAVEPOINT relaybox_inbox", "count")
_ROLLBACK = Query("inbox.rollback", "ROLLBACK TO SAVEPOINT relaybox_inbox", "count")


class RolledBack(BrokerUnavailable):
    """The database itself has ended a transaction: all of it is tried again."""


class Ours:
    """How we speak to a handler's transaction: each statement has `seconds`."""

    def __init__(self, inner: Connection, seconds: float | None) -> None:
        self.abort, self.broken, self.in_transaction = inner.abort, inner.broken, inner.in_transaction
        self._inner = inner
        self._seconds = None if inner.dialect == "sqlite" else seconds  # which is no network, and has its own

    def execute(self, statement: Statement | Copy) -> Result:
        with Watched(self._seconds, self._inner):
            return self._inner.execute(statement)

    def do(self, action: Callable[..., None], *args: Statement) -> None:
        with Watched(self._seconds, self._inner):
            action(*args)


class AsyncOurs:
    def __init__(self, inner: AsyncConnection, seconds: float | None, limits: Limits) -> None:
        self.broken, self.in_transaction = inner.broken, inner.in_transaction
        self._inner = inner
        self._seconds = None if inner.dialect == "sqlite" else seconds
        self._limits = limits

    async def execute(self, statement: Statement | Copy) -> Result:
        with self._limits.within(self._seconds, self._inner):
            return await self._inner.execute(statement)

    async def do(self, action: Callable[..., Awaitable[None]], *args: Statement) -> None:
        with self._limits.within(self._seconds, self._inner):
            await action(*args)

    def handed_out(self) -> AbstractContextManager[object]:
        """While the handler has it: one that is cancelled ends, also where it waits for an answer."""
        return self._limits.within(None, self._inner)


class Open(NamedTuple):
    """A transaction under way: how we speak to it, what the handler is given, and whether its commit looks for the
    mark."""

    connection: Ours
    handle: Any
    looks: bool = False


class AsyncOpen(NamedTuple):
    connection: AsyncOurs
    handle: Any
    looks: bool = False


SyncFactory = Callable[[], AbstractContextManager[Open]]
AsyncFactory = Callable[[], AbstractAsyncContextManager[AsyncOpen]]


@contextmanager
def not_its_fault(kinds: tuple[type[StoreError], ...] = (ConnectionLost, StoreBusy)) -> Iterator[None]:
    """A database that is away or busy is no failure of the message: it comes again, and no attempt is counted.

    A connection that is lost at the commit counts: what the handler did may have killed it.
    """
    try:
        yield
    except kinds as error:
        raise BrokerUnavailable(f"the inbox's database: {error}") from error


def ended(tx: Open | AsyncOpen, error: Exception | None = None) -> bool:
    """After a handler, and what it raised: what it did after the end of the transaction stands, and the mark does not.
    Where the server itself has ended it and the handler let the error pass, nothing was done."""
    if tx.connection.broken():
        return False
    asked = getattr(tx.handle, "in_transaction", None)  # SQLAlchemy begins anew by itself: only it can tell
    over = not tx.connection.in_transaction() or (callable(asked) and not asked())
    return over and not by_the_server(error)


def by_the_server(error: BaseException | None) -> bool:
    """A deadlock, a full disk, a lost connection: the database may have rolled back everything by itself."""
    while error is not None:
        ours = error if isinstance(error, StoreError) else translate_cause(error, lost=False)
        if isinstance(ours, (ConnectionLost, StoreBusy, StoreFull)):
            return True
        error = error.__cause__
    return False


def sync_factory(session: Any, db: Runner, seconds: float, last: Statement | None = None) -> SyncFactory:
    if session is None:
        return lambda: _own(db, seconds, last)
    return lambda: _given(_begin(session), db.dialect, seconds)


def async_factory(session: Any, db: AsyncRunner, seconds: float, last: Statement | None = None) -> AsyncFactory:
    limits = Limits()
    if session is None:
        return lambda: _aown(db, limits, seconds, last)
    return lambda: _agiven(_begin(session), db.dialect, limits, seconds)


def _begin(session: Any) -> Any:
    make = getattr(session, "begin", session)  # sessionmaker, async_sessionmaker, an engine
    if not callable(make):
        raise ConfigError(
            f"expected session to be a sessionmaker, an engine or a function that gives a transaction, "
            f"got {type(session).__qualname__}"
        )
    return make()


@contextmanager
def _own(db: Runner, seconds: float, last: Statement | None) -> Iterator[Open]:
    with _entered(db) as connection:
        ours = Ours(connection, seconds)
        joined = last and getattr(connection, "commit_after", None)  # not a protocol: asking for one is slow
        with not_its_fault():
            ours.do(connection.begin)
        try:
            yield Open(ours, connection.raw, joined is not None)
        except BaseException:
            with suppress(StoreError):
                ours.do(connection.rollback)
            raise
        try:
            with not_its_fault((StoreBusy,)):
                if joined and last:
                    ours.do(joined, last)
                else:
                    ours.do(connection.commit)
        except BaseException as error:
            with suppress(StoreError):
                ours.do(connection.rollback)
            if isinstance(error, StoreError) and GONE in str(error):
                raise TransactionEnded from error
            raise


@contextmanager
def _entered(db: Runner) -> Iterator[Connection]:
    manager = db.connection()
    with not_its_fault():
        connection = manager.__enter__()
    try:
        yield connection
    except BaseException as error:
        if not manager.__exit__(type(error), error, error.__traceback__):
            raise
    else:
        manager.__exit__(None, None, None)


@asynccontextmanager
async def _aown(db: AsyncRunner, limits: Limits, seconds: float, last: Statement | None) -> AsyncIterator[AsyncOpen]:
    """What is cancelled loses its connection, and the transaction with it."""
    async with _aentered(db, limits, seconds) as connection:
        ours = AsyncOurs(connection, seconds, limits)
        joined = last and getattr(connection, "commit_after", None)  # not a protocol: asking for one is slow
        with not_its_fault():
            await ours.do(connection.begin)
        try:
            yield AsyncOpen(ours, connection.raw, joined is not None)
        except Exception:
            with suppress(StoreError):
                await ours.do(connection.rollback)
            raise
        try:
            with not_its_fault((StoreBusy,)):
                if joined and last:
                    await ours.do(joined, last)
                else:
                    await ours.do(connection.commit)
        except Exception as error:
            with suppress(StoreError):
                await ours.do(connection.rollback)
            if isinstance(error, StoreError) and GONE in str(error):
                raise TransactionEnded from error
            raise


@asynccontextmanager
async def _aentered(db: AsyncRunner, limits: Limits, seconds: float) -> AsyncIterator[AsyncConnection]:
    manager = db.connection()
    with not_its_fault(), limits.within(seconds):
        connection = await manager.__aenter__()
    try:
        yield connection
    except BaseException as error:
        with limits.within(seconds, connection):
            if not await manager.__aexit__(type(error), error, error.__traceback__):
                raise
    else:
        await manager.__aexit__(None, None, None)


@contextmanager
def _given(manager: AbstractContextManager[Any], dialect: str, seconds: float) -> Iterator[Open]:
    if not hasattr(manager, "__enter__"):
        raise ConfigError(_not_a_transaction(manager, "synchronous"))
    with manager as handle:
        connection = _wrapped(handle, dialect)
        if connection.is_async:
            raise ConfigError(f"{type(handle).__qualname__} is an async handle; write an async handler for it")
        yield Open(Ours(connection, seconds), handle)


@asynccontextmanager
async def _agiven(
    manager: AbstractAsyncContextManager[Any], dialect: str, limits: Limits, seconds: float
) -> AsyncIterator[AsyncOpen]:
    if not hasattr(manager, "__aenter__"):
        raise ConfigError(_not_a_transaction(manager, "asynchronous"))
    async with manager as handle:
        connection = _wrapped(handle, dialect)
        if not connection.is_async:
            raise ConfigError(f"{type(handle).__qualname__} is a sync handle; write a plain function for it")
        yield AsyncOpen(AsyncOurs(connection, seconds, limits), handle)


def _wrapped(handle: Any, dialect: str) -> Connection | AsyncConnection:
    connection = wrap(handle)
    if connection.dialect != dialect:
        raise ConfigError(f"this inbox is on {dialect}, the session gave a {connection.dialect} connection")
    if not connection.in_transaction():
        raise NoTransaction(
            f"the session gave a {type(handle).__qualname__} in autocommit mode; it must begin a transaction, "
            "or the effect and the mark could part"
        )
    return connection


def _not_a_transaction(manager: object, kind: str) -> str:
    return f"the session gave a {type(manager).__qualname__}, which is no {kind} context manager of a transaction"


class _Inner:
    """What happened between a savepoint and its end."""

    error: BaseException | None = None

    @contextmanager
    def kept(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self.error = error
            raise

    @contextmanager
    def judged(self, tx: Open | AsyncOpen) -> Iterator[None]:
        """A savepoint that cannot be released or rolled back to is gone, and so is its transaction."""
        try:
            yield
            if ended(tx):
                raise TransactionEnded
        except (ConnectionLost, TransactionEnded):
            raise
        except Exception as error:
            if ended(tx, error):
                raise TransactionEnded from error
            if error is self.error or not isinstance(self.error or error, Exception):
                raise
            cause = self.error or error
            if by_the_server(cause):
                raise RolledBack(f"the inbox's database rolled back the batch: {type(cause).__name__}") from error
            raise TransactionEnded from cause


@contextmanager
def savepoint(tx: Open) -> Iterator[None]:
    """SQLAlchemy has to know of it: it forgets the objects of what is rolled back."""
    inner, nested = _Inner(), getattr(tx.handle, "begin_nested", None)
    with inner.judged(tx):
        if nested is not None:
            with nested(), inner.kept():
                yield
            return
        tx.connection.execute(_SAVEPOINT.bind())
        try:
            with inner.kept():
                yield
                tx.connection.execute(_RELEASE.bind())
        except BaseException:
            tx.connection.execute(_ROLLBACK.bind())
            raise


@asynccontextmanager
async def async_savepoint(tx: AsyncOpen) -> AsyncIterator[None]:
    inner, nested = _Inner(), getattr(tx.handle, "begin_nested", None)
    with inner.judged(tx):
        if nested is not None:
            async with nested():
                with inner.kept():
                    yield
            return
        await tx.connection.execute(_SAVEPOINT.bind())
        try:
            with inner.kept():
                yield
                await tx.connection.execute(_RELEASE.bind())
        except BaseException:
            await tx.connection.execute(_ROLLBACK.bind())
            raise
