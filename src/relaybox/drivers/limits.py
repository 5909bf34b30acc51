"""Time limits of ops: as `asyncio.timeout`, at a quarter of its price. One timer looks after all that is under way."""

from __future__ import annotations

import asyncio
from typing import Any

LOOK = 0.05  # seconds between two looks


class Limited:
    """One op under way."""

    __slots__ = ("cancelling", "expired", "task", "until")

    def __init__(self, task: asyncio.Task[Any], until: float) -> None:
        self.task = task
        self.until = until
        self.cancelling = task.cancelling()  # by others, before
        self.expired = False


class Limits:
    def __init__(self) -> None:
        self._under_way: set[Limited] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None

    def enter(self, seconds: float) -> Limited:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        if loop is not self._loop:  # another one is over, with its timer and what was under way there
            self._loop, self._timer = loop, None
            self._under_way.clear()
        limited = Limited(task, loop.time() + seconds)
        self._under_way.add(limited)
        if self._timer is None:
            self._timer = loop.call_later(LOOK, self._look, loop)
        return limited

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        """A loop that stood still (a handler that computes, a frozen process) read no answers: that does not count."""
        assert self._timer is not None
        now = loop.time()
        late = now - self._timer.when()
        for limited in self._under_way:
            if late > LOOK:
                limited.until += late
            if limited.until <= now and not limited.expired:
                limited.expired = True
                limited.task.cancel()
        self._timer = loop.call_later(LOOK, self._look, loop) if self._under_way else None

    def missed(self, limited: Limited) -> bool:
        """Whether it was cancelled for its limit, and by nobody else."""
        return limited.expired and limited.task.cancelling() - 1 <= limited.cancelling

    def leave(self, limited: Limited) -> None:
        self._under_way.discard(limited)
        if limited.expired:
            limited.task.uncancel()
