"""Background loops that never die of an error, and a thread that runs them for synchronous programs."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from .clock import Clock
from .errors import RelayboxError
from .facts import LoopFailed, Observers
from .printable import stack_of

log = logging.getLogger("relaybox")
T = TypeVar("T")

FIRST_PAUSE = 0.05
LONGEST_PAUSE = 2.0
STACK_EVERY = 60.0  # seconds between two stacks of the same loop
ASK_AGAIN = 2.0  # seconds that a task has to come to an end; longer than a connection is given to close


async def forever(
    name: str,
    step: Callable[[], Awaitable[None]],
    observers: Observers,
    clock: Clock,
    longest: float = LONGEST_PAUSE,
) -> None:
    """Repeat `step`. An error is logged (with its stack, if it is none of ours), reported and followed by a growing
    pause; success resets it."""
    pause, quiet_until = FIRST_PAUSE, 0.0
    while True:
        try:
            await step()
            pause = FIRST_PAUSE
        except Exception as error:
            if is_cancelled():
                raise asyncio.CancelledError from None
            stack = ""
            if not isinstance(error, RelayboxError) and clock.monotonic() >= quiet_until:  # nobody expected it
                stack, quiet_until = stack_of(error), clock.monotonic() + STACK_EVERY
            log.error("%s failed and will be tried again in %.2f s: %s%s", name, pause, error, stack)
            observers(LoopFailed(name, f"{type(error).__name__}: {error}"))
            await clock.sleep(pause)
            pause = min(pause * 2, longest)


def is_cancelled() -> bool:
    """Whether this task is to end: an error while it gives up (a connection that cannot be closed) hides that."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def cancelled(*tasks: asyncio.Task[Any] | None) -> None:
    """Cancel tasks and wait until they are gone. A cancellation can be lost on its way (before Python 3.12
    asyncio.wait_for, by which clients connect, drops one that comes as it ends): then they are asked again."""
    running = {task for task in tasks if task is not None and not task.done()}
    while running:
        for task in running:
            task.cancel()
        _, running = await asyncio.wait(running, timeout=ASK_AGAIN)


class LoopThread:
    """An event loop in a daemon thread: in which services of synchronous programs work."""

    def __init__(self, name: str = "relaybox") -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._thread.start()

    def _main(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        if left := asyncio.all_tasks(self.loop):  # calls that nobody will answer
            for task in left:
                task.cancel()
            self.loop.run_until_complete(asyncio.wait(left, timeout=ASK_AGAIN))
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run in the loop and wait for the result."""
        future: Future[T] = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        return future.result()

    def stop(self) -> None:
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()
