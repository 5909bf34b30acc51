"""psycopg_pool: what callers do goes by connections of their pool. Services have connections of their own, made as the
pool makes its: its conninfo, its arguments, its class and its `configure`. A pool that is small, or held by handlers,
must not keep renewals waiting.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from inspect import isawaitable
from typing import Any, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import TransactionStatus
from psycopg_pool import AsyncConnectionPool, ConnectionPool, PoolClosed, PoolTimeout, TooManyRequests

from ..errors import Closed, ConfigError, StoreBusy
from .lent import AsyncLentDatabase, Lent, LentDatabase
from .pool import AsyncDatabase, Database
from .psycopg import (
    AsyncPsycopgConnection,
    PsycopgConnection,
    aadopted,
    adopted,
    aready,
    hear,
    made_in_thread,
    ready,
    translated,
)
from .sockets import libpq_options
from .spi import AsyncConnection, Connection, Silent

T = TypeVar("T")
Pool = ConnectionPool[Any] | AsyncConnectionPool[Any]


# -- of the pool -----------------------------------------------------------------------------------------


class _Lent(Lent, Silent):
    """In autocommit mode as long as we have it: our statements outside transactions leave none open."""

    pooled = True  # its session is as its owner likes it, the level of isolation too
    _returned = False

    def __init__(self, pool: Any, raw: Any) -> None:
        self._pool = pool
        self._was = raw.autocommit
        super().__init__(raw)

    def _cut_open(self) -> bool:
        """Never back with a transaction of ours left open: the pool throws away what is closed."""
        if self.raw.info.transaction_status == TransactionStatus.IDLE:
            return False
        self.raw.pgconn.finish()
        return True


class _LentConnection(_Lent, PsycopgConnection):
    def close(self) -> None:
        if not self._returned:
            self._returned = True
            with translated:
                if not self._cut_open():
                    self.raw.autocommit = self._was
                self._pool.putconn(self.raw)


class _AsyncLentConnection(_Lent, AsyncPsycopgConnection):
    async def close(self) -> None:
        if not self._returned:
            self._returned = True
            with translated:
                if not self._cut_open():
                    await self.raw.set_autocommit(self._was)
                await self._pool.putconn(self.raw)


class _Refused:
    """`with _Refused(pool):` says why a pool gives no connection."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, PoolClosed):
            raise Closed(f"the psycopg pool {self._pool.name!r} is closed, or not open yet; open it first") from error
        if isinstance(error, PoolTimeout | TooManyRequests):
            raise StoreBusy(f"the psycopg pool {self._pool.name!r} had no connection to give: {error}") from error


def _borrow(pool: ConnectionPool[Any]) -> Connection:
    with translated, _Refused(pool):
        raw = pool.getconn()
        lent = _LentConnection(pool, raw)
        raw.autocommit = True
    return lent


async def _aborrow(pool: AsyncConnectionPool[Any]) -> AsyncConnection:
    with translated, _Refused(pool):
        raw = await pool.getconn()
        lent = _AsyncLentConnection(pool, raw)
        await raw.set_autocommit(True)
    return lent


def lend(pool: Any) -> Database | None:
    """For what callers do."""
    if isinstance(pool, AsyncConnectionPool):
        raise ConfigError("an AsyncConnectionPool is for the asyncio part, such as AsyncOutbox; pass a ConnectionPool")
    if not isinstance(pool, ConnectionPool):
        return None
    database = LentDatabase("postgres", partial(_borrow, pool), size=pool.max_size, address=pool)
    database.own = partial(_own, pool, None, None)
    return database


def alend(pool: Any) -> AsyncDatabase | None:
    if isinstance(pool, ConnectionPool):
        raise ConfigError(
            "a ConnectionPool is synchronous and would block the event loop; pass an AsyncConnectionPool, or use "
            "the synchronous part, such as Outbox"
        )
    if not isinstance(pool, AsyncConnectionPool):
        return None
    database = AsyncLentDatabase(
        "postgres", partial(_aborrow, pool), size=pool.max_size, listen=partial(_listen, pool), address=pool
    )
    database.own = partial(_aown, pool, None, None)
    return database


