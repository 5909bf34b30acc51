"""Feeds over tables that a subscription of logical replication fills, and over those that are written here too."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from kit import one, rows, wait_until
from relaybox import Feed, Outbox, StartFrom
from relaybox.errors import FeedError
from relaybox.outbox.doctor import examine
from relaybox.testing.servers import PostgresServer, require
from relaybox.types import FeedSource

TABLES = """
CREATE TABLE customer (id integer PRIMARY KEY, name text NOT NULL);
CREATE TABLE orders (id integer PRIMARY KEY, customer integer NOT NULL, amount numeric, note text);
CREATE INDEX ON orders (customer);
CREATE TABLE part (id integer, kind integer, PRIMARY KEY (id, kind)) PARTITION BY LIST (kind);
CREATE TABLE part_1 PARTITION OF part FOR VALUES IN (1);
CREATE TABLE part_2 PARTITION OF part FOR VALUES IN (2);
"""
OF_CUSTOMER = "SELECT o.id FROM touched t JOIN orders o ON o.customer = t.id"
FEEDS = (
    Feed(
        "totals",
        "SELECT customer, count(*) AS n, sum(amount) AS total FROM orders GROUP BY customer",
        key="customer",
        sources={"orders": FeedSource("customer", by_row=True)},
        mode="differential",
    ),
    Feed(
        "named",
        "SELECT o.id, o.amount, o.note, c.name FROM orders o JOIN customer c ON c.id = o.customer",
        key="id",
        sources={
            "orders": FeedSource("id", by_row=True),
            "customer": FeedSource("id", OF_CUSTOMER, by_row=True),
        },
        mode="differential",
    ),
    Feed(
        "parts",
        "SELECT id, kind FROM part",
        key=("id", "kind"),
        sources={"part": FeedSource(("id", "kind"), by_row=True)},
        mode="differential",
    ),
)
CHANGES = (
    ("INSERT INTO orders SELECT g, g % 5, g, 'new' FROM generate_series(101, 150) g",),
    ("UPDATE orders SET amount = amount + 1 WHERE customer < 3", "UPDATE customer SET name = name || '!' WHERE id = 4"),
    ("UPDATE orders SET note = repeat(md5(id::text), 200)", "UPDATE orders SET amount = amount WHERE id = 1"),
    ("UPDATE orders SET amount = 0 WHERE id = 7", "UPDATE orders SET amount = '1.00' WHERE id = 8"),
    ("UPDATE orders SET id = id + 1000, customer = 9 WHERE id < 20", "INSERT INTO customer VALUES (9, 'nine')"),
    ("DELETE FROM orders WHERE id % 3 = 0", "DELETE FROM customer WHERE id = 2"),
    (
        "INSERT INTO part VALUES (77, 1), (78, 2)",
        "UPDATE part SET kind = 2 WHERE id = 1",
        "DELETE FROM part WHERE id = 3",
    ),
)


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[PostgresServer, PostgresServer]]:
    require("postgres-wheel", durable=False)  # skips where there is none, fails under CI=true
    with (
        PostgresServer.from_wheel(durable=False, settings={"wal_level": "logical"}) as publisher,
        PostgresServer.from_wheel(durable=False) as subscriber,
    ):
        yield publisher, subscriber


@pytest.fixture
def publisher(servers: tuple[PostgresServer, PostgresServer]) -> str:
    url = servers[0].create_database()
    rows(url, TABLES)
    rows(url, "INSERT INTO customer SELECT g, 'c' || g FROM generate_series(0, 4) g")
    rows(url, "INSERT INTO orders SELECT g, g % 5, g, NULL FROM generate_series(1, 100) g")
    rows(url, "INSERT INTO part SELECT g, 1 + g % 2 FROM generate_series(1, 10) g")
    rows(url, "CREATE PUBLICATION everything FOR ALL TABLES")
    return url


@pytest.fixture
def subscriber(servers: tuple[PostgresServer, PostgresServer]) -> Iterator[str]:
    url = servers[1].create_database()
    rows(url, TABLES)
    with Outbox(url) as box:
        box.migrate()
    yield url
    if one(
        url,
        "SELECT count(*) FROM pg_subscription s JOIN pg_database d ON d.oid = s.subdbid "
        "WHERE d.datname = current_database()",
    ):
        rows(url, "DROP SUBSCRIPTION here")


def subscribe(publisher: str, subscriber: str) -> None:
    """Returns when what was there before has come."""
    rows(subscriber, f"CREATE SUBSCRIPTION here CONNECTION '{publisher}' PUBLICATION everything")
    copied = "SELECT bool_and(srsubstate = 'r') FROM pg_subscription_rel"
    wait_until(lambda: one(subscriber, copied), "end of the copy")


def change(publisher: str, *statements: str) -> None:
    """In one transaction, and until it has come."""
    with psycopg.connect(publisher) as writer:
        for statement in statements:
            writer.execute(statement.encode())
    upto = one(publisher, "SELECT pg_current_wal_insert_lsn()")
    there = f"SELECT bool_and(confirmed_flush_lsn >= '{upto}') FROM pg_replication_slots "
    there += "WHERE database = current_database()"
    wait_until(lambda: one(publisher, there), "the changes")


def refreshed(box: Outbox, how: str) -> None:
    for feed in FEEDS:
        done = box.feeds.refresh(None, feed.name)
        assert done.how == how, (feed.name, done)
        assert box.feeds.verify(feed.name) == (0, 0, True), feed.name


def replayed(box: Outbox, feed: Feed) -> list[Any]:
    """The table as the deltas make it."""
    table: dict[tuple[Any, ...], dict[str, Any]] = {}
    with box.topics.group(feed.name, "all", start=StartFrom.earliest()).consumer() as consumer:
        while batch := consumer.poll(wait=0):
            for event in batch:
                for op, row in consumer.rows(event):
                    key = tuple(row[column] for column in feed.key)
                    if op == "deleted":
                        assert table.pop(key) == row
                    else:
                        table[key] = row
            consumer.commit(batch)
    return sorted(table)


def test_a_subscription_fills_the_sources(publisher: str, subscriber: str) -> None:
    """The copy of what was there, changes of rows and of many rows, moved keys, wide columns, and TRUNCATE."""
    with Outbox(subscriber) as box:
        for feed in FEEDS:
            box.feeds.create(feed)
            box.topics.group(feed.name, "all", start=StartFrom.earliest()).create()
        refreshed(box, "full")
        assert box.feeds.status("totals").feed.inserted == 0
        subscribe(publisher, subscriber)
        assert box.feeds.status("totals").waiting == 100
        refreshed(box, "differential")
        assert one(subscriber, "SELECT sum(n) FROM feed_totals") == 100
        for statements in CHANGES:
            change(publisher, *statements)
            rows(subscriber, "INSERT INTO orders VALUES (5000, 1, 1, 'ours') ON CONFLICT (id) DO UPDATE SET amount = 2")
            refreshed(box, "differential")
        change(publisher, "TRUNCATE orders, part", "INSERT INTO orders VALUES (1, 1, 1, 'again')")
        done = box.feeds.refresh(None, "totals")
        assert (done.how, done.reasons) == ("full", ("TRUNCATE of public.orders",))
        assert rows(subscriber, "SELECT customer, n FROM feed_totals") == [(1, 1)]
        refreshed_after = [box.feeds.refresh(None, name).how for name in ("named", "parts")]
        assert refreshed_after == ["full", "full"]
        change(publisher, "INSERT INTO orders VALUES (2, 4, 1, 'more')")
        refreshed(box, "differential")
        for feed in FEEDS:
            kept = rows(subscriber, f"SELECT {', '.join(feed.key)} FROM feed_{feed.name} ORDER BY 1")
            assert replayed(box, feed) == sorted(kept)


def test_a_feed_that_comes_after_the_subscription(publisher: str, subscriber: str) -> None:
    subscribe(publisher, subscriber)
    with Outbox(subscriber) as box:
        for feed in FEEDS:
            box.feeds.create(feed)
        refreshed(box, "full")
        change(publisher, *CHANGES[0])
        refreshed(box, "differential")


def test_statement_triggers_are_refused_where_a_subscription_writes(publisher: str, subscriber: str) -> None:
    """Its apply worker fires none of them for an INSERT: changes would go unseen."""
    subscribe(publisher, subscriber)
    feeds = (
        Feed("deaf", "SELECT id FROM orders", key="id", sources={"orders": "id"}),
        Feed("deaf", "SELECT id, kind FROM part", key=("id", "kind"), sources={"part": ("id", "kind")}),
    )
    with Outbox(subscriber) as box:
        for feed in feeds:
            with pytest.raises(FeedError, match="by_row") as refused:
                box.feeds.create(feed)
            assert refused.value.reason == "subscribed"
        assert box.feeds.list() == []


def test_a_subscription_that_comes_later_is_noticed(publisher: str, subscriber: str) -> None:
    feed = Feed("late", "SELECT id FROM orders", key="id", sources={"orders": "id"})
    with Outbox(subscriber) as box:
        box.feeds.create(feed)
        box.feeds.refresh(None, "late")
        subscribe(publisher, subscriber)
        change(publisher, *CHANGES[0])
        assert not box.feeds.verify("late").captured
        assert [f.level for f in examine(box._db, box.store) if f.check == "feeds"] == ["warning"]
        with pytest.raises(FeedError, match="by_row"):
            box.feeds.refresh(None, "late")
        box.feeds.pause("late")
        with pytest.raises(FeedError, match="by_row"):
            box.feeds.resume("late")
        box.feeds.create(replace(feed, sources={"orders": FeedSource("id", by_row=True)}))
        assert box.feeds.resume("late")
        assert box.feeds.refresh(None, "late")[:3] == ("full", 150, 0)
        change(publisher, *CHANGES[5])
        assert box.feeds.refresh(None, "late").how == "differential"
        assert box.feeds.verify("late") == (0, 0, True)
