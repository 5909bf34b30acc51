"""Wake-ups are hints; polling is the truth.

Listening: polls rest for seconds, a NOTIFY ends the rest. Not listening (no LISTEN on this database, a pooler
in between, the connection is down): polls come twice a second, with one log line saying why.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta

from ..clock import Clock
from ..lifecycle import Observers, WakeUps
from .delivery import DeliveryEngine
from .service import FIRST_PAUSE, LONGEST_PAUSE

log = logging.getLogger("relaybox")

LISTENING = timedelta(seconds=5)
POLLING = timedelta(milliseconds=500)

Listen = Callable[[Callable[[], None], Callable[[], None]], Awaitable[None]]


class Ears:
    """Runs `listen(ready, wake)` for ever and sets the engine's poll interval to match."""

    def __init__(
        self,
        engine: DeliveryEngine,
        listen: Listen | None,
        fixed: timedelta | None,
        observers: Observers,
        clock: Clock,
    ) -> None:
        self._engine = engine
        self._listen = listen
        self._fixed = fixed
        self._observers = observers
        self._clock = clock
        self._mode = ""
        self._told: WakeUps | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._listen is None:
            self._set("poll", "this database has no wake-ups across processes")
        else:
            self._set("poll", "not listening yet")
            self._task = asyncio.create_task(self._run(self._listen), name="relaybox-listen")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self, listen: Listen) -> None:
        pause = FIRST_PAUSE
        while True:
            try:
                await listen(self._ready, self._engine.wake)
                self._set("poll", "a pooler in transaction mode cannot LISTEN")
                log.info(
                    "a pooler stands before the database: polling every %s instead of LISTEN",
                    self._interval(),
                )
                return
            except asyncio.CancelledError:
                raise
            except Exception as error:
                if self._mode == "listen":
                    pause = FIRST_PAUSE
                self._set("poll", f"the listening connection failed: {error}")
                await self._clock.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE)

    def _ready(self) -> None:
        """Whatever was committed before LISTEN took effect is found by one poll now."""
        self._set("listen", "")

    def _set(self, mode: str, reason: str) -> None:
        fact, self._mode = WakeUps(mode, reason), mode
        self._engine.poll_every(self._interval())
        if fact != self._told:
            self._told = fact
            self._observers(fact)

    def _interval(self) -> timedelta:
        return self._fixed or (LISTENING if self._mode == "listen" else POLLING)


class Notifier:
    """Tells other processes that something was committed: coalesced, from outside the writer's transaction."""

    GAP = 0.001  # seconds between two NOTIFYs, whatever the commit rate
    LATER = (0.005, 0.05, 0.5)  # after a write whose commit we cannot see

    def __init__(self, send: Callable[[], Awaitable[None]]) -> None:
        self._send = send
        self._wanted = False
        self._task: asyncio.Task[None] | None = None
        self._timers: list[asyncio.TimerHandle] = []

    def soon(self) -> None:
        self._wanted = True
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())

    def later(self) -> None:
        for timer in self._timers:
            timer.cancel()
        loop = asyncio.get_running_loop()
        self._timers = [loop.call_later(delay, self.soon) for delay in self.LATER]

    async def _run(self) -> None:
        while self._wanted:
            self._wanted = False
            try:
                await self._send()
            except Exception as error:
                log.debug("NOTIFY failed, pollers will find the rows: %s", error)
                return
            await asyncio.sleep(self.GAP)

    async def stop(self) -> None:
        for timer in self._timers:
            timer.cancel()
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])


class ThreadNotifier:
    """The same for processes without an event loop: one daemon thread, started by the first commit."""

    def __init__(self, send: Callable[[], None]) -> None:
        self._send = send
        self._due: list[float] = []
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._pid = 0
        self._closed = False

    def soon(self) -> None:
        self._at(0.0)

    def later(self) -> None:
        self._at(*Notifier.LATER)

    def _at(self, *delays: float) -> None:
        with self._changed:
            if self._closed:
                return
            if self._thread is None or self._pid != os.getpid():
                self._pid = os.getpid()
                self._thread = threading.Thread(target=self._run, name="relaybox-notify", daemon=True)
                self._thread.start()
            now = time.monotonic()
            self._due = sorted(now + delay for delay in delays)
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._closed and not (self._due and self._due[0] <= time.monotonic()):
                    self._changed.wait(self._due[0] - time.monotonic() if self._due else None)
                if self._closed:
                    return
                self._due.pop(0)
            try:
                self._send()
            except Exception as error:
                log.debug("NOTIFY failed, pollers will find the rows: %s", error)
            time.sleep(Notifier.GAP)

    def stop(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None and self._pid == os.getpid():
            self._thread.join(timeout=2)
