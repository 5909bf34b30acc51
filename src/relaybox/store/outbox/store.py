"""The ops of an outbox: those that every dialect shares, and what each must have of its own.

Ops yield statements and never begin, commit or roll back. `now` is None in production, so the database's clock decides;
tests pass a time. Times go in and come out as aware UTC datetimes on every dialect.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
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
from .values import (
    BlockedKey,
    Claimed,
    DeadFilter,
    DeadLetter,
    KeyChoice,
    KeyLease,
    Known,
    Purge,
    Settlement,
    Status,
    Turn,
)


class OutboxStore(Instances):
    _product = "outbox"

    def __init__(self, tables: Tables | None = None, codec: Codec = JSON_CODEC) -> None:
        super().__init__(tables or Tables())
        self.codec = codec

    # -- write ------------------------------------------------------------------------------------

    def write(
        self, events: Sequence[Event], claim: Claim | None, now: datetime | None, *, copy: bool = False
    ) -> Op[list[int]]:
        """The numbers, in list order. With a claim the rows are claimed already."""
        raise NotImplementedError

    def write_plain(self, events: Sequence[Event], now: datetime | None) -> Op[list[int]]:
        """Events without pending rows, for other readers than relaybox."""
        raise NotImplementedError

    def stored(self, event_ids: Sequence[str]) -> Op[set[str]]:
        result = yield self.sql["outbox.write.stored"].bind(event_ids=self.texts(event_ids))
        return {row[0] for row in result.rows}

    def under_way(self, event_ids: Sequence[str]) -> Op[set[str]]:
        """Transactions that may yet store these, by their names; or waits for them and returns none. Needs a
        transaction."""
        raise NotImplementedError

    # -- claim ------------------------------------------------------------------------------------

    def claim(self, claim: Claim, limit: int, now: datetime | None) -> Op[list[Claimed]]:
        raise NotImplementedError

    def claim_ordered(
        self,
        claim: Claim,
        limit: int,
        shards: int,
        now: datetime | None,
        turn: Turn | None = None,
        full: Collection[int] = (),
        leaving: Collection[int] = (),
        known: Known | None = None,
    ) -> Op[list[Claimed]]:
        """Nothing of the keys whose hashes are in `full`, nor of the shards that are `leaving`. `known`: what the owner
        knows that it has. What else the database has in its name is given back first."""
        raise NotImplementedError

    def claim_keys(
        self, claim: Claim, limit: int, choice: KeyChoice, turn: Turn, now: datetime | None
    ) -> Op[list[Claimed]]:
        """For dialects that declare neither `advisory_keys` nor `locked_keys`."""
        yield from ()
        raise UnsupportedByEngine(f"{self.dialect} cannot lease keys: use order.strategy shards, or PostgreSQL")

    def claimed(self, rows: Sequence[tuple[Any, ...]]) -> list[Claimed]:
        """Sorted by seq: no dialect promises an order for rows an UPDATE returns."""
        ordered = sorted(rows, key=itemgetter(0))
        if ordered and len(ordered[0]) > 13:
            return [Claimed(self.event_row(row), row[12], row[13]) for row in ordered]
        return [Claimed(self.event_row(row), row[12]) for row in ordered]

    def verify(self, held: Sequence[Held]) -> Op[set[int]]:
        """Which are still ours."""
        raise NotImplementedError

    def renew(self, held: Sequence[Held], lease: timedelta, now: datetime | None) -> Op[set[int]]:
        """Prolong their leases. Which are still ours."""
        raise NotImplementedError

    def release(self, held: Sequence[Held], now: datetime | None, free: Sequence[KeyLease] = ()) -> Op[int]:
        """Given back untried. How many were still ours."""
        raise NotImplementedError

    def abandon(self, claims: Sequence[Claim], now: datetime | None) -> Op[int]:
        """Claims whose reply was lost, if they were made."""
        raise NotImplementedError

    def oldest(self, now: datetime | None) -> Op[timedelta]:
        result = yield self.sql["outbox.claim.oldest"].bind(now=self.to_time(now))
        waited = result.rows[0][0] if result.rows else None
        return timedelta(seconds=float(waited or 0))

    def next_due(self, now: datetime | None) -> Op[timedelta | None]:
        result = yield self.sql["outbox.claim.next"].bind(now=self.to_time(now))
        return timedelta(seconds=float(result.rows[0][0])) if result.rows else None

    # -- settle -----------------------------------------------------------------------------------

    def settle(self, settlement: Settlement, now: datetime | None) -> Op[int]:
        """How many outcomes came too late, because the claim was no longer ours."""
        raise NotImplementedError

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

    def acquire_shards(
        self,
        owner: int,
        want: int,
        shards: int,
        ttl: timedelta,
        now: datetime | None,
        among: Sequence[int] | None = None,
    ) -> Op[dict[int, int]]:
        """Up to `want` free or expired ones, of `among` if given: the new term of each."""
        raise NotImplementedError

    def renew_shards(self, owner: int, ttl: timedelta, now: datetime | None) -> Op[dict[int, int]]:
        """Those that the owner still has, with their terms."""
        raise NotImplementedError

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
        """Due again, of those that died up to the cut-off. Returns their numbers."""
        raise NotImplementedError

    def time(self, now: datetime | None) -> Op[datetime]:
        result = yield self.sql["outbox.purge.now"].bind(now=self.to_time(now))
        return self.from_time(result.rows[0][0])

    def purge_done(self, before: datetime, after: int, limit: int) -> Op[Purge]:
        """One batch of finished events, by number from `after` on."""
        raise NotImplementedError

    def purge_dead(self, before: datetime, limit: int) -> Op[int]:
        raise NotImplementedError

    def purge_age(self, before: datetime, limit: int) -> Op[int]:
        """Whatever their state."""
        raise NotImplementedError

    # -- seeing -----------------------------------------------------------------------------------

    def waiting(self, limit: int, now: datetime | None) -> Op[list[Sequence[Any]]]:
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
