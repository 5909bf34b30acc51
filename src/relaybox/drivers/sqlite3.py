"""sqlite3 from the standard library: callers' connections, and our own, sync and async.

Our own async connections are a sqlite3 connection in a thread each, so SQLite needs no package at all.
`:memory:` is private to one connection; `file:name?mode=memory&cache=shared` is shared in the process.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, ClassVar, Literal, TypeVar
from urllib.parse import parse_qs, unquote, urlsplit

from ..errors import (
    MIGRATE,
    ConnectionLost,
    DuplicateEvent,
    SchemaMissing,
    StoreBusy,
    StoreError,
    StoreFull,
    UnreadableRow,
    UnsupportedByEngine,
)
from ..op import Copy, Result, Statement
from .spi import Adapter, DialectName, Silent, Translated

T = TypeVar("T")

BUSY_SECONDS = 5.0
OLDEST = (3, 35, 0)


def translate(error: sqlite3.Error) -> StoreError:
    """Our error for a result code. SQLite's texts name tables and columns, and only in one case values."""
    code: int = getattr(error, "sqlite_errorcode", None) or 0
    text = str(error)
    match code & 0xFF:
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return StoreBusy(f"SQLite gave up waiting for another writer ({text}); retry")
        case sqlite3.SQLITE_FULL:
            return StoreFull(f"SQLite is out of space ({text})")
        case sqlite3.SQLITE_CONSTRAINT if code in (
            sqlite3.SQLITE_CONSTRAINT_UNIQUE,
            sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY,
        ):
            return DuplicateEvent(text)
        case sqlite3.SQLITE_ERROR if "no such table" in text or "no such column" in text or "no column named" in text:
            return SchemaMissing(f"{text}; {MIGRATE}")
        case sqlite3.SQLITE_READONLY:
            return StoreError(f"this SQLite database is read-only ({text}); check the file and its folder")
        case sqlite3.SQLITE_CANTOPEN:
            return ConnectionLost(f"cannot open the SQLite database ({text}); does the folder exist?")
    if text.startswith("Could not decode to UTF-8"):  # and what follows is the value
        column = text.partition("column '")[2].partition("'")[0]
        return UnreadableRow(f"SQLite holds text that is not UTF-8 in the column {column!r}")
    if isinstance(error, sqlite3.ProgrammingError) and "closed" in text:
        return ConnectionLost("this SQLite connection is closed; open a new one")
    return StoreError(f"SQLite refused ({getattr(error, 'sqlite_errorname', type(error).__name__)}): {text}")


translated = Translated(lambda error: translate(error) if isinstance(error, sqlite3.Error) else None)


def begins_by_itself(raw: sqlite3.Connection) -> bool:
    """Whether the next INSERT opens a transaction: `autocommit` (3.12) decides, before it isolation_level."""
    autocommit = getattr(raw, "autocommit", -1)
    if autocommit in (True, False):
        return not autocommit
    return raw.isolation_level is not None


class Sqlite3Connection(Adapter):
    dialect: DialectName = "sqlite"
    translated = translated

    def __init__(self, raw: sqlite3.Connection, *, patient: bool = False) -> None:
        super().__init__(raw)
        self._patient = patient

    def execute(self, statement: Statement | Copy) -> Result:
        if isinstance(statement, Copy):
            raise UnsupportedByEngine("SQLite has no COPY; PostgreSQL has")
        text, _ = statement.query.compiled("named")
        with translated:
            return self._waiting(lambda: self._execute(text, statement))

    def _execute(self, text: str, statement: Statement) -> Result:
        """A cursor of our own: the caller's row factory would change what rows are."""
        cursor = sqlite3.Cursor(self.raw)
        try:
            cursor.execute(text, statement.params)
            if statement.query.answer == "rows":
                rows = cursor.fetchall()
                return Result(rows, len(rows))
            return Result((), cursor.rowcount)
        finally:
            cursor.close()

    def _waiting(self, action: Callable[[], T]) -> T:
        """A shared in-memory database locks by table and does not know busy_timeout: wait here."""
        if not self._patient:
            return action()
        deadline = time.monotonic() + BUSY_SECONDS
        while True:
            try:
                return action()
            except sqlite3.OperationalError as error:
                locked = (error.sqlite_errorcode & 0xFF) == sqlite3.SQLITE_LOCKED
                if not locked or time.monotonic() > deadline:
                    raise
            time.sleep(0.001)

    def in_transaction(self) -> bool:
        with translated:
            return self.raw.in_transaction or begins_by_itself(self.raw)

    def begin(self) -> None:
        """IMMEDIATE: a deferred transaction that reads first cannot wait for its write lock, only fail."""
        with translated:
            self._waiting(lambda: self.raw.execute("BEGIN IMMEDIATE"))

    def commit(self) -> None:
        with translated:
            self._waiting(self.raw.commit)

    def broken(self) -> bool:
        try:
            self.raw.in_transaction  # noqa: B018
        except sqlite3.ProgrammingError:
            return True
        return False


