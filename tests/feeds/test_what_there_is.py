"""Feeds of what databases have: names, types and kinds of tables, settings of sessions. A refresh is right, or the feed
is refused before anything is written."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from kit import make_postgres, one, restored, wait_until
from kit.feeds import TOTALS, execute
from relaybox import Feed, Outbox, StartFrom, Topic
from relaybox.errors import FeedError, InUse
from relaybox.outbox.doctor import examine
from relaybox.testing.servers import require
from relaybox.types import FeedSettings, FeedSource

BY_ROW = pytest.mark.parametrize("by_row", [False, True], ids=["statement", "row"])


def sees(box: Outbox, name: str, *, how: str = "differential") -> None:
    """What changed was heard of, and the next refresh makes it right."""
    assert box.feeds.status(name).waiting > 0
    assert box.feeds.refresh(None, name).how == how
    assert box.feeds.verify(name) == (0, 0, True)


# -- names ---------------------------------------------------------------------------------------------------

QUOTED = ('"Sch""e.ma"', '"Ta""b.le {}"'.format("é" * 20), '"Co""l.umn $feed$ %s"')


def test_any_name(url: str, box: Outbox) -> None:
    schema, table, column = QUOTED
    execute(
        url,
        f"CREATE SCHEMA {schema}",
        f'CREATE TABLE {schema}.{table} ({column} integer PRIMARY KEY, "V" numeric, "select" text)',
        f"INSERT INTO {schema}.{table} VALUES (1, 2, 'a')",
    )
    key = column[1:-1].replace('""', '"')
    feed = Feed(
        "we\"ird'.%s fé$feed$",
        f"SELECT * FROM {schema}.{table} -- all",
        key=key,
        sources={f"{schema}.{table}": key},
        table=f'{schema}."K ept.%s"',
    )
    assert box.feeds.create(feed).table == f'{schema}."K ept.%s"'
    box.feeds.refresh(None, feed.name)
    execute(url, f'UPDATE {schema}.{table} SET "V" = 3')
    sees(box, feed.name)
    assert box.feeds.snapshot(None, feed.name).inserted == 1
    execute(url, f"TRUNCATE {schema}.{table}")
    assert box.feeds.refresh(None, feed.name).deleted == 1
    assert box.feeds.create(feed).deltas == 4
    assert box.feeds.drop(feed.name)


def test_columns_that_are_called_as_words_of_ours(url: str, box: Outbox) -> None:
    """Of PL/pgSQL, or of our statements: no writer's statement may fail for that."""
    names = ("found", "image", "sign", "tg_op", "old", "new", "m", "n", "o", "k", "q", "r", "x", "op", "new_rows")
    columns = ", ".join(f"{name} integer NOT NULL" for name in names)
    execute(url, f"CREATE TABLE lost (id integer, {columns}, note json, PRIMARY KEY (id, found, image, sign, old))")
    key = ("id", "found", "image", "sign", "old")
    feed = Feed("lost", "SELECT * FROM lost", key=key, sources={"lost": key}, inline_rows=5)
    box.feeds.create(feed)
    group = box.topics.group("lost", "all", start=StartFrom.earliest())
    group.create()
    box.feeds.refresh(None, "lost")
    execute(url, f"INSERT INTO lost SELECT g, {', '.join(['g'] * len(names))}, 'null' FROM generate_series(1, 9) g")
    sees(box, "lost")
    execute(url, "UPDATE lost SET m = 70, note = '{}' WHERE id = 7", "DELETE FROM lost WHERE id > 7")
    sees(box, "lost")
    assert box.feeds.snapshot(None, "lost").claim_check
    execute(url, "DELETE FROM lost WHERE id < 5")
    box.feeds.refresh(None, "lost")
    assert not box.feeds.snapshot(None, "lost").claim_check
    with group.consumer() as consumer:
        *_, large, _, small = consumer.poll(10)
        assert sorted(row["m"] for _, row in consumer.rows(large)) == [1, 2, 3, 4, 5, 6, 70]
        assert [set(row) >= {"id", *names} for _, row in consumer.rows(small)] == [True] * 3


