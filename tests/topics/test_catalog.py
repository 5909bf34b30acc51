"""Configuring topics: all of it or nothing, by many at once, under names that fit."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest

from kit import one, rows
from relaybox import AsyncOutbox, ConfigError, Event, Outbox
from relaybox.errors import InUse, SchemaMissing
from relaybox.store.topics import TopicTables
from relaybox.topic import Topic

from .writing import connected, fresh_url, in_topic, known, leave_for_good, migrated, relation, subscribe

FEEDS = ["feeds", "capture", "define", "refresh", "snapshot", "schedule", "hand_off", "latest", "settings"]
TOPICS = ["topics", *FEEDS]  # and what stands on them
EVERY = (
    Topic.queue("rows"),
    Topic.queue("queue", tracking="offset"),
    Topic.pub_sub("offset"),
    Topic.pub_sub("bitmap", tracking="bitmap"),
    Topic.pub_sub("acks", tracking="acks"),
)


def tables(url: str) -> set[str]:
    return {row[0] for row in rows(url, "SELECT relname FROM pg_class WHERE relname LIKE 'outbox_event%'")}


@pytest.mark.parametrize("topic", EVERY, ids=lambda topic: topic.name)
def test_what_was_configured_comes_back(topic: Topic) -> None:
    wanted = topic.with_options(
        retention=timedelta(days=3, seconds=1),
        zero_retention=timedelta(hours=2),
        max_retention=timedelta(days=400),
        zombie_ttl=timedelta(days=2),
        block_writes=True,
        partitions="day",
        heartbeat_interval=timedelta(milliseconds=1500),
        heartbeat_timeout=timedelta(seconds=7),
        fetch_batch=17,
        cleanup_batch=99,
    )
    url = migrated(wanted)
    with Outbox(url) as box:
        assert known(box, topic.name).topic == wanted
        assert [row.topic for row in box.topics.list()] == [wanted]
        assert box.topics.get("other") is None
        again = box.topics.configure(wanted)
        assert (again.id, again.version) == (1, 1)
        changed = box.topics.configure(wanted.with_options(retention=timedelta(hours=1), block_writes=False))
        assert (changed.id, changed.version) == (1, 1)
        assert changed.topic.retention == timedelta(hours=1)
        assert changed.updated_at > again.updated_at
    assert relation(url, topic.name) in tables(url)


@pytest.mark.parametrize(
    ("was", "wanted", "words"),
    [
        (Topic.queue("t"), Topic.queue("t", tracking="offset"), r"tracking 'rows'.*Use move\(\)"),
        (Topic.queue("t", tracking="offset"), Topic.pub_sub("t"), "semantics 'queue'.*Use move"),
        (Topic.pub_sub("t"), Topic.pub_sub("t", tracking="bitmap"), r"tracking 'offset'.*Use move\(\)"),
        (Topic.pub_sub("t"), Topic.pub_sub("t", shards=4), "shards 16.*Make another topic$"),
    ],
)
def test_what_configure_cannot_change_is_refused_with_the_way_that_leads_there(
    was: Topic, wanted: Topic, words: str
) -> None:
    """Events in flight are finished under the mode they were written in, or moved; never reinterpreted."""
    url = migrated(was)
    with Outbox(url) as box:
        with pytest.raises(ConfigError, match=words):
            box.topics.configure(wanted)
        assert known(box, "t").topic == was


def test_a_failed_configure_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    url = migrated()
    before = tables(url)
    with Outbox(url) as box:
        store: Any = box.topic_store

        def broken(*_: object) -> Any:
            yield from ()
            raise ZeroDivisionError

        monkeypatch.setattr(store, "make_marks", broken)
        with pytest.raises(ZeroDivisionError):
            box.topics.configure(Topic.pub_sub("t", tracking="bitmap"))
        assert box.topics.get("t") is None
    assert tables(url) == before


def test_many_may_configure_at_once() -> None:
    url = migrated()
    found: list[int] = []

    def work() -> None:
        with Outbox(url) as box:
            for topic in EVERY:
                found.append(box.topics.configure(topic).id)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 30
    assert len(set(found)) == 5


async def test_the_async_twin() -> None:
    url = fresh_url()
    async with AsyncOutbox(url) as box:
        assert [m.name for m in await box.migrate()] == ["outbox", "audit", *TOPICS]
        assert await box.migrate() == []
        row = await box.topics.configure(Topic.pub_sub("t"))
        assert await box.topics.get("t") == row
        assert await box.topics.list() == [row]
        assert await box.topics.drop("t")
        assert not await box.topics.drop("t")
        with pytest.raises(ConfigError, match="expected a Topic"):
            await box.topics.configure("t")  # type: ignore[arg-type]


def test_migrating_upgrades_the_queues_too() -> None:
    """A queue tracked by rows has the tables of an outbox, of the release that made it."""
    url = migrated(Topic.queue("q", tracking="rows"))
    with Outbox(url) as box:
        [row] = box.topics.list()
        queue = f"outbox_event_queue_{row.id}"
        with box.transaction() as tx:
            tx.connection.execute(f"DROP TABLE {queue}_audit")
            tx.connection.execute(f"DELETE FROM {queue}_migration WHERE version = 2")
        assert [m.name for m in box.migrate(dry_run=True)] == ["audit"]
        with pytest.raises(SchemaMissing, match=r"relaybox migrate"):
            box.verify()
        assert [m.name for m in box.migrate()] == ["audit"]
        box.verify()
        assert box.migrate() == []


# -- drop -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("topic", EVERY, ids=lambda topic: topic.name)
def test_drop_takes_all_of_a_topic_and_nothing_else(topic: Topic) -> None:
    url = migrated(Topic.pub_sub("other"))
    before = tables(url)
    with Outbox(url) as box:
        box.topics.configure(topic)
        assert tables(url) > before
        assert box.topics.drop(topic.name)
        assert tables(url) == before
        assert [row.topic.name for row in box.topics.list()] == ["other"]
    assert one(url, "SELECT count(*) FROM outbox_event_tick WHERE topic_id <> 1") == 0
    assert one(url, "SELECT count(*) FROM outbox_event_head WHERE topic_id <> 1") == 0
    functions = "SELECT count(*) FROM pg_proc WHERE proname LIKE 'outbox_event_queue%'"
    assert one(url, functions) == 0


def test_a_topic_that_is_read_is_not_dropped() -> None:
    """Never its groups along with it, without a word."""
    url = migrated(Topic.pub_sub("t"))
    with Outbox(url) as box:
        group = subscribe(box, "t", "billing")
        with pytest.raises(InUse, match=r"billing \(active\)") as refused:
            box.topics.drop("t")
        assert (refused.value.kind, refused.value.name) == ("topic", "t")
        assert known(box, "t").active == 1
        leave_for_good(box, group)
        assert box.topics.drop("t")


def test_a_topic_that_is_being_moved_is_not_dropped() -> None:
    url = migrated(Topic.pub_sub("t"))
    rows(url, "UPDATE outbox_event_topic SET moving = '{}'")
    with Outbox(url) as box, pytest.raises(InUse, match="being moved"):
        box.topics.drop("t")


def test_a_queue_with_work_is_not_dropped() -> None:
    url = migrated(Topic.queue("t"))
    with Outbox(url) as box, connected(url) as connection:
        written_event = Event("X", {}, topic="t")
        box.write(connection, written_event)
        kept = written_event.id
        connection.commit()
        with pytest.raises(InUse, match=r"1 unfinished"):
            box.topics.drop("t")
    assert in_topic(url, "t") == [kept]


# -- names ------------------------------------------------------------------------------------------------


LONG = "a" * 48


def all_names(tables: TopicTables, topic_id: int) -> list[str]:
    names = tables.substitutions('"') | tables.log(topic_id, '"')
    return [name for key, name in names.items() if key.endswith("_name")]


@pytest.mark.parametrize("event", ["outbox_event", "a" * 31, "a" * 32, LONG])
def test_no_name_is_cut_by_the_database(event: str) -> None:
    """With room for `_shard`, `_xid` and partitions behind a log's name."""
    tables = TopicTables(event)
    names = all_names(tables, 2**31 - 1)
    assert max(map(len, names)) <= 63
    assert len(tables.part(f"log_{2**31 - 1}") + "_p20261115") <= 63
    assert len(set(names)) == len(names)


