"""The hot queries read indexes in order and sort nothing, with the plans that long sessions keep."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from relaybox.drivers.postgres_sessions import OUR_SESSIONS
from relaybox.op import Statement
from relaybox.store.topics import LAST, GroupRow

from .kit import World, happened

EVENTS = 20_000


@pytest.fixture(scope="module", params=[(0, 1), (8, 1), (0, 4)], ids=["one table", "8 partitions", "spread over 4"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    days, spread = request.param
    with World(options={"spread": spread}) as world:
        for day in range(days):
            world.rows(
                f"CREATE TABLE {world.log}_p{day} PARTITION OF {world.log} "
                f"FOR VALUES FROM ('2026-01-{1 + day:02d}') TO ('2026-01-{2 + day:02d}')"
            )
        world.rows(
            f"""INSERT INTO {world.log} (seq, shard, event_id, event_type, payload, occurred_at, created_at)
                SELECT nextval('{world.log}_seq'), n % 4, n, 'T', 'x', now(),
                       timestamptz '2026-01-01' + n * interval '8 days' / {EVENTS + 1}
                FROM generate_series(1, {EVENTS}) AS n"""
        )
        for _ in range(300):
            world.tick(force=True)
        yield world


def plan(world: World, statement: Statement) -> str:
    """As a prepared statement is run in a session of ours, with what it really did."""
    text, params = statement.positional("dollar")
    with psycopg.connect(world.url, autocommit=True, prepare_threshold=None) as connection:
        for name, value in OUR_SESSIONS.items():
            connection.execute(f"SET {name} = '{value}'")
        connection.execute(f"PREPARE q AS {text}")
        run = f"EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, BUFFERS) EXECUTE q({', '.join(map(literal, params))})"
        found = "\n".join(row[0] for row in connection.execute(run))
    return re.sub(r"(rows=\d+)\.00", r"\1", found)  # from PostgreSQL 18 on with decimals


def literal(value: Any) -> str:
    if value is None:
        return "NULL"
    return "'{" + ",".join(map(str, value)) + "}'" if isinstance(value, list) else str(value)


def read(world: World, after: int, base: int = 0) -> str:
    ticks = [row[0] for row in world.rows("SELECT tick FROM outbox_event_tick ORDER BY tick")]
    values = {"shards": [0, 1, 2, 3], "bases": [ticks[base]] * 4, "targets": [ticks[300]] * 4, "afters": [after] * 4}
    values |= {"uptos": [LAST] * 4, "limits": [100] * 4}
    return plan(
        world, world.store.log(world.topic.id)["topic.range.read"].bind(topic=world.topic.id, usual=4096, **values)
    )  # type: ignore[attr-defined]


def test_a_page_costs_what_it_holds(world: World) -> None:
    found = read(world, after=EVENTS // 2)
    assert "rows=400 loops=1" in found.splitlines()[0], found
    assert "Rows Removed by Filter: 1\n" in found or "Rows Removed by Filter" not in found, found
    for line in found.splitlines():
        assert "Seq Scan" not in line, found
    body = found[found.index("CTE Scan on late") :]
    assert "->  Sort" not in body, found


def test_a_page_looks_at_two_ticks(world: World) -> None:
    found = read(world, after=0)
    assert "Join Filter" not in found, found
    scans = [line for line in found.splitlines() if "outbox_event_tick_pkey" in line]
    assert scans
    assert all("rows=1 loops=4" in line for line in scans), found


def test_nothing_is_read_of_what_the_base_has_seen(world: World) -> None:
    assert "rows=0 loops=1" in read(world, after=0, base=299).splitlines()[0]


def test_asking_for_news_costs_a_look_at_the_end_of_an_index(world: World) -> None:
    found = plan(world, tick(world))
    scans = [line for line in found.splitlines() if "_xid" in line and "never" not in line]
    assert scans
    assert all("rows=0" in line for line in scans), found
    looked = [line for line in found.splitlines() if "Seq Scan" in line and "never executed" not in line]
    assert len(looked) == 1, found
    assert "outbox_event_log_1_seq" in looked[0]


def tick(world: World) -> Statement:
    query = world.store.log(world.topic.id)["topic.tick.make"]  # type: ignore[attr-defined]
    return query.bind(topic=world.topic.id, stale=10_000, force="false", durable="false", now=None)


def hot(world: World, group: GroupRow, member: int) -> list[str]:
    """What every claim and every poll asks, each as its plan."""
    sql = world.store.sql  # type: ignore[attr-defined]
    common = {"group": group.id, "member": member, "count": 4, "now": None}
    look = {"topic": world.topic.id, "shards": [0, 1, 2, 3], "ordered": "true", "goal": 299}
    return [
        plan(world, sql["topic.range.lock"].bind(**common)),
        plan(world, sql["topic.range.look"].bind(**look, **common)),
        plan(world, sql["topic.range.renew"].bind(tokens=[1, 2], lease=30.0, group=group.id, now=None)),
        plan(world, sql["topic.range.finish"].bind(tokens=[1, 2])),
        plan(world, tick(world)),
    ]


def test_claims_look_up_single_rows(world: World) -> None:
    group = world.group()
    for each in hot(world, group, world.member(group)):
        assert "Seq Scan" not in each.replace("Seq Scan on outbox_event_log_1_seq", ""), each
        assert not re.search(r"Join Filter: .*(id|tick|token|version) =", each), each


@pytest.mark.parametrize("spread", [1, 4])
def test_a_sweep_deletes_by_place_without_a_join(spread: int) -> None:
    """Our sessions join by loops: with a join it would take seconds for each batch of a topic that is spread."""
    with World(options={"spread": spread}) as world:
        query = world.store._swept(world.topic, "topic.cleanup.sweep")  # type: ignore[attr-defined]
        values = {"topic": world.topic.id, "shards": [0, 1, 2, 3], "afters": [0, 0, 0, 0], "limit": 100, "now": None}
        found = plan(world, query.bind(**values))
    gone = found[found.index("CTE gone") :]
    assert gone.count("Tid Scan on outbox_event_log_1_rest") == spread, found
    assert gone.count("hashed SubPlan") == (spread if spread > 1 else 0), found
    assert "Join" not in gone[: gone.rindex("Tid Scan")], found


def test_an_open_transaction_makes_nothing_dearer() -> None:
    """While one is open no old row version can be cleaned up. What is asked often must not come across them."""

    def pages(plans: list[str]) -> list[int]:
        tops = [re.search(r"Buffers: shared (.*)", each) for each in plans]
        return [sum(map(int, re.findall(r"=(\d+)", top[1]))) for top in tops if top]

    with World() as world:
        group = world.group()
        member = world.member(group)

        def deliver(rounds: int) -> None:
            for n in range(rounds):
                world.write(*(happened(n) for n in range(4)))
                taken = world.take(group, member)
                assert world.finish(group, taken) == 0

        deliver(20)
        before = pages(hot(world, group, member))
        with psycopg.connect(world.url) as other:
            other.execute("SELECT pg_current_xact_id()")
            deliver(400)
            after = pages(hot(world, group, member))
        assert len(before) == len(after) == 5
        for was, now in zip(before, after, strict=True):
            assert now <= 1.5 * was + 10, (before, after)
