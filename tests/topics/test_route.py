"""Where an event with a topic goes, decided in the statement that stores it."""

# ruff: noqa: PT012 - a transaction block fails at its end, so the whole of it stands inside raises()

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from kit import QUICK, Probe, make_box, one, rows, sqlite_url
from relaybox import AsyncOutbox, Contracts, Event, InvalidEvent, Outbox
from relaybox.errors import ContractViolation, NoSubscribers, StoreBusy
from relaybox.event import TOPIC_HEADER
from relaybox.facts import Delivered
from relaybox.ids import shard_of
from relaybox.op import run
from relaybox.spi import WriterHook
from relaybox.testing.servers import require
from relaybox.topic import Topic

from .writing import connected, in_outbox, in_topic, join, known, leave_for_good, migrated, relation, subscribe

LENIENT = QUICK.replaced({"outbox.unknown_topics": "outbox"})


def event(topic: str | None, n: int = 0, **options: Any) -> Event:
    return Event("Happened", {"n": n}, topic=topic, **options)


# -- zero subscriptions ---------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 250], ids=["one", "arrays", "copy"])
@pytest.mark.parametrize(
    ("topic", "subscribed", "allowed"),
    [
        (Topic.pub_sub("t", block_writes=True), False, False),
        (Topic.pub_sub("t", block_writes=True), True, True),
        (Topic.pub_sub("t"), False, True),
        (Topic.queue("t", tracking="offset", block_writes=True), False, True),
        (Topic.queue("t", block_writes=True), False, True),
        (None, False, True),
    ],
    ids=["blocks", "has a group", "flag off", "queue on a log", "queue", "unconfigured"],
)
def test_the_matrix(topic: Topic | None, subscribed: bool, allowed: bool, count: int, caplog: Any) -> None:
    url = migrated(*([topic] if topic else []))
    events = [event("t", n) for n in range(count)]
    with Outbox(url, settings=LENIENT) as box, connected(url) as connection:
        if subscribed:
            subscribe(box, "t", "g")
        if allowed:
            assert len(set(box.write_all(connection, events)) - {None}) == count
        else:
            with pytest.raises(NoSubscribers, match="'t'"), caplog.at_level(logging.WARNING, "relaybox"):
                box.write_all(connection, events)
            assert "no active subscription" in caplog.text
            box.write(connection, event(None))  # the transaction is still good
        connection.commit()
    if topic is not None:
        assert len(in_topic(url, "t")) == (count if allowed else 0)
    assert len(in_outbox(url)) == (count if topic is None else 0 if allowed else 1)


@pytest.mark.parametrize("tracking", ["offset", "bitmap", "acks"])
def test_every_tracking_blocks(tracking: Any) -> None:
    url = migrated(Topic.pub_sub("t", tracking=tracking, block_writes=True))
    with Outbox(url) as box, connected(url) as connection:
        with pytest.raises(NoSubscribers):
            box.write(connection, event("t"))
        group = subscribe(box, "t", "g")
        box.write(connection, event("t"))
        leave_for_good(box, group)
        with pytest.raises(NoSubscribers):  # decided by what is committed when the statement begins
            box.write(connection, event("t"))
        connection.commit()
    assert len(in_topic(url, "t")) == 1


def test_a_writer_waits_for_no_subscriber_and_no_subscriber_for_a_writer() -> None:
    """Without a lock: neither waits, whatever the other has open."""
    url = migrated(Topic.pub_sub("t", block_writes=True))
    with Outbox(url) as box, connected(url) as writer, connected(url) as other:
        group = subscribe(box, "t", "g")
        box.write(writer, event("t", 1))  # stays open while the only group leaves
        other.execute("UPDATE outbox_event_topic SET active = 0")  # leaving, not committed
        writer.execute("SET LOCAL statement_timeout = '2s'")
        box.write(writer, event("t", 2))
        other.rollback()
        leave_for_good(box, group)
        with pytest.raises(NoSubscribers):
            box.write(writer, event("t", 3))
        writer.commit()
    assert len(in_topic(url, "t")) == 2


