"""A replica: whatever the target, its table is the feed's, and every delta is applied to it once."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest

from kit import make_database, make_postgres, one, rows
from relaybox import Feed, Outbox, Replica, Settings
from relaybox.types import ReplicaSettings

TARGETS = ("postgres", "mysql", "sqlite")
TOTALS = Feed(
    "totals",
    "SELECT customer, count(*) AS n, sum(amount) AS total FROM orders GROUP BY customer",
    key="customer",
    sources={"orders": "customer"},
)
QUICK = Settings(replica=ReplicaSettings(poll="20ms"))


@pytest.fixture
def source() -> Iterator[Outbox]:
    url = make_postgres()
    with psycopg.connect(url, autocommit=True) as owner:
        owner.execute("CREATE TABLE orders (id integer PRIMARY KEY, customer integer NOT NULL, amount numeric)")
        owner.execute("CREATE INDEX ON orders (customer)")
        owner.execute("INSERT INTO orders SELECT g, g % 10, g FROM generate_series(1, 100) g")
    with Outbox(url) as box:
        yield box


def at(box: Outbox) -> str:
    return str(box._target)


@pytest.fixture(params=TARGETS)
def target(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return make_database(request.param, tmp_path, migrated=False)


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


def test_it_follows(source: Outbox, target: str) -> None:
    source.feeds.create(TOTALS)
    source.feeds.refresh(None, "totals")
    with Replica(target, "totals", feed="totals", source=source, settings=QUICK) as replica:
        replica.migrate()
        replica.migrate()
        replica.verify()
        assert (replica.status().epoch, replica.status().n, replica.status().behind) == (None, 0, None)
        replica.follow().once()
        assert kept(target) == expected(source)
        changes(
            source,
            "UPDATE orders SET amount = amount + 0.1 WHERE id = 7",
            "DELETE FROM orders WHERE customer = 8",
            "INSERT INTO orders VALUES (1000, 77, 1.10), (1001, 78, NULL)",
        )
        assert replica.status().behind == 3
        counts = replica.follow().once()
        assert (counts.done, counts.failed) == (3, 0)
        assert kept(target) == expected(source)
        assert (replica.status().n, replica.status().behind) == (4, 0)
        assert one(target, "SELECT count(*) FROM totals_replica") == 0
