"""dbt beside others, killed, and asked for what cannot be: `make dbt`. Each takes some seconds of dbt."""

from __future__ import annotations

import os
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import psycopg
import pytest

from kit import make_postgres, one, rows, wait_until
from kit.dbt import ROOT, Dbt, DbtProcess
from relaybox import Feed, Inbox, Outbox, StartFrom
from relaybox.types import Order

pytestmark = pytest.mark.skipif(not os.environ.get("TEST_DBT"), reason="the long form: make dbt")

TOTALS = (
    "SELECT customer, count(*) AS orders, sum(amount) AS total FROM {{ source('shop', 'orders') }} GROUP BY customer"
)
FEED = "{{ config(materialized='relaybox_feed', meta={'feed': %s}) }}\n%s"


def totals(dbt: Dbt, query: str = TOTALS, config: str = "") -> None:
    """The model alone: `config` is put before its query."""
    dbt.write("models/totals.sql", config + query)


def replayed(box: Outbox, topic: str, key: str) -> dict[Any, Any]:
    """What a group makes of all deltas, whose numbers are without gaps."""
    group = box.topics.group(topic, "replay", start=StartFrom.earliest())
    table: dict[Any, Any] = {}
    numbers = []
    with group.consumer() as consumer:
        while batch := consumer.poll(100):
            for event in batch:
                numbers.append(int(event.headers["feed-n"]))
                for op, row in consumer.rows(event):
                    if op == "deleted":
                        del table[row[key]]
                    else:
                        assert row[key] not in table
                        table[row[key]] = row
            consumer.commit(batch)
    assert numbers == list(range(1, len(numbers) + 1))
    return table


# -- as relaybox itself ---------------------------------------------------------------------------------


def made(url: str, schema: str) -> Counter[str]:
    """Everything that is in a schema, in words."""
    what = """
    SELECT format('%s %s %s %s', c.relkind, c.relname, c.reloptions, c.relpersistence) FROM pg_class c
    WHERE c.relnamespace = '{0}'::regnamespace
    UNION ALL
    SELECT format('%s %s %s %s %s', c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull,
                  pg_get_expr(d.adbin, d.adrelid))
    FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
    LEFT JOIN pg_attrdef d ON (d.adrelid, d.adnum) = (c.oid, a.attnum)
    WHERE c.relnamespace = '{0}'::regnamespace AND a.attnum > 0
    UNION ALL
    SELECT pg_get_constraintdef(k.oid) || k.conname FROM pg_constraint k WHERE k.connamespace = '{0}'::regnamespace
    UNION ALL
    SELECT indexdef FROM pg_indexes WHERE schemaname = '{0}'
    UNION ALL
    SELECT pg_get_functiondef(p.oid) FROM pg_proc p WHERE p.pronamespace = '{0}'::regnamespace AND p.prokind = 'f'
    """
    return Counter(text for (text,) in rows(url, what.format(schema)))


def told(url: str, table: str) -> list[dict[str, Any]]:
    """Its rows, without times."""
    found = [row[0] for row in rows(url, f"SELECT to_jsonb(t) FROM {table} t")]
    return [
        {k: v for k, v in row.items() if not k.endswith("_at") and k not in ("alive_since", "since", "at", "snapshot")}
        for row in found
    ]


