"""When to try again: pure arithmetic, no clock, no sleep."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, ClassVar

from .durations import Duration, DurationField, parse_duration
from .errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Retry:
    """How often an event is tried, and how long it waits in between: `Retry(attempts=5, base="1s")`.

    The pause after the n-th failure is base · 2^(n-1), more or less the jitter, and never above `max`. `delay` decides
    instead, if it is given: it is called with n.
    """

    section: ClassVar[str] = "retry"
    attempts: Annotated[int | None, "deliveries of one event before it becomes a dead letter; none: for ever"] = 10
    base: Annotated[DurationField, "pause after the first failure; doubles from there"] = DurationField("200ms")
    max: Annotated[DurationField, "longest pause between two attempts"] = DurationField("1m")
    jitter: Annotated[float, "part of a pause, 0 to 1, by which chance makes it shorter or longer"] = 0.5
    delay: Annotated[Callable[[int], Duration] | None, "in code only: the pause after the n-th failure"] = None

    def __post_init__(self) -> None:
        if self.attempts is not None and (type(self.attempts) is not int or self.attempts < 1):
            raise ConfigError(f"expected retry.attempts to be a positive int or None, got {self.attempts!r}")
        if self.base <= timedelta(0):
            raise ConfigError(f"expected retry.base to be a positive duration, got {self.base}")
        if self.max < self.base:
            raise ConfigError(f"expected retry.max to be at least retry.base {self.base}, got {self.max}")
        if not isinstance(self.jitter, (int, float)) or isinstance(self.jitter, bool) or not 0 <= self.jitter < 1:
            raise ConfigError(f"expected retry.jitter to be a number from 0 to less than 1, got {self.jitter!r}")
        if self.delay is not None and not callable(self.delay):
            raise ConfigError(f"expected retry.delay to be a function of the attempt, got {self.delay!r}")

    @property
    def limit(self) -> float:
        """The attempts, to compare with."""
        return math.inf if self.attempts is None else self.attempts

    def pause(self, attempts: int) -> timedelta:
        """After the `attempts`-th failed attempt (1 for the first)."""
        if attempts < 1:
            raise ConfigError(f"expected attempts to be at least 1, got {attempts}")
        if self.delay is not None:
            return parse_duration(self.delay(attempts), "what retry.delay returns")
        doubled = self.base.total_seconds() * 2.0 ** min(attempts - 1, 60)  # a thousand attempts stay a number
        spread = random.uniform(1 - self.jitter, 1 + self.jitter)
        return timedelta(seconds=min(doubled * spread, self.max.total_seconds()))
