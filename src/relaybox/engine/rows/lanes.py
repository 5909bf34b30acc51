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
from collections.abc import Iterable, Sequence
from typing import Generic, Protocol, TypeVar


class Keyed(Protocol):
    @property
    def lane(self) -> str | None: ...


D = TypeVar("D", bound=Keyed)


class Lanes(Generic[D]):
    def __init__(self) -> None:
        self._open: set[str] = set()
        self._waiting: dict[str, deque[D]] = {}  # followers, of the keys that have any
        self._joined: dict[str, int] = {}  # how many run together with their head
        self.full: set[str] = set()  # keys of which no more is wanted here until they have nothing left here

    @property
    def waiting(self) -> int:
        """Followers, in all lanes."""
        return sum(map(len, self._waiting.values()))

    def crowded(self) -> list[str]:
        """The keys that have followers."""
        return list(self._waiting)

    def trim(self, head: D, keep: int) -> list[D]:
        """The followers of a head that takes long, but for the first few (at least one): to be released. Its lane
        stays."""
        key = head.lane
        waiting = self._waiting.get(key) if key is not None else None
        if key is None or waiting is None or len(waiting) <= keep:
            return []
        self.full.add(key)
        trimmed = [waiting.pop() for _ in range(len(waiting) - keep)]
        return trimmed[::-1]

    def admit(self, deliveries: Iterable[D]) -> list[D]:
        """The deliveries that may run now. The others wait, each behind one of its key."""
        opened, runnable = self._open, []
        for delivery in deliveries:
            key = delivery.lane
            if key in opened:
                self._waiting.setdefault(key, deque()).append(delivery)
                continue
            if key is not None:
                opened.add(key)
            runnable.append(delivery)
        return runnable

    def followed(self, heads: Sequence[D]) -> list[D]:
        """The heads behind which others wait."""
        waiting = self._waiting
        return [head for head in heads if head.lane in waiting] if waiting else []

    def join(self, head: D, limit: int) -> list[D]:
        """Up to `limit` followers, in order, to run in one batch with their head."""
        key = head.lane
        if limit < 1 or key not in self._waiting:
            return []
        waiting = self._waiting[key]
        joined = [waiting.popleft() for _ in range(min(limit, len(waiting)))]
        if not waiting:
            del self._waiting[key]
        self._joined[key] = len(joined)
        return joined

    def part(self, followers: Sequence[D]) -> None:
        """Followers that joined and did not run go back to the front of their lane."""
        for follower in reversed(followers):
            key = follower.lane
            assert key is not None
            self._waiting.setdefault(key, deque()).appendleft(follower)
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

    def finish(self, deliveries: Sequence[D]) -> list[D]:
        """Settled for good: those that may run next, each once all that ran together before it are."""
        if not (self._waiting or self._joined or self.full):
            self._open.difference_update([delivery.lane for delivery in deliveries])
            return []
        return [follower for delivery in deliveries if (follower := self._next(delivery.lane)) is not None]

    def _next(self, key: str | None) -> D | None:
        if key is None or self._leave(key):
            return None
        waiting = self._waiting.get(key)
        if waiting is None:
            self._open.discard(key)
            self.full.discard(key)
            return None
        follower = waiting.popleft()
        if not waiting:
            del self._waiting[key]
        return follower

    def clear(self, delivery: D) -> list[D]:
        """The head failed and that is settled: the followers, to be released in order. The lane is gone."""
        if delivery.lane is None:
            return []
        self._open.discard(delivery.lane)
        self.full.discard(delivery.lane)
        self._joined.pop(delivery.lane, None)
        return list(self._waiting.pop(delivery.lane, ()))

    def __len__(self) -> int:
        return len(self._open)
