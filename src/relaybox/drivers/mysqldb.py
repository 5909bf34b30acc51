"""mysqlclient (MySQLdb): callers' connections. Our own are PyMySQL's or asyncmy's."""

from __future__ import annotations

from typing import Any

import MySQLdb
from MySQLdb.connections import Connection as RawConnection
from MySQLdb.cursors import BaseCursor, Cursor

from ..errors import UnsupportedByEngine
from ..op import Copy, Result, Statement
from .mysql_errors import translated_from
from .sockets import cut
from .spi import Adapter, DialectName


class MysqldbConnection(Adapter):
    dialect: DialectName = "mysql"
    translated = translated_from(MySQLdb.MySQLError)

    def execute(self, statement: Statement | Copy) -> Result:
        if isinstance(statement, Copy):
            raise UnsupportedByEngine("MySQL has no COPY; PostgreSQL has")
        text, params = statement.positional("format")
        with self.translated, self.raw.cursor(Cursor) as cursor:
            cursor.execute(text, params)
            if statement.query.answer == "rows":
                rows = cursor.fetchall()
                return Result(rows, len(rows))
            return Result((), cursor.rowcount)

    def in_transaction(self) -> bool:
        """mysqlclient does not tell whether one has begun: without autocommit the next statement opens one, and with it
        there is none that we could know of."""
        with self.translated:
            return not self.raw.get_autocommit()

    def begin(self) -> None:
        with self.translated:
            self.raw.query("START TRANSACTION")

    def close(self) -> None:
        if self.raw.open:
            super().close()

    def abort(self) -> None:
        if self.raw.open:
            cut(self.raw.fileno())

    def broken(self) -> bool:
        return not self.raw.open


def wrap(handle: Any) -> MysqldbConnection | None:
    if isinstance(handle, RawConnection):
        return MysqldbConnection(handle)
    if isinstance(handle, BaseCursor) and handle.connection is not None:
        return MysqldbConnection(handle.connection)
    return None
