"""Groups and their states: who may go where, what joining means, and what writers are told of it."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, get_args

import psycopg
import pytest

from relaybox.errors import ConfigError, IllegalMove, TooManyGroups
from relaybox.store.topics import GroupOptions, GroupRow, GroupState, Start
from relaybox.topics.start import StartFrom

from .kit import World, happened

STATES: tuple[GroupState, ...] = get_args(GroupState)
LEGAL = {
    ("active", "paused"),
    ("active", "dead"),
    ("active", "cancelled"),
    ("paused", "active"),
    ("paused", "cancelled"),
    ("dead", "active"),
    ("dead", "cancelled"),
}


@pytest.fixture
def world() -> Iterator[World]:
    with World() as made:
        yield made


def bring(world: World, group: GroupRow, state: GroupState) -> GroupRow:
    moved: GroupRow = world.run(world.store.set_state(group, state, "test", None))
    return moved


def counted(world: World) -> tuple[int, set[int]]:
    active, audience = world.rows("SELECT active, audience FROM outbox_event_topic")[0]
    return active, set(audience)


@pytest.mark.parametrize("wanted", STATES)
@pytest.mark.parametrize("state", STATES)
def test_every_move(world: World, state: GroupState, wanted: GroupState) -> None:
    group = bring(world, world.group(), state)
    if state == wanted or (state, wanted) in LEGAL:
        moved = bring(world, group, wanted)
        assert moved.state == wanted
        alive = wanted in ("active", "paused")
        assert counted(world) == (int(wanted == "active"), {group.id} if alive else set())
    else:
        with pytest.raises(IllegalMove, match=f"is {state} and cannot become {wanted}"):
            bring(world, group, wanted)
        assert world.run(world.store.group("t", "g")).state == state


def test_the_same_state_again_changes_nothing(world: World) -> None:
    group = bring(world, world.group(), "paused")
    assert bring(world, group, "paused") == group


def test_joining_a_group_that_is_there(world: World) -> None:
    first, new = world.run(world.store.subscribe(world.topic, "g", Start(), GroupOptions(), None))
    assert new
    again, new = world.run(world.store.subscribe(world.topic, "g", Start("earliest"), None, None))
    assert not new
    assert again == first, "a second instance does not move the group"


def test_joining_a_paused_group_leaves_it_paused(world: World) -> None:
    group = bring(world, world.group(), "paused")
    assert world.run(world.store.subscribe(world.topic, "g", Start(), None, None))[0].state == "paused"
    assert bring(world, group, "active").state == "active"


def test_joining_a_dead_group_resurrects_it_where_it_stood(world: World) -> None:
    group = world.group()
    member = world.member(group)
    world.write_many(10)
    assert len(world.drain(group, member)) == 10
    bring(world, group, "dead")
    world.write_many(5)
    again, new = world.run(world.store.subscribe(world.topic, "g", Start(), None, None))
    assert (again.state, again.id, new) == ("active", group.id, False)
    assert len(world.drain(again, member)) == 5


def test_a_cancelled_group_begins_anew_as_another_generation(world: World) -> None:
    old = bring(world, world.group(), "cancelled")
    new, made = world.run(world.store.subscribe(world.topic, "g", Start(), None, None))
    assert made
    assert (new.generation, new.state) == (old.generation + 1, "active")
    assert new.id != old.id
    with pytest.raises(IllegalMove):
        bring(world, old, "active")
    assert world.run(world.store.group("t", "g")).id == new.id


def test_twenty_instances_make_one_group(world: World) -> None:
    made: list[tuple[GroupRow, bool]] = []

    def start() -> None:
        made.append(world.run(world.store.subscribe(world.topic, "g", Start(), GroupOptions(), None)))

    threads = [threading.Thread(target=start) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({group.id for group, _ in made}) == 1
    assert sorted(new for _, new in made) == [False] * 19 + [True]
    assert world.one("SELECT count(*) FROM outbox_event_cursor") == 4


def test_options_of_the_last_who_joins_hold_but_order_is_fixed(world: World) -> None:
    world.group(max_attempts=3)
    group = world.group(max_attempts=7, heartbeat_timeout=timedelta(seconds=99))
    assert (group.max_attempts, group.heartbeat_timeout) == (7, timedelta(seconds=99))
    with pytest.raises(ConfigError, match="reads in order"):
        world.group(ordered=False)


@pytest.mark.parametrize(
    "options",
    [
        {"max_attempts": 0},
        {"on_exhausted": "shrug"},
        {"heartbeat_interval": timedelta(seconds=60), "heartbeat_timeout": timedelta(seconds=60)},
        {"heartbeat_interval": timedelta(seconds=-1)},
    ],
)
def test_impossible_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="expected"):
        GroupOptions(**options)


@pytest.mark.parametrize("name", ["a:b", "a/b c", "grüppe", "'); DROP TABLE x", "%s {group} :name", "x" * 255])
def test_any_printable_name(world: World, name: str) -> None:
    group = world.group(name)
    assert world.run(world.store.group("t", name)) == group


@pytest.mark.parametrize("name", ["", "a\nb", "a\x00b", "x" * 256])
def test_other_names_are_refused(world: World, name: str) -> None:
    with pytest.raises(ConfigError, match="printable"):
        world.group(name)


def forget(world: World, group: GroupRow) -> bool:
    forgotten: bool = world.run(world.store.forget_group(world.topic, group.id, timedelta(0), None))
    return forgotten


def test_a_group_is_gone_with_its_place_when_cancelled(world: World) -> None:
    group = world.group()
    member = world.member(group)
    world.write_many(3)
    taken = world.take(group, member)
    bring(world, group, "cancelled")
    assert world.one("SELECT count(*) FROM outbox_event_cursor") == 0
    assert world.one("SELECT count(*) FROM outbox_event_range") == 0
    assert world.finish(group, taken) == len(taken.pages), "what its members held is lost to them"
    assert forget(world, group) is True
    assert world.run(world.store.groups()) == []


def test_a_live_group_is_not_forgotten(world: World) -> None:
    assert forget(world, world.group()) is False
    assert len(world.run(world.store.groups())) == 1


def test_a_queue_tracked_by_rows_has_one_group_without_a_place(world: World) -> None:
    rows = world.configure("jobs", semantics="queue", tracking="rows", shards=16)
    with pytest.raises(ConfigError, match="its one group is 'default'"):
        world.run(world.store.subscribe(rows, "g", Start(), None, None))
    group, new = world.run(world.store.subscribe(rows, "default", Start(), None, None))
    assert (new, group.state) == (True, "active")
    assert world.one("SELECT count(*) FROM outbox_event_cursor") == 0


# -- where a group begins ---------------------------------------------------------------------------


def begin(world: World, start: StartFrom) -> list[int]:
    group, _ = world.run(world.store.subscribe(world.topic, "late", start.start, GroupOptions(), world.now))
    return sorted(world.drain(group, world.member(group)))


def test_latest_gets_what_is_committed_after_it_and_nothing_else(world: World) -> None:
    world.write_many(5)
    group = world.group("late", Start())
    later = world.write_many(3)
    assert sorted(world.drain(group, world.member(group))) == later


def test_latest_gets_what_was_written_before_and_committed_after(world: World) -> None:
    """A transaction that was open when the group came is not lost in between."""
    with psycopg.connect(world.url) as late:
        written = world.write(happened(1), on=late)
        group = world.group("late", Start())
        late.commit()
    assert world.drain(group, world.member(group)) == written


def test_groups_that_come_while_many_write_miss_nothing_and_get_nothing_old(world: World) -> None:
    """Writers with short and long transactions; a group every moment."""
    stop = threading.Event()
    lock = threading.Lock()
    committed: list[int] = []  # their commit has returned
    pending: dict[int, list[int]] = {}  # written by whom, commit not yet begun

    def write(writer: int) -> None:
        chance = random.Random(writer)
        with psycopg.connect(world.url) as connection:
            while not stop.is_set():
                seqs = [
                    seq for _ in range(chance.randint(1, 4)) for seq in world.write(happened(writer), on=connection)
                ]
                with lock:
                    pending[writer] = seqs
                if chance.random() < 0.2:
                    stop.wait(chance.random() / 10)
                with lock:
                    del pending[writer]
                connection.commit()
                with lock:
                    committed.extend(seqs)

    threads = [threading.Thread(target=write, args=(n,)) for n in range(5)]
    for thread in threads:
        thread.start()
    groups: list[tuple[GroupRow, set[int], set[int], int]] = []
    for n in range(25):
        with lock:
            before = set(committed)
        group = world.group(f"g{n}", Start())
        with lock:
            open_yet = {seq for seqs in pending.values() for seq in seqs}
        groups.append((group, before, open_yet, world.one(f"SELECT last_value FROM {world.log}_seq")))
    with lock:
        last = len(committed)
    stop.set()
    for thread in threads:
        thread.join()
    assert last > 100
    everything = set(committed)
    for group, before, open_yet, newest in groups:
        seen = world.drain(group, world.member(group), events=1000)
        assert len(seen) == len(set(seen))
        assert open_yet <= set(seen), "committed after the group was there"
        assert not before & set(seen), "committed before it came"
        assert set(seen) <= everything
        assert {seq for seq in everything if seq > newest} <= set(seen), "written after it came"


def test_earliest_gets_all_and_a_bound_the_newest(world: World) -> None:
    seqs = world.write_many(10)
    group = world.group("bounded", StartFrom.earliest(4).start)
    assert sorted(world.drain(group, world.member(group))) == seqs[-4:]
    assert begin(world, StartFrom.earliest()) == seqs


def test_from_a_number(world: World) -> None:
    with psycopg.connect(world.url) as late:
        world.write(happened(0), on=late)
        seqs = world.write_many(10)
        group = world.group("late", StartFrom.event(seqs[4]).start)
        member = world.member(group)
        assert sorted(world.drain(group, member)) == seqs[4:]
        late.commit()
    assert world.drain(group, member) == [], "a lower number that is committed later is passed over too"


def test_from_a_time() -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    with World(now=start) as world:
        world.write_many(3)
        world.tick()
        world.now = start + timedelta(hours=1)
        later = world.write_many(4)
        assert begin(world, StartFrom.time(start + timedelta(minutes=30))) == later


@pytest.mark.parametrize(
    "start",
    [
        lambda: StartFrom.event(0),
        lambda: StartFrom.earliest(0),
        lambda: StartFrom.time(datetime(2026, 1, 1)),
    ],
)
def test_impossible_starts_are_refused(start: Any) -> None:
    with pytest.raises(ConfigError, match="expected"):
        start()


def test_a_tick_that_is_gone_is_refused(world: World) -> None:
    with pytest.raises(ConfigError, match="no tick 99"):
        world.group("late", Start("tick", tick=99))


# -- bits -------------------------------------------------------------------------------------------


def test_bits_are_the_lowest_free_ones_and_sixty_four_is_the_end() -> None:
    with World(options={"tracking": "bitmap"}) as world:
        groups = [world.group(f"g{n}") for n in range(64)]
        assert [group.bit for group in groups] == list(range(64))
        assert world.one("SELECT required FROM outbox_event_topic") == -1
        with pytest.raises(TooManyGroups, match=r"64.*tracking='acks' or tracking='offset'"):
            world.group("one too many")
        seqs = world.write_many(2)
        bring(world, groups[7], "cancelled")
        with pytest.raises(TooManyGroups, match="1 of them by cancelled groups that events still name"):
            world.group("too early")
        world.rows("DELETE FROM outbox_event_mark_1")
        assert len(seqs) == 2
        assert world.group("now").bit == 7


def test_a_bit_that_events_name_keeps_its_group_in_the_table() -> None:
    with World(options={"tracking": "bitmap"}) as world:
        group = world.group("a")
        world.write_many(1)
        cancelled = bring(world, group, "cancelled")
        assert forget(world, cancelled) is False
        assert world.group("b").bit == 1, "not the bit that an event names"
        world.rows("DELETE FROM outbox_event_mark_1")
        assert forget(world, cancelled) is True
        assert world.group("c").bit == 0