@pytest.mark.parametrize("table", ["a.b.c", "my table", "nowhere.kept", f'"{"é" * 40}"'])
def test_what_no_table_is_called(box: Outbox, table: str) -> None:
    with pytest.raises(FeedError, match="no table can be called") as refused:
        box.feeds.create(replace(TOTALS, table=table))
    assert refused.value.reason == "table"
    assert box.feeds.list() == []


@pytest.mark.parametrize(
    ("said", "options"),
    [
        ('its query is refused: syntax error at or near "SELEC"', {"query": "SELEC 1"}),
        ('its query is refused: syntax error at or near ";"', {"query": "SELECT 1 AS id; DELETE FROM orders"}),
        ("its query is refused: relation", {"query": "SELECT id FROM nowhere"}),
        ("its query is refused: column", {"query": "SELECT nothing FROM orders"}),
        ("its query is refused: column .* more than once", {"query": "SELECT id, id FROM orders"}),
        ("what resolves public.orders is refused", {"sources": {"orders": FeedSource("id", "SELECT no FROM touched")}}),
    ],
)
def test_a_query_that_is_none(box: Outbox, said: str, options: Any) -> None:
    feed = Feed("wrong", "SELECT id FROM orders", key="id", sources={"orders": "id"})
    with pytest.raises(FeedError, match=said) as refused:
        box.feeds.create(replace(feed, **options))
    assert refused.value.reason == "query"


# -- types and columns ---------------------------------------------------------------------------------------


def test_types(url: str, box: Outbox) -> None:
    execute(
        url,
        "CREATE TYPE mood AS ENUM ('sad', 'ok')",
        "CREATE DOMAIN positive AS integer CHECK (value > 0)",
        "CREATE TYPE pair AS (a integer, b text)",
        "CREATE TABLE types (e mood, d positive, r int4range, n numeric, f float8, t timestamptz, p pair, i interval,"
        " j json, b jsonb, y bytea, m money, a integer[], PRIMARY KEY (e, d, r, n, f, t))",
        """INSERT INTO types VALUES
           ('sad', 1, '[1,3)', 'NaN', 'NaN', 'infinity', (1, 'x"y'), '1 mon', 'null', 'null', '\\xde', 12.5, '{{1,2}}'),
           ('ok', 2, 'empty', 'Infinity', '-Infinity', '-infinity', NULL, '-1 day', '1.0', '1.0', '', -1, '{}')""",
    )
    key = ("e", "d", "r", "n", "f", "t")
    box.feeds.create(Feed("types", "SELECT * FROM types", key=key, sources={"types": key}))
    box.feeds.refresh(None, "types")
    for change in (
        "f = '-0', p = ROW(NULL, NULL)",
        "f = 0, j = '[]', m = 3",
        "j = NULL, b = NULL",
        "b = 'null', a = '[0:1]={1,2}'",
        "n = 1.0, r = '[1,1]'",
        "n = 1.00",
    ):
        execute(url, f"UPDATE types SET {change} WHERE e = 'ok'")
        sees(box, "types")
    assert box.feeds.get("types").deltas == 7  # type: ignore[union-attr]


def test_mapped_columns_have_another_type_than_the_scope(url: str, box: Outbox) -> None:
    """Many times are one day, which is looked at once."""
    execute(
        url,
        "CREATE TABLE seen (id integer PRIMARY KEY, at timestamp NOT NULL)",
        "CREATE INDEX ON seen ((at::date))",
        "INSERT INTO seen SELECT g, timestamp '2030-01-01' + g * interval '1h' FROM generate_series(1, 50) g",
    )
    query = "SELECT at::date AS day, count(*) AS n FROM seen GROUP BY 1"
    box.feeds.create(Feed("days", query, key="day", sources={"seen": "at"}))
    box.feeds.refresh(None, "days")
    execute(url, "DELETE FROM seen WHERE id < 20")
    assert one(url, "SELECT outbox_event_feed_wrong('days')") == 0
    sees(box, "days")


