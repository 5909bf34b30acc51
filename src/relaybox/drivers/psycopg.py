"""psycopg 3, sync and async."""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from typing import Any

import psycopg
from psycopg import sql, waiting
from psycopg.abc import RV, PQGen
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from ..errors import StoreError
from ..op import Copy, Result, Statement
from .limits import Watched
from .postgres_errors import connection_lost, translate_sqlstate
from .postgres_sessions import BEGIN, KEEP_MEMORY, PULSE, session, transaction_limit
from .sockets import CONNECT_SECONDS, cut, libpq_options
from .spi import Adapter, AsyncAdapter, DialectName, Silent, Translated
from .tls import clear_password, libpq, of_postgres

GOODBYE = 1.0  # seconds to tell a server that a statement is given up


def translate(error: BaseException) -> StoreError | None:
    if not isinstance(error, psycopg.Error):
        return None
    if '"!password" failed' in str(error):
        return clear_password("PostgreSQL")
    if error.sqlstate is None and isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError)):
        return connection_lost(str(error))
    return translate_sqlstate(error.sqlstate or "", error.diag.message_primary or str(error))


translated = Translated(translate)


def _copy_sql(statement: Copy) -> sql.Composed:
    table = sql.Identifier(*filter(None, (statement.schema, statement.table)))
    columns = sql.SQL(", ").join(map(sql.Identifier, statement.columns))
    return sql.SQL("COPY {} ({}) FROM STDIN (FORMAT binary)").format(table, columns)


class _Postgres(Silent):
    dialect: DialectName = "postgres"
    copy = True
    translated = translated
    pooled = False  # one of ours, by way of a pooler

    def in_transaction(self) -> bool:
        status = self.raw.info.transaction_status
        return bool(status != TransactionStatus.IDLE or not self.raw.autocommit)

    def broken(self) -> bool:
        return bool(self.raw.closed or self.raw.broken)

    def abort(self) -> None:
        with suppress(psycopg.Error):  # closed already
            cut(self.raw.fileno())

    def _check_committable(self) -> None:
        """The server would answer COMMIT of a failed transaction with ROLLBACK and no error."""
        if self.raw.info.transaction_status == TransactionStatus.INERROR:
            raise translate_sqlstate("25P02", "")


class PsycopgConnection(_Postgres, Adapter):
    def execute(self, statement: Statement | Copy) -> Result:
        with translated, self.raw.cursor(binary=True, row_factory=tuple_row) as cursor:
            if isinstance(statement, Copy):
                with cursor.copy(_copy_sql(statement)) as copy:
                    copy.set_types(statement.types)
                    for row in statement.rows:
                        copy.write_row(row)
                return Result((), len(statement.rows))
            text, params = statement.positional("format")
            cursor.execute(text, params)
            if statement.query.answer == "rows":
                return Result(cursor.fetchall(), cursor.rowcount)
            return Result((), cursor.rowcount)

    def begin(self) -> None:
        """Outside autocommit psycopg says BEGIN itself, before the next statement."""
        if self.raw.autocommit:
            with translated:
                self.raw.execute(BEGIN if self.pooled else "BEGIN")

    def commit(self) -> None:
        self._check_committable()
        super().commit()

    def commit_after(self, statement: Statement) -> None:
        """A statement without parameters and COMMIT in one round trip: no COMMIT if it fails."""
        self._check_committable()
        with translated:
            self.raw.execute(f"{statement.query.text}; COMMIT", prepare=False)


class AsyncPsycopgConnection(_Postgres, AsyncAdapter):
    async def execute(self, statement: Statement | Copy) -> Result:
        with translated:
            async with self.raw.cursor(binary=True, row_factory=tuple_row) as cursor:
                if isinstance(statement, Copy):
                    async with cursor.copy(_copy_sql(statement)) as copy:
                        copy.set_types(statement.types)
                        for row in statement.rows:
                            await copy.write_row(row)
                    return Result((), len(statement.rows))
                text, params = statement.positional("format")
                await cursor.execute(text, params)
                if statement.query.answer == "rows":
                    return Result(await cursor.fetchall(), cursor.rowcount)
                return Result((), cursor.rowcount)

    async def begin(self) -> None:
        if self.raw.autocommit:
            with translated:
                await self.raw.execute(BEGIN if self.pooled else "BEGIN")

    async def commit(self) -> None:
        self._check_committable()
        await super().commit()

    async def commit_after(self, statement: Statement) -> None:
        self._check_committable()
        with translated:
            await self.raw.execute(f"{statement.query.text}; COMMIT", prepare=False)