def test_a_blocked_topic_of_a_mixed_batch_is_tried_first() -> None:
    url = migrated(Topic.pub_sub("open"), Topic.pub_sub("t", block_writes=True))
    with Outbox(url) as box, connected(url) as connection:
        with pytest.raises(NoSubscribers):
            box.write_all(connection, [event("open"), event(None), event("t")])
        connection.commit()
    assert in_topic(url, "open") == in_topic(url, "t") == in_outbox(url) == []


# -- who must have it -----------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 3, 250], ids=["one", "few", "copy"])
@pytest.mark.parametrize("tracking", ["bitmap", "acks"])
def test_marks_name_the_groups_of_the_moment(tracking: Any, count: int) -> None:
    """Read from the topic's row inside the insert, never from a cache."""
    url = migrated(Topic.pub_sub("t", tracking=tracking))
    with Outbox(url) as box, connected(url) as connection:
        box.write_all(connection, [event("t", n) for n in range(count)])
        groups = [subscribe(box, "t", name) for name in ("a", "b")]
        box.write_all(connection, [event("t", n) for n in range(count)])
        leave_for_good(box, groups[0])
        box.write_all(connection, [event("t", n) for n in range(count)])
        connection.commit()
    found = [row[0] for row in rows(url, "SELECT required FROM outbox_event_mark_1 ORDER BY seq")]
    none, both, second = (0, 3, 2) if tracking == "bitmap" else ([], [g.id for g in groups], [groups[1].id])
    assert found == [none] * count + [both] * count + [second] * count
    assert one(url, "SELECT count(*) FROM outbox_event_log_1 JOIN outbox_event_mark_1 USING (seq)") == 3 * count


def test_a_group_of_one_and_a_queue_are_told_apart_by_the_topic() -> None:
    """The mode is the topic's, whatever the number of groups; nothing about it is on the event."""
    url = migrated(Topic.pub_sub("p", tracking="bitmap"), Topic.queue("q", tracking="offset"))
    with Outbox(url) as box, connected(url) as connection:
        subscribe(box, "p", "only")
        box.write_all(connection, [event("p"), event("q")])
        connection.commit()
        assert [row.topic.semantics for row in box.topics.list()] == ["pub_sub", "queue"]
    assert one(url, "SELECT to_regclass('outbox_event_mark_2')") is None


# -- unconfigured topics --------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 250])
def test_an_unconfigured_topic_is_a_queue_in_the_outbox(count: int) -> None:
    url = migrated()
    probe = Probe()
    events = [event("later", n, headers={"a": "b"}) for n in range(count)]
    with make_box("alone", url, probe, is_async=False, settings=LENIENT).running() as box, connected(url) as connection:
        box.write_all(connection, events)
        connection.commit()
        probe.wait(probe.has(*(e.id for e in events)))
    assert {seen.event.topic for seen in probe.seen} == {"later"}
    assert probe.seen[0].event.headers == {"a": "b", TOPIC_HEADER: "later"}


def test_what_nobody_configured_is_purged_like_the_rest() -> None:
    """No row in the catalog must not mean: kept for ever."""
    url = migrated()
    probe = Probe()
    with make_box("alone", url, probe, is_async=False, settings=LENIENT).running() as box, connected(url) as connection:
        written_event = event("later")
        box.write(connection, written_event)
        sent = written_event.id
        connection.commit()
        probe.wait(lambda: probe.of(Delivered))
        assert box.purge(done=timedelta(0)) == 1
    assert probe.ids == [sent]
    assert in_outbox(url) == []


