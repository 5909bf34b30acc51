"""Moving a queue between rows and a log: what waits is moved, once, in order; writers go on."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest

import relaybox.store.topics.queue_moves as moves
from kit import wait_until
from relaybox import Event, Outbox
from relaybox.clock import utc_now
from relaybox.drivers.psycopg import PsycopgConnection
from relaybox.drivers.script import play
from relaybox.errors import StoreBusy
from relaybox.ids import key_hash, new_token
from relaybox.op import run
from relaybox.store.claims import Claim, Death, HeldRow, RetryRow
from relaybox.store.outbox.postgres import PostgresStore
from relaybox.store.outbox.values import ClaimedRow, Settlement
from relaybox.store.topics import Parking, RangeSettlement, Start
from relaybox.topic import Tracking
from relaybox.topics.move import move

from .world import TTL, World

Make = Callable[..., World]


@pytest.fixture(autouse=True)
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moves, "WINDOW", 7)


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[World] = []

    def one(tracking: Tracking) -> World:
        made.append(World(tracking, semantics="queue"))
        return made[-1]

    yield one
    for world in made:
        world.close()


def rows_of(world: World) -> PostgresStore:
    return PostgresStore(world.store.tables.queue(world.topic.id))


def events(count: int, **options: Any) -> list[Event]:
    return [Event("Happened", {"n": n}, key=f"k{n % 5}", **options) for n in range(count)]


def claim_rows(world: World, limit: int) -> tuple[int, list[ClaimedRow]]:
    """By an instance that is alive."""
    (owner,) = world.sql(
        "INSERT INTO outbox_event_queue_1_instance (name, role, started_at, expires_at) "
        "VALUES ('test', 'node', now(), now() + interval '1 hour') RETURNING id"
    )[0]
    token = new_token()
    return token, world.run(rows_of(world).claim(Claim(owner, token, TTL), limit, None))


def drain_rows(world: World) -> list[ClaimedRow]:
    found: list[ClaimedRow] = []
    while True:
        token, claimed = claim_rows(world, 100)
        if not claimed:
            return found
        found += claimed
        done = [HeldRow(one.row[0], token) for one in claimed]
        assert world.run(rows_of(world).settle(Settlement(done), None)) == 0


def letters(world: World) -> list[tuple[Any, ...]]:
    return world.sql("SELECT seq, state, attempts, last_error, due > now() FROM outbox_event_parked ORDER BY seq")


def test_rows_to_a_log(make: Make) -> None:
    """Waiting, delayed, tried and dead ones, each as it was; what is claimed is waited for."""
    world = make("rows")
    store = rows_of(world)
    first = world.run(store.write(events(30), None, None))
    token, (done, tried, dead, held) = claim_rows(world, 4)
    settlement = Settlement(
        [HeldRow(done.row[0], token)],
        [RetryRow(tried.row[0], token, timedelta(hours=1), "again")],
        [Death(dead.row[0], token, "never")],
    )
    world.run(store.settle(settlement, None))
    later = world.run(store.write(events(2, deliver_at=utc_now() + timedelta(hours=1)), None, None))

    settled: list[str] = []

    def progress(moving: dict[str, Any]) -> None:
        if moving.get("waits") and not settled:
            world.run(store.settle(Settlement([HeldRow(held.row[0], token)]), None))
            settled.append(moving["phase"])

    play(move(world.context, world.name, "offset", progress), world.db)
    assert settled == ["drain_rows"]
    assert (world.topic.topic.tracking, world.topic.moving) == ("offset", None)
    more = world.write(3)
    assert min(more) > max(later)
    gone = {one.row[0] for one in (done, tried, dead, held)}
    got = world.drain("default")
    assert sorted(got) == [seq for seq in first if seq not in gone] + more
    assert letters(world) == [
        (tried.row[0], "retry", 1, "again", True),
        (dead.row[0], "dead", 1, "never", False),
        *((seq, "retry", 0, None, True) for seq in later),
    ]
    assert world.sql("SELECT to_regclass('outbox_event_queue_1')") == [(None,)]


def test_a_log_to_rows(make: Make) -> None:
    """Read, held, parked, dead and unread ones, each as it was."""
    world = make("offset")
    seqs = world.write(40)
    world.join("default", "earliest")
    world.tick()
    handled = world.claim("default", events=3, ranges=2)
    world.settle("default", handled)
    left = world.claim("default", events=2, ranges=2)  # its member is gone for good
    taken = world.claim("default", events=2, ranges=1)
    (held, page), *_ = taken.pages
    parkings = [
        (held.token, parking(held.place.shard, row, state)) for row, state in zip(page, ("retry", "dead"), strict=True)
    ]
    finished = [(held, [row[0] for row in page])]
    known = [range.token for range, _ in left.pages]
    settlement = RangeSettlement(finished=finished, parkings=parkings, known=known)
    world.run(world.store.settle(world.topic, world.group("default"), settlement, None))
    world.sql("UPDATE outbox_event_range SET until = now()")
    play(move(world.context, world.name, "rows"), world.db)
    assert (world.topic.topic.tracking, world.topic.moving) == ("rows", None)
    more = world.run(rows_of(world).write(events(3), None, None))
    assert min(more) > max(seqs)
    found = drain_rows(world)
    again = {one.row[0]: one.attempts for one in found}
    retried, dead = (row[0] for row in page)
    assert {row[0] for _, rows in left.pages for row in rows} <= set(again)
    gone = {row[0] for _, rows in handled.pages for row in rows} | {dead}
    assert sorted(again) == sorted((set(seqs) - gone) | set(more))
    assert len(found) == len(again)
    assert again[retried] == 5
    assert world.sql("SELECT seq, attempts, last_error FROM outbox_event_queue_1_dead") == [(dead, 4, "no")]
    assert world.sql("SELECT to_regclass('outbox_event_log_1'), (SELECT count(*) FROM outbox_event_tick)") == [
        (None, 0)
    ]


def parking(shard: int, row: Any, state: Any) -> Parking:
    event = Event.stored(row[:12])
    return Parking(event, shard, key_hash(event.key or event.id), state, 4, timedelta(), "no")


@pytest.mark.parametrize(("was", "to"), [("rows", "offset"), ("offset", "rows")])
def test_writers_go_on(make: Make, was: Tracking, to: Tracking) -> None:
    """Nothing lost, nothing doubled, and each key in the order it was written."""
    world = make(was)
    box = Outbox(world.url)
    box.migrate()
    stop = threading.Event()
    written: dict[str, list[str]] = {f"k{n}": [] for n in range(3)}

    def writer(key: str) -> None:
        while not stop.is_set():
            event = Event("Happened", {}, key=key, topic=world.name)
            try:
                with box.transaction() as tx:
                    box.write(tx, event)
            except StoreBusy:
                continue
            written[key].append(event.id)

    threads = [threading.Thread(target=writer, args=(key,)) for key in written]
    for thread in threads:
        thread.start()
    try:
        wait_until(lambda: min(map(len, written.values())) > 30)
        play(move(world.context, world.name, to, ordered=True), world.db)
        moved = {key: len(ids) for key, ids in written.items()}
        wait_until(lambda: all(len(ids) > moved[key] + 10 for key, ids in written.items()))
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        box.close()
    if to == "rows":
        found = [(one.row[0], one.row[1], one.row[4]) for one in drain_rows(world)]
    else:
        found = []
        world.tick()
        while pages := (taken := world.claim("default", events=50)).pages:
            found += [(row[0], row[1], row[4]) for _, rows in pages for row in rows]
            world.settle("default", taken)
    assert Counter(event for _, event, _ in found) == Counter(event for ids in written.values() for event in ids)
    for key, ids in written.items():
        assert [event for _, event, of in sorted(found) if of == key] == ids


KILLED = """
import sys
sys.path[:0] = sys.argv[3:]
import relaybox.store.topics.queue_moves as moves
from relaybox.topics.move import move
from relaybox.drivers.script import play
from topics.world import World
moves.WINDOW = 3
world = World("offset", url=sys.argv[1])
play(move(world.context, "orders", sys.argv[2], lambda moving: print(moving["phase"], flush=True)), world.db)
"""


@pytest.mark.parametrize(("was", "to"), [("rows", "offset"), ("offset", "rows")])
def test_killed_at_any_point(make: Make, was: Tracking, to: Tracking) -> None:
    world = make(was)
    if was == "rows":
        seqs = world.run(rows_of(world).write(events(40), None, None))
    else:
        seqs = world.write(40)
        world.join("default", "earliest")
    chance, kills = random.Random(5), 0
    while world.topic.topic.tracking != to or world.topic.moving is not None:
        command = [sys.executable, "-c", KILLED, world.url, to, *sys.path]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as mover:
            assert mover.stdout is not None
            for _ in range(chance.randint(1, 6)):
                mover.stdout.readline()
            os.kill(mover.pid, signal.SIGKILL)
        kills += 1
        assert kills < 40
    assert kills >= 2
    got = [one.row[0] for one in drain_rows(world)] if to == "rows" else world.drain("default")
    assert sorted(got) == seqs


@pytest.mark.parametrize(("was", "to"), [("rows", "offset"), ("offset", "rows")])
def test_rolled_back(make: Make, was: Tracking, to: Tracking) -> None:
    world = make(was)
    if was == "rows":
        seqs = world.run(rows_of(world).write(events(10), None, None))
    else:
        seqs = world.write(10)
        world.run(world.store.subscribe(world.topic, "default", Start("earliest"), None, None))
    world.run(world.store.begin_move(world.name, to, None))
    world.run(world.store.move_step(world.name, None))
    assert world.run(world.store.cancel_move(world.name, None))
    assert (world.topic.topic.tracking, world.topic.moving) == (was, None)
    got = [one.row[0] for one in drain_rows(world)] if was == "rows" else world.drain("default")
    assert sorted(got) == seqs
    if was == "rows":
        play(move(world.context, world.name, to), world.db)
        assert world.topic.topic.tracking == to


def test_a_writer_with_an_old_view_does_not_write_to_rows_that_are_given_up(make: Make) -> None:
    """REPEATABLE READ: it sees the version of before for as long as it lives. Its events would get numbers that the log
    has given to others."""
    world = make("rows")
    seqs = world.run(rows_of(world).write(events(3), None, None))
    old = world.topic
    with psycopg.connect(world.url) as slow:
        slow.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        slow.execute("SELECT 1")
        world.run(world.store.begin_move(world.name, "offset", None))
        while (moving := world.run(world.store.move_step(world.name, None))) is not None:
            if moving["phase"] == "drain_rows":
                break
        seqs += world.write(2)
        write: Any = world.store.write(old, events(2), None)
        with pytest.raises(StoreBusy, match="the queue was moved while this transaction was open"):
            run(write, PsycopgConnection(slow))
    while world.run(world.store.move_step(world.name, None)) is not None:
        pass
    assert sorted(world.drain("default")) == seqs
