"""Judges a trial from a feed to its replicas by what databases and a topic hold in the end. Imports no relaybox.

unequal      a table that is not what the query says at the end
ghosts       a row in a table, at any time, as no transaction of the source had committed it; or one that went, or came
             again, without having been deleted there
inversions   a row of a table that was followed by an older version of it
compacted    the last record of each key in the compacted topic is not what the query says
disorder     records of a key in another order than its versions; repetitions in order do not count
torn         stock of all items together as it was at no commit of the source, in a table that follows deltas
died         messages and deltas that nobody tries any more
"""

from __future__ import annotations

import json
import sqlite3
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import urlsplit

EXAMPLES = 5
COLUMNS = "kind, code, version, shop_version, shop, name, price, stock"

Key: TypeAlias = tuple[int, str]


class Version(NamedTuple):
    """A row of the feed. What it holds is told by its two versions."""

    version: int
    shop_version: int
    shop: int
    name: str
    price: Decimal
    stock: int

    @property
    def of(self) -> tuple[int, int]:
        return self.version, self.shop_version


class Change(NamedTuple):
    """What was done to a row of a table; None: it went."""

    key: Key
    row: Version | None


class Record(NamedTuple):
    """Of a topic, in its order. None: a tombstone, or that the row is gone."""

    key: Key
    n: int
    id: str
    row: Version | None
    tombstone: bool = False


class Was(NamedTuple):
    """An item as a transaction of the source left it."""

    shop: int
    price: Decimal
    stock: int


@dataclass
class Truth:
    items: Mapping[tuple[Key, int], Was]
    shops: Mapping[tuple[int, int], str]  # names by shop and version
    deleted: Mapping[Key, Sequence[int]]  # under which versions
    rows: Mapping[Key, Version]  # as the query says at the end

    def knows(self, key: Key, row: Version) -> bool:
        was = self.items.get((key, row.version))
        return was == Was(row.shop, row.price, row.stock) and self.shops.get((row.shop, row.shop_version)) == row.name

    def lost(self, key: Key, since: int, until: float = float("inf")) -> bool:
        return any(since < version < until for version in self.deleted.get(key, ()))


@dataclass
class History:
    truth: Truth
    tables: Mapping[str, Mapping[Key, Version]]
    changes: Mapping[str, Sequence[Change]]  # of the rows of a table, in their order
    topic: Sequence[Record] = ()
    compacted: Mapping[Key, Version] | None = None  # what the broker's cleaner has left; None: no such topic
    torn: Sequence[str] = ()  # what a reader saw meanwhile
    died: Mapping[str, int] = field(default_factory=dict)


def judge(history: History) -> dict[str, Any]:
    found: dict[str, list[str]] = defaultdict(list)
    truth = history.truth
    for name, rows in history.tables.items():
        found["unequal"] += [f"{name}: {line}" for line in _differences(rows, truth.rows)]
    for name, changes in history.changes.items():
        for key, changed in _by_key(changes):
            for kind, line in _followed(truth, key, [change.row for change in changed]):
                found[kind].append(f"{name}: {key}: {line}")
    if history.compacted is not None:
        found["compacted"] += _differences(history.compacted, truth.rows)
    for key, records in _by_key(history.topic):
        found["disorder"] += [f"{key}: {line}" for line in _out_of_order(records)]
        found["ghosts"] += [f"topic: {key}: {r.row}" for r in records if r.row and not truth.knows(key, r.row)]
    found["torn"] += history.torn
    bad = {name: len(what) for name, what in found.items() if what}
    bad |= {"died": died} if (died := sum(history.died.values())) else {}
    return {
        "versions": len(truth.items),
        "rows": len(truth.rows),
        "applied": {name: len(changes) for name, changes in history.changes.items()},
        "records": len(history.topic),
        "repeated_records": len(history.topic) - len({(r.id, r.tombstone) for r in history.topic}),
        "violations": bad,
        "examples": {name: sorted(what)[:EXAMPLES] for name, what in found.items() if what},
        "verdict": "FAIL" if bad else "PASS",
    }


def _differences(rows: Mapping[Key, Version], wanted: Mapping[Key, Version]) -> list[str]:
    keys = sorted(rows.keys() | wanted.keys())
    return [f"{key}: {rows.get(key)} for {wanted.get(key)}" for key in keys if rows.get(key) != wanted.get(key)]


def _by_key(lines: Sequence[Any]) -> Iterator[tuple[Key, list[Any]]]:
    """In the order of each key."""
    for key, of in groupby(sorted(lines, key=attrgetter("key")), attrgetter("key")):
        yield key, list(of)


def _followed(truth: Truth, key: Key, rows: Sequence[Version | None]) -> Iterator[tuple[str, str]]:
    """What is wrong with the life of a row in a table."""
    last, gone = Version(0, 0, 0, "", Decimal(), 0), True
    for row in rows:
        if row is None:
            if not truth.lost(key, last.version):
                yield "ghosts", f"went after {last.of}, and was not deleted"
        elif not truth.knows(key, row):
            yield "ghosts", f"{row}"
        elif row.of < last.of:
            yield "inversions", f"{row.of} after {last.of}"
        elif gone and last.version and not truth.lost(key, last.version, row.version):
            yield "ghosts", f"came again as {row.of} after {last.of}, and was not deleted"
        last, gone = (last, True) if row is None else (row, False)


