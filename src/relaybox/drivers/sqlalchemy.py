"""SQLAlchemy 2: Connection, Session, AsyncConnection, AsyncSession, scoped or not; and engines.

Statements run through `exec_driver_sql` on the very connection of the caller's transaction, so its echo,
events and instrumentation see them like its own.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar, Literal, NoReturn

import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.ext import asyncio as sa_async
from sqlalchemy.orm import Session, scoped_session
from sqlalchemy.util import await_only, greenlet_spawn

from ..errors import ConfigError, ConnectionLost, StoreBusy, StoreError
from ..op import Copy, ParamStyle, Result, Statement
from .pool import AsyncDatabase, Database
from .sockets import libpq_options
from .spi import AsyncConnection, Callback, Connection, DialectName
from .sqlalchemy_hooks import RootCallbacks, mark_failed, watch
from .toolkits import BEGIN, abort, translate_cause

log = logging.getLogger("relaybox.drivers")

_DIALECTS: dict[str, DialectName] = {
    "postgresql": "postgres",
    "sqlite": "sqlite",
    "mysql": "mysql",
    "mariadb": "mysql",
}
_STYLES: dict[str, ParamStyle] = {"qmark": "qmark", "format": "format", "pyformat": "format"}
_OTHER_STYLES: dict[str, ParamStyle] = {"asyncpg": "dollar", "mysqlconnector": "percent"}
_BYTES: dict[str, type[memoryview | bytearray]] = {
    "psycopg2": memoryview,
    "mysqlconnector": bytearray,
}  # what a client takes for bytes
_OPTIONS = {"preserve_rowcount": True}


def dialect_of(dialect: sa.Dialect) -> DialectName:
    name = dialect.name
    if name not in _DIALECTS:
        raise ConfigError(f"relaybox has no store for SQLAlchemy's {name!r}; it knows {', '.join(_DIALECTS)}")
    return _DIALECTS[name]


# -- errors -----------------------------------------------------------------------------------------


@contextmanager
def translated() -> Iterator[None]:
    """Raised from the driver's error: SQLAlchemy's own would print the parameters, payloads included."""
    try:
        yield
    except exc.DBAPIError as error:
        raise translate(error) from error.orig
    except exc.PendingRollbackError as error:
        raise StoreError("the transaction has failed already; roll it back before writing events") from error
    except exc.UnboundExecutionError as error:
        raise ConfigError(
            "this session has no default bind; pass session.connection(bind_arguments=…) instead"
        ) from error
    except exc.TimeoutError as error:
        raise StoreBusy(f"SQLAlchemy's pool had no connection to give: {error}") from error
    except exc.ResourceClosedError as error:
        raise StoreError(f"SQLAlchemy refused: {error}") from error
    except OSError as error:  # asyncpg lets these through when it cannot connect
        raise ConnectionLost(f"no connection to the database: {type(error).__name__}: {error}") from error


def translate(error: exc.DBAPIError) -> StoreError:
    cause: Any = error.orig
    if type(cause).__module__.startswith("sqlalchemy."):  # its own classes around asyncpg's errors
        cause = cause.__cause__ or cause
    lost = error.connection_invalidated or isinstance(error, (exc.OperationalError, exc.InterfaceError))
    return translate_cause(cause, lost=lost)


# -- statements -------------------------------------------------------------------------------------


def _execute(connection: sa.Connection, statement: Statement | Copy) -> Result:
    if isinstance(statement, Copy):
        return _copy(connection, statement)
    dialect = connection.dialect
    style = _OTHER_STYLES.get(dialect.driver) or _STYLES.get(dialect.paramstyle, "qmark")
    text, params = statement.positional(style)
    result = connection.exec_driver_sql(text, tuple(params), execution_options=_OPTIONS)
    if statement.query.answer == "count":
        return Result((), result.rowcount)
    if kind := _BYTES.get(dialect.driver):
        rows = [tuple(bytes(v) if isinstance(v, kind) else v for v in row) for row in result]
    else:
        rows = [tuple(row) for row in result]
    return Result(rows, len(rows))


def _copy(connection: sa.Connection, statement: Copy) -> Result:
    """SQLAlchemy has no COPY: the driver's own connection does it, inside the same transaction."""
    try:
        return _copy_by_driver(connection, connection.connection.driver_connection, statement)
    except BaseException:
        mark_failed(connection)  # SQLAlchemy did not see it
        raise