@BY_ROW
def test_virtual_columns(by_row: bool) -> None:
    """Triggers do not see them: they store what such a column is made of."""
    url = make_postgres()
    if one(url, "SHOW server_version_num") < "180000":
        pytest.skip("PostgreSQL 18 brought them")
    execute(
        url,
        "CREATE TABLE made (id integer PRIMARY KEY, a integer, twice integer GENERATED ALWAYS AS (a * 2) VIRTUAL)",
        "INSERT INTO made VALUES (1, 1)",
    )
    with Outbox(url) as box:
        feed = Feed("made", "SELECT id, twice FROM made", key="id", sources={"made": FeedSource("id", by_row=by_row)})
        box.feeds.create(feed)
        box.feeds.refresh(None, "made")
        execute(url, "UPDATE made SET a = 5")
        sees(box, "made")
        with pytest.raises(FeedError, match="virtual ones they do not"):
            box.feeds.create(
                replace(feed, name="by", sources={"made": FeedSource("twice", "SELECT twice / 2 FROM touched")})
            )


@pytest.mark.parametrize(
    ("said", "query"),
    [
        ("a system column", "SELECT id, xmin::text AS version FROM orders"),
        ("a system column", "SELECT id, ctid::text AS place FROM orders"),
        ("to_tsvector", "SELECT id, to_tsvector(amount::text) AS words FROM orders"),
    ],
)
def test_what_changes_by_itself(box: Outbox, said: str, query: str) -> None:
    with pytest.raises(FeedError, match=said) as refused:
        box.feeds.create(Feed("refused", query, key="id", sources={"orders": "id"}))
    assert refused.value.reason == "volatile"


def test_what_resolves_by_chance(box: Outbox) -> None:
    by_chance = FeedSource("id", "SELECT id FROM touched WHERE random() < 0.5")
    with pytest.raises(FeedError, match=r"what resolves public\.orders .*random") as refused:
        box.feeds.create(Feed("refused", "SELECT id FROM orders", key="id", sources={"orders": by_chance}))
    assert refused.value.reason == "volatile"


def test_keys_and_scopes_that_cannot_be_looked_for(url: str, box: Outbox) -> None:
    execute(
        url,
        "CREATE TABLE tagged (tags text[] PRIMARY KEY, n integer)",
        "INSERT INTO tagged VALUES ('{a,b}', 1), ('{}', 2)",
    )
    feed = Feed("tagged", "SELECT * FROM tagged", key="tags", sources={"tagged": "tags"})
    with pytest.raises(FeedError, match="tags is an array") as refused:
        box.feeds.create(feed)
    assert refused.value.reason == "not_local"
    box.feeds.create(replace(feed, mode="full"))
    assert box.feeds.refresh(None, "tagged").inserted == 2
    with pytest.raises(FeedError, match="cannot be a key: data type json") as refused:
        box.feeds.create(Feed("json", "SELECT '{}'::json AS j FROM orders", key="j", mode="full"))
    assert refused.value.reason == "no_key"


def test_another_scope(url: str, box: Outbox) -> None:
    """The old one may be NULL again."""
    execute(url, "ALTER TABLE orders ALTER customer DROP NOT NULL")
    ranked = "SELECT id, customer, rank() OVER (PARTITION BY customer ORDER BY amount) AS n FROM orders"
    feed = Feed("ranks", ranked, key="id", scope="customer", sources={"orders": "customer"})
    box.feeds.create(feed)
    box.feeds.refresh(None, "ranks")
    plain = Feed("ranks", "SELECT id, customer, id::bigint AS n FROM orders", key="id", sources={"orders": "id"})
    box.feeds.create(plain)
    execute(url, "INSERT INTO orders VALUES (101, NULL, 1)")
    assert box.feeds.refresh(None, "ranks").inserted > 0
    with pytest.raises(FeedError, match=r"new scope \(customer\) is NULL") as refused:
        box.feeds.create(feed)
    assert refused.value.reason == "no_key"


# -- tables --------------------------------------------------------------------------------------------------


@BY_ROW
def test_children_that_are_no_partitions(url: str, box: Outbox, by_row: bool) -> None:
    execute(
        url,
        "CREATE TABLE parent (id integer NOT NULL, n integer)",
        "CREATE TABLE child (more integer) INHERITS (parent)",
        "CREATE INDEX ON parent (id)",
        "CREATE INDEX ON child (id)",
    )
    query = "SELECT id, sum(n) AS n FROM parent GROUP BY id"
    box.feeds.create(Feed("sums", query, key="id", sources={"parent": FeedSource("id", by_row=by_row)}))
    box.feeds.refresh(None, "sums")
    for change in ("INSERT INTO child VALUES (1, 1, 1)", "UPDATE parent SET n = 2", "UPDATE child SET id = 2"):
        execute(url, change)
        sees(box, "sums")
    execute(url, "UPDATE child SET more = 7")
    assert box.feeds.status("sums").waiting == 0


