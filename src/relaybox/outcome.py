"""What became of a delivery: the only four answers a handler can have."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True, slots=True)
class Done:
    """Delivered: the pending row goes."""


@dataclass(frozen=True, slots=True)
class RetryAt:
    """Not delivered: due again after `delay`, counted by the database clock. An attempt that was nobody's fault (the
    destination is away) is taken back."""

    delay: timedelta
    error: str
    counted: bool = True


@dataclass(frozen=True, slots=True)
class Dead:
    """Given up: moves to the dead letters with the error."""

    error: str


@dataclass(frozen=True, slots=True)
class Skip:
    """Nothing to deliver (the event row is gone): forget the pending row."""

    reason: str


Outcome = Done | RetryAt | Dead | Skip
DONE = Done()
