"""The transaction of one message, or of several: the mark, the listener's writes, and one commit for both.

    own     begun and committed here, on a connection of the inbox; the listener is given the client library's object
    given   yours: `sessionmaker`, an engine, or any function that gives a context manager of a transaction, such as

        @contextmanager
        def unit_of_work():
            with transaction.atomic():
                yield django.db.connection

What enters must commit when its block ends and roll back on an error: the mark goes into it.

Everything here is written once, as generators that yield steps: `play` calls them in a thread, `aplay` awaits them in
an event loop.

A network can fall silent. Every statement of ours, begin, commit and rollback with them, ends within
`delivery.database_timeout`. A listener's own end with its time: its connection is cut then, and thrown away.
"""

from __future__ import annotations

import threading
from asyncio import CancelledError
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, TypeVar

from ..drivers import wrap
from ..drivers.limits import Deadlines, Watched
from ..drivers.spi import AsyncConnection, AsyncRunner, Connection, Runner
from ..errors import (
    BrokerUnavailable,
    ConfigError,
    ConnectionLost,
    NoTransaction,
    StoreBusy,
    StoreError,
    StoreFull,
    TransactionEnded,
)
from ..op import Op, Query, Statement, adrive, drive
from ..store.inbox.settle import GONE

T = TypeVar("T")

_SAVEPOINT = Query("inbox.savepoint", "SAVEPOINT relaybox_inbox", "count").bind()
_RELEASE = Query("inbox.release", "RELEASE SAVEPOINT relaybox_inbox", "count").bind()
_ROLLBACK = Query("inbox.rollback", "ROLLBACK TO SAVEPOINT relaybox_inbox", "count").bind()


class RolledBack(BrokerUnavailable):
    """The database itself has ended a transaction: all of it is tried again."""


class Step(NamedTuple):
    """A call that may wait. Its answer, or its error, comes back into the generator that yielded it."""

    call: Callable[..., Any]
    args: tuple[Any, ...] = ()
    connection: Connection | AsyncConnection | None = None  # is cut when its time is over
    limited: bool = True  # a statement of ours; False: what is not ours takes its time


Steps = Generator[Step, Any, T]


class MessageTransaction(NamedTuple):
    """A transaction under way."""

    connection: Connection | AsyncConnection
    handle: Any  # what a listener is given
    looks: bool = False  # its commit looks for the mark

    def ours(self, call: Callable[..., Any], *args: Any) -> Step:
        return Step(call, args, self.connection)

    def run(self, op: Op[T]) -> Steps[T]:
        """Statements beside those of the listener."""
        with not_its_fault():
            try:
                statement = next(op)
                while True:
                    try:
                        result = yield self.ours(self.connection.execute, statement)
                    except Exception as error:
                        statement = op.throw(error)
                    else:
                        statement = op.send(result)
            except StopIteration as stop:
                answer: T = stop.value
                return answer


TransactionBody = Callable[[MessageTransaction], Steps[None]]


# -- how steps are made ---------------------------------------------------------------------------------------


class Call:
    """Steps in a thread, where nobody can be stopped. A call that is given up loses its connection while a listener has
    it: what waits for an answer there ends, and nothing is committed when it comes back."""

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self._connection: Connection | AsyncConnection | None = None  # in the hands of a listener
        self._over = self._told = False

    def play(self, steps: Steps[T]) -> T:
        return drive(steps, self._make)

    def _make(self, step: Step) -> Any:
        call, args, connection, limited = step
        with self._lock:
            if self._over and not self._told:
                self._told = True  # what follows cleans up
                raise TimeoutError("the listener ran too long, or this process is stopping")
            self._connection = None if limited else connection
        if limited and connection is not None:
            with Watched(self._seconds, connection):
                return call(*args)
        return call(*args)

    def end(self) -> None:
        with self._lock:
            self._over = True
            if self._connection is not None:
                self._connection.abort()


