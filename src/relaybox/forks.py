"""What a forked child must not go on with: locks that a thread of its parent held at that moment, threads and tasks
that are not there, connections that are its parent's."""

from __future__ import annotations

import os
import threading
from typing import Protocol
from weakref import WeakSet


class Renewed(Protocol):
    def after_fork(self) -> None:
        """In the child, before anything else runs there."""
        ...


_known: WeakSet[Renewed] = WeakSet()


def renew_after_fork(thing: Renewed) -> None:
    _known.add(thing)


class FreshLock:
    """A lock that is free in a forked child, even if a thread of the parent held it."""

    def __init__(self) -> None:
        self.after_fork()
        renew_after_fork(self)

    def after_fork(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def _after_fork() -> None:
    for thing in tuple(_known):
        thing.after_fork()


os.register_at_fork(after_in_child=_after_fork)
