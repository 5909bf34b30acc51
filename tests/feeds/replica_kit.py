"""A source with a feed, and what a replica of it should have."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

import psycopg

from kit import make_postgres, rows
from relaybox import Feed, Outbox, Settings
from relaybox.types import ReplicaSettings

TYPES = {"customer": "integer", "n": "bigint", "total": "numeric"}
TARGETS = ("postgres", "mysql", "sqlite")
TOTALS = Feed(
    "totals",
    "SELECT customer, count(*) AS n, sum(amount) AS total FROM orders GROUP BY customer",
    key="customer",
    sources={"orders": "customer"},
)
QUICK = Settings(replica=ReplicaSettings(poll="20ms"))


@contextmanager
def make_source() -> Iterator[Outbox]:
    url = make_postgres()
    with psycopg.connect(url, autocommit=True) as owner:
        owner.execute("CREATE TABLE orders (id integer PRIMARY KEY, customer integer NOT NULL, amount numeric)")
        owner.execute("CREATE INDEX ON orders (customer)")
        owner.execute("INSERT INTO orders SELECT g, g % 10, g FROM generate_series(1, 100) g")
    with Outbox(url) as box:
        yield box


def at(box: Outbox) -> str:
    return str(box._target)


def kept(url: str, table: str = "totals") -> list[tuple[Any, ...]]:
    return [tuple(map(plain, row)) for row in rows(url, f"SELECT customer, n, total FROM {table} ORDER BY 1")]


def plain(value: Any) -> Any:
    return value if value is None or isinstance(value, int) else Decimal(value).normalize()


def expected(box: Outbox) -> list[tuple[Any, ...]]:
    return kept(at(box), "feed_totals")


def changes(box: Outbox, *statements: str) -> None:
    for statement in statements:
        rows(at(box), statement)
        box.feeds.refresh(None, "totals")
