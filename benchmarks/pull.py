"""python -m benchmarks.pull: what a pull consumer waits for: a poll, a commit, the lag.

10,000 rows are polled and committed in hundreds by one consumer, then by ten at once; the lag is asked for with 100,000
rows unread. p50 and p95, ordered and unordered. Expected: poll p95 < 5 ms, commit p95 < 10 ms with ten consumers, lag
p95 < 50 ms.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from relaybox import Event, Settings
from relaybox.clock import SYSTEM_CLOCK
from relaybox.codec import JSON_CODEC
from relaybox.drivers import Database, open_sync
from relaybox.lifecycle import Observers
from relaybox.store import Tables
from relaybox.store.topics import GroupOptions, TopicRow, open_topic_store
from relaybox.testing.servers import PostgresServer
from relaybox.topic import Topic
from relaybox.topics.admin import GroupAdmin
from relaybox.topics.consumer import Consumer
from relaybox.topics.home import Home
from relaybox.topics.start import StartFrom

ROWS, LAGGING, KEYS, POLLED, CONSUMERS = 10_000, 100_000, 1_000, 100, 10
LIMITS = {"poll": 5.0, "commit": 10.0, "lag": 50.0}


@dataclass
class Times:
    """Milliseconds of each call, by what was called."""

    of: dict[str, list[float]] = field(default_factory=lambda: {"poll": [], "commit": [], "lag": []})

    def timed(self, name: str, call: Callable[[], Any]) -> Any:
        started = time.perf_counter()
        result = call()
        self.of[name].append((time.perf_counter() - started) * 1000)
        return result


class Bench:
    def __init__(self, url: str) -> None:
        self.url = url
        self.store = open_topic_store("postgres", Tables())
        self.db = open_sync(url)
        self.db.run(self.store.migrate())
        self.topics = 0

    def home(self, db: Database) -> Home[Any]:
        return Home(self.url, db, self.store, Settings(), SYSTEM_CLOCK, Observers(), JSON_CODEC, lambda: None)

    def fill(self, rows: int, *, ordered: bool) -> TopicRow:
        """A topic of its own with a group that has read nothing."""
        self.topics += 1
        topic = Topic(name=f"t{self.topics}", semantics="pub_sub", tracking="offset")
        row = self.db.run(self.store.configure(topic, None))
        options = GroupOptions(ordered=ordered)
        GroupAdmin(self.home(self.db)).create(topic.name, "g", StartFrom.earliest_unlimited(), options=options)
        for start in range(0, rows, 10_000):
            events = [Event("Happened", {"n": n}, key=f"k{n % KEYS}") for n in range(start, min(rows, start + 10_000))]
            self.db.run(self.store.write(row, events, None, copy=True))
        return row

    def drain(self, topic: TopicRow, consumers: int) -> Times:
        times = Times()
        threads = [threading.Thread(target=self._work, args=(topic, f"c{n}", times)) for n in range(consumers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return times

    def _work(self, topic: TopicRow, name: str, times: Times) -> None:
        db = open_sync(self.url, size=1)
        with Consumer(self.home(db), topic.topic.name, "g", name) as consumer:
            consumer.heartbeat()
            while batch := times.timed("poll", lambda: consumer.poll(POLLED)):
                times.timed("commit", partial(consumer.commit, batch))
        db.close()

    def lag(self, topic: TopicRow, rounds: int = 50) -> Times:
        times = Times()
        with Consumer(self.home(self.db), topic.topic.name, "g", "c") as consumer:
            for _ in range(rounds):
                assert times.timed("lag", consumer.lag).events > 0
        return times


def show(group: str, consumers: int, times: Times, names: Sequence[str]) -> None:
    for name in names:
        took = times.of[name]
        p50, p95 = statistics.median(took), statistics.quantiles(took, n=20)[18]
        verdict = "ok" if p95 < LIMITS[name] else f"over {LIMITS[name]:.0f}"
        print(f"{group:10} {consumers:>9} {name:7} {len(took):>6} {p50:>7.2f} {p95:>7.2f}  {verdict}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[2] if __doc__ else None)
    parser.parse_args()
    with PostgresServer.from_wheel(settings={"shared_buffers": "256MB"}) as server:
        bench = Bench(server.create_database())
        print(f"{'group':10} {'consumers':>9} {'call':7} {'calls':>6} {'p50 ms':>7} {'p95 ms':>7}")
        for ordered in (True, False):
            group = "ordered" if ordered else "unordered"
            for consumers in (1, CONSUMERS):
                show(group, consumers, bench.drain(bench.fill(ROWS, ordered=ordered), consumers), ("poll", "commit"))
            show(group, 1, bench.lag(bench.fill(LAGGING, ordered=ordered)), ("lag",))


if __name__ == "__main__":
    main()
