"""What may go and what must stay: by age, by groups that keep their claim, by marks."""

from __future__ import annotations

from datetime import timedelta

import pytest

from relaybox import Event
from relaybox.errors import InUse
from relaybox.facts import Cleaned
from relaybox.store.outbox import open_store
from relaybox.types import TopicSettings

from .kit import World, run_jobs

DAY = timedelta(days=1)
TRACKINGS = ("offset", "bitmap", "acks")


@pytest.mark.parametrize("tracking", TRACKINGS)
async def test_fl10_events_without_any_group_go_by_age(world: World, tracking: str) -> None:
    """No status is asked for: there will never be one."""
    topic = world.topic(tracking=tracking, zero_retention=timedelta(hours=2), retention=DAY)
    world.write(topic, 10)
    world.clock.pass_time(hours=1)
    assert (await world.maintain("cleanup")).deleted == 0
    world.clock.pass_time(hours=1, seconds=1)
    assert (await world.maintain("cleanup")).deleted == 10
    assert world.stored(topic) == 0


@pytest.mark.parametrize("tracking", ["bitmap", "acks"])
async def test_zero_retention_may_be_longer_than_the_retention(world: World, tracking: str) -> None:
    topic = world.topic(tracking=tracking, zero_retention=7 * DAY, retention=DAY)
    world.write(topic, 5)
    late = world.group(topic, start="latest")
    world.write(topic, 5)
    world.read_all(topic, late)
    if tracking == "acks":
        world.sql(f"UPDATE outbox_event_mark_{topic.id} SET completed_at = now() WHERE required <> '{{}}'")
    world.clock.pass_time(days=2)
    assert (await world.maintain("cleanup")).deleted == 5
    world.clock.pass_time(days=6)
    assert (await world.maintain("cleanup")).deleted == 5


async def test_fl11_a_topic_with_nothing_but_defaults_is_cleaned(world: World) -> None:
    topic = world.topic("plain")
    world.write(topic, 3)
    world.clock.pass_time(hours=25)
    assert (await world.maintain("cleanup")).deleted == 3


@pytest.mark.parametrize("tracking", ["offset", "bitmap"])
@pytest.mark.parametrize("state", ["active", "paused"])
async def test_a_group_that_keeps_its_claim_keeps_the_events(world: World, tracking: str, state: str) -> None:
    topic = world.topic(tracking=tracking)
    group = world.group(topic)
    world.write(topic, 20)
    world.tick(topic)
    if state == "paused":
        group = world.state(group, "paused")
    world.clock.pass_time(days=3)
    assert (await world.maintain("cleanup")).deleted == 0
    world.read_all(topic, group)
    assert (await world.maintain("cleanup")).deleted == 20


@pytest.mark.parametrize("tracking", ["offset", "bitmap"])
async def test_only_what_every_group_has_passed_goes(world: World, tracking: str) -> None:
    topic = world.topic(tracking=tracking)
    fast, slow = world.group(topic, "fast"), world.group(topic, "slow")
    world.write(topic, 20)
    world.read_all(topic, fast)
    world.read_all(topic, slow, shards=[0, 1])
    world.clock.pass_time(days=2)
    report = await world.maintain("cleanup")
    left = {row[0] for row in world.sql(f"SELECT shard FROM outbox_event_log_{topic.id}")}
    if tracking == "offset":
        assert left == {2, 3}
        assert report.deleted > 0
    else:  # the slow one's bit is open everywhere
        assert report.deleted == 0


async def test_what_a_member_has_taken_is_not_passed(world: World) -> None:
    """The cursor is ahead, the range behind it: the process that takes it over must find its events."""
    topic = world.topic()
    group = world.group(topic)
    world.write(topic, 20)
    tick = world.tick(topic)
    world.read_all(topic, group)
    world.sql(
        "INSERT INTO outbox_event_range "
        "(token, group_id, shard, n, base, target, after, upto, owner, until, attempts, events) "
        f"SELECT s + 1, {group.id}, s, 1, 0, {tick}, 0, 1000, 7, now(), 1, 5 FROM generate_series(0, 3) s"
    )
    world.clock.pass_time(days=3)
    assert (await world.maintain("cleanup")).deleted == 0
    world.sql("DELETE FROM outbox_event_range")
    assert (await world.maintain("cleanup")).deleted == 20


