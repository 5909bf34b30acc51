"""The one rule: rates by what this machine can insert, durations by 60."""

from __future__ import annotations

from dataclasses import dataclass

SOURCE_INSERTS = 50_000


@dataclass(frozen=True, slots=True)
class Scale:
    inserts: float  # single-row inserts per second, measured
    disk: float  # bytes per second that the disk takes, measured
    full: bool = False

    @property
    def factor(self) -> float:
        return min(1.0, self.inserts / SOURCE_INSERTS)

    def rate(self, source: float) -> float:
        return max(1.0, source * self.factor)

    def count(self, source: int) -> int:
        return max(1, int(source * self.factor))

    def seconds(self, source: float) -> float:
        return source if self.full else source / 60