def _copy_by_driver(connection: sa.Connection, driver: Any, statement: Copy) -> Result:
    if connection.dialect.driver == "asyncpg":
        connection.exec_driver_sql("SELECT 1")  # the first statement is what begins asyncpg's transaction
        from .asyncpg import AsyncpgConnection

        return await_only(AsyncpgConnection(driver).execute(statement))
    from .psycopg import AsyncPsycopgConnection, PsycopgConnection

    if connection.dialect.is_async:
        return await_only(AsyncPsycopgConnection(driver).execute(statement))
    return PsycopgConnection(driver).execute(statement)


def _autocommit(target: sa.Connection | sa.Engine) -> bool:
    level = target.get_execution_options().get("isolation_level")
    level = level or getattr(target.dialect, "_on_connect_isolation_level", None)
    if level is not None:
        return bool(level == "AUTOCOMMIT")
    if isinstance(target, sa.Engine) or target.closed or target.invalidated:
        return False
    driver = target.connection.driver_connection  # may autocommit behind SQLAlchemy's back
    if getattr(driver, "in_transaction", False) is True:
        return False  # to ask MySQL Connector for autocommit is a round trip
    ask = getattr(driver, "get_autocommit", None)
    return (ask() if ask else getattr(driver, "autocommit", False)) is True


# -- the caller's handles -----------------------------------------------------------------------------


class _Handle:
    """What the four handles share; they differ in how they find the connection they write on."""

    raw: Any
    dialect: DialectName
    copy: bool
    silent: bool

    def _describe(self, bind: sa.Connection | sa.Engine) -> None:
        self.dialect = dialect_of(bind.dialect)
        self.copy = bind.dialect.driver in ("psycopg", "psycopg_async", "asyncpg")
        self.silent = self._two_phase()

    def _two_phase(self) -> bool:
        """COMMIT PREPARED may come from another process: nobody here can tell."""
        session, found = self._session(), self._found()
        if session is not None and session.twophase:
            return True
        return found is not None and isinstance(found.get_transaction(), sa.TwoPhaseTransaction)

    def _found(self) -> sa.Connection | None:
        """The connection in use, without I/O; None when a session has not asked for one yet."""
        raise NotImplementedError

    def _session(self) -> Session | None:
        return None

    def in_transaction(self) -> bool:
        session = self._session()
        if session is not None and not session.autobegin and not session.in_transaction():
            return False
        found = self._found()
        if found is not None:
            return not _autocommit(found)
        return session is None or not _autocommit(_bind(session))

    def after_commit(self, callback: Callback) -> bool:
        hooks = self._watch()
        if hooks is not None:
            hooks.committed.append(callback)
        return hooks is not None

    def after_rollback(self, callback: Callback) -> bool:
        hooks = self._watch()
        if hooks is not None:
            hooks.rolled_back.append(callback)
        return hooks is not None

    def _watch(self) -> RootCallbacks | None:
        found = self._found()
        if found is None or found.closed or found.invalidated or _autocommit(found) or self._two_phase():
            return None
        return watch(found)

    def abort(self) -> None:
        found = self._found()
        if found is not None and not found.closed and not found.invalidated:
            abort(found.connection.driver_connection)

    def broken(self) -> bool:
        found = self._found()
        return found is not None and (found.closed or found.invalidated)


def _bind(session: Session) -> sa.Connection | sa.Engine:
    with translated():
        return session.get_bind()


def _open_in(session: Session) -> sa.Connection | None:
    """What a session has checked out for its default bind. There is no public question that does no I/O."""
    bind = _bind(session)
    if isinstance(bind, sa.Connection):
        return bind
    transaction = session.get_nested_transaction() or session.get_transaction()
    while transaction is not None:
        found = getattr(transaction, "_connections", {}).get(bind)
        if found:
            connection: sa.Connection = found[0]
            return connection
        transaction = transaction.parent
    return None


