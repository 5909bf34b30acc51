"""What a pull consumer waits for: a poll, a commit, the lag. p95 in milliseconds, of ordered and unordered groups the
worse one.

10,000 rows are polled and committed in hundreds, by one process and by ten at once; the lag is asked for with 100,000
rows unread.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from multiprocessing.synchronize import Barrier
from typing import Any

import relaybox
from benchmarks.spi import Database, Sample, Sizes
from relaybox import Event, Settings
from relaybox.clock import SYSTEM_CLOCK
from relaybox.codec import JSON_CODEC
from relaybox.drivers import Database as OurDatabase
from relaybox.drivers import open_sync
from relaybox.facts import Observers
from relaybox.store.names import Tables
from relaybox.store.topics import GroupOptions, TopicRow, open_topic_store
from relaybox.topic import Topic
from relaybox.topics.admin import GroupAdmin
from relaybox.topics.consumer import Consumer
from relaybox.topics.home import Home
from relaybox.topics.start import StartFrom

KEYS, POLLED, CONSUMERS, LAG_ROUNDS = 1_000, 100, 10, 50


@dataclass
class Times:
    """Milliseconds of each call, by what was called."""

    of: dict[str, list[float]] = field(default_factory=lambda: {"poll": [], "commit": [], "lag": []})

    def timed(self, name: str, call: Callable[[], Any]) -> Any:
        started = time.perf_counter()
        result = call()
        self.of[name].append((time.perf_counter() - started) * 1000)
        return result

    def add(self, other: Times) -> None:
        for name, times in other.of.items():
            self.of[name] += times


def home(url: str, db: OurDatabase) -> Home[Any]:
    store = open_topic_store("postgres", Tables())
    return Home(url, db, store, Settings(), SYSTEM_CLOCK, Observers(), JSON_CODEC, lambda: None)


_together: Barrier | None = None  # of the consumers, each in a process of its own


def _meet(barrier: Barrier) -> None:
    global _together
    _together = barrier


def consume(url: str, topic: str, name: str) -> Times:
    """Poll and commit until there is no more, from when all consumers are ready."""
    times, db = Times(), open_sync(url, size=1)
    with Consumer(home(url, db), topic, "g", name) as consumer:
        consumer.heartbeat()
        assert _together is not None
        _together.wait(timeout=60)
        while batch := times.timed("poll", lambda: consumer.poll(POLLED)):
            times.timed("commit", partial(consumer.commit, batch))
    db.close()
    return times


class Bench:
    def __init__(self, url: str) -> None:
        self.url = url
        self.store = open_topic_store("postgres", Tables())
        self.db = open_sync(url)
        self.db.run(self.store.migrate())
        self.topics = 0

    def fill(self, rows: int, *, ordered: bool) -> TopicRow:
        """A topic of its own with a group that has read nothing."""
        self.topics += 1
        topic = Topic(name=f"t{self.topics}", semantics="pub_sub", tracking="offset")
        row = self.db.run(self.store.configure(topic, None))
        options = GroupOptions(ordered=ordered)
        GroupAdmin(home(self.url, self.db)).create(topic.name, "g", StartFrom.earliest_unlimited(), options=options)
        for start in range(0, rows, 10_000):
            events = [Event("Happened", {"n": n}, key=f"k{n % KEYS}") for n in range(start, min(rows, start + 10_000))]
            self.db.run(self.store.write(row, events, None, copy=True))
        return row

    def drain(self, topic: TopicRow, consumers: int) -> Times:
        spawn, times = get_context("spawn"), Times()
        together = spawn.Barrier(consumers)
        with ProcessPoolExecutor(consumers, spawn, initializer=_meet, initargs=(together,)) as pool:
            work = [pool.submit(consume, self.url, topic.topic.name, f"c{n}") for n in range(consumers)]
            for one in work:
                times.add(one.result())
        return times

    def lag(self, topic: TopicRow) -> Times:
        times = Times()
        with Consumer(home(self.url, self.db), topic.topic.name, "g", "c") as consumer:
            for _ in range(LAG_ROUNDS):
                assert times.timed("lag", consumer.lag).events > 0
        return times


class PullSystem:
    name = "relaybox"
    language = "Python"
    version = relaybox.__version__
    workloads = ("poll_p95", "commit_10_p95", "lag_p95")

    def install(self) -> None: ...

    def poll_p95(self, database: Database, sizes: Sizes) -> Sample:
        return self._worse(database, "poll", lambda bench, filled: bench.drain(filled, 1), sizes.claim_rows)

    def commit_10_p95(self, database: Database, sizes: Sizes) -> Sample:
        return self._worse(database, "commit", lambda bench, filled: bench.drain(filled, CONSUMERS), sizes.claim_rows)

    def lag_p95(self, database: Database, sizes: Sizes) -> Sample:
        return self._worse(database, "lag", Bench.lag, sizes.backlog)

    def _worse(self, database: Database, call: str, run: Callable[[Bench, TopicRow], Times], rows: int) -> Sample:
        bench = Bench(database.url)
        took = {ordered: run(bench, bench.fill(rows, ordered=ordered)).of[call] for ordered in (True, False)}
        bench.db.close()
        p95 = {ordered: statistics.quantiles(times, n=20)[18] for ordered, times in took.items()}
        extra = {
            "p50_ms": round(statistics.median(took[True] + took[False]), 3),
            "p95_ms": {"ordered": round(p95[True], 3), "unordered": round(p95[False], 3)},
            "calls": len(took[True]) + len(took[False]),
            "rows": rows,
        }
        return Sample(max(p95.values()), extra, {"driver": "psycopg", "polled": POLLED}, self.version)
