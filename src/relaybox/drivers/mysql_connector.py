"""MySQL Connector/Python, with its C extension or without: callers' connections. Our own are PyMySQL's or asyncmy's."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import mysql.connector
from mysql.connector.abstracts import MySQLConnectionAbstract, MySQLCursorAbstract
from mysql.connector.pooling import PooledMySQLConnection

from ..errors import ConfigError, UnsupportedByEngine
from ..op import Copy, Result, Statement
from .mysql_errors import connection_lost, translated_from
from .sockets import cut
from .spi import Adapter, DialectName

try:
    interface_error = import_module("_mysql_connector").MySQLInterfaceError  # here and there it gets out untranslated
except ImportError:  # it can do without its C extension
    interface_error = mysql.connector.Error


class MysqlConnectorConnection(Adapter):
    dialect: DialectName = "mysql"
    translated = translated_from(mysql.connector.Error, interface_error)

    def execute(self, statement: Statement | Copy) -> Result:
        if isinstance(statement, Copy):
            raise UnsupportedByEngine("MySQL has no COPY; PostgreSQL has")
        text, params = statement.positional("percent")
        with self.translated:
            cursor = self.raw.cursor(buffered=True)
            try:
                cursor.execute(text, tuple(params))
                if statement.query.answer == "rows":
                    rows = [tuple(map(value_of, row)) for row in cursor.fetchall()]
                    return Result(rows, len(rows))
                return Result((), cursor.rowcount)
            finally:
                cursor.close()

    def in_transaction(self) -> bool:
        """Without autocommit the next statement opens one. To ask for autocommit is a round trip, the last question."""
        with self.translated:
            return bool(self.raw.in_transaction or not self.raw.autocommit)

    def begin(self) -> None:
        with self.translated:
            self.raw.cmd_query("START TRANSACTION")

    def abort(self) -> None:
        """Through the C extension there is no way to the socket: there a call ends by the client's own limits."""
        there = getattr(getattr(self.raw, "_socket", None), "sock", None)
        if there is not None and there.fileno() >= 0:
            cut(there.fileno())

    def broken(self) -> bool:
        return self.raw.connection_id is None


def value_of(value: Any) -> Any:
    """Without its C extension it answers binary columns as bytearrays."""
    return bytes(value) if isinstance(value, bytearray) else value


def wrap(handle: Any) -> MysqlConnectorConnection | None:
    if isinstance(handle, PooledMySQLConnection) and handle._cnx is None:
        raise connection_lost("this one went back to its pool")
    if isinstance(handle, MySQLCursorAbstract):
        handle = _of_cursor(handle)
    if not isinstance(handle, PooledMySQLConnection | MySQLConnectionAbstract):
        return None
    if handle._raw:
        raise ConfigError(
            "this connection was made with raw=True and answers bytes for everything; write through another"
        )
    return MysqlConnectorConnection(handle)


def _of_cursor(cursor: Any) -> Any:
    """A weak proxy with methods, or None: the cursor is closed."""
    return getattr(cursor._connection, "get_self", lambda: None)()
