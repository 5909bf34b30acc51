"""The service of a replica: asks the source how far the feed is, and applies what the table has not.

The deltas come from the log, in their order. Where one is missing (retention, another epoch, a new table) all rows are
copied in one transaction of the source, which sees table and number of the feed as of one moment: the copy is exact.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

from ..clock import Clock
from ..drivers import open_async
from ..drivers.spi import AsyncRunner
from ..errors import RelayboxError, StoreBusy
from ..facts import LoopFailed, Observers, ReplicaLag, Replicated
from ..memory import freeze_gc
from ..printable import stack_of
from ..service import AsyncService
from ..settings import Settings
from ..tasks import FIRST_PAUSE, cancelled
from ..values import Counts
from .apply import Applied, Applying
from .moves import transact

log = logging.getLogger("relaybox")
LONGEST_PAUSE = 5.0
DELTAS = 16  # in one transaction; each may have 1 MiB in memory


class Following(AsyncService):
    """Of its `counts`, `done` are deltas that were applied, and copies."""

    def __init__(
        self,
        target: Any,
        source: Any,
        applying: Applying,
        settings: Settings,
        observers: Observers,
        clock: Clock,
        owner: Any,
    ) -> None:
        super().__init__(clock, owner)
        self._pages = settings.listen
        self._settings = settings
        self._observers = observers
        self._target, self._source = target, source
        self._applying = applying
        assert applying.source is not None
        self._reading = applying.source
        self._trouble: str | None = None
        self._counts = Counts()
        self._stopping = False
        self._woken = asyncio.Event()
        self._even = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closing = AsyncExitStack()

    @property
    def name(self) -> str:
        return f"replica {self._applying.kept.table} of feed {self._applying.feed}"

    @property
    def counts(self) -> Counts:
        return self._counts

    async def _start(self) -> None:
        """Statements have no limit: a copy is as long as its table. A peer that is gone is found out by its socket."""
        self._db: AsyncRunner = open_async(self._target, size=1)
        self._closing.push_async_callback(self._db.close)
        self._source_db: AsyncRunner = open_async(self._source._target, size=1)
        self._closing.push_async_callback(self._source_db.close)
        await self._db.run(self._applying.store.verify_schema(), tx=False)
        await self._db.run(self._applying.found(), tx=False)
        self._task = asyncio.create_task(self._run(), name="relaybox-replica")
        if self._settings.delivery.freeze_gc:
            freeze_gc()

    def halt(self) -> None:
        self._stopping = True
        self._woken.set()

    async def _stop(self, timeout: float | None) -> None:
        """What is under way may end; if it takes longer it is rolled back."""
        self.halt()
        async with self._closing:
            self._closing.push_async_callback(cancelled, self._task)
            if self._task is not None:
                patience = self._settings.delivery.stop_timeout.total_seconds() if timeout is None else timeout
                await asyncio.wait([self._task], timeout=patience)

    async def _drain(self) -> None:
        """Until the table is where the feed is."""
        self._even.clear()
        self._woken.set()
        await self._even.wait()

    def _complaints(self) -> Iterator[str]:
        if self._task is None or self._task.done():
            yield "not running"
        if self._trouble is not None:
            yield self._trouble

    # -- the loop -----------------------------------------------------------------------------------

    async def _run(self) -> None:
        pause = FIRST_PAUSE
        while not self._stopping:
            try:
                again = await self._step()
                pause = FIRST_PAUSE
                if self._trouble is not None:
                    log.warning("%s goes on", self.name)
                    self._trouble = None
                rest = 0.0 if again else self._settings.replica.poll.total_seconds()
            except StoreBusy:  # on SQLite, where another process is at it
                rest, pause = pause, min(pause * 2, LONGEST_PAUSE)
            except Exception as error:
                self._failed(error)
                rest, pause = pause, min(pause * 2, LONGEST_PAUSE)
            await self._rest(rest)

    async def _rest(self, seconds: float) -> None:
        """Unless somebody waits."""
        woken, rest = asyncio.create_task(self._woken.wait()), asyncio.create_task(self._clock.sleep(seconds))
        try:
            await asyncio.wait([woken, rest], return_when=asyncio.FIRST_COMPLETED)
        finally:
            await cancelled(woken, rest)
        self._woken.clear()

    def _failed(self, error: Exception) -> None:
        """The text of an error that is not ours may have anything in it."""
        reason = str(error) if isinstance(error, RelayboxError) else type(error).__name__
        if reason != self._trouble:
            stack = "" if isinstance(error, RelayboxError) else stack_of(error)
            log.error("%s: %s; it is tried again%s", self.name, reason, stack)
        self._trouble = reason
        self._counts = replace(self._counts, failed=self._counts.failed + 1)
        self._observers(LoopFailed("replica", f"{type(error).__name__}: {reason}"))

    async def _step(self) -> bool:
        """True: there may be more to do now."""
        table, feed = self._applying.kept.table, self._applying.feed
        head = await self._source_db.run(self._reading.head(), tx=False)
        at = await self._db.run(self._applying.found(), tx=False)
        done: Sequence[Applied] = ()
        if (at.epoch, at.n) != head:
            at, done = await transact(
                self._applying.advance(DELTAS, self._clock.database_now()), self._db, self._source_db
            )
        for each in done:
            self._observers(Replicated(table, feed, each.inserted, each.deleted, each.copied))
            if each.copied:
                log.info("%s: all %d rows were copied", self.name, each.inserted)
        self._counts = replace(self._counts, done=self._counts.done + len(done))
        self._observers(ReplicaLag(table, max(0, head.n - at.n) if head.epoch == at.epoch else None))
        if (at.epoch, at.n) == head:
            self._even.set()
        return bool(done)
