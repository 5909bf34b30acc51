"""Outages of single destinations: an endpoint that is down must neither stop nor be hammered by the others.

A destination that failed rests for a growing pause, or for the time it asked for; then one message tries it again,
while the rest wait a little longer. What rests is given back to the database with a due time and without counting.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import timedelta

from ..clock import Clock
from ..errors import BrokerUnavailable

FIRST = 0.5
SOON = 2.0  # the longest pause at first: an outage that ends is noticed at once
LONGEST = 60.0  # … and of one that lasts
LASTS = 300.0  # seconds after which an outage does
CHURN = 200  # events per second that may be given back and claimed again for destinations that rest
SPREAD = 60.0  # the longest time over which they come again
TRIAL = 15.0  # seconds that the one message sent after a pause may take
LONGEST_RETRY_AFTER = timedelta(hours=1)
MOST = 10_000  # destinations remembered; beyond it the oldest is tried without a pause


@dataclass(slots=True)
class _Rest:
    failures: int
    since: float
    until: float
    reason: str
    trying: bool = False  # one message has been sent to see
    waiting: int = 0  # events sent back to the database in this pause


class Pauses:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._resting: dict[str, _Rest] = {}
        self._waiting = 0  # of all

    def __len__(self) -> int:
        return len(self._resting)

    def admit(self, destination: str) -> BrokerUnavailable | None:
        """None: send it. Otherwise why not, and when to come back."""
        rest = self._resting.get(destination)
        if rest is None:
            return None
        now = self._clock.monotonic()
        if now >= rest.until:
            rest.until, rest.trying = now + TRIAL, True
            return None
        return self._unavailable(destination, rest, FIRST if rest.trying else rest.until - now)

    def failed(self, destination: str, error: BrokerUnavailable) -> BrokerUnavailable:
        """The first of many that fail together begins the pause; the others join it."""
        now = self._clock.monotonic()
        rest = self._resting.pop(destination, None)
        if rest is not None:
            self._waiting -= rest.waiting
        if rest is None or rest.trying or now >= rest.until:
            failures, since = (1, now) if rest is None else (rest.failures + 1, rest.since)
            longest = SOON if now - since < LASTS else LONGEST
            rest = _Rest(failures, since, now + self._pause(failures, longest, error), str(error))
        while len(self._resting) >= MOST:
            self.succeeded(next(iter(self._resting)))
        self._resting[destination] = rest
        self._waiting += rest.waiting
        return self._unavailable(destination, rest, rest.until - now)

    def left(self, destination: str) -> float:
        """Seconds until it may be tried again."""
        rest = self._resting.get(destination)
        return 0.0 if rest is None else max(0.0, rest.until - self._clock.monotonic())

    def succeeded(self, destination: str) -> None:
        if (rest := self._resting.pop(destination, None)) is not None:
            self._waiting -= rest.waiting

    def _pause(self, failures: int, longest: float, error: BrokerUnavailable) -> float:
        if error.retry_after is not None:
            return min(error.retry_after, LONGEST_RETRY_AFTER).total_seconds()
        return min(FIRST * 2.0 ** min(failures - 1, 10), longest) * random.uniform(0.5, 1.0)

    def _unavailable(self, destination: str, rest: _Rest, pause: float) -> BrokerUnavailable:
        rest.waiting += 1
        self._waiting += 1
        spread = min(0.1 + self._waiting / CHURN, SPREAD)
        later = timedelta(seconds=pause + random.uniform(0.0, spread))
        return BrokerUnavailable(rest.reason, retry_after=later, destination=destination)
