"""Time limits of what waits for a database.

In an event loop: as `asyncio.timeout`, at a quarter of its price; one timer looks after all that is under way. A client
library that is cancelled may wait for the server's word, in vain where the network swallows it: a call that has not
ended `GRACE` after its task was cancelled, by its limit or by anybody, loses its connection, and ends by that.

In threads nobody can be cancelled: there the connection goes at once.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from typing import Any, Protocol, Self

from ..errors import ConnectionLost
from ..forks import renew_after_fork

LOOK = 0.05  # seconds between two looks
GRACE = 1.0
IDLE = 200  # looks at nothing after which the thread that looks ends


class Abortable(Protocol):
    def abort(self) -> None: ...


def silent(seconds: float | None) -> ConnectionLost:
    return ConnectionLost(
        f"the database did not answer within {seconds or 0:g} s (delivery.database_timeout); the connection is given up"
    )


class Limited:
    """One op under way, as a `with` block or between `enter` and `leave`."""

    __slots__ = ("_limits", "_seconds", "cancelling", "connection", "cut", "expired", "task", "until")

    def __init__(self, limits: Deadlines, seconds: float | None, connection: Abortable | None) -> None:
        self._limits = limits
        self._seconds = seconds
        self.connection = connection
        self.expired = False

    def begin(self, task: asyncio.Task[Any], now: float) -> None:
        self.task = task
        self.until = math.inf if self._seconds is None else now + self._seconds
        self.cut = now + GRACE
        self.cancelling = task.cancelling()  # by others, before

    def __enter__(self) -> Self:
        self._limits.begin(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """An abort shows as an error of the connection, also where its cancellation was lost on the way."""
        missed = error is not None and self._limits.missed(self)
        self._limits.leave(self)
        if missed:
            raise silent(self._seconds) from error


class Deadlines:
    def __init__(self) -> None:
        self._under_way: set[Limited] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None

    def enter(self, seconds: float) -> Limited:
        return self.within(seconds).__enter__()

    def within(self, seconds: float | None, connection: Abortable | None = None) -> Limited:
        """None: no limit, but what is cancelled ends."""
        return Limited(self, seconds, connection)

    def begin(self, limited: Limited) -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        if loop is not self._loop:  # another one is over, with its timer and what was under way there
            self._loop, self._timer = loop, None
            self._under_way.clear()
        limited.begin(task, loop.time())
        self._under_way.add(limited)
        if self._timer is None:
            self._timer = loop.call_later(LOOK, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        """A loop that stood still (a handler that computes, a frozen process) read no answers: that does not count."""
        assert self._timer is not None
        now = loop.time()
        late = now - self._timer.when()
        for limited in self._under_way:
            if late > LOOK:
                limited.until += late
                limited.cut += late
            if limited.until <= now and not limited.expired:
                limited.expired = True
                limited.task.cancel()
            if limited.task.cancelling() <= limited.cancelling:
                limited.cut = now + GRACE
            elif limited.cut <= now and limited.connection is not None:
                limited.connection.abort()
        self._timer = loop.call_later(LOOK, self._look, loop) if self._under_way else None

    def missed(self, limited: Limited) -> bool:
        """Whether it was cancelled for its limit, and by nobody else."""
        return limited.expired and limited.task.cancelling() - 1 <= limited.cancelling

    def leave(self, limited: Limited) -> None:
        self._under_way.discard(limited)
        if limited.expired:
            limited.task.uncancel()


class Watched:
    """A call of a thread under way: its connection is cut when its time is over."""

    __slots__ = ("connection", "expired", "seconds", "until")

    def __init__(self, seconds: float | None, connection: Abortable) -> None:
        self.seconds = seconds
        self.connection = connection
        self.expired = False

    def __enter__(self) -> Self:
        if self.seconds is not None:
            self.until = time.monotonic() + self.seconds
            _watch.enter(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if self.seconds is not None:
            _watch.leave(self)
            if self.expired and isinstance(error, Exception):
                raise silent(self.seconds) from error


class _Watch:
    """One thread looks after all calls, and ends when there are none."""

    def __init__(self) -> None:
        self.after_fork()
        renew_after_fork(self)

    def after_fork(self) -> None:
        self._lock = threading.Lock()
        self._under_way: set[Watched] = set()
        self._thread: threading.Thread | None = None

    def enter(self, call: Watched) -> None:
        with self._lock:
            self._under_way.add(call)
            if self._thread is None:
                self._thread = threading.Thread(target=self._look, name="relaybox-limits", daemon=True)
                self._thread.start()

    def leave(self, call: Watched) -> None:
        with self._lock:
            self._under_way.discard(call)

    def _look(self) -> None:
        idle, last = 0, time.monotonic()
        while True:
            time.sleep(LOOK)
            with self._lock:
                now = time.monotonic()
                late, last = now - last - LOOK, now
                idle = 0 if self._under_way else idle + 1
                if idle > IDLE:
                    self._thread = None
                    return
                for call in self._under_way:
                    if late > LOOK:
                        call.until += late
                    if call.until <= now:
                        call.expired = True
                        call.connection.abort()


_watch = _Watch()