def test_what_it_makes_is_what_relaybox_makes(dbt: Dbt) -> None:
    """In a schema of its own, with names that have to be cut."""
    name = f"outbox_{'x' * 41}"
    by_hand = make_postgres(migrated=False)
    for url in (dbt.url, by_hand):
        with Outbox(url, table=name, schema="box") as box:
            box.migrate()
    feed = f"{{'key': 'customer', 'sources': {{'orders': 'customer'}}, 'outbox': '{name}', 'outbox_schema': 'box'}}"
    groups = "['early', {'name': \"it's late\", 'start': 'latest', 'ordered': false}]"
    inbox = "{'name': 'letters', 'schema': 'box', 'ordering': {'missing': 60, 'dead': 'skip'}}"
    config = f"{{{{ config(meta={{'feed': {feed}, 'consumer_group': {groups}, 'inbox': {inbox}}}) }}}}"
    totals(dbt, config=config)
    assert dbt.run("run", "--select", "totals").success

    rows(by_hand, (ROOT / "examples" / "dbt" / "shop.sql").read_text())
    rows(by_hand, "CREATE SCHEMA reports")
    with Outbox(by_hand, table=name, schema="box") as box, Inbox(by_hand, "letters", schema="box") as letters:
        letters.migrate()
        letters.configure(order=Order(missing="60s", dead="skip"))
        query = TOTALS.replace("{{ source('shop', 'orders') }}", "orders")
        box.feeds.create(Feed("totals", query, key="customer", sources={"orders": "customer"}, table="reports.totals"))
        box.topics.group("totals", "early", start=StartFrom.earliest()).create()
        box.topics.group("totals", "it's late", ordered=False).create()
    ours, theirs = made(by_hand, "box"), made(dbt.url, "box")
    assert (ours - theirs, theirs - ours) == (Counter(), Counter())
    parts = [text.split()[1] for text in ours if text.startswith("r ")]
    for part in ("topic", "group", "cursor", "promise", "head", "latch", "feed_source"):
        (table,) = (found for found in parts if found.startswith("outbox_") and found.endswith(f"_{part}"))
        expected, found = told(by_hand, f"box.{table}"), told(dbt.url, f"box.{table}")
        for row in (*expected, *found):
            row.pop("relid", None)
            if part in ("cursor", "group", "head", "promise"):  # ticks have random bits
                for tick in ("base", "start_tick", "tick"):
                    row[tick] = row.get(tick, 0) >> 24
        assert found == expected, part
    with Inbox(dbt.url, "letters", schema="box") as letters, Inbox(by_hand, "letters", schema="box") as expected_:
        assert letters.info().order == expected_.info().order == Order(missing="60s", dead="skip")
        assert letters.migrate() == []


# -- beside others --------------------------------------------------------------------------------------


def test_many_at_once(dbt: Dbt) -> None:
    """Six models of the same two tables, in four threads; writers and a maintainer beside them."""
    names = [f"feed_{n}" for n in range(6)]
    sources = [
        "'orders': 'id'",
        "'customer': {'columns': 'id', 'resolve': 'SELECT o.id FROM touched t JOIN {orders} o ON o.customer = t.id'}",
    ]
    query = (dbt.project / "models" / "open_orders.sql").read_text().replace("WHERE NOT o.shipped", "")
    for n, name in enumerate(names):
        mapped = ", ".join(sources if n % 2 else reversed(sources))
        feed = f"{{'key': 'id', 'sources': {{{mapped}}}, 'topic': 'shared' if {n} < 2 else '{name}'}}"
        dbt.write(f"models/{name}.sql", FEED % (feed, query))
    ended = threading.Event()
    errors: list[BaseException] = []

    def write() -> None:
        with psycopg.connect(dbt.url, autocommit=True) as connection:
            for n in range(10_000):
                if ended.is_set():
                    return
                connection.execute("UPDATE orders SET amount = amount + 1 WHERE id = %s", [1 + n % 3])
                connection.execute("UPDATE customer SET name = name || 'x' WHERE id = %s", [7 + n % 2])

    def maintain() -> None:
        with Outbox(dbt.url) as box:
            while not ended.is_set():
                for info in box.feeds.list():
                    box.feeds.refresh(None, info.name)

    def guarded(work: Any) -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in (write, maintain)]
    for thread in threads:
        thread.start()
    for how in ([], [], ["--full-refresh"]):
        ran = dbt.run("run", "--select", *names, "--threads", "4", *how)
        assert ran.success, ran
    ended.set()
    for thread in threads:
        thread.join()
    assert errors == []
    with Outbox(dbt.url) as box:
        assert {info.topic for info in box.feeds.list()} == {"shared", *names[2:]}
        for name in names:
            box.feeds.refresh(None, name)
            assert box.feeds.verify(name).rows == 0
        for name in names[2:]:
            kept = {row[0]: row for row in rows(dbt.url, f"SELECT id, amount::int, name FROM reports.{name}")}
            assert {k: tuple(row.values()) for k, row in replayed(box, name, "id").items()} == kept