def test_what_is_configured_meanwhile_is_used_from_the_next_write_on() -> None:
    """A process that has met the unconfigured name must not go on for a minute."""
    url = migrated()
    with Outbox(url, settings=LENIENT) as box, Outbox(url) as elsewhere, connected(url) as connection:
        written_event = event("t")
        box.write(connection, written_event)
        before = written_event.id
        elsewhere.topics.configure(Topic.pub_sub("t"))
        written_event = event("t")
        box.write(connection, written_event)
        after = written_event.id
        connection.commit()
    assert in_outbox(url) == [before]
    assert in_topic(url, "t") == [after]


# -- a catalog that is out of date ------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 250])
@pytest.mark.parametrize("topic", [Topic.pub_sub("t"), Topic.queue("t")], ids=["log", "rows"])
def test_a_stale_topic_is_asked_for_again_in_the_same_transaction(topic: Topic, count: int) -> None:
    url = migrated(topic)
    with Outbox(url) as box, connected(url) as connection:
        box.write(connection, event("t"))
        connection.commit()
        rows(url, "UPDATE outbox_event_topic SET version = version + 1")
        box.write_all(connection, [event("t", n) for n in range(count)])
        connection.commit()
    assert len(in_topic(url, "t")) == 1 + count


def test_a_topic_that_has_moved_is_written_where_it_is_now() -> None:
    """From rows to offset, as `move` does it: other tables, a new version."""
    url = migrated(Topic.queue("t"))
    with Outbox(url) as box, connected(url) as connection:
        box.write(connection, event("t"))
        connection.commit()
        store = box.topic_store
        assert store is not None
        with psycopg.connect(url) as other:
            box._db.run(store.make_log(known(box, "t")))
            other.execute("UPDATE outbox_event_topic SET version = 2, tracking = 'offset'")
        written_event = event("t")
        box.write(connection, written_event)
        moved = written_event.id
        connection.commit()
    assert [row[0] for row in rows(url, "SELECT event_id FROM outbox_event_log_1")] == [moved]


def test_a_dropped_topic_costs_one_transaction_and_no_event() -> None:
    url = migrated(Topic.pub_sub("t"))
    with Outbox(url, settings=LENIENT) as box, Outbox(url) as elsewhere, connected(url) as connection:
        box.write(connection, event("t"))
        connection.commit()
        assert elsewhere.topics.drop("t")
        with pytest.raises(StoreBusy, match="repeat the transaction"):
            box.write(connection, event("t"))
        connection.rollback()
        written_event = event("t")
        box.write(connection, written_event)
        kept = written_event.id
        connection.commit()
        elsewhere.topics.configure(Topic.pub_sub("t"))
        written_event = event("t")
        box.write(connection, written_event)
        again = written_event.id
        connection.commit()
    assert in_outbox(url) == [kept]
    assert in_topic(url, "t") == [again]


def test_a_repeatable_read_transaction_writes_by_its_own_snapshot() -> None:
    url = migrated(Topic.pub_sub("t"))
    with Outbox(url) as box, connected(url) as old, connected(url) as new:
        old.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        old.execute("SELECT 1 FROM outbox_event_topic")
        rows(url, "UPDATE outbox_event_topic SET version = 2")
        box.write(new, event("t", 1))  # knows version 2 now
        new.commit()
        box.write(old, event("t", 2))  # sees version 1 for as long as it lives
        old.commit()
        box.write(new, event("t", 3))
        new.commit()
    assert len(in_topic(url, "t")) == 3


@pytest.mark.parametrize("count", [1, 250], ids=["insert", "copy"])
def test_a_queue_is_held_while_it_is_written_to(count: int) -> None:
    """A move takes its table: it waits for this writer, and the next one sees the new version."""
    url = migrated(Topic.queue("q"))
    table = relation(url, "q")
    with Outbox(url) as box, connected(url) as writer, connected(url) as mover:
        store, row = box.topic_store, known(box, "q")
        assert store is not None
        box.write_all(writer, [event("q", n) for n in range(count)])
        mover.execute("SET lock_timeout = '100ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            mover.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")  # type: ignore[arg-type]
        mover.rollback()
        writer.commit()
        mover.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")  # type: ignore[arg-type]
        written: list[Any] = []

        def late() -> None:
            with connected(url) as other:
                events = [event("q", n) for n in range(count)]
                written.append(run(store.write(row, events, None, copy=True), box._writer.connection(other)))

        thread = threading.Thread(target=late)
        thread.start()
        until_locked(url)
        mover.execute("UPDATE outbox_event_topic SET version = version + 1")
        mover.commit()
        thread.join()
    assert written == [None]


