"""Feeds as people see them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from ..store.feeds import FeedCounts, FeedRow
from ..store.feeds.schedule import FeedLook, FeedSchedule


@dataclass(frozen=True, slots=True)
class FeedInfo:
    """A feed that was created."""

    name: str
    topic: str
    paused: bool
    mode: str
    table: str  # qualified, as SQL has it
    query: str
    key: Sequence[str]
    scope: Sequence[str]
    columns: Sequence[str]
    epoch: str  # another one: the feed was dropped and created anew
    deltas: int  # written so far
    created_at: datetime
    refreshed_at: datetime | None
    how: str | None  # the last refresh: full or differential, and what it changed
    inserted: int | None
    deleted: int | None

    @classmethod
    def _of(cls, row: FeedRow) -> FeedInfo:
        return cls(
            name=row.name,
            topic=row.topic,
            paused=row.state == "paused",
            mode=row.mode,
            table=row.table,
            query=row.query,
            key=tuple(row.key),
            scope=tuple(row.scope),
            columns=tuple(row.columns),
            epoch=row.epoch,
            deltas=row.deltas,
            created_at=row.created_at,
            refreshed_at=row.refreshed_at,
            how=row.how,
            inserted=row.inserted,
            deleted=row.deleted,
        )


@dataclass(frozen=True, slots=True)
class FeedStatus:
    """What waits in a feed, and what is kept for readers of its deltas."""

    feed: FeedInfo
    waiting: int  # changed rows that no refresh has looked at
    stale: Sequence[str]  # why the next refresh is full
    kept_deltas: int  # deltas whose rows are in chunks
    kept_chunks: int
    kept_bytes: int
    table_bytes: int
    claim_checks_pending: int  # of the kept deltas: a group is still to have it, or a job to read its rows
    log_bytes: int  # of the log of its topic
    storage: Literal["ok", "critical"]  # kept_bytes and log_bytes by the setting feeds.critical_mb
    schedule: FeedSchedule
    late: bool  # it was not refreshed in its time

    @classmethod
    def _of(cls, row: FeedRow, counts: FeedCounts, pending: int, look: FeedLook, critical_mb: int) -> FeedStatus:
        storage: Literal["ok", "critical"] = "critical" if look.bytes > critical_mb * 2**20 else "ok"
        known = counts._replace(stale=tuple(counts.stale))
        return cls(FeedInfo._of(row), *known, pending, look.log_bytes, storage, look.schedule, look.late)
