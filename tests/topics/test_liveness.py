"""Heartbeats of members: who speaks for whom, how often, and what they learn by it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import timedelta

import pytest

from kit import until
from kit.proxy import Proxy
from relaybox import Settings
from relaybox.errors import StoreError
from relaybox.store.topics import Beat, GroupRow
from relaybox.testing.clock import ManualClock
from relaybox.types import DeliverySettings

from .kit import World
from .liveness_kit import beating, check, joined, state_of

MINUTE = timedelta(minutes=1)
SLOW = Settings(delivery=DeliverySettings(instance_ttl="50s", lease="100s"))


@pytest.fixture
def world() -> Iterator[World]:
    with World() as made:
        yield made


def beaten(world: World, member: int) -> int:
    return int(world.one(f"SELECT processed FROM outbox_event_member WHERE id = {member}"))


async def test_one_statement_speaks_for_all_members_of_a_process(world: World) -> None:
    groups = [world.group(f"g{n}") for n in range(5)]
    async with beating(world) as heartbeats:
        members = [(await joined(heartbeats, group))[0] for group in groups]
        before = world.one("SELECT max(seen_at) FROM outbox_event_member")
        await until(lambda: world.one("SELECT min(seen_at) FROM outbox_event_member") > before)
        await heartbeats.beat()
        assert len(world.rows("SELECT DISTINCT seen_at FROM outbox_event_member")) == 1
        assert all(not member.silent for member in members)


async def test_what_was_done_is_told_once(world: World) -> None:
    group = world.group()
    async with beating(world) as heartbeats:
        member, _ = await joined(heartbeats, group)
        member.count(processed=5, failed=2, filtered=1, busy=0.25)
        await heartbeats.beat()
        await heartbeats.beat()
        row = world.rows("SELECT processed, failed, filtered, busy_ms FROM outbox_event_member")[0]
        assert row == (5, 2, 1, 250)
        member.count(processed=1)
    totals = world.run(world.store.totals(group, None))
    assert (totals.processed, totals.failed, totals.members) == (6, 2, 0), "kept although the member left"


async def test_leaving_is_not_unsubscribing(world: World) -> None:
    group = world.group()
    async with beating(world) as heartbeats:
        await joined(heartbeats, group)
    assert state_of(world) == "active"
    assert world.one("SELECT count(*) FROM outbox_event_member") == 0


async def test_a_pause_is_told_and_keeps_the_member(world: World) -> None:
    """A paused group's processes go on beating."""
    group = world.group()
    async with beating(world) as heartbeats:
        member, told = await joined(heartbeats, group)
        world.run(world.store.set_state(group, "paused", "test", None))
        await until(lambda: told.states == ["paused"])
        world.run(world.store.set_state(group, "active", "test", None))
        await until(lambda: told.states == ["paused", "active"])
        assert not member.silent


