"""Completion marks: every group acknowledges every event, in batches, from two processes at once. In acks per second.

The last ack of an event completes it. Beside it the WAL that an ack writes, and the share of acks that stayed on their
page (HOT), of which no index has to learn.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Sequence
from functools import partial

import psycopg

import relaybox
from benchmarks.cpu import Sides, postmaster
from benchmarks.spi import Database, Sample, Sizes
from relaybox import Event
from relaybox.drivers import Database as OurDatabase
from relaybox.drivers import open_sync
from relaybox.store.names import Tables
from relaybox.store.topics import GroupOptions, GroupRow, Start, TopicRow, open_topic_store
from relaybox.store.topics.store import TopicStore
from relaybox.topic import Topic, Tracking

BATCH = 1_000
PROCESSES = 2
CASES: dict[str, tuple[Tracking, int]] = {
    **{f"acks_{groups}": ("bitmap", groups) for groups in (1, 4, 16, 64)},
    "acks_table_100": ("acks", 100),
}


def open_store(url: str) -> tuple[OurDatabase, TopicStore]:
    return open_sync(url), open_topic_store("postgres", Tables())


def prepare(url: str, tracking: Tracking, groups: int, events: int) -> tuple[TopicRow, list[GroupRow], list[int]]:
    db, store = open_store(url)
    db.run(store.migrate())
    topic = db.run(store.configure(Topic(name="bench", semantics="pub_sub", tracking=tracking), None))
    found = [db.run(store.subscribe(topic, f"g{n}", Start(), GroupOptions(), None))[0] for n in range(groups)]
    seqs: list[int] = []
    for start in range(0, events, 5_000):
        batch = [Event("Happened", {"n": n}) for n in range(min(5_000, events - start))]
        written = db.run(store.write(topic, batch, None, copy=True))
        assert written is not None
        seqs += written
    db.close()
    return topic, found, seqs


def acknowledge(url: str, topic: TopicRow, groups: Sequence[GroupRow], seqs: Sequence[int]) -> int:
    """How many events these acks completed."""
    db, store = open_store(url)
    done = 0
    for start in range(0, len(seqs), BATCH):
        for group in groups:
            done += db.run(store.complete(topic, group, seqs[start : start + BATCH], None))
    db.close()
    return done


def warm_up(number: int) -> None:
    """Each process takes one, and has imported this module then."""
    time.sleep(0.2)


class AckSystem:
    name = "relaybox"
    language = "Python"
    version = relaybox.__version__
    workloads = tuple(CASES)

    def install(self) -> None: ...

    def __getattr__(self, workload: str) -> Callable[[Database, Sizes], Sample]:
        if workload not in CASES:
            raise AttributeError(workload)
        return partial(self._measured, *CASES[workload])

    def _measured(self, tracking: Tracking, groups: int, database: Database, sizes: Sizes) -> Sample:
        events = min(max(BATCH, sizes.acks // groups), sizes.acks // 8)  # few groups need no more
        topic, found, seqs = prepare(database.url, tracking, groups, events)
        database.analyze()
        database.checkpoint()
        parts = [found[n::PROCESSES] for n in range(PROCESSES) if found[n::PROCESSES]]
        with multiprocessing.get_context("spawn").Pool(PROCESSES) as pool:
            pool.map(warm_up, range(PROCESSES), chunksize=1)
            wal, sides = database.wal_position(), Sides({"PostgreSQL": [postmaster(database.url)]})
            started = time.perf_counter()
            done = sum(pool.starmap(acknowledge, [(database.url, topic, part, seqs) for part in parts]))
            took = time.perf_counter() - started
            wal, used = database.wal_position() - wal, sides.per_event(groups * events)
        assert done == events, f"{done} of {events} events are complete"
        extra = {
            "groups": groups,
            "acks": groups * events,
            "wal_per_ack": round(wal / groups / events, 1),
            "hot": hot_share(database.url, topic.id),
            "cpu_us": used,
        }
        settings = {"driver": "psycopg", "tracking": tracking, "processes": len(parts), "batch": BATCH}
        return Sample(groups * events / took, extra, settings, relaybox.__version__)


def hot_share(url: str, topic_id: int) -> float | None:
    """Of the updates of marks; None where acks are rows."""
    time.sleep(1)  # a backend sends its statistics once a second
    with psycopg.connect(url) as connection:
        found = connection.execute(
            "SELECT n_tup_hot_upd::float / nullif(n_tup_upd, 0) FROM pg_stat_user_tables WHERE relname = %s",
            (f"outbox_event_mark_{topic_id}",),
        ).fetchone()
    return round(found[0], 3) if found and found[0] is not None else None