async def aplay(steps: Steps[T], limits: Deadlines, seconds: float | None) -> T:
    """Steps in an event loop. What is cancelled ends, also where it waits for an answer."""

    async def make(step: Step) -> Any:
        call, args, connection, limited = step
        if not limited and connection is None:
            return await call(*args)
        with limits.within(seconds if limited else None, connection):
            return await call(*args)

    return await adrive(steps, make)


# -- beginning and ending -------------------------------------------------------------------------------------


@contextmanager
def not_its_fault(kinds: tuple[type[StoreError], ...] = (ConnectionLost, StoreBusy)) -> Iterator[None]:
    """A database that is away or busy is no failure of the message: it comes again, and no attempt is counted.

    A connection that is lost at the commit counts: what the listener did may have killed it.
    """
    try:
        yield
    except kinds as error:
        raise BrokerUnavailable(f"the inbox's database: {error}") from error


def own(db: Runner | AsyncRunner, is_async: bool, last: Statement | None, work: TransactionBody) -> Steps[None]:
    """`last`: what asks, together with the commit, whether the mark is still there."""
    enter, leave = _ends(db.connection(), is_async)
    with not_its_fault():
        connection = yield Step(enter)
    try:
        yield from _committed(connection, last, work)
    except GeneratorExit:
        raise
    except BaseException as error:
        yield Step(leave, (type(error), error, error.__traceback__), connection)
        raise
    yield Step(leave, (None, None, None), limited=False)


def _committed(connection: Connection | AsyncConnection, last: Statement | None, work: TransactionBody) -> Steps[None]:
    joined = last and getattr(connection, "commit_after", None)  # not a protocol: asking for one is slow
    tx = MessageTransaction(connection, connection.raw, joined is not None)
    with not_its_fault():
        yield tx.ours(connection.begin)
    try:
        yield from work(tx)
    except (CancelledError, GeneratorExit):  # it loses its connection, and the transaction with it
        raise
    except BaseException:
        with suppress(StoreError):
            yield tx.ours(connection.rollback)
        raise
    try:
        with not_its_fault((StoreBusy,)):
            yield tx.ours(joined, last) if joined else tx.ours(connection.commit)
    except Exception as error:
        with suppress(StoreError):
            yield tx.ours(connection.rollback)
        if isinstance(error, StoreError) and GONE in str(error):
            raise TransactionEnded from error
        raise


def check_session(session: Any) -> None:
    """Before a message is claimed: later the mistake would count as a failure of every message."""
    expected = "expected session to be a sessionmaker, an engine or a function that gives a transaction"
    kind = type(session).__qualname__
    if not callable(_maker(session)):
        raise ConfigError(f"{expected}, got {kind}")
    try:
        wrap(session)
    except ConfigError:
        return  # no connection or session itself, as it should be
    raise ConfigError(f"{expected}, got a {kind}, which all messages would share")


def _maker(session: Any) -> Any:
    return getattr(session, "begin", session)  # sessionmaker, async_sessionmaker, an engine


def given(session: Any, dialect: str, is_async: bool, work: TransactionBody) -> Steps[None]:
    def entered(handle: Any) -> Steps[None]:
        return work(MessageTransaction(_wrapped(handle, dialect, is_async), handle))

    return _entered(_maker(session)(), is_async, entered)


def _entered(manager: Any, is_async: bool, work: Callable[[Any], Steps[None]]) -> Steps[None]:
    """A `with` or `async with` block of theirs."""
    enter, leave = _ends(manager, is_async)
    handle = yield Step(enter, limited=False)
    try:
        yield from work(handle)
    except GeneratorExit:
        raise
    except BaseException as error:
        if not (yield Step(leave, (type(error), error, error.__traceback__), limited=False)):
            raise
    else:
        yield Step(leave, (None, None, None), limited=False)


