"""The ops for dialects that cannot change two tables in one statement, nor skip locked rows inside an UPDATE: a
lease is columns of the pending row, fenced by its token.

Same meaning as on PostgreSQL, in several statements: pick, change, read back. The caller of an op has opened a
transaction (`Capabilities.single_statement` is False), and the rows picked first are locked from then on.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Any

from ...errors import UnreadableRow
from ...event import Event
from ...ids import key_hash
from ...op import Op, Result
from ..claims import Claim, HeldRow
from ..event_rows import as_json, chunks, lane_key
from ..events import Kind
from .fair import IDLE, TenantRound
from .keys import START, WaitingKey, Walk, spread
from .store import OutboxStore
from .values import ClaimedRow, KeyLease, KeyRound, Known, Settlement

STEPS = 1_000  # most keys per walk
TENANTS = 32  # in a claim: each is asked for by itself
LEAST = 8  # rows that such a question should be worth


class SteppedOutboxStore(OutboxStore):
    # -- write ------------------------------------------------------------------------------------

    def insert_events(self, events: Sequence[Event], now: datetime | None, *, spelled: bool = False) -> Op[list[int]]:
        """Insert one chunk, numbered in list order."""
        raise NotImplementedError

    def write(
        self, events: Sequence[Event], claim: Claim | None, now: datetime | None, *, copy: bool = False
    ) -> Op[list[int]]:
        written: list[int] = []
        for chunk in chunks(events):
            seqs = yield from self.insert_events(chunk, now)
            rows = [
                {"seq": seq, "key_hash": key_hash(lane_key(event))}
                | ({} if event.deliver_at is None else {"deliver_at": self.to_time(event.deliver_at)})
                | ({} if event.tenant is None else {"tenant": event.tenant})
                for seq, event in zip(seqs, chunk, strict=True)
            ]
            yield self.sql["outbox.write.pending"].bind(
                rows=as_json(rows),
                token=claim and claim.token,
                owner=claim and claim.owner,
                lease=claim.lease.total_seconds() if claim else 0.0,
                attempts=1 if claim else 0,
                now=self.to_time(now),
            )
            written += seqs
        return written

    def write_plain(self, events: Sequence[Event], now: datetime | None) -> Op[list[int]]:
        written: list[int] = []
        for chunk in chunks(events):
            written += yield from self.insert_events(chunk, now, spelled=True)
        return written

    def under_way(self, event_ids: Sequence[str]) -> Op[set[str]]:
        yield self.sql["outbox.write.under_way"].bind(event_ids=as_json(list(event_ids)))
        return set()

    # -- claim ------------------------------------------------------------------------------------

    def claim(self, claim: Claim, limit: int, now: datetime | None) -> Op[list[ClaimedRow]]:
        if limit < 1:
            return []
        picked = yield self.sql["outbox.claim.pick"].bind(now=self.to_time(now), limit=limit)
        return (yield from self.take(claim, picked.rows, now))

    def claim_fair(self, claim: Claim, limit: int, at: TenantRound, now: datetime | None) -> Op[list[ClaimedRow]]:
        if limit < 1:
            return []
        most, clock = min(max(limit // LEAST, 1), TENANTS), self.to_time(now)
        walk = yield self.sql["outbox.fair.walk"].bind(after=at.after, limit=most + IDLE, now=clock)
        tenants = [row[0] for row in walk.rows if row[1]][:most]
        if walk.rows:
            at.after = tenants[-1] if len(tenants) == most else walk.rows[-1][0]
        picked: dict[int, Any] = {}
        for tenant in tenants:
            share = limit // len(tenants)
            rows = yield self.sql["outbox.fair.pick"].bind(tenant=tenant, share=share, now=clock)
            picked |= {row[0]: row for row in rows.rows}
        if len(picked) < limit:
            rest = yield self.sql["outbox.claim.pick"].bind(now=clock, limit=limit)
            others = [row for row in rest.rows if row[0] not in picked]
            picked |= {row[0]: row for row in others[: limit - len(picked)]}
        return (yield from self.take(claim, list(picked.values()), now))

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
        if limit < 1:
            return []
        at = self.to_time(now)
        owned = yield self.sql["outbox.claim.shards"].bind(owner=claim.owner, now=at)
        if not owned.rows:
            return []
        if known is not None:
            tokens, seqs = (self.numbers(list(numbers)) for numbers in known)
            yield self.sql["outbox.claim.estranged"].bind(owner=claim.owner, tokens=tokens, seqs=seqs, now=at)
        mine = [row[0] for row in owned.rows if row[0] not in leaving]
        if not mine:
            return []
        turn = turn or KeyRound()
        if owned.rows[0][1] or full:
            picked = yield from self._pick_by_key(mine, limit, shards, turn, now, full)
        else:
            turn.seen = None
            picked = yield self.sql["outbox.claim.ordered"].bind(
                mine=self.numbers(mine), shards=shards, limit=limit, now=at
            )
        return (yield from self.take(claim, picked.rows, now))

    def _pick_by_key(
        self, mine: Sequence[int], limit: int, shards: int, turn: KeyRound, now: datetime | None, full: Collection[int]
    ) -> Op[Result]:
        """While keys are held or full: from key to key, or a long queue behind one would be read by every claim. First
        those of which something came since the last round."""
        share = spread(limit) if full else limit
        if turn.looks_lately(full=bool(full)):
            recent = yield self.sql["outbox.keys.recent"].bind(after=turn.seen, now=self.to_time(now))
            keys = [row[0] for row in recent.rows if row[0] not in full and (row[0] >> 32) % shards in mine]
            picked = yield from self.pick(keys, limit, now, share)
            turn.took_lately(bool(picked.rows))
            if picked.rows or turn.rests:
                return picked
        newest = (yield self.sql["outbox.keys.newest"].bind()).rows[0][0]
        last_lap = turn.after == START
        while True:
            walk = yield from self.walk(turn.after, max(limit * shards // len(mine), 1), now)
            ready = [k.key_hash for k in walk.keys if k.head is not None and (k.key_hash >> 32) % shards in mine]
            keys = [key for key in ready if key not in full]
            turn.after = START if walk.ended else walk.keys[-1].key_hash
            picked = yield from self.pick(keys, limit, now, share)
            if len(picked.rows) >= limit:
                turn.after = picked.rows[-1][1]
            if picked.rows or (walk.ended and last_lap):
                turn.took(newest, all_there_was=walk.ended and last_lap and len(picked.rows) < limit)
                return picked
            last_lap |= walk.ended

    def walk(self, after: int, limit: int, now: datetime | None) -> Op[Walk]:
        limit = min(limit, STEPS)
        result = yield self.sql["outbox.keys.walk"].bind(after=after, limit=limit, now=self.to_time(now))
        keys = [WaitingKey(row[0], bool(row[1]), row[2]) for row in result.rows]
        return Walk(keys, ended=len(keys) < limit, sharded=any(row[3] for row in result.rows))

    def pick(self, keys: Sequence[int], limit: int, now: datetime | None, share: int | None = None) -> Op[Result]:
        """At most `limit` rows, and about `share` of one key."""
        values = {"keys": self.numbers(keys), "limit": limit, "share": share or limit, "now": self.to_time(now)}
        return (yield self.sql["outbox.keys.pick"].bind(**values))

    def take(self, claim: Claim, picked: Sequence[Any], now: datetime | None) -> Op[list[ClaimedRow]]:
        """Read back by the token: the owner may hold other rows already."""
        if not picked:
            return []
        seqs = self.numbers([row[0] for row in picked])
        yield self.sql["outbox.claim.take"].bind(
            seqs=seqs,
            token=claim.token,
            owner=claim.owner,
            lease=claim.lease.total_seconds(),
            now=self.to_time(now),
        )
        try:
            result = yield self.sql["outbox.claim.read"].bind(seqs=seqs, token=claim.token, room=claim.room)
        except UnreadableRow:
            result = yield self.sql["outbox.claim.read_raw"].bind(seqs=seqs, token=claim.token, room=claim.room)
        return self.claimed(result.rows)

    def verify(self, held: Sequence[HeldRow]) -> Op[set[int]]:
        result = yield self.sql["outbox.claim.verify"].bind(**self.pairs(held))
        return {row[0] for row in result.rows}

    def renew(self, held: Sequence[HeldRow], lease: timedelta, now: datetime | None) -> Op[set[int]]:
        yield self.sql["outbox.claim.renew"].bind(
            **self.pairs(held), lease=lease.total_seconds(), now=self.to_time(now)
        )
        return (yield from self.verify(held))

    # -- settle -----------------------------------------------------------------------------------

    def release(self, held: Sequence[HeldRow], now: datetime | None, free: Sequence[KeyLease] = ()) -> Op[int]:
        result = yield self.sql["outbox.claim.release"].bind(**self.pairs(held), now=self.to_time(now))
        yield from self.free(free)
        return result.count

    def free(self, leases: Sequence[KeyLease]) -> Op[None]:
        """Only where keys are leased."""
        yield from ()

    def abandon(self, claims: Sequence[Claim], now: datetime | None) -> Op[int]:
        tokens = self.numbers([claim.token for claim in claims])
        result = yield self.sql["outbox.claim.abandon"].bind(tokens=tokens, now=self.to_time(now))
        return result.count

    def settle(self, settlement: Settlement, now: datetime | None) -> Op[int]:
        """How many outcomes came too late, because the claim was no longer ours."""
        lost = 0
        at = self.to_time(now)
        yield from self._hold(settlement, at)
        if settlement.ordered:
            yield from self._unhold(settlement)
        if settlement.done:
            result = yield self.sql["outbox.settle.done"].bind(**self.pairs(settlement.done))
            lost += len(settlement.done) - result.count
        if settlement.retry:
            lost += len(settlement.retry) - (yield from self._retry(settlement.retry, at))
        if settlement.dead:
            # The letter first, from the pending row it locks; then the row goes, under the same token.
            yield from self._bury(settlement.dead, at)
            result = yield self.sql["outbox.settle.done"].bind(**self.pairs(settlement.dead))
            lost += len(settlement.dead) - result.count
        yield from self.free(settlement.free)
        return lost

    # -- instances and shards -----------------------------------------------------------------------

    def free_claims(self, owners: Sequence[int], now: datetime | None) -> Op[int]:
        freed = yield self.sql["outbox.instance.free"].bind(owners=self.numbers(owners), now=self.to_time(now))
        return freed.count

    def acquire_shards(
        self,
        owner: int,
        want: int,
        shards: int,
        ttl: timedelta,
        now: datetime | None,
        among: Sequence[int] | None = None,
    ) -> Op[dict[int, int]]:
        at = self.to_time(now)
        there = yield self.sql["outbox.shard.count"].bind(shards=shards)
        if there.rows[0][0] < shards:
            yield self.sql["outbox.shard.seed"].bind(all=self.numbers(range(shards)))
        wanted = None if among is None else self.numbers(among)
        free = yield self.sql["outbox.shard.pick"].bind(shards=shards, want=max(want, 0), among=wanted, now=at)
        taken = {int(row[0]): int(row[1]) + 1 for row in free.rows}
        if taken:
            which = self.numbers(list(taken))
            yield self.sql["outbox.shard.acquire"].bind(taken=which, owner=owner, ttl=ttl.total_seconds(), now=at)
            yield self.sql["outbox.shard.free"].bind(taken=which, shards=shards, now=at)
        return taken

    def renew_shards(self, owner: int, ttl: timedelta, now: datetime | None) -> Op[dict[int, int]]:
        at = self.to_time(now)
        yield self.sql["outbox.shard.renew"].bind(owner=owner, ttl=ttl.total_seconds(), now=at)
        result = yield self.sql["outbox.shard.owned"].bind(owner=owner, now=at)
        return {row[0]: row[1] for row in result.rows}

    # -- dead letters and purge -----------------------------------------------------------------------

    def replay_dead(self, seqs: Sequence[int], cutoff: datetime, now: datetime | None) -> Op[list[int]]:
        picked = yield self.sql["outbox.dead.pick"].bind(seqs=self.numbers(seqs), cutoff=self.to_time(cutoff))
        replayed = sorted(row[0] for row in picked.rows)
        if replayed:
            which = self.numbers(replayed)
            yield self.sql["outbox.dead.replay"].bind(seqs=which, now=self.to_time(now))
            yield self.sql["outbox.purge.letter"].bind(seqs=which)
            yield self.sql["outbox.dead.unpark"].bind(seqs=which)
        return replayed

    def discard(self, kind: Kind, seqs: Sequence[int], now: datetime | None) -> Op[int]:
        pick = self.sql["outbox.events.pick" if kind == "open" else "outbox.dead.pick"]
        picked = yield pick.bind(seqs=self.numbers(seqs), cutoff=None)
        return (yield from self._purge(picked))

    def purge_age(self, before: datetime, limit: int) -> Op[int]:
        old = yield self.sql["outbox.purge.age"].bind(before=self.to_time(before), limit=limit)
        return (yield from self._purge(old))

    def _purge(self, old: Result) -> Op[int]:
        """Delete these numbers table by table; how many events went is the answer of the last."""
        gone = 0
        if old.rows:
            seqs = self.numbers([row[0] for row in old.rows])
            for part in ("pending", "letter", "hold", "event"):
                result = yield self.sql[f"outbox.purge.{part}"].bind(seqs=seqs)
                gone = result.count
        return gone
