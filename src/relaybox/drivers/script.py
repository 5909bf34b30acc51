"""Jobs of several transactions as generators: they yield an op to run in a transaction of its own (`Plain`: without
one), or seconds to wait, and are sent what the op returned. One source for sync and async, as ops are.

A method of both twins is written once, as a script:

    class Shared:
        @twin
        def notify(self) -> Script[bool]:
            return commit(self.store.notify(None))

    class Outbox(Shared, Sync): ...          outbox.notify() -> bool
    class AsyncOutbox(Shared, Async): ...    await outbox.notify() -> bool
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import suppress
from functools import update_wrapper
from types import MethodType
from typing import Any, Concatenate, Generic, NamedTuple, ParamSpec, Protocol, TypeAlias, TypeVar, overload

from ..clock import Clock
from ..errors import StoreError
from ..op import Op, adrive, arun, drive, run
from .spi import AsyncRunner, Runner

T = TypeVar("T")
P = ParamSpec("P")


class Plain(NamedTuple):
    """An op of one statement, or one that only looks."""

    op: Op[Any]


PATIENCE = 1.0  # seconds for a second session: a pooler may have one only, and would let it wait for the first


class Beside(NamedTuple):
    """Two ops in two sessions: the second while the transaction of the first is open. Answers what both answered; None
    if there is one connection only. What the first does is rolled back."""

    first: Op[Any]
    second: Op[Any]


ScriptStep: TypeAlias = Op[Any] | Plain | Beside | float
Script = Generator[ScriptStep, Any, T]


def look(op: Op[T]) -> Script[T]:
    """One op without a transaction."""
    answer: T = yield Plain(op)
    return answer


def commit(op: Op[T]) -> Script[T]:
    """One op in a transaction of its own."""
    answer: T = yield op
    return answer


def play(script: Script[T], db: Runner, wait: Callable[[float], object] = time.sleep) -> T:
    def answer(step: ScriptStep) -> Any:
        if isinstance(step, float):
            return wait(step)
        if isinstance(step, Beside):
            return beside(step, db)
        return db.run(step.op, tx=False) if isinstance(step, Plain) else db.run(step)

    return drive(script, answer)


class Sleeps(Protocol):
    async def sleep(self, seconds: float) -> None: ...


async def aplay(script: Script[T], db: AsyncRunner, clock: Sleeps) -> T:
    def answer(step: ScriptStep) -> Awaitable[Any]:
        if isinstance(step, float):
            return clock.sleep(step)
        if isinstance(step, Beside):
            return abeside(step, db)
        return db.run(step.op, tx=False) if isinstance(step, Plain) else db.run(step)

    return await adrive(script, answer)


def beside(step: Beside, db: Runner) -> tuple[Any, Any] | None:
    if db.size < 2:
        return None
    with db.connection() as connection:
        connection.begin()
        try:
            return run(step.first, connection), db.within(PATIENCE).run(step.second)
        finally:
            with suppress(StoreError):
                connection.rollback()


async def abeside(step: Beside, db: AsyncRunner) -> tuple[Any, Any] | None:
    if db.size < 2:
        return None
    async with db.connection() as connection:
        await connection.begin()
        try:
            return await arun(step.first, connection), await db.within(PATIENCE).run(step.second)
        finally:
            with suppress(StoreError):
                await connection.rollback()


class Sync:
    """The twin for synchronous programs: its methods that are scripts are played."""

    _db: Runner

    def _play(self, script: Script[T], *, limited: bool = True) -> T:
        return play(script, self._db if limited else self._db.within(None))


class Async:
    """The twin for asyncio programs: the same methods are coroutines."""

    _db: AsyncRunner
    _clock: Clock

    async def _play(self, script: Script[T], *, limited: bool = True) -> T:
        return await aplay(script, self._db if limited else self._db.within(None), self._clock)


class twin(Generic[P, T]):
    limited = True  # each op ends within the limit of the database

    def __init__(self, script: Callable[Concatenate[Any, P], Script[T]]) -> None:
        limited = self.limited

        def method(self: Sync, *args: P.args, **kwargs: P.kwargs) -> T:
            return self._play(script(self, *args, **kwargs), limited=limited)

        async def coroutine(self: Async, *args: P.args, **kwargs: P.kwargs) -> T:
            return await self._play(script(self, *args, **kwargs), limited=limited)

        self._method, self._coroutine = _shown_as(script, method), _shown_as(script, coroutine)

    @overload
    def __get__(self, box: Sync, owner: object = None) -> Callable[P, T]: ...
    @overload
    def __get__(self, box: Async, owner: object = None) -> Callable[P, Coroutine[Any, Any, T]]: ...
    @overload
    def __get__(self, box: None, owner: object = None) -> Callable[..., Any]: ...
    def __get__(self, box: Any, owner: Any = None) -> Callable[..., Any]:
        function = self._coroutine if issubclass(owner or type(box), Async) else self._method
        return function if box is None else MethodType(function, box)


class slow(twin[P, T]):
    """For what may take as long as it takes: tables are made or rewritten."""

    limited = False


def _shown_as(script: Callable[..., Any], function: Any) -> Any:
    """With the name, text and signature of the script, but returning what the script returns in the end."""
    update_wrapper(function, script)
    told = inspect.signature(script)
    returned = str(told.return_annotation).removeprefix("Script[").removesuffix("]")
    function.__signature__ = told.replace(return_annotation=returned)
    function.__annotations__ = {**script.__annotations__, "return": returned}
    return function
