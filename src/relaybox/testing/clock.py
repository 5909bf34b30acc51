"""A clock that stands still until the test moves it.

    clock = ManualClock()
    outbox = Outbox(url, clock=clock)
    clock.advance(minutes=5)          # leases end, retries are due, sleepers wake

`database_now()` returns its time, so every statement lives in the test's time too. Safe from any thread; sleepers
may belong to different event loops.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

START = datetime(2030, 1, 1, tzinfo=UTC)


class _Sleeper:
    """One task waiting for something; `wake` may be called from any thread."""

    __slots__ = ("_future", "_loop", "until")

    def __init__(self, until: timedelta) -> None:
        self.until = until
        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[None] = self._loop.create_future()

    async def wait(self) -> None:
        await self._future

    def wake(self) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._finish)

    def _finish(self) -> None:
        if not self._future.done():
            self._future.set_result(None)


class ManualClock:
    """A clock for tests: it stands still until `advance()` moves it."""

    def __init__(self, start: datetime = START) -> None:
        if start.tzinfo is None:
            raise ValueError(f"expected start to have a time zone, got the naive {start.isoformat()}")
        self._start = start.astimezone(UTC)
        self._passed = timedelta(0)
        self._changed = threading.Condition()
        self._sleepers: list[_Sleeper] = []
        self._watchers: list[_Sleeper] = []

    # -- the Clock protocol ---------------------------------------------------------------------------

    def now(self) -> datetime:
        """Its time, in UTC."""
        with self._changed:
            return self._start + self._passed

    def monotonic(self) -> float:
        """Seconds that it was moved so far."""
        with self._changed:
            return self._passed.total_seconds()

    def database_now(self) -> datetime | None:
        """The time that statements are given, instead of asking the database for its own."""
        return self.now()

    async def sleep(self, seconds: float) -> None:
        """Until the clock has been advanced that far; zero only lets others run."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        with self._changed:
            sleeper = _Sleeper(self._passed + timedelta(seconds=seconds))
            self._sleepers.append(sleeper)
            watchers, self._watchers = self._watchers, []
            self._changed.notify_all()
        for watcher in watchers:
            watcher.wake()
        try:
            await sleeper.wait()
        finally:
            with self._changed:
                if sleeper in self._sleepers:
                    self._sleepers.remove(sleeper)

    # -- what tests call ------------------------------------------------------------------------------

    def advance(self, by: timedelta | float = 0.0, **units: float) -> datetime:
        """Move on by a timedelta, by seconds, or `advance(minutes=5)`. Returns the new time."""
        step = by if isinstance(by, timedelta) else timedelta(seconds=by)
        step += timedelta(**units)
        if step < timedelta(0):
            raise ValueError(f"expected time to move forward, got {step}")
        with self._changed:
            self._passed += step
            due = sorted((s for s in self._sleepers if s.until <= self._passed), key=lambda s: s.until)
            self._sleepers = [s for s in self._sleepers if s.until > self._passed]
            now = self._start + self._passed
        for sleeper in due:
            sleeper.wake()
        return now

    @property
    def sleeping(self) -> int:
        """How many tasks wait for this clock."""
        with self._changed:
            return len(self._sleepers)

    async def wait_for_sleepers(self, count: int = 1, timeout: float = 5.0) -> None:
        """Until so many tasks sleep: then it is safe to advance."""
        try:
            async with asyncio.timeout(timeout):
                while (watcher := self._watcher(count)) is not None:
                    await watcher.wait()
        except TimeoutError:
            raise TimeoutError(self._missing(count, timeout)) from None

    def wait_for_sleepers_sync(self, count: int = 1, timeout: float = 5.0) -> None:
        """`wait_for_sleepers` from a thread without an event loop."""
        enough: Callable[[], bool] = lambda: len(self._sleepers) >= count  # noqa: E731 - a typed lambda
        with self._changed:
            if not self._changed.wait_for(enough, timeout):
                raise TimeoutError(self._missing(count, timeout))

    def _watcher(self, count: int) -> _Sleeper | None:
        with self._changed:
            if len(self._sleepers) >= count:
                return None
            watcher = _Sleeper(timedelta.max)
            self._watchers.append(watcher)
            return watcher

    def _missing(self, count: int, timeout: float) -> str:
        return f"expected {count} sleepers within {timeout} s, there are {len(self._sleepers)}"

    def __repr__(self) -> str:
        return f"ManualClock({self.now().isoformat()}, {self.sleeping} sleeping)"
