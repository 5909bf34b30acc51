"""Room for the payloads that a claim reads from a log.

A read brings payloads of which there is room for as many as it may bring, and of larger ones the size. Those are read
in turn as long as there is room, and the page ends where there is none: what is behind waits in the log. So a claim of
small payloads is one round trip, and no more than that comes into memory at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from . import Place

SMALL = 1024  # bytes: not measured
MANY = 1000  # events of a range that was left behind, at most
APART = 4000  # events: of so many there is room for the payloads that are not measured


@dataclass(slots=True)
class PageRoom:
    """For one claim, which changes it."""

    left: int
    first: bool = True  # nothing is here: what comes first is read, whatever its size
    met: bool = False  # a payload was too large to come along
    full: bool = False  # something had to wait
    cut: set[Place] = field(default_factory=set)  # pages behind which there is more
    shut: set[int] = field(default_factory=set)  # shards of which nothing more can be had

    def usual(self, limits: Sequence[int]) -> int:
        """How large a payload may be that comes along."""
        return max(SMALL, self.left // max(APART, sum(min(limit, MANY) for limit in limits)))

    def fill(self, place: Place, rows: list[Any], *, whole: bool) -> list[Any]:
        """As many of the rows as there is room for. `whole`: all or none."""
        self.met = True
        sizes = [row[10] if row[10] is not None else len(row[7] or b"") for row in rows]
        fit = 0 if place.shard in self.shut else len(rows) if whole and self.first else self._fitting(sizes)
        while 0 < fit < len(rows) and rows[fit - 1][0] == rows[fit][0]:  # no page ends inside a number
            fit -= 1
        if whole and fit < len(rows):
            fit = 0
        if not fit and self.first:  # many of one number
            fit = next((n for n, row in enumerate(rows) if row[0] != rows[0][0]), len(rows))
        if fit < len(rows):
            self.full = True
            self.cut.add(place)
            if not fit:
                self.shut.add(place.shard)
        if fit:
            self.left -= sum(sizes[:fit])
            self.first = False
        return rows[:fit]

    def _fitting(self, sizes: Sequence[int]) -> int:
        left = self.left
        for n, size in enumerate(sizes):
            left -= size
            if left < 0 and (n or not self.first):
                return n
        return len(sizes)
