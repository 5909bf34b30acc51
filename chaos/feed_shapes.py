"""The tables and queries of the feed trial: eight shapes by what changed, and one that is evaluated whole."""

from __future__ import annotations

from typing import Any

from relaybox import Feed
from relaybox.types import FeedSource

TABLES = """
CREATE TABLE customer (id integer PRIMARY KEY, name text, region text NOT NULL);
CREATE TABLE orders (id integer PRIMARY KEY, customer integer NOT NULL, amount numeric, status text NOT NULL);
CREATE INDEX ON orders (customer, status);
CREATE TABLE item (id integer PRIMARY KEY, order_id integer NOT NULL
                   REFERENCES orders ON DELETE CASCADE ON UPDATE CASCADE, qty integer, price numeric, note json);
CREATE INDEX ON item (order_id);
CREATE TABLE part (id integer NOT NULL, grp integer NOT NULL, val numeric, PRIMARY KEY (id)) PARTITION BY RANGE (id);
CREATE TABLE part_0 PARTITION OF part FOR VALUES FROM (0) TO (2000);
CREATE TABLE part_1 PARTITION OF part FOR VALUES FROM (2000) TO (MAXVALUE);
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
