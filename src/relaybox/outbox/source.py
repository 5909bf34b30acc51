"""Outbox rows as a source of deliveries: in any order, or in order by shards or by keys."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Literal, TypeVar, assert_never

from ..clock import Clock
from ..codec import JSON_CODEC, Codec
from ..delivery import Delivery
from ..drivers.spi import AsyncRunner
from ..engine.protocols import AlwaysAlive, Pulse, Settled
from ..engine.rows.room import PayloadRoom
from ..errors import ConfigError, UnsupportedByEngine
from ..event import Event
from ..facts import KeysChosen, Observers
from ..ids import key_hash, new_token, shard_of
from ..op import Op
from ..outcome import DONE, Dead, Done, RetryAt, Skip
from ..sealing import sealing
from ..settings import Fair, Settings
from ..store.claims import Claim, Death, HeldRow, RetryRow
from ..store.outbox import OutboxStore
from ..store.outbox.fair import TenantRound
from ..store.outbox.values import ClaimedRow, KeyChoice, KeyLease, KeyRound, Known, Settlement

T = TypeVar("T")
NOBODY = Observers()
REMEMBERED = 1000  # claims, besides those that are here
NEVER = {-1}  # no event has this number
PAUSE = 10  # times as long as a round over all keys takes, until the next one …
LONGEST = 1.0  # … in seconds at most; meanwhile claims find what is new


class OutboxSource:
    """Unordered: any instance may claim any due row. `owner` is set by OutboxRegistration."""

    ordered = False

    def __init__(
        self,
        db: AsyncRunner,
        store: OutboxStore,
        settings: Settings,
        clock: Clock,
        observers: Observers = NOBODY,
    ) -> None:
        self._db = db
        self._store = store
        self._settings = settings
        self._clock = clock
        self._observers = observers
        self._free: Sequence[KeyLease] = ()  # leases that end with what is settled or released now
        self._tx = not store.capabilities.single_statement
        # Of each claim, what is not known to have left it: if all of that is done, the claim is settled whole.
        self._left: dict[int, set[int]] = {}
        self._most = REMEMBERED
        # But not one of which something left undone: a fail-over may forget that, and it would be settled as well.
        self._undone: set[int] = set()
        self.here: Callable[[], Iterable[Delivery]] = tuple  # set by OutboxRegistration
        self._room = PayloadRoom(settings.delivery)
        self._room.here = lambda: self.here()
        self._claim_tx = self._tx
        self._codec: Codec = getattr(store, "codec", JSON_CODEC)  # not every store keeps one
        self._sealing = sealing(self._codec)
        self._failures = self._compared = 0  # of statements: after one the database may be another's, and know less
        self.owner = 0
        self.pulse: Pulse = AlwaysAlive()  # set by OutboxRegistration
        self.doubtful: list[Claim] = []  # asked for, no reply: the database may have made them
        self.freed: Callable[[], None] = lambda: None  # there may be something to claim; set by OutboxRegistration
        self._set_up()

    def _set_up(self) -> None:
        """For sources that keep order."""

    def new_claim(self) -> Claim:
        return Claim(self.owner, new_token(), self._settings.delivery.lease)

    @property
    def full(self) -> bool:
        return self._room.full

    @property
    def silent(self) -> bool:
        """Too long without a heartbeat (a pause, an outage): what we claim now might belong to nobody."""
        return self._clock.monotonic() >= self.pulse.alive_until

    async def claim(self, limit: int, past: Collection[str] = ()) -> list[Delivery]:
        if self.silent:
            return []
        await self._clear_doubts()
        limit, room = self._room.ask(limit)
        if not limit:
            return []
        claim = self.new_claim()._replace(room=room)
        ends = self._clock.monotonic() + claim.lease.total_seconds()
        self.doubtful.append(claim)
        failures = self._failures
        rows: Sequence[ClaimedRow] = await self._run(self._pick(claim, limit, past), tx=self._claim_tx)
        if claim.owner != self.owner:  # declared dead meanwhile: the claim is nobody's and stays in doubt
            return []
        self._claimed(claim, rows)
        self._remember(claim, rows)
        back: Collection[int] = ()
        if self._room.measures or [seen for seen, _, _ in rows if seen[7] is None]:
            rows, back = await self._load(rows)
        event, codec, token, hot, ordered = Event.stored, self._codec, claim.token, False, self.ordered
        claimed = [
            Delivery(event(row, codec), row[0], token, attempts, ends, hot, ordered) for row, attempts, _ in rows
        ]
        if back:
            await self.release([delivery for delivery in claimed if delivery.seq in back])
            claimed = [delivery for delivery in claimed if delivery.seq not in back]
        if self._sealing is not None and (keys := self._sealing.load([one.event for one in claimed])) is not None:
            await keys
        kept = await self._kept(claimed)
        self.doubtful.clear()  # not before: what the engine does not learn of must be given back
        self._compared = failures
        return kept

    async def _load(self, rows: Sequence[ClaimedRow]) -> tuple[Sequence[ClaimedRow], Collection[int]]:
        """With the payloads that the claim left in the database, as far as there is room; and what has to go back."""
        loaded = await self._db.run(self._store.load(rows, self._room.left, first=self._room.empty), tx=False)
        rows = [one._replace(row=loaded.rows.get(one.row[0], one.row)) for one in rows]
        self._room.met([loaded.sizes.get(one.row[0]) or len(one.row[7] or b"") for one in rows])
        return rows, loaded.back

    async def _kept(self, claimed: list[Delivery]) -> list[Delivery]:
        """For sources that give a part back at once. If that fails, the whole claim is in doubt."""
        return claimed

    async def _clear_doubts(self) -> None:
        """What a lost reply would have brought comes first: in ordered mode its successors would overtake it."""
        if self.doubtful:
            await self._db.run(self._store.abandon(self.doubtful, self._clock.database_now()))
            self.doubtful.clear()

    def _pick(self, claim: Claim, limit: int, past: Collection[str]) -> Op[list[ClaimedRow]]:
        return self._store.claim(claim, limit, self._clock.database_now())

    def _claimed(self, claim: Claim, rows: Sequence[ClaimedRow]) -> None:
        """For sources that remember what they have."""

    def _remember(self, claim: Claim, rows: Sequence[ClaimedRow]) -> None:
        if len(self._left) > self._most:  # those that others took over would stay for ever
            here = {delivery.token for delivery in self.here()}
            self._left = {token: left for token, left in self._left.items() if token in here}
            self._undone &= self._left.keys()
            self._most = REMEMBERED + 2 * len(self._left)
        if rows and self._store.capabilities.whole_claims:
            self._left[claim.token] = {row[0] for row, _, _ in rows}

    def _out(self, parts: Mapping[int, set[int]], undone: Iterable[Delivery]) -> None:
        self._undone.update([delivery.token for delivery in undone if delivery.token in self._left])
        for token, seqs in parts.items():
            if token in self._left:
                self._left[token] -= seqs
                if not self._left[token]:
                    del self._left[token]
                    self._undone.discard(token)

    async def verify(self, deliveries: Sequence[Delivery]) -> set[int]:
        return await self._db.run(self._store.verify(_held(deliveries)), tx=False)

    async def settle(self, outcomes: Sequence[Settled]) -> int:
        parts = _by_claim(delivery for delivery, _ in outcomes)
        settlement = self._settlement(outcomes, parts)
        settle = self._store.settle(settlement, self._clock.database_now())
        lost = await self._run(settle, tx=self._tx or settlement.several)
        self._out(parts, [delivery for delivery, outcome in outcomes if outcome is not DONE])
        return lost

    def _settlement(self, outcomes: Sequence[Settled], parts: Mapping[int, set[int]]) -> Settlement:
        done: list[HeldRow] = []
        retry: list[RetryRow] = []
        dead: list[Death] = []
        unlucky = any(outcome is not DONE for _, outcome in outcomes)
        fine = _by_claim(delivery for delivery, outcome in outcomes if outcome is DONE) if unlucky else parts
        left, undone = self._left, self._undone
        whole = {
            token: len(seqs) for token, seqs in fine.items() if left.get(token, NEVER) <= seqs and token not in undone
        }
        for delivery, outcome in outcomes if unlucky or len(whole) < len(parts) else ():
            if outcome is DONE and delivery.token in whole:
                continue
            match outcome:
                case Done() | Skip():
                    done.append(HeldRow(delivery.seq, delivery.token))
                case RetryAt(delay, error, counted):
                    retry.append(RetryRow(delivery.seq, delivery.token, delay, error, counted))
                case Dead(error):
                    dead.append(Death(delivery.seq, delivery.token, error))
                case _:
                    assert_never(outcome)
        if not self.ordered:
            return Settlement(done, retry, dead, whole=whole)
        hold = [HeldRow(r.seq, r.token) for r in retry]
        park = [HeldRow(d.seq, d.token) for d in dead] if self._settings.order.on_exhausted == "park" else []
        return Settlement(done, retry, dead, hold, park, ordered=True, free=self._free, whole=whole)

    async def release(self, deliveries: Sequence[Delivery]) -> None:
        parts = _by_claim(deliveries)
        await self._run(self._store.release(_held(deliveries), self._clock.database_now(), self._free))
        self._out(parts, deliveries)

    async def renew(self, deliveries: Sequence[Delivery]) -> set[int]:
        renewal = self._store.renew(_held(deliveries), self._settings.delivery.lease, self._clock.database_now())
        return await self._run(renewal, tx=self._tx)

    async def _run(self, op: Op[T], *, tx: bool = True) -> T:
        try:
            return await self._db.run(op, tx=tx)
        except Exception:
            self._failures += 1
            raise

    async def oldest(self) -> timedelta:
        return await self._db.run(self._store.oldest(self._clock.database_now()), tx=False)

    async def next_due(self) -> timedelta | None:
        return await self._db.run(self._store.next_due(self._clock.database_now()), tx=False)


class FairSource(OutboxSource):
    """Unordered, and from one tenant after the other."""

    def _set_up(self) -> None:
        self._round = TenantRound()

    def _pick(self, claim: Claim, limit: int, past: Collection[str]) -> Op[list[ClaimedRow]]:
        return self._store.claim_fair(claim, limit, self._round, self._clock.database_now())


class OrderedSource(OutboxSource):
    """Ordered by shards: only those this instance owns, and nothing behind a failed head."""

    ordered = True

    def _set_up(self) -> None:
        self._turn = KeyRound()
        self._next_round = 0.0
        self.leaving: set[int] = set()  # shards on their way to another instance: claim nothing more of them
        # Shards are given away only between claims: one under way may bring rows of a shard that looks idle.
        self.claiming = asyncio.Lock()

    def _pick(self, claim: Claim, limit: int, past: Collection[str]) -> Op[list[ClaimedRow]]:
        limit, now = min(limit, self._settings.order.shard_rows), self._clock.database_now()
        full = frozenset(map(key_hash, past))
        leaving, shards = frozenset(self.leaving), self._settings.order.shards
        return self._store.claim_ordered(claim, limit, shards, now, self._turn, full, leaving, self._known())

    def _known(self) -> Known | None:
        """What the database should know as claimed by us. After a fail-over that forgot a settle it has more: what was
        to be tried again, or was given back, must come before what follows it."""
        left, undone = self._left, self._undone
        if self._store.capabilities.whole_claims:
            return Known(left.keys() - undone, [seq for token in undone for seq in left.get(token, ())])
        if self._failures != self._compared:
            return Known((), [delivery.seq for delivery in self.here()])
        return None

    async def claim(self, limit: int, past: Collection[str] = ()) -> list[Delivery]:
        async with self.claiming:
            turn, began = self._turn, self._clock.monotonic()
            turn.missed = turn.went_round = False
            turn.rests = began < self._next_round and any(True for _ in self.here())
            claimed = await super().claim(limit, past)
            if turn.went_round:
                now = self._clock.monotonic()
                self._next_round = now + min(PAUSE * (now - began), LONGEST)
            return claimed

    async def next_due(self) -> timedelta | None:
        if not self._turn.missed:
            return await super().next_due()
        return timedelta(seconds=max(self._next_round - self._clock.monotonic(), 0.001))

    async def _kept(self, claimed: list[Delivery]) -> list[Delivery]:
        if not self.leaving:
            return claimed
        leaving = frozenset(self.leaving)
        given_up = [d for d in claimed if self.shard(d) in leaving]
        if given_up:
            await self.release(given_up)
        return [d for d in claimed if self.shard(d) not in leaving]

    def shard(self, delivery: Delivery) -> int:
        event = delivery.event
        return shard_of(event.id if event.key is None else event.key, self._settings.order.shards)


class KeyedSource(OutboxSource):
    """Ordered by keys: a claim leases keys that nobody has, and a key is ours until all we claimed of it is settled."""

    ordered = True

    def _set_up(self) -> None:
        settings = self._settings
        by: Literal["advisory", "rows"] = "advisory" if settings.order.strategy == "advisory" else "rows"
        self._choice = KeyChoice(
            by, settings.order.key_candidates, settings.order.keys_per_claim, settings.order.lock_namespace
        )
        self._turn = KeyRound()
        self._claim_tx = True
        self._lease: dict[int, KeyLease] = {}  # of each event that is not settled yet
        self._rest: dict[KeyLease, set[int]] = {}  # and the other way round
        # Two that each settle a part of a key would both think that the other part is left.
        self._settling = asyncio.Lock()

    def _pick(self, claim: Claim, limit: int, past: Collection[str]) -> Op[list[ClaimedRow]]:
        """A key of which something is here is leased to us, and passed over anyway."""
        return self._store.claim_keys(claim, limit, self._choice, self._turn, self._clock.database_now())

    def _claimed(self, claim: Claim, rows: Sequence[ClaimedRow]) -> None:
        for row, _, hashed in rows:
            assert hashed is not None
            self._forget(row[0], self._lease.get(row[0]))  # our lease had run out while it was here
            lease = KeyLease(hashed, claim.token)
            self._lease[row[0]] = lease
            self._rest.setdefault(lease, set()).add(row[0])
        if self._turn.tried and self._observers:
            self._observers(KeysChosen(self._turn.tried, self._turn.taken))

    def _forget(self, seq: int, lease: KeyLease | None) -> None:
        if lease is not None and self._lease.get(seq) == lease:
            del self._lease[seq]
            self._rest[lease].discard(seq)
            if not self._rest[lease]:
                del self._rest[lease]

    async def settle(self, outcomes: Sequence[Settled]) -> int:
        async with self._settling:
            with self._leaving([delivery for delivery, _ in outcomes]):
                return await super().settle(outcomes)

    async def release(self, deliveries: Sequence[Delivery]) -> None:
        async with self._settling:
            with self._leaving(deliveries):
                await super().release(deliveries)

    @contextmanager
    def _leaving(self, deliveries: Sequence[Delivery]) -> Iterator[None]:
        """Inside, `_free` names the leases of which no delivery is left; after it, these deliveries are forgotten."""
        mine = ((d, self._lease.get(d.seq)) for d in deliveries)
        leases = {d.seq: lease for d, lease in mine if lease is not None and lease.token == d.token}
        self._free = [lease for lease in set(leases.values()) if self._rest[lease] <= leases.keys()]
        yield
        for seq, lease in leases.items():
            self._forget(seq, lease)
        if self._free and self._turn.busy:
            self.freed()


def make_source(
    ordered: bool,
    db: AsyncRunner,
    store: OutboxStore,
    settings: Settings,
    clock: Clock,
    observers: Observers = NOBODY,
) -> OutboxSource:
    if not ordered:
        plain = FairSource if settings.delivery.fair == "tenant" else OutboxSource
        return plain(db, store, settings, clock, observers)
    strategy, can = settings.order.strategy, store.capabilities.order_strategies
    if strategy not in can:
        raise UnsupportedByEngine(
            f"expected order.strategy to be {' or '.join(can)} on {store.dialect}, got {strategy!r}; "
            "PostgreSQL has all of them"
        )
    kind = OrderedSource if strategy == "shards" else KeyedSource
    return kind(db, store, settings, clock, observers)


def with_fair(settings: Settings, fair: Fair | None, *, ordered: bool) -> Settings:
    """As somebody wishes who gives `fair`, or as the settings say."""
    if fair is not None:
        settings = settings.replaced({"delivery.fair": fair})
    if ordered and settings.delivery.fair == "tenant":
        raise ConfigError(
            "expected fair='tenant' (delivery.fair) or ordered delivery, got both: it claims what is next in order. "
            "Give ordered=False, or fair='off'"
        )
    return settings


def _by_claim(deliveries: Iterable[Delivery]) -> dict[int, set[int]]:
    parts: dict[int, set[int]] = {}
    for delivery in deliveries:
        if delivery.token in parts:
            parts[delivery.token].add(delivery.seq)
        else:
            parts[delivery.token] = {delivery.seq}
    return parts


def _held(deliveries: Sequence[Delivery]) -> list[HeldRow]:
    return [HeldRow(d.seq, d.token) for d in deliveries]
