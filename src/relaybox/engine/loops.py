"""Background tasks that must not end before they are told to: one that does is told, missed and replaced."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from ..clock import Clock
from ..facts import Observers, TaskEnded
from ..tasks import FIRST_PAUSE, LONGEST_PAUSE, cancelled, forever

log = logging.getLogger("relaybox")

LASTING = 60.0  # seconds after which the end of a task has nothing to do with the one before


class Every:
    """A step that is due again so many seconds after it began. One that failed is due at once: it is late already."""

    def __init__(self, seconds: float, step: Callable[[], Awaitable[None]], clock: Clock, first: float = 1.0) -> None:
        """`first`: the part of that time before the first one."""
        self._seconds = seconds
        self._step = step
        self._clock = clock
        self._due = clock.monotonic() + seconds * first

    async def __call__(self) -> None:
        await self._clock.sleep(max(0.0, self._due - self._clock.monotonic()))
        began = self._clock.monotonic()
        await self._step()
        self._due = began + self._seconds


class Loops:
    def __init__(self, observers: Observers, clock: Clock) -> None:
        self.missing = 0  # tasks that ended and are not replaced yet
        self._observers = observers
        self._clock = clock
        self._tasks: dict[object, asyncio.Task[None]] = {}
        self._stopping = False
        self._ended = 0

    def repeat(self, name: str, step: Callable[[], Awaitable[None]], longest: float = LONGEST_PAUSE) -> None:
        """`step` again and again; what it raises is told and followed by a pause."""
        self.keep(name, name, lambda: forever(name, step, self._observers, self._clock, longest))

    def keep(self, key: object, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        task, began = asyncio.create_task(work(), name=f"relaybox-{name}"), self._clock.monotonic()
        self._tasks[key] = task
        task.add_done_callback(lambda task: self._gone(task, began, key, name, work))

    def closing(self) -> None:
        """What ends from now on is not replaced."""
        self._stopping = True

    async def stop(self, *keys: object) -> None:
        """Stops the tasks of these keys, or all."""
        await cancelled(*[task for key, task in self._tasks.items() if key in keys or not keys])

    async def close(self) -> None:
        self.closing()
        await self.stop()

    def _gone(
        self,
        task: asyncio.Task[None],
        began: float,
        key: object,
        name: str,
        work: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        if self._stopping:
            return
        error = None if task.cancelled() else task.exception()
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            return  # the program ends
        if error is not None:
            _tell(task, error)
        self._observers(TaskEnded(name, "cancelled" if error is None else type(error).__name__))
        self.missing += 1
        if self._clock.monotonic() - began > LASTING:
            self._ended = 0
        pause = min(FIRST_PAUSE * 2**self._ended, LONGEST_PAUSE)  # a little later each time
        self._ended = min(self._ended + 1, 10)
        task.get_loop().call_later(pause, self._replace, task, key, name, work)

    def _replace(
        self, task: asyncio.Task[None], key: object, name: str, work: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        self.missing -= 1
        if self._stopping:
            return
        if task.cancelled():  # logged only now: a loop that ends cancels everything, and replaces nothing
            _tell(task, None)
        self.keep(key, name, work)


def _tell(task: asyncio.Task[None], error: BaseException | None) -> None:
    log.error("the task %s ended unexpectedly and is replaced", task.get_name(), exc_info=error)
