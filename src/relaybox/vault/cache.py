"""Data keys that this process remembers: so many, and so long. After that it asks again, and learns of an erasure."""

from __future__ import annotations

from typing import Generic, TypeVar

from ..clock import Clock
from ..forks import FreshLock

T = TypeVar("T")


class Remembered(Generic[T]):
    """By a name; the oldest goes when there is no more room."""

    def __init__(self, limit: int, seconds: float, clock: Clock) -> None:
        self._limit = limit
        self._seconds = seconds
        self._now = clock.monotonic
        self._kept: dict[str, tuple[T, float]] = {}
        self._lock = FreshLock()

    def get(self, name: str) -> T | None:
        found = self._kept.get(name)
        return found[0] if found is not None and self._now() < found[1] else None

    def put(self, name: str, value: T) -> None:
        with self._lock:
            self._kept.pop(name, None)
            self._kept[name] = value, self._now() + self._seconds
            while len(self._kept) > self._limit:
                del self._kept[next(iter(self._kept))]

    def drop(self, name: str) -> None:
        with self._lock:
            self._kept.pop(name, None)

    def __len__(self) -> int:
        return len(self._kept)