def until_locked(url: str) -> None:
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    give_up = time.monotonic() + 20
    while not one(url, waiting):
        assert time.monotonic() < give_up
        time.sleep(0.01)


# -- what an insert costs ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["topic.write.many", "topic.write.many_bitmap", "topic.write.many_acks"])
def test_who_must_have_it_is_one_look_at_one_row(name: str) -> None:
    """By primary key, however many topics there are; groups are not read at all."""
    url = migrated(Topic.pub_sub("t", tracking="acks" if "acks" in name else "bitmap"))
    rows(
        url,
        "INSERT INTO outbox_event_topic (name, semantics, tracking, shards, retention, zero_retention, max_retention, "
        "zombie_ttl, partitions, options, created_at, updated_at) SELECT 'n' || n, 'pub_sub', 'offset', 16, '1 d', "
        "'1 d', '1 d', '1 d', 'none', '{}', now(), now() FROM generate_series(1, 20000) n",
    )
    rows(url, "ANALYZE outbox_event_topic")
    with Outbox(url) as box, connected(url) as connection:
        query = box.topic_store.log(1)[name]  # type: ignore[union-attr]
        text, names = query.compiled("format")
        values: dict[str, Any] = {"topic": 1, "version": 1, "now": None}
        params = [values.get(one_name, [] if one_name.endswith("s") else None) for one_name in names]
        plan = connection.execute(f"EXPLAIN (FORMAT JSON) {text}", params).fetchall()[0][0]
    nodes = [node for node in walk(plan[0]["Plan"]) if node.get("Relation Name", "").startswith("outbox_event_topic")]
    assert [node["Index Name"] for node in nodes] == ["outbox_event_topic_pkey"]
    assert "outbox_event_group" not in str(plan)


