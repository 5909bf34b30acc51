"""Renewal of leases: whatever is still here after a third of its lease, queued and running alike."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import timedelta
from typing import Generic, Protocol, TypeVar

from .. import faults
from ..clock import Clock
from ..lifecycle import ClaimLost, Observers

CHUNK = 1000  # claims per round trip


class Leased(Protocol):
    lease_end: float  # on the clock's monotonic time; 0.0: lost


L = TypeVar("L", bound=Leased)


class Renewer(Generic[L]):
    def __init__(
        self,
        held: Callable[[], Iterable[L]],
        renew: Callable[[Sequence[L], float], Awaitable[int]],
        lease: timedelta,
        observers: Observers,
        clock: Clock,
    ) -> None:
        """`renew` moves on the ends of the leases that are still ours, marks the others and counts their events."""
        self._held = held
        self._renew = renew
        self._lease = lease.total_seconds()
        self._observers = observers
        self._clock = clock
        self._due = clock.monotonic() + self._lease / 3

    async def step(self) -> None:
        """One that fails is due at once again: its leases have little time left."""
        if (wait := self._due - self._clock.monotonic()) > 0:
            await self._clock.sleep(wait)
        started = self._clock.monotonic()
        aging = [each for each in self._held() if each.lease_end - started < self._lease * 0.75]
        for start in range(0, len(aging), CHUNK):
            faults.hit("renew.before")
            ends = self._clock.monotonic() + self._lease
            lost = await self._renew(aging[start : start + CHUNK], ends)
            if lost:
                self._observers(ClaimLost(lost))
        self._due = started + self._lease / 3
