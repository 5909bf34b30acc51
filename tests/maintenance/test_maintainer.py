"""The service: one of several works, errors do not end it, a killed one leaves nothing half done."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from kit import until
from relaybox import AsyncMaintainer, AsyncOutbox
from relaybox.clock import SystemClock
from relaybox.errors import ConfigError, LeaseLost
from relaybox.facts import Detected, LoopFailed, Standing
from relaybox.maintenance import ALL_JOBS
from relaybox.op import Op
from relaybox.types import Health, TopicSettings

from .kit import World, run_jobs

QUICK = TopicSettings(
    tick_interval=timedelta(milliseconds=20),
    thin_interval=timedelta(milliseconds=50),
    partition_interval=timedelta(milliseconds=50),
    cleanup_interval=timedelta(milliseconds=50),
    detect_interval=timedelta(milliseconds=50),
    watch_interval=timedelta(milliseconds=50),
    term_ttl=timedelta(milliseconds=600),
    lock_timeout=timedelta(milliseconds=200),
)


async def test_ticks_are_made_while_there_is_something_new(world: World) -> None:
    topic = world.topic()
    async with world.maintainer(upkeep=QUICK):
        world.write(topic, 5)
        await until(lambda: world.sql("SELECT max(tick) >> 24 FROM outbox_event_tick")[0][0] == 1)
        world.write(topic, 5)
        await until(lambda: world.sql("SELECT max(tick) >> 24 FROM outbox_event_tick")[0][0] == 2)
    assert world.sql("SELECT max(tick) >> 24 FROM outbox_event_tick") == [(2,)], "an idle topic gets none"


async def test_one_of_two_works_and_the_other_takes_over(world: World) -> None:
    world.topic()
    first, second = [world.maintainer(upkeep=QUICK, clock=SystemClock()) for _ in range(2)]  # terms end by its clock
    await first.start()
    await first._leading.wait()
    await second.start()
    await until(lambda: second._answered is not None)
    assert not second.leading
    assert (first.health(), second.health()) == (Health(), Health())
    await first.stop()
    await asyncio.wait_for(second._leading.wait(), 5)
    await second.stop()
    assert first.health() == Health("critical", ("not running",))


async def test_a_silent_leader_is_succeeded_and_can_do_nothing_more(world: World) -> None:
    """It was frozen in the middle of its work: what it does when it wakes up is refused."""
    topic = world.topic()
    world.write(topic, 10)
    frozen, other = world.maintainer(), world.maintainer()
    try:
        assert await frozen._take_term()
        assert not await other._take_term()
        world.clock.pass_time(seconds=16)
        assert await other._take_term()
        world.clock.pass_time(days=2)
        with pytest.raises(LeaseLost):
            await frozen._run("cleanup")
        assert world.stored(topic) == 10
    finally:
        await frozen.stop()
        await other.stop()


async def test_several_cleaners_at_once_have_no_double_effect(world: World) -> None:
    """Also without a leader, as before a release that has one."""
    topic = world.topic(tracking="bitmap", cleanup_batch=50)
    group = world.group(topic)
    world.write(topic, 3000)
    world.read_all(topic, group)
    world.clock.pass_time(days=2)
    upkeep = TopicSettings(cleanup_batch=50)
    cleaners = [world.maintainer(upkeep=upkeep) for _ in range(3)]
    for cleaner in cleaners:
        cleaner._context._held = lambda op: op  # type: ignore[method-assign]  # no fence
    while world.stored(topic):
        await asyncio.gather(*(cleaner._run("cleanup") for cleaner in cleaners))
    assert sum(cleaner.report.deleted for cleaner in cleaners) == 3000
    assert world.marks(topic) == 0
    for cleaner in cleaners:
        await cleaner.stop()


@pytest.mark.parametrize(("point", "hit"), [("purge.before", 2), ("purge.after", 1), ("purge.after", 5)])
@pytest.mark.parametrize("partitions", ["none", "day"])
async def test_killed_in_the_middle_of_cleanup(world: World, point: str, hit: int, partitions: str) -> None:
    topic = world.topic(tracking="bitmap", partitions=partitions)
    if partitions == "day":
        await world.maintain("partitions")
    group = world.group(topic)
    world.write(topic, 200)
    world.read_all(topic, group)
    world.clock.pass_time(days=2)
    world.write(topic, 7)
    tests = str(Path(__file__).parents[1])
    path = os.pathsep.join((tests, os.environ.get("PYTHONPATH", "")))
    killed = subprocess.run(
        [sys.executable, "-m", "maintenance.child", world.url, world.now.isoformat()],
        env={**os.environ, "RELAYBOX_CRASH": f"{point}:{hit}:kill", "PYTHONPATH": path},
        cwd=tests,
        capture_output=True,
        timeout=60,
    )
    assert killed.returncode in (-9, 0), killed.stderr.decode()
    assert killed.returncode == -9 or partitions == "day"
    assert (await world.maintain("cleanup")).leading == (killed.returncode == 0), "its term runs out first"
    world.clock.pass_time(seconds=16)
    await world.maintain("partitions", "cleanup")
    assert (world.stored(topic), world.marks(topic)) == (7, 7)


async def test_a_failing_job_goes_on_and_so_do_the_others(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = world.topic()
    maintainer = world.maintainer(upkeep=QUICK)
    broken = True

    def to_check(now: Any) -> Op[list[int]]:
        if broken:
            raise RuntimeError("broken")
        return (yield from type(maintainer.store).to_check(maintainer.store, now))

    monkeypatch.setattr(maintainer.store, "to_check", to_check)
    async with maintainer:
        await until(lambda: [f for f in world.facts if isinstance(f, LoopFailed) and f.loop == "detect"])
        world.write(topic, 1)
        await until(lambda: world.sql("SELECT max(tick) >> 24 FROM outbox_event_tick")[0][0] == 1)
        broken = False
        await until(lambda: [f for f in world.facts if isinstance(f, Detected)])


async def test_the_database_goes_away_and_comes_back(world: World) -> None:
    world.topic()
    async with world.maintainer(upkeep=QUICK) as maintainer:
        await maintainer._leading.wait()
        world.sql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        before = len([f for f in world.facts if isinstance(f, Detected)])
        await until(lambda: len([f for f in world.facts if isinstance(f, Detected)]) > before + 1)


async def test_stop_waits_for_what_runs(world: World) -> None:
    """A batch that waits for a lock is given its time, then cancelled."""
    topic = world.topic(tracking="bitmap")
    world.state(world.group(topic), "dead")
    upkeep = TopicSettings(stop_timeout=timedelta(milliseconds=300), detect_interval=timedelta(milliseconds=10))
    with psycopg.connect(world.url) as holder:
        holder.execute("LOCK TABLE outbox_event_group")
        maintainer = world.maintainer(upkeep=upkeep)
        await maintainer.start()
        await until(
            lambda: world.sql(
                "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
            )[0][0]
        )
        start = time.monotonic()
        await maintainer.stop()
    assert 0.25 < time.monotonic() - start < 10


async def test_unknown_jobs_are_refused(world: World) -> None:
    with pytest.raises(ConfigError, match="dust"):
        world.maintainer(jobs=["dust"])


async def test_run_once_runs_everything(world: World) -> None:
    topic = world.topic(partitions="day")
    world.write(topic)
    report = await world.maintain()
    assert list(report.seconds) == list(ALL_JOBS)
    assert report.ticks == 1


# -- dead groups, members --------------------------------------------------------------------------


async def test_detection_says_who_died_and_what_was_released(world: World, caplog: pytest.LogCaptureFixture) -> None:
    topic = world.topic(tracking="bitmap")
    group = world.group(topic)
    world.sql("UPDATE outbox_event_group SET heartbeat_timeout = '300 s'")
    world.write(topic, 30)
    world.clock.pass_time(seconds=299)
    assert (await world.maintain("detect")).groups_died == 0
    world.clock.pass_time(seconds=2)
    report = await world.maintain("detect")
    assert (report.groups_died, report.released) == (1, 30)
    assert Detected(1, 30) in world.facts
    assert "orders/mail" in caplog.text
    (alert,) = world.told("group_dead")
    assert (alert.topic, alert.group) == ("orders", group.name)


async def test_a_consumer_silent_for_a_day_is_reaped(world: World) -> None:
    topic = world.topic()
    group = world.group(topic)
    world.run(world.store.join(group, "worker-1", timedelta(seconds=5), world.now))
    world.clock.pass_time(seconds=61)
    await world.maintain("detect")
    await world.maintain("detect")
    assert len(world.told("consumer_unhealthy")) == 1
    world.clock.pass_time(hours=24)
    assert (await world.maintain("detect", upkeep=TopicSettings(reap_members=False))).members_reaped == 0
    assert (await world.maintain("detect")).members_reaped == 1
    assert len(world.told("consumer_reaped")) == 1


# -- alerts ----------------------------------------------------------------------------------------


async def test_an_alert_is_told_once_when_it_begins_and_once_when_it_is_over(world: World) -> None:
    topic = world.topic()
    with psycopg.connect(world.url, autocommit=True) as listener:
        listener.execute('LISTEN "relaybox_outbox_event_alert"')
        for _ in range(3):
            await world.maintain("watch")
        world.group(topic)
        for _ in range(2):
            await world.maintain("watch")
        heard = [note.payload for note in listener.notifies(timeout=2, stop_after=2)]
    assert [(a.topic, a.over) for a in world.told("zero_subscriptions")] == [("orders", False), ("orders", True)]
    assert heard == ["", ""], "any role may listen"


async def test_near_timeout(world: World) -> None:
    topic = world.topic()
    world.group(topic)
    world.sql("UPDATE outbox_event_group SET heartbeat_timeout = '300 s'")
    world.clock.pass_time(seconds=239)
    await world.maintain("watch")
    assert world.told("group_near_timeout") == []
    world.clock.pass_time(seconds=2)
    await world.maintain("watch")
    assert [alert.group for alert in world.told("group_near_timeout")] == ["mail"]


@pytest.mark.parametrize("tracking", ["offset", "bitmap"])
async def test_stuck(world: World, tracking: str) -> None:
    topic = world.topic(tracking=tracking)
    group = world.group(topic)
    world.write(topic, 150)
    world.tick(topic)
    world.clock.pass_time(minutes=59)
    await world.maintain("watch")
    world.clock.pass_time(minutes=2)
    await world.maintain("watch")
    assert [alert.group for alert in world.told("group_stuck")] == [group.name]
    assert len(world.told("events_stuck")) == (1 if tracking == "bitmap" else 0)
    world.read_all(topic, group)
    await world.maintain("watch")
    assert [alert.over for alert in world.told("group_stuck")] == [False, True]


async def test_fl35_a_message_that_waits_for_the_dead_is_a_mismatch_and_an_older_one_is_not(world: World) -> None:
    topic = world.topic(tracking="bitmap")
    old = world.group(topic, "old")
    world.write(topic, 10)
    world.group(topic, "new", start="latest")  # joins after these events: sets differ, nothing is wrong
    world.write(topic, 10)
    await world.maintain("watch")
    assert world.told("events_mismatched") == []
    world.state(old, "dead")
    await world.maintain("watch")
    assert [alert.text.split()[0] for alert in world.told("events_mismatched")] == ["20"]
    await world.maintain("detect", "watch")
    assert [alert.over for alert in world.told("events_mismatched")] == [False, True]


async def test_the_horizon_is_the_oldest_writer(world: World) -> None:
    topic = world.topic()
    await world.maintain("watch")
    standing = [fact for fact in world.facts if isinstance(fact, Standing)]
    assert standing[0].oldest == timedelta(0)
    assert standing[-1] == Standing(None, None), "who leads no more knows nothing"
    with psycopg.connect(world.url) as writer:
        writer.execute(f"UPDATE outbox_event_topic SET name = name WHERE id = {topic.id}")
        world.facts.clear()
        await world.maintain("watch")
    oldest = next(fact for fact in world.facts if isinstance(fact, Standing)).oldest
    assert oldest is not None
    assert oldest > timedelta(0)


async def test_cleanup_behind_production_is_told(world: World) -> None:
    topic = world.topic()
    world.write(topic, 500)
    maintainer = world.maintainer(upkeep=TopicSettings(cleanup_budget=timedelta(microseconds=1)))
    await run_jobs(maintainer, "cleanup")
    world.write(topic, 500)
    world.clock.pass_time(days=2)
    report = await run_jobs(maintainer, "cleanup")
    assert report.backlog == 1000 - report.deleted
    await maintainer.stop()
    assert [alert.over for alert in world.told("cleanup_behind")] == [False]
    await world.maintain("cleanup")
    assert [alert.over for alert in world.told("cleanup_behind")] == [False, True]


# -- ticks -----------------------------------------------------------------------------------------


async def test_old_ticks_are_thinned_and_those_in_use_stay(world: World) -> None:
    topic = world.topic()
    ticks = []
    for _ in range(60):
        world.write(topic)
        ticks.append(world.tick(topic))
        world.clock.pass_time(seconds=1)
    group = world.group(topic)
    used = ticks[33]
    world.sql(f"UPDATE outbox_event_cursor SET base = {used} WHERE group_id = {group.id} AND shard = 1")
    world.clock.pass_time(seconds=4 * 60)
    assert (await world.maintain("thin")).thinned < 2, "young ones are all kept"
    world.clock.pass_time(minutes=2)
    await world.maintain("thin")
    left = [row[0] for row in world.sql("SELECT tick FROM outbox_event_tick ORDER BY tick")]
    assert left[0] == 0
    assert used in left
    assert ticks[-1] in left, "the newest"
    assert 6 <= len([tick for tick in left if 0 < tick <= ticks[-1]]) <= 9, "one in ten seconds, for seeks by time"
    world.clock.pass_time(days=2)
    await world.maintain("thin")
    left = [row[0] for row in world.sql("SELECT tick FROM outbox_event_tick ORDER BY tick")]
    assert len(left) <= 5
    assert {0, used, ticks[-1]} <= set(left)


# -- presets ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("upkeep", "expected"),
    [
        (TopicSettings(), (300, 10_000, 60, 30)),
        (TopicSettings.for_low_throughput(), (900, 5_000, 300, 30)),
        (TopicSettings.for_high_throughput(), (60, 50_000, 60, 7)),
        (TopicSettings.for_critical_system(), (300, 10_000, 120, 90)),
    ],
)
def test_presets(upkeep: TopicSettings, expected: tuple[int, ...]) -> None:
    times = (upkeep.cleanup_interval, upkeep.detect_interval, upkeep.group_retention)
    every, detect, kept = (time.total_seconds() for time in times)
    assert (every, upkeep.cleanup_batch, detect, kept / 86400) == expected


@pytest.mark.parametrize(
    ("rate", "minutes", "batch"), [(50, 15, 5_000), (100, 5, 10_000), (5_000, 2, 20_000), (10**6, 1, 50_000)]
)
def test_by_rate(rate: float, minutes: int, batch: int) -> None:
    upkeep = TopicSettings.for_rate(rate)
    assert (upkeep.cleanup_interval, upkeep.cleanup_batch) == (timedelta(minutes=minutes), batch)


def test_incremental() -> None:
    upkeep = TopicSettings.incremental()
    assert (upkeep.cleanup_batch, upkeep.cleanup_interval.total_seconds(), upkeep.cleanup_pause.total_seconds()) == (
        1_000,
        10,
        0.1,
    )


def test_nonsense_is_refused() -> None:
    with pytest.raises(ConfigError, match="tick_interval"):
        TopicSettings(tick_interval=timedelta(0))
    with pytest.raises(ConfigError, match="cleanup_batch"):
        TopicSettings(cleanup_batch=0)


async def test_old_groups_are_forgotten_at_two_in_the_morning(world: World) -> None:
    maintainer = AsyncMaintainer(AsyncOutbox(world.url, clock=world.clock))
    assert maintainer._until(TopicSettings().groups_at) == 14 * 3600  # it is noon
    await maintainer.stop()
