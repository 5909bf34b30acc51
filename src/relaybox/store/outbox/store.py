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
from ...values import BlockedKey, Status
from ..claims import Claim, Death, HeldRow, RetryRow
from ..event_rows import cut, seconds
from ..events import EventOps, Kind
from ..names import Tables
from ..payloads import Payloads
from .fair import FairClaims
from .values import ClaimedRow, KeyChoice, KeyLease, KeyRound, Known, Purge, Settlement


class OutboxStore(EventOps, Payloads, FairClaims):
    _product = "outbox"
    _audit = 2
    _events = "outbox.events."
    _claims = "outbox.claim."

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

    def write_called(self, events: Sequence[Event]) -> Op[list[int]]:
        """Events by the function for roles that may not insert."""
        raise UnsupportedByEngine(f"outbox.write_function is for PostgreSQL; on {self.dialect} a writer may insert")

    def stored(self, event_ids: Sequence[str]) -> Op[set[str]]:
        result = yield self.sql["outbox.write.stored"].bind(event_ids=self.texts(event_ids))
        return {row[0] for row in result.rows}

    def under_way(self, event_ids: Sequence[str]) -> Op[set[str]]:
        """Transactions that may yet store these, by their names; or waits for them and returns none. Needs a
        transaction."""
        raise NotImplementedError

    # -- claim ------------------------------------------------------------------------------------

    def claim(self, claim: Claim, limit: int, now: datetime | None) -> Op[list[ClaimedRow]]:
        raise NotImplementedError

    def claim_ordered(
        self,
        claim: Claim,
        limit: int,
        shards: int,
        now: datetime | None,
        turn: KeyRound | None = None,
        full: Collection[int] = (),
        leaving: Collection[int] = (),
        known: Known | None = None,
    ) -> Op[list[ClaimedRow]]:
        """Nothing of the keys whose hashes are in `full`, nor of the shards that are `leaving`. `known`: what the owner
        knows that it has. What else the database has in its name is given back first."""
        raise NotImplementedError

    def claim_keys(
        self, claim: Claim, limit: int, choice: KeyChoice, turn: KeyRound, now: datetime | None
    ) -> Op[list[ClaimedRow]]:
        """For dialects that declare neither `advisory_keys` nor `locked_keys`."""
        yield from ()
        raise UnsupportedByEngine(f"{self.dialect} cannot lease keys: use order.strategy shards, or PostgreSQL")

    def claimed(self, rows: Sequence[tuple[Any, ...]]) -> list[ClaimedRow]:
        """Sorted by seq: no dialect promises an order for rows an UPDATE returns."""
        ordered = sorted(rows, key=itemgetter(0))
        if ordered and len(ordered[0]) > 13:
            return [ClaimedRow(self.event_row(row), row[12], row[13]) for row in ordered]
        return [ClaimedRow(self.event_row(row), row[12]) for row in ordered]

    def verify(self, held: Sequence[HeldRow]) -> Op[set[int]]:
        """Which are still ours."""
        raise NotImplementedError

    def renew(self, held: Sequence[HeldRow], lease: timedelta, now: datetime | None) -> Op[set[int]]:
        """Prolong their leases. Which are still ours."""
        raise NotImplementedError

    def release(self, held: Sequence[HeldRow], now: datetime | None, free: Sequence[KeyLease] = ()) -> Op[int]:
        """Given back untried. How many were still ours."""
        raise NotImplementedError

    def abandon(self, claims: Sequence[Claim], now: datetime | None) -> Op[int]:
        """Claims whose reply was lost, if they were made."""
        raise NotImplementedError

    def oldest(self, now: datetime | None) -> Op[timedelta]:
        result = yield self.sql["outbox.claim.oldest"].bind(now=self.to_time(now))
        return seconds(result.rows[0][0]) if result.rows else timedelta()

    def next_due(self, now: datetime | None) -> Op[timedelta | None]:
        result = yield self.sql["outbox.claim.next"].bind(now=self.to_time(now))
        return seconds(result.rows[0][0]) if result.rows else None

    # -- settle -----------------------------------------------------------------------------------

    def settle(self, settlement: Settlement, now: datetime | None) -> Op[int]:
        """How many outcomes came too late, because the claim was no longer ours."""
        raise NotImplementedError

    def _hold(self, settlement: Settlement, at: Any) -> Op[None]:
        for held, parked in ((settlement.hold, False), (settlement.park, True)):
            if held:
                yield self.sql["outbox.settle.hold"].bind(**self.pairs(held), parked=parked, now=at)

    def _retry(self, retries: Sequence[RetryRow], at: Any) -> Op[int]:
        rows = [(r.seq, r.token, r.delay.total_seconds(), cut(r.error), int(not r.counted)) for r in sorted(retries)]
        values = self.table(rows, "seqs", "tokens", "delays", "errors", "uncounted")
        return (yield self.sql["outbox.settle.retry"].bind(**values, now=at)).count

    def _bury(self, deaths: Sequence[Death], at: Any) -> Op[None]:
        rows = [(d.seq, d.token, cut(d.error)) for d in sorted(deaths)]
        yield self.sql["outbox.settle.dead"].bind(**self.table(rows, "seqs", "tokens", "errors"), now=at)

    def _unhold(self, settlement: Settlement) -> Op[None]:
        """What is settled for good no longer holds its key. Before it is settled: then its claim still proves it."""
        kept = {held.seq for held in settlement.park}
        free: list[HeldRow | Death] = [*settlement.done, *(d for d in settlement.dead if d.seq not in kept)]
        if free:
            yield self.sql["outbox.settle.unhold"].bind(**self.pairs(free))

    def blocked(self, limit: int, now: datetime | None) -> Op[list[BlockedKey]]:
        result = yield self.sql["outbox.settle.held"].bind(limit=limit)
        return [
            BlockedKey(key, "dead" if parked else "retry", self.from_time(since), event_id, attempts, error)
            for key, event_id, parked, since, attempts, error in result.rows
        ]

    def release_key(self, key: str, to: int | None, now: datetime | None) -> Op[bool]:
        """The key goes on without its head: a dead letter stays one, a retry goes on by itself."""
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
        """The shards that the owner still has, with their terms."""
        raise NotImplementedError

    def release_shards(self, owner: int, shards: Sequence[int]) -> Op[None]:
        yield self.sql["outbox.shard.release"].bind(owner=owner, given=self.numbers(shards))

    # -- events, dead letters and purge ---------------------------------------------------------------

    def numbers_of(self, ids: Sequence[str], sender: str | None) -> Op[list[int]]:
        found = yield self.sql["outbox.events.ids"].bind(event_ids=self.texts(ids))
        return sorted(row[0] for row in found.rows)

    def replay(self, kind: Kind, seqs: Sequence[int], cutoff: datetime, now: datetime | None) -> Op[int]:
        """Due again, with fresh attempts: dead letters that died up to the cut-off, or finished events. How many."""
        if kind == "dead":
            return len((yield from self.replay_dead(seqs, cutoff, now)))
        locked = yield self.sql["outbox.events.lock"].bind(seqs=self.numbers(seqs))
        if not locked.rows:
            return 0
        hashed = self.table([(seq, key_hash(key)) for seq, key in locked.rows], "seqs", "hashes")
        return (yield self.sql["outbox.events.again"].bind(**hashed, now=self.to_time(now))).count

    def replay_dead(self, seqs: Sequence[int], cutoff: datetime, now: datetime | None) -> Op[list[int]]:
        """The numbers of those that are due again."""
        raise NotImplementedError

    def discard(self, kind: Kind, seqs: Sequence[int], now: datetime | None) -> Op[int]:
        """Delete these with their events, unless they are of this kind no more. How many."""
        raise NotImplementedError

    def purge_done(self, before: datetime, after: int, limit: int) -> Op[Purge]:
        """One batch of finished events, by number from `after` on."""
        seen = yield self.sql["outbox.purge.seen"].bind(before=self.to_time(before), after=after, limit=limit)
        if not seen.rows:
            return Purge(0, after, 0)
        seqs = [row[0] for row in seen.rows]
        gone = yield self.sql["outbox.purge.done"].bind(seqs=self.numbers(seqs))
        return Purge(len(seqs), max(seqs), gone.count)

    def purge_dead(self, before: datetime, limit: int) -> Op[int]:
        old = yield self.sql["outbox.purge.dead"].bind(before=self.to_time(before), limit=limit)
        return (yield from self.discard("dead", [row[0] for row in old.rows], None)) if old.rows else 0

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
        due, delayed, claimed, retrying, dead, oldest = (value or 0 for value in counts.rows[0])
        return Status(due, delayed, claimed, retrying, dead, seconds(oldest), int(events.rows[0][0] or 0))
