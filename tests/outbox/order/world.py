"""One outbox in a real database, and workers on it that do what a relay does, step by step in a time of the test's own.

A worker settles a key in its order, releases the followers of a failed head, renews, beats and rebalances, as engine
and registration do; but when, and whether at all, the test decides. What the database says is the truth here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, NamedTuple, cast

from relaybox import Event, Settings
from relaybox.drivers import Database
from relaybox.ids import new_token, shard_of
from relaybox.op import Op, Query, T, run
from relaybox.outbox.shards import wish
from relaybox.store.claims import Claim, Death, HeldRow, RetryRow
from relaybox.store.outbox import OutboxStore
from relaybox.store.outbox.values import ClaimedRow, KeyChoice, KeyLease, KeyRound, Settlement

START = datetime(2031, 5, 4, 3, 2, 1, tzinfo=UTC)
LEASE = timedelta(seconds=12)
TTL = timedelta(seconds=5)
SHARDS = 4
TABLES = ("event", "pending", "claim", "dead", "hold", "lease", "shard", "instance")

Outcome = Literal["done", "retry", "park", "skip"]


class Holder(NamedTuple):
    owner: int
    token: int
    until: datetime


class Taken(NamedTuple):
    seq: int
    token: int
    key: str


@dataclass
class Worker:
    name: str
    settings: Settings
    owner: int = 0
    alive_until: datetime = START
    awake: bool = True
    turn: KeyRound = field(default_factory=KeyRound)
    lanes: dict[str, list[Taken]] = field(default_factory=lambda: defaultdict(list))
    leases: dict[KeyLease, set[int]] = field(default_factory=lambda: defaultdict(set))

    @property
    def keys(self) -> list[str]:
        return sorted(key for key, lane in self.lanes.items() if lane)

    @property
    def held(self) -> list[HeldRow]:
        return [HeldRow(taken.seq, taken.token) for key in self.keys for taken in self.lanes[key]]


class World:
    def __init__(self, db: Database, store: OutboxStore, strategy: str) -> None:
        self.db = db
        self.store = store
        self.strategy = strategy
        self.now = START
        self.names = store.tables.substitutions(store.quote)
        lacks = {"postgres": (), "mysql": ("claim",), "sqlite": ("claim", "lease")}[store.dialect]
        self.tables = [part for part in TABLES if part not in lacks]

    # -- looking ------------------------------------------------------------------------------------

    def run(self, op: Op[T], *, tx: bool = True) -> T:
        return self.db.run(op, tx=tx)

    def rows(self, text: str) -> Sequence[Any]:
        def ask() -> Op[Sequence[Any]]:
            kind: Literal["rows", "count"] = "rows" if text.startswith("SELECT") else "count"
            return (yield Query("test", text, kind).bind()).rows

        return self.run(ask(), tx=False)

    def wipe(self) -> None:
        def empty() -> Op[None]:
            for part in self.tables:
                yield Query("test", f"DELETE FROM {self.names[part]}", "count").bind()

        self.run(empty())

    def holders(self) -> dict[int, Holder]:
        """Who has claimed what, by the database."""
        if "claim" in self.tables:
            claims = self.rows(f"SELECT owner, token, until, items FROM {self.names['claim']} WHERE owner IS NOT NULL")
            return {item // 65536: Holder(o, t, self.store.from_time(u)) for o, t, u, items in claims for item in items}
        claimed = self.rows(f"SELECT seq, owner, token, due FROM {self.names['pending']} WHERE owner IS NOT NULL")
        return {seq: Holder(o, t, self.store.from_time(u)) for seq, o, t, u in claimed}

    def everything(self, holders: Mapping[int, Holder]) -> list[Any]:
        """All that a late word of a zombie must not change; leases of claims that are gone mean nothing."""
        live = {holder.token for holder in holders.values()}
        found: list[Any] = []
        for part in ("pending", "claim", "dead", "hold", "lease"):
            if part not in self.tables:
                continue
            rows = self.rows(f"SELECT * FROM {self.names[part]}")
            found += [(part, *map(str, row)) for row in rows if part != "lease" or row[1] in live]
        return sorted(found)

    # -- writing --------------------------------------------------------------------------------------

    def write(self, keys: Sequence[str], *, batch: bool = False) -> list[int]:
        return self.run(self._write(keys, batch=batch))

    def _write(self, keys: Sequence[str], *, batch: bool = False) -> Op[list[int]]:
        return self.store.write([Event("E", None, key=key) for key in keys], None, self.now, copy=batch)

    @contextmanager
    def transaction(self, keys: Sequence[str]) -> Iterator[tuple[list[int], Any]]:
        """Written and not yet committed: the holder of this ends it."""
        with self.db.connection() as connection:
            connection.begin()
            yield run(self._write(keys), connection), connection

    # -- a worker's steps -----------------------------------------------------------------------------

    def register(self, worker: Worker) -> None:
        worker.owner = self.run(self.store.register(worker.name, "relay", TTL, self.now))
        worker.alive_until = self.now + TTL

    def beat(self, worker: Worker) -> None:
        if self.run(self.store.beat(worker.owner, TTL, self.now)):
            worker.alive_until = self.now + TTL
        else:
            self.register(worker)
        self.run(self.store.take_over(None, self.now))
        if self.strategy == "shards":
            self._keep_shards(worker)

    def retire(self, worker: Worker) -> None:
        def sign_off() -> Op[None]:
            yield from self.store.release_shards(worker.owner, range(SHARDS))
            yield from self.store.retire(worker.owner, self.now)

        self.run(sign_off())

    def _keep_shards(self, worker: Worker) -> None:
        mine = self.run(self.store.renew_shards(worker.owner, TTL, self.now))
        peers = self.run(self.store.instances(self.now))
        more, among, surplus = wish(worker.settings, mine, peers, worker.owner, worker.name)
        if more > 0:
            self.run(self.store.acquire_shards(worker.owner, more, SHARDS, TTL, self.now, among))
        idle = surplus - {shard_of(key, SHARDS) for key in worker.keys}
        if idle:
            self.run(self.store.release_shards(worker.owner, sorted(idle)))

    def claim(self, worker: Worker, limit: int) -> list[Taken]:
        """Nothing after too long a silence: others may hold the worker for dead."""
        if self.now >= worker.alive_until:
            return []
        claim = Claim(worker.owner, new_token(), LEASE)
        rows = self.run(self._claim(claim, limit, worker.turn), tx=self.strategy != "shards" or self._stepped)
        taken = [Taken(row.row[0], claim.token, row.row[4]) for row in rows]
        for row, mine in zip(rows, taken, strict=True):
            lane = worker.lanes[mine.key]
            lane[:] = [other for other in lane if other.seq != mine.seq]  # our own claim had run out: a new title
            lane.append(mine)
            if row.key_hash is not None:
                worker.leases[KeyLease(row.key_hash, claim.token)].add(mine.seq)
        return taken

    @property
    def _stepped(self) -> bool:
        return not self.store.capabilities.single_statement

    def _claim(self, claim: Claim, limit: int, turn: KeyRound) -> Op[list[ClaimedRow]]:
        if self.strategy == "shards":
            return self.store.claim_ordered(claim, limit, SHARDS, self.now, turn)
        by = cast(Literal["advisory", "rows"], self.strategy)
        return self.store.claim_keys(claim, limit, KeyChoice(by, candidates=4, keys=2), turn, self.now)

    def settle(self, worker: Worker, key: str, outcome: Outcome, delay: timedelta) -> tuple[Taken, int]:
        """The head of a key, and if it failed the release of what follows it here."""
        head, *followers = worker.lanes.pop(key)
        held = HeldRow(head.seq, head.token)
        retry, death = RetryRow(*held, delay, "bad"), Death(*held, "bad")
        match outcome:
            case "done":
                settlement = Settlement(done=[held])
            case "retry":
                settlement = Settlement(retry=[retry], hold=[held])
            case "park":
                settlement = Settlement(dead=[death], park=[held])
            case "skip":
                settlement = Settlement(dead=[death])
        free = self._leaving(worker, [held])
        lost = self.run(self.store.settle(settlement._replace(ordered=True, free=free), self.now))
        if followers and outcome in ("retry", "park"):
            self._release(worker, followers)
        elif followers:
            worker.lanes[key] = followers
        return head, lost

    def release(self, worker: Worker) -> None:
        self._release(worker, [taken for key in worker.keys for taken in worker.lanes[key]])
        worker.lanes.clear()

    def _release(self, worker: Worker, taken: Sequence[Taken]) -> None:
        held = [HeldRow(each.seq, each.token) for each in taken]
        self.run(self.store.release(held, self.now, self._leaving(worker, held)))

    def renew(self, worker: Worker) -> set[int]:
        return self.run(self.store.renew(worker.held, LEASE, self.now)) if worker.held else set()

    def _leaving(self, worker: Worker, gone: Sequence[HeldRow]) -> list[KeyLease]:
        ended = []
        for lease, rest in list(worker.leases.items()):
            rest -= {held.seq for held in gone if held.token == lease.token}
            if not rest:
                ended.append(lease)
                del worker.leases[lease]
        return ended