class AsyncSqlite3Connection(Silent):
    """One connection, one thread. A statement under way cannot be stopped, so a cancelled caller waits for it."""

    dialect: DialectName = "sqlite"
    is_async: ClassVar[Literal[True]] = True

    def __init__(self, connection: Sqlite3Connection, thread: ThreadPoolExecutor) -> None:
        super().__init__(connection.raw)
        self._sync = connection
        self._thread = thread

    async def _call(self, action: Callable[[], T]) -> T:
        try:
            return await _to_end(self._thread, action)
        except RuntimeError as error:  # the thread is gone
            raise ConnectionLost("this SQLite connection is closed; open a new one") from error

    async def execute(self, statement: Statement | Copy) -> Result:
        return await self._call(lambda: self._sync.execute(statement))

    def in_transaction(self) -> bool:
        return self._sync.in_transaction()

    async def begin(self) -> None:
        try:
            await self._call(self._sync.begin)
        except asyncio.CancelledError:
            await self._call(self._sync.rollback)  # nobody else knows that it may have begun
            raise

    async def commit(self) -> None:
        await self._call(self._sync.commit)

    async def rollback(self) -> None:
        await self._call(self._sync.rollback)

    async def close(self) -> None:
        if not self.broken():
            await self._call(self._sync.close)
        self._thread.shutdown(wait=False)

    def broken(self) -> bool:
        return self._sync.broken()


async def _to_end(thread: ThreadPoolExecutor, action: Callable[[], T]) -> T:
    done = asyncio.wrap_future(thread.submit(action))
    try:
        return await asyncio.shield(done)
    except asyncio.CancelledError:
        while not done.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([done])
        if not done.cancelled():
            done.exception()  # seen: asyncio would report it as forgotten
        raise


def wrap(handle: Any) -> Sqlite3Connection | None:
    if isinstance(handle, sqlite3.Connection):
        return Sqlite3Connection(handle)
    if isinstance(handle, sqlite3.Cursor):
        return Sqlite3Connection(handle.connection)
    return None


def connect(path: str, *, timeout: float | None = None) -> Sqlite3Connection:
    """A file, `:memory:`, or a `file:` URI. WAL lets readers read while one writes; FULL survives power loss."""
    if sqlite3.sqlite_version_info < OLDEST:
        raise UnsupportedByEngine(
            f"relaybox needs SQLite 3.35 or newer, this Python has {sqlite3.sqlite_version}; use a newer Python "
            "build, PostgreSQL or MySQL"
        )
    uri = path.startswith("file:")
    in_memory = path == ":memory:" or (uri and "mode=memory" in path)
    patience = BUSY_SECONDS if timeout is None else min(timeout, BUSY_SECONDS)
    if not in_memory and not uri and (folder := _missing_folder(path)):
        raise ConnectionLost(f"there is no folder {folder!r} for the SQLite database {path!r}")
    with translated:
        if not in_memory:
            _make_private(path, uri)
        raw = sqlite3.connect(path, timeout=patience, isolation_level=None, check_same_thread=False, uri=uri)
        raw.execute("PRAGMA synchronous = FULL")
        if not in_memory:
            _use_wal(raw)
    return Sqlite3Connection(raw, patient=uri and in_memory)


def _missing_folder(path: str) -> str | None:
    """SQLite makes the file, but not its folder."""
    folder = os.path.dirname(path)
    return None if not folder or os.path.isdir(folder) else folder


def _make_private(path: str, uri: bool) -> None:
    """A file that we make is for its owner alone, and SQLite gives -wal and -shm the mode of the file. One that is
    there keeps its mode."""
    if uri:
        parts = urlsplit(path)
        path = unquote(parts.path)
        if parse_qs(parts.query).get("mode", ["rwc"]) != ["rwc"]:
            return
    with suppress(OSError):  # SQLite says better what is wrong
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))


def _use_wal(raw: sqlite3.Connection) -> None:
    """The mode is a property of the file. Busy: another connection has set it, or the next one will."""
    (mode,) = raw.execute("PRAGMA journal_mode").fetchone()
    if mode != "wal":
        try:
            raw.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if (error.sqlite_errorcode & 0xFF) not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_READONLY):
                raise


async def aconnect(path: str, *, timeout: float | None = None) -> AsyncSqlite3Connection:
    thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="relaybox-sqlite")
    try:
        connection = await _to_end(thread, lambda: connect(path, timeout=timeout))
    except BaseException:
        thread.shutdown(wait=False)
        raise
    return AsyncSqlite3Connection(connection, thread)