def test_partitions_by_row(url: str, box: Outbox) -> None:
    """Their columns may be in another order."""
    execute(
        url,
        "CREATE TABLE part (id integer NOT NULL, n integer, note json) PARTITION BY RANGE (id)",
        "CREATE TABLE part_0 PARTITION OF part FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE part_1 (note json, n integer, id integer NOT NULL)",
        "ALTER TABLE part ATTACH PARTITION part_1 FOR VALUES FROM (10) TO (20)",
        "CREATE INDEX ON part (id)",
    )
    box.feeds.create(Feed("parts", "SELECT * FROM part", key="id", sources={"part": FeedSource("id", by_row=True)}))
    box.feeds.refresh(None, "parts")
    for change in (
        "INSERT INTO part VALUES (1, 1, '{}'), (11, 1, '{}')",
        "UPDATE part SET note = '{ }'",
        "UPDATE part SET id = 12 WHERE id = 1",
    ):
        execute(url, change)
        sees(box, "parts")
    execute(url, "UPDATE part_1 SET n = n")
    assert box.feeds.status("parts").waiting == 0


@pytest.mark.parametrize("table", ["logged_not", "parted", "parent"])
def test_tables_that_change_without_a_trigger(url: str, box: Outbox, table: str) -> None:
    execute(
        url,
        "CREATE UNLOGGED TABLE logged_not (id integer PRIMARY KEY)",
        "CREATE FOREIGN DATA WRAPPER away",
        "CREATE SERVER away FOREIGN DATA WRAPPER away",
        "CREATE TABLE parted (id integer) PARTITION BY LIST (id)",
        "CREATE FOREIGN TABLE part PARTITION OF parted FOR VALUES IN (1) SERVER away",
        "CREATE TABLE parent (id integer)",
        "CREATE FOREIGN TABLE child () INHERITS (parent) SERVER away",
    )
    feed = Feed("refused", f"SELECT id FROM {table}", key="id", sources={table: "id"})
    with pytest.raises(FeedError, match="is foreign or unlogged") as refused:
        box.feeds.create(feed)
    assert refused.value.reason == "not_local"
    box.feeds.create(replace(feed, mode="full"))


def test_rows_that_not_everybody_sees(url: str) -> None:
    """What a policy says may depend on the session: no trigger tells of that."""
    execute(
        url,
        "DO $$ BEGIN CREATE ROLE feed_owner LOGIN; EXCEPTION WHEN duplicate_object THEN END $$",
        "GRANT ALL ON SCHEMA public TO feed_owner",
        "GRANT ALL ON ALL TABLES IN SCHEMA public TO feed_owner",
        "GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO feed_owner",
        "ALTER TABLE orders OWNER TO feed_owner",
        "CREATE POLICY theirs ON orders USING (customer = current_setting('app.customer')::integer)",
        "ALTER TABLE orders ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY",
    )
    with Outbox(url.replace("//relaybox@", "//feed_owner@")) as box:
        with pytest.raises(FeedError, match=r"row security of public\.orders") as refused:
            box.feeds.create(TOTALS)
        assert refused.value.reason == "volatile"
    execute(url, "ALTER TABLE orders NO FORCE ROW LEVEL SECURITY")
    with Outbox(url.replace("//relaybox@", "//feed_owner@")) as box:
        box.feeds.create(TOTALS)
        assert box.feeds.refresh(None, "totals").inserted == 10


# -- sessions ------------------------------------------------------------------------------------------------


@BY_ROW
def test_floats_that_a_session_writes_short(url: str, box: Outbox, by_row: bool) -> None:
    execute(url, "CREATE TABLE measured (id integer PRIMARY KEY, v float8)", "INSERT INTO measured VALUES (1, 1)")
    source = FeedSource("id", by_row=by_row)
    box.feeds.create(Feed("measured", "SELECT id, v FROM measured", key="id", sources={"measured": source}))
    box.feeds.refresh(None, "measured")
    with psycopg.connect(url, autocommit=True) as writer:
        writer.execute("SET extra_float_digits = -10")
        writer.execute("UPDATE measured SET v = 1.0000000000001")
    sees(box, "measured")


