"""Order inside one process: one event of a key at a time, keys in parallel, nothing behind a failed head.

A lane exists while its key has an event here. States of a lane:

    running   its head is with a worker; followers wait in arrival order (which is seq order)
    blocked   its head failed and the failure is not settled yet; followers wait to be released
    (gone)    nothing of the key is here

Pure: no clock, no I/O. The engine settles a blocked head (which makes the key wait in the database) before it
takes the followers out, so no later claim can slip between.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, Protocol, TypeVar


class Keyed(Protocol):
    @property
    def lane(self) -> str | None: ...


D = TypeVar("D", bound=Keyed)


class Lanes(Generic[D]):
    def __init__(self) -> None:
        self._waiting: dict[str, deque[D]] = {}
        self._blocked: set[str] = set()

    def admit(self, delivery: D) -> bool:
        """True: run it now. False: it waits behind another of its key."""
        key = delivery.lane
        if key is None:
            return True
        waiting = self._waiting.get(key)
        if waiting is None:
            self._waiting[key] = deque()
            return True
        waiting.append(delivery)
        return False

    def finish(self, delivery: D) -> D | None:
        """The head is settled for good: the next of its key may run."""
        key = delivery.lane
        if key is None:
            return None
        waiting = self._waiting[key]
        if waiting:
            return waiting.popleft()
        del self._waiting[key]
        return None

    def block(self, delivery: D) -> None:
        """The head failed: nothing of the key runs until the failure is settled."""
        if delivery.lane is not None:
            self._blocked.add(delivery.lane)

    def clear(self, delivery: D) -> list[D]:
        """The failure is settled: the followers, to be released in order. The lane is gone."""
        if delivery.lane is None:
            return []
        self._blocked.discard(delivery.lane)
        return list(self._waiting.pop(delivery.lane, ()))

    def blocked(self) -> frozenset[str]:
        return frozenset(self._blocked)

    def __len__(self) -> int:
        return len(self._waiting)
