"""Ops of two databases in one generator: one text for threads and event loops, as ops of one database are.

head = yield from there(source.head())           asked of the source
yield from store.move(…)                         of the target, as any op
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from contextlib import AsyncExitStack, suppress
from typing import Any, NamedTuple, TypeVar

from ..drivers.spi import AsyncConnection, AsyncRunner, Connection
from ..errors import StoreError
from ..op import Copy, Op, Result, Statement, adrive, drive

T = TypeVar("T")


class There(NamedTuple):
    """A statement for the source."""

    statement: Statement | Copy


Moves = Generator[Statement | Copy | There, Result, T]


def there(op: Op[T]) -> Moves[T]:
    try:
        statement = next(op)
        while True:
            try:
                result = yield There(statement)
            except Exception as error:
                statement = op.throw(error)
            else:
                statement = op.send(result)
    except StopIteration as stop:
        answer: T = stop.value
        return answer


def play(moves: Moves[T], target: Connection, source: Callable[[], Connection]) -> T:
    """`source` connects when it is first asked."""

    def answer(step: Statement | Copy | There) -> Result:
        return source().execute(step.statement) if isinstance(step, There) else target.execute(step)

    return drive(moves, answer)


async def aplay(moves: Moves[T], target: AsyncConnection, source: Callable[[], Awaitable[AsyncConnection]]) -> T:
    async def answer(step: Statement | Copy | There) -> Any:
        return await ((await source()).execute(step.statement) if isinstance(step, There) else target.execute(step))

    return await adrive(moves, answer)


async def transact(moves: Moves[T], target: AsyncRunner, source: AsyncRunner | None) -> T:
    """In one transaction of the target."""
    async with AsyncExitStack() as closing, target.connection() as connection:
        await connection.begin()
        try:
            value = await aplay(moves, connection, lender(source, closing))
        except Exception:  # what is cancelled loses its connection, and the transaction with it
            with suppress(StoreError):
                await connection.rollback()
            raise
        await connection.commit()
        return value


def lender(source: AsyncRunner | None, closing: AsyncExitStack) -> Callable[[], Awaitable[AsyncConnection]]:
    lent: list[AsyncConnection] = []

    async def lend() -> AsyncConnection:
        assert source is not None
        if not lent:
            lent.append(await closing.enter_async_context(source.connection()))
        return lent[0]

    return lend