def test_a_session_elsewhere(url: str, box: Outbox) -> None:
    """Who verifies, refreshes or takes a snapshot reads and writes times as everybody does."""
    execute(
        url,
        "CREATE TABLE seen (id integer PRIMARY KEY, at timestamptz, day text, price money)",
        "INSERT INTO seen VALUES (1, '2030-01-01 23:00+00', '02/03/2030', 5)",
    )
    query = "SELECT id, at::text AS told, date_trunc('day', at) AS on_day, day::date AS day, price FROM seen"
    box.feeds.create(Feed("seen", query, key="id", sources={"seen": "id"}))
    box.feeds.refresh(None, "seen")
    execute(
        url,
        "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET timezone = %L', current_database(), 'Asia/Tokyo');"
        " EXECUTE format('ALTER DATABASE %I SET datestyle = %L', current_database(), 'German, DMY'); END $$",
    )
    assert one(url, "SELECT outbox_event_feed_wrong('seen')") == 0
    with Outbox(url) as other:
        assert other.feeds.verify("seen") == (0, 0, True)
        assert other.feeds.refresh(None, "seen", full=True).delta is None
        execute(url, "UPDATE seen SET price = 6")
        sees(other, "seen")


def test_a_database_that_was_restored() -> None:
    """Its triggers are others, so all is evaluated once."""
    server = require("postgres-system", durable=False)
    url = make_postgres("postgres-system")
    execute(url, "CREATE TABLE orders (id integer PRIMARY KEY, amount float8)", "INSERT INTO orders VALUES (1, 1)")
    names = {"statement": False, "row": True}
    with Outbox(url) as box:
        for name, by_row in names.items():
            source = FeedSource("id", by_row=by_row)
            box.feeds.create(Feed(name, "SELECT * FROM orders", key="id", sources={"orders": source}, inline_rows=0))
            box.feeds.refresh(None, name)
    execute(url, "INSERT INTO orders VALUES (2, 2)")
    with Outbox(elsewhere := restored(url, server)) as box:
        for name in names:
            assert box.feeds.status(name).waiting == 1
            sees(box, name, how="full")
        execute(elsewhere, "UPDATE orders SET amount = amount + 1")
        for name in names:
            sees(box, name)


