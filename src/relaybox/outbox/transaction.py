"""Transactions that relaybox begins and ends, for handles that cannot tell of their commit.

    with outbox.transaction(connection) as tx:      # psycopg, sqlite3, pymysql, …; or transaction() for a new one
        tx.connection.execute("INSERT INTO orders …")
        outbox.write(tx, Event(...))

After the commit the event is handed over without a poll. When the reply to COMMIT is lost, the block raises
CommitUnknown with the ids of the events: neither success nor failure.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from operator import call
from typing import Any, ClassVar, Literal

from ..drivers.spi import AsyncConnection, Callback, Connection, DialectName
from ..errors import CommitUnknown, ConfigError, ConnectionLost, StoreError
from ..op import Copy, Query, Result, Statement, adrive, drive
from ..twins import told_by

Calls = Generator[Callable[[], Any], None, None]  # to be made, or awaited


class _Begun:
    """The bookkeeping both twins share: callbacks, nesting, the ids written."""

    silent = False

    def __init__(self, inner: Connection | AsyncConnection) -> None:
        self._inner = inner
        self.event_ids: list[str] = []
        self._committed: list[Callback] = []
        self._rolled_back: list[Callback] = []
        self._depth = 0
        self._active = True

    @property
    def connection(self) -> Any:
        """The client library's own connection, for the business statements."""
        return self._inner.raw

    raw = connection

    @property
    def dialect(self) -> DialectName:
        return self._inner.dialect

    @property
    def copy(self) -> bool:
        return self._inner.copy

    def in_transaction(self) -> bool:
        return self._active

    def after_commit(self, callback: Callback) -> bool:
        self._committed.append(callback)
        return True

    def after_rollback(self, callback: Callback) -> bool:
        self._rolled_back.append(callback)
        return True

    def broken(self) -> bool:
        return self._inner.broken()

    def abort(self) -> None:
        self._inner.abort()

    def begin(self) -> Any:
        raise ConfigError(
            "a transaction() block commits and closes at its end: leave it, or raise an exception to roll back; "
            "savepoint() is for nested ones"
        )

    commit = rollback = close = begin

    def _commit(self) -> Calls:
        try:
            yield self._inner.commit
        except ConnectionLost as error:
            self._ended([])
            raise CommitUnknown(self.event_ids) from error
        except StoreError:
            yield from self._roll_back()
            raise
        self._ended(self._committed)

    def _roll_back(self) -> Calls:
        with suppress(StoreError):
            yield self._inner.rollback
        self._ended(self._rolled_back)

    def _ended(self, callbacks: list[Callback]) -> None:
        self._active = False
        for callback in callbacks:
            callback()

    def _standing(self) -> tuple[int, int, int]:
        return len(self.event_ids), len(self._committed), len(self._rolled_back)

    def _undone(self, standing: tuple[int, int, int]) -> None:
        """What was written since then was rolled back, whatever becomes of the transaction."""
        ids, committed, rolled_back = standing
        undone = self._rolled_back[rolled_back:]
        del self.event_ids[ids:], self._committed[committed:], self._rolled_back[rolled_back:]
        for callback in undone:
            callback()

    def _savepoint(self, verb: str) -> Statement:
        return Query("savepoint", f"{verb} relaybox_{self._depth}", "count").bind()


def _refuse(connection: Connection | AsyncConnection) -> None:
    if isinstance(connection, _Begun):
        raise ConfigError("transaction() began this transaction; use savepoint() for a nested one")
    if not connection.silent and connection.in_transaction():
        raise ConfigError("this handle is in a transaction already; write through it and commit it yourself")


class Transaction(_Begun):
    """What `outbox.transaction()` gives: a handle for `write`, and the client library's `connection` for all else. The
    block commits at its end, and rolls back if an exception leaves it."""

    is_async: ClassVar[Literal[False]] = False
    _inner: Connection

    def execute(self, statement: Statement | Copy) -> Result:
        """For relaybox itself. Statements of the program go through `connection`."""
        return self._inner.execute(statement)

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """An error inside rolls back to here; the outer transaction goes on if you catch it."""
        self._depth += 1
        self._inner.execute(self._savepoint("SAVEPOINT"))
        standing = self._standing()
        try:
            yield
        except BaseException:
            self._inner.execute(self._savepoint("ROLLBACK TO SAVEPOINT"))
            self._undone(standing)
            raise
        else:
            self._inner.execute(self._savepoint("RELEASE SAVEPOINT"))
        finally:
            self._depth -= 1


@told_by(Transaction)
class AsyncTransaction(_Begun):
    """What `AsyncOutbox.transaction()` gives: as `Transaction`."""

    is_async: ClassVar[Literal[True]] = True
    _inner: AsyncConnection

    async def execute(self, statement: Statement | Copy) -> Result:
        return await self._inner.execute(statement)

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[None]:
        self._depth += 1
        await self._inner.execute(self._savepoint("SAVEPOINT"))
        standing = self._standing()
        try:
            yield
        except BaseException:
            await self._inner.execute(self._savepoint("ROLLBACK TO SAVEPOINT"))
            self._undone(standing)
            raise
        else:
            await self._inner.execute(self._savepoint("RELEASE SAVEPOINT"))
        finally:
            self._depth -= 1


@contextmanager
def transaction(connection: Connection) -> Iterator[Transaction]:
    _refuse(connection)
    connection.begin()
    tx = Transaction(connection)
    try:
        yield tx
    except BaseException:
        drive(tx._roll_back(), call)
        raise
    drive(tx._commit(), call)


@asynccontextmanager
async def async_transaction(connection: AsyncConnection) -> AsyncIterator[AsyncTransaction]:
    _refuse(connection)
    await connection.begin()
    tx = AsyncTransaction(connection)
    try:
        yield tx
    except BaseException:
        await adrive(tx._roll_back(), call)
        raise
    await adrive(tx._commit(), call)