def test_names_that_begin_alike_stay_apart() -> None:
    """A truncated name must never be another outbox's."""
    first, second = (set(all_names(TopicTables(LONG[:-1] + last), 1)) for last in "bc")
    assert first & second == set()


def test_a_long_name_works() -> None:
    url = fresh_url()
    with Outbox(url, table=LONG, schema="s" * 48) as box, connected(url) as connection:
        box.migrate()
        for topic in EVERY:
            box.topics.configure(topic.with_options(partitions="day"))
            if topic.tracking != "rows":
                subscribe(box, topic.name, "g")
            box.write(connection, Event("X", {}, topic=topic.name))
        connection.commit()
        box.verify()
        assert box.topic_store is not None
        assert box._db.run(box.topic_store.drift()) == []
    longest = one(url, f"SELECT max(length(relname)) FROM pg_class WHERE relnamespace = '{'s' * 48}'::regnamespace")
    assert longest <= 63


def test_a_name_that_is_taken_is_not_shared() -> None:
    """Another outbox may bear the very name that a queue would get."""
    url = migrated()
    with Outbox(url, table="outbox_event_queue_1") as other, Outbox(url) as box:
        other.migrate()
        with pytest.raises(ConfigError, match="outbox_event_queue_1"):
            box.topics.configure(Topic.queue("t"))
        assert box.topics.configure(Topic.queue("t")).id == 2, "the next number is free"


