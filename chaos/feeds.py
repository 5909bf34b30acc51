"""Feeds under fire: writers of every kind, two refreshers, and a judge in each refresh.

    python -m chaos.feeds 20000      as many deltas

After every refresh the table must equal the query in that refresh's own snapshot: the function by which a refresh asks
its query is wrapped here, and tells what all of it says in the snapshot of the statement that calls it. At the end
the deltas, replayed in order, must be the tables, and the tables what the queries say.
"""

from __future__ import annotations

import json
import random
import sys
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import psycopg
from psycopg import sql

from relaybox import Feed, Outbox, StartFrom
from relaybox.errors import StoreError
from relaybox.testing.servers import require
from relaybox.types import FeedSource, Refreshed

TABLES = """
CREATE TABLE customer (id integer PRIMARY KEY, name text, region text NOT NULL);
CREATE TABLE orders (id integer PRIMARY KEY, customer integer NOT NULL, amount numeric, status text NOT NULL);
CREATE INDEX ON orders (customer, status);
CREATE TABLE item (id integer PRIMARY KEY, order_id integer NOT NULL
                   REFERENCES orders ON DELETE CASCADE ON UPDATE CASCADE, qty integer, price numeric, note json);
CREATE INDEX ON item (order_id);
CREATE TABLE part (id integer NOT NULL, grp integer NOT NULL, val numeric, PRIMARY KEY (id)) PARTITION BY HASH (id);
CREATE TABLE part_0 PARTITION OF part FOR VALUES WITH (MODULUS 2, REMAINDER 0);
CREATE TABLE part_1 PARTITION OF part FOR VALUES WITH (MODULUS 2, REMAINDER 1);
CREATE INDEX ON part (grp);
CREATE SEQUENCE ids;
INSERT INTO customer SELECT g, 'c' || g, 'r' || g % 3 FROM generate_series(1, 20) g;
INSERT INTO orders SELECT nextval('ids'), 1 + g % 20, g, CASE g % 3 WHEN 0 THEN 'open' ELSE 'done' END
FROM generate_series(1, 200) g;
INSERT INTO item SELECT nextval('ids'), id, 1, 2.50, '{}' FROM orders;
INSERT INTO part SELECT nextval('ids'), g % 7, g FROM generate_series(1, 100) g;
"""
SMALL: dict[str, Any] = {"topic": "deltas", "inline_rows": 6, "chunk_rows": 4}
OF_CUSTOMER = FeedSource("id", "SELECT o.id FROM touched t JOIN orders o ON o.customer = t.id")
FEEDS = (
    Feed(
        "filter",
        "SELECT id, customer, amount FROM orders WHERE status = 'open'",
        key="id",
        sources={"orders": "id"},
        mode="differential",
        **SMALL,
    ),
    Feed(
        "join",
        "SELECT o.id, o.amount, c.name, c.region FROM orders o JOIN customer c ON c.id = o.customer",
        key="id",
        sources={"orders": "id", "customer": OF_CUSTOMER},
        **SMALL,
    ),
    Feed(
        "left join",
        "SELECT i.id, i.qty, i.note, o.amount FROM item i "
        "LEFT JOIN orders o ON o.id = i.order_id AND o.status = 'open'",
        key="id",
        sources={
            "item": "id",
            "orders": FeedSource("id", "SELECT i.id FROM touched t JOIN item i ON i.order_id = t.id"),
        },
        mode="differential",
        **SMALL,
    ),
    Feed(
        "group by",
        "SELECT customer, count(*) AS n, sum(amount) AS total FROM orders GROUP BY customer",
        key="customer",
        sources={"orders": "customer"},
        mode="differential",
        **SMALL,
    ),
    Feed(
        "window",
        "SELECT id, customer, rank() OVER (PARTITION BY customer ORDER BY amount, id) AS place FROM orders",
        key="id",
        scope="customer",
        sources={"orders": "customer"},
        mode="differential",
        **SMALL,
    ),
    Feed(
        "union all",
        "SELECT 'o' AS kind, id, amount FROM orders UNION ALL SELECT 'p', id, val FROM part",
        key=("kind", "id"),
        sources={
            "orders": FeedSource("id", "SELECT 'o', id FROM touched"),
            "part": FeedSource("id", "SELECT 'p', id FROM touched"),
        },
        **SMALL,
    ),
    Feed(
        "distinct",
        "SELECT DISTINCT customer, status FROM orders",
        key=("customer", "status"),
        sources={"orders": ("customer", "status")},
        mode="differential",
        **SMALL,
    ),
    Feed(
        "aggregating CTE",
        "WITH t AS (SELECT order_id, sum(qty * price) AS value, count(*) AS n FROM item GROUP BY order_id) "
        "SELECT o.id, o.customer, t.value, t.n FROM orders o JOIN t ON t.order_id = o.id",
        key="id",
        sources={"orders": "id", "item": "order_id"},
        mode="differential",
        **SMALL,
    ),
    Feed(
        "everything",
        "SELECT grp, count(*) AS n, sum(val) AS total FROM part GROUP BY grp",
        key="grp",
        mode="full",
        **SMALL,
    ),
)
WATCHED = """
ALTER FUNCTION {rows}({types}) RENAME TO {real};
CREATE FUNCTION {rows}({types}) RETURNS SETOF {kept} LANGUAGE plpgsql STABLE AS $$
BEGIN
  PERFORM set_config('judge.said', (SELECT coalesce(md5(string_agg(q::text, ',' ORDER BY q::text COLLATE "C")), '-')
                                    FROM {query} q), true);
  RETURN QUERY SELECT * FROM public.{real}({given});
END $$
"""
DEAF = """
CREATE OR REPLACE FUNCTION outbox_event_feed_1_0_capture() RETURNS trigger LANGUAGE plpgsql
AS 'BEGIN RETURN NULL; END'
"""
KEPT = "SELECT coalesce(md5(string_agg(q::text, ',' ORDER BY q::text COLLATE \"C\")), '-') FROM {} q"