# -- of our own ------------------------------------------------------------------------------------------


def borrow(pool: Any, size: int, timeout: float | None = None, pause: float | None = None) -> Database | None:
    if not isinstance(pool, ConnectionPool | AsyncConnectionPool):
        return None
    return Database("postgres", partial(_own, pool, timeout, pause), size=size, timeout=timeout, address=pool)


def aborrow(pool: Any, size: int, timeout: float | None = None, pause: float | None = None) -> AsyncDatabase | None:
    if not isinstance(pool, ConnectionPool | AsyncConnectionPool):
        return None
    return AsyncDatabase(
        "postgres",
        partial(_aown, pool, timeout, pause),
        size=size,
        listen=partial(_listen, pool, timeout=timeout),
        timeout=timeout,
        address=pool,
    )


def _own(pool: Pool, timeout: float | None, pause: float | None) -> Connection:
    with translated:
        if isinstance(pool, ConnectionPool):
            return ready(adopted(_made(pool, timeout)), timeout, pause)
        theirs = _in_thread_of_its_own(lambda: asyncio.run(_amade(pool, timeout)))
        return ready(adopted(theirs), timeout, pause)


async def _aown(pool: Pool, timeout: float | None, pause: float | None) -> AsyncConnection:
    with translated:
        return await aready(await _araw(pool, timeout), timeout, pause)


async def _listen(
    pool: Pool, channel: str, ready: Callable[[], None], wake: Callable[[], None], *, timeout: float | None = None
) -> None:
    with translated:
        await hear(await _araw(pool, timeout), channel, ready, wake, timeout)


async def _araw(pool: Pool, timeout: float | None) -> psycopg.AsyncConnection[Any]:
    if isinstance(pool, AsyncConnectionPool):
        return await aadopted(await _amade(pool, timeout))
    return await made_in_thread(partial(_made, pool, timeout))


def _made(pool: ConnectionPool[Any], timeout: float | None) -> psycopg.Connection[Any]:
    conninfo, given = pool.conninfo, pool.kwargs
    conninfo = conninfo() if callable(conninfo) else conninfo
    given = given() if callable(given) else given
    theirs: psycopg.Connection[Any] = pool.connection_class.connect(conninfo, **_arguments(conninfo, given, timeout))
    try:
        if pool._configure is not None:
            pool._configure(theirs)
        _check_idle(theirs)
    except BaseException:
        theirs.close()
        raise
    return theirs


async def _amade(pool: AsyncConnectionPool[Any], timeout: float | None) -> psycopg.AsyncConnection[Any]:
    conninfo, given = await _answer(pool.conninfo), await _answer(pool.kwargs)
    arguments = _arguments(conninfo, given, timeout)
    theirs: psycopg.AsyncConnection[Any] = await pool.connection_class.connect(conninfo, **arguments)
    try:
        if pool._configure is not None:
            await pool._configure(theirs)
        _check_idle(theirs)
    except BaseException:
        await theirs.close()
        raise
    return theirs


async def _answer(given: Any) -> Any:
    found = given() if callable(given) else given
    return await found if isawaitable(found) else found


def _arguments(conninfo: str, given: dict[str, Any] | None, timeout: float | None) -> dict[str, Any]:
    told = {**conninfo_to_dict(conninfo), **(given or {})}
    named = {} if told.get("application_name") else {"application_name": "relaybox"}
    return {**libpq_options(told, timeout), **named, **(given or {}), "autocommit": True}


def _check_idle(theirs: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    if theirs.info.transaction_status != TransactionStatus.IDLE:
        raise ConfigError("the pool's configure() leaves a transaction open; let it commit")


def _in_thread_of_its_own(work: Callable[[], T]) -> T:
    """Here a loop may run already."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(work).result()
