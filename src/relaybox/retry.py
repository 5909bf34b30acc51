"""When to try again: pure arithmetic, no clock, no sleep."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol

from .errors import ConfigError


class RetryPolicy(Protocol):
    def delay(self, attempts: int) -> timedelta:
        """The pause after the `attempts`-th failed attempt (1 for the first)."""
        ...


@dataclass(frozen=True, slots=True)
class ExponentialBackoff:
    """base · 2^(attempts-1) with jitter in [0.5, 1.5], never above `maximum`.

    The cap is applied after the jitter and the exponent is clamped first, so neither
    a thousand attempts nor an unlucky draw leaves the range.
    """

    base: timedelta = timedelta(milliseconds=200)
    maximum: timedelta = timedelta(seconds=60)
    jitter: tuple[float, float] = (0.5, 1.5)
    rng: random.Random = field(default_factory=random.Random, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.base <= timedelta(0):
            raise ConfigError(f"expected retry base to be a positive duration, got {self.base}")
        if self.maximum < self.base:
            raise ConfigError(f"expected retry maximum to be at least the base {self.base}, got {self.maximum}")
        low, high = self.jitter
        if not 0 < low <= high:
            raise ConfigError(f"expected retry jitter to be 0 < low <= high, got {self.jitter}")

    def delay(self, attempts: int) -> timedelta:
        if attempts < 1:
            raise ConfigError(f"expected attempts to be at least 1, got {attempts}")
        ceiling = self.maximum.total_seconds()
        doubled = self.base.total_seconds() * 2.0 ** min(attempts - 1, 60)
        return timedelta(seconds=min(doubled * self.rng.uniform(*self.jitter), ceiling))