def walk(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for inner in plan.get("Plans", ()):
        yield from walk(inner)


# -- one round trip ---------------------------------------------------------------------------------------


class Counting:
    """Plays the connection of an op and counts what it is asked."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.asked: list[str] = []

    def execute(self, statement: Any) -> Any:
        self.asked.append(getattr(getattr(statement, "query", None), "name", "copy"))
        return self.inner.execute(statement)


def test_one_statement_per_topic_once_it_is_known() -> None:
    url = migrated(Topic.pub_sub("a"), Topic.pub_sub("b", tracking="bitmap"), Topic.queue("c"))
    with Outbox(url) as box, connected(url) as connection:
        writer = box._writer

        def asked(*events: Event) -> list[str]:
            wrapped = writer.connection(connection)
            counting = Counting(wrapped)
            ticket = writer.prepare(events, wrapped)
            assert ticket is not None
            run(writer.op(ticket, wrapped), counting)
            return counting.asked

        assert asked(event("a")) == ["topic.catalog.find", "topic.write.one"]
        assert asked(event("a")) == ["topic.write.one"]
        assert asked(event("a"), event("a")) == ["topic.write.many"]
        assert asked(event("b")) == ["topic.catalog.find", "topic.write.many_bitmap"]
        assert asked(event("b"), event(None), event("a")) == [
            "topic.write.many_bitmap",
            "topic.write.one",
            "outbox.write.one",
        ]
        assert asked(event(None)) == ["outbox.write.one"]
        assert asked(event("c"), event("c")) == ["topic.catalog.find", "topic.write.queue"]
        assert asked(event("c")) == ["topic.write.queue"]
        assert asked(*(event("a", n) for n in range(200))) == ["topic.write.numbers", "copy"]


# -- what goes with a write -------------------------------------------------------------------------------


class Recording(WriterHook):
    def __init__(self) -> None:
        self.told: list[tuple[str, list[str | None]]] = []

    def before_write(self, events: Any) -> Any:
        return [e for e in events if e.type != "Suppressed"]

    def after_write(self, events: Any) -> None:
        self.told.append(("write", [e.topic for e in events]))

    def after_commit(self, events: Any) -> None:
        self.told.append(("commit", [e.topic for e in events]))

    def after_rollback(self, events: Any) -> None:
        self.told.append(("rollback", [e.topic for e in events]))


def test_hooks_see_all_events_once() -> None:
    url = migrated(Topic.pub_sub("t"))
    hook = Recording()
    with Outbox(url, hooks=[hook]) as box:
        with box.transaction() as tx:
            box.write_all(tx, [event("t"), Event("Suppressed", {}, topic="t"), event(None)])
            assert box.write(tx, Event("Suppressed", {}, topic="t")) is None
        with pytest.raises(ZeroDivisionError), box.transaction() as tx:
            box.write(tx, event("t"))
            raise ZeroDivisionError
    both = ["t", None]
    assert hook.told == [("write", both), ("commit", both), ("write", ["t"]), ("rollback", ["t"])]
    assert len(in_topic(url, "t")) == 1


def test_contracts_hold_for_topics_too() -> None:
    url = migrated(Topic.pub_sub("t"))
    with Outbox(url, contracts=Contracts()) as box, connected(url) as connection:
        with pytest.raises(ContractViolation):
            box.write(connection, event("t"))
        connection.commit()
    assert in_topic(url, "t") == []


def test_a_log_cannot_delay_an_event() -> None:
    url = migrated(Topic.pub_sub("t"), Topic.queue("q"))
    later = datetime.now(UTC) + timedelta(hours=1)
    with Outbox(url, settings=LENIENT) as box, connected(url) as connection:
        with pytest.raises(InvalidEvent, match="tracking 'rows'"):
            box.write_all(connection, [event("q"), event("t", deliver_at=later)])
        written_event = event("q", deliver_at=later)
        box.write(connection, written_event)
        kept = written_event.id
        box.write(connection, event(None, deliver_at=later))
        box.write(connection, event("nobody-configured", deliver_at=later))
        connection.commit()
    assert in_topic(url, "q") == [kept]
    assert one(url, f"SELECT count(*) FROM {relation(url, 'q')}_pending WHERE due > now()") == 1
    assert len(in_outbox(url)) == 2


def test_only_events_of_the_outbox_are_handed_over_after_the_commit() -> None:
    """A node claims what it inserts into the outbox; an event of a log is nobody's before a group reads it."""
    url = migrated(Topic.pub_sub("t"), Topic.queue("q"))
    probe = Probe()
    with make_box("delivery", url, probe, is_async=False).running() as box:
        with box.transaction() as tx:
            written_events = [event("t"), event(None, 1), event("q"), event("t")]
            box.write_all(tx, written_events)
            ids = [written.id for written in written_events]
        probe.wait(probe.has(ids[1]))
    assert [seen.source for seen in probe.seen] == ["HOT"]
    assert probe.ids == [ids[1]]
    assert in_outbox(url) == [ids[1]]


def test_the_shard_is_the_same_in_python_and_sql() -> None:
    url = migrated(Topic.pub_sub("t", shards=7))
    with Outbox(url) as box, connected(url) as connection:
        events = [event("t", n, key=key) for n, key in enumerate([None, "a", "ключ", "x" * 128])]
        for one_event in events:
            box.write(connection, one_event)
        box.write_all(connection, [event("t", n, key="a") for n in range(3)])
        box.write_all(connection, [event("t", n, key="a") for n in range(250)])
        connection.commit()
    stored = {row[0]: row[1] for row in rows(url, "SELECT event_id, shard FROM outbox_event_log_1")}
    for one_event in events:
        assert stored[one_event.id] == shard_of(one_event.key or one_event.id, 7)
    wrong = one(
        url,
        "SELECT count(*) FROM outbox_event_log_1 "
        "WHERE shard <> (outbox_event_hash(coalesce(aggregate_id, event_id)) >> 32) % 7",
    )
    assert wrong == 0


@pytest.mark.parametrize("role", ["plain", "delivery"])
async def test_a_commit_wakes_the_members(role: str) -> None:
    url = migrated(Topic.pub_sub("t"))
    heard = asyncio.Event()
    with Outbox(url) as other:
        join(other, subscribe(other, "t", "g"))
    made = make_box(role, url, Probe())
    async with made, await psycopg.AsyncConnection.connect(url, autocommit=True) as ears:
        box: AsyncOutbox = made.raw
        await ears.execute("LISTEN relaybox_outbox_event")

        async def listen() -> None:
            async for _ in ears.notifies():
                heard.set()

        task = asyncio.create_task(listen())
        async with box.transaction() as tx:
            await box.write(tx, event("t"))
        await asyncio.wait_for(heard.wait(), 10)
        task.cancel()


def test_waking_goes_on_when_a_queue_is_gone() -> None:
    url = migrated(Topic.queue("q"), Topic.pub_sub("t"))
    with Outbox(url) as box, Outbox(url) as elsewhere, connected(url) as connection:
        join(box, subscribe(box, "t", "g"))
        box.write(connection, event("q"))
        connection.rollback()
        assert elsewhere.topics.drop("q")
        assert box._notify()


def test_resolve_finds_events_wherever_they_are() -> None:
    url = migrated(Topic.pub_sub("t"), Topic.pub_sub("b", tracking="bitmap"), Topic.queue("q"))
    with Outbox(url, settings=LENIENT) as box, connected(url) as connection:
        stored = [event("t"), event("b"), event("q"), event(None), event("nobody-configured")]
        box.write_all(connection, stored)
        box.write_all(connection, [event("t", n) for n in range(300)])
        connection.commit()
        lost = event("t")
        assert box.resolve([e.id for e in [*stored, lost]]) == {e.id: True for e in stored} | {lost.id: False}


def test_resolve_works_before_topics_are_migrated() -> None:
    url = migrated()
    rows(url, "DROP TABLE outbox_event_topic_migration")
    with Outbox(url) as box:
        assert box.resolve(["nothing"]) == {"nothing": False}


def test_many_threads_share_one_outbox() -> None:
    url = migrated(Topic.pub_sub("t"), Topic.queue("q"))
    with Outbox(url) as box:

        def work(n: int) -> None:
            with connected(url) as connection:
                for i in range(20):
                    box.write_all(connection, [event("t", n, key=str(i)), event("q", n), event("t", n)])
                    connection.commit()

        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert known(box, "t").topic.name == "t"
    assert len(in_topic(url, "t")) == 160
    assert len(in_topic(url, "q")) == 80


@pytest.mark.parametrize("engine", ["sqlite", "mariadb"])
def test_where_there_are_no_topics_a_topic_is_a_name_that_travels_with_the_event(engine: str, tmp_path: Path) -> None:
    """The event goes into the outbox, whatever `unknown_topics` says: a relay can route by it."""
    url = sqlite_url(tmp_path) if engine == "sqlite" else require("mariadb", durable=False).create_database()
    probe = Probe()
    written = [event("orders", 1, headers={"a": "b"}), event(None, 2)]
    with Outbox(url) as box:
        box.migrate()
        with box.transaction() as tx:
            assert box.write_all(tx, written) == [1, 2]
    with make_box("alone", url, probe, is_async=False).running():
        probe.wait(probe.has(*(each.id for each in written)))
    assert {seen.event.payload["n"]: seen.event.topic for seen in probe.seen} == {1: "orders", 2: None}
