"""Topics and groups as people see them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from ..store.topics import GroupRow, GroupTotals, Lag, MemberRow, TopicRow
from ..store.topics.life import GroupState
from ..topic import Topic
from ..values import Health, Progress


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A configured topic."""

    topic: Topic
    id: int  # its tables are named after it
    version: int  # grows with every change that writers must know of
    groups: int  # that are active or paused: events are kept for them
    active: int  # of those, the ones that are not paused
    moving: Mapping[str, Any] | None  # how far a move has come; None: none is under way
    created_at: datetime
    updated_at: datetime

    @classmethod
    def _of(cls, row: TopicRow) -> TopicInfo:
        groups = len(row.audience)
        return cls(row.topic, row.id, row.version, groups, row.active, row.moving, row.created_at, row.updated_at)


@dataclass(frozen=True, slots=True)
class MemberInfo:
    """A process that delivers for a group, or a consumer that polls."""

    name: str
    alive: bool  # it was heard of in time: what it has taken is its own
    silent: timedelta
    started_at: datetime
    processed: int
    failed: int
    ignored: int


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """A group: how it is, how far it is, and what its members have done. Counts are of all members there ever were,
    the rate is of those that run now."""

    topic: str
    group: str
    state: GroupState
    reason: str | None  # why it is in this state
    stalled: bool  # dead because it made no progress: only `resume` ends that
    ordered: bool
    on_exhausted: str
    attempts: int | None  # None: for ever
    silence: timedelta  # after which it counts as dead
    start: str  # where it began, in words
    created_at: datetime
    state_at: datetime  # since when it is in this state
    members: Sequence[MemberInfo]
    silent: timedelta  # since the last sign of life of any member
    failures: int  # checks, one after the other, that found it silent or standing still
    pending: int  # events it has not finished
    in_flight: int  # of those, with members now
    parked: int  # of those, failed and waiting for another attempt, or waiting behind such a one
    oldest: timedelta | None  # age of the oldest pending event
    dead: int  # events that were given up
    lost: int  # events that were deleted before it had them
    processed: int
    failed: int
    ignored: int
    per_second: float
    average_ms: float | None  # what listeners take for an event, of a sample; None: not measured yet
    backfill: Progress | None  # None: there was none

    @classmethod
    def _of(
        cls,
        row: GroupRow,
        totals: GroupTotals,
        lag: Lag,
        members: Sequence[MemberRow],
        backfill: Progress | None,
    ) -> GroupInfo:
        handled = totals.processed + totals.failed - totals.filtered
        return cls(
            topic=row.topic,
            group=row.name,
            state=row.state,
            reason=row.reason,
            stalled=row.stalled,
            ordered=row.ordered,
            on_exhausted=row.on_exhausted,
            attempts=row.attempts,
            silence=row.heartbeat_timeout,
            start=row.start,
            created_at=row.created_at,
            state_at=row.state_at,
            members=tuple(
                MemberInfo(m.name, m.alive, m.silent, m.started_at, m.processed, m.failed, m.filtered) for m in members
            ),
            silent=totals.silent,
            failures=row.failures,
            pending=lag.events,
            in_flight=lag.taken,
            parked=lag.parked,
            oldest=lag.oldest,
            dead=lag.dead,
            lost=row.lost,
            processed=totals.processed,
            failed=totals.failed,
            ignored=totals.filtered,
            per_second=totals.per_second,
            average_ms=totals.busy_ms / handled if handled and totals.busy_ms else None,
            backfill=backfill,
        )


def health_of(row: GroupRow, info: GroupInfo) -> Health:
    """Critical: it does not do its work."""
    if row.standstill is not None:
        return Health("degraded" if row.state == "paused" else "critical", (row.standstill,))
    reasons = []
    if not any(member.alive for member in info.members):
        reasons.append("no member is there to do the work")
    elif info.silent >= info.silence:
        reasons.append(f"no member was heard of for {info.silent}")
    if reasons:
        return Health("critical", tuple(reasons))
    if info.dead:
        return Health("degraded", (f"{info.dead} events are dead",))
    return Health()
