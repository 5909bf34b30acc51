"""PyMySQL: callers' connections and our own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Literal

import pymysql
from pymysql.constants import CLIENT, SERVER_STATUS
from pymysql.cursors import Cursor

from ..errors import StoreError, UnsupportedByEngine
from ..op import Copy, Result, Statement
from .limits import Watched
from .mysql_errors import connection_lost, translate_exception, wrong_charset
from .mysql_session import options, settings
from .sockets import CONNECT_SECONDS, cut, libpq_options, set_keepalive
from .spi import DialectName, Silent


@contextmanager
def translated() -> Iterator[None]:
    try:
        yield
    except pymysql.MySQLError as error:
        raise translate_exception(error) from error
    except UnicodeEncodeError as error:
        raise wrong_charset(error.encoding) from None
    except OSError as error:
        raise connection_lost(f"{type(error).__name__}: {error}") from error


class PymysqlConnection(Silent):
    dialect: DialectName = "mysql"
    copy: ClassVar[bool] = False
    is_async: ClassVar[Literal[False]] = False

    def __init__(self, raw: Any) -> None:
        self.raw = raw

    def execute(self, statement: Statement | Copy) -> Result:
        if isinstance(statement, Copy):
            raise UnsupportedByEngine("MySQL has no COPY; PostgreSQL has")
        text, params = statement.positional("format")
        with translated(), self.raw.cursor(Cursor) as cursor:
            cursor.execute(text, params)
            if statement.query.answer == "rows":
                rows = cursor.fetchall()
                return Result(rows, len(rows))
            return Result((), cursor.rowcount)

    def in_transaction(self) -> bool:
        """The server says so with every reply; without autocommit the next statement opens one."""
        status = self.raw.server_status
        return bool(status & SERVER_STATUS.SERVER_STATUS_IN_TRANS or not self.raw.get_autocommit())

    def begin(self) -> None:
        with translated():
            self.raw.query("START TRANSACTION")

    def commit(self) -> None:
        with translated():
            self.raw.commit()

    def rollback(self) -> None:
        with translated():
            self.raw.rollback()

    def close(self) -> None:
        with translated():
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


def connect(url: str, *, timeout: float | None = None, pause: float | None = None) -> PymysqlConnection:
    """FOUND_ROWS: an UPDATE answers how many rows it found; one that was right already is not missing."""
    with translated():
        try:
            raw = pymysql.connect(**options(url), client_flag=CLIENT.FOUND_ROWS)
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
