"""Ticks made by many at once: one after the other, each with all that the one before it has seen."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from relaybox.drivers import open_sync
from relaybox.op import run

from .kit import World, happened


@pytest.fixture
def world() -> Iterator[World]:
    with World() as world:
        yield world


def counted(tick: int) -> int:
    """Which one it is; the lower bits are random."""
    return tick >> 24


def test_many_makers_make_one_row_of_ticks(world: World) -> None:
    def make(_: int) -> list[int]:
        made = []
        with closing(open_sync(world.url, size=1)) as db:
            for n in range(60):
                db.run(world.store.write(world.topic, [happened(n)], None))
                tick = db.run(world.store.tick(world.topic, None), tx=False)
                if tick is not None:
                    made.append(tick)
        return made

    with ThreadPoolExecutor(6) as makers:
        seen = list(makers.map(make, range(6)))
    for ticks in seen:
        assert ticks == sorted(ticks)
    ticks = world.rows("SELECT tick FROM outbox_event_tick ORDER BY tick")
    assert [counted(tick) for (tick,) in ticks] == list(range(len(ticks)))
    assert world.rows("SELECT tick FROM outbox_event_head") == [ticks[-1]]
    backwards = """
        SELECT b.tick FROM outbox_event_tick a JOIN outbox_event_tick b ON b.tick >> 24 = (a.tick >> 24) + 1
        CROSS JOIN outbox_event_log_1 l
        WHERE pg_visible_in_snapshot(l.xid, a.snapshot) AND NOT pg_visible_in_snapshot(l.xid, b.snapshot)"""
    assert world.rows(backwards) == []
    group = world.group()
    assert len(world.drain(group, world.member(group))) == 360


def test_while_somebody_keeps_his_tick_to_himself_there_is_no_other(world: World) -> None:
    world.write(happened(1))
    with closing(open_sync(world.url, size=1)) as db, db.connection() as connection:
        connection.begin()
        kept = run(world.store.tick(world.topic, None, wait=True, force=True), connection)
        assert kept is not None
        world.write(happened(2))
        assert world.tick() is None
        connection.rollback()
        made = world.tick()
        assert made is not None
        assert counted(made) == counted(kept)
        assert made != kept, "another snapshot is another tick"


def test_nothing_new_is_no_tick(world: World) -> None:
    world.write(happened(1))
    first = world.tick()
    assert world.tick() == first
    assert counted(world.tick(force=True) or 0) == counted(first or 0) + 1
