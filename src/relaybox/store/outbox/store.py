"""The outbox ops that every dialect shares; a dialect overrides only what differs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from operator import itemgetter
from typing import Any

from ...codec import JSON_CODEC, Codec
from ...errors import UnsupportedByEngine
from ...event import Event
from ...ids import key_hash
from ...op import Op
from ..claims import Claim, Death, Held
from ..instances import Instances
from ..names import Tables
from .values import BlockedKey, Claimed, DeadFilter, DeadLetter, KeyChoice, Settlement, Status, Turn


class SqlOutboxStore(Instances):
    _product = "outbox"

    def __init__(self, tables: Tables | None = None, codec: Codec = JSON_CODEC) -> None:
        super().__init__(tables or Tables())
        self.codec = codec

    # -- write ------------------------------------------------------------------------------------

    def stored(self, event_ids: Sequence[str]) -> Op[set[str]]:
        result = yield self.sql["outbox.write.stored"].bind(event_ids=self.texts(event_ids))
        return {row[0] for row in result.rows}

    # -- claim ------------------------------------------------------------------------------------

    def claim_keys(
        self, claim: Claim, limit: int, choice: KeyChoice, turn: Turn, now: datetime | None
    ) -> Op[list[Claimed]]:
        """For dialects that declare neither `advisory_keys` nor `locked_keys`."""
        yield from ()
        raise UnsupportedByEngine(f"{self.dialect} cannot lease keys: use order_strategy shards, or PostgreSQL")

    def claimed(self, rows: Sequence[tuple[Any, ...]]) -> list[Claimed]:
        """Sorted by seq: no dialect promises an order for rows an UPDATE returns."""
        ordered = sorted(rows, key=itemgetter(0))
        if ordered and len(ordered[0]) > 13:
            return [Claimed(self.event_row(row), row[12], row[13]) for row in ordered]
        return [Claimed(self.event_row(row), row[12]) for row in ordered]

    def oldest(self, now: datetime | None) -> Op[timedelta]:
        result = yield self.sql["outbox.claim.oldest"].bind(now=self.to_time(now))
        waited = result.rows[0][0] if result.rows else None
        return timedelta(seconds=float(waited or 0))

    def next_due(self, now: datetime | None) -> Op[timedelta | None]:
        result = yield self.sql["outbox.claim.next"].bind(now=self.to_time(now))
        return timedelta(seconds=float(result.rows[0][0])) if result.rows else None

    # -- settle -----------------------------------------------------------------------------------

    def _unhold(self, settlement: Settlement) -> Op[None]:
        """What is settled for good no longer holds its key. Before it is settled: then its claim still proves it."""
        kept = {held.seq for held in settlement.park}
        free: list[Held | Death] = [*settlement.done, *(d for d in settlement.dead if d.seq not in kept)]
        if free:
            yield self.sql["outbox.settle.unhold"].bind(**self.pairs(free))

    def blocked(self, limit: int) -> Op[list[BlockedKey]]:
        result = yield self.sql["outbox.settle.held"].bind(limit=limit)
        return [BlockedKey(row[0], row[2], bool(row[3]), self.from_time(row[4]), row[5], row[6]) for row in result.rows]

    def unblock(self, key: str) -> Op[bool]:
        result = yield self.sql["outbox.settle.unblock"].bind(key_hash=key_hash(key))
        return result.count > 0

    # -- shards -----------------------------------------------------------------------------------

    def release_shards(self, owner: int, shards: Sequence[int]) -> Op[None]:
        yield self.sql["outbox.shard.release"].bind(owner=owner, given=self.numbers(shards))

    # -- dead letters and purge -----------------------------------------------------------------------

    def dead(self, where: DeadFilter, after: int, limit: int) -> Op[list[DeadLetter]]:
        return (yield from self._dead(where, after, limit, None))

    def dead_one(self, event_id: str) -> Op[DeadLetter | None]:
        letters = yield from self._dead(DeadFilter(), 0, 1, event_id)
        return letters[0] if letters else None

    def _dead(self, where: DeadFilter, after: int, limit: int, event_id: str | None) -> Op[list[DeadLetter]]:
        result = yield self.sql["outbox.dead.list"].bind(
            **self._where(where), after=after, limit=limit, event_id=event_id
        )
        return [
            DeadLetter(Event.stored(self.event_row(row), self.codec), row[12], row[13], self.from_time(row[14]))
            for row in result.rows
        ]

    def count_dead(self, where: DeadFilter) -> Op[int]:
        result = yield self.sql["outbox.dead.count"].bind(**self._where(where))
        return int(result.rows[0][0])

    def _where(self, where: DeadFilter) -> dict[str, Any]:
        return {
            "event_type": where.event_type,
            "aggregate_type": where.aggregate_type,
            "aggregate_id": where.key,
            "tenant_id": where.tenant,
        }

    def dead_numbers(self, where: DeadFilter, after: int, newest: int, limit: int) -> Op[list[int]]:
        result = yield self.sql["outbox.dead.numbers"].bind(
            **self._where(where), after=after, newest=newest, limit=limit
        )
        return [row[0] for row in result.rows]

    def newest_dead(self, now: datetime | None) -> Op[tuple[int, datetime]]:
        result = yield self.sql["outbox.dead.newest"].bind(now=self.to_time(now))
        return int(result.rows[0][0]), self.from_time(result.rows[0][1])

    def time(self, now: datetime | None) -> Op[datetime]:
        result = yield self.sql["outbox.purge.now"].bind(now=self.to_time(now))
        return self.from_time(result.rows[0][0])

    # -- seeing -----------------------------------------------------------------------------------

    def waiting(self, limit: int, now: datetime | None) -> Op[list[tuple[Any, ...]]]:
        result = yield self.sql["outbox.status.waiting"].bind(limit=limit, now=self.to_time(now))
        return [self.event_row(row) for row in result.rows]

    def failing(self) -> Op[int]:
        result = yield self.sql["outbox.status.failing"].bind()
        return int(result.rows[0][0])

    def status(self, now: datetime | None) -> Op[Status]:
        counts = yield self.sql["outbox.status"].bind(now=self.to_time(now))
        events = yield self.sql["outbox.status.events"].bind()
        due, delayed, claimed, retrying, dead, oldest = counts.rows[0]
        return Status(
            due or 0,
            delayed or 0,
            claimed or 0,
            retrying or 0,
            dead,
            timedelta(seconds=float(oldest or 0)),
            int(events.rows[0][0] or 0),
        )
