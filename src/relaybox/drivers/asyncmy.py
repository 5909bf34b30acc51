"""asyncmy: callers' connections and our own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Literal

import asyncmy
from asyncmy.connection import Connection as RawConnection
from asyncmy.constants.CLIENT import FOUND_ROWS
from asyncmy.constants.SERVER_STATUS import SERVER_STATUS_IN_TRANS
from asyncmy.cursors import Cursor
from asyncmy.errors import MySQLError

from ..errors import UnsupportedByEngine
from ..op import Copy, Result, Statement
from .mysql_errors import connection_lost, translate_exception, wrong_charset
from .mysql_session import options, settings
from .sockets import libpq_options, set_keepalive
from .spi import DialectName, Silent


@contextmanager
def translated() -> Iterator[None]:
    try:
        yield
    except MySQLError as error:
        raise translate_exception(error) from error
    except UnicodeEncodeError as error:
        raise wrong_charset(error.encoding) from None
    except (OSError, EOFError, TimeoutError) as error:
        raise connection_lost(f"{type(error).__name__}: {error}") from error


class AsyncmyConnection(Silent):
    dialect: DialectName = "mysql"
    copy: ClassVar[bool] = False
    is_async: ClassVar[Literal[True]] = True

    def __init__(self, raw: Any) -> None:
        self.raw = raw

    async def execute(self, statement: Statement | Copy) -> Result:
        if isinstance(statement, Copy):
            raise UnsupportedByEngine("MySQL has no COPY; PostgreSQL has")
        text, params = statement.positional("format")
        with translated():
            async with self.raw.cursor(Cursor) as cursor:
                await cursor.execute(text, params)
                if statement.query.answer == "rows":
                    rows = await cursor.fetchall()
                    return Result(rows, len(rows))
                return Result((), cursor.rowcount)

    def in_transaction(self) -> bool:
        """The server says so with every reply; without autocommit the next statement opens one."""
        return bool(self.raw.server_status & SERVER_STATUS_IN_TRANS or not self.raw.get_autocommit())

    async def begin(self) -> None:
        with translated():
            await self.raw.query("START TRANSACTION")

    async def commit(self) -> None:
        with translated():
            await self.raw.commit()

    async def rollback(self) -> None:
        with translated():
            await self.raw.rollback()

    async def close(self) -> None:
        with translated():
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


async def aconnect(url: str, *, timeout: float | None = None, pause: float | None = None) -> AsyncmyConnection:
    """FOUND_ROWS: an UPDATE answers how many rows it found; one that was right already is not missing."""
    with translated():
        raw: Any = await asyncmy.connect(**options(url), client_flag=FOUND_ROWS)
        try:
            set_keepalive(_transport(raw).get_extra_info("socket"), libpq_options({}, timeout))
            for setting in settings(timeout, pause):
                await raw.query(setting)
        except BaseException:
            raw.close()
            raise
    return AsyncmyConnection(raw)
