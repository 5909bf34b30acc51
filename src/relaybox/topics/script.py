"""Jobs of several transactions as generators: they yield an op to run in a transaction of its own (`Plain`: without
one), or seconds to wait, and are sent what the op returned. One source for sync and async, as ops are."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from typing import Any, NamedTuple, TypeVar

from ..clock import Clock
from ..drivers.spi import AsyncRunner, Runner
from ..op import Op

T = TypeVar("T")


class Plain(NamedTuple):
    """An op of one statement, or one that only looks."""

    op: Op[Any]


Script = Generator[Op[Any] | Plain | float, Any, T]


def play(script: Script[T], db: Runner, wait: Callable[[float], object] = time.sleep) -> T:
    try:
        step = next(script)
        while True:
            try:
                if isinstance(step, float):
                    answer = wait(step)
                elif isinstance(step, Plain):
                    answer = db.run(step.op, tx=False)
                else:
                    answer = db.run(step)
            except BaseException as error:
                step = script.throw(error)
            else:
                step = script.send(answer)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]


async def aplay(script: Script[T], db: AsyncRunner, clock: Clock) -> T:
    try:
        step = next(script)
        while True:
            try:
                if isinstance(step, float):
                    answer = await clock.sleep(step)  # type: ignore[func-returns-value]
                elif isinstance(step, Plain):
                    answer = await db.run(step.op, tx=False)
                else:
                    answer = await db.run(step)
            except BaseException as error:
                step = script.throw(error)
            else:
                step = script.send(answer)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
