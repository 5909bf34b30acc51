"""PyMySQL: callers' connections and our own."""

from __future__ import annotations

from typing import Any

import pymysql
from pymysql.cursors import Cursor

from ..errors import StoreError, UnsupportedByEngine
from ..op import Copy, Result, Statement
from .limits import Watched
from .mysql_errors import translated_from
from .mysql_session import MysqlAdapter, Reticent, Wary, options, reached, settings
from .sockets import CONNECT_SECONDS, cut, libpq_options, set_keepalive
from .spi import Adapter

translated = translated_from(pymysql.MySQLError)


class PymysqlConnection(MysqlAdapter, Adapter):
    translated = translated

    def execute(self, statement: Statement | Copy) -> Result:
        if isinstance(statement, Copy):
            raise UnsupportedByEngine("MySQL has no COPY; PostgreSQL has")
        text, params = statement.positional("format")
        with translated, self.raw.cursor(Cursor) as cursor:
            cursor.execute(text, params)
            if statement.query.answer == "rows":
                rows = cursor.fetchall()
                return Result(rows, len(rows))
            return Result((), cursor.rowcount)

    def begin(self) -> None:
        with translated:
            self.raw.query("START TRANSACTION")

    def close(self) -> None:
        with translated:
            if self.raw.open:
                self.raw.close()

    def abort(self) -> None:
        if (there := self.raw._sock) is not None and there.fileno() >= 0:
            cut(there.fileno())

    def broken(self) -> bool:
        return not self.raw.open


def wrap(handle: Any) -> PymysqlConnection | None:
    if isinstance(handle, pymysql.connections.Connection):
        return PymysqlConnection(handle)
    if isinstance(handle, Cursor) and handle.connection is not None:
        return PymysqlConnection(handle.connection)
    return None


class _Wary(Wary, pymysql.connections.Connection):  # type: ignore[misc]
    pass


class _Reticent(Reticent, pymysql.connections.Connection):  # type: ignore[misc]
    pass


def connect(url: str, *, timeout: float | None = None, pause: float | None = None) -> PymysqlConnection:
    transport = reached(url)
    given = options(url)
    client = _Reticent if transport.guarded else _Wary
    with translated:
        try:
            raw = client(**given, ssl_disabled="ssl" not in given)  # it would take what it gets, and verify nobody
        except RuntimeError as error:  # an authentication method that needs another package
            raise StoreError(f"PyMySQL cannot log in: {error}") from error
        try:
            set_keepalive(raw._sock, libpq_options({}, timeout))
            connection = PymysqlConnection(raw)
            with Watched(timeout or CONNECT_SECONDS, connection):
                for setting in settings(timeout, pause):
                    raw.query(setting)
        except BaseException:
            raw.close()
            raise
    return connection
