"""Connections relaybox opens itself: a handful per process, made when needed, dropped when broken.

Every client library has a pool of its own with its own habits; relaybox needs at most a few connections at
once and the same behaviour on all of them, so this is one small pool over the adapters. A forked child
never touches its parent's sockets, and keeps what it inherits of them from ending as garbage.

A pool of services of ours has a time limit: an op that has not ended by then (waiting for a connection, opening
one and the commit included) loses its connection. With it go the idle ones to the same address, in this pool and in
others: they are as suspect, and would be found out one by one. A network that swallows packets says nothing: only new
connections show that the database is there.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import Any, Generic, TypeVar
from weakref import WeakSet

from ..errors import Closed, ConnectionLost, StoreBusy, StoreError
from ..forks import FreshLock, renew_after_fork
from ..op import Op, T, arun, run
from .limits import Deadlines, Watched, silent
from .spi import AsyncConnection, AsyncRunner, Callback, Connection, DialectName, Runner

log = logging.getLogger("relaybox")
GOODBYE = 1.0  # seconds a database gets to take note of the end of a connection

C = TypeVar("C")
_pools: WeakSet[_Pool[Any]] = WeakSet()
_listing = FreshLock()
_inherited: list[object] = []  # connections of our parent: when one ends here, the parent's event loop goes deaf to it


def _doubt(address: object) -> None:
    with _listing:
        for pool in _pools:
            if pool.address == address:
                pool.doubted = True


class _Pool(Generic[C]):
    """What both kinds have in common."""

    idle: list[Any]
    here = False  # its connections are those of the threads that use it

    def __init__(
        self,
        dialect: DialectName,
        connect: Callable[[], C],
        *,
        size: int = 4,
        listen: Callable[[str, Callback, Callback], Awaitable[None]] | None = None,
        timeout: float | None = None,
        address: object = None,
        place: Callable[[], object] | None = None,
    ) -> None:
        """`place`: where connections lead by now, of a target that may be turned to another database."""
        self.dialect = dialect
        self._place = place
        self.at: object = None  # where those that are idle lead
        self.address = address if address is not None else self
        self.doubted = False  # what is idle here may be dead: its network swallows packets
        self._connect = connect
        self.size = size
        self._timeout = timeout  # seconds for one op; None: no limit
        self._closed = False
        # listen(channel, ready, wake): LISTENs until cancelled or the connection breaks; None: cannot
        self.listen = listen
        self.begin()
        renew_after_fork(self)
        with _listing:
            _pools.add(self)

    def begin(self) -> None:
        """Also in a forked child: what others in its parent hold of connections, slots and locks nobody gives back
        here."""
        raise NotImplementedError

    def after_fork(self) -> None:
        _inherited.extend(self.idle)
        self.begin()


class Database(_Pool[Connection]):
    """Sync: `run(op)` on a borrowed connection, inside a transaction unless told otherwise."""

    def begin(self) -> None:
        self.idle: list[Connection] = []
        self._lock = threading.Lock()
        self.slots = threading.BoundedSemaphore(self.size)

    def run(self, op: Op[T], *, tx: bool = True) -> T:
        return self.run_within(self._timeout, op, tx=tx)

    def within(self, seconds: float | None) -> Runner:
        """The same connections with another limit."""
        return _Within(self, seconds)

    def run_within(self, seconds: float | None, op: Op[T], *, tx: bool = True) -> T:
        """SQLite has a limit of its own."""
        if self.dialect == "sqlite":
            seconds = None
        with self.connection(seconds) as connection:
            watched = Watched(seconds, connection)
            try:
                with watched:
                    if not tx:
                        return run(op, connection)
                    connection.begin()
                    try:
                        value = run(op, connection)
                    except BaseException:
                        _quietly(connection.rollback)
                        raise
                    connection.commit()
                    return value
            finally:
                if watched.expired:  # in the last moment, perhaps: then it does not look broken
                    _quietly(connection.close)
                    _doubt(self.address)

    def connection(self, seconds: float | None = None) -> AbstractContextManager[Connection]:
        """A connection, waited for so many seconds; None: as long as it takes."""
        if self._closed:
            raise Closed("this outbox is closed; make a new one")
        return _Loan(self, seconds)

    def take(self) -> Connection:
        if self.doubted:
            self.distrust()
        with self._lock:
            while self.idle:
                connection = self.idle.pop()
                if not connection.broken():
                    return connection
        return self._connect()

    def give_back(self, connection: Connection, *, suspect: bool) -> None:
        if self._closed or connection.broken() or (suspect and connection.in_transaction()):
            _quietly(connection.close)
            return
        with self._lock:
            self.idle.append(connection)

    def distrust(self) -> None:
        self.doubted = False
        with self._lock:
            idle, self.idle = self.idle, []
        for connection in idle:
            _quietly(connection.close)

    def close(self) -> None:
        self._closed = True
        self.distrust()


class AsyncDatabase(_Pool[Awaitable[AsyncConnection]]):
    """Async: the same for the background services, and for AsyncOutbox."""

    def begin(self) -> None:
        self.idle: list[AsyncConnection] = []
        self.slots = asyncio.Semaphore(self.size)
        self._limits = Deadlines()
        self._ending: set[asyncio.Future[None]] = set()

    def run(self, op: Op[T], *, tx: bool = True) -> Coroutine[Any, Any, T]:
        return self.run_within(self._timeout, op, tx=tx)

    def within(self, seconds: float | None) -> AsyncRunner:
        """The same connections with another limit."""
        return _Within(self, seconds)

    async def run_within(self, seconds: float | None, op: Op[T], *, tx: bool = True) -> T:
        loan = self.connection()
        limited = self._limits.enter(seconds) if seconds is not None else None
        try:
            async with loan as connection:
                if limited is not None:
                    limited.connection = connection
                if not tx:
                    return await arun(op, connection)
                await connection.begin()
                try:
                    value = await arun(op, connection)
                except Exception:  # what is cancelled loses its connection, and the transaction with it
                    with suppress(StoreError):
                        await connection.rollback()
                    raise
                await connection.commit()
                return value
        except (asyncio.CancelledError, ConnectionLost):  # lost: cut, as it went on in spite of its cancellation
            if limited is None or not self._limits.missed(limited):
                raise
            if not loan.begun:
                raise _busy(self.size, seconds) from None
            _doubt(self.address)
            raise silent(seconds) from None
        finally:
            if limited is not None:
                self._limits.leave(limited)

    def connection(self) -> _AsyncLoan:
        if self._closed:
            raise Closed("this outbox is closed; make a new one")
        return _AsyncLoan(self)

    async def take(self) -> AsyncConnection:
        if self._place is not None and self.at != (at := self._place()):
            self.at, self.doubted = at, True
        if self.doubted:
            self.distrust()
        while self.idle:
            connection = self.idle.pop()
            if not connection.broken():
                return connection
        return await self._connect()

    async def give_back(self, connection: AsyncConnection, *, suspect: bool) -> None:
        if self._closed or connection.broken() or (suspect and connection.in_transaction()):
            self.drop(connection)
        else:
            self.idle.append(connection)

    def drop(self, connection: AsyncConnection) -> None:
        """Close it without waiting for it: a database that swallows packets answers no good-bye either."""
        self.ending(connection.close())

    def ending(self, close: Coroutine[Any, Any, None]) -> None:
        ending = asyncio.ensure_future(close)
        self._ending.add(ending)
        ending.add_done_callback(self._ended)

    def distrust(self) -> None:
        self.doubted = False
        idle, self.idle = self.idle, []
        for connection in idle:
            self.drop(connection)

    def _ended(self, ending: asyncio.Future[None]) -> None:
        self._ending.discard(ending)
        if not ending.cancelled() and not isinstance(error := ending.exception(), StoreError | None):
            log.error("a connection did not close: %s", type(error).__name__)

    async def close(self) -> None:
        self._closed = True
        self.distrust()
        if self._ending:
            _, mute = await asyncio.wait(self._ending, timeout=GOODBYE)
            for ending in mute:
                ending.cancel()
            if mute:
                await asyncio.wait(mute, timeout=GOODBYE)


class _Within:
    """A database with a limit of its own."""

    def __init__(self, database: Any, seconds: float | None) -> None:
        self.dialect = database.dialect
        self.here = database.here
        self.size = database.size
        self.address = database.address
        self.listen = database.listen
        self.within = database.within
        self.connection = database.connection
        self.close = database.close
        self.run = partial(database.run_within, seconds)


class _Loan:
    """A connection for a `with` block. Not a generator: every statement of ours pays for this."""

    __slots__ = ("_connection", "_database", "_seconds", "_slots")

    def __init__(self, database: Database, seconds: float | None) -> None:
        self._database = database
        self._seconds = seconds
        self._slots = database.slots

    def __enter__(self) -> Connection:
        if not self._slots.acquire(timeout=self._seconds):
            raise _busy(self._database.size, self._seconds)
        try:
            self._connection = self._database.take()
        except BaseException:
            self._slots.release()
            raise
        return self._connection

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if self._slots is not self._database.slots:
            _inherited.append(self._connection)
            return
        try:
            if kind is None or issubclass(kind, Exception):
                self._database.give_back(self._connection, suspect=kind is not None)
            else:  # interrupted: what it leaves behind shows only later
                _quietly(self._connection.close)
        finally:
            self._slots.release()


class _AsyncLoan:
    """A `_Loan` in an event loop."""

    __slots__ = ("_at", "_connection", "_database", "_slots", "begun")

    def __init__(self, database: AsyncDatabase) -> None:
        self._database = database
        self._slots = database.slots
        self.begun = False  # it has had its turn

    async def __aenter__(self) -> AsyncConnection:
        await self._slots.acquire()
        self.begun = True
        try:
            self._connection = await self._database.take()
            self._at = self._database.at
        except BaseException:
            self._slots.release()
            raise
        return self._connection

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if self._slots is not self._database.slots:
            _inherited.append(self._connection)
            return
        try:
            if (kind is None or issubclass(kind, Exception)) and self._at == self._database.at:
                await self._database.give_back(self._connection, suspect=kind is not None)
            else:  # it leads elsewhere than the target by now, or was cancelled and may leave a transaction open
                self._database.drop(self._connection)
        finally:
            self._slots.release()


def _busy(size: int, seconds: float | None) -> StoreBusy:
    return StoreBusy(f"none of our {size} connections was free within {seconds or 0:g} s")


def _quietly(action: Callable[[], Any]) -> None:
    """Clean-up on a connection that may be gone: its failure must not hide the first error."""
    with suppress(StoreError):
        action()
