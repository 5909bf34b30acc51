"""psycopg2: callers' connections. Our own are psycopg's or asyncpg's."""

from __future__ import annotations

from typing import Any

import psycopg2
from psycopg2.extensions import TRANSACTION_STATUS_IDLE, TRANSACTION_STATUS_INERROR, cursor
from psycopg2.extensions import connection as RawConnection

from ..errors import StoreError, UnsupportedByEngine
from ..op import Copy, Result, Statement
from .postgres_errors import connection_lost, translate_sqlstate
from .sockets import cut
from .spi import Adapter, DialectName, Translated


def translate(error: BaseException) -> StoreError | None:
    if isinstance(error, UnicodeEncodeError):
        return StoreError(
            f"this connection speaks {error.encoding}, which cannot carry the text of the statement; "
            "call set_client_encoding('UTF8')"
        )
    if not isinstance(error, psycopg2.Error):
        return None
    if error.pgcode is None and isinstance(error, (psycopg2.OperationalError, psycopg2.InterfaceError)):
        return connection_lost(str(error))
    return translate_sqlstate(error.pgcode or "", error.diag.message_primary or str(error).partition("\n")[0])


class Psycopg2Connection(Adapter):
    """COPY stays off: psycopg2's speaks text only."""

    dialect: DialectName = "postgres"
    translated = Translated(translate)

    def execute(self, statement: Statement | Copy) -> Result:
        if isinstance(statement, Copy):
            raise UnsupportedByEngine("psycopg2 has no binary COPY; psycopg and asyncpg have")
        text, params = statement.positional("format")
        with self.translated, self.raw.cursor(cursor_factory=cursor) as ours:
            ours.execute(text, tuple(params))
            if statement.query.answer == "rows":
                rows = [tuple(map(_value, row)) for row in ours.fetchall()]
                return Result(rows, len(rows))
            return Result((), ours.rowcount)

    def in_transaction(self) -> bool:
        with self.translated:
            return bool(not self.raw.autocommit or self.raw.get_transaction_status() != TRANSACTION_STATUS_IDLE)

    def begin(self) -> None:
        """Outside autocommit psycopg2 says BEGIN itself, before the next statement."""
        if self.raw.autocommit:
            self._say("BEGIN")

    def commit(self) -> None:
        """The server would answer COMMIT of a failed transaction with ROLLBACK and no error."""
        with self.translated:
            if self.raw.get_transaction_status() == TRANSACTION_STATUS_INERROR:
                raise translate_sqlstate("25P02", "")
        self._end("COMMIT", self.raw.commit)

    def rollback(self) -> None:
        self._end("ROLLBACK", self.raw.rollback)

    def _end(self, word: str, method: Any) -> None:
        """In autocommit psycopg2 does not know of the transaction that we began, and its methods do nothing."""
        if self.raw.autocommit:
            self._say(word)
            return
        with self.translated:
            method()

    def _say(self, word: str) -> None:
        with self.translated, self.raw.cursor(cursor_factory=cursor) as ours:
            ours.execute(word)

    def abort(self) -> None:
        if not self.raw.closed:
            cut(self.raw.fileno())

    def broken(self) -> bool:
        return bool(self.raw.closed)


def _value(value: Any) -> Any:
    return bytes(value) if isinstance(value, memoryview) else value


def wrap(handle: Any) -> Psycopg2Connection | None:
    if isinstance(handle, RawConnection):
        return Psycopg2Connection(handle)
    if isinstance(handle, cursor):
        return Psycopg2Connection(handle.connection)
    return None