def _out_of_order(records: Sequence[Record]) -> Iterator[str]:
    """First copies that come after a later one of the key. A tombstone has the id of its row, and a snapshot the row
    as it was."""
    seen: set[tuple[str, bool]] = set()
    highest, version = 0, (0, 0)
    for record in records:
        if (record.id, record.tombstone) not in seen:
            seen.add((record.id, record.tombstone))
            if record.n < highest or (record.row is not None and record.row.of < version):
                yield f"{record.id} after {highest}"
            highest = max(highest, record.n)
            version = max(version, record.row.of) if record.row else version


# -- reading ----------------------------------------------------------------------------------------------------------


def ask(url: str, text: str) -> list[tuple[Any, ...]]:
    """Of any database; with a connection of its own."""
    if url.startswith("postgresql"):
        import psycopg

        with psycopg.connect(url, autocommit=True) as connection:
            found = connection.execute(text.encode())
            return found.fetchall() if found.description else []
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"), timeout=30)) as opened, opened:
            return opened.execute(text).fetchall()
    import pymysql

    parts = urlsplit(url)
    where = {"host": parts.hostname, "port": parts.port, "user": parts.username, "database": parts.path.strip("/")}
    with (
        closing(pymysql.connect(**where, password=parts.password or "", autocommit=True)) as opened,
        opened.cursor() as cursor,
    ):
        cursor.execute(text)
        return list(cursor.fetchall())


# What is recorded of a table: each change of a row, by triggers of the table's own database.
RECORDED = """
CREATE TABLE {table}_was (seq {number}, gone integer, kind integer, code {text}, version bigint, shop_version bigint,
                          shop integer, name {text}, price {price}, stock bigint)
"""
RECORD = "INSERT INTO {table}_was (gone, {columns}) VALUES ({gone}, {values})"
TRIGGERS = {
    "postgresql": """
CREATE FUNCTION {table}_{event}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {record}; RETURN NULL; END $$;
CREATE TRIGGER {table}_{event} AFTER {event} ON {table} FOR EACH ROW EXECUTE FUNCTION {table}_{event}()
""",
    "mysql": "CREATE TRIGGER {table}_{event} AFTER {event} ON {table} FOR EACH ROW {record}",
    "sqlite": "CREATE TRIGGER {table}_{event} AFTER {event} ON {table} FOR EACH ROW BEGIN {record}; END",
}
TYPES = {
    "postgresql": {"number": "bigserial PRIMARY KEY", "text": "text", "price": "numeric"},
    "mysql": {
        "number": "bigint AUTO_INCREMENT PRIMARY KEY",
        "text": "text CHARACTER SET utf8mb4",
        "price": "decimal(12,2)",
    },
    "sqlite": {"number": "integer PRIMARY KEY AUTOINCREMENT", "text": "text", "price": "text"},
}


def record(url: str, table: str) -> None:
    """From now on."""
    dialect = url.partition(":")[0]
    ask(url, RECORDED.format(table=table, **TYPES[dialect]))
    ask(url, f"CREATE INDEX {table}_was_version ON {table}_was (version)")
    for event, side in (("INSERT", "NEW"), ("UPDATE", "NEW"), ("DELETE", "OLD")):
        values = ", ".join(f"{side}.{column}" for column in COLUMNS.split(", "))
        text = RECORD.format(table=table, columns=COLUMNS, gone=int(event == "DELETE"), values=values)
        ask(url, TRIGGERS[dialect].format(table=table, event=event, record=text))


def version(row: Sequence[Any]) -> Version:
    number, shop_number, shop, name, price, stock = row
    return Version(int(number), int(shop_number), int(shop), name, Decimal(price).normalize(), int(stock))


def rows(url: str, relation: str) -> dict[Key, Version]:
    found = ask(url, f"SELECT {COLUMNS} FROM {relation}")
    return {(row[0], row[1]): version(row[2:]) for row in found}


def read_changes(url: str, table: str) -> list[Change]:
    found = ask(url, f"SELECT gone, {COLUMNS} FROM {table}_was ORDER BY seq")
    return [Change((kind, code), None if gone else version(row)) for gone, kind, code, *row in found]


def read_truth(url: str, query: str) -> Truth:
    deleted: dict[Key, list[int]] = defaultdict(list)
    items: dict[tuple[Key, int], Was] = {}
    for kind, code, number, gone, shop, price, stock in ask(url, "SELECT * FROM item_was"):
        if gone:
            deleted[kind, code].append(number)
        else:
            items[(kind, code), number] = Was(shop, price.normalize(), stock)
    shops = {(shop, number): name for shop, number, name in ask(url, "SELECT * FROM shop_was")}
    return Truth(items, shops, deleted, rows(url, f"({query}) q"))


def read_record(key: bytes, body: bytes | None, headers: Mapping[str, str]) -> Record:
    """A message of one row."""
    said = json.loads(key)
    row = None if not body else json.loads(body, parse_float=Decimal)["after"]
    found = None if row is None else version([row[name] for name in COLUMNS.split(", ")[2:]])
    place = (said["kind"], said["code"]), int(headers["feed-n"]), headers["event_id"]
    return Record(*place, found, tombstone=body is None)
