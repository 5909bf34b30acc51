"""PostgreSQL 14 or newer: the full engine."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from ...codec import JSON
from ...event import GLOBAL, Event
from ...ids import key_hash
from ...op import Copy, Op
from ..spi import Capabilities, Claim
from ..sql_store import SqlOutboxStore, lane_key

# Below this a single statement with arrays is faster than two COPYs and the numbers for them.
COPY_FROM = 200

_EVENT = (
    "seq",
    "event_id",
    "event_type",
    "aggregate_type",
    "aggregate_id",
    "tenant_id",
    "content_type",
    "payload",
    "headers",
    "occurred_at",
    "deliver_at",
    "created_at",
)
_EVENT_TYPES = (
    "int8",
    "varchar",
    "varchar",
    "varchar",
    "varchar",
    "varchar",
    "varchar",
    "bytea",
    "text",
    "timestamptz",
    "timestamptz",
    "timestamptz",
)
_PENDING = ("seq", "due", "key_hash", "token", "owner", "attempts", "claimed_at")
_PENDING_TYPES = ("int8", "timestamptz", "int8", "int8", "int4", "int4", "timestamptz")


class PostgresStore(SqlOutboxStore):
    dialect = "postgres"
    capabilities = Capabilities(
        single_statement=True, listen=True, copy=True, skip_locked=True, transactional_ddl=True
    )

    def from_time(self, value: datetime) -> datetime:
        """psycopg answers in the session's time zone; asyncpg in UTC."""
        return value if value.tzinfo is UTC else value.astimezone(UTC)

    def event_row(self, row: Sequence[Any]) -> tuple[Any, ...]:
        if row[9] is None or row[9].tzinfo is UTC:
            return row  # type: ignore[return-value]  # a tuple of the right values; attempts behind it do no harm
        return (*row[:9], *(at and self.from_time(at) for at in row[9:12]))

    def write(
        self, events: Sequence[Event], claim: Claim | None, now: datetime | None, *, copy: bool = False
    ) -> Op[list[int]]:
        if len(events) == 1:
            return [(yield from self.write_one(events[0], claim, now))]
        if copy and len(events) >= COPY_FROM:
            return (yield from self._write_copy(events, claim, now))
        result = yield self.sql["outbox.write.many"].bind(
            **self._arrays(events),
            key_hashes=[key_hash(lane_key(event)) for event in events],
            token=claim and claim.token,
            owner=claim and claim.owner,
            lease=claim.lease.total_seconds() if claim else 0.0,
            attempts=1 if claim else 0,
            now=now,
        )
        return sorted(row[0] for row in result.rows)

    def write_plain(self, events: Sequence[Event], now: datetime | None) -> Op[list[int]]:
        result = yield self.sql["outbox.write.plain"].bind(**self._arrays(events), now=now)
        return sorted(row[0] for row in result.rows)

    def _arrays(self, events: Sequence[Event]) -> dict[str, list[Any]]:
        return {
            "event_ids": [e.id for e in events],
            "event_types": [e.type for e in events],
            "aggregate_types": [None if e.aggregate_type == GLOBAL else e.aggregate_type for e in events],
            "aggregate_ids": [e.key for e in events],
            "tenant_ids": [e.tenant for e in events],
            "content_types": [None if e.content_type == JSON else e.content_type for e in events],
            "payloads": [e.body for e in events],
            "headers": [e.headers_text for e in events],
            "occurred_ats": [e.occurred_at for e in events],
            "deliver_ats": [e.deliver_at for e in events],
        }

    def _write_copy(
        self, events: Sequence[Event], claim: Claim | None, now: datetime | None
    ) -> Op[list[int]]:
        """Two COPYs instead of one statement: several times the rate for thousands of events."""
        drawn = yield self.sql["outbox.write.numbers"].bind(count=len(events), now=now)
        seqs = sorted(row[0] for row in drawn.rows)
        at: datetime = drawn.rows[0][1]
        wide = [
            (
                seq,
                e.id,
                e.type,
                None if e.aggregate_type == GLOBAL else e.aggregate_type,
                e.key,
                e.tenant,
                None if e.content_type == JSON else e.content_type,
                e.body,
                e.headers_text,
                e.occurred_at,
                e.deliver_at,
                at,
            )
            for seq, e in zip(seqs, events, strict=True)
        ]
        yield Copy(self.tables.event, self.tables.schema, _EVENT, _EVENT_TYPES, wide)
        ends = at + claim.lease if claim else at
        narrow = [
            (seq, ends, key_hash(lane_key(e)), claim.token, claim.owner, 1, at)
            if claim and e.deliver_at is None
            else (seq, e.deliver_at or at, key_hash(lane_key(e)), None, None, 0, None)
            for seq, e in zip(seqs, events, strict=True)
        ]
        yield Copy(self.tables.part("pending"), self.tables.schema, _PENDING, _PENDING_TYPES, narrow)
        return seqs

    def notify(self) -> Op[None]:
        yield self.sql["outbox.status.notify"].bind()