@pytest.mark.parametrize("tracking", ["offset", "bitmap", "acks"])
async def test_a_dead_group_holds_nothing(world: World, tracking: str) -> None:
    """Two finish, the third dies; the events become complete and go, without further acks."""
    topic = world.topic(tracking=tracking)
    alive, dead = world.group(topic, "alive"), world.group(topic, "dead")
    world.write(topic, 20)
    world.read_all(topic, alive)
    if tracking == "acks":
        world.sql(f"INSERT INTO outbox_event_ack_{topic.id} SELECT seq, {alive.id} FROM outbox_event_mark_{topic.id}")
    world.clock.pass_time(days=2)
    assert (await world.maintain("cleanup")).deleted == 0
    world.state(dead, "dead")
    report = await world.maintain("detect", "cleanup")
    assert report.released == (20 if tracking != "offset" else 0)
    assert report.deleted == 20
    if tracking != "offset":
        assert world.marks(topic) == 0


async def test_an_open_mark_keeps_its_event_although_the_cursor_is_past_it(world: World) -> None:
    """It is parked with its group: not complete."""
    topic = world.topic(tracking="bitmap")
    group = world.group(topic)
    seqs = world.write(topic, 10)
    world.read_all(topic, group)
    world.sql(f"UPDATE outbox_event_mark_{topic.id} SET done = 0, completed_at = NULL WHERE seq = {seqs[0]}")
    world.clock.pass_time(days=2)
    assert (await world.maintain("cleanup")).deleted == 9
    assert world.marks(topic) == 1


@pytest.mark.parametrize("tracking", TRACKINGS)
async def test_nothing_outlives_the_longest_retention(world: World, tracking: str) -> None:
    topic = world.topic(tracking=tracking, max_retention=30 * DAY)
    paused = world.group(topic)
    world.write(topic, 10)
    world.tick(topic)
    world.state(paused, "paused")
    world.clock.pass_time(days=29)
    assert (await world.maintain("cleanup")).deleted == 0
    world.clock.pass_time(days=2)
    report = await world.maintain("cleanup")
    assert (report.deleted, report.lost) == (10, 10)
    (alert,) = world.told("events_lost")
    assert (alert.topic, alert.text.split()[0]) == ("orders", "10")


@pytest.mark.parametrize("tracking", ["offset", "bitmap", "acks"])
async def test_a_zombie_is_put_forward(world: World, tracking: str) -> None:
    """It gives heartbeats and does not move: after its time it is put past what is beyond the retention, no further."""
    topic = world.topic(tracking=tracking, zombie_ttl=7 * DAY, retention=DAY)
    group = world.group(topic)
    world.write(topic, 10)
    world.tick(topic)
    world.clock.pass_time(days=6, hours=20)
    world.write(topic, 5)
    world.tick(topic)
    world.clock.pass_time(hours=3)
    assert (await world.maintain("detect", "cleanup")).put_forward == 0
    world.clock.pass_time(hours=2)
    report = await world.maintain("detect", "cleanup")
    assert report.put_forward == 4
    assert report.deleted == 10
    assert world.stored(topic) == 5
    (alert,) = world.told("group_put_forward")
    assert alert.group == group.name
    assert (await world.maintain("detect")).put_forward == 0


async def test_a_zombie_does_not_get_again_what_it_had_taken(world: World) -> None:
    """Its interval reaches further than where it is put: what is taken of that stays taken."""
    topic = world.topic(zombie_ttl=7 * DAY, shards=1)
    group = world.group(topic)
    world.write(topic, 10)
    middle = world.tick(topic)
    world.clock.pass_time(days=9)
    world.write(topic, 10)
    newest = world.tick(topic)
    world.sql(f"UPDATE outbox_event_cursor SET target = {newest}, seq = 15 WHERE group_id = {group.id}")
    world.sql(
        "INSERT INTO outbox_event_range "
        "(token, group_id, shard, n, base, target, after, upto, owner, until, attempts, events) VALUES "
        f"(1, {group.id}, 0, 1, 0, {newest}, 12, 15, 7, now(), 1, 3), "
        f"(2, {group.id}, 0, 2, 0, {middle}, 0, 5, 7, now(), 1, 5)"
    )
    assert (await world.maintain("detect", "cleanup")).put_forward == 1
    assert world.sql("SELECT base, target, seq FROM outbox_event_cursor") == [(middle, newest, 15)]
    assert world.sql("SELECT token, base FROM outbox_event_range") == [(1, middle)]
    assert world.stored(topic) == 10