# -- several at once, one after another ------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["auto", "full"])
def test_all_processes_define_it_at_their_start(url: str, box: Outbox, mode: Any) -> None:
    box.topics.configure(Topic.pub_sub("shared"))
    feed = replace(TOTALS, topic="shared", mode=mode)
    found: list[object] = []
    begin = threading.Barrier(5)

    def define() -> None:
        with Outbox(url) as mine:
            begin.wait(30)
            try:
                found.append(mine.feeds.create(feed).table)
            except Exception as error:
                found.append(error)

    threads = [threading.Thread(target=define) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == ["public.feed_totals"] * 5


def test_a_paused_feed_that_is_defined_anew_stays_paused(url: str, box: Outbox) -> None:
    box.feeds.create(TOTALS)
    box.feeds.refresh(None, "totals")
    box.feeds.pause("totals")
    assert box.feeds.create(replace(TOTALS, query=TOTALS.query + " HAVING customer < 5")).paused
    assert one(url, "SELECT count(*) FROM pg_trigger WHERE tgname LIKE 'relaybox%'") == 0
    execute(url, "DELETE FROM orders WHERE customer = 1")
    assert box.feeds.resume("totals")
    assert box.feeds.refresh(None, "totals")[:3] == ("full", 0, 6)
    execute(url, "DELETE FROM orders WHERE customer = 2")
    sees(box, "totals")


def test_a_delta_that_says_that_nothing_changed(url: str, box: Outbox) -> None:
    box.feeds.create(replace(TOTALS, skip_empty=False))
    group = box.topics.group("totals", "all", start=StartFrom.earliest())
    group.create()
    box.feeds.refresh(None, "totals")
    assert box.feeds.refresh(None, "totals")[:4] == ("differential", 0, 0, 2)
    assert box.feeds.refresh(None, "totals", full=True)[:4] == ("full", 0, 0, 3)
    with group.consumer() as consumer:
        assert [len(list(consumer.rows(event))) for event in consumer.poll()] == [10, 0, 0]
    box.feeds.create(replace(TOTALS, skip_empty=True))
    assert box.feeds.refresh(None, "totals").delta is None


def test_what_waits_for_the_next_refresh_is_no_drift(url: str, box: Outbox) -> None:
    box.feeds.create(TOTALS)
    assert box.feeds.verify("totals") == (10, 1, True)
    box.feeds.refresh(None, "totals")
    execute(url, "TRUNCATE orders")
    assert box.feeds.verify("totals") == (10, 1, True)


NOWHERE = Feed(
    "items",
    "SELECT o.id, o.customer, count(i.id) AS n FROM orders o "
    "LEFT JOIN item i ON i.order_id = o.id AND i.kind = o.customer GROUP BY o.id, o.customer",
    key=("id", "customer"),
    sources={"orders": ("id", "customer"), "item": ("order_id", "kind")},
)


def test_scopes_that_are_nowhere(url: str, box: Outbox) -> None:
    """An item of no order changes no order; a row whose key is NULL is refused, by whatever it is found."""
    execute(
        url, "CREATE TABLE item (id serial, order_id integer, kind integer)", "CREATE INDEX ON item (order_id, kind)"
    )
    execute(url, "CREATE INDEX ON orders (id, customer)", "ALTER TABLE orders ALTER customer DROP NOT NULL")
    box.feeds.create(NOWHERE)
    box.feeds.refresh(None, "items")
    execute(url, "INSERT INTO item (order_id, kind) VALUES (NULL, 7), (7, NULL), (NULL, NULL), (7, 7)")
    sees(box, "items")
    execute(url, "INSERT INTO orders VALUES (101, NULL, 1), (102, 2, 1)")
    for _ in range(2):
        with pytest.raises(FeedError, match=r"whose key or scope \(customer\) is NULL") as refused:
            box.feeds.refresh(None, "items")
        assert refused.value.reason == "no_key"
    assert box.feeds.verify("items") == (2, 2, True)
    execute(url, "UPDATE orders SET customer = 1 WHERE id = 101")
    sees(box, "items")


# -- what others make of it ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "theirs",
    [
        "CREATE FUNCTION theirs() RETURNS SETOF feed_totals LANGUAGE sql AS 'SELECT * FROM feed_totals'",
        "CREATE TABLE theirs (id integer, was feed_totals)",
        "CREATE TABLE theirs (were feed_totals[])",
        "CREATE TABLE theirs () INHERITS (feed_totals)",
        "CREATE TABLE theirs (customer integer REFERENCES feed_totals)",
        "CREATE MATERIALIZED VIEW theirs AS SELECT * FROM feed_totals",
    ],
)
def test_a_drop_takes_nothing_of_others_along(url: str, box: Outbox, theirs: str) -> None:
    box.feeds.create(TOTALS)
    box.feeds.refresh(None, "totals")
    execute(url, theirs)
    with pytest.raises(FeedError, match=r"its table is used by .*theirs") as refused:
        box.feeds.drop("totals")
    assert refused.value.reason == "in_use"
    execute(url, f"DROP {theirs.split('theirs', 1)[0].removeprefix('CREATE ')} theirs")
    assert box.feeds.drop("totals")


def test_a_topic_with_deltas_is_neither_dropped_nor_made_a_queue(url: str, box: Outbox) -> None:
    box.feeds.create(TOTALS)
    with pytest.raises(InUse, match="has the deltas of feed totals"):
        box.topics.drop("totals")
    with pytest.raises(InUse, match="has the deltas of feed totals"):
        box.topics.move("totals", semantics="queue")
    box.topics.move("totals", tracking="bitmap")
    assert box.feeds.refresh(None, "totals").delta == 1
    box.feeds.drop("totals")
    assert box.topics.list() == []


def test_the_doctor_has_the_limits_of_the_settings(url: str, box: Outbox) -> None:
    box.feeds.create(replace(TOTALS, every="100ms"))

    def found(limits: FeedSettings) -> list[str]:
        return [f.level for f in examine(box._db, box.store, feeds=limits) if f.check == "feeds"]

    assert found(FeedSettings()) == ["ok"]
    wait_until(lambda: found(FeedSettings(late="1ms")) == ["warning"])