async def test_a_cancelled_group_stops_its_members_and_is_not_made_again(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    group = world.group()
    async with beating(world) as heartbeats:
        member, told = await joined(heartbeats, group)
        world.run(world.store.set_state(group, "cancelled", "test", None))
        await until(lambda: told.states == ["cancelled"])
        assert member.silent
        await heartbeats.beat()
    assert [g.state for g in world.run(world.store.groups())] == ["cancelled"]
    assert any("was cancelled" in record.message and record.levelname == "ERROR" for record in caplog.records)


async def test_a_group_that_is_gone_stops_its_members(world: World) -> None:
    group = world.group()
    async with beating(world) as heartbeats:
        member, told = await joined(heartbeats, group)
        world.run(world.store.set_state(group, "cancelled", "test", None))
        world.run(world.store.forget_group(world.topic, group.id, timedelta(0), None))
        await until(lambda: told.states == ["cancelled"])
        assert member.silent
    assert world.run(world.store.groups()) == []


async def test_a_member_that_was_removed_joins_again(world: World) -> None:
    group = world.group()
    async with beating(world) as heartbeats:
        member, told = await joined(heartbeats, group)
        old = member.member
        world.rows("DELETE FROM outbox_event_member")
        await until(lambda: told.losses == 1)
        assert member.member != old
        assert not member.silent


async def test_a_stuck_member_is_not_vouched_for(world: World) -> None:
    """Others of its process must not keep it alive."""
    stuck = False
    a, b = world.group("a"), world.group("b")
    async with beating(world) as heartbeats:
        hanging, _ = await joined(heartbeats, a, alive=lambda: not stuck)
        working, _ = await joined(heartbeats, b)
        await heartbeats.beat()
        stuck = True
        await until(lambda: hanging.silent)
        assert not working.silent
        living = "SELECT id FROM outbox_event_member WHERE expires_at > clock_timestamp()"
        await until(lambda: world.rows(living) == [(working.member,)])


async def test_a_group_is_stamped_once_per_interval() -> None:
    clock = ManualClock()
    with World(now=clock.now()) as world:
        group = world.group(heartbeat_interval=MINUTE, heartbeat_timeout=5 * MINUTE)
        async with beating(world, clock=clock, settings=SLOW) as heartbeats:
            await joined(heartbeats, group)
            stamps = set()
            for _ in range(30):
                clock.advance(seconds=10)
                await heartbeats.beat()
                stamps.add(world.one("SELECT heartbeat_at FROM outbox_event_group"))
    assert len(stamps) == 6, "300 s: the first stamp is that of the group's making"


async def test_the_first_beat_comes_after_a_random_part_of_the_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    monkeypatch.setattr("relaybox.engine.presence.random.random", lambda: 0.5)
    with World(now=clock.now()) as world:
        group = world.group()
        async with beating(world, clock=clock, settings=SLOW) as heartbeats:
            member, _ = await joined(heartbeats, group)
            member.count(processed=1)
            await clock.wait_for_sleepers(1)
            clock.advance(seconds=4.9)
            assert beaten(world, member.member) == 0
            clock.advance(seconds=0.2)
            await until(lambda: beaten(world, member.member) == 1)


async def test_who_cannot_reach_the_database_stops_before_others_may_take_his_work(world: World) -> None:
    """By its own clock, no later than its row expires, and it goes on when the database is back."""
    group = world.group()
    proxy = Proxy(world.url)
    async with beating(world, url=proxy.url) as heartbeats:
        member, told = await joined(heartbeats, group)
        await heartbeats.beat()
        proxy.close()
        await until(lambda: member.silent)
        expired = world.one("SELECT expires_at < clock_timestamp() FROM outbox_event_member")
        assert expired or world.one(
            "SELECT expires_at - clock_timestamp() < interval '100 ms' FROM outbox_event_member"
        )
        with pytest.raises(StoreError):
            await heartbeats.beat()
        assert told.states == []


async def test_heartbeats_only_can_be_stopped(world: World) -> None:
    """How tests simulate a crash."""
    group = world.group()
    async with beating(world) as heartbeats:
        member, _ = await joined(heartbeats, group)
        heartbeats.held = True
        await until(lambda: member.silent)
        heartbeats.held = False
        await until(lambda: not member.silent)


def test_batches_of_the_same_members_do_not_deadlock(world: World) -> None:
    groups = [world.group(f"g{n}", heartbeat_interval=timedelta(0)) for n in range(6)]
    members = [world.member(group, f"m{n}") for group in groups for n in range(5)]
    failures: list[Exception] = []

    def beat(order: list[int]) -> None:
        try:
            for _ in range(100):
                world.run(world.store.beat([Beat(member) for member in order], MINUTE, None), tx=False)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=beat, args=(order,)) for order in (members, members[::-1], members[10:])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_two_thousand_members_beat_within_their_interval(world: World) -> None:
    """Each has a row of its own, and the group's is written once."""
    group = world.group()
    ids = [world.member(group, f"m{n}", 5 * MINUTE) for n in range(2000)]
    world.rows("UPDATE outbox_event_group SET heartbeat_at = heartbeat_at - interval '2 minutes'")
    before = world.one("SELECT xmin::text FROM outbox_event_group")
    started = time.monotonic()

    def beat(mine: list[int]) -> None:
        for member in mine:
            world.run(world.store.beat([Beat(member)], 5 * MINUTE, None), tx=False)

    threads = [threading.Thread(target=beat, args=(ids[n::4],)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert time.monotonic() - started < 30
    assert world.one("SELECT count(*) FROM outbox_event_member WHERE seen_at > started_at") == 2000
    assert world.one("SELECT xmin::text FROM outbox_event_group") != before
    assert check(world) == []


# -- who is dead ------------------------------------------------------------------------------------


@pytest.fixture
def timed() -> Iterator[tuple[World, ManualClock, GroupRow]]:
    clock = ManualClock()
    with World(now=clock.now()) as world:
        yield world, clock, world.group()


def later(world: World, clock: ManualClock, seconds: float) -> None:
    clock.advance(seconds=seconds)
    world.now = clock.now()


def test_a_group_without_a_sign_dies_after_its_timeout(timed: tuple[World, ManualClock, GroupRow]) -> None:
    world, clock, _ = timed
    later(world, clock, 299)
    assert not any(verdict.died for verdict in check(world))
    later(world, clock, 2)
    (verdict,) = check(world)
    assert verdict.died
    assert verdict.reason == "no heartbeat for 301 s"
    group = world.run(world.store.group("t", "g"))
    assert (group.state, group.reason, group.stalled) == ("dead", "no heartbeat for 301 s", False)
    assert world.rows("SELECT active, audience FROM outbox_event_topic") == [(0, [])]
    assert check(world) == [], "once"


def test_missed_windows_are_counted_one_after_the_other(timed: tuple[World, ManualClock, GroupRow]) -> None:
    """The counter really rises, and a sign resets it."""
    world, clock, group = timed
    member = world.member(group)
    counted = []
    for sign in (False, False, True, False):
        later(world, clock, 100)
        if sign:
            world.run(world.store.beat([Beat(member)], MINUTE, world.now))
        check(world)
        counted.append(world.one("SELECT failures FROM outbox_event_group"))
    assert counted == [1, 2, 0, 1]


def test_a_paused_group_does_not_die(timed: tuple[World, ManualClock, GroupRow]) -> None:
    world, clock, group = timed
    world.run(world.store.set_state(group, "paused", "test", world.now))
    later(world, clock, 100_000)
    assert check(world) == []
    assert state_of(world) == "paused"
    world.run(world.store.set_state(group, "active", "test", world.now))
    assert check(world) == [], "and not at once when it is resumed"


def test_groups_near_their_end_are_reported_before(timed: tuple[World, ManualClock, GroupRow]) -> None:
    world, clock, _ = timed
    later(world, clock, 239)
    assert world.run(world.store.near_timeout(world.now)) == []
    later(world, clock, 1)
    (quiet,) = world.run(world.store.near_timeout(world.now))
    assert (quiet.group, quiet.silent) == ("g", timedelta(seconds=240))


def test_detection_on_many_nodes_kills_once(timed: tuple[World, ManualClock, GroupRow]) -> None:
    world, clock, _ = timed
    later(world, clock, 301)
    verdicts: list[object] = []
    threads = [threading.Thread(target=lambda: verdicts.extend(check(world))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(verdicts) == 1


def test_an_unhealthy_member_is_named_once_and_reaped_after_a_day(timed: tuple[World, ManualClock, GroupRow]) -> None:
    world, clock, group = timed
    member = world.member(group, "c1")

    def unhealthy() -> list[str]:
        return [one.name for one in world.run(world.store.unhealthy_members(MINUTE, world.now))]

    later(world, clock, 59)
    assert unhealthy() == []
    later(world, clock, 2)
    assert unhealthy() == ["c1"]
    assert unhealthy() == []
    world.run(world.store.beat([Beat(member)], MINUTE, world.now))
    later(world, clock, 61)
    assert unhealthy() == ["c1"], "healthy again in between"
    later(world, clock, 86_000)
    assert world.run(world.store.reap_members(timedelta(hours=24), world.now)) == []
    later(world, clock, 500)
    assert [one.name for one in world.run(world.store.reap_members(timedelta(hours=24), world.now))] == ["c1"]
    assert world.one("SELECT count(*) FROM outbox_event_member") == 0