async def test_a_slow_group_is_no_zombie(world: World) -> None:
    """One of its shards moved lately: it is behind, not gone."""
    topic = world.topic(zombie_ttl=7 * DAY)
    group = world.group(topic)
    world.write(topic, 10)
    world.tick(topic)
    world.clock.pass_time(days=6)
    world.read_all(topic, group, shards=[1])
    world.clock.pass_time(days=2)
    assert (await world.maintain("detect", "cleanup")).put_forward == 0


async def test_a_paused_group_is_no_zombie(world: World) -> None:
    topic = world.topic(zombie_ttl=7 * DAY)
    group = world.group(topic)
    world.write(topic, 10)
    world.tick(topic)
    world.state(group, "paused")
    world.clock.pass_time(days=10)
    assert (await world.maintain("detect", "cleanup")).put_forward == 0
    assert world.stored(topic) == 10


async def test_an_idle_group_is_no_zombie(world: World) -> None:
    topic = world.topic(zombie_ttl=7 * DAY)
    group = world.group(topic)
    world.write(topic, 10)
    world.read_all(topic, group)
    world.clock.pass_time(days=10)
    assert (await world.maintain("ticks", "detect")).put_forward == 0


async def test_a_group_that_starts_at_the_beginning_finds_all_that_is_there(world: World) -> None:
    topic = world.topic(zero_retention=10 * DAY)
    world.write(topic, 10)
    world.clock.pass_time(days=3)
    world.group(topic, start="earliest")
    world.clock.pass_time(days=20)
    assert (await world.maintain("cleanup")).deleted == 0


async def test_an_event_committed_after_the_tick_is_unread(world: World) -> None:
    """A transaction from before the group's place that commits late, old as its event may look."""
    import psycopg

    topic = world.topic()
    group = world.group(topic)
    with psycopg.connect(world.url) as late:
        late.execute(
            f"INSERT INTO outbox_event_log_{topic.id} "
            "(seq, shard, event_id, event_type, payload, occurred_at, created_at)"
            f" VALUES (nextval('outbox_event_log_{topic.id}_seq'), 0, 'late', 'Placed', '', %s, %s)",
            (world.now, world.now),
        )
        world.write(topic, 10)
        world.read_all(topic, group)
        late.commit()
    world.clock.pass_time(days=3)
    assert (await world.maintain("cleanup")).deleted == 10
    assert world.sql(f"SELECT event_id FROM outbox_event_log_{topic.id}") == [("late",)]


async def test_fl56_a_run_loops_until_all_is_gone_in_small_batches(world: World) -> None:
    topic = world.topic(cleanup_batch=100)
    world.write(topic, 1000)
    world.clock.pass_time(days=2)
    report = await world.maintain("cleanup", upkeep=TopicSettings(cleanup_batch=40))
    assert report.deleted == 1000
    assert [fact.events for fact in world.facts if isinstance(fact, Cleaned)] == [1000]


async def test_what_does_not_fit_into_the_budget_waits_and_is_told(world: World) -> None:
    topic = world.topic(cleanup_batch=100)
    world.write(topic, 1000)
    world.clock.pass_time(days=2)
    report = await world.maintain("cleanup", upkeep=TopicSettings(cleanup_batch=40, cleanup_budget="1us"))
    assert 0 <= report.deleted < 1000
    assert report.backlog == 1000 - report.deleted


async def test_a_topic_with_much_to_do_does_not_keep_the_others_waiting(world: World) -> None:
    """The budget ends in the first; the next run begins with the one that had no turn."""
    large, small = world.topic("a-large", cleanup_batch=20), world.topic("b-small", cleanup_batch=20)
    world.write(large, 2000)
    world.write(small, 10)
    world.clock.pass_time(days=2)
    maintainer = world.maintainer(upkeep=TopicSettings(cleanup_budget=timedelta(milliseconds=20)))
    for _ in range(4):
        await run_jobs(maintainer, "cleanup")
    await maintainer.stop()
    assert world.stored(small) == 0
    assert world.stored(large) > 0


async def test_what_a_paused_group_keeps_is_not_walked_through_in_every_run(world: World) -> None:
    topic = world.topic(shards=1)
    group = world.group(topic)
    world.write(topic, 100)
    world.tick(topic)
    world.state(group, "paused")
    world.clock.pass_time(days=2)
    sweep = world.run(world.store.sweep_log(topic, {0: 0}, 10, world.now))
    assert sweep is not None
    assert (sweep.deleted, sweep.places) == (0, {}), "nobody is past the first page, so nobody is past the next"


