"""Whatever workers do, crash, sleep or rebalance, a key has one holder at a time and is delivered in order.

Each example is a script of such steps against a real database, in a time that only the script moves. ORDER_EXAMPLES
makes it longer and random.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import relaybox.store.outbox.postgres as postgres
from relaybox import Settings
from relaybox.drivers import open_sync
from relaybox.store.outbox import open_store
from relaybox.testing.servers import require
from relaybox.types import OrderSettings

from .world import LEASE, SHARDS, TTL, Outcome, Taken, Worker, World

KEYS = "abcde"
WORKERS = 3
STRATEGIES = {"postgres": ("shards", "advisory", "rows"), "mariadb": ("shards", "rows"), "sqlite": ("shards",)}
LAWS = [(engine, strategy) for engine, strategies in STRATEGIES.items() for strategy in strategies]

# -- scripts: (what a Script can do, with what) -------------------------------------------------------

keys = st.lists(st.sampled_from(KEYS), min_size=1, max_size=6)
who = st.integers(0, WORKERS - 1)
outcome = st.tuples(
    st.integers(0, 4), st.sampled_from(["done", "done", "done", "retry", "park", "skip"]), st.sampled_from([0, 2, 60])
)
step = st.one_of(
    *[st.tuples(st.just("work"), who, st.integers(1, 8), st.lists(outcome, max_size=3))] * 4,
    *[st.tuples(st.just("write"), keys, st.booleans())] * 3,
    *[st.tuples(st.just("tick"), st.sampled_from([0, 1, 4]))] * 2,
    st.tuples(st.just("settle"), who, outcome),
    st.tuples(st.just("begin"), keys),
    st.tuples(st.just("end"), st.integers(0, 1), st.booleans()),
    st.tuples(st.just("pause_or_wake"), who),
    st.tuples(st.just("oversleep"), who, st.lists(outcome, max_size=6), st.lists(outcome, min_size=1, max_size=3)),
    st.tuples(st.just("leave"), who, st.booleans()),
    st.tuples(st.just("stall"), st.booleans()),
    st.tuples(st.just("decide"), st.booleans()),
)


class Script:
    def __init__(self, world: World, assignment: str) -> None:
        self.world = world
        self.assignment = assignment
        self.written: dict[int, str] = {}  # committed
        self.final: set[int] = set()  # done, or dead and given up
        self.parked: dict[str, int] = {}
        self.open: list[tuple[ExitStack, dict[int, str], Any]] = []
        self.born = 0
        self.workers = [self.new_worker() for _ in range(WORKERS)]
        self.write([*KEYS, *KEYS], batch=False)
        self.tick(0)

    def new_worker(self) -> Worker:
        self.born += 1
        static = f"0-{self.born % SHARDS}" if self.assignment == "static" else None  # they overlap
        config = Settings(order=OrderSettings(shards=SHARDS, assignment=self.assignment, static_shards=static))  # type: ignore[arg-type]
        worker = Worker(f"w{self.born}", config)
        self.world.register(worker)
        return worker

    # -- writers ------------------------------------------------------------------------------------

    def unlocked(self, wanted: list[str]) -> list[str]:
        """Writers of one key wait for each other, as they do where they update its aggregate."""
        locked = {key for _, written, _ in self.open for key in written.values()}
        return [key for key in wanted if key not in locked]

    def write(self, wanted: list[str], batch: bool) -> None:
        free = self.unlocked(wanted)
        if free:
            self.written |= dict(zip(self.world.write(free, batch=batch), free, strict=True))

    def begin(self, wanted: list[str]) -> None:
        """A transaction that commits later than others that began after it, or never."""
        free = self.unlocked(wanted)
        if free and len(self.open) < 2 and self.world.store.capabilities.skip_locked:
            stack = ExitStack()
            seqs, connection = stack.enter_context(self.world.transaction(free))
            self.open.append((stack, dict(zip(seqs, free, strict=True)), connection))

    def end(self, which: int, commit: bool) -> None:
        if not self.open:
            return
        stack, written, connection = self.open.pop(which % len(self.open))
        with stack:
            if commit:
                connection.commit()
                self.written |= written
            else:
                connection.rollback()

    # -- workers ------------------------------------------------------------------------------------

    def work(self, who: int, limit: int, outcomes: list[tuple[int, Outcome, int]]) -> None:
        """Claim, and settle some of what is here."""
        worker = self.workers[who]
        if worker.awake:
            self.claimed(worker, limit)
            for outcome in outcomes:
                self.settle_one(worker, *outcome)

    def settle(self, who: int, outcome: tuple[int, Outcome, int]) -> None:
        """Also by one that slept too long and has not noticed yet."""
        if self.workers[who].awake:
            self.settle_one(self.workers[who], *outcome)

    def settle_one(self, worker: Worker, which: int, outcome: Outcome, delay: int) -> None:
        if worker.keys:
            self.settled(worker, worker.keys[which % len(worker.keys)], outcome, delay)

    def claimed(self, worker: Worker, limit: int) -> list[Taken]:
        before = self.world.holders()
        taken = self.world.claim(worker, limit)
        after = self.world.holders()
        assert len(taken) <= limit
        assert [t.seq for t in taken] == sorted(t.seq for t in taken)
        for seq, _, key in taken:
            same_key = [other for other, its in self.written.items() if its == key]
            for other in same_key:
                holder = before.get(other)
                if holder is not None and holder.until > self.world.now:
                    assert self.world.strategy == "shards", f"{key} was leased to {holder}"
                    assert holder.owner == worker.owner, f"{key} was with {holder}, and {worker.name} got it too"
            skipped = [
                other
                for other in same_key
                if other < seq and other not in self.final and getattr(after.get(other), "owner", None) != worker.owner
            ]
            assert not skipped, f"{worker.name} got {seq} of {key} before {skipped}"
        return taken

    def settled(self, worker: Worker, key: str, outcome: Outcome, delay: int = 0) -> None:
        holders = self.world.holders()
        before = self.world.everything(holders)
        head = worker.lanes[key][0]
        entitled = head.seq in holders and holders[head.seq].token == head.token
        followed = any(holders.get(f.seq) and holders[f.seq].token == f.token for f in worker.lanes[key][1:])
        _, lost = self.world.settle(worker, key, outcome, timedelta(seconds=delay))
        assert lost == (not entitled)
        if entitled:
            earlier = [seq for seq, its in self.written.items() if its == key and seq < head.seq]
            assert self.final.issuperset(earlier), f"{head.seq} of {key} was settled before its turn"
        if not entitled and not followed:
            assert self.world.everything(self.world.holders()) == before, "a zombie changed something"
        if entitled and outcome in ("done", "skip"):
            self.final.add(head.seq)
        if entitled and outcome == "park":
            self.parked[key] = head.seq

    def tick(self, seconds: int) -> None:
        """Time passes, and every process that is awake beats, rebalances and renews."""
        self.world.now += timedelta(seconds=seconds)
        for worker in self.workers:
            if worker.awake:
                self.world.beat(worker)
                holders = self.world.holders()
                entitled = {
                    held.seq for held in worker.held if getattr(holders.get(held.seq), "token", 0) == held.token
                }
                assert self.world.renew(worker) == entitled

    def stall(self, long: bool) -> None:
        """Nobody gets to beat: an outage, longer than a process may be silent or than any lease."""
        self.world.now += (LEASE if long else TTL) + timedelta(seconds=1)

    def pause_or_wake(self, who: int) -> None:
        """While it sleeps its leases end. Awake again it is a zombie, and does not know before its next beat."""
        self.workers[who].awake = not self.workers[who].awake

    def oversleep(self, who: int, meanwhile: list[Any], then: list[Any]) -> None:
        """Its leases end, the others go on with what it had, and only then it comes with what it has to say."""
        sleeper = self.workers[who]
        sleeper.awake = False
        for _ in range(4):
            self.tick(4)
        others = [other for other in range(WORKERS) if other != who]
        for other in others:
            self.work(other, 8, meanwhile)
        sleeper.awake = True
        for outcome in then:
            self.settle(who, outcome)

    def leave(self, who: int, politely: bool) -> None:
        """Stopped or killed; another comes in its place."""
        if politely and self.workers[who].awake:
            self.world.release(self.workers[who])
            self.world.retire(self.workers[who])
        self.workers[who] = self.new_worker()

    # -- the rest of the world ----------------------------------------------------------------------

    def decide(self, replay: bool) -> None:
        """An operator looks at a parked key: once more, or without its head."""
        if not self.parked:
            return
        key, seq = self.parked.popitem()
        if replay:
            assert self.world.run(self.world.store.replay("dead", [seq], self.world.now, self.world.now)) == 1
        else:
            assert self.world.run(self.world.store.release_key(key, None, None))
            self.final.add(seq)

    # -- laws ---------------------------------------------------------------------------------------

    def check(self) -> None:
        """No key has two holders, by the database."""
        live: dict[str, set[int]] = {}
        for seq, holder in self.world.holders().items():
            if holder.until > self.world.now:
                title = holder.owner if self.world.strategy == "shards" else holder.token
                live.setdefault(self.written[seq], set()).add(title)
        assert [key for key, titles in live.items() if len(titles) > 1] == []

    def drain(self) -> None:
        """Nothing is lost: after every lease has ended, one worker alone delivers all that is left, in order."""
        while self.parked:
            self.decide(replay=len(self.parked) % 2 == 0)
        self.assignment = "leases"
        self.world.now += LEASE + TTL
        last = self.new_worker()
        for _ in range(len(self.written) + 20):
            self.world.now += timedelta(seconds=1)
            self.world.beat(last)
            if not self.claimed(last, 8):
                self.world.now += timedelta(seconds=60)
                self.world.beat(last)
            while last.keys:
                self.settled(last, last.keys[0], "done")
            if self.final == set(self.written):
                break
        assert self.final == set(self.written)


@pytest.mark.parametrize(("engine", "strategy"), LAWS)
def test_one_holder_per_key_and_each_in_order(
    engine: str, strategy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "COPY_FROM", 2)  # so that batches wait as claims without an owner
    monkeypatch.setattr(postgres, "BATCH", 3)
    kind = {"postgres": "postgres-wheel", "mariadb": "mariadb"}
    url = f"sqlite:///{tmp_path / 'order.db'}"
    if engine in kind:
        url = require(kind[engine], durable=False).create_database()
    db, store = open_sync(url), open_store({"mariadb": "mysql"}.get(engine, engine))
    db.run(store.migrate())
    world = World(db, store, strategy)  # type: ignore[arg-type]
    examples = int(os.environ.get("ORDER_EXAMPLES", "0"))

    @settings(
        max_examples=examples or 20,
        derandomize=not examples,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.sampled_from(["leases", "rendezvous", "static"]), st.lists(step, min_size=40, max_size=80))
    def law(assignment: str, steps: list[tuple[Any, ...]]) -> None:
        world.wipe()
        script = Script(world, assignment)
        try:
            for name, *values in steps:
                getattr(script, name)(*values)
                script.check()
        finally:
            while script.open:
                script.end(0, commit=True)
        script.drain()

    try:
        law()
    finally:
        db.close()
