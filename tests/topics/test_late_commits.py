"""Events whose transactions commit late, in any order, are read once and in order: the log reader's promise."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from relaybox.drivers.psycopg import PsycopgConnection
from relaybox.op import Query, run
from relaybox.store.topics import Start
from relaybox.testing.servers import require
from relaybox.testing.servers.postgres import PostgresServer

from .kit import World, happened, numbers

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

from chaos.late_commits import Trial, server


@pytest.fixture
def world() -> Iterator[World]:
    with World() as world:
        yield world


def test_writers_in_any_order() -> None:
    """The trial in short; `python -m chaos.late_commits` is the long one."""
    require("postgres-wheel", durable=False)
    with server() as (url, other):
        report = Trial(url, other, events=60_000).run()
    assert report["verdict"] == "PASS", report


@pytest.mark.parametrize("forgotten", ["'{}'", "ARRAY(SELECT pg_snapshot_xip(n.snapshot))"])
def test_the_trial_finds_what_a_tick_forgets(forgotten: str) -> None:
    """Without those under way, and with those only that a snapshot lists, events are lost; and it is seen."""
    require("postgres-wheel", durable=False)
    with server() as (url, other):
        trial = Trial(url, other, events=20_000)
        queries = trial.store.log(trial.topic.id)  # type: ignore[attr-defined]
        text = queries["topic.tick.make"].text
        start, end = text.index("ARRAY("), text.index("n.floor, s.last")
        queries["topic.tick.make"] = Query("topic.tick.make", f"{text[:start]}{forgotten}, {text[end:]}", "rows")
        report = trial.run()
    assert report["verdict"] == "FAIL", report
    assert report["ordered"]["lost"], report


def test_an_open_transaction_delays_only_its_own_events(world: World) -> None:
    group = world.group()
    member = world.member(group)
    with psycopg.connect(world.url) as slow, psycopg.connect(world.url) as other:
        late = world.write(*(happened(n) for n in range(5)), on=slow)
        for n in range(3):
            soon = world.write(happened(n), on=other)
            other.commit()
            assert world.drain(group, member) == soon
        assert world.drain(group, member) == []
        slow.commit()
    assert sorted(world.drain(group, member)) == late


def test_two_that_got_their_ids_early_keep_the_order_of_a_key(world: World) -> None:
    """The first id writes last: by (xid, seq) it would come first."""
    group = world.group()
    member = world.member(group)
    with psycopg.connect(world.url) as first, psycopg.connect(world.url) as second:
        for connection in (first, second):
            connection.execute("SELECT pg_current_xact_id()")
        world.tick(force=True)
        cause = world.write(happened(1, "k"), on=second)
        second.commit()
        effect = world.write(happened(2, "k"), on=first)
        first.commit()
    assert world.drain(group, member) == cause + effect
    again = world.group("again")
    assert world.drain(again, world.member(again)) == cause + effect


def test_a_prepared_transaction_is_read_when_it_is_committed() -> None:
    require("postgres-wheel", durable=False)
    with server() as (url, _), World(url) as world:
        group = world.group()
        member = world.member(group)
        with psycopg.connect(url) as connection:
            kept = world.write(happened(1), on=connection)
            connection.execute("PREPARE TRANSACTION 'kept'")
            connection.rollback()
            world.write(happened(2), on=connection)
            connection.execute("PREPARE TRANSACTION 'dropped'")
            connection.rollback()
        between = world.write(happened(3))
        assert world.drain(group, member) == between
        world.rows("ROLLBACK PREPARED 'dropped'")
        world.rows("COMMIT PREPARED 'kept'")
        assert world.drain(group, member) == kept


def test_savepoints_that_were_rolled_back_are_not_read(world: World) -> None:
    group = world.group()
    member = world.member(group)
    with psycopg.connect(world.url) as connection:
        kept = world.write(happened(1), on=connection)
        for n in range(2_000):  # more than a snapshot lists
            connection.execute("SAVEPOINT s")
            inner = world.write(happened(n), on=connection)
            if n % 100:
                connection.execute("ROLLBACK TO SAVEPOINT s")
            else:
                connection.execute("RELEASE SAVEPOINT s")
                kept += inner
            if n == 1_000:
                world.tick(force=True)
        soon = world.write(happened(0))
        assert world.drain(group, member) == soon
        connection.commit()
    assert sorted(world.drain(group, member)) == kept


def _late_ids(world: World) -> int:
    return int(world.one("SELECT coalesce(max(cardinality(late)), 0) FROM outbox_event_tick"))


def test_a_tick_while_thousands_of_ids_are_open(world: World) -> None:
    """Ids of subtransactions between the newest that ended and the tick's own: all may be under way."""
    group = world.group()
    member = world.member(group)
    world.write(happened(0))
    world.drain(group, member)
    with psycopg.connect(world.url) as connection:
        late = world.write(happened(1), on=connection)
        connection.execute("CREATE TEMP TABLE x (n int)")
        while _late_ids(world) <= 4_000:  # fewer, where the server's own housekeeping ended a transaction meanwhile
            connection.execute(
                "DO $$ BEGIN FOR n IN 1..5000 LOOP "
                "BEGIN INSERT INTO x VALUES (n); EXCEPTION WHEN others THEN NULL; END; END LOOP; END $$"
            )
            world.tick(force=True)
        soon = world.write(happened(2))
        began = time.perf_counter()
        assert world.drain(group, member) == soon
        assert time.perf_counter() - began < 5
        connection.commit()
    assert world.drain(group, member) == late


