"""The part of a topic store that knows when an event is complete: marks, backfill, moves between trackings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from ...op import Op
from ...topic import Tracking

if TYPE_CHECKING:
    from . import GroupRow, TopicRow
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
    limited: bool  # there was more than its limit
    rate: float
    started_at: datetime | None
    ended_at: datetime | None
    elapsed: timedelta | None
    error: str | None
    token: int | None
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


class CompletionStore(Protocol):
    # marks.py
    def make_marks(self, topic_id: int, tracking: Tracking) -> Op[None]: ...
    def drop_marks(self, topic_id: int) -> Op[None]: ...
    def complete(self, topic: TopicRow, group: GroupRow, seqs: Sequence[int], now: datetime | None) -> Op[int]:
        """This group is done with these, in the transaction that says so. How many events that completed."""
        ...

    def release(self, topic: TopicRow, now: datetime | None, *, limit: int = 10_000) -> Op[int]:
        """Takes every group that is not active or paused off open marks. How many marks changed: call again until 0."""
        ...

    def catch_up(
        self, topic: TopicRow, group: GroupRow, after: int, now: datetime | None, *, limit: int = 10_000
    ) -> Op[int | None]:
        """Notes as done what the group has left behind without an ack. Where to go on; None at the end."""
        ...

    def completion(self, topic: TopicRow, seqs: Sequence[int]) -> Op[list[Completion]]: ...
    def force_complete(
        self, topic: TopicRow, before: datetime, now: datetime | None, *, limit: int = 10_000
    ) -> Op[int]:
        """Completes them even if groups still wait. How many: call again until 0."""
        ...

    # moves.py
    def begin_move(
        self, name: str, to: Tracking, now: datetime | None, *, ordered: bool = False
    ) -> Op[dict[str, Any] | None]: ...
    def move_step(self, name: str, now: datetime | None) -> Op[dict[str, Any] | None]:
        """One step, a transaction. What is left to do; None: the move is over. `waits`: nothing could be done yet."""
        ...

    def cancel_move(self, name: str, now: datetime | None) -> Op[bool]:
        """Refused once writers have been told."""
        ...

    # backfill.py
    def begin_backfill(
        self,
        topic: TopicRow,
        group: GroupRow,
        token: int,
        lease: timedelta,
        now: datetime | None,
        *,
        limit: int | None = None,
        oldest: bool = False,
    ) -> Op[Literal["begun", "resumed", "completed", "busy", "gone"]]: ...
    def backfill_step(
        self,
        topic: TopicRow,
        group: GroupRow,
        token: int,
        limit: int,
        lease: timedelta,
        rate: float,
        now: datetime | None,
    ) -> Op[tuple[int, bool] | None]:
        """One batch with its checkpoint: how many were added, and whether that was the end. None: not ours any more."""
        ...

    def hold_backfill(
        self, group: GroupRow, token: int, lease: timedelta, rate: float, now: datetime | None
    ) -> Op[tuple[int, int] | None]: ...
    def cancel_backfill(self, group: GroupRow, now: datetime | None) -> Op[bool]: ...
    def leave_backfill(self, group: GroupRow, token: int) -> Op[None]: ...
    def fail_backfill(self, group: GroupRow, token: int, error: str, now: datetime | None) -> Op[bool]: ...
    def backfill(self, group: GroupRow, now: datetime | None) -> Op[BackfillRow | None]: ...

    # measures.py
    def counters(self, topic: TopicRow, now: datetime | None) -> Op[Counters]: ...
    def io_bytes(self) -> Op[tuple[int, int] | None]:
        """WAL and data pages, of the whole server. None: this server does not say. Not in a transaction."""
        ...

    def fetch_probe(self, topic: TopicRow, shard: int) -> Op[None]:
        """What a reader does; for the time it takes."""
        ...

    def queue_numbers(self, topic: TopicRow) -> Op[int]: ...