def test_killed_in_the_middle(dbt: Dbt, tmp_path: Path) -> None:
    """After its refresh, before its commit; a group polls meanwhile, and a writer does not wait."""
    totals(dbt)
    assert dbt.run("run", "--select", "totals").success
    rows(dbt.url, "CREATE TABLE gate (n integer)")
    totals(dbt, config="{{ config(post_hook='SELECT * FROM public.gate') }}")
    rows(dbt.url, "UPDATE orders SET amount = 11 WHERE id = 1")
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%public.gate%'"
    own = DbtProcess(tmp_path / "killed.log")
    killed = Dbt(dbt.project, dbt.url, own)
    with Outbox(dbt.url) as box, psycopg.connect(dbt.url) as gate:
        with box.topics.group("totals", "mirror").consumer() as consumer:
            first = consumer.poll(100)
            assert len(first) == 1
            consumer.commit(first)
            gate.execute("LOCK TABLE gate")
            killed.send("run", "--select", "totals")
            wait_until(lambda: one(dbt.url, waiting) == 1, "the hook waits")
            rows(dbt.url, "UPDATE orders SET amount = 12 WHERE id = 2")
            assert list(consumer.poll(100)) == []
            own.kill()
            gate.rollback()
            wait_until(lambda: one(dbt.url, waiting) == 0)
            wait_until(lambda: one(dbt.url, "SELECT count(*) FROM pg_locks WHERE relation = 'gate'::regclass") == 0)
            status = box.feeds.status("totals")
            assert (status.feed.deltas, status.waiting, list(consumer.poll(100))) == (1, 2, [])
            again = dbt.run("run", "--select", "totals")
            assert (again.success, again.said("totals")) == (True, "delta 2, differential: +1 -1")
            (event,) = consumer.poll(100)
            assert event.payload["inserted"] == [{"customer": 7, "orders": 2, "total": 23}]


# -- what changes ---------------------------------------------------------------------------------------


def test_definitions_change(dbt: Dbt) -> None:
    assert dbt.run("run", "--select", "totals").success
    with Outbox(dbt.url) as box:
        before = box.feeds.get("totals")
        totals(dbt, TOTALS.replace("GROUP", "WHERE NOT shipped AND amount > 5 GROUP"))
        assert dbt.run("run", "--select", "totals").said("totals") == "delta 2, full: +0 -1"
        totals(dbt, TOTALS.replace("sum(amount) AS total", "max(amount) AS most"))
        refused = dbt.run("run", "--full-refresh", "--select", "totals")
        assert "its columns or its key would change" in refused.said("totals")
        assert "dbt run-operation relaybox_drop_feed --args '{model: totals}'" in refused.said("totals")
        assert dbt.run("run-operation", "relaybox_drop_feed", "--args", "{model: totals}").success
        assert box.feeds.list() == []
        assert dbt.run("run", "--select", "totals").said("totals") == "delta 1, full: +2 -0"
        after = box.feeds.get("totals")
        assert before is not None
        assert after is not None
        assert after.epoch != before.epoch

        rows(dbt.url, "DROP TABLE reports.totals CASCADE")
        assert "its table reports.totals was dropped" in dbt.run("run", "--select", "totals").said("totals")
        assert dbt.run("run-operation", "relaybox_drop_feed", "--args", "{model: totals}").success

        totals(dbt, config="{{ config(materialized='table') }}")
        assert dbt.run("run", "--select", "totals").success
        totals(dbt)
        assert "--full-refresh drops it" in dbt.run("run", "--select", "totals").said("totals")
        assert dbt.run("run", "--select", "totals", "--full-refresh").success
        assert box.feeds.verify("totals").rows == 0


def test_upstream_that_is_rebuilt_is_healed(dbt: Dbt) -> None:
    table = "{{ config(materialized='table', indexes=[{'columns': ['customer']}]) }}"
    dbt.write("models/paid.sql", table + "SELECT id, customer, amount FROM {{ source('shop', 'orders') }}")
    dbt.write("models/latest.sql", "{{ config(materialized='ephemeral') }} SELECT * FROM {{ ref('paid') }}")
    feed = "{'key': 'customer', 'sources': {'paid': 'customer'}}"
    dbt.write(
        "models/spent.sql", FEED % (feed, "SELECT customer, sum(amount) AS spent FROM {{ ref('latest') }} GROUP BY 1")
    )
    for expected in ("delta 1, full: +2 -0", "no delta, full: +0 -0"):
        assert dbt.run("run", "--select", "+spent").said("spent") == expected
    rows(dbt.url, "UPDATE orders SET amount = 0 WHERE id = 3")
    assert dbt.run("run", "--select", "+spent").said("spent") == "delta 2, full: +1 -1"
    rows(dbt.url, "UPDATE reports.paid SET amount = 1 WHERE id = 3")
    assert dbt.run("run", "--select", "spent").said("spent") == "delta 3, differential: +1 -1"


