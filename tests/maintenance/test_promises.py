"""What a group was to have stays for the retention, whatever becomes of it; what it loses is counted and told."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest

from relaybox import Event, Outbox, StartFrom, Topic
from relaybox.facts import EventsLost
from topics.pull_kit import beat

from .kit import World

DAY = timedelta(days=1)
TRACKINGS = ("offset", "bitmap", "acks")
LONG = 3650 * DAY  # only a test says when it is dead
SOON = timedelta(minutes=5)


@pytest.fixture
def box(world: World) -> Iterator[Outbox]:
    with Outbox(world.url, clock=world.clock) as made:
        yield made


def write(box: Outbox, count: int = 10) -> None:
    with box.transaction() as tx:
        box.write_all(tx, [Event("Placed", {"n": n}, key=str(n), topic="orders") for n in range(count)])


def poll_all(box: Outbox, group: str = "mail") -> int:
    """Everything the group can get now."""
    handled = 0
    with box.topics.group("orders", group).consumer() as consumer:
        while batch := consumer.poll(100):
            handled += len(batch)
            consumer.commit(batch)
    return handled


def topic(tracking: str, **options: object) -> Topic:
    given = {"retention": 7 * DAY, "shards": 4} | options
    return Topic(name="orders", semantics="pub_sub", tracking=tracking, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("partitions", ["none", "day"])
@pytest.mark.parametrize("tracking", TRACKINGS)
async def test_a_group_that_died_finds_all_that_is_within_the_retention(
    world: World, box: Outbox, tracking: str, partitions: str
) -> None:
    """Also what was written while it was dead. It was the only group; what is for nobody is kept for a day."""
    box.topics.configure(topic(tracking, partitions=partitions))
    box.topics.group("orders", "mail", silence=SOON).create()
    write(box)
    world.clock.pass_time(hours=1)
    assert (await world.maintain("ticks", "detect")).groups_died == 1
    write(box)
    world.clock.pass_time(days=5)
    report = await world.maintain("partitions", "detect", "cleanup")
    assert (report.deleted, report.lost, report.partitions_dropped) == (0, 0, 0)
    assert poll_all(box) == 20


@pytest.mark.parametrize("partitions", ["none", "day"])
@pytest.mark.parametrize("tracking", TRACKINGS)
async def test_what_a_cancelled_group_was_to_have_stays_for_the_retention(
    world: World, box: Outbox, tracking: str, partitions: str
) -> None:
    """A group of the same name, from the earliest, gets it; what comes after the last group is for nobody."""
    box.topics.configure(topic(tracking, partitions=partitions))
    box.topics.group("orders", "mail", silence=LONG).create()
    write(box)
    box.topics.group("orders", "mail").cancel(reason="by mistake")
    write(box, 3)
    world.clock.pass_time(days=2, seconds=1)
    report = await world.maintain("partitions", "detect", "cleanup")
    kept = 10 if partitions == "none" else 13  # they share a partition, which goes as a whole
    assert world.sql("SELECT count(*) FROM outbox_event_log_1") == [(kept,)]
    assert report.lost == 0
    box.topics.group("orders", "mail", start=StartFrom.earliest(), silence=LONG).create()
    assert poll_all(box) == kept
    world.clock.pass_time(days=6)
    await world.maintain("partitions", "detect", "cleanup")
    assert world.sql("SELECT count(*) FROM outbox_event_log_1") == [(0,)]


@pytest.mark.parametrize("tracking", TRACKINGS)
async def test_what_a_group_came_late_for_is_promised_to_it(world: World, box: Outbox, tracking: str) -> None:
    """Written for nobody, and then one subscribes from the earliest and dies."""
    box.topics.configure(topic(tracking, zero_retention=timedelta(hours=2)))
    write(box)
    world.clock.pass_time(hours=1)
    box.topics.group("orders", "mail", start=StartFrom.earliest(), silence=SOON).create()
    world.clock.pass_time(hours=1)
    assert (await world.maintain("detect")).groups_died == 1
    world.clock.pass_time(days=2)
    assert (await world.maintain("cleanup")).deleted == 0
    assert poll_all(box) == 10


@pytest.mark.parametrize("partitions", ["none", "day"])
@pytest.mark.parametrize("tracking", TRACKINGS)
async def test_what_a_dead_group_loses_is_counted_and_told(
    world: World, box: Outbox, tracking: str, partitions: str
) -> None:
    box.topics.configure(topic(tracking, partitions=partitions))
    for name in ("mail", "search"):
        box.topics.group("orders", name, silence=SOON).create()
    write(box, 4)
    assert poll_all(box, "mail") == poll_all(box, "search") == 4
    write(box, 10)
    assert poll_all(box, "search") == 10
    world.clock.pass_time(hours=1)
    assert (await world.maintain("ticks", "detect")).groups_died == 2
    world.clock.pass_time(days=9)
    report = await world.maintain("partitions", "detect", "cleanup")
    assert report.lost == 10
    assert world.sql("SELECT count(*) FROM outbox_event_log_1") == [(0,)]
    (alert,) = world.told("events_lost")
    assert (alert.topic, alert.group, alert.text.split()[0]) == ("orders", "mail", "10")
    assert [fact for fact in world.facts if isinstance(fact, EventsLost)] == [EventsLost("orders", "mail", 10)]
    assert [(g.group, g.lost) for g in box.topics.groups("orders")] == [("mail", 10), ("search", 0)]
    assert poll_all(box, "mail") == 0


@pytest.mark.parametrize("tracking", TRACKINGS)
async def test_what_a_slow_group_loses_at_the_longest_retention_is_counted_for_it_alone(
    world: World, box: Outbox, tracking: str
) -> None:
    box.topics.configure(topic(tracking, max_retention=10 * DAY))
    for name in ("mail", "search"):
        box.topics.group("orders", name, silence=LONG).create()
    write(box, 10)
    assert poll_all(box, "search") == 10
    box.topics.group("orders", "mail").pause(reason="test")
    world.clock.pass_time(days=11)
    assert (await world.maintain("cleanup")).lost == 10
    assert [(g.group, g.lost) for g in box.topics.groups("orders")] == [("mail", 10), ("search", 0)]


@pytest.mark.parametrize("back", ["resume", "dead", "poll", "nobody noticed"])
@pytest.mark.parametrize("tracking", TRACKINGS)
async def test_who_comes_back_has_all_its_time_before_anything_is_taken(
    world: World, box: Outbox, tracking: str, back: str
) -> None:
    """Away for longer than `zombie_ttl`, then back, and the next run of the maintenance comes before its first poll."""
    box.topics.configure(topic(tracking, retention=9 * DAY, zombie_ttl=7 * DAY))
    box.topics.group("orders", "mail", silence=SOON).create()
    mail = box.topics.group("orders", "mail")
    write(box)
    await world.maintain("ticks")
    if back == "resume":
        mail.pause(reason="holidays")
    world.clock.pass_time(days=8)
    if back in ("dead", "poll"):
        assert (await world.maintain("detect")).groups_died == 1
    if back == "resume" or back == "dead":
        mail.resume(reason="back")
    else:
        with box.topics.group("orders", "mail").consumer() as consumer:
            beat(consumer)
    box.topics.configure(topic(tracking, retention=DAY, zombie_ttl=7 * DAY))  # all of it is past that
    report = await world.maintain("detect", "cleanup")
    assert (report.put_forward, report.deleted, report.lost) == (0, 0, 0)
    assert poll_all(box) == 10


@pytest.mark.parametrize("tracking", TRACKINGS)
async def test_what_a_zombie_is_put_past_is_counted_and_told(world: World, box: Outbox, tracking: str) -> None:
    box.topics.configure(topic(tracking, retention=DAY, zombie_ttl=7 * DAY))
    box.topics.group("orders", "mail", silence=LONG).create()
    write(box)
    await world.maintain("ticks")
    world.clock.pass_time(days=8)
    report = await world.maintain("detect", "cleanup")
    assert (report.put_forward, report.deleted, report.lost) == (4, 10, 10)
    assert [alert.group for alert in world.told("events_lost")] == ["mail"]
    assert box.topics.group("orders", "mail").info().lost == 10


async def test_a_group_whose_processes_restart_and_get_nowhere_is_told_as_stalled(world: World, box: Outbox) -> None:
    box.topics.configure(topic("offset"))
    box.topics.group("orders", "mail", silence=SOON).create()
    write(box)
    await world.maintain("ticks")
    for restart in range(4):
        with box.topics.group("orders", "mail").consumer(f"m{restart}") as consumer:
            beat(consumer)
        world.clock.pass_time(seconds=110)
        await world.maintain("detect")
    (alert,) = world.told("group_stalled")
    assert (alert.group, "restarts without progress" in alert.text) == ("mail", True)
    assert world.told("group_dead") == []
    found = box.topics.group("orders", "mail").info()
    assert (found.state, "restarts without progress" in (found.reason or "")) == ("dead", True)
