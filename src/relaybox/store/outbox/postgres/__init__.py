"""PostgreSQL 14 or newer: the full engine.

A claim is one row that holds a whole batch (see the migration): claiming moves rows out of `pending`,
settling takes them out of the claim, and the process that finds a claim expired moves its rest back.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from operator import itemgetter
from typing import Any

from ....errors import ConfigError
from ....event import Event
from ....ids import key_hash, new_token
from ....op import Copy, Op, Result, Statement
from ...claims import Claim, Death, HeldRow, RetryRow
from ...dialect import POSTGRES
from ...event_rows import EVENT_COLUMNS, arrays, by_column, columns, lane_key
from ...events import Kind
from ..fair import IDLE, TenantRound
from ..keys import KeyedOutboxStore, WaitingKey, Walk, spread
from ..values import ClaimedRow, KeyChoice, KeyLease, KeyRound, Known, Settlement

# Below this a single statement with arrays is faster than two COPYs and the numbers for them.
COPY_FROM = 200
BATCH = 500  # events per waiting batch
MIXED = 4  # waiting batches of several tenants that a fair claim takes apart
SPREAD = 2.0  # seconds over which the events of an expired claim come back

COLUMN_TYPES = {
    "seq": "int8",
    "shard": "int2",
    **dict.fromkeys(EVENT_COLUMNS[1:7], "text"),
    "payload": "bytea",
    "headers": "text",
    **dict.fromkeys(EVENT_COLUMNS[9:], "timestamptz"),
}
_CLAIM = ("token", "owner", "until", "claimed_at", "items", "tenant")
_CLAIM_TYPES = ("int8", "int4", "timestamptz", "timestamptz", "int8[]", "text")
_PENDING = ("seq", "due", "key_hash", "attempts", "tenant")
_PENDING_TYPES = ("int8", "timestamptz", "int8", "int4", "text")


class PostgresStore(KeyedOutboxStore):
    _dialect = POSTGRES

    # -- write ------------------------------------------------------------------------------------

    def write(
        self, events: Sequence[Event], claim: Claim | None, now: datetime | None, *, copy: bool = False
    ) -> Op[list[int]]:
        if len(events) == 1:
            result = yield self._one(events[0], claim, now)
            return [int(result.rows[0][0])]
        if copy and len(events) >= COPY_FROM:
            seqs = yield from self._write_copy(events, claim, now)
            if seqs is not None:
                return seqs
        result = yield self.sql["outbox.write.many"].bind(**arrays(events), **self._title(claim), now=now)
        return sorted(row[0] for row in result.rows)

    def _one(self, event: Event, claim: Claim | None, now: datetime | None) -> Statement:
        params = columns(event, self.to_time)
        params["now"] = now
        if claim is None or event.deliver_at is not None:  # a delayed event is never claimed by its writer
            params["key_hash"] = key_hash(lane_key(event))
            return Statement(self.sql["outbox.write.one"], params)
        params.update(self._title(claim))
        return Statement(self.sql["outbox.write.one_claimed"], params)

    def _title(self, claim: Claim | None) -> dict[str, Any]:
        if claim is None:
            return {"token": new_token(), "owner": None, "lease": 0.0}
        return {"token": claim.token, "owner": claim.owner, "lease": claim.lease.total_seconds()}

    def write_called(self, events: Sequence[Event]) -> Op[list[int]]:
        result = yield self.sql["outbox.write.call"].bind(**arrays(events))
        return sorted(row[0] for row in result.rows)

    def write_plain(self, events: Sequence[Event], now: datetime | None) -> Op[list[int]]:
        result = yield self.sql["outbox.write.plain"].bind(**arrays(events), now=now)
        return sorted(row[0] for row in result.rows)

    def _write_copy(self, events: Sequence[Event], claim: Claim | None, now: datetime | None) -> Op[list[int] | None]:
        """Two COPYs instead of one statement, of the columns that are used at all: several times the rate. None: the
        table is under row-level security, and nothing was written."""
        drawn = yield self.sql["outbox.write.numbers"].bind(count=len(events), now=now)
        if drawn.rows[0][2]:
            return None
        seqs = sorted(drawn.rows[0][0])
        at: datetime = drawn.rows[0][1]
        written = {"seq": seqs, **by_column(events)}
        if now is not None:  # otherwise the column's default, the database's clock
            written["created_at"] = [now] * len(events)
        used = {name: values for name, values in written.items() if values.count(None) < len(values)}
        types = [COLUMN_TYPES[name] for name in used]
        rows = list(zip(*used.values(), strict=True))
        yield Copy(self.tables.event, self.tables.schema, list(used), types, rows)
        now_due = [seq for seq, e in zip(seqs, events, strict=True) if e.deliver_at is None]
        if now_due:
            tenants = {e.tenant or "" for e in events}
            batches = _batches(now_due, claim, at, tenants.pop() if len(tenants) == 1 else None)
            yield Copy(self.tables.part("claim"), self.tables.schema, _CLAIM, _CLAIM_TYPES, batches)
        if len(now_due) < len(events):
            delayed = [(s, e) for s, e in zip(seqs, events, strict=True) if e.deliver_at is not None]
            rows = [(seq, e.deliver_at, key_hash(lane_key(e)), 0, e.tenant or "") for seq, e in delayed]
            yield Copy(self.tables.part("pending"), self.tables.schema, _PENDING, _PENDING_TYPES, rows)
        return seqs

    def under_way(self, event_ids: Sequence[str]) -> Op[set[str]]:
        found = yield self.sql["outbox.write.under_way"].bind()
        return {row[0] for row in found.rows}

    # -- claim ------------------------------------------------------------------------------------

    def claim(self, claim: Claim, limit: int, now: datetime | None) -> Op[list[ClaimedRow]]:
        """When nothing is due, look for expired claims; busy tables leave that to the heartbeats."""
        claimed = yield from self._due_rows(claim, limit, now)
        if not claimed and (yield from self._expire((), now)):
            claimed = yield from self._due_rows(claim, limit, now)
        return claimed

    def claim_fair(self, claim: Claim, limit: int, at: TenantRound, now: datetime | None) -> Op[list[ClaimedRow]]:
        values = {**self._claim(claim, limit, now), "steps": limit + IDLE}
        while True:
            result = yield self.sql["outbox.fair.claim"].bind(**values, after=at.after)
            _, after, mixed, *_ = result.rows[-1]
            at.after = after or at.after
            apart = (yield self.sql["outbox.fair.unmix"].bind(limit=MIXED)).count if mixed else 0
            if (claimed := (yield from self._whole(claim, result.rows))) or not apart:
                break
        return claimed or (yield from self.claim(claim, limit, now))

    def _fair_indexes(self) -> dict[str, str]:
        return super()._fair_indexes() | {f"{self.tables.part('claim')}_tenant": "outbox.fair.batches"}

    def _due_rows(self, claim: Claim, limit: int, now: datetime | None) -> Op[list[ClaimedRow]]:
        result = yield self.sql["outbox.claim"].bind(**self._claim(claim, limit, now))
        return (yield from self._whole(claim, result.rows))

    def _whole(self, claim: Claim, rows: Sequence[Sequence[Any]]) -> Op[list[ClaimedRow]]:
        """The events of a claim; a last row says how many it has, and their attempts unless this is the first of all.
        Event rows that somebody deleted are claimed too, so that they can be settled."""
        *found, (count, *_, items) = rows
        if len(found) < (count or 0):
            there = {row[0] for row in found}
            held = yield self.sql["outbox.claim.verify"].bind(tokens=[claim.token])
            found += [(seq, *[None] * 11) for seq in {row[1] for row in held.rows} - there]
        found.sort(key=itemgetter(0))
        if items is None:
            make = tuple.__new__  # the constructor of a NamedTuple costs 3 % of an ordered drain
            return [make(ClaimedRow, (row, 1, None)) for row in found]
        attempts = {item >> 16: item & 0xFFFF for item in items}
        return [ClaimedRow(self.event_row(row), attempts.get(row[0], 1)) for row in found]

    def verify(self, held: Sequence[HeldRow]) -> Op[set[int]]:
        result = yield self.sql["outbox.claim.verify"].bind(tokens=_tokens(held))
        return _ours(held, result)

    def renew(self, held: Sequence[HeldRow], lease: timedelta, now: datetime | None) -> Op[set[int]]:
        result = yield self.sql["outbox.claim.renew"].bind(tokens=_tokens(held), lease=lease.total_seconds(), now=now)
        return _ours(held, result)

    def release(self, held: Sequence[HeldRow], now: datetime | None, free: Sequence[KeyLease] = ()) -> Op[int]:
        yield self.sql["outbox.claim.lock"].bind(tokens=_tokens(held))
        result = yield self.sql["outbox.claim.release"].bind(**self.pairs(held), now=now)
        yield self.sql["outbox.settle.done"].bind(**self.pairs(held))
        yield from self._free(free)
        return result.count

    def abandon(self, claims: Sequence[Claim], now: datetime | None) -> Op[int]:
        """Claims whose reply was lost. One that is still under way in the server holds its shards: wait for it."""
        yield self.sql["outbox.shard.wait"].bind(owners=sorted({claim.owner for claim in claims}))
        result = yield self.sql["outbox.claim.abandon"].bind(tokens=[claim.token for claim in claims], now=now)
        return result.count

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
        """Batches, expired claims and what the owner does not know of become single rows first, and without jitter:
        order decides here."""
        turn = turn or KeyRound()
        tokens, seqs = (None, None) if known is None else (list(known.tokens), list(known.seqs))
        known_to_it = {"owner": claim.owner, "known": tokens, "kept": seqs}
        values = {**self._claim(claim, limit, now), **known_to_it, "shards": shards, "leaving": list(leaving)}
        claimed = yield from self._shard_rows(claim, values, turn, full)
        if not claimed:
            freed = yield from self._expire((), now, ordered=True)
            if known is not None:
                freed += (yield self.sql["outbox.claim.estranged"].bind(**known_to_it, now=now)).count
            if freed:
                claimed = yield from self._shard_rows(claim, values, turn, full)
        return claimed

    def _shard_rows(
        self, claim: Claim, values: Mapping[str, Any], turn: KeyRound, full: Collection[int]
    ) -> Op[list[ClaimedRow]]:
        limit = values["limit"]
        if not full:
            result = yield self.sql["outbox.claim.ordered"].bind(**values)
            if result.rows[-1][1] is None:
                turn.seen = None
                return (yield from self._whole(claim, result.rows))
        # Keys are held, or to be passed over.
        values = {**values, "full": list(full), "share": spread(limit) if full else limit}
        if turn.looks_lately(full=bool(full)):
            result = yield self.sql["outbox.keys.recent"].bind(**values, after=turn.seen)
            turn.took_lately(bool(result.rows))
            if result.rows or turn.rests:
                return self.claimed(result.rows)
        newest = (yield self.sql["outbox.keys.newest"].bind()).rows[0][0]
        for after in dict.fromkeys((turn.after, -1)):  # on from where the last claim ended, then anew
            result = yield self.sql["outbox.keys.turn"].bind(**values, after=after)
            if result.rows:
                turn.after = max(row[13] for row in result.rows) if len(result.rows) == limit else -1
                break
        turn.took(newest, all_there_was=after < 0 and len(result.rows) < limit)
        return self.claimed(result.rows)

    def _claim(self, claim: Claim, limit: int, now: datetime | None) -> dict[str, Any]:
        seconds = claim.lease.total_seconds()
        return {
            "token": claim.token,
            "owner": claim.owner,
            "lease": seconds,
            "room": claim.room,
            "limit": limit,
            "now": now,
        }

    def walk(self, after: int, limit: int, now: datetime | None) -> Op[Walk]:
        """Waiting batches and expired claims become single rows first, here too."""
        look = self.sql["outbox.keys.walk"].bind(after=after, limit=limit, now=now)
        rows = (yield look).rows
        *_, sharded, overdue, isolation = rows[0]
        if isolation != "read committed":
            raise ConfigError(
                f"expected transactions to be read committed for order.strategy advisory or rows, got {isolation}: "
                "change default_transaction_isolation of the role, or the isolation level of the engine you gave"
            )
        if overdue:
            if not (yield from self._expire((), now, ordered=True)):
                return Walk([], ended=True)  # somebody is at it
            rows = (yield look).rows
        keys = [WaitingKey(*row[:3]) for row in rows if row[0] is not None]
        return Walk(keys, ended=len(keys) < len(rows), sharded=sharded)

    def lease(
        self,
        claim: Claim,
        keys: Sequence[WaitingKey],
        limit: int,
        choice: KeyChoice,
        refused: Collection[int],
        now: datetime | None,
    ) -> Op[Sequence[int]]:
        wanted = [key.key_hash for key in keys]
        values: dict[str, Any] = {"keys": wanted, "token": claim.token, "limit": limit}
        if choice.by == "rows":
            result = yield self.sql["outbox.keys.rows"].bind(**values, heads=[key.head for key in keys])
            return sorted(row[0] for row in result.rows)
        waits = [key in refused for key in wanted]
        result = yield self.sql["outbox.keys.advisory"].bind(**values, refused=waits, namespace=choice.namespace)
        return sorted(row[0] for row in result.rows)

    def claim_leased(self, claim: Claim, keys: Sequence[int], limit: int, now: datetime | None) -> Op[list[ClaimedRow]]:
        result = yield self.sql["outbox.keys.claim"].bind(**self._claim(claim, limit, now), keys=keys)
        return self.claimed(result.rows)

    def _free(self, leases: Sequence[KeyLease]) -> Op[None]:
        if leases:
            keys, tokens = zip(*sorted(leases), strict=True)
            yield self.sql["outbox.lease.free"].bind(keys=list(keys), tokens=list(tokens))

    def _expire(
        self,
        owners: Sequence[int],
        now: datetime | None,
        *,
        ordered: bool = False,
        orphans: bool = False,
    ) -> Op[int]:
        result = yield self.sql["outbox.claim.expired"].bind(
            owners=list(owners),
            now=now,
            waiting=ordered,
            orphans=orphans,
            spread=0.0 if ordered or now is not None else SPREAD,
        )
        return result.count

    # -- settle -----------------------------------------------------------------------------------

    def settle(self, settlement: Settlement, now: datetime | None) -> Op[int]:
        everything: list[HeldRow | RetryRow | Death] = [*settlement.done, *settlement.retry, *settlement.dead]
        whole = sorted(settlement.whole)
        if settlement.retry or settlement.dead or (whole and everything):
            yield self.sql["outbox.claim.lock"].bind(tokens=sorted({*whole, *_tokens(everything)}))
        lost = 0
        if whole:
            result = yield self.sql["outbox.settle.whole"].bind(tokens=whole, ordered=settlement.ordered)
            lost = sum(settlement.whole.values()) - int(result.rows[0][0])
        yield from self._hold(settlement, now)
        if settlement.retry:
            yield from self._retry(settlement.retry, now)
        if settlement.dead:
            yield from self._bury(settlement.dead, now)
        if settlement.ordered:
            yield from self._unhold(settlement)
        if everything:
            result = yield self.sql["outbox.settle.done"].bind(**self.pairs(everything))
            lost += len(everything) - int(result.rows[0][0])
        yield from self._free(settlement.free)
        return lost

    # -- instances and shards -----------------------------------------------------------------------

    def take_over(self, me: int | None, now: datetime | None, *, alone: bool = False) -> Op[tuple[int, int]]:
        owners = yield from self.remove_dead(me, now, alone=alone)
        freed = yield from self._expire(owners, now, orphans=True)
        yield self.sql["outbox.lease.sweep"].bind()
        return len(owners), freed

    def free_claims(self, owners: Sequence[int], now: datetime | None) -> Op[int]:
        return self._expire(owners, now)

    def acquire_shards(
        self,
        owner: int,
        want: int,
        shards: int,
        ttl: timedelta,
        now: datetime | None,
        among: Sequence[int] | None = None,
    ) -> Op[dict[int, int]]:
        """All shards of an owner expire together, so what it had claimed is freed before the first one moves."""
        yield self.sql["outbox.shard.seed"].bind(shards=shards)
        lapsed = yield self.sql["outbox.shard.lapsed"].bind(now=now)
        if lapsed.rows:
            yield from self._expire(sorted({row[0] for row in lapsed.rows}), now, ordered=True)
        result = yield self.sql["outbox.shard.acquire"].bind(
            owner=owner,
            want=want,
            shards=shards,
            among=None if among is None else list(among),
            ttl=ttl.total_seconds(),
            now=now,
        )
        return {row[0]: row[1] for row in result.rows}

    def renew_shards(self, owner: int, ttl: timedelta, now: datetime | None) -> Op[dict[int, int]]:
        result = yield self.sql["outbox.shard.renew"].bind(owner=owner, ttl=ttl.total_seconds(), now=now)
        return {row[0]: row[1] for row in result.rows}

    # -- dead letters and purge -----------------------------------------------------------------------

    def replay_dead(self, seqs: Sequence[int], cutoff: datetime, now: datetime | None) -> Op[list[int]]:
        result = yield self.sql["outbox.dead.replay"].bind(seqs=self.numbers(seqs), cutoff=cutoff, now=now)
        replayed = sorted(row[0] for row in result.rows)
        if replayed:
            yield self.sql["outbox.dead.unpark"].bind(seqs=self.numbers(replayed))
        return replayed

    def discard(self, kind: Kind, seqs: Sequence[int], now: datetime | None) -> Op[int]:
        gone = yield self.sql["outbox.events.discard"].bind(seqs=self.numbers(seqs), open=kind == "open")
        return int(gone.rows[0][0])

    def purge_age(self, before: datetime, limit: int) -> Op[int]:
        result = yield self.sql["outbox.purge.age"].bind(before=before, limit=limit)
        return int(result.rows[0][0])


def _batches(seqs: Sequence[int], claim: Claim | None, at: datetime, tenant: str | None) -> list[tuple[Any, ...]]:
    """Rows of the claim table: one claim for its writer, or waiting batches of a size that suits most claims."""
    if claim is not None:
        return [(claim.token, claim.owner, at + claim.lease, at, [seq * 65536 + 1 for seq in seqs], None)]
    size = math.ceil(len(seqs) / math.ceil(len(seqs) / BATCH))
    return [
        (new_token(), None, at, None, [seq * 65536 for seq in seqs[start : start + size]], tenant)
        for start in range(0, len(seqs), size)
    ]


def _tokens(held: Sequence[Any]) -> list[int]:
    return sorted({h[1] for h in held})


def _ours(held: Sequence[HeldRow], result: Result) -> set[int]:
    there = {(row[0], row[1]) for row in result.rows}
    return {h.seq for h in held if (h.token, h.seq) in there}
