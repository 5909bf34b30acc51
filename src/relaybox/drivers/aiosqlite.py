"""aiosqlite: callers' connections. Our own need no package, see `sqlite3`."""

from __future__ import annotations

import sqlite3
from typing import Any

import aiosqlite

from ..errors import ConnectionLost, StoreError, UnsupportedByEngine
from ..op import Copy, Result, Statement
from .spi import AsyncAdapter, DialectName, Translated
from .sqlite3 import begins_by_itself, translate


def _translate(error: BaseException) -> StoreError | None:
    if isinstance(error, sqlite3.Error):
        return translate(error)
    if isinstance(error, ValueError):  # how aiosqlite says "closed"
        return ConnectionLost("this SQLite connection is closed; open a new one")
    return None


translated = Translated(_translate)


class AiosqliteConnection(AsyncAdapter):
    dialect: DialectName = "sqlite"
    translated = translated

    async def execute(self, statement: Statement | Copy) -> Result:
        """A cursor whose rows are tuples, whatever row factory the caller chose."""
        if isinstance(statement, Copy):
            raise UnsupportedByEngine("SQLite has no COPY; PostgreSQL has")
        text, _ = statement.query.compiled("named")
        with translated:
            async with self.raw.cursor() as cursor:
                cursor.row_factory = None
                await cursor.execute(text, statement.params)
                if statement.query.answer == "rows":
                    rows = list(await cursor.fetchall())
                    return Result(rows, len(rows))
                return Result((), cursor.rowcount)

    def in_transaction(self) -> bool:
        with translated:
            return self.raw.in_transaction or begins_by_itself(self.raw._conn)

    async def begin(self) -> None:
        with translated:
            await (await self.raw.execute("BEGIN IMMEDIATE")).close()

    def broken(self) -> bool:
        try:
            self.raw.in_transaction  # noqa: B018
        except (ValueError, sqlite3.ProgrammingError):
            return True
        return False


def wrap(handle: Any) -> AiosqliteConnection | None:
    if isinstance(handle, aiosqlite.Connection):
        return AiosqliteConnection(handle)
    if isinstance(handle, aiosqlite.Cursor):
        return AiosqliteConnection(handle._conn)
    return None
