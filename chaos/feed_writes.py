"""What the writers of the feed trial do to its tables, one statement or a few at a time."""

from __future__ import annotations

import random
from typing import Any

import psycopg
from psycopg import sql


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