def _not_ours() -> NoReturn:
    raise StoreError("SQLAlchemy owns this transaction: begin, commit, roll back and close it there")


class ConnectionHandle(_Handle):
    is_async: ClassVar[Literal[False]] = False

    def __init__(self, raw: sa.Connection) -> None:
        self.raw = raw
        self._describe(raw)

    def _found(self) -> sa.Connection | None:
        connection: sa.Connection = self.raw
        return connection

    def execute(self, statement: Statement | Copy) -> Result:
        with translated():
            return _execute(self.raw, statement)

    def begin(self) -> None:
        _not_ours()

    commit = rollback = close = begin


class SessionHandle(ConnectionHandle):
    def __init__(self, raw: Session) -> None:
        self.raw = raw
        self._describe(_bind(raw))

    def _session(self) -> Session:
        session: Session = self.raw
        return session

    def _found(self) -> sa.Connection | None:
        return _open_in(self.raw)

    def execute(self, statement: Statement | Copy) -> Result:
        with translated():
            return _execute(self.raw.connection(), statement)


class AsyncConnectionHandle(_Handle):
    is_async: ClassVar[Literal[True]] = True

    def __init__(self, raw: sa_async.AsyncConnection) -> None:
        self.raw = raw
        if raw.sync_connection is None:
            raise ConfigError("this AsyncConnection is not started; use `async with engine.connect()`")
        self._describe(raw.sync_connection)

    def _found(self) -> sa.Connection | None:
        connection: sa_async.AsyncConnection = self.raw
        return connection.sync_connection

    async def execute(self, statement: Statement | Copy) -> Result:
        connection: sa_async.AsyncConnection = self.raw
        with translated():
            return await connection.run_sync(_execute, statement)

    async def begin(self) -> None:
        _not_ours()

    commit = rollback = close = begin


class AsyncSessionHandle(AsyncConnectionHandle):
    def __init__(self, raw: sa_async.AsyncSession) -> None:
        self.raw = raw
        self._describe(_bind(raw.sync_session))

    def _session(self) -> Session:
        session: sa_async.AsyncSession = self.raw
        return session.sync_session

    def _found(self) -> sa.Connection | None:
        return _open_in(self.raw.sync_session)

    async def execute(self, statement: Statement | Copy) -> Result:
        session: sa_async.AsyncSession = self.raw
        with translated():
            return await session.run_sync(lambda sync: _execute(sync.connection(), statement))


def wrap(handle: Any) -> ConnectionHandle | AsyncConnectionHandle | None:
    if isinstance(handle, (scoped_session, sa_async.async_scoped_session)):
        handle = handle.registry()
    if isinstance(handle, Session):
        return SessionHandle(handle)
    if isinstance(handle, sa.Connection):
        return ConnectionHandle(handle)
    if isinstance(handle, sa_async.AsyncSession):
        return AsyncSessionHandle(handle)
    if isinstance(handle, sa_async.AsyncConnection):
        return AsyncConnectionHandle(handle)
    return None


# -- connections of our own, from the user's engine --------------------------------------------------------


def _speak(connection: sa.Connection, words: tuple[str, ...]) -> None:
    for word in words:
        connection.exec_driver_sql(word)


class BorrowedConnection(ConnectionHandle):
    """In autocommit mode from its first use on: to make it so can be a word to the server, and that has a limit."""

    def __init__(self, raw: sa.Connection) -> None:
        super().__init__(raw)
        self._used = self._begun = False

    def in_transaction(self) -> bool:
        return self._begun

    def execute(self, statement: Statement | Copy) -> Result:
        with translated():
            return _execute(self._ready(), statement)

    def _ready(self) -> sa.Connection:
        if not self._used:
            self.raw.execution_options(isolation_level="AUTOCOMMIT")
            self._used = True
        connection: sa.Connection = self.raw
        return connection

    def begin(self) -> None:
        with translated():
            ready = self._ready()
            self._begun = True
            _speak(ready, BEGIN[self.dialect])

    def commit(self) -> None:
        self._end("COMMIT")

    def rollback(self) -> None:
        self._end("ROLLBACK")

    def _end(self, word: str) -> None:
        with translated():
            _speak(self.raw, (word,))
            self._begun = False

    def close(self) -> None:
        """Back to the engine's pool; never with a transaction of ours left open on it."""
        with translated():
            if self._begun:
                self.raw.invalidate()
            self.raw.close()


