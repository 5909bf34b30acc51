"""Partitions with compressed time: made ahead, dropped behind the slowest live group, nobody waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import psycopg
import pytest

from relaybox.types import TopicSettings

from .kit import NOON, World

DAY = timedelta(days=1)
PATIENCE = timedelta(milliseconds=500)


def days(world: World, first: int, last: int) -> list[str]:
    """Names of the days `first` to `last` after the first."""
    return [(NOON + n * DAY).strftime("%Y%m%d") for n in range(first, last + 1)]


async def test_made_ahead(world: World) -> None:
    topic = world.topic(partitions="day")
    await world.maintain("partitions")
    assert world.partitions(topic) == days(world, 0, 7)
    world.clock.pass_time(days=3)
    assert (await world.maintain("partitions")).partitions_made == 3
    world.write(topic, 10)
    assert world.sql(f"SELECT count(*) FROM outbox_event_log_{topic.id}_rest") == [(0,)]


async def test_months(world: World) -> None:
    topic = world.topic(partitions="month")
    await world.maintain("partitions")
    assert world.partitions(topic) == ["203103", "203104", "203105"]
    world.write(topic, 10)
    world.clock.pass_time(days=70)
    report = await world.maintain("partitions")
    assert report.partitions_dropped == 2
    assert world.partitions(topic) == ["203105", "203106", "203107"]
    assert world.stored(topic) == 0


@pytest.mark.parametrize(("tracking", "spread"), [("offset", 1), ("bitmap", 1), ("offset", 4)])
async def test_ten_days(world: World, tracking: str, spread: int) -> None:
    """Seven days of retention; nothing unread is ever dropped, everything else is."""
    topic = world.topic(partitions="day", retention=7 * DAY, zero_retention=7 * DAY, tracking=tracking, spread=spread)
    await world.maintain("partitions")
    fast, slow = world.group(topic, "fast"), world.group(topic, "slow")
    behind: list[int] = []
    for day in range(20):
        world.write(topic, 40)
        world.read_all(topic, fast)
        if day % 4 == 3 and day < 12:
            world.read_all(topic, slow)
            behind = []
        else:
            behind.append(day)
        await world.maintain("partitions", "cleanup", "thin")
        there = world.partitions(topic)
        assert there[-1] == days(world, day + 7, day + 7)[0], "seven days are always ahead"
        kept = min([*behind, max(0, day - 7)])
        assert there[0] == days(world, kept, kept)[0], "whatever is unread or young is there, and nothing else"
        assert world.stored(topic) == 40 * (day - kept + 1)
        world.clock.pass_time(days=1)
    world.state(slow, "dead")
    await world.maintain("detect", "partitions")
    assert world.partitions(topic)[0] == days(world, 13, 13)[0]
    assert world.sql("SELECT count(*) FROM outbox_event_tick")[0][0] < 60


async def test_what_lies_in_no_partition_is_deleted_by_rows(world: World) -> None:
    """Nobody made one in time: the insert went into the rest, and so does the partition of that time wait."""
    topic = world.topic()
    world.write(topic, 10)
    topic = world.topic(partitions="day")
    await world.maintain("partitions")
    assert world.partitions(topic) == days(world, 1, 7)
    world.clock.pass_time(days=2)
    world.write(topic, 10)
    assert (await world.maintain("cleanup")).deleted == 10
    assert world.stored(topic) == 10


async def test_fl24_a_partitioned_log_has_no_key_that_forbids_it(world: World) -> None:
    """Numbers are unique because they are drawn from one sequence; marks name events by them, without a foreign key."""
    topic = world.topic(partitions="day", tracking="bitmap")
    seqs = world.write(topic, 3)
    world.clock.pass_time(days=1)
    seqs += world.write(topic, 3)
    assert len(set(seqs)) == 6
    assert world.sql(f"SELECT count(DISTINCT tableoid) FROM outbox_event_log_{topic.id}") == [(2,)]
    log = f"'outbox_event_log_{topic.id}'::regclass"
    keys = f"SELECT count(*) FROM pg_constraint WHERE conrelid = {log} AND contype NOT IN ('n', 'c')"
    assert world.sql(keys) == [(0,)]


async def test_fl26_a_late_writer_of_a_dropped_day_finds_a_place(world: World) -> None:
    topic = world.topic(partitions="day")
    await world.maintain("partitions")
    world.write(topic, 1)
    world.clock.pass_time(days=5)
    await world.maintain("partitions")
    assert days(world, 0, 0)[0] not in world.partitions(topic)
    world.clock.at = NOON
    world.write(topic, 1)
    assert world.stored(topic) == 1


@pytest.mark.parametrize("spread", [1, 4])
async def test_fl26_an_open_writer_keeps_its_partition(world: World, spread: int) -> None:
    topic = world.topic(partitions="day", spread=spread)
    await world.maintain("partitions")
    group = world.group(topic)
    with psycopg.connect(world.url) as late:
        late.execute(insert(topic.id), (world.now,))
        world.read_all(topic, group)
        world.clock.pass_time(days=3)
        report = await world.maintain("partitions")
        assert report.partitions_dropped == 0
        assert len(world.told("partition_blocked")) == 1
        late.commit()
    assert (await world.maintain("partitions")).partitions_dropped == 1, "the day is unread now; the empty one goes"
    assert world.stored(topic) == 1
    world.read_all(topic, group)
    assert (await world.maintain("partitions")).partitions_dropped == 1
    assert [alert.over for alert in world.told("partition_blocked")] == [False, True]


async def test_fl25_each_topic_has_partitions_of_its_own(world: World) -> None:
    busy, quiet = world.topic("busy", partitions="day"), world.topic("quiet", partitions="day")
    await world.maintain("partitions")
    group = world.group(quiet)
    for topic in (busy, quiet):
        world.write(topic, 5)
        world.tick(topic)
    world.clock.pass_time(days=3)
    await world.maintain("partitions")
    assert (world.stored(busy), world.stored(quiet)) == (0, 5)
    world.read_all(quiet, group)
    await world.maintain("partitions")
    assert world.stored(quiet) == 0


async def test_past_the_longest_retention_a_partition_goes_unread(world: World) -> None:
    topic = world.topic(partitions="day", max_retention=10 * DAY)
    await world.maintain("partitions")
    world.state(world.group(topic), "paused")
    world.write(topic, 5)
    world.tick(topic)
    world.clock.pass_time(days=10)
    await world.maintain("partitions")
    assert world.stored(topic) == 5
    world.clock.pass_time(days=1)
    await world.maintain("partitions")
    assert world.stored(topic) == 0
    assert len(world.told("events_lost")) == 1


async def test_a_group_that_subscribes_now_stops_the_drop(world: World) -> None:
    """It holds the topic's row until it commits; the drop does not wait for it, and looks again next time."""
    topic = world.topic(partitions="day", zero_retention=DAY)
    await world.maintain("partitions")
    world.write(topic, 5)
    world.clock.pass_time(days=3)
    with psycopg.connect(world.url) as subscriber:
        subscriber.execute(f"SELECT 1 FROM outbox_event_topic WHERE id = {topic.id} FOR NO KEY UPDATE")
        assert (await world.maintain("partitions")).partitions_dropped == 0
    world.group(topic, start="earliest")
    assert (await world.maintain("partitions")).partitions_dropped == 1, "only the day without events"
    assert world.stored(topic) == 5