def _ends(manager: Any, is_async: bool) -> tuple[Callable[..., Any], Callable[..., Any]]:
    enter, leave = ("__aenter__", "__aexit__") if is_async else ("__enter__", "__exit__")
    if not hasattr(manager, enter):
        kind = "asynchronous" if is_async else "synchronous"
        raise ConfigError(
            f"the session gave a {type(manager).__qualname__}, which is no {kind} context manager of a transaction"
        )
    return getattr(manager, enter), getattr(manager, leave)


def _wrapped(handle: Any, dialect: str, is_async: bool) -> Connection | AsyncConnection:
    connection, kind = wrap(handle), type(handle).__qualname__
    if connection.dialect != dialect:
        raise ConfigError(f"this inbox is on {dialect}, the session gave a {connection.dialect} connection")
    if not connection.in_transaction():
        raise NoTransaction(
            f"the session gave a {kind} in autocommit mode; it must begin a transaction, "
            "or the effect and the mark could part"
        )
    if connection.is_async != is_async:
        fits = "an async handle; write an async" if connection.is_async else "a sync handle; write a plain"
        raise ConfigError(f"the session gave a {kind}, which is {fits} function for it")
    return connection


# -- what a listener leaves behind ----------------------------------------------------------------------------


def ended(tx: MessageTransaction, error: Exception | None = None) -> bool:
    """After a listener, and what it raised: what it did after the end of the transaction stands, and the mark does not.
    Where the server itself has ended it and the listener let the error pass, nothing was done."""
    if tx.connection.broken():
        return False
    asked = getattr(tx.handle, "in_transaction", None)  # SQLAlchemy begins anew by itself: only it can tell
    over = not tx.connection.in_transaction() or (callable(asked) and not asked())
    return over and not by_the_server(error)


def by_the_server(error: BaseException | None) -> bool:
    """A deadlock, a full disk, a lost connection: the database may have rolled back everything by itself."""
    from ..drivers.toolkits import translate_cause  # not needed before something fails

    while error is not None:
        ours = error if isinstance(error, StoreError) else translate_cause(error, lost=False)
        if isinstance(ours, (ConnectionLost, StoreBusy, StoreFull)):
            return True
        error = error.__cause__
    return False


def savepoint(tx: MessageTransaction, work: Steps[None]) -> Steps[None]:
    """One message of several. SQLAlchemy has to know of it: it forgets the objects of what is rolled back. A savepoint
    that cannot be released or rolled back to is gone, and so is its transaction."""
    failure: list[BaseException] = []
    nested = getattr(tx.handle, "begin_nested", None)
    try:
        if nested is not None:
            yield from _entered(nested(), tx.connection.is_async, lambda _: _noted(work, failure))
        else:
            yield from _between(tx, work, failure)
        if ended(tx):
            raise TransactionEnded
    except (ConnectionLost, TransactionEnded):
        raise
    except Exception as error:
        cause = failure[0] if failure else error
        if ended(tx, error):
            raise TransactionEnded from error
        if failure and (error is cause or not isinstance(cause, Exception)):
            raise
        if by_the_server(cause):
            raise RolledBack(f"the inbox's database rolled back the batch: {type(cause).__name__}") from error
        raise TransactionEnded from cause


def _between(tx: MessageTransaction, work: Steps[None], failure: list[BaseException]) -> Steps[None]:
    execute = tx.connection.execute
    yield tx.ours(execute, _SAVEPOINT)
    try:
        yield from _noted(work, failure)
        yield from _noted(_only(tx.ours(execute, _RELEASE)), failure)
    except (CancelledError, GeneratorExit):
        raise
    except BaseException:
        yield tx.ours(execute, _ROLLBACK)
        raise


def _only(step: Step) -> Steps[None]:
    yield step


def _noted(work: Steps[None], failure: list[BaseException]) -> Steps[None]:
    try:
        yield from work
    except BaseException as error:
        failure.append(error)
        raise