def test_any_topic_name_works() -> None:
    names = ["x" * 255, "with blank", "quo'te\"s", "%s :name {log}", "übermäßig", "name.shard-0", "a/b:c"]
    url = migrated(*(Topic.pub_sub(name) for name in names))
    with Outbox(url) as box, connected(url) as connection:
        events = [Event("X", {}, topic=name) for name in names]
        box.write_all(connection, events)
        ids = [event.id for event in events]
        connection.commit()
        stored = [one(url, f"SELECT event_id FROM outbox_event_log_{n}") for n in range(1, len(names) + 1)]
        assert stored == ids
        assert sorted(row.topic.name for row in box.topics.list()) == sorted(names)


# -- schema -----------------------------------------------------------------------------------------------


def test_migrating_an_outbox_makes_the_tables_of_topics() -> None:
    url = fresh_url()
    with Outbox(url) as box:
        assert [m.name for m in box.migrate(dry_run=True)] == ["outbox", "audit", *TOPICS]
        with pytest.raises(SchemaMissing):
            box.verify()
        assert len(box.migrate()) == 2 + len(TOPICS)
        assert box.migrate(dry_run=True) == box.migrate() == []
        box.verify()


def test_an_outbox_from_before_topics_is_upgraded() -> None:
    url = fresh_url()
    with Outbox(url) as box:
        box._db.run(box.store.migrate())
        with pytest.raises(SchemaMissing, match="topics"):
            box.verify()
        assert [m.name for m in box.migrate()] == TOPICS


def test_drift_is_seen_in_the_tables_of_each_topic() -> None:
    url = migrated(*EVERY)
    with Outbox(url) as box:
        assert box.topic_store is not None
        assert box._db.run(box.topic_store.drift()) == []
        rows(url, "DROP INDEX outbox_event_log_3_xid")
        rows(url, "ALTER TABLE outbox_event_log_2 DROP COLUMN tenant_id")
        rows(url, "ALTER TABLE outbox_event_group DROP COLUMN reason CASCADE")
        assert box._db.run(box.topic_store.drift()) == [
            "outbox_event_group.reason is missing",
            "outbox_event_log_2.tenant_id is missing",
            "index outbox_event_log_3_xid is missing",
        ]
