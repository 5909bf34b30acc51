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
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar


class Keyed(Protocol):
    @property
    def lane(self) -> str | None: ...


D = TypeVar("D", bound=Keyed)


class Lanes(Generic[D]):
    def __init__(self) -> None:
        self._waiting: dict[str, deque[D]] = {}
        self._joined: dict[str, int] = {}  # how many run together with their head
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

    def join(self, head: D, limit: int) -> list[D]:
        """Up to `limit` followers, in order, to run in one batch with their head."""
        waiting = self._waiting.get(head.lane) if head.lane is not None else None
        if not waiting or limit < 1:
            return []
        joined = [waiting.popleft() for _ in range(min(limit, len(waiting)))]
        self._joined[head.lane] = len(joined)  # type: ignore[index]  # a lane has a key
        return joined

    def part(self, followers: Sequence[D]) -> None:
        """These joined ones did not run after all: back to the front of their lane."""
        for follower in reversed(followers):
            key = follower.lane
            assert key is not None
            self._waiting[key].appendleft(follower)
            self._leave(key)

    def _leave(self, key: str) -> bool:
        """One fewer runs together with the head; False when nobody else did."""
        others = self._joined.get(key, 0)
        if not others:
            return False
        if others == 1:
            del self._joined[key]
        else:
            self._joined[key] = others - 1
        return True

    def finish(self, delivery: D) -> D | None:
        """Settled for good: the next of its key may run, once all that ran together are."""
        key = delivery.lane
        if key is None or self._leave(key):
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
        self._joined.pop(delivery.lane, None)
        return list(self._waiting.pop(delivery.lane, ()))

    def blocked(self) -> frozenset[str]:
        return frozenset(self._blocked)

    def __len__(self) -> int:
        return len(self._waiting)
