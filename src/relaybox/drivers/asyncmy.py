"""asyncmy: callers' connections and our own."""

from __future__ import annotations

from typing import Any

from asyncmy.connection import Connection as RawConnection
from asyncmy.cursors import Cursor
from asyncmy.errors import MySQLError

from ..errors import UnsupportedByEngine
from ..op import Copy, Result, Statement
from .mysql_errors import translated_from
from .mysql_session import MysqlAdapter, Reticent, Wary, options, reached, settings
from .sockets import libpq_options, set_keepalive
from .spi import AsyncAdapter

translated = translated_from(MySQLError)


class AsyncmyConnection(MysqlAdapter, AsyncAdapter):
    translated = translated

    async def execute(self, statement: Statement | Copy) -> Result:
        if isinstance(statement, Copy):
            raise UnsupportedByEngine("MySQL has no COPY; PostgreSQL has")
        text, params = statement.positional("format")
        with translated:
            async with self.raw.cursor(Cursor) as cursor:
                await cursor.execute(text, params)
                if statement.query.answer == "rows":
                    rows = await cursor.fetchall()
                    return Result(rows, len(rows))
                return Result((), cursor.rowcount)

    async def begin(self) -> None:
        with translated:
            await self.raw.query("START TRANSACTION")

    async def close(self) -> None:
        with translated:
            await self.raw.ensure_closed()

    def abort(self) -> None:
        if (transport := _transport(self.raw)) is not None:
            transport.abort()

    def broken(self) -> bool:
        """Closed by us, by a cancelled read, or by the server while it lay idle."""
        return not self.raw.connected or bool(getattr(self.raw, "_stream_broken", False))


def _transport(raw: Any) -> Any:
    """asyncmy before 0.2.12 has a writer."""
    return getattr(raw, "_transport", None) or getattr(getattr(raw, "_writer", None), "transport", None)


def wrap(handle: Any) -> AsyncmyConnection | None:
    if isinstance(handle, RawConnection):
        return AsyncmyConnection(handle)
    if isinstance(handle, Cursor) and handle.connection is not None:
        return AsyncmyConnection(handle.connection)
    return None


class _Wary(Wary, RawConnection):
    pass


class _Reticent(Reticent, RawConnection):
    pass


async def aconnect(url: str, *, timeout: float | None = None, pause: float | None = None) -> AsyncmyConnection:
    transport = reached(url)
    raw: Any = (_Reticent if transport.guarded else _Wary)(**options(url))
    with translated:
        await raw.connect()
        try:
            set_keepalive(_transport(raw).get_extra_info("socket"), libpq_options({}, timeout))
            for setting in settings(timeout, pause):
                await raw.query(setting)
        except BaseException:
            raw.close()
            raise
    return AsyncmyConnection(raw)
