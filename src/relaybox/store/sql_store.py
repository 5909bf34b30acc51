"""The outbox ops that every SQL dialect shares; a dialect overrides only what differs.

Values pass through `to_time`/`from_time` and `pairs`, the two things the dialects disagree on.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from operator import itemgetter
from typing import Any, ClassVar

from ..codec import JSON, JSON_CODEC, Codec
from ..errors import ConfigError, UnsupportedByEngine
from ..event import GLOBAL, Event
from ..ids import key_hash
from ..op import Op, Query
from .migrate import MigrationOps
from .names import Tables
from .queries import load
from .spi import (
    BlockedKey,
    Capabilities,
    Claim,
    Claimed,
    DeadFilter,
    DeadLetter,
    Death,
    Held,
    Instance,
    KeyChoice,
    Purge,
    Retry,
    Settlement,
    Status,
    Turn,
)

ERROR_LIMIT = 4_000


def cut(error: str) -> str:
    """Error text as stored: bounded, and without the NUL that no text column takes."""
    return error[:ERROR_LIMIT].replace("\x00", "�").encode(errors="replace").decode()


def lane_key(event: Event) -> str:
    """What the shard is computed from; an event without a key is ordered with nothing, so its id will do."""
    return event.id if event.key is None else event.key


class SqlOutboxStore(MigrationOps):
    dialect: str
    quote: str = '"'
    words: ClassVar[Mapping[str, str]] = {}
    capabilities: Capabilities

    def __init__(self, tables: Tables | None = None, codec: Codec = JSON_CODEC) -> None:
        self.tables = tables or Tables()
        self.codec = codec
        self.sql: dict[str, Query] = load(self.dialect, self.tables, self.quote, self.words)

    # -- the two seams between dialects -------------------------------------------------------------

    def to_time(self, value: datetime | None) -> Any:
        return value

    def from_time(self, value: Any) -> datetime:
        return value  # type: ignore[no-any-return]

    def pairs(self, held: Sequence[Held | Retry | Death]) -> dict[str, Any]:
        """Claims as parameters, sorted so that concurrent batches lock in one order."""
        ordered = sorted((h[0], h[1]) for h in held)
        return {"seqs": [seq for seq, _ in ordered], "tokens": [token for _, token in ordered]}

    def numbers(self, values: Sequence[int]) -> Any:
        return list(values)

    def event_row(self, row: Sequence[Any]) -> tuple[Any, ...]:
        """The twelve event columns with times as datetimes; PostgreSQL's rows are that already."""
        return tuple(row[:12])

    # -- write ------------------------------------------------------------------------------------

    def columns(self, event: Event, now: datetime | None, *, spelled: bool = False) -> dict[str, Any]:
        """`spelled`: no NULL for the usual values, as other readers than relaybox do not know what it stands for."""
        return {
            "event_id": event.id,
            "event_type": event.type,
            "aggregate_type": event.aggregate_type if spelled or event.aggregate_type != GLOBAL else None,
            "aggregate_id": event.key,
            "tenant_id": event.tenant,
            "content_type": event.content_type if spelled or event.content_type != JSON else None,
            "payload": event.body,
            "headers": event.headers_text,
            "occurred_at": self.to_time(event.occurred_at),
            "deliver_at": self.to_time(event.deliver_at),
            "now": self.to_time(now),
        }

    def stored(self, event_ids: Sequence[str]) -> Op[set[str]]:
        result = yield self.sql["outbox.write.stored"].bind(event_ids=list(event_ids))
        return {row[0] for row in result.rows}

    def under_way(self, event_ids: Sequence[str]) -> Op[set[str]]:
        found = yield self.sql["outbox.write.under_way"].bind()
        return {row[0] for row in found.rows}

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

    def settle_retry(self, settlement: Settlement, at: Any) -> Op[int]:
        rows = sorted(settlement.retry)
        result = yield self.sql["outbox.settle.retry"].bind(
            seqs=[r.seq for r in rows],
            tokens=[r.token for r in rows],
            delays=[r.delay.total_seconds() for r in rows],
            errors=[cut(r.error) for r in rows],
            uncounted=[int(not r.counted) for r in rows],
            now=at,
        )
        return result.count

    def settle_dead(self, settlement: Settlement, at: Any) -> Op[int]:
        rows = sorted(settlement.dead)
        result = yield self.sql["outbox.settle.dead"].bind(
            seqs=[r.seq for r in rows],
            tokens=[r.token for r in rows],
            errors=[cut(r.error) for r in rows],
            now=at,
        )
        return result.count

    def blocked(self, limit: int) -> Op[list[BlockedKey]]:
        result = yield self.sql["outbox.settle.held"].bind(limit=limit)
        return [BlockedKey(row[0], row[2], bool(row[3]), self.from_time(row[4]), row[5], row[6]) for row in result.rows]

    def unblock(self, key: str) -> Op[bool]:
        result = yield self.sql["outbox.settle.unblock"].bind(key_hash=key_hash(key))
        return result.count > 0

    # -- instances and shards -----------------------------------------------------------------------

    def register(self, name: str, role: str, ttl: timedelta, now: datetime | None) -> Op[int]:
        if not 0 < len(name) <= 128:
            raise ConfigError(f"expected the owner name to have 1 to 128 characters, got {len(name)}")
        while True:  # by chance, not by counting: after a fail-over that forgot us the next one would get our number
            id, at = 1 + secrets.randbelow(2**31 - 1), self.to_time(now)
            register = self.sql["outbox.instance.register"]
            result = yield register.bind(id=id, name=name, role=role, ttl=ttl.total_seconds(), now=at)
            if result.count:
                return id

    def beat(self, instance: int, ttl: timedelta, now: datetime | None) -> Op[bool]:
        result = yield self.sql["outbox.instance.beat"].bind(
            id=instance, ttl=ttl.total_seconds(), now=self.to_time(now)
        )
        return result.count > 0

    def note(self, instance: int, text: str | None) -> Op[None]:
        yield self.sql["outbox.instance.note"].bind(id=instance, note=text)

    def instances(self, now: datetime | None) -> Op[list[Instance]]:
        result = yield self.sql["outbox.instance.live"].bind(now=self.to_time(now))
        return [
            Instance(row[0], row[1], row[2], self.from_time(row[3]), self.from_time(row[4]), row[5])
            for row in result.rows
        ]

    def renew_shards(self, owner: int, ttl: timedelta, now: datetime | None) -> Op[dict[int, int]]:
        result = yield self.sql["outbox.shard.renew"].bind(owner=owner, ttl=ttl.total_seconds(), now=self.to_time(now))
        return {row[0]: row[1] for row in result.rows}

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

    def replay(self, seqs: Sequence[int], cutoff: datetime, now: datetime | None) -> Op[list[int]]:
        result = yield self.sql["outbox.dead.replay"].bind(
            seqs=self.numbers(seqs), cutoff=self.to_time(cutoff), now=self.to_time(now)
        )
        replayed = sorted(row[0] for row in result.rows)
        if replayed:
            yield self.sql["outbox.dead.unpark"].bind(seqs=self.numbers(replayed))
        return replayed

    def time(self, now: datetime | None) -> Op[datetime]:
        result = yield self.sql["outbox.purge.now"].bind(now=self.to_time(now))
        return self.from_time(result.rows[0][0])

    def purge_done(self, before: datetime, after: int, limit: int) -> Op[Purge]:
        result = yield self.sql["outbox.purge.done"].bind(before=self.to_time(before), after=after, limit=limit)
        seen, last, gone = result.rows[0]
        return Purge(seen, last or after, gone)

    def purge_dead(self, before: datetime, limit: int) -> Op[int]:
        result = yield self.sql["outbox.purge.dead"].bind(before=self.to_time(before), limit=limit)
        return int(result.rows[0][0])

    def purge_age(self, before: datetime, limit: int) -> Op[int]:
        result = yield self.sql["outbox.purge.age"].bind(before=self.to_time(before), limit=limit)
        return int(result.rows[0][0])

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