class AsyncBorrowedConnection(AsyncConnectionHandle):
    def __init__(self, raw: sa_async.AsyncConnection) -> None:
        super().__init__(raw)
        self._begun = False

    def in_transaction(self) -> bool:
        return self._begun

    async def begin(self) -> None:
        with translated():
            self._begun = True
            await self.raw.run_sync(_speak, BEGIN[self.dialect])

    async def commit(self) -> None:
        await self._end("COMMIT")

    async def rollback(self) -> None:
        await self._end("ROLLBACK")

    async def _end(self, word: str) -> None:
        with translated():
            await self.raw.run_sync(_speak, (word,))
            self._begun = False

    async def close(self) -> None:
        with translated():
            if self._begun:
                await self.raw.invalidate()
            await self.raw.close()


def _sibling(engine: sa.Engine) -> sa.Engine:
    """An engine that connects as the user's does, with a pool of its own: what handlers hold is not missing here."""
    return sa.Engine(engine.pool.recreate(), engine.dialect, engine.url, hide_parameters=engine.hide_parameters)


class BorrowedDatabase(Database):
    """Keeps nothing idle: the connections belong to a pool of SQLAlchemy's; to the user's, unless it is a sibling."""

    sibling: sa.Engine | None = None

    def begin(self) -> None:
        super().begin()
        if self.sibling is not None:
            self.sibling.dispose(close=False)

    def close(self) -> None:
        super().close()
        if self.sibling is not None:
            self.sibling.dispose()

    def give_back(self, connection: Connection, *, suspect: bool) -> None:
        try:
            connection.close()
        except StoreError:
            log.debug("a borrowed connection could not be returned", exc_info=True)


class AsyncBorrowedDatabase(AsyncDatabase):
    sibling: sa.Engine | None = None

    def begin(self) -> None:
        super().begin()
        if self.sibling is not None:
            self.sibling.dispose(close=False)

    def distrust(self) -> None:
        """What lies idle in the sibling's pool is closed beside the new one; the user's pool is not ours to judge."""
        self.doubted = False
        if self.sibling is not None:
            old = self.sibling.pool
            self.sibling.dispose(close=False)
            self.ending(greenlet_spawn(old.dispose))

    async def give_back(self, connection: AsyncConnection, *, suspect: bool) -> None:
        try:
            await connection.close()
        except StoreError:
            log.debug("a borrowed connection could not be returned", exc_info=True)


def _connect(engine: sa.Engine) -> BorrowedConnection:
    with translated():
        return BorrowedConnection(engine.connect())


async def _aconnect(engine: sa_async.AsyncEngine) -> AsyncBorrowedConnection:
    with translated():
        return AsyncBorrowedConnection(await engine.connect())


def _url(engine: sa.Engine) -> str:
    """The engine's address for a client library of our choice: without SQLAlchemy's +driver."""
    if _in_memory(engine):
        raise ConfigError(
            "an in-memory SQLite database lives in one connection: sync and async cannot share it; use a file"
        )
    bare = engine.url.set(drivername=engine.url.get_backend_name())
    return bare.render_as_string(hide_password=False)


def _in_memory(engine: sa.Engine) -> bool:
    return engine.dialect.name == "sqlite" and engine.url.database in (None, "", ":memory:")


def _room(engine: sa.Engine, size: int) -> int:
    """How many connections it gives at once, up to `size`."""
    pool = engine.pool
    full = isinstance(pool, sa.QueuePool) and pool.size() + pool._max_overflow == 1
    return 1 if full or isinstance(pool, sa.StaticPool) or _in_memory(engine) else size


