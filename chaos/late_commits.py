"""python -m chaos.late_commits [--events 300000]: writers that commit in any order but that of their numbers.

Several writers with plain, long, rolled back, prepared and nested transactions, ids taken early and used late, and one
transaction that stays open for a minute; in another database one stays open throughout. Groups of several
members read meanwhile, and one reads everything afterwards. No event may be lost, twice or out of its key's order, and
those of other transactions come as fast while one is open as they do otherwise.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import pairwise
from typing import Any

import psycopg

from relaybox import Event
from relaybox.drivers import open_sync
from relaybox.drivers.psycopg import PsycopgConnection
from relaybox.op import run
from relaybox.store.names import Tables
from relaybox.store.topics import GroupOptions, GroupRow, RangeSettlement, Start, TopicRow, open_topic_store
from relaybox.store.topics.store import TopicStore
from relaybox.testing.servers.postgres import PostgresServer
from relaybox.topic import Topic

LEASE = timedelta(seconds=60)
BATCHES = (1, 3, 10, 60, 250)  # events per write; the last is a COPY


@dataclass
class Trial:
    url: str
    other_url: str
    events: int = 300_000
    writers: int = 5
    members: int = 2
    seed: int = 1
    open_for: float = 0.0  # seconds that one transaction stays open at least
    rate: float = 1e9  # events per second at most: latencies mean something only where readers keep up
    store: TopicStore = field(init=False)
    topic: TopicRow = field(init=False)
    committed: dict[str, float] = field(default_factory=dict)  # id of an event -> when its commit was known
    seen: dict[str, dict[str, float]] = field(default_factory=lambda: defaultdict(dict))
    twice: Counter[str] = field(default_factory=Counter)
    orders: dict[str, dict[str, list[int]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))
    held: set[str] = field(default_factory=set)  # events of transactions that were kept open on purpose
    errors: list[BaseException] = field(default_factory=list)
    written: int = 0
    began: float = field(default_factory=time.monotonic)
    closed: threading.Event = field(default_factory=threading.Event)
    done: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.store = open_topic_store("postgres", Tables())
        db = open_sync(self.url)
        db.run(self.store.migrate())
        topic = Topic(name="late", semantics="pub_sub", tracking="offset", shards=8)
        self.topic = db.run(self.store.configure(topic, None))
        db.close()

    def run(self) -> dict[str, Any]:
        with psycopg.connect(self.other_url) as other:
            other.execute("SELECT pg_current_xact_id()")  # stays open
            groups = [self.group("ordered", ordered=True), self.group("loose", ordered=False)]
            readers = [self.thread(self.read, group) for group in groups for _ in range(self.members)]
            writers = [self.thread(self.write, number) for number in range(self.writers)]
            opened = self.stay_open()
            for thread in writers:
                thread.join()
            self.done.set()
            for thread in readers:
                thread.join()
            self.read(self.group("afterwards", ordered=True))
        return self.verdict(opened)

    def thread(self, work: Callable[..., None], *args: Any) -> threading.Thread:
        def guarded() -> None:
            try:
                work(*args)
            except BaseException as error:
                self.errors.append(error)
                raise

        thread = threading.Thread(target=guarded, daemon=True)
        thread.start()
        return thread

    # -- writers ----------------------------------------------------------------------------------

    def stay_open(self) -> tuple[float, float]:
        """One transaction writes after a third of the events and commits after two thirds, or later."""
        self.wait_for(self.events // 3)
        with psycopg.connect(self.url) as connection:
            ids = self.put(connection, [self.event(None, 0) for _ in range(100)])
            began = time.monotonic()
            self.wait_for(self.events * 2 // 3)
            time.sleep(max(0.0, began + self.open_for - time.monotonic()))
            ended = time.monotonic()
            connection.commit()
        self.note(ids, held=True)
        self.closed.set()
        return began, ended

    def wait_for(self, events: int) -> None:
        while self.written < events and not self.errors:
            time.sleep(0.05)

    def write(self, number: int) -> None:
        rng = random.Random(self.seed * 100 + number)
        kinds = [self.plain] * 12 + [self.nested, self.early, self.undone, self.crossed, self.prepared, self.slow]
        counter = iter(range(1 << 40))
        with psycopg.connect(self.url) as connection, psycopg.connect(self.url) as second:
            while not (self.written >= self.events and self.closed.is_set()) and not self.errors:
                rng.choice(kinds)(connection, second, rng, f"w{number}", counter)
                time.sleep(max(0.0, self.began + self.written / self.rate - time.monotonic()))

    def plain(self, connection: Any, second: Any, rng: random.Random, key: str, counter: Iterator[int]) -> None:
        ids = self.put(connection, self.batch(rng, key, counter))
        connection.commit()
        self.note(ids)

    def nested(self, connection: Any, second: Any, rng: random.Random, key: str, counter: Iterator[int]) -> None:
        """Savepoints: some are rolled back, some are many."""
        ids = self.put(connection, self.batch(rng, key, counter))
        for _ in range(rng.choice((1, 3, 100))):
            connection.execute("SAVEPOINT s")
            inner = self.put(connection, [self.event(key, next(counter))])
            if rng.random() < 0.5:
                connection.execute("ROLLBACK TO SAVEPOINT s")
            else:
                connection.execute("RELEASE SAVEPOINT s")
                ids += inner
        connection.commit()
        self.note(ids)

    def early(self, connection: Any, second: Any, rng: random.Random, key: str, counter: Iterator[int]) -> None:
        """Two get their ids early; the second writes and commits first, then the first."""
        connection.execute("SELECT pg_current_xact_id()")
        self.plain(second, connection, rng, key, counter)
        self.plain(connection, second, rng, key, counter)

    def undone(self, connection: Any, second: Any, rng: random.Random, key: str, counter: Iterator[int]) -> None:
        self.put(connection, [self.event(None, 0) for _ in range(rng.choice(BATCHES))])
        connection.rollback()

    def crossed(self, connection: Any, second: Any, rng: random.Random, key: str, counter: Iterator[int]) -> None:
        """The later numbers are committed first."""
        ids = self.put(connection, [self.event(None, 0) for _ in range(rng.choice(BATCHES))])
        self.plain(second, connection, rng, key, counter)
        connection.commit()
        self.note(ids)

    def slow(self, connection: Any, second: Any, rng: random.Random, key: str, counter: Iterator[int]) -> None:
        ids = self.put(connection, [self.event(None, 0)])
        until = time.monotonic() + rng.random() / 2
        while time.monotonic() < until:
            self.plain(second, connection, rng, key, counter)
        ids += self.put(connection, [self.event(None, 0)])
        connection.commit()
        self.note(ids, held=True)

    def prepared(self, connection: Any, second: Any, rng: random.Random, key: str, counter: Iterator[int]) -> None:
        name = f"{key}-{next(counter)}"
        ids = self.put(connection, [self.event(None, 0) for _ in range(rng.choice(BATCHES))])
        connection.execute(f"PREPARE TRANSACTION '{name}'")
        connection.rollback()
        self.plain(second, connection, rng, key, counter)
        kept = rng.random() < 0.8
        second.autocommit = True
        second.execute(f"{'COMMIT' if kept else 'ROLLBACK'} PREPARED '{name}'")
        second.autocommit = False
        if kept:
            self.note(ids)

    def batch(self, rng: random.Random, key: str, counter: Iterator[int]) -> list[Event]:
        own = f"{key}-{rng.randrange(4)}"
        return [self.event(own, next(counter)) for _ in range(rng.choice(BATCHES))]

    def event(self, key: str | None, number: int) -> Event:
        return Event("Happened", number, key=key)

    def put(self, connection: Any, events: Sequence[Event]) -> list[str]:
        run(self.store.write(self.topic, events, None, copy=True), PsycopgConnection(connection))
        return [event.id for event in events]

    def note(self, ids: Sequence[str], *, held: bool = False) -> None:
        now = time.monotonic()
        with self.lock:
            self.committed.update(dict.fromkeys(ids, now))
            self.written += len(ids)
            if held:
                self.held.update(ids)

    # -- readers ----------------------------------------------------------------------------------

    def group(self, name: str, *, ordered: bool) -> GroupRow:
        db = open_sync(self.url)
        group, _ = db.run(
            self.store.subscribe(self.topic, name, Start("earliest"), GroupOptions(ordered=ordered), None)
        )
        db.close()
        return group

    def read(self, group: GroupRow) -> None:
        store, topic = self.store, self.topic
        db = open_sync(self.url, size=1)
        member = db.run(store.join(group, threading.current_thread().name, timedelta(minutes=10), None))
        while True:
            ending = self.done.is_set()
            taken = db.run(store.claim(topic, group, member, events=500, ranges=4, lease=LEASE, now=None))
            if taken.pages:
                self.deliver(group, [row for _, page in taken.pages for row in page])
                finished = [(held, ()) for held, _ in taken.pages]
                if db.run(store.settle(topic, group, RangeSettlement(finished=finished), None)):
                    raise AssertionError("a range was lost without a fault")
                continue
            if not taken.behind:
                newest = db.run(store.tick(topic, None))
                if newest is not None and newest <= taken.tick and ending:
                    break
            time.sleep(0.002)
        db.close()

    def deliver(self, group: GroupRow, rows: Sequence[Any]) -> None:
        now = time.monotonic()
        seen, order = self.seen[group.name], self.orders[group.name]
        with self.lock:
            for row in rows:
                if row[1] in seen:
                    self.twice[group.name] += 1
                seen[row[1]] = now
                if row[4] is not None:
                    order[row[4]].append(json.loads(row[7]))

    # -- verdict ----------------------------------------------------------------------------------

    def verdict(self, opened: tuple[float, float]) -> dict[str, Any]:
        wanted = set(self.committed)
        report: dict[str, Any] = {"events": len(wanted), "errors": [repr(error) for error in self.errors]}
        for name, seen in self.seen.items():
            report[name] = {
                "lost": len(wanted - set(seen)),
                "ghosts": len(set(seen) - wanted),
                "twice": self.twice[name],
                "inversions": 0 if name == "loose" else sum(map(_inversions, self.orders[name].values())),
            }
        during: list[float] = []
        otherwise: list[float] = []
        for event_id, at in self.seen["ordered"].items():
            if event_id not in self.held and event_id in self.committed:
                latency = max(0.0, at - self.committed[event_id])
                (during if opened[0] <= self.committed[event_id] <= opened[1] else otherwise).append(latency)
        report["open_seconds"] = round(opened[1] - opened[0], 1)
        report["latency_ms"] = {"one_open": _percentiles(during), "otherwise": _percentiles(otherwise)}
        wrong = sum(sum(report[name].values()) for name in self.seen)
        slow = report["latency_ms"]["one_open"]["p50"] > 3 * report["latency_ms"]["otherwise"]["p50"] + 100
        report["verdict"] = "FAIL" if wrong or slow or self.errors or len(self.seen) < 3 else "PASS"
        return report


def _inversions(numbers: list[int]) -> int:
    return sum(a >= b for a, b in pairwise(numbers))


def _percentiles(values: list[float]) -> dict[str, float]:
    ordered = sorted(values) or [0.0]
    return {name: round(ordered[int(len(ordered) * part)] * 1000, 1) for name, part in (("p50", 0.5), ("p95", 0.95))}


@contextmanager
def server() -> Iterator[tuple[str, str]]:
    """Two databases of one cluster that has prepared transactions."""
    with PostgresServer.from_wheel(durable=False, settings={"max_prepared_transactions": "32"}) as postgres:
        yield postgres.create_database(), postgres.create_database()


def main() -> int:
    parser = argparse.ArgumentParser(prog="chaos.late_commits", description=__doc__)
    parser.add_argument("--events", type=int, default=300_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rate", type=float, default=4000.0, help="events per second that are written at most")
    parser.add_argument("--open-for", type=float, default=60.0, help="seconds that one transaction stays open")
    options = parser.parse_args()
    with server() as (url, other_url):
        began = time.monotonic()
        report = Trial(url, other_url, **vars(options)).run()
    print(json.dumps({**report, "took": round(time.monotonic() - began, 1)}, indent=1))
    return 0 if report["verdict"] == "PASS" else 1


if __name__ == "__main__":
    sys.exit(main())
