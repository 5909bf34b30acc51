"""A hot topic is spread over several tables, and is one topic for its readers and operators."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import pytest

from kit import one, rows
from relaybox import ALL, AsyncOutbox, ConfigError, Event, Outbox, Reject, StartFrom, Topic, Where
from relaybox.errors import InUse, NotFound, StoreBusy
from relaybox.ids import shard_of
from relaybox.store.topics import TopicTables
from relaybox.topic import Tracking
from relaybox.types import AsyncBatch, Batch

from .writing import migrated, relation

KEYS = [f"k{n}" for n in range(10)]
BEGIN = StartFrom.earliest()


@pytest.fixture
def url() -> str:
    return migrated(Topic.pub_sub("clicks", spread=8))


def write(box: Outbox, count: int, topic: str = "clicks") -> list[int]:
    """As many events of each key; their numbers."""
    with box.transaction() as tx:
        events = [Event("Click", n, key=key, topic=topic) for n in range(count) for key in KEYS]
        return [number for number in box.write_all(tx, events) if number is not None]


def by_key(events: Iterable[Event]) -> dict[str | None, list[int]]:
    found: dict[str | None, list[int]] = defaultdict(list)
    for event in events:
        found[event.key].append(event.payload)
    return found


def each(count: int) -> dict[str | None, list[int]]:
    return {key: list(range(count)) for key in KEYS}


def tables(url: str, log: str) -> list[str]:
    found = rows(url, f"SELECT relid::text FROM pg_partition_tree('{log}') WHERE isleaf")
    return sorted(str(name[0]) for name in found)


# -- where things are ---------------------------------------------------------------------------------


@pytest.mark.parametrize("copy", [1, 20], ids=["insert", "copy"])
def test_a_shard_is_in_one_table(url: str, copy: int) -> None:
    log = relation(url, "clicks")
    with Outbox(url) as box:
        numbers = write(box, copy)
    assert len(set(numbers)) == len(numbers), "numbers are those of the topic, not of a table"
    assert tables(url, log) == [f"{log}_rest_{n}" for n in range(8)]
    found = rows(url, f"SELECT DISTINCT tableoid::regclass::text, aggregate_id FROM {log}")
    assert {(name, key) for name, key in found} == {(f"{log}_rest_{shard_of(key, 16) // 2}", key) for key in KEYS}


def test_shards_that_do_not_divide_evenly_all_have_a_table() -> None:
    url = migrated(Topic.pub_sub("clicks", shards=5, spread=3))
    with Outbox(url) as box:
        write(box, 3)
    log = relation(url, "clicks")
    found = rows(url, f"SELECT DISTINCT tableoid::regclass::text, shard FROM {log} ORDER BY 2")
    assert [name.removeprefix(f"{log}_rest_") for name, _ in found] == ["0", "1", "1", "2", "2"]


def test_names_of_tables_are_never_too_long() -> None:
    name = TopicTables("x" * 48, "s").part(f"log_{2**31 - 1}_p20260101_1023")
    assert len(name) <= 63


def test_where_tables_have_a_schema() -> None:
    url = migrated()
    with Outbox(url, schema="shop", table="box") as box:
        box.migrate()
        box.topics.configure(Topic.pub_sub("clicks", spread=2, partitions="day"))
        write(box, 2)
        group = box.topics.group("clicks", "mail", start=BEGIN)
        with group.consumer() as consumer, consumer.poll() as batch:
            assert by_key(batch) == each(2)
        group.cancel()
        assert box.topics.drop("clicks")
    assert one(url, "SELECT count(*) FROM pg_class WHERE relname LIKE 'box_log%'") == 0


def test_it_is_one_topic_in_every_list(url: str) -> None:
    hot = Topic.pub_sub("clicks", spread=8)
    with Outbox(url) as box:
        assert [info.topic for info in box.topics.list()] == [hot]
        assert box.topics.configure(hot) == box.topics.get("clicks")
        box.topics.configure(hot.with_options(retention="2d"), reason="keep more")
        with pytest.raises(ConfigError, match=r"has spread 8 and may hold events.*Make another topic"):
            box.topics.configure(Topic.pub_sub("clicks", spread=4))
        with pytest.raises(NotFound, match="not configured"):
            box.topics.group("clicks.part-0", "mail").create()


# -- groups -------------------------------------------------------------------------------------------


def test_a_group_delivers_every_key_in_order(url: str) -> None:
    seen: list[Event] = []
    with Outbox(url) as box:
        write(box, 20)
        with box.topics.group("clicks", "mail", start=BEGIN).deliver(seen.append) as delivery:
            assert delivery.drain().done == 200
            write(box, 1)
            delivery.drain()
            assert delivery.health().level == "ok"
        [info] = box.topics.groups("clicks")
        assert (info.topic, info.group, info.processed, info.pending) == ("clicks", "mail", 210, 0)
    assert by_key(seen) == {key: [*range(20), 0] for key in KEYS}
    assert {event.topic for event in seen} == {"clicks"}


async def test_a_group_delivers_in_a_loop(url: str) -> None:
    seen: list[Event] = []
    async with AsyncOutbox(url) as box:
        group = box.topics.group("clicks", "mail")
        await group.create()
        async with box.transaction() as tx:
            await box.write_all(tx, [Event("Click", n, key=key, topic="clicks") for n in range(20) for key in KEYS])
        assert (await group.lag()).events == 200

        async def see(event: Event) -> None:
            seen.append(event)

        assert (await group.deliver(see).once()).done == 200
        assert (await group.lag()).events == 0
    assert by_key(seen) == each(20)


def test_a_consumer_polls_extends_releases_and_commits(url: str) -> None:
    with Outbox(url) as box:
        group = box.topics.group("clicks", "mail", start=BEGIN)
        write(box, 5)
        with group.consumer("one") as consumer:
            first: Batch = consumer.poll(1000)
            assert by_key(first) == each(5)
            consumer.extend(first, 60)
            consumer.release(first)
            again: Batch = consumer.poll(1000)
            assert by_key(again) == each(5)
            consumer.commit(again)
            assert not consumer.poll()
        assert group.lag().events == 0


async def test_a_consumer_in_a_loop_waits_for_what_comes(url: str) -> None:
    async with AsyncOutbox(url) as box, box.topics.group("clicks", "mail").consumer() as consumer:
        assert not await consumer.poll()
        async with box.transaction() as tx:
            await box.write(tx, Event("Click", 1, key="k1", topic="clicks"))
        batch: AsyncBatch = await consumer.poll(wait=20)
        async with batch:
            assert [event.payload for event in batch] == [1]


def test_consumers_share_the_shards_whatever_table_they_are_in(url: str) -> None:
    with Outbox(url) as box:
        group = box.topics.group("clicks", "mail", start=BEGIN)
        with group.consumer("one") as one_of, group.consumer("two") as other:
            assert not one_of.poll()
            assert not other.poll()
            write(box, 10)
            first, second = (by_key(consumer.poll(20)) for consumer in (one_of, other))
            assert first
            assert second
            assert not first.keys() & second.keys()


# -- operating ----------------------------------------------------------------------------------------


def test_numbers_are_those_of_the_topic(url: str) -> None:
    with Outbox(url) as box:
        mail = box.topics.group("clicks", "mail")
        assert mail.create().state == "active"
        numbers = write(box, 4)
        assert (mail.lag().events, mail.info().pending) == (40, 40)
        assert box.topics.completion("clicks", numbers[17]) == {"mail": "waiting"}
        mail.seek(StartFrom.latest(), reason="skip")
        assert box.topics.completion("clicks", numbers[17]) == {"mail": "done"}
        mail.seek(StartFrom.event(numbers[30]), reason="again")
        assert mail.lag().events == 10
        with mail.consumer() as consumer, consumer.poll() as batch:
            assert sorted(event.seq or 0 for event in batch) == numbers[30:]
        mail.seek(BEGIN)
        listed = mail.events.list(limit=15)
        listed += mail.events.list(after=listed[-1].event.seq or 0)
        assert [found.event.seq for found in listed] == numbers
        assert mail.events.count(Where(key="k3")) == 4


def test_a_group_is_paused_resumed_and_cancelled(url: str) -> None:
    with Outbox(url) as box:
        mail = box.topics.group("clicks", "mail", start=BEGIN)
        mail.create()
        with mail.consumer() as consumer:
            write(box, 1)
            mail.pause(reason="the server moves")
            assert (mail.info().state, mail.health().level) == ("paused", "degraded")
            assert not consumer.poll()
        mail.resume()
        with mail.consumer() as consumer, consumer.poll() as batch:
            assert len(batch) == 10
        with pytest.raises(InUse, match=r"mail \(active\)"):
            box.topics.drop("clicks")
        mail.cancel(wait=1)
        assert [info.state for info in box.topics.groups()] == ["cancelled"]
        assert box.topics.drop("clicks")
        assert not box.topics.drop("clicks")
        with pytest.raises((NotFound, StoreBusy)):
            write(box, 1)
    assert one(url, "SELECT count(*) FROM pg_class WHERE relname LIKE 'outbox_event_log%'") == 0


def test_what_failed_is_found_replayed_and_released(url: str) -> None:
    seen: list[Event] = []
    with Outbox(url) as box:
        mail = box.topics.group("clicks", "mail", start=BEGIN, on_exhausted="park")
        write(box, 2)
        with mail.consumer() as consumer:
            batch: Batch = consumer.poll()
            consumer.commit(batch, failed={event: Reject("no") for event in batch if event.payload == 0}, done=[])
        assert mail.dead.count() == 10
        assert {blocked.key for blocked in mail.keys.list()} == set(KEYS)
        assert mail.keys.release("k2", reason="it need not wait")
        assert mail.dead.discard(Where(key="k3")) == 1
        assert mail.dead.replay(ALL, reason="repaired") == 9
        mail.deliver(seen.append).once()
        assert (mail.dead.count(), mail.lag().events) == (0, 0)
    assert {key: sorted(found) for key, found in by_key(seen).items()} == {**each(2), "k3": [1]}


@pytest.mark.parametrize("tracking", ["bitmap", "acks"])
def test_it_is_moved_and_backfilled_as_one(url: str, tracking: Tracking) -> None:
    with Outbox(url) as box:
        box.topics.group("clicks", "first", start=BEGIN).create()
        number = write(box, 3)[5]
        box.topics.move("clicks", tracking=tracking)
        late = box.topics.group("clicks", "late", start=StartFrom.earliest(backfill=False))
        late.create()
        assert box.topics.completion("clicks", number) == {"first": "waiting"}
        assert late.backfill(pace="fast").done == 30
        assert box.topics.completion("clicks", number) == {"first": "waiting", "late": "waiting"}
        with late.consumer() as consumer, consumer.poll() as batch:
            assert by_key(batch) == each(3)
        assert box.topics.completion("clicks", number) == {"first": "waiting", "late": "done"}
        assert box.topics.advise("clicks").tracking == tracking
        box.topics.move("clicks", tracking="offset")
        write(box, 1)
        assert (box.topics.group("clicks", "first").lag().events, late.lag().events) == (40, 10)


# -- queues -------------------------------------------------------------------------------------------


def test_a_queue_on_a_log_is_spread_and_may_become_pub_sub() -> None:
    url = migrated(Topic.queue("jobs", tracking="offset", spread=4))
    seen: list[Event] = []
    with Outbox(url) as box:
        write(box, 3, "jobs")
        assert box.topics.queue("jobs").deliver(seen.append).once().done == 30
        with pytest.raises(ConfigError, match=r"spread over 4 tables.*got 'rows'.*make another queue"):
            box.topics.move("jobs", tracking="rows")
        box.topics.move("jobs", semantics="pub_sub")
        second = box.topics.group("jobs", "second", start=BEGIN)
        with second.consumer() as consumer, consumer.poll() as batch:
            assert by_key(batch) == each(3)
    assert len(seen) == 30


def test_what_is_stored_is_known_after_a_lost_commit(url: str) -> None:
    event = Event("Click", 1, key="k1", topic="clicks")
    with Outbox(url) as box:
        with box.transaction() as tx:
            box.write(tx, event)
        assert box.resolve([event.id, "another"]) == {event.id: True, "another": False}