def borrow(engine: Any, size: int, timeout: float | None = None, pause: float | None = None) -> Database | None:
    """An async engine cannot give sync connections: its address is opened with our own driver. The sessions of the
    user's engine are as the user has set them: `pause` is for sessions of ours."""
    if isinstance(engine, sa_async.AsyncEngine):
        from . import open_sync

        return open_sync(_url(engine.sync_engine), size=size, timeout=timeout, pause=pause)
    if not isinstance(engine, sa.Engine):
        return None
    sibling = None if timeout is None or _in_memory(engine) else _sibling(engine)
    database = BorrowedDatabase(
        dialect_of(engine.dialect), partial(_connect, sibling or engine), size=_room(engine, size), timeout=timeout
    )
    database.sibling = sibling
    return database


def aborrow(engine: Any, size: int, timeout: float | None = None, pause: float | None = None) -> AsyncDatabase | None:
    if isinstance(engine, sa.Engine):
        return _beside(engine, size, timeout, pause)
    if not isinstance(engine, sa_async.AsyncEngine):
        return None
    in_memory = _in_memory(engine.sync_engine)
    sibling = None if timeout is None or in_memory else _sibling(engine.sync_engine)
    chosen = sa_async.AsyncEngine(sibling) if sibling else engine
    database = AsyncBorrowedDatabase(
        dialect_of(engine.dialect),
        partial(_aconnect, chosen.execution_options(isolation_level="AUTOCOMMIT")),
        size=_room(engine.sync_engine, size),
        listen=partial(_LISTEN[engine.dialect.driver], chosen, timeout) if engine.dialect.driver in _LISTEN else None,
        timeout=timeout,
    )
    database.sibling = sibling
    return database


def _beside(engine: sa.Engine, size: int, timeout: float | None, pause: float | None) -> AsyncDatabase:
    """A synchronous engine cannot give asynchronous connections. With psycopg they are made as it makes its own, by its
    arguments and events, and taken over; else its address is opened with our own driver."""
    if engine.dialect.driver != "psycopg":
        from . import open_async

        return open_async(_url(engine), size=size, timeout=timeout, pause=pause)
    from . import psycopg

    sibling = _sibling(engine)

    async def taken_over() -> psycopg.AsyncPsycopgConnection:
        with translated(), psycopg.translated:
            return await psycopg.aready(await psycopg.made_in_thread(partial(_made, sibling)), timeout, pause)

    async def listen(channel: str, ready: Callback, wake: Callback) -> None:
        with translated(), psycopg.translated:
            await psycopg.hear(await psycopg.made_in_thread(partial(_made, sibling)), channel, ready, wake, timeout)

    return AsyncDatabase("postgres", taken_over, size=size, listen=listen, timeout=timeout, address=engine)


def _made(engine: sa.Engine) -> Any:
    """A connection that is its pool's no more."""
    fairy = engine.raw_connection()
    raw: Any = fairy.driver_connection
    fairy.detach()
    raw.rollback()  # SQLAlchemy asks what it wants to know of a server in a transaction
    return raw


async def _amade(engine: sa_async.AsyncEngine) -> Any:
    fairy = await engine.raw_connection()
    raw = fairy.driver_connection
    fairy.detach()
    return raw


async def _listen_psycopg(
    engine: sa_async.AsyncEngine, timeout: float | None, channel: str, ready: Callback, wake: Callback
) -> None:
    from .psycopg import aadopted, hear
    from .psycopg import translated as ours

    with translated(), ours:
        await hear(await aadopted(await _amade(engine)), channel, ready, wake, timeout)


async def _listen_asyncpg(
    engine: sa_async.AsyncEngine, timeout: float | None, channel: str, ready: Callback, wake: Callback
) -> None:
    from .asyncpg import hear, looked_at

    async def connect() -> tuple[Any, bool]:
        with translated():
            return await looked_at(await _amade(engine), libpq_options({}, timeout))

    await hear(connect, channel, ready, wake, timeout=timeout)


_LISTEN = {"asyncpg": _listen_asyncpg, "psycopg": _listen_psycopg, "psycopg_async": _listen_psycopg}
