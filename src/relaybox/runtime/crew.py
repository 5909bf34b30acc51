"""Tasks that sleep while there is nothing to do, and go home together. Both kinds of workers are one."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from .service import cancelled


class Crew:
    def __init__(self) -> None:
        self.stopping = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._sleepers: list[asyncio.Future[None]] = []

    def hire(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name="relaybox-worker")
        self._tasks.append(task)
        return task

    async def sleep(self) -> None:
        """Until somebody says that there is work, or that it is time to go."""
        sleeper = asyncio.get_running_loop().create_future()
        self._sleepers.append(sleeper)
        await sleeper

    def wake(self, count: int) -> None:
        sleepers = self._sleepers
        for _ in range(min(count, len(sleepers))):
            sleeper = sleepers.pop()
            if not sleeper.done():
                sleeper.set_result(None)

    async def stop(self, timeout: float) -> None:
        """Let them finish; whoever takes longer is cancelled."""
        self.stopping.set()
        self.wake(len(self._tasks))
        _, slow = await asyncio.wait(self._tasks, timeout=timeout)
        await cancelled(*slow)