@dataclass
class Trial:
    """What a run has seen. `torn`: refreshes after which the table was not what the query said."""

    url: str
    wanted: int
    seed: int = 1
    deaf: bool = False  # a bug the judge must find: one table's changes go unseen
    refreshes: Counter[str] = field(default_factory=Counter)
    writes: Counter[str] = field(default_factory=Counter)
    torn: list[str] = field(default_factory=list)
    errors: list[BaseException] = field(default_factory=list)
    deltas: int = 0
    replayed: int = 0
    claim_checks: int = 0
    _over: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self) -> None:
        with psycopg.connect(self.url, autocommit=True) as owner, Outbox(self.url) as box:
            owner.execute(TABLES.encode())
            for feed in FEEDS:
                box.feeds.create(feed)
                if feed.mode != "full":
                    self._watch(owner, box, feed)
            if self.deaf:
                owner.execute(DEAF)
            readers = box.topics.group("deltas", "judge", start=StartFrom.earliest())
            readers.create()
            self._all_at_once(box)
            for feed in FEEDS:
                with box.transaction() as tx:
                    self._refresh(box, tx, feed, random.Random(0))
                drift = box.feeds.verify(feed.name)
                if drift.rows or not drift.captured:
                    self.torn.append(f"{feed.name}: {drift} at the end")
            self._replay(box, owner)

    def _all_at_once(self, box: Outbox) -> None:
        jobs: list[Callable[[random.Random], None]] = [self._write] * 4 + [
            lambda chance: self._refresh_all(box, chance)
        ] * 2
        threads = [threading.Thread(target=self._job, args=(job, n)) for n, job in enumerate(jobs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _job(self, job: Callable[[random.Random], None], number: int) -> None:
        try:
            job(random.Random(self.seed * 100 + number))
        except BaseException as error:
            self.errors.append(error)
        finally:
            self._over.set()

    # -- the judge --------------------------------------------------------------------------------

    def _watch(self, owner: psycopg.Connection[Any], box: Outbox, feed: Feed) -> None:
        found = owner.execute(
            "SELECT f.rows_of, f.query_view, f.relation, oidvectortypes(p.proargtypes), p.pronargs, p.proname "
            "FROM outbox_event_feed f JOIN pg_proc p ON p.oid = to_regproc(f.rows_of) WHERE f.name = %s",
            (feed.name,),
        ).fetchone()
        assert found is not None
        rows, query, kept, types, count, name = found
        given = ", ".join(f"${n + 1}" for n in range(count))
        words = {"rows": rows, "query": query, "kept": kept, "types": types, "real": f"{name}_real", "given": given}
        owner.execute(sql.SQL(WATCHED).format(**{key: sql.SQL(word) for key, word in words.items()}))

    def _refresh_all(self, box: Outbox, chance: random.Random) -> None:
        while not self._over.is_set():
            written = 0
            try:
                with box.transaction() as tx:
                    for feed in sorted(chance.sample(FEEDS, chance.choice((1, 1, 2))), key=lambda feed: feed.name):
                        written += self._refresh(box, tx, feed, chance)
                    if chance.random() < 0.05:
                        raise _Undone
            except _Undone:
                self.refreshes["rolled back"] += 1
            except StoreError as error:
                if not error.retryable:
                    raise
                self.refreshes["retried"] += 1
            else:
                with self._lock:
                    self.deltas += written
                if self.deltas >= self.wanted:
                    self._over.set()

    def _refresh(self, box: Outbox, tx: Any, feed: Feed, chance: random.Random) -> bool:
        raw = tx.connection
        raw.execute("SELECT set_config('judge.said', '', true)")
        done = box.feeds.refresh(tx, feed.name, full=chance.random() < 0.02)
        relation = f"feed_{feed.name}"
        kept = raw.execute(sql.SQL(KEPT).format(sql.Identifier(relation))).fetchone()[0]
        said = raw.execute("SELECT current_setting('judge.said')").fetchone()[0]
        if done.how == "full":
            work = raw.execute(
                "SELECT max(c.relname) FROM pg_class c WHERE c.relnamespace = pg_my_temp_schema() "
                "AND c.relname LIKE 'relaybox\\_' || %s::regclass::oid || '\\_%%\\_new'",
                (f'"{relation}"',),
            ).fetchone()[0]
            said = raw.execute(sql.SQL(KEPT).format(sql.Identifier(work))).fetchone()[0]
        self._judge(feed, done, said, kept)
        return done.delta is not None

    def _judge(self, feed: Feed, done: Refreshed, said: str, kept: str) -> None:
        with self._lock:
            self.refreshes[done.how if said else "nothing to do"] += 1
            if said and said != kept:
                self.torn.append(f"{feed.name}: {done}")

    def _replay(self, box: Outbox, owner: psycopg.Connection[Any]) -> None:
        """By a group, as others read them."""
        tables: dict[str, dict[tuple[Any, ...], Any]] = {feed.name: {} for feed in FEEDS}
        numbers = dict.fromkeys(tables, 0)
        keys = {feed.name: tuple(feed.key) for feed in FEEDS}
        with box.topics.group("deltas", "judge").consumer() as consumer:
            while batch := consumer.poll(500, wait=0):
                for event in batch:
                    name = event.headers["feed"]
                    numbers[name] += 1
                    assert int(event.headers["feed-n"]) == numbers[name], f"{name}: a gap before {event.headers}"
                    table, counts = tables[name], Counter[str]()
                    for op, row in consumer.rows(event):
                        key = tuple(row[column] for column in keys[name])
                        counts[op] += 1
                        if op == "deleted":
                            assert table.pop(key) == row, f"{name}: delta {numbers[name]} deletes what is not there"
                        else:
                            assert key not in table, f"{name}: delta {numbers[name]} inserts {key} again"
                            table[key] = row
                    assert counts["inserted"] == int(event.headers["feed-inserted"])
                    assert counts["deleted"] == int(event.headers["feed-deleted"])
                    self.replayed += 1
                    self.claim_checks += event.headers["feed-claim-check"] == "true"
                consumer.commit(batch)
        for feed in FEEDS:
            kept = owner.execute(
                sql.SQL("SELECT row_to_json(q)::text FROM {} q").format(sql.Identifier(f"feed_{feed.name}"))
            ).fetchall()
            there = sorted(_plain(text) for (text,) in kept)
            if there != sorted(_plain(row) for row in tables[feed.name].values()):
                self.torn.append(f"{feed.name}: the deltas do not make the table")

    # -- writers ----------------------------------------------------------------------------------

    def _write(self, chance: random.Random) -> None:
        with psycopg.connect(self.url) as writer:
            known = [one for one in WRITES if one is not merge or writer.info.server_version >= 150000]
            while not self._over.is_set():
                names = [chance.choice(known) for _ in range(chance.choice((1, 1, 2, 4)))]
                try:
                    for name in names:
                        name(writer, chance)
                        if chance.random() < 0.1:
                            with writer.transaction(force_rollback=True):
                                chance.choice(known)(writer, chance)
                    if chance.random() < 0.3:  # commits late
                        writer.execute("SELECT pg_sleep(%s)", (chance.random() * 0.02,))
                    (writer.rollback if chance.random() < 0.1 else writer.commit)()
                    self.writes.update(name.__name__ for name in names)
                except (psycopg.errors.DeadlockDetected, psycopg.errors.IntegrityError):
                    writer.rollback()
                    self.writes["failed"] += 1


class _Undone(Exception):
    pass


def _plain(row: Any) -> str:
    """A row of JSON in one form."""
    found = json.loads(row, parse_float=Decimal) if isinstance(row, str) else row
    return str(sorted((key, str(value)) for key, value in found.items()))


def add(writer: psycopg.Connection[Any], chance: random.Random) -> None:
    writer.execute(
        "WITH o AS (INSERT INTO orders SELECT nextval('ids'), 1 + g %% 20, g, 'open' "
        "FROM generate_series(%s::integer, %s::integer) g "
        "RETURNING id) INSERT INTO item SELECT nextval('ids'), id, 1, 2.50, '{}' FROM o",
        (start := chance.randrange(1000), start + chance.choice((0, 1, 5))),
    )


def change(writer: psycopg.Connection[Any], chance: random.Random) -> None:
    writer.execute(
        "UPDATE orders SET amount = amount + %s, status = %s WHERE customer = %s",
        (chance.choice((0, 1)), chance.choice(("open", "done")), chance.randint(1, 20)),
    )


def hand_over(writer: psycopg.Connection[Any], chance: random.Random) -> None:
    writer.execute(
        "UPDATE orders SET customer = %s WHERE customer = %s AND id %% 5 = 0",
        (chance.randint(1, 20), chance.randint(1, 20)),
    )


def renumber(writer: psycopg.Connection[Any], chance: random.Random) -> None:
    writer.execute(
        "UPDATE orders SET id = nextval('ids') "
        "WHERE id IN (SELECT id FROM orders WHERE customer = %s ORDER BY id LIMIT 2)",
        (chance.randint(1, 20),),
    )


def remove(writer: psycopg.Connection[Any], chance: random.Random) -> None:
    writer.execute(
        "DELETE FROM orders WHERE id IN (SELECT id FROM orders WHERE customer = %s ORDER BY id LIMIT 3)",
        (chance.randint(1, 20),),
    )


def look_the_same(writer: psycopg.Connection[Any], chance: random.Random) -> None:
    """1.0 becomes 1.00, and JSON changes that has no equality."""
    writer.execute(
        "UPDATE orders SET amount = (amount::integer::text || %s)::numeric WHERE customer = %s",
        (chance.choice((".0", ".00")), chance.randint(1, 20)),
    )
    writer.execute(
        "UPDATE item SET note = %s WHERE order_id IN (SELECT id FROM orders WHERE customer = %s)",
        (chance.choice(("{}", "{ }", '{"a": 1}')), chance.randint(1, 20)),
    )


def merge(writer: psycopg.Connection[Any], chance: random.Random) -> None:
    writer.execute(
        "MERGE INTO customer c USING (SELECT %s AS id) s ON c.id = s.id "
        "WHEN MATCHED AND random() < 0.3 THEN DELETE "
        "WHEN MATCHED THEN UPDATE SET region = 'r' || (random() * 3)::integer "
        "WHEN NOT MATCHED THEN INSERT VALUES (s.id, 'new', 'r0')",
        (chance.randint(1, 22),),
    )


def upsert(writer: psycopg.Connection[Any], chance: random.Random) -> None:
    writer.execute(
        "INSERT INTO customer VALUES (%s, %s, 'r1') ON CONFLICT (id) DO UPDATE SET name = excluded.name",
        (chance.randint(1, 22), f"c{chance.random()}"),
    )


def load(writer: psycopg.Connection[Any], chance: random.Random) -> None:
    found = writer.execute(
        "SELECT nextval('ids') FROM generate_series(1, %s::integer)", (chance.choice((1, 20)),)
    ).fetchall()
    with writer.cursor().copy("COPY part FROM STDIN") as copy:
        for (number,) in found:
            copy.write_row((number, chance.randrange(7), chance.random()))


def into_partition(writer: psycopg.Connection[Any], chance: random.Random) -> None:
    name = sql.Identifier(chance.choice(("part_0", "part_1")))
    writer.execute(sql.SQL("UPDATE {} SET grp = (grp + 1) %% 7 WHERE grp = %s").format(name), (chance.randrange(7),))
    writer.execute(sql.SQL("DELETE FROM {} WHERE id %% 50 = %s").format(name), (chance.randrange(50),))


def change_items(writer: psycopg.Connection[Any], chance: random.Random) -> None:
    writer.execute(
        "UPDATE item SET qty = qty + 1 WHERE order_id IN (SELECT id FROM orders WHERE customer = %s)",
        (chance.randint(1, 20),),
    )
    writer.execute("DELETE FROM item WHERE id %% 40 = %s", (chance.randrange(40),))


def truncate(writer: psycopg.Connection[Any], chance: random.Random) -> None:
    if chance.random() < 0.1:
        writer.execute(chance.choice((b"TRUNCATE part", b"TRUNCATE item", b"TRUNCATE part_1")))


WRITES = (
    *(add, add, change, hand_over, renumber, remove, look_the_same, merge, upsert, load, into_partition),
    *(change_items, truncate),
)


def main() -> int:
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else 2_000
    url = require("postgres-wheel", durable=False).create_database()
    with Outbox(url) as box:
        box.migrate()
    trial = Trial(url, wanted)
    trial.run()
    print(f"refreshes {dict(trial.refreshes)}; writes {dict(trial.writes)}")
    print(f"{trial.replayed} deltas replayed, {trial.claim_checks} by claim check; torn: {trial.torn[:5] or 'none'}")
    for error in trial.errors:
        print(f"error: {error!r}")
    return 1 if trial.torn or trial.errors else 0


if __name__ == "__main__":
    raise SystemExit(main())
