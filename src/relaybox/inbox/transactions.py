"""The transaction of one message, or of several: the mark, the handler's writes, and one commit for both.

    own       begun and committed here, on a connection of the inbox; the handler is given the client library's object
    session   yours: `sessionmaker`, an engine, or any function that gives a context manager of a transaction, such as

        @contextmanager
        def unit_of_work():
            with transaction.atomic():
                yield django.db.connection

What enters must commit when its block ends and roll back on an error: the mark goes into it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from typing import Any, NamedTuple

from ..drivers import wrap
from ..drivers.spi import AsyncConnection, AsyncRunner, Connection, Runner
from ..errors import ConfigError, ConnectionLost, NoTransaction, SinkUnavailable, StoreBusy, StoreError
from ..op import Query

_SAVEPOINT = Query("inbox.savepoint", "SAVEPOINT relaybox_inbox", "count")
_RELEASE = Query("inbox.release", "RELEASE SAVEPOINT relaybox_inbox", "count")
_ROLLBACK = Query("inbox.rollback", "ROLLBACK TO SAVEPOINT relaybox_inbox", "count")


class Open(NamedTuple):
    """A transaction under way: how we speak to it, and what the handler is given."""

    connection: Connection
    handle: Any


class AsyncOpen(NamedTuple):
    connection: AsyncConnection
    handle: Any


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
        raise SinkUnavailable(f"the inbox's database: {error}") from error


def sync_factory(session: Any, db: Runner) -> SyncFactory:
    if session is None:
        return lambda: _own(db)
    return lambda: _given(_begin(session), db.dialect)


def async_factory(session: Any, db: AsyncRunner) -> AsyncFactory:
    if session is None:
        return lambda: _aown(db)
    return lambda: _agiven(_begin(session), db.dialect)


def _begin(session: Any) -> Any:
    make = getattr(session, "begin", session)  # sessionmaker, async_sessionmaker, an engine
    if not callable(make):
        raise ConfigError(
            f"expected session to be a sessionmaker, an engine or a function that gives a transaction, "
            f"got {type(session).__qualname__}"
        )
    return make()


@contextmanager
def _own(db: Runner) -> Iterator[Open]:
    with _entered(db) as connection:
        with not_its_fault():
            connection.begin()
        try:
            yield Open(connection, connection.raw)
        except BaseException:
            with suppress(StoreError):
                connection.rollback()
            raise
        try:
            with not_its_fault((StoreBusy,)):
                connection.commit()
        except BaseException:
            with suppress(StoreError):
                connection.rollback()
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
async def _aown(db: AsyncRunner) -> AsyncIterator[AsyncOpen]:
    async with _aentered(db) as connection:
        with not_its_fault():
            await connection.begin()
        try:
            yield AsyncOpen(connection, connection.raw)
        except BaseException:
            with suppress(StoreError):
                await connection.rollback()
            raise
        try:
            with not_its_fault((StoreBusy,)):
                await connection.commit()
        except BaseException:
            with suppress(StoreError):
                await connection.rollback()
            raise


@asynccontextmanager
async def _aentered(db: AsyncRunner) -> AsyncIterator[AsyncConnection]:
    manager = db.connection()
    with not_its_fault():
        connection = await manager.__aenter__()
    try:
        yield connection
    except BaseException as error:
        if not await manager.__aexit__(type(error), error, error.__traceback__):
            raise
    else:
        await manager.__aexit__(None, None, None)


@contextmanager
def _given(manager: AbstractContextManager[Any], dialect: str) -> Iterator[Open]:
    if not hasattr(manager, "__enter__"):
        raise ConfigError(_not_a_transaction(manager, "synchronous"))
    with manager as handle:
        connection = _wrapped(handle, dialect)
        if connection.is_async:
            raise ConfigError(f"{type(handle).__qualname__} is an async handle; write an async handler for it")
        yield Open(connection, handle)


@asynccontextmanager
async def _agiven(manager: AbstractAsyncContextManager[Any], dialect: str) -> AsyncIterator[AsyncOpen]:
    if not hasattr(manager, "__aenter__"):
        raise ConfigError(_not_a_transaction(manager, "asynchronous"))
    async with manager as handle:
        connection = _wrapped(handle, dialect)
        if not connection.is_async:
            raise ConfigError(f"{type(handle).__qualname__} is a sync handle; write a plain function for it")
        yield AsyncOpen(connection, handle)


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


@contextmanager
def savepoint(tx: Open) -> Iterator[None]:
    """SQLAlchemy has to know of it: it forgets the objects of what is rolled back."""
    nested = getattr(tx.handle, "begin_nested", None)
    if nested is not None:
        with nested():
            yield
        return
    tx.connection.execute(_SAVEPOINT.bind())
    try:
        yield
    except BaseException:
        tx.connection.execute(_ROLLBACK.bind())
        raise
    tx.connection.execute(_RELEASE.bind())


@asynccontextmanager
async def async_savepoint(tx: AsyncOpen) -> AsyncIterator[None]:
    nested = getattr(tx.handle, "begin_nested", None)
    if nested is not None:
        async with nested():
            yield
        return
    await tx.connection.execute(_SAVEPOINT.bind())
    try:
        yield
    except BaseException:
        await tx.connection.execute(_ROLLBACK.bind())
        raise
    await tx.connection.execute(_RELEASE.bind())
