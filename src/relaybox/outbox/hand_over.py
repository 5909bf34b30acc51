"""From a commit in this process to the hot queue.

A commit does not prove that the rows exist: a savepoint or a rollback unseen may have taken them. So the database is
asked, once for all that was committed while the last question was under way. What finds no room is given back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..clock import Clock
from ..delivery import Delivery
from ..engine.rows.engine import RowEngine
from ..errors import StoreError
from ..tasks import FIRST_PAUSE, LONGEST_PAUSE, cancelled
from .source import OutboxSource


@dataclass(eq=False)
class HandOvers:
    _engine: RowEngine
    _source: OutboxSource
    _clock: Clock
    _given_back: Callable[[], None]
    _arrived: list[Delivery] = field(default_factory=list)
    _refused: list[Delivery] = field(default_factory=list)
    _task: asyncio.Task[None] | None = None
    _stopped: bool = False

    def take(self, deliveries: Sequence[Delivery]) -> None:
        """What is more than the hot queue can have is refused before anything is asked."""
        if self._stopped:
            return  # signing off frees it
        room = max(0, self._engine.hot_room - len(self._arrived))
        self._arrived += deliveries[:room]
        if len(deliveries) > room:
            self._refused += self._engine.refuse(deliveries[room:])
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="relaybox-hand-over")

    async def _run(self) -> None:
        """Until nothing is left. When a lease ends the poller has the row."""
        pause = FIRST_PAUSE
        while self._keep_ours():
            try:
                await self._offer()
                await self._give_back()
                pause = FIRST_PAUSE
            except StoreError:
                await self._clock.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE)

    def _keep_ours(self) -> bool:
        now = self._clock.monotonic()
        for waiting in (self._arrived, self._refused):
            waiting[:] = [delivery for delivery in waiting if delivery.lease_end > now]
        return bool(self._arrived or self._refused)

    async def _offer(self) -> None:
        asked = list(self._arrived)
        if asked:
            exist = await self._source.verify(asked)
            del self._arrived[: len(asked)]
            self._refused += self._engine.offer([delivery for delivery in asked if delivery.seq in exist])

    async def _give_back(self) -> None:
        """The poller here or elsewhere takes them at once."""
        refused = list(self._refused)
        if refused:
            await self._source.release(refused)
            del self._refused[: len(refused)]
            self._given_back()

    async def stop(self, timeout: float = 1.0) -> None:
        self._stopped = True
        if self._task is not None:
            await asyncio.wait([self._task], timeout=timeout)
            await cancelled(self._task)