async def test_a_queue_of_rows_loses_what_is_finished_and_old(world: World) -> None:
    topic = world.topic("jobs", semantics="queue", tracking="rows")
    queue = open_store("postgres", world.store.tables.queue(topic.id))
    world.run(queue.write([Event("Placed", {"n": n}) for n in range(10)], None, world.now))
    world.sql(f"DELETE FROM outbox_event_queue_{topic.id}_pending WHERE seq <= 5")
    world.clock.pass_time(days=2)
    await world.maintain("cleanup")
    assert world.sql(f"SELECT count(*) FROM outbox_event_queue_{topic.id}") == [(5,)]


# -- groups ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["dead", "cancelled"])
async def test_fl35_old_groups_are_forgotten_by_what_is_their_own(world: World, state: str) -> None:
    """The topic is busy with others: that does not matter."""
    topic = world.topic(tracking="bitmap", max_retention=100 * DAY)
    busy, old = world.group(topic, "busy"), world.group(topic, "old")
    world.write(topic, 10)
    old = world.state(old, state)
    world.clock.pass_time(days=29)
    assert (await world.maintain("detect", "groups")).groups_forgotten == 0
    world.clock.pass_time(days=2)
    assert (await world.maintain("detect", "groups")).groups_forgotten == 1
    assert [group.name for group in world.run(world.store.groups())] == [busy.name]


async def test_a_group_with_parked_events_is_kept(world: World) -> None:
    topic = world.topic()
    group = world.state(world.group(topic), "dead")
    park(world, group.id, "retry")
    world.clock.pass_time(days=60)
    assert (await world.maintain("groups")).groups_forgotten == 0
    world.sql("DELETE FROM outbox_event_parked")
    assert (await world.maintain("groups")).groups_forgotten == 1


async def test_a_cancelled_group_is_forgotten_with_what_it_parked(world: World) -> None:
    """Nobody can replay it: its name may belong to a new group by then."""
    topic = world.topic()
    group = world.group(topic)
    for state in ("retry", "dead"):
        park(world, group.id, state)
    world.state(group, "cancelled")
    world.clock.pass_time(days=29)
    assert (await world.maintain("groups")).groups_forgotten == 0
    world.clock.pass_time(days=2)
    assert (await world.maintain("groups")).groups_forgotten == 1
    assert world.sql("SELECT count(*) FROM outbox_event_parked") == [(0,)]


def park(world: World, group: int, state: str) -> None:
    world.sql(
        "INSERT INTO outbox_event_parked (group_id, seq, shard, key_hash, state, attempts, due, parked_at, dead_at, "
        "event_id, event_type, payload, occurred_at, created_at) "
        f"SELECT {group}, coalesce(max(seq), 0) + 1, 0, 1, '{state}', 1, now(), now(), '{world.now}', 'e', 't', '',"
        " now(), now() FROM outbox_event_parked"
    )


async def test_dead_letters_stay_unless_a_retention_is_set(world: World) -> None:
    topic = world.topic()
    group = world.group(topic)
    park(world, group.id, "dead")
    park(world, group.id, "retry")
    world.clock.pass_time(days=300)
    assert (await world.maintain("cleanup")).letters_purged == 0
    assert (await world.maintain("cleanup", upkeep=TopicSettings(dead_retention=DAY))).letters_purged == 1
    assert world.sql("SELECT state FROM outbox_event_parked") == [("retry",)]


async def test_a_topic_with_groups_cannot_go(world: World) -> None:
    topic = world.topic()
    world.group(topic)
    with pytest.raises(InUse, match="mail"):
        world.run(world.store.drop("orders"))
    with pytest.raises(Exception, match=r"violates .*foreign key"):
        world.sql(f"DELETE FROM outbox_event_topic WHERE id = {topic.id}")


async def test_in_a_topic_that_is_spread_only_what_was_read_goes(world: World) -> None:
    """Rows are deleted by their place, and every table has the same places."""
    topic = world.topic(spread=4)
    group = world.group(topic)
    world.write(topic, 200)
    shards = dict(world.sql(f"SELECT shard, count(*) FROM outbox_event_log_{topic.id} GROUP BY shard"))
    assert len(shards) == 4
    world.read_all(topic, group, shards=[1])
    world.clock.pass_time(days=2)
    assert (await world.maintain("cleanup")).deleted == shards.pop(1)
    assert dict(world.sql(f"SELECT shard, count(*) FROM outbox_event_log_{topic.id} GROUP BY shard")) == shards
