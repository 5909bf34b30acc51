"""python -m benchmarks.bitmap: completion marks, acks per second, by the number of groups.

Every group acknowledges every event, in batches, from a few connections at once; the last ack of an event completes it.
Also the WAL that an ack writes, and the share of acks that stayed on their page (HOT), which no index has to learn of.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from collections.abc import Sequence

from benchmarks.postgres import FreshDatabase
from relaybox import Event
from relaybox.drivers import Database, open_sync
from relaybox.op import Op, Query
from relaybox.store.names import Tables
from relaybox.store.topics import GroupOptions, GroupRow, Start, TopicRow, TopicStore, open_topic_store
from relaybox.testing.servers import PostgresServer
from relaybox.topic import Topic, Tracking

ACKS = 800_000
BATCH = 1_000
GOAL = 100_000


def open_store(url: str) -> tuple[Database, TopicStore]:
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
    rows(db, "CHECKPOINT")
    db.close()
    return topic, found, seqs


def rows(db: Database, text: str) -> Sequence[tuple[int, ...]]:
    def op() -> Op[Sequence[tuple[int, ...]]]:
        return (yield Query("bench", text, "rows" if text.startswith("SELECT") else "count").bind()).rows

    return db.run(op(), tx=False)


def acknowledge(url: str, topic: TopicRow, groups: list[GroupRow], seqs: list[int]) -> int:
    """How many events these acks completed."""
    db, store = open_store(url)
    done = 0
    for start in range(0, len(seqs), BATCH):
        for group in groups:
            done += db.run(store.complete(topic, group, seqs[start : start + BATCH], None))
    db.close()
    return done


def measure(server: PostgresServer, tracking: Tracking, groups: int, processes: int) -> str:
    url = server.create_database()
    events = max(BATCH, ACKS // groups)
    topic, found, seqs = prepare(url, tracking, groups, events)
    database = FreshDatabase(url)
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        pool.map(time.sleep, [0.01] * processes)
        wal, started = database.wal_position(), time.perf_counter()
        parts = [found[n::processes] for n in range(processes) if found[n::processes]]
        done = sum(pool.starmap(acknowledge, [(url, topic, part, seqs) for part in parts]))
        took = time.perf_counter() - started
        wal = database.wal_position() - wal
    assert done == events, f"{done} of {events} events are complete"
    rate = groups * events / took
    db, _ = open_store(url)
    time.sleep(1)  # statistics are sent once a second
    ((updates, hot),) = rows(
        db, f"SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'outbox_event_mark_{topic.id}'"
    )
    db.close()
    share = f"{100 * hot / updates:.0f} %" if updates else "-"
    return f"{tracking:8} {groups:>6} {rate:>12,.0f} {wal / groups / events:>10.0f} {share:>6}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[2] if __doc__ else None)
    parser.add_argument("--groups", default="1,4,16,64")
    parser.add_argument("--acks", default="100", help="groups of the ack-table variant; empty for none")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    print(f"{'tracking':8} {'groups':>6} {'acks/s':>12} {'WAL/ack':>10} {'HOT':>6}   (goal: {GOAL:,} with 16 groups)")
    with PostgresServer.from_wheel(settings={"shared_buffers": "256MB", "max_wal_size": "4GB"}) as server:
        for number in options.groups.split(","):
            print(measure(server, "bitmap", int(number), options.processes), flush=True)
        for number in filter(None, options.acks.split(",")):
            print(measure(server, "acks", int(number), options.processes), flush=True)


if __name__ == "__main__":
    main()
