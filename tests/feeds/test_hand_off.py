"""Rows of deltas that a group's consumers leave to other jobs: they are kept until those have read them."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from kit import make_postgres, one, rows, wait_until
from relaybox import AsyncOutbox, Event, Feed, Maintainer, Outbox, Retry, StartFrom, Topic
from relaybox.errors import FeedError, NotFound
from relaybox.facts import EventsLost
from relaybox.types import Consumer, FeedStatus

ORDERS = Feed("orders", "SELECT id, amount FROM orders", key="id", sources={"orders": "id"}, inline_rows=0)


@pytest.fixture
def url() -> str:
    url = make_postgres()
    with psycopg.connect(url, autocommit=True) as owner:
        owner.execute("CREATE TABLE orders (id integer PRIMARY KEY, amount numeric)")
        owner.execute("INSERT INTO orders SELECT g, g FROM generate_series(1, 5) g")
    return url


@pytest.fixture
def box(url: str) -> Iterator[Outbox]:
    with Outbox(url) as box:
        box.feeds.create(ORDERS)
        yield box


@pytest.fixture
def reader(box: Outbox) -> Iterator[Consumer[Any]]:
    group = box.topics.group("orders", "loader", start=StartFrom.earliest(), retry=Retry(base="10ms", max="10ms"))
    group.create()
    with group.consumer() as consumer:
        yield consumer


def delta(url: str, box: Outbox) -> None:
    rows(url, "UPDATE orders SET amount = amount + 1")
    assert box.feeds.refresh(None, "orders").claim_check


def passed(consumer: Consumer[Any]) -> list[Event]:
    """Committed without a look at the rows."""
    found: list[Event] = []
    while batch := consumer.poll(wait=0):
        found += batch
        consumer.commit(batch)
    return found


def later(url: str, interval: str = "3 days") -> None:
    """So much time passes for what is stored, and the maintainer cleans up."""
    for table, column in (("log_1", "created_at"), ("feed_delta", "at")):
        rows(url, f"UPDATE outbox_event_{table} SET {column} = {column} - interval '{interval}'")
    with Outbox(url) as mine:
        Maintainer(mine).once()


def counted(box: Outbox) -> tuple[int, int]:
    status: FeedStatus = box.feeds.status("orders")
    return status.kept_deltas, status.claim_checks_pending


def test_rows_wait_for_the_word_of_a_job(url: str, box: Outbox, reader: Consumer[Any]) -> None:
    assert box.feeds.hand_off("orders", group="loader", reason="loads are long")
    assert not box.feeds.hand_off("orders", group="loader")
    for _ in range(2):
        delta(url, box)
    later(url)
    assert counted(box) == (2, 2), "it has not even polled"
    first, second = passed(reader)
    later(url)
    assert one(url, "SELECT count(*) FROM outbox_event_log_1") == 0
    assert counted(box) == (2, 2)
    assert len(list(box.feeds.rows(first))) == 5
    assert box.feeds.rows_consumed("orders", 2, group="loader", epoch=second.headers["feed-epoch"])
    assert not box.feeds.rows_consumed("orders", 2, group="loader")
    assert counted(box) == (2, 1)
    later(url)
    assert counted(box) == (1, 1), "the job of the second was quicker"
    assert not box.feeds.rows_consumed("orders", 2, group="loader"), "its delta is gone"
    assert one(url, "SELECT outbox_event_feed_rows_consumed('orders', 1, 'loader')") is True
    later(url)
    assert counted(box) == (0, 0)
    with pytest.raises(NotFound, match="not kept any more"):
        list(box.feeds.rows(first))
    assert one(url, "SELECT count(*) FROM outbox_event_audit WHERE verb = 'hand off'") == 1


def test_each_group_has_a_say(url: str, box: Outbox, reader: Consumer[Any]) -> None:
    plain = box.topics.group("orders", "plain", start=StartFrom.earliest())
    other = box.topics.group("orders", "other", start=StartFrom.earliest())
    for group in (plain, other):
        group.create()
    with plain.consumer() as without, other.consumer() as too:
        box.feeds.hand_off("orders", group="loader")
        box.feeds.hand_off("orders", group="other")
        delta(url, box)
        passed(reader)
        passed(too)
        assert box.feeds.rows_consumed("orders", 1, group="loader")
        later(url)
        assert counted(box) == (1, 1)
        other.cancel()
        assert counted(box) == (1, 1), "a group that hands nothing over has not passed it"
        later(url)
        assert counted(box) == (1, 1)
        passed(without)
        assert counted(box) == (1, 0)
        later(url)
        assert counted(box) == (0, 0)


def test_a_group_that_takes_its_rows_back(url: str, box: Outbox, reader: Consumer[Any]) -> None:
    box.feeds.hand_off("orders", group="loader")
    delta(url, box)
    passed(reader)
    later(url)
    assert counted(box) == (1, 1)
    assert box.feeds.hand_off("orders", group="loader", on=False)
    assert not box.feeds.hand_off("orders", group="loader", on=False)
    later(url)
    assert counted(box) == (0, 0)


def test_what_was_left_behind_before_waits_for_nobody(url: str, box: Outbox, reader: Consumer[Any]) -> None:
    delta(url, box)
    passed(reader)
    delta(url, box)
    box.feeds.hand_off("orders", group="loader")
    assert counted(box) == (2, 1)
    passed(reader)
    assert counted(box) == (2, 1)
    later(url)
    assert counted(box) == (1, 1)


def test_what_is_parked_comes_again(url: str, box: Outbox, reader: Consumer[Any]) -> None:
    delta(url, box)
    batch = reader.poll()
    reader.commit(batch, failed={batch[0]: "the job queue is full"})
    box.feeds.hand_off("orders", group="loader")
    later(url)
    assert counted(box) == (1, 1)


@pytest.mark.parametrize("tracking", ["offset", "bitmap", "acks"])
def test_a_group_that_is_moved(url: str, tracking: Any) -> None:
    with Outbox(url) as box:
        box.topics.configure(Topic.pub_sub("orders", tracking=tracking))
        box.feeds.create(ORDERS)
        group = box.topics.group("orders", "loader", start=StartFrom.earliest())
        group.create()
        with group.consumer() as consumer:
            box.feeds.hand_off("orders", group="loader")
            for _ in range(2):
                delta(url, box)
            passed(consumer)
            box.feeds.rows_consumed("orders", 2, group="loader")
            assert counted(box) == (2, 1), "the job of the first still reads"
            group.seek(StartFrom.latest())
            assert counted(box) == (2, 1), "and goes on"
            group.seek(StartFrom.earliest())
            assert counted(box) == (2, 2)
            passed(consumer)
            assert counted(box) == (2, 2), "both are read once more"
            delta(url, box)
            assert counted(box) == (3, 3)
            group.seek(StartFrom.latest())
            assert counted(box) == (3, 2), "passed over: nobody will read it"


def test_rows_that_are_swept_while_a_group_is_moved(url: str, box: Outbox, reader: Consumer[Any]) -> None:
    box.feeds.hand_off("orders", group="loader")
    delta(url, box)
    with psycopg.connect(url) as sweeper:
        sweeper.execute("DELETE FROM outbox_event_feed_delta")
        with ThreadPoolExecutor(1) as beside:
            moved = beside.submit(box.topics.group("orders", "loader").seek, StartFrom.latest())
            wait_until(lambda: one(url, "SELECT count(*) FROM pg_locks WHERE NOT granted") > 0)
            sweeper.commit()
            moved.result()
    assert counted(box) == (0, 0)


def test_max_retention_ends_the_wait(url: str, box: Outbox, reader: Consumer[Any]) -> None:
    box.feeds.hand_off("orders", group="loader")
    delta(url, box)
    passed(reader)
    later(url, "29 days")
    assert counted(box) == (1, 1)
    rows(url, "UPDATE outbox_event_feed_delta SET at = at - interval '2 days'")
    lost: list[Any] = []
    with Outbox(url, observers=[lost.append]) as mine:
        Maintainer(mine).once()
    assert counted(box) == (0, 0)
    assert [(f.topic, f.group, f.events) for f in lost if isinstance(f, EventsLost)] == [("orders", "loader", 1)]


def test_many_that_wait_are_in_nobodys_way(url: str, box: Outbox, reader: Consumer[Any]) -> None:
    box.feeds.hand_off("orders", group="loader")
    for _ in range(12):
        delta(url, box)
    passed(reader)
    box.feeds.rows_consumed("orders", 12, group="loader")
    later(url)
    assert counted(box) == (11, 11)


async def test_the_async_twin(url: str) -> None:
    async with AsyncOutbox(url) as box:
        await box.feeds.create(ORDERS)
        await box.topics.group("orders", "loader").create()
        assert await box.feeds.hand_off("orders", group="loader")
        await box.feeds.refresh(None, "orders")
        assert await box.feeds.rows_consumed("orders", 1, group="loader")
        assert (await box.feeds.status("orders")).claim_checks_pending == 1


def test_what_is_refused(url: str, box: Outbox, reader: Consumer[Any]) -> None:
    delta(url, box)
    with pytest.raises(FeedError, match="hand_off first") as refused:
        box.feeds.rows_consumed("orders", 1, group="loader")
    assert refused.value.reason == "no_hand_off"
    box.feeds.hand_off("orders", group="loader")
    with pytest.raises(FeedError, match="the last one is 1") as refused:
        box.feeds.rows_consumed("orders", 2, group="loader")
    assert refused.value.reason == "no_delta"
    assert not box.feeds.rows_consumed("orders", 9, group="loader", epoch="00000000-0000-0000-0000-000000000000")
    for ask in (box.feeds.hand_off, lambda name, group: box.feeds.rows_consumed(name, 1, group=group)):
        with pytest.raises(NotFound, match="no feed 'nothing'"):
            ask("nothing", group="loader")
    with pytest.raises(NotFound, match="no group 'nobody'"):
        box.feeds.hand_off("orders", group="nobody")


def test_the_newest_delta_of_each_feed(url: str, box: Outbox) -> None:
    """A view for people, and for those who look how old it is."""
    box.feeds.create(Feed("small", "SELECT id FROM orders", key="id", sources={"orders": "id"}, topic="orders"))
    latest = "SELECT feed, topic, n, inserted, deleted, claim_check, snapshot, payload ->> 'v' FROM "
    latest += "outbox_event_feed_latest ORDER BY feed"
    assert [row[:4] for row in rows(url, latest)] == [("orders", "orders", 0, None), ("small", "orders", 0, None)]
    box.feeds.refresh(None, "small")
    delta(url, box)
    box.feeds.refresh(None, "small")
    box.feeds.snapshot(None, "orders")
    assert rows(url, latest) == [
        ("orders", "orders", 2, 5, 0, True, True, "1"),
        ("small", "orders", 1, 5, 0, False, False, "1"),
    ]
    rows(url, "DELETE FROM outbox_event_log_1")
    assert [row[:4] for row in rows(url, latest)] == [("orders", "orders", 2, None), ("small", "orders", 1, None)]
