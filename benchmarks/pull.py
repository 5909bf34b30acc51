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
from relaybox import Event, Outbox, StartFrom
from relaybox.drivers import open_sync
from relaybox.store.names import Tables
from relaybox.store.topics import TopicRow, open_topic_store
from relaybox.topic import Topic

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


_together: Barrier | None = None  # of the consumers, each in a process of its own


def _meet(barrier: Barrier) -> None:
    global _together
    _together = barrier


def consume(url: str, topic: str, name: str) -> Times:
    """Poll and commit until there is no more, from when all consumers are ready."""
    times = Times()
    with Outbox(url) as box, box.topics.group(topic, "g").consumer(name) as consumer:
        consumer.release(consumer.poll(1))  # joins
        assert _together is not None
        _together.wait(timeout=60)
        while batch := times.timed("poll", lambda: consumer.poll(POLLED)):
            times.timed("commit", partial(consumer.commit, batch))
    return times


class Bench:
    def __init__(self, url: str) -> None:
        self.url = url
        self.store = open_topic_store("postgres", Tables())
        self.db = open_sync(url)
        self.box = Outbox(url)
        self.box.migrate()
        self.topics = 0

    def fill(self, rows: int, *, ordered: bool) -> TopicRow:
        """A topic of its own with a group that has read nothing."""
        self.topics += 1
        topic = Topic(name=f"t{self.topics}", semantics="pub_sub", tracking="offset")
        row = self.db.run(self.store.configure(topic, None))
        self.box.topics.group(topic.name, "g", start=StartFrom.earliest(), ordered=ordered).create()
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
        times, group = Times(), self.box.topics.group(topic.topic.name, "g")
        for _ in range(LAG_ROUNDS):
            assert times.timed("lag", group.lag).events > 0
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
        bench.box.close()
        p95 = {ordered: statistics.quantiles(times, n=20)[18] for ordered, times in took.items()}
        extra = {
            "p50_ms": round(statistics.median(took[True] + took[False]), 3),
            "p95_ms": {"ordered": round(p95[True], 3), "unordered": round(p95[False], 3)},
            "calls": len(took[True]) + len(took[False]),
            "rows": rows,
        }
        return Sample(max(p95.values()), extra, {"driver": "psycopg", "polled": POLLED}, self.version)
