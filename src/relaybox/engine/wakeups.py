"""Wake-ups are hints; polling is the truth.

Listening: polls rest for seconds, a NOTIFY ends the rest. Not listening (no LISTEN on this database, a pooler
in between, the connection is down): polls come twice a second, with one log line saying why.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from ..clock import Clock
from ..facts import Observers, WakeUps
from ..forks import renew_after_fork
from ..tasks import FIRST_PAUSE, LONGEST_PAUSE, cancelled, is_cancelled

log = logging.getLogger("relaybox")

LISTENING = timedelta(seconds=5)
POLLING = timedelta(milliseconds=500)

Listen = Callable[[Callable[[], None], Callable[[], None]], Awaitable[None]]


class Sleeper(Protocol):
    """An engine that rests between two polls."""

    def wake(self) -> None: ...

    def poll_every(self, interval: timedelta) -> None: ...


@dataclass(eq=False)
class Ears:
    """Runs `listen(ready, wake)` for ever and sets the engine's poll interval to match."""

    _engine: Sleeper
    _listen: Listen | None
    _fixed: timedelta | None
    _observers: Observers
    _clock: Clock
    _mode: str = ""
    _told: WakeUps | None = None
    _task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._listen is None:
            self._set("poll", "this database has no wake-ups across processes")
        else:
            self._set("poll", "not listening yet")
            self._task = asyncio.create_task(self._run(self._listen), name="relaybox-listen")

    async def stop(self) -> None:
        await cancelled(self._task)

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
                if is_cancelled():
                    return
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


class NotifyPace:
    """When to send the next NOTIFY: at once after a moment of quiet, otherwise a few times per burst.

    Asking again never postpones what is due already. Pure: the caller brings the time.
    """

    QUIET = 0.0015  # seconds since the last NOTIFY after which the next goes out at once
    BUSY = 0.005  # seconds between two of them in a burst: pollers are awake then anyway
    SOON = frozenset((0.0,))
    LATER = frozenset((0.005, 0.05, 0.5))  # after a write whose commit we cannot see
    DEAF = 1.0  # seconds to wait when nobody was there to hear the last one

    def __init__(self) -> None:
        self._last = -math.inf
        self._silent_until = -math.inf
        self._due: dict[float, float] = {}

    def asked(self, delays: frozenset[float]) -> bool:
        """Whether a NOTIFY is due already for each of these delays, as usual in a burst."""
        return self._due.keys() >= delays

    def ask(self, now: float, delays: frozenset[float]) -> bool:
        """Whether the next one is sooner for it: only then must those that wait be told."""
        before = self.next()
        for delay in delays:
            at = now + delay
            self._due.setdefault(delay, at if at - self._last >= self.QUIET else self._last + self.BUSY)
        return self.next() < before

    def next(self) -> float:
        return max(min(self._due.values(), default=math.inf), self._last + self.QUIET, self._silent_until)

    def sent(self, now: float) -> None:
        self._last = now
        self._due = {delay: at for delay, at in self._due.items() if at > now}

    def unheard(self, now: float) -> None:
        """Nobody listens. A process that starts to listen polls first, so asking once in a while is enough."""
        self._silent_until = now + self.DEAF


class _Asked:
    def soon(self) -> None:
        self._ask(NotifyPace.SOON)

    def later(self) -> None:
        self._ask(NotifyPace.LATER)

    def _ask(self, delays: frozenset[float]) -> None:
        raise NotImplementedError


class Notifier(_Asked):
    """Tells other processes that something was committed: coalesced, from outside the writer's transaction."""

    def __init__(self, send: Callable[[], Awaitable[bool]]) -> None:
        self._send = send
        self.after_fork()
        renew_after_fork(self)

    def after_fork(self) -> None:
        self._pace = NotifyPace()
        self._task: asyncio.Task[None] | None = None
        self._asked = asyncio.Event()

    def _ask(self, delays: frozenset[float]) -> None:
        running = self._task is not None and not self._task.done()
        if running and self._pace.asked(delays):
            return
        loop = asyncio.get_running_loop()
        if self._pace.ask(loop.time(), delays):
            self._asked.set()
        if not running:
            self._task = loop.create_task(self._run(loop), name="relaybox-notify")

    async def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        """Lives as long as something is due."""
        while (at := self._pace.next()) < math.inf:
            self._asked.clear()
            if at > loop.time():
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(at):
                        await self._asked.wait()
                continue
            self._pace.sent(loop.time())
            try:
                if not await self._send():
                    self._pace.unheard(loop.time())
            except Exception as error:
                log.debug("NOTIFY failed, pollers will find the rows: %s", error)

    async def stop(self) -> None:
        await cancelled(self._task)


class ThreadNotifier(_Asked):
    """A Notifier for processes without an event loop: one daemon thread, started by the first commit."""

    def __init__(self, send: Callable[[], bool]) -> None:
        self._send = send
        self._closed = False
        self.after_fork()
        renew_after_fork(self)

    def after_fork(self) -> None:
        self._pace = NotifyPace()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def _ask(self, delays: frozenset[float]) -> None:
        if self._pace.asked(delays):
            return
        with self._changed:
            if self._closed:
                return
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="relaybox-notify", daemon=True)
                self._thread.start()
            if self._pace.ask(time.monotonic(), delays):
                self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._closed and (wait := self._pace.next() - time.monotonic()) > 0:
                    self._changed.wait(None if wait == math.inf else wait)
                if self._closed:
                    return
                self._pace.sent(time.monotonic())
            try:
                if not self._send():
                    self._pace.unheard(time.monotonic())
            except Exception as error:
                log.debug("NOTIFY failed, pollers will find the rows: %s", error)

    def stop(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(timeout=2)


class PlaceNotifier(ThreadNotifier):
    """A Notifier for threads that bring their connections along: the one that committed tells it itself."""

    _deaf_until = -math.inf

    def soon(self) -> None:
        if (now := time.monotonic()) < self._deaf_until:
            return
        try:
            if not self._send():
                self._deaf_until = now + NotifyPace.DEAF
        except Exception as error:  # it would reach who has committed
            log.debug("NOTIFY failed, pollers will find the rows: %s", error)


def notifier(send: Callable[[], bool], *, here: bool) -> ThreadNotifier:
    """`here`: where connections are those of the threads that use them."""
    return PlaceNotifier(send) if here else ThreadNotifier(send)