def test_what_dbt_says_of_tables(dbt: Dbt) -> None:
    """Grants, contracts, indexes, a database with another isolation."""
    database = dbt.url.rsplit("/", 1)[1]
    rows(dbt.url, f"ALTER DATABASE {database} SET default_transaction_isolation = 'repeatable read'")
    role = f"reader_{database}"
    rows(dbt.url, f"CREATE ROLE {role}")
    config = "{{ config(grants={'select': ['%s']}, indexes=[{'columns': ['total']}], contract={'enforced': %s}) }}"
    indexes = "SELECT count(*) FROM pg_indexes WHERE tablename = 'totals'"
    typed = TOTALS.replace("sum(amount)", "sum(amount)::numeric")
    for _ in range(2):
        totals(dbt, typed, config % (role, "false"))
        assert dbt.run("run", "--select", "totals").success
        assert one(dbt.url, f"SELECT has_table_privilege('{role}', 'reports.totals', 'SELECT')")
        assert one(dbt.url, indexes) == 2
    totals(dbt, typed)
    assert dbt.run("run", "--select", "totals").success
    assert one(dbt.url, indexes) == 1
    totals(dbt, typed, "{{ config(contract={'enforced': true}) }}")
    assert "data_type" in dbt.run("run", "--select", "totals").said("totals")
    properties = (dbt.project / "models/shop.yml").read_text()
    before = "      - name: customer\n        data_tests: [unique, not_null]\n"
    for kind, success in (("bigint", True), ("text", False)):
        types = {"customer": "integer", "orders": kind, "total": "numeric"}
        after = "".join(f"      - {{name: {column}, data_type: {of}}}\n" for column, of in types.items())
        dbt.write("models/shop.yml", properties.replace(before, after))
        assert dbt.run("run", "--select", "totals").success is success
    rows(dbt.url, f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_operations_and_hooks(dbt: Dbt) -> None:
    hook = "\non-run-start: \"{{ relaybox.relaybox_create_inbox('by_hook') }}\"\n"
    dbt.write("dbt_project.yml", (dbt.project / "dbt_project.yml").read_text() + hook)
    assert dbt.run("run", "--select", "totals").success
    create = "run-operation", "relaybox_create_inbox", "--args"
    for _ in range(2):
        assert dbt.run(*create, "{name: asked, ordering: true}").success
    assert "in another order or in none" in dbt.run(*create, "{name: by_hook, ordering: true}").printed
    assert "expected the name" in dbt.run(*create, "{name: 'a;b'}").printed
    shown = dbt.run("run-operation", "relaybox_feed_config", "--args", "{model: open_orders}").printed
    assert '"table": "\\"public\\".\\"customer\\"", "columns": ["id"]' in shown
    for name in ("by_hook", "asked"):
        with Inbox(dbt.url, name) as inbox:
            assert inbox.migrate() == []
    assert dbt.run("docs", "generate").success
    assert '"What each customer has ordered."' in (dbt.project / "target" / "catalog.json").read_text()


@pytest.mark.parametrize(
    ("feed", "said"),
    [
        ("{'sources': {'orders': 'customer'}}", "needs a key"),
        ("{'key': 'customer'}", "needs sources"),
        ("{'key': 'customer', 'sources': {'orders': {'column': 'x'}}}", "has no option column"),
        ("{'key': 'customer', 'source': {}}", "feed has no option source"),
        (
            "{'key': 'customer', 'sources': {'orders': 'customer'}, 'outbox': 'other'}",
            "there are no feeds of outbox other",
        ),
        ("{'key': 'customer', 'sources': {'customer': 'id'}}", "no source says what a change there means"),
    ],
)
def test_refused(dbt: Dbt, feed: str, said: str) -> None:
    totals(dbt, config=f"{{{{ config(meta={{'feed': {feed}}}) }}}}")
    assert said in dbt.run("run", "--select", "totals").said("totals")


def test_a_run_without_rows_is_refused(dbt: Dbt) -> None:
    assert "--empty" in dbt.run("run", "--empty", "--select", "totals").said("totals")
