"""Backfill: what is open waits for a late joiner too, whatever happens to the job."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from relaybox.drivers import open_async
from relaybox.drivers.script import play
from relaybox.errors import GroupError, StoreError
from relaybox.ids import new_token
from relaybox.store.topics import GroupRow
from relaybox.store.topics.completion import BackfillRow
from relaybox.topic import Topic
from relaybox.topics.backfill import PACES, BackfillLimits, Job, Throttle, progress_of, start_backfill
from relaybox.values import Progress

from .test_group import Seen, process
from .world import World

LEASE = timedelta(seconds=30)
QUICK = BackfillLimits(batch=10, latency=5.0, rate=1e9)


@pytest.fixture(params=["bitmap", "acks"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    world = World(request.param)
    yield world
    world.close()


def run(world: World, group: GroupRow, limits: BackfillLimits = QUICK) -> Progress:
    return play(Job(world.context, world.topic, group, limits).run(), world.db)


def fill(world: World) -> tuple[str, int, int | None]:
    result = run(world, world.group("late"))
    return result.what.removeprefix("backfill "), result.done, result.total


def test_open_events_wait_for_the_late_joiner(world: World) -> None:
    """It may read while it is added, and nobody else's completion is disturbed."""
    world.join("a")
    seqs = world.write(40)
    world.drain("a", most=0)
    world.join("late", "earliest")
    world.tick()
    early = world.claim("late", events=3)
    world.settle("late", early)
    assert fill(world)[0] == "completed"
    acked = {row[0] for _, found in early.pages for row in found}
    for seq in seqs:
        assert world.required(seq) == ({"a"} if seq in acked else {"a", "late"})
    world.drain("a")
    assert set(world.complete()) == acked
    world.drain("late")
    assert world.complete() == seqs


def test_complete_events_are_delivered_and_stay_as_they_are(world: World) -> None:
    """Replay without reopening."""
    world.join("a")
    done = world.write(10)
    world.drain("a")
    before = world.sql("SELECT * FROM outbox_event_mark_1 ORDER BY seq")
    world.join("late", "earliest")
    assert fill(world) == ("completed", 0, 0)
    assert sorted(world.drain("late")) == done
    assert world.sql("SELECT * FROM outbox_event_mark_1 ORDER BY seq") == before


def test_the_newest_so_many(world: World) -> None:
    """The newest N, delivered in order."""
    world.join("a")
    seqs = world.write(50)
    world.join("late", "earliest", limit=20)
    assert fill(world) == ("completed", 20, 20)
    assert [seq for seq in seqs if "late" in world.required(seq)] == seqs[-20:]
    assert sorted(world.drain("late")) == seqs[-20:]


def test_a_group_that_began_now_is_not_asked_of_the_past(world: World) -> None:
    """Never what lies before its start, or it would be waited for for ever."""
    world.join("a")
    past = world.write(10)
    world.join("late")
    world.write(5)
    assert fill(world)[:2] == ("completed", 0)
    assert all(world.required(seq) == {"a"} for seq in past)


def test_what_a_group_holds_does_not_speak_for_what_it_passed(world: World) -> None:
    """A range is a part of an interval: lower numbers that were committed before the group came are not in it."""
    world.join("a")
    past = world.write(10)
    world.join("late")
    world.write(5)
    world.tick()
    held = world.claim("late")
    assert fill(world)[:2] == ("completed", 0)
    assert all(world.required(seq) == {"a"} for seq in past)
    world.settle("late", held)


def test_again_changes_nothing(world: World) -> None:
    world.join("a")
    world.write(10)
    world.join("late", "earliest")
    assert fill(world) == ("completed", 10, 10)
    assert fill(world) == ("completed", 10, 10)


def test_cancelled_from_another_process_and_resumed(world: World) -> None:
    """At the border of a batch; what ends later does not overwrite it; a later start goes on."""
    world.join("a")
    seqs = world.write(40)
    group = world.join("late", "earliest")
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            assert world.run(world.store.cancel_backfill(group, None))

    result = play(Job(world.context, world.topic, group, QUICK._replace(rate=10)).run(), world.db, pause)
    assert (result.what, result.done) == ("backfill cancelled", 30)
    assert progress(world).state == "cancelled"
    assert fill(world) == ("completed", 40, 40)
    assert all("late" in world.required(seq) for seq in seqs)


def progress(world: World) -> BackfillRow:
    row = world.run(world.store.backfill(world.group("late")))
    assert row is not None
    return row


def test_progress_has_a_total_from_the_start(world: World) -> None:
    world.join("a")
    world.write(40)
    group = world.join("late", "earliest")
    token = new_token()
    assert progress_of(progress(world)) is None
    world.run(world.store.begin_backfill(world.topic, group, token, LEASE, None))
    assert progress_of(progress(world)) == Progress(0, 40, "backfill in progress")
    world.run(world.store.backfill_step(world.topic, group, token, 10, LEASE, 20.0, None))
    assert progress_of(progress(world)) == Progress(10, 40, "backfill in progress, 20 events/s")


