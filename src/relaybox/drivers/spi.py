"""How a statement reaches a connection, ours or the caller's.

An adapter wraps one connection of one client library. The same class serves connections relaybox opens
itself and those a caller hands to `write()`: a caller's transaction is just another driver. Adapters
translate the library's errors to ours and add no policy.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeAlias

from ..errors import StoreError
from ..op import Copy, Op, Result, Statement, T

if TYPE_CHECKING:
    import sqlite3

DialectName = Literal["postgres", "sqlite", "mysql"]
Callback = Callable[[], None]


# -- what callers hand over, as type checkers see it: the kinds differ in whether close and commit must be awaited


class _Commits(Protocol):
    def commit(self) -> None: ...


class _Executes(Protocol):
    @property
    def execute(self) -> Callable[..., Any]: ...

    def close(self) -> None: ...


class _AsyncCommits(Protocol):
    def commit(self) -> Coroutine[Any, Any, object]: ...


class _AsyncExecutes(Protocol):
    @property
    def execute(self) -> Callable[..., Any]: ...

    def close(self) -> Coroutine[Any, Any, object]: ...


class _Proxy(Protocol):
    """Of Django and of asyncpg's pool: checkers see nothing of what is behind it."""

    def __getattr__(self, name: str, /) -> Any: ...


Handle: TypeAlias = _Commits | _Executes | _Proxy
AsyncHandle: TypeAlias = "_AsyncCommits | _AsyncExecutes | _Proxy | sqlite3.Connection | sqlite3.Cursor"


# -- adapters -----------------------------------------------------------------------------------------


class _InTransaction(Protocol):
    """What both kinds of connection tell about the transaction they are in."""

    dialect: DialectName
    copy: bool  # understands op.Copy
    raw: Any  # the client library's own object
    silent: bool  # True: cannot tell when the caller commits; after_commit returns False

    def in_transaction(self) -> bool:
        """Whether a statement now belongs to a transaction that somebody will commit or roll back.

        True also for connections that open one implicitly with the next statement; False for autocommit.
        """
        ...

    def after_commit(self, callback: Callback) -> bool:
        """Call back once the transaction has committed. False: this library cannot tell, nothing is registered."""
        ...

    def after_rollback(self, callback: Callback) -> bool: ...

    def abort(self) -> None:
        """Cut the connection, whatever waits for an answer on it: that ends with an error. Never waits itself; of a
        synchronous connection, from any thread. Nothing to cut on SQLite."""
        ...


class Connection(_InTransaction, Protocol):
    """The adapter of a synchronous connection."""

    is_async: ClassVar[Literal[False]]

    def execute(self, statement: Statement | Copy) -> Result: ...

    def begin(self) -> None: ...

    def commit(self) -> None: ...

    def rollback(self) -> None: ...

    def close(self) -> None: ...

    def broken(self) -> bool: ...


class AsyncConnection(_InTransaction, Protocol):
    """The adapter of an asyncio connection."""

    is_async: ClassVar[Literal[True]]

    async def execute(self, statement: Statement | Copy) -> Result: ...

    async def begin(self) -> None: ...

    async def commit(self) -> None: ...

    async def rollback(self) -> None: ...

    async def close(self) -> None: ...

    def broken(self) -> bool: ...


class Translated:
    """`with translated:` turns a client's errors into ours. One object for all calls: a generator per statement would
    be felt."""

    def __init__(self, translate: Callable[[BaseException], StoreError | None]) -> None:
        self._translate = translate

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is not None and (ours := self._translate(error)) is not None:
            raise ours from None if isinstance(error, UnicodeError) else error  # which holds the text


class Silent:
    """Base of adapters of libraries without commit hooks: the caller's commit cannot be seen."""

    silent = True
    copy: bool = False

    def __init__(self, raw: Any) -> None:
        self.raw = raw

    def after_commit(self, callback: Callback) -> bool:
        return False

    def after_rollback(self, callback: Callback) -> bool:
        return False

    def abort(self) -> None:
        """A file has nothing to cut."""


class Adapter(Silent):
    """Of a library whose connections commit, roll back and close by these words."""

    is_async: ClassVar[Literal[False]] = False
    translated: ClassVar[Translated]

    def commit(self) -> None:
        with self.translated:
            self.raw.commit()

    def rollback(self) -> None:
        with self.translated:
            self.raw.rollback()

    def close(self) -> None:
        with self.translated:
            self.raw.close()


class AsyncAdapter(Silent):
    """The same for asyncio."""

    is_async: ClassVar[Literal[True]] = True
    translated: ClassVar[Translated]

    async def commit(self) -> None:
        with self.translated:
            await self.raw.commit()

    async def rollback(self) -> None:
        with self.translated:
            await self.raw.rollback()

    async def close(self) -> None:
        with self.translated:
            await self.raw.close()


class Runner(Protocol):
    """What products see of a database of their own: run an op, in a transaction or as it is."""

    dialect: DialectName
    here: bool  # its connections are those of the threads that use it
    size: int  # how many connections it has at once
    address: object  # the same for all that reach the same database in the same way

    def run(self, op: Op[T], *, tx: bool = True) -> T: ...

    def within(self, seconds: float | None) -> Runner:
        """The same connections for ops that get so long; None: no limit. What has not ended by then raises
        ConnectionLost."""
        ...

    def connection(self) -> AbstractContextManager[Connection]: ...

    def close(self) -> None: ...


class AsyncRunner(Protocol):
    dialect: DialectName
    size: int
    address: object
    listen: Callable[[str, Callback, Callback], Awaitable[None]] | None

    async def run(self, op: Op[T], *, tx: bool = True) -> T: ...

    def within(self, seconds: float | None) -> AsyncRunner: ...

    def connection(self) -> AbstractAsyncContextManager[AsyncConnection]: ...

    async def close(self) -> None: ...
