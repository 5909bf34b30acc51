"""Renewal of leases: whatever is still here after a third of its lease, queued and running alike."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from .. import faults
from ..clock import Clock
from ..facts import ClaimLost, Observers
from .loops import Every

CHUNK = 1000  # claims per round trip


class Leased(Protocol):
    lease_end: float  # on the clock's monotonic time; 0.0: lost


L = TypeVar("L", bound=Leased)


@dataclass(eq=False)
class Renewer(Generic[L]):
    """`renew` moves on the ends of the leases that are still ours, marks the others and counts their events."""

    _held: Callable[[], Iterable[L]]
    _renew: Callable[[Sequence[L], float], Awaitable[int]]
    _lease: float
    _observers: Observers
    _clock: Clock

    def __post_init__(self) -> None:
        self.step = Every(self._lease / 3, self._renew_aging, self._clock)

    async def _renew_aging(self) -> None:
        started = self._clock.monotonic()
        aging = [each for each in self._held() if each.lease_end - started < self._lease * 0.75]
        for start in range(0, len(aging), CHUNK):
            faults.hit("renew.before")
            ends = self._clock.monotonic() + self._lease
            lost = await self._renew(aging[start : start + CHUNK], ends)
            if lost:
                self._observers(ClaimLost(lost))
