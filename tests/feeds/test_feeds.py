"""Feeds through `outbox.feeds`: what a refresh does, and what it leaves when it does not happen."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from kit import one, rows, wait_until
from relaybox import AsyncOutbox, ConfigError, Event, Feed, Maintainer, Outbox, Retry, StartFrom, Topic
from relaybox.errors import FeedError, InUse, NotFound, NoTransaction, UnsupportedByEngine
from relaybox.outbox.doctor import examine
from relaybox.types import FeedSource

TOTALS = Feed(
    "totals",
    "SELECT customer, count(*) AS n, sum(amount) AS total FROM orders GROUP BY customer",
    key="customer",
    sources={"orders": "customer"},
)
LEFT = "SELECT relname FROM pg_class WHERE relname LIKE '%feed\\_%' ORDER BY 1"


def execute(url: str, *statements: str) -> None:
    for statement in statements:
        rows(url, statement)


def deltas(box: Outbox, topic: str = "totals") -> list[Event]:
    group = box.topics.group(topic, "all", start=StartFrom.earliest())
    with group.consumer() as consumer:
        found: list[Event] = []
        while batch := consumer.poll(100):
            found += batch
            consumer.commit(batch)
        return found


def kept(url: str) -> list[tuple[Any, ...]]:
    return rows(url, "SELECT customer, n, total::text FROM feed_totals ORDER BY 1")


def test_a_refresh_writes_what_changed(url: str, box: Outbox) -> None:
    info = box.feeds.create(TOTALS)
    assert (info.table, info.topic, info.mode, info.paused, info.deltas) == (
        "public.feed_totals",
        "totals",
        "auto",
        False,
        0,
    )
    deltas(box)
    first = box.feeds.refresh(None, "totals")
    assert (first.how, first.inserted, first.deleted, first.delta, first.reasons) == ("full", 10, 0, 1, ("first",))
    execute(url, "UPDATE orders SET amount = amount + 1 WHERE id = 7", "DELETE FROM orders WHERE customer = 8")
    assert box.feeds.status("totals").waiting == 2
    second = box.feeds.refresh(None, "totals")
    assert (second.how, second.inserted, second.deleted, second.delta) == ("differential", 1, 2, 2)
    nothing = box.feeds.refresh(None, "totals")
    assert (nothing.delta, nothing.number) == (None, None)
    query = "SELECT customer, count(*), sum(amount)::text FROM orders GROUP BY 1 ORDER BY 1"
    assert kept(url) == rows(url, query)
    one_, two = deltas(box)
    assert (one_.type, one_.key, one_.topic) == ("feed.delta", "totals", "totals")
    assert one_.payload["full_refresh"] is True
    assert two.payload == {
        "v": 1,
        "inserted": [{"customer": 7, "n": 10, "total": 521}],
        "deleted": [{"customer": 7, "n": 10, "total": 520}, {"customer": 8, "n": 10, "total": 530}],
    }
    assert [row.op for row in box.feeds.rows(two)] == ["deleted", "deleted", "inserted"]
    assert (two.headers["feed"], two.headers["feed-n"], two.headers["feed-key"]) == ("totals", "2", '["customer"]')


def test_in_the_writers_transaction(url: str, box: Outbox) -> None:
    box.feeds.create(TOTALS)
    box.feeds.refresh(None, "totals")
    deltas(box)
    with box.transaction() as tx:
        tx.connection.execute("UPDATE orders SET amount = 0 WHERE id = 1")
        assert box.feeds.refresh(tx, "totals").delta == 2
        tx.connection.execute("UPDATE orders SET amount = 1 WHERE id = 1")
        assert box.feeds.refresh(tx, "totals").delta == 3
    assert [event.headers["feed-n"] for event in deltas(box)] == ["2", "3"]
    with psycopg.connect(url, autocommit=True) as alone, pytest.raises(NoTransaction):
        box.feeds.refresh(alone, "totals")


def test_a_rollback_leaves_nothing(url: str, box: Outbox) -> None:
    box.feeds.create(Feed("totals", TOTALS.query, key="customer", sources={"orders": "customer"}, inline_rows=0))
    box.feeds.refresh(None, "totals")
    stored = "SELECT (SELECT count(*) FROM outbox_event_feed_chunk), (SELECT count(*) FROM outbox_event_log_1)"
    before = kept(url), rows(url, stored)
    execute(url, "UPDATE orders SET amount = 0")
    with psycopg.connect(url) as connection:
        assert box.feeds.refresh(connection, "totals").claim_check
        connection.rollback()
    assert (kept(url), rows(url, stored)) == before
    assert box.feeds.status("totals").waiting == 10
    assert box.feeds.refresh(None, "totals").delta == 2


async def test_the_async_twin_wakes_a_group(url: str) -> None:
    async with AsyncOutbox(url) as box:
        await box.feeds.create(TOTALS)
        heard: asyncio.Queue[Event] = asyncio.Queue()
        await box.topics.group("totals", "mirror", start=StartFrom.earliest()).deliver(heard.put).start()
        await box.feeds.refresh(None, "totals")
        event = await asyncio.wait_for(heard.get(), 20)
        assert len([row async for row in box.feeds.rows(event)]) == 10
        async with box.transaction() as tx:
            await tx.connection.execute("DELETE FROM orders WHERE customer = 3")
            await box.feeds.refresh(tx, "totals")
        event = await asyncio.wait_for(heard.get(), 20)
        assert [(row.op, row.row["customer"]) async for row in box.feeds.rows(event)] == [("deleted", 3)]
        assert (await box.feeds.verify("totals")).rows == 0
        await box.topics.group("totals", "mirror").cancel()
        assert await box.feeds.drop("totals")


@pytest.mark.parametrize("tracking", ["bitmap", "acks"])
def test_into_a_topic_with_marks(url: str, box: Outbox, tracking: Any) -> None:
    box.topics.configure(Topic.pub_sub("marked", tracking=tracking))
    box.topics.group("marked", "all", start=StartFrom.earliest()).create()
    box.feeds.create(Feed("totals", TOTALS.query, key="customer", sources={"orders": "customer"}, topic="marked"))
    number = box.feeds.refresh(None, "totals").number
    assert number is not None
    assert box.topics.completion("marked", number) == {"all": "waiting"}
    assert len(deltas(box, "marked")) == 1
    assert box.topics.completion("marked", number) == {"all": "done"}


# -- small and large -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("limit", "claim_check"), [(10, False), (9, True)])
def test_the_threshold_of_rows(box: Outbox, limit: int, claim_check: bool) -> None:
    box.feeds.create(
        Feed("totals", TOTALS.query, key="customer", sources={"orders": "customer"}, inline_rows=limit, chunk_rows=4)
    )
    deltas(box)
    assert box.feeds.refresh(None, "totals").claim_check is claim_check
    (event,) = deltas(box)
    assert sorted(row.row["customer"] for row in box.feeds.rows(event)) == list(range(10))
    status = box.feeds.status("totals")
    assert (status.kept_deltas, status.kept_chunks) == ((1, 3) if claim_check else (0, 0))
    if claim_check:
        assert {key: event.payload[key] for key in ("claim_check", "inserted_count", "deleted_count")} == {
            "claim_check": True,
            "inserted_count": 10,
            "deleted_count": 0,
        }


def test_the_threshold_of_bytes(url: str, box: Outbox) -> None:
    execute(url, "DELETE FROM orders WHERE id > 1")
    exact = len(b'{"v":1,"full_refresh": true,"inserted":[{"customer":1,"n":1,"total":1}],"deleted":[]}')
    for name, limit, claim_check in (("fits", exact, False), ("not", exact - 1, True)):
        box.feeds.create(Feed(name, TOTALS.query, key="customer", sources={"orders": "customer"}, inline_bytes=limit))
        assert box.feeds.refresh(None, name).claim_check is claim_check


def test_wide_rows_are_never_too_large_for_an_event(url: str, box: Outbox) -> None:
    execute(url, "CREATE TABLE wide AS SELECT g AS id, repeat('x', 300000) AS text FROM generate_series(1, 40) g")
    box.feeds.create(Feed("wide", "SELECT id, text FROM wide", key="id", mode="full"))
    deltas(box, "wide")
    assert box.feeds.refresh(None, "wide").claim_check
    (event,) = deltas(box, "wide")
    assert sorted(len(row.row["text"]) for row in box.feeds.rows(event)) == [300_000] * 40
    assert box.feeds.status("wide").kept_chunks > 1


# -- life --------------------------------------------------------------------------------------------------


def test_the_same_definition_changes_nothing_and_another_keeps_the_rows(url: str, box: Outbox) -> None:
    before = box.feeds.create(TOTALS)
    box.feeds.refresh(None, "totals")
    assert box.feeds.create(TOTALS).epoch == before.epoch
    assert box.feeds.status("totals").stale == ()
    other = Feed("totals", TOTALS.query + " HAVING customer < 5", key="customer", sources={"orders": "customer"})
    info = box.feeds.create(other)
    assert (info.epoch, info.deltas) == (before.epoch, 1)
    assert box.feeds.status("totals").stale == ("redefined",)
    assert box.feeds.refresh(None, "totals")[:4] == ("full", 0, 5, 2)


def test_pause_and_resume(url: str, box: Outbox) -> None:
    box.feeds.create(TOTALS)
    box.feeds.refresh(None, "totals")
    assert box.feeds.pause("totals")
    assert not box.feeds.pause("totals")
    assert one(url, "SELECT count(*) FROM pg_trigger WHERE tgname LIKE 'relaybox%'") == 0
    execute(url, "UPDATE orders SET amount = 0 WHERE customer = 1")
    with pytest.raises(FeedError, match="paused") as refused:
        box.feeds.refresh(None, "totals")
    assert refused.value.reason == "paused"
    assert box.feeds.verify("totals") == (1, 0, False)
    assert box.feeds.resume("totals")
    assert not box.feeds.resume("totals")
    assert box.feeds.refresh(None, "totals")[:3] == ("full", 1, 1)
    assert box.feeds.verify("totals") == (0, 0, True)


def test_a_drop_leaves_nothing_behind(url: str, box: Outbox) -> None:
    there, functions = rows(url, LEFT), one(url, "SELECT count(*) FROM pg_proc")
    execute(url, "CREATE TABLE item (id integer PRIMARY KEY, order_id integer)", "CREATE INDEX ON item (order_id)")
    query = "SELECT o.id, (SELECT count(*) FROM item i WHERE i.order_id = o.id) AS n FROM orders o"
    items = FeedSource("order_id", "SELECT order_id FROM touched")
    box.feeds.create(Feed("items", query, key="id", sources={"orders": "id", "item": items}, inline_rows=0))
    box.feeds.create(TOTALS)
    for name in ("items", "totals"):
        box.feeds.refresh(None, name)
    assert [info.name for info in box.feeds.list()] == ["items", "totals"]
    execute(url, "CREATE VIEW theirs AS SELECT * FROM feed_totals")
    with pytest.raises(FeedError, match="theirs"):
        box.feeds.drop("totals")
    execute(url, "DROP VIEW theirs")
    group = box.topics.group("totals", "reader")
    group.create()
    with pytest.raises(InUse):
        box.feeds.drop("totals")
    assert box.feeds.get("totals") is not None
    group.cancel()
    assert box.feeds.drop("totals")
    assert box.feeds.drop("items")
    assert not box.feeds.drop("items")
    assert box.feeds.get("items") is None
    assert box.topics.list() == []
    assert rows(url, LEFT) == there
    assert one(url, "SELECT count(*) FROM pg_proc") == functions
    assert one(url, "SELECT count(*) FROM pg_trigger WHERE NOT tgisinternal") == 0
    for table in ("feed", "feed_source", "feed_stale", "feed_delta", "feed_chunk"):
        assert one(url, f"SELECT count(*) FROM outbox_event_{table}") == 0


@pytest.mark.parametrize(
    "tampered",
    [
        "ALTER TABLE part DISABLE TRIGGER ALL",
        "CREATE TABLE part_2 PARTITION OF part FOR VALUES IN (2)",
        "ALTER TABLE part DETACH PARTITION part_1",
    ],
)
def test_drift_is_found_and_mended(url: str, box: Outbox, tampered: str) -> None:
    execute(
        url,
        "CREATE TABLE part (id integer, kind integer, PRIMARY KEY (id, kind)) PARTITION BY LIST (kind)",
        "CREATE TABLE part_1 PARTITION OF part FOR VALUES IN (1)",
        "INSERT INTO part SELECT g, 1 FROM generate_series(1, 5) g",
    )
    box.feeds.create(Feed("parts", "SELECT id, kind FROM part", key=("id", "kind"), sources={"part": ("id", "kind")}))
    box.feeds.refresh(None, "parts")
    execute(url, tampered)
    assert not box.feeds.verify("parts").captured
    assert [(f.level, "'parts'" in f.text) for f in examine(box._db, box.store) if f.check == "feeds"] == [
        ("warning", True)
    ]
    if "PARTITION OF" in tampered:
        execute(url, "INSERT INTO part_2 VALUES (7, 2)")
    done = box.feeds.refresh(None, "parts")
    assert (done.how, done.reasons) == ("full", ("triggers or partitions changed",))
    assert box.feeds.verify("parts") == (0, 0, True)
    execute(url, "INSERT INTO part VALUES (9, 1)" if "DETACH" not in tampered else "SELECT 1")
    assert box.feeds.refresh(None, "parts").how == "differential"
    assert box.feeds.verify("parts").rows == 0


@pytest.mark.parametrize(
    "meanwhile",
    [
        ("ALTER TABLE part DISABLE TRIGGER USER", "UPDATE part SET amount = 5", "ALTER TABLE part ENABLE TRIGGER USER"),
        (
            "CREATE TABLE part_2 AS SELECT 101 AS id, 3 AS customer, 7::numeric AS amount",
            "ALTER TABLE part_2 ALTER id SET NOT NULL, ALTER customer SET NOT NULL",
            "ALTER TABLE part ATTACH PARTITION part_2 FOR VALUES FROM (100) TO (200)",
        ),
    ],
    ids=["triggers that were away", "a partition that came"],
)
def test_definitions_that_change_during_a_refresh(url: str, box: Outbox, meanwhile: tuple[str, ...]) -> None:
    """Between the look at the triggers and the look at the rows."""
    execute(
        url,
        "CREATE TABLE part (id integer NOT NULL, customer integer NOT NULL, amount numeric) PARTITION BY RANGE (id)",
        "CREATE TABLE part_1 PARTITION OF part FOR VALUES FROM (0) TO (100)",
        "CREATE INDEX ON part (customer)",
        "INSERT INTO part SELECT g, g % 4, g FROM generate_series(1, 20) g",
    )
    box.feeds.create(replace(TOTALS, query=TOTALS.query.replace("orders", "part"), sources={"part": "customer"}))
    box.feeds.refresh(None, "totals")
    execute(url, "UPDATE part SET amount = 0 WHERE id = 4")
    done: list[Any] = []
    with psycopg.connect(url) as holder:
        holder.execute("LOCK TABLE outbox_event_feed_1_0_touched IN EXCLUSIVE MODE")
        refresher = threading.Thread(target=lambda: done.append(box.feeds.refresh(None, "totals")))
        refresher.start()
        wait_until(
            lambda: one(url, "SELECT count(*) FROM pg_locks WHERE NOT granted AND mode = 'RowExclusiveLock'") == 1
        )
        execute(url, *meanwhile)
        holder.rollback()
        refresher.join()
    assert (done[0].how, done[0].reasons) == ("full", ("triggers or partitions changed",))
    assert box.feeds.verify("totals") == (0, 0, True)


def test_a_trigger_that_is_disabled_while_another_is_mended(url: str, box: Outbox) -> None:
    """The refresh that mends waits for a writer, and does not take what it finds then for its own work."""
    execute(url, "CREATE TABLE item (order_id integer NOT NULL, qty integer)", "CREATE INDEX ON item (order_id)")
    box.feeds.create(
        Feed(
            "totals",
            "SELECT o.customer, o.id, i.qty FROM orders o JOIN item i ON i.order_id = o.id",
            key="id",
            sources={"orders": "id", "item": "order_id"},
        )
    )
    execute(url, "INSERT INTO item SELECT id, 1 FROM orders")
    box.feeds.refresh(None, "totals")
    (trigger,) = (
        name for (name,) in rows(url, "SELECT tgname FROM pg_trigger WHERE tgrelid = 'item'::regclass AND tgtype = 8")
    )
    execute(url, f"DROP TRIGGER {trigger} ON item")
    with psycopg.connect(url) as writer:
        writer.execute("UPDATE item SET qty = 2 WHERE order_id = 1")
        mender = threading.Thread(target=box.feeds.refresh, args=(None, "totals"))
        mender.start()
        wait_until(
            lambda: one(url, "SELECT count(*) FROM pg_locks WHERE NOT granted AND mode = 'ShareRowExclusiveLock'") == 1
        )
        execute(url, "ALTER TABLE orders DISABLE TRIGGER USER")
        writer.commit()
        mender.join()
    execute(url, "UPDATE orders SET customer = 77 WHERE id = 1")
    assert not box.feeds.verify("totals").captured
    assert box.feeds.refresh(None, "totals").reasons == ("triggers or partitions changed",)
    assert box.feeds.verify("totals") == (0, 0, True)


def test_the_doctor_sees_what_is_missing(url: str, box: Outbox) -> None:
    box.feeds.create(TOTALS)
    assert [f.level for f in examine(box._db, box.store) if f.check == "feeds"] == ["ok"]
    execute(url, "DROP FUNCTION outbox_event_feed_sweep", "ALTER TABLE outbox_event_feed_stale DROP COLUMN at")
    texts = {f.text for f in examine(box._db, box.store) if f.check == "feeds" and f.level == "critical"}
    assert texts == {
        'function "outbox_event_feed_sweep" is missing',
        "outbox_event_feed_stale.at is missing",
    }


def test_long_names_are_cut_and_do_not_collide(url: str) -> None:
    with Outbox(url, table="a" * 48) as box:
        box.migrate()
        names = ["n" * 70 + end for end in ("a", "b")]
        tables = set()
        for name in names:
            info = box.feeds.create(Feed(name, TOTALS.query, key="customer", sources={"orders": "customer"}))
            assert box.feeds.refresh(None, name).inserted == 10
            tables.add(info.table)
        assert len(tables) == 2
        assert all(len(table.removeprefix("public.")) <= 63 for table in tables)
        for name in names:
            assert box.feeds.drop(name)


def test_in_a_schema_of_their_own(url: str) -> None:
    with Outbox(url, schema="shop") as box:
        box.migrate()
        info = box.feeds.create(TOTALS)
        assert info.table == "shop.feed_totals"
        box.feeds.refresh(None, "totals")
        execute(url, "DELETE FROM orders WHERE id = 1")
        assert box.feeds.refresh(None, "totals").delta == 2


# -- errors --------------------------------------------------------------------------------------------------

BY_CUSTOMER = {"orders": "customer"}
BY_ID = {"orders": "id"}


@pytest.mark.parametrize(
    ("reason", "said", "query", "options"),
    [
        ("no_key", "no column nobody", None, {"key": "nobody"}),
        ("unmapped", "it reads public.item", "SELECT o.id, i.id AS item FROM orders o JOIN item i USING (id)", {}),
        ("unmapped", "no table nowhere", None, {"sources": {"nowhere": "id"}}),
        ("unmapped", "needs columns", None, {"sources": {"orders": "nothing"}}),
        ("unmapped", "does not give the scope", None, {"sources": {"orders": ("id", "customer")}}),
        ("not_local", "mode full", "SELECT id, rank() OVER (ORDER BY amount) AS place FROM orders", {}),
        ("not_local", "mode full", "SELECT id FROM orders ORDER BY amount LIMIT 3", {}),
        ("not_local", "mode full", "SELECT id, (SELECT avg(amount) FROM orders) AS mean FROM orders", {}),
        ("not_local", "mode full", "SELECT id, (SELECT max(id) FROM orders) AS last FROM orders", {}),
        ("not_local", "mode full", "WITH t AS MATERIALIZED (SELECT id, amount FROM orders) SELECT * FROM t", {}),
        ("not_local", "is there an index", "SELECT amount AS id, count(*) FROM orders GROUP BY 1", {}),
        ("volatile", "random", "SELECT id, random() AS x FROM orders", {}),
        ("volatile", "now", "SELECT id, now() AS at FROM orders", {}),
        ("volatile", "date", "SELECT id, current_date AS at FROM orders", {}),
        ("volatile", "price_of", "SELECT id, price_of(id) FROM orders", {}),
        ("name_taken", "orders", None, {"table": "orders"}),
        ("topic", "jobs", None, {"topic": "jobs"}),
    ],
)
def test_what_cannot_be_kept(url: str, box: Outbox, reason: str, said: str, query: str | None, options: Any) -> None:
    execute(
        url,
        "CREATE TABLE item (id integer PRIMARY KEY)",
        "CREATE FUNCTION price_of(integer) RETURNS integer LANGUAGE sql STABLE AS 'SELECT 1'",
    )
    box.topics.configure(Topic.queue("jobs"))
    feed = Feed("refused", query, key="id", sources=BY_ID) if query else TOTALS
    with pytest.raises(FeedError, match=said) as refused:
        box.feeds.create(replace(feed, **options))
    assert refused.value.reason == reason
    assert box.feeds.list() == []
    assert one(url, "SELECT count(*) FROM pg_trigger WHERE NOT tgisinternal") == 0


def test_full_takes_what_differential_refuses(url: str, box: Outbox) -> None:
    query = "SELECT id, amount - (SELECT avg(amount) FROM orders) AS off FROM orders"
    box.feeds.create(Feed("off", query, key="id", mode="full"))
    assert box.feeds.refresh(None, "off")[:3] == ("full", 100, 0)
    assert box.feeds.refresh(None, "off").delta is None


def test_keys_that_are_no_keys(url: str, box: Outbox) -> None:
    execute(url, "ALTER TABLE orders ALTER customer DROP NOT NULL")
    box.feeds.create(Feed("twice", "SELECT customer, amount FROM orders", key="customer", sources=BY_CUSTOMER))
    with pytest.raises(FeedError, match="more than once") as refused:
        box.feeds.refresh(None, "twice")
    assert refused.value.reason == "key_not_unique"
    execute(url, "DELETE FROM orders WHERE id > 1")
    box.feeds.refresh(None, "twice")
    execute(url, "INSERT INTO orders VALUES (2, 1, 1)")
    with pytest.raises(FeedError, match="more than once"):
        box.feeds.refresh(None, "twice")
    execute(url, "UPDATE orders SET customer = NULL WHERE id = 2")
    with pytest.raises(FeedError, match="NULL") as refused:
        box.feeds.refresh(None, "twice", full=True)
    assert refused.value.reason == "no_key"
    assert rows(url, "SELECT customer FROM feed_twice") == [(1,)]


def test_columns_that_would_change(url: str, box: Outbox) -> None:
    box.feeds.create(TOTALS)
    with pytest.raises(FeedError, match="drop it and create it anew") as refused:
        box.feeds.create(Feed("totals", "SELECT customer, 1 AS n FROM orders", key="customer", sources=BY_CUSTOMER))
    assert refused.value.reason == "columns_changed"
    assert box.feeds.refresh(None, "totals").inserted == 10
    with pytest.raises(psycopg.errors.DependentObjectsStillExist):
        execute(url, "ALTER TABLE orders DROP COLUMN amount")


def test_a_source_that_is_made_anew(url: str, box: Outbox) -> None:
    box.feeds.create(TOTALS)
    box.feeds.refresh(None, "totals")
    execute(url, "CREATE TABLE again (LIKE orders INCLUDING ALL)", "INSERT INTO again VALUES (1, 1, 1)")
    execute(url, "DROP TABLE orders CASCADE", "ALTER TABLE again RENAME TO orders")
    with pytest.raises(FeedError, match="create the feed again") as refused:
        box.feeds.refresh(None, "totals")
    assert refused.value.reason == "dropped"
    box.feeds.create(TOTALS)
    assert box.feeds.refresh(None, "totals")[:4] == ("full", 1, 10, 2)
    execute(url, "DELETE FROM orders")
    assert box.feeds.refresh(None, "totals")[:4] == ("differential", 0, 1, 3)


def test_a_table_that_somebody_dropped(url: str, box: Outbox) -> None:
    box.feeds.create(TOTALS)
    execute(url, "DROP TABLE feed_totals CASCADE")
    with pytest.raises(FeedError, match="drop the feed, too"):
        box.feeds.refresh(None, "totals")
    assert box.feeds.drop("totals")
    box.feeds.create(TOTALS)
    assert box.feeds.refresh(None, "totals").inserted == 10


@pytest.mark.parametrize("place", [{"topic": "other"}, {"table": "other"}])
def test_places_that_would_change(url: str, box: Outbox, place: Any) -> None:
    box.feeds.create(replace(TOTALS, table="kept"))
    assert box.feeds.create(replace(TOTALS, table="public.kept", chunk_rows=7)).table == "public.kept"
    with pytest.raises(FeedError, match="no reader looks") as refused:
        box.feeds.create(replace(TOTALS, **place))
    assert refused.value.reason == "place_changed"
    assert [info.topic.name for info in box.topics.list()] == ["totals"]


def test_another_isolation(url: str, box: Outbox) -> None:
    box.feeds.create(TOTALS)
    with psycopg.connect(url) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        with pytest.raises(FeedError, match="READ COMMITTED transaction, this one is REPEATABLE READ") as refused:
            box.feeds.refresh(connection, "totals")
    assert refused.value.reason == "isolation"


def test_rights(url: str, box: Outbox) -> None:
    box.feeds.create(TOTALS)
    name = f"feed_{url.rsplit('/', 1)[1].partition('?')[0]}"[:60]
    execute(url, f'CREATE ROLE "{name}"')
    try:
        with psycopg.connect(url) as connection:
            connection.execute(f'SET ROLE "{name}"'.encode())
            with pytest.raises(FeedError, match="this role may not") as refused:
                box.feeds.refresh(connection, "totals")
        assert refused.value.reason == "rights"
    finally:
        execute(url, f'DROP ROLE "{name}"')


def test_unknown_feeds(box: Outbox) -> None:
    for ask in (box.feeds.status, box.feeds.verify, box.feeds.pause, box.feeds.resume):
        with pytest.raises(NotFound, match="no feed 'nothing'"):
            ask("nothing")
    with pytest.raises(NotFound, match="no feed 'nothing'"):
        box.feeds.refresh(None, "nothing")


def test_elsewhere_there_are_none(tmp_path: Any) -> None:
    with Outbox(f"sqlite:///{tmp_path / 'o.db'}") as box, pytest.raises(UnsupportedByEngine, match="PostgreSQL"):
        box.feeds.list()


@pytest.mark.parametrize(
    ("said", "options"),
    [
        ("last in the transaction that writes", {"mode": "immediate", "sources": BY_CUSTOMER}),
        ("expected mode", {"mode": "sometimes", "sources": BY_CUSTOMER}),
        ("needs sources", {}),
        ("names of columns", {"key": (), "sources": BY_CUSTOMER}),
        ("names of columns", {"scope": ("a", "a"), "sources": BY_CUSTOMER}),
        ("inline_bytes", {"inline_bytes": 2_000_000, "sources": BY_CUSTOMER}),
        ("chunk_rows", {"chunk_rows": 0, "sources": BY_CUSTOMER}),
        ("auto_share", {"auto_share": 30, "sources": BY_CUSTOMER}),
    ],
)
def test_what_no_feed_is(said: str, options: Any) -> None:
    with pytest.raises(ConfigError, match=said):
        Feed("totals", "SELECT 1", **{"key": "id", **options})


# -- what is kept for readers --------------------------------------------------------------------------


def upkeep(url: str) -> None:
    with Outbox(url) as mine:
        Maintainer(mine).once()


def forgotten(url: str, topic: str = "log_1") -> None:
    """Time passes for what is in the log."""
    execute(url, f"UPDATE outbox_event_{topic} SET created_at = created_at - interval '3 days'")


def test_chunks_live_as_long_as_somebody_may_read_them(url: str, box: Outbox) -> None:
    box.feeds.create(replace(TOTALS, inline_rows=0))
    begin, again = StartFrom.earliest(), Retry(base="10ms", max="10ms")
    groups = [box.topics.group("totals", name, start=begin, retry=again) for name in ("quick", "slow")]
    for group in groups:
        group.create()
    box.feeds.refresh(None, "totals")
    forgotten(url)
    with groups[0].consumer() as consumer, consumer.poll() as batch:
        assert len(list(consumer.rows(batch[0]))) == 10
    groups[1].pause()
    upkeep(url)
    assert box.feeds.status("totals").kept_deltas == 1
    groups[1].resume()
    with groups[1].consumer() as consumer:
        batch = consumer.poll()
        consumer.commit(batch, failed={batch[0]: "try it again"})
        upkeep(url)
        assert one(url, "SELECT count(*) FROM outbox_event_log_1") == 0
        assert box.feeds.status("totals").kept_deltas == 1
        batch = wait_until(consumer.poll)
        assert len(list(consumer.rows(batch[0]))) == 10
        consumer.commit(batch)
        upkeep(url)
        status = box.feeds.status("totals")
        assert (status.kept_deltas, status.kept_chunks) == (0, 0)
        with pytest.raises(NotFound, match="not kept any more"):
            list(consumer.rows(batch[0]))


def test_an_event_that_is_no_delta(box: Outbox) -> None:
    with pytest.raises(ConfigError, match="no delta"):
        list(box.feeds.rows(Event("Happened", {})))