@pytest.mark.parametrize("has_id", [False, True])
def test_a_tick_in_a_transaction_that_has_an_id_already(world: World, has_id: bool) -> None:
    """A writer may have drawn its number between that id and the tick: it must not lie below the tick's floor."""
    first = world.group("first")
    reader = world.member(first)
    world.write(happened(0))
    world.drain(first, reader)
    with psycopg.connect(world.url) as ticking, psycopg.connect(world.url) as writer:
        if has_id:
            ticking.execute("SELECT pg_current_xact_id()")
        seqs = world.write(happened(1), on=writer)
        op: Any = world.store.tick(world.topic, None, wait=True, force=True)
        run(op, PsycopgConnection(ticking))
        ticking.commit()
        taken = world.claim(first, reader)
        world.finish(first, taken)
        assert not numbers(taken.pages)
        writer.commit()
    assert world.drain(first, reader) == seqs


def test_a_large_transaction_is_read_in_pages(world: World) -> None:
    """Ten times the events take about ten times as long, also where they were late."""

    def seconds(count: int) -> float:
        group = world.group(f"g{count}", Start("latest"))
        member = world.member(group)
        with psycopg.connect(world.url) as connection:
            for _ in range(count // 500):
                world.write(*(happened(n, "one") for n in range(500)), on=connection)
            world.write(happened(0))
            world.drain(group, member)
            connection.commit()
        for n in range(20):
            world.write(happened(n, "one"))
        began = time.perf_counter()
        assert len(world.drain(group, member, events=100)) == count + 20
        return time.perf_counter() - began

    seconds(500)
    small, large = seconds(2_000), seconds(20_000)
    assert large < 25 * small, f"2,000 took {small:.2f} s, 20,000 took {large:.2f} s"


def test_ids_above_the_snapshot_are_not_lost_while_ticks_are_made(world: World) -> None:
    """Many short transactions and many ticks at once: what the first attempt of this design lost 7 % of."""
    group = world.group()
    member = world.member(group)
    written: list[int] = []
    stop = threading.Event()

    def write() -> None:
        with psycopg.connect(world.url) as connection:
            while not stop.is_set():
                seqs = world.write(happened(0), on=connection)
                connection.commit()
                written.extend(seqs)

    writers = [threading.Thread(target=write) for _ in range(4)]
    for thread in writers:
        thread.start()
    seen: list[int] = []
    until = time.monotonic() + 3
    while time.monotonic() < until:
        world.tick(force=True)
        taken = world.take(group, member)
        world.finish(group, taken)
        seen += numbers(taken.pages)
    stop.set()
    for thread in writers:
        thread.join()
    seen += world.drain(group, member)
    assert sorted(seen) == sorted(written)


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_server_restart_loses_and_repeats_nothing_settled(mode: Any) -> None:
    """A crash may forget the last claims and ticks; then what they took comes again."""
    require("postgres-wheel", durable=False)
    with PostgresServer.from_wheel() as postgres, World(postgres.create_database()) as world:
        group = world.group()
        member = world.member(group)
        settled: list[int] = []
        written = world.write_many(50)
        taken = world.take(group, member, events=5)
        assert world.finish(group, taken) == 0
        settled += numbers(taken.pages)
        written += world.write_many(50)
        under_way = world.take(group, member, events=5)
        postgres.restart(mode)
        world.db.close()
        world = World(world.url)
        again = world.write_many(50)
        lost = world.finish(group, under_way)
        if not lost:
            settled += numbers(under_way.pages)
        settled += world.drain(group, member)
        assert sorted(settled) == sorted(written + again)
        world.db.close()