def test_one_job_per_group(world: World) -> None:
    """Ten start together; every event is added once."""
    world.join("a")
    seqs = world.write(100)
    group = world.join("late", "earliest")
    results: list[Progress] = []

    def start() -> None:
        results.append(run(world, group))

    threads = [threading.Thread(target=start) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 10
    assert progress_of(progress(world)) == Progress(100, 100, "backfill completed")
    assert all(world.required(seq) == {"a", "late"} for seq in seqs)


def test_it_says_how_far_it_has_come(world: World) -> None:
    world.join("a")
    world.write(30)
    group = world.join("late", "earliest")
    told: list[Progress] = []
    play(Job(world.context, world.topic, group, QUICK, told.append).run(), world.db)
    assert [(at.done, at.total) for at in told[:3]] == [(10, 30), (20, 30), (30, 30)]
    assert told[0].what.startswith("backfill in progress")


def test_a_failure_is_kept_and_can_be_resumed(world: World) -> None:
    world.join("a")
    world.write(30)
    group = world.join("late", "earliest")
    world.sql("ALTER TABLE outbox_event_mark_1 ADD CONSTRAINT broken CHECK (seq <= 15) NOT VALID")
    with pytest.raises(StoreError, match="broken") as failed:
        run(world, group)
    assert (progress(world).state, progress(world).done) == ("failed", 10)
    assert str(failed.value) in (progress(world).error or "")
    shown = progress_of(progress(world))
    assert shown is not None
    assert "broken" in shown.what
    world.sql("ALTER TABLE outbox_event_mark_1 DROP CONSTRAINT broken")
    assert fill(world) == ("completed", 30, 30)


@pytest.mark.parametrize("state", ["dead", "cancelled"])
def test_the_group_ends_in_the_middle(world: World, state: str) -> None:
    """The job stops, and the sweep takes off what it had added."""
    world.join("a")
    seqs = world.write(40)
    group = world.join("late", "earliest")
    token = new_token()
    world.run(world.store.begin_backfill(world.topic, group, token, LEASE, None))
    world.run(world.store.backfill_step(world.topic, group, token, 10, LEASE, 0.0, None))
    world.state("late", state)
    assert world.run(world.store.backfill_step(world.topic, group, token, 10, LEASE, 0.0, None)) is None
    with pytest.raises(GroupError, match="neither active nor paused"):
        run(world, group)
    world.release()
    assert all(world.required(seq) == {"a"} for seq in seqs)
    world.drain("a")
    assert world.complete() == seqs


def test_paused_in_the_middle_goes_on(world: World) -> None:
    world.join("a")
    world.write(40)
    world.join("late", "earliest")
    world.state("late", "paused")
    assert fill(world) == ("completed", 40, 40)


def test_a_resurrected_group_is_added_again(world: World) -> None:
    """What was taken off at its death and is still open, once; and what it had acked stays acked."""
    world.join("a")
    world.join("late")
    seqs = world.write(20)
    world.tick()
    first = world.claim("late", events=2, ranges=1)
    world.settle("late", first)
    world.state("late", "dead")
    world.release()
    world.run(world.store.apply(world.group("late"), "resume", "back", None))
    done = {row[0] for _, found in first.pages for row in found}
    assert fill(world)[:2] == ("completed", 20 - len(done))
    world.drain("a")
    assert set(world.complete()) == done
    world.drain("late")
    assert world.complete() == seqs


KILLED = """
import sys
from datetime import timedelta
sys.path[:0] = sys.argv[2:]
from topics.world import World
from relaybox.topics.backfill import Job, BackfillLimits
from relaybox.drivers.script import play
import relaybox.topics.backfill as b
b.LEASE = timedelta(milliseconds=1)
world = World("bitmap", url=sys.argv[1])
config = BackfillLimits(7, 9.0, 1e9)
print("ready", flush=True)
play(Job(world.context, world.topic, world.group("late"), config).run(), world.db)
"""


@pytest.mark.parametrize("tracking", ["bitmap", "acks"])
def test_killed_at_random_points(tracking: str) -> None:
    """Each new job goes on where the last committed batch ended, and nothing is counted twice."""
    world = World(tracking)  # type: ignore[arg-type]
    try:
        world.join("a")
        seqs = world.write(2000)
        world.join("late", "earliest")
        chance, kills, reached = random.Random(7), 0, [0]
        while reached[-1] < 1500 and kills < 12:
            command = [sys.executable, "-c", KILLED, world.url, *sys.path]
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as job:
                assert job.stdout is not None
                job.stdout.readline()
                threshold = reached[-1] + chance.randint(1, 250)
                while progress(world).done < threshold and job.poll() is None:
                    pass
                os.kill(job.pid, signal.SIGKILL)
            kills += 1
            reached.append(progress(world).done)
        assert kills >= 3
        assert reached == sorted(reached)
        world.sql("UPDATE outbox_event_group SET backfill_lease = now() - interval '1 second'")
        assert fill(world) == ("completed", 2000, 2000)
        assert all(world.required(seq) == {"a", "late"} for seq in random.Random(1).sample(seqs, 20))
        world.drain("a", "late")
        assert world.complete() == seqs
    finally:
        world.close()


def test_an_offset_topic_has_nothing_to_add() -> None:
    world = World("offset")
    try:
        seqs = world.write(10)
        world.join("late", "earliest")
        assert fill(world) == ("completed", 0, 0)
        assert sorted(world.drain("late")) == seqs
    finally:
        world.close()


async def test_many_go_to_the_background(world: World) -> None:
    world.join("a")
    world.write(30)
    db = open_async(world.url)
    try:
        context = replace(world.context, db=db)
        assert await start_backfill(context, world.topic, world.join("late", "earliest"), in_place=30) is None
        assert (progress(world).state, progress(world).done) == ("completed", 30)
        large = await start_backfill(context, world.topic, world.join("more", "earliest"), in_place=29)
        assert large is not None
        assert not large.done()
        await asyncio.wait_for(large, 20)
        row = world.run(world.store.backfill(world.group("more")))
        assert row is not None
        assert row.state == "completed"
    finally:
        await db.close()


@pytest.mark.parametrize("tracking", ["bitmap", "acks"])
async def test_a_push_groups_backfill_ends_with_it_and_goes_on_after_a_restart(
    tracking: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once: nobody waits for the lease of one that was closed in order."""
    behind = partial(start_backfill, in_place=0)
    monkeypatch.setattr("relaybox.topics.delivery.start_backfill", behind)
    topic = Topic(name="orders", semantics="pub_sub", tracking=tracking)
    async with process(None, topic) as here:
        await here.group("before").create()
        await here.write(*range(50))
        service = here.deliver(Seen().note, "late")
        with monkeypatch.context() as patch:
            patch.setattr(Throttle, "probed", lambda self, latency: 600.0)  # others wait too long: the job holds back
            await service.start()
            async with asyncio.timeout(20):
                await service.stop()
        left = {task.get_name() for task in asyncio.all_tasks()}
        assert not [name for name in left if name.startswith(("backfill", "relaybox-group"))]
        begun = (await here.group("late").info()).backfill
        assert begun is not None
        assert "in progress" in begun.what
        async with process(here.url, topic) as restarted, restarted.deliver(Seen().note, "late"):
            async with asyncio.timeout(15):  # less than a lease
                while "completed" not in str((await restarted.group("late").info()).backfill):
                    await asyncio.sleep(0.02)


# -- the pace ------------------------------------------------------------------------------------------


def test_paces() -> None:
    assert {
        "gentle": BackfillLimits(5_000, 0.005, 10_000),
        "normal": BackfillLimits(10_000, 0.010, 50_000),
        "fast": BackfillLimits(50_000, 0.050, 200_000),
    } == PACES


def test_the_batch_shrinks_while_others_wait_and_grows_again() -> None:
    pace = Throttle(BackfillLimits(10_000, 0.010, 1e9))
    for _ in range(30):
        assert pace.probed(0.001) == 0
    assert pace.batch == 10_000
    assert pace.probed(0.5) == 0  # one of 31 is not the 95th percentile
    assert pace.batch == 5_000
    for _ in range(200):
        pause = pace.probed(0.5)
    assert pace.batch == 100
    assert pause == pytest.approx(0.49)
    assert pace.probed(100.0) <= 5.0
    for _ in range(300):
        pause = pace.probed(0.001)
    assert (pause, pace.batch) == (0.0, 10_000)


def test_the_rate_is_obeyed_and_no_pause_outlasts_the_lease() -> None:
    pace = Throttle(BackfillLimits(10_000, 0.010, 100))
    for _ in range(20):
        pace.probed(0.0)
    assert pace.batch == 100
    assert pace.spent(100, 0.25) == 0.75
    assert pace.spent(100, 2.0) == 0.0


def test_the_rate_in_a_run(world: World) -> None:
    world.join("a")
    world.write(60)
    group = world.join("late", "earliest")
    waits: list[float] = []
    limits = BackfillLimits(20, 5.0, 20)
    assert (
        play(Job(world.context, world.topic, group, limits).run(), world.db, waits.append).what == "backfill completed"
    )
    assert len(waits) == 2
    assert all(0 < wait <= 1 for wait in waits)
