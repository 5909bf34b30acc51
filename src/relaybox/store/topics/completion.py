"""The part of a topic store that knows when an event is complete: marks, backfill, moves between trackings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from .life import GroupState

BackfillState = Literal["not_started", "in_progress", "completed", "cancelled", "failed"]


class Completion(NamedTuple):
    """Which groups must have an event and which are done with it, by name. `completed_at` is known where events have
    marks (bitmap, acks)."""

    seq: int
    completed_at: datetime | None
    required: Sequence[str]
    done: Sequence[str]

    @property
    def waiting(self) -> list[str]:
        """Those that must have it and are not done with it."""
        return [] if self.completed_at is not None else sorted(set(self.required) - set(self.done))


@dataclass(frozen=True, slots=True)
class BackfillRow:
    state: BackfillState
    done: int
    total: int
    rate: float
    error: str | None
    group_state: GroupState


@dataclass(frozen=True, slots=True)
class Counters:
    """What a topic's tables have seen. None: not measured, which is not the same as nothing."""

    at: datetime
    numbers: int
    groups: int
    inserted: int
    deleted: int
    tick_rate: float | None  # numbers per second over the last minutes
    acks: int | None
    dead_marks: int | None
    live_marks: int | None
    oldest_open: timedelta | None
    ack_rows: int | None