class _Own(psycopg.AsyncConnection[Any]):
    """One that relaybox opened itself. A statement that is given up takes its connection along: psycopg would wait for
    the server's word that it has stopped, in vain where the network swallows it. The server is told, by `close`."""

    _ending: asyncio.Task[None] | None = None
    opened_by: object = None  # the same connection as another object, which would complain if it ended before

    async def wait(self, gen: PQGen[RV], *args: Any, **named: Any) -> RV:
        options = {**_WAIT_OPTIONS, **dict(zip(_WAIT_OPTIONS, args, strict=False)), **named}
        try:
            return await waiting.wait_async(gen, self.pgconn.socket, **options)
        except asyncio.CancelledError:
            if _CANCELS and self._ending is None:
                self._ending = asyncio.create_task(self._end(), name="relaybox-cancel")
            elif not _CANCELS:
                self.pgconn.finish()
            raise

    async def _end(self) -> None:
        try:
            with suppress(psycopg.Error):
                await self.cancel_safe(timeout=GOODBYE)
        finally:
            self.pgconn.finish()

    async def close(self) -> None:
        if self._ending is not None:
            try:
                await asyncio.wait([self._ending])
            except asyncio.CancelledError:  # nobody waits for the good-bye any longer
                self._ending.cancel()
                await asyncio.wait([self._ending])
                raise
        await super().close()


# What psycopg's own `wait` takes besides the generator, which differs between its releases.
_WAIT_OPTIONS = {
    name: option.default
    for name, option in inspect.signature(psycopg.AsyncConnection.wait).parameters.items()
    if option.default is not option.empty
}
# Whether a server can be asked to stop without blocking the loop: psycopg 3.2 with libpq 17.
_CANCELS = hasattr(psycopg, "capabilities") and psycopg.capabilities.has_cancel_safe()
# Whether a client can say by which methods it logs in: libpq 16.
_CHOOSES = psycopg.pq.version() >= 160000
# Whether a listener can stop for a question: psycopg 3.2.
_PAUSES = "timeout" in inspect.signature(psycopg.AsyncConnection.notifies).parameters


def wrap(handle: Any) -> PsycopgConnection | AsyncPsycopgConnection | None:
    if isinstance(handle, psycopg.Connection):
        return PsycopgConnection(handle)
    if isinstance(handle, psycopg.AsyncConnection):
        return AsyncPsycopgConnection(handle)
    if isinstance(handle, psycopg.Cursor):
        return PsycopgConnection(handle.connection)
    if isinstance(handle, psycopg.AsyncCursor):
        return AsyncPsycopgConnection(handle.connection)
    return None


def _behind_pooler(raw: psycopg.Connection[Any] | psycopg.AsyncConnection[Any], server_pid: int) -> bool:
    """A pooler answers the start-up itself: the pid it announced is not the one that runs our statements."""
    return raw.info.backend_pid != server_pid


def _options(url: str, application: str, timeout: float | None) -> dict[str, Any]:
    transport = of_postgres(url)
    transport.warn("PostgreSQL")
    given = conninfo_to_dict(transport.url)
    if transport.guarded and _CHOOSES and not (given.get("require_auth") or os.environ.get("PGREQUIREAUTH")):
        given["require_auth"] = "!password"
    ours = {"autocommit": True, "application_name": application, **libpq_options(given, timeout)}
    return {**given, **ours, **libpq(transport.tls)}


@lru_cache(16)
def _session(version: int, timeout: float | None, pause: float | None) -> bytes:
    settings = [f"SET {name} = '{value}'" for name, value in session(timeout, pause).items()]
    return "; ".join([*settings, KEEP_MEMORY, transaction_limit(version, timeout, pause)]).encode()


