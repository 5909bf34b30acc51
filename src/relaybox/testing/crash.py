"""Crash on purpose, at a named point, at the n-th time.

    with crash_at("settle.before", hit=2, action="raise") as point:
        ...
    assert point.fired

    RELAYBOX_CRASH="settle.before:1:kill" python worker.py      # worker.py calls arm_from_environment()

The points are `relaybox.faults.POINTS`. `kill` is kill -9 of this process; `raise` raises InjectedFault (or `error`);
`delay` blocks the thread that got there, as a paused process would; `cancel` cancels the task that got there.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Literal, cast, get_args

from .. import faults
from ..durations import Duration, parse_duration
from ..errors import ConfigError

Action = Literal["kill", "raise", "delay", "cancel"]
VARIABLE = "RELAYBOX_CRASH"

_points: list[CrashPoint] = []
_lock = threading.Lock()


class InjectedFault(Exception):
    """What `raise` raises: no error of ours or of a driver, so nothing handles it by accident."""


class CrashPoint:
    """One armed point: how often it was reached, and whether it has fired."""

    def __init__(
        self,
        name: str,
        hit: int = 1,
        action: Action = "raise",
        *,
        error: BaseException | None = None,
        delay: Duration = "1s",
    ) -> None:
        if name not in faults.POINTS:
            raise ConfigError(f"unknown fault point {name!r}; the points are {', '.join(faults.POINTS)}")
        if hit < 1:
            raise ConfigError(f"expected hit to be at least 1, got {hit}")
        if action not in get_args(Action):
            raise ConfigError(f"expected action to be one of {', '.join(get_args(Action))}, got {action!r}")
        self.name = name
        self.hit = hit
        self.action = action
        self.hits = 0
        self._error = error
        self._delay = parse_duration(delay, "delay")
        self._fired = threading.Event()

    @property
    def fired(self) -> bool:
        """Whether the point was reached and did what it was armed for."""
        return self._fired.is_set()

    def wait(self, timeout: float = 5.0) -> None:
        """Until it has fired, from another thread."""
        if not self._fired.wait(timeout):
            raise TimeoutError(f"{self} did not fire within {timeout} s")

    def reached(self) -> bool:
        """Count; True exactly once, at the chosen time."""
        self.hits += 1
        return self.hits == self.hit

    def fire(self) -> None:
        """What happens when the point is reached."""
        self._fired.set()
        match self.action:
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "raise":
                raise self._error if self._error is not None else InjectedFault(f"injected at {self.name}")
            case "delay":
                time.sleep(self._delay.total_seconds())
            case "cancel":
                _cancel_current_task()

    def __repr__(self) -> str:
        return f"CrashPoint({self.name}:{self.hit}:{self.action}, {self.hits} hits)"


def _cancel_current_task() -> None:
    """As `task.cancel()` from outside: the task notices at its next await. Outside a task there is no next await."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        task = None
    if task is None:
        raise asyncio.CancelledError
    task.cancel()


@contextmanager
def crash_at(
    name: str,
    hit: int = 1,
    action: Action = "raise",
    *,
    error: BaseException | None = None,
    delay: Duration = "1s",
) -> Iterator[CrashPoint]:
    """Armed inside the block, in every thread of this process. Blocks nest: several points may be armed at once."""
    point = CrashPoint(name, hit, action, error=error, delay=delay)
    _arm(point)
    try:
        yield point
    finally:
        _disarm(point)


def arm_from_environment(environment: Mapping[str, str] | None = None) -> list[CrashPoint]:
    """Arm what RELAYBOX_CRASH names, for good: `point:hit:action`, several separated by commas."""
    text = (os.environ if environment is None else environment).get(VARIABLE, "")
    points = [_parsed(part.strip()) for part in text.split(",") if part.strip()]
    for point in points:
        _arm(point)
    return points


def _parsed(text: str) -> CrashPoint:
    name, _, rest = text.partition(":")
    hit, _, action = rest.partition(":")
    if not hit.isdecimal() or action not in get_args(Action):
        raise ConfigError(f"expected {VARIABLE} to be point:hit:action such as settle.before:1:kill, got {text!r}")
    return CrashPoint(name, int(hit), cast(Action, action))


def _arm(point: CrashPoint) -> None:
    with _lock:
        _points.append(point)
        faults.arm(_reached)


def _disarm(point: CrashPoint) -> None:
    with _lock:
        _points.remove(point)
        if not _points:
            faults.arm(None)


def _reached(name: str) -> None:
    with _lock:
        due = [point for point in _points if point.name == name and point.reached()]
    for point in due:
        point.fire()
