"""asyncpg.Pool: what callers do goes by its connections. Services have connections of their own, made as the pool
makes its: its arguments, its `connect`, its class, its `init` and `setup`. A pool that is small, or held by handlers,
must not keep renewals waiting.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import asyncpg

from ..errors import Closed, ConfigError
from .asyncpg import AsyncpgConnection, ask_types, hear, looked_at, translated
from .lent import AsyncLentDatabase, Lent
from .pool import AsyncDatabase, Database
from .postgres_sessions import BEGIN, KEEP_MEMORY, session, transaction_limit
from .sockets import libpq_options
from .spi import AsyncConnection


class _Lent(Lent, AsyncpgConnection):
    """Its session is as its owner likes it, the level of isolation too."""

    _returned = False

    def __init__(self, pool: Any, raw: Any) -> None:
        super().__init__(raw)
        self._pool = pool

    async def begin(self) -> None:
        with translated:
            await self.raw.execute(BEGIN)

    async def close(self) -> None:
        """Back to the pool, which throws away what is closed: never with a transaction of ours left open."""
        if not self._returned:
            self._returned = True
            with translated:
                if not self.raw.is_closed() and self.raw.is_in_transaction():
                    self.raw.terminate()
                await self._pool.release(self.raw)


async def _borrow(pool: Any) -> AsyncConnection:
    if pool._loop is not asyncio.get_running_loop():
        raise ConfigError("this asyncpg pool belongs to another event loop; use it in the loop it was made in")
    with translated:
        try:
            return _Lent(pool, await pool.acquire())
        except asyncpg.InterfaceError as error:
            if str(error).startswith("pool is "):
                raise Closed(f"this asyncpg pool gives no connection: {error}; it must be open, and awaited") from error
            raise


def lend(pool: Any) -> Database | None:
    return borrow(pool)


def alend(pool: Any) -> AsyncDatabase | None:
    """For what callers do."""
    if not isinstance(pool, asyncpg.Pool):
        return None
    database = AsyncLentDatabase(
        "postgres", partial(_borrow, pool), size=pool.get_max_size(), listen=partial(_listen, pool), address=pool
    )
    database.own = partial(_own, pool, None, None)
    return database


def borrow(pool: Any, *_: object) -> Database | None:
    if isinstance(pool, asyncpg.Pool):
        raise ConfigError(
            "an asyncpg.Pool has no synchronous connections: use the asyncio part, such as AsyncOutbox, with "
            "coroutines as listeners; or pass a URL"
        )
    return None


def aborrow(pool: Any, size: int, timeout: float | None = None, pause: float | None = None) -> AsyncDatabase | None:
    if not isinstance(pool, asyncpg.Pool):
        return None
    return AsyncDatabase(
        "postgres",
        partial(_own, pool, timeout, pause),
        size=size,
        listen=partial(_listen, pool, timeout=timeout),
        timeout=timeout,
        address=pool,
    )


async def _listen(pool: Any, *how: Any, timeout: float | None = None) -> None:
    await hear(partial(_made, pool, timeout), *how, timeout=timeout)


async def _own(pool: Any, timeout: float | None, pause: float | None) -> AsyncConnection:
    with translated:
        raw, pooled = await _made(pool, timeout)
        if not pooled:
            try:
                settings = [f"SET {name} = '{value}'" for name, value in session(timeout, pause).items()]
                limit = transaction_limit(raw.get_server_version().major, timeout, pause)
                await raw.execute("; ".join([*settings, KEEP_MEMORY, limit]))
                await ask_types(raw)
            except BaseException:
                raw.terminate()
                raise
    return AsyncpgConnection(raw, pooled=pooled)


async def _made(pool: Any, timeout: float | None) -> tuple[Any, bool]:
    """And whether it leads to a pooler."""
    connect = getattr(pool, "_connect", asyncpg.connect)  # one of the caller's own, from asyncpg 0.30 on
    raw = await connect(
        *pool._connect_args,
        loop=asyncio.get_running_loop(),
        connection_class=pool._connection_class,
        record_class=pool._record_class,
        **{**pool._connect_kwargs, "command_timeout": None},  # ours have limits of their own
    )
    try:
        for prepare in (pool._init, pool._setup):
            if prepare is not None:
                await prepare(raw)
    except BaseException:
        raw.terminate()
        raise
    return await looked_at(raw, libpq_options({}, timeout))