def connect(
    url: str, application: str = "relaybox", *, timeout: float | None = None, pause: float | None = None
) -> PsycopgConnection:
    with translated:
        raw = psycopg.connect(**_options(url, application, timeout))
        return ready(raw, timeout, pause)


def ready(raw: psycopg.Connection[Any], timeout: float | None, pause: float | None) -> PsycopgConnection:
    """One of ours, in autocommit mode."""
    connection = PsycopgConnection(raw)
    raw.prepare_threshold = None
    with Watched(timeout or CONNECT_SECONDS, connection):
        row = raw.execute("SELECT pg_backend_pid()").fetchone()
        connection.pooled = row is None or _behind_pooler(raw, row[0])
        if not connection.pooled:
            raw.prepare_threshold = 3
            raw.execute(_session(raw.info.server_version // 10000, timeout, pause))
    return connection


async def aconnect(
    url: str, application: str = "relaybox", *, timeout: float | None = None, pause: float | None = None
) -> AsyncPsycopgConnection:
    with translated:
        return await aready(await _Own.connect(**_options(url, application, timeout)), timeout, pause)


async def aready(
    raw: psycopg.AsyncConnection[Any], timeout: float | None, pause: float | None
) -> AsyncPsycopgConnection:
    connection = AsyncPsycopgConnection(raw)
    try:
        raw.prepare_threshold = None
        row = await (await raw.execute("SELECT pg_backend_pid()")).fetchone()
        connection.pooled = row is None or _behind_pooler(raw, row[0])
        if not connection.pooled:
            raw.prepare_threshold = 3
            await raw.execute(_session(raw.info.server_version // 10000, timeout, pause))
    except BaseException:
        await raw.close()  # nobody else knows of it
        raise
    return connection


async def listen(
    url: str, channel: str, ready: Callable[[], None], wake: Callable[[], None], *, timeout: float | None = None
) -> None:
    """LISTEN until cancelled or the connection breaks. Returns at once, without `ready`, behind a pooler."""
    with translated:
        await hear(await _Own.connect(**_options(url, "relaybox-listen", timeout)), channel, ready, wake, timeout)


async def hear(
    raw: psycopg.AsyncConnection[Any],
    channel: str,
    ready: Callable[[], None],
    wake: Callable[[], None],
    timeout: float | None,
) -> None:
    """`listen` on a connection of ours, which it closes at its end."""
    pulse = timeout or PULSE
    pause: dict[str, Any] = {"timeout": pulse} if _PAUSES else {}
    try:
        row = await (await raw.execute("SELECT pg_backend_pid()")).fetchone()
        if row and _behind_pooler(raw, row[0]):
            return
        await raw.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
        ready()
        while True:
            async for _ in raw.notifies(**pause):
                wake()
            try:
                async with asyncio.timeout(pulse):
                    await raw.execute("SELECT 1")  # a network that swallows packets says nothing
            except TimeoutError:
                raise connection_lost(f"no answer on the listening connection within {pulse:g} s") from None
    finally:
        await raw.close()


# -- connections that somebody else has made, by whatever parameters and hooks, and that are ours now


class _Adopted(psycopg.Connection[Any]):
    opened_by: object = None


def adopted(theirs: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> psycopg.Connection[Any]:
    """None of what the other object was told about rows, types and cursors is known to this one."""
    raw = _Adopted(theirs.pgconn)
    raw.opened_by = theirs
    raw.autocommit = True
    return raw


async def aadopted(theirs: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> psycopg.AsyncConnection[Any]:
    raw = _Own(theirs.pgconn)
    raw.opened_by = theirs
    await raw.set_autocommit(True)
    return raw


async def made_in_thread(make: Callable[[], psycopg.Connection[Any]]) -> psycopg.AsyncConnection[Any]:
    """For an event loop, of what only a synchronous program can make."""
    making = asyncio.ensure_future(asyncio.to_thread(make))
    try:
        return await aadopted(await asyncio.shield(making))
    except asyncio.CancelledError:
        making.add_done_callback(_unwanted)
        raise


def _unwanted(making: asyncio.Future[psycopg.Connection[Any]]) -> None:
    if not making.cancelled() and making.exception() is None:
        making.result().close()