async def test_marks_go_with_their_partition(world: World) -> None:
    topic = world.topic(partitions="day", tracking="bitmap")
    await world.maintain("partitions")
    group = world.group(topic)
    world.write(topic, 50)
    world.read_all(topic, group)
    world.clock.pass_time(days=3)
    await world.maintain("partitions")
    assert (world.stored(topic), world.marks(topic)) == (0, 0)


# -- nobody waits ----------------------------------------------------------------------------------


def insert(topic_id: int) -> str:
    return (
        f"INSERT INTO outbox_event_log_{topic_id} (seq, shard, event_id, event_type, payload, occurred_at, created_at) "
        f"VALUES (nextval('outbox_event_log_{topic_id}_seq'), 0, 'e', 'Placed', '', now(), %s)"
    )


@contextmanager
def writing(world: World, topic_id: int) -> Iterator[list[float]]:
    """A writer that never rests, and how long each of its inserts took."""
    took: list[float] = []
    stop = threading.Event()

    def write() -> None:
        with psycopg.connect(world.url, autocommit=True) as connection:
            while not stop.is_set():
                start = time.monotonic()
                connection.execute(insert(topic_id), (world.now,))
                took.append(time.monotonic() - start)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield took
    finally:
        stop.set()
        thread.join()


async def test_no_insert_waits_longer_than_the_lock_timeout(world: World) -> None:
    """A reader holds the log for the whole time, so every drop and every new partition asks in vain at first: the
    writer waits behind each of these questions, and never longer than one may take."""
    topic = world.topic(partitions="day")
    await world.maintain("partitions")
    world.write(topic, 10)
    world.clock.pass_time(days=3)
    with writing(world, topic.id) as took:
        with psycopg.connect(world.url) as reader:
            reader.execute(f"SELECT count(*) FROM outbox_event_log_{topic.id}")
            upkeep = TopicSettings(lock_timeout=PATIENCE)
            report = await world.maintain("partitions", upkeep=upkeep)
            assert (report.partitions_dropped, report.partitions_made) == (0, 0)
        blocked = max(took)
        report = await world.maintain("partitions", upkeep=upkeep)
        assert (report.partitions_dropped, report.partitions_made) == (2, 3)
        count = len(took)
    assert count > 100
    assert blocked > PATIENCE.total_seconds() / 2, "the test sees waiting"
    assert max(took) < 1.9 * PATIENCE.total_seconds()
    assert [alert.over for alert in world.told("partition_blocked")] == [False, True]
    assert [alert.over for alert in world.told("partition_late")] == []
