"""What is under trial: each product, the engines it exists on, what it promises, and how its tables are made.

Only names that users have: `relaybox`, `relaybox.types`, `relaybox.maintenance` and the command line.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from urllib.parse import unquote, urlsplit

from relaybox import AsyncOutbox, Inbox, Outbox, Settings, StartFrom, Topic
from relaybox.settings import leaves
from relaybox.types import Columns, Order

from .checker import Promise

POSTGRES, MARIADB, SQLITE = "postgresql", "mariadb", "sqlite"
ALL = (POSTGRES, MARIADB, SQLITE)
TOPIC, GROUP, INBOX = "seam", "g", "seam_inbox"
BESIDE = "h"  # a second push group in the same processes: the two read together
TYPE = "Counted"

# Every timeout of a trial is short, so that a fault of a few seconds is longer than all of them.
TTL, LEASE, DATABASE, HANDLER = 1.5, 3.0, 2.0, 2.5
OUTAGE = 6.0
ATTEMPTS = 60
TIMES: dict[str, Any] = {
    "delivery.instance_ttl": TTL,
    "delivery.lease": LEASE,
    "delivery.database_timeout": DATABASE,
    "delivery.timeout": HANDLER,
    "delivery.stop_timeout": 2.0,
    "delivery.retry.base": 0.05,
    "delivery.retry.max": 0.5,
    "delivery.poll": 0.2,
    "delivery.retry.attempts": ATTEMPTS,
}


def known(values: dict[str, Any]) -> dict[str, Any]:
    """Without what this release has no setting for."""
    names = {leaf.path for leaf in leaves(Settings)}
    return {name: value for name, value in values.items() if name in names}


def settings(values: dict[str, Any]) -> Settings:
    """By path."""
    return Settings().replaced(known({**TIMES, **values}))


@dataclass(frozen=True, slots=True)
class Product:
    name: str
    kind: str  # of the receivers: outbox, relay, group, pull, queue, inbox, ingest
    engines: tuple[str, ...] = ALL
    ordered: bool = False
    effects: bool = False
    strategy: str = "shards"
    tracking: str = ""
    adopted: bool = False
    asynchronous: bool = False

    @property
    def topic(self) -> bool:
        return bool(self.tracking)

    @property
    def inbox(self) -> bool:
        return self.kind in ("inbox", "ingest")

    @property
    def broker(self) -> bool:
        return self.kind in ("relay", "ingest")

    @property
    def receivers(self) -> int:
        return 2

    def promise(self, *more: str) -> Promise:
        first = (GROUP, BESIDE) if self.kind == "group" else (GROUP,) if self.topic else ("",)
        return Promise(streams=(*first, *more), ordered=self.ordered, effects=self.effects)


PRODUCTS = {
    product.name: product
    for product in (
        Product("plain", "outbox"),
        Product("ordered by shards", "outbox", ordered=True),
        Product("ordered by advisory locks", "outbox", (POSTGRES,), ordered=True, strategy="advisory"),
        Product("ordered by rows", "outbox", (POSTGRES, MARIADB), ordered=True, strategy="rows"),
        Product("relay", "relay", ordered=True),
        Product("push group, ordered", "group", (POSTGRES,), ordered=True, tracking="offset"),
        Product("push group, unordered", "group", (POSTGRES,), tracking="offset"),
        Product("push group, bitmap", "group", (POSTGRES,), ordered=True, tracking="bitmap"),
        Product("push group, acks", "group", (POSTGRES,), ordered=True, tracking="acks"),
        Product("pull consumers", "pull", (POSTGRES,), tracking="offset"),
        Product("queue by rows", "queue", (POSTGRES,), tracking="rows"),
        Product("queue by offset", "queue", (POSTGRES,), tracking="offset"),
        Product("inbox, sync", "inbox", effects=True),
        Product("inbox, async", "inbox", effects=True, asynchronous=True),
        Product("inbox, ordered", "inbox", effects=True, ordered=True, asynchronous=True),
        Product("inbox, adopted", "inbox", effects=True, adopted=True),
        Product("ingest", "ingest", effects=True, asynchronous=True),
    )
}

# -- tables ---------------------------------------------------------------------------------------------------

TABLES = (
    # Of the writers: the number of the last message of a key, and every message that was committed.
    "CREATE TABLE seam_key (k varchar(40) PRIMARY KEY, n integer NOT NULL)",
    "CREATE TABLE seam_truth (id varchar(40) PRIMARY KEY, k varchar(40) NOT NULL, n integer NOT NULL)",
    # Of the handlers. Nothing forbids that an effect is there twice.
    "CREATE TABLE seam_effect (id varchar(40) NOT NULL)",
)
THEIRS = """CREATE TABLE seam_theirs (
  nr varchar(40) PRIMARY KEY, body {text}, kind varchar(40), k varchar(40), got {time}, done {time} NULL,
  tries integer NOT NULL DEFAULT 0, problem text)"""
COLUMNS = Columns(
    id="nr",
    payload="body",
    event_type="kind",
    aggregate_id="k",
    received_at="got",
    processed_at="done",
    retry_count="tries",
    error="problem",
)
TYPES = {
    POSTGRES: {"text": "text", "time": "timestamptz"},
    MARIADB: {"text": "longtext", "time": "datetime(6)"},
    SQLITE: {"text": "text", "time": "text"},
}


def connect(url: str) -> Any:
    """The client library's connection, in autocommit mode: who wants a transaction begins one."""
    parts = urlsplit(url)
    if parts.scheme == "sqlite":
        connection = sqlite3.connect(unquote(parts.path)[1:], isolation_level=None, timeout=20, check_same_thread=False)
        connection.execute("PRAGMA journal_mode=WAL")
        return connection
    if parts.scheme == "mysql":
        import pymysql

        return pymysql.connect(
            host=parts.hostname,
            port=parts.port or 3306,
            user=parts.username,
            password=parts.password or "",
            database=unquote(parts.path)[1:],
            autocommit=True,
            connect_timeout=3,
            read_timeout=10,
        )
    import psycopg

    return psycopg.connect(url, autocommit=True, connect_timeout=3, options="-c statement_timeout=8000")


def execute(connection: Any, statement: str, values: tuple[Any, ...] = ()) -> list[Any]:
    if isinstance(connection, sqlite3.Connection):
        return connection.execute(statement.replace("%s", "?"), values).fetchall()
    with connection.cursor() as cursor:
        cursor.execute(statement, values)
        return list(cursor.fetchall()) if cursor.description else []


def prepare(product: Product, engine: str, url: str, topic_options: dict[str, Any]) -> None:
    """Everything that has to be there before writers and receivers start."""
    with closing(connect(url)) as connection:
        for table in TABLES:
            execute(connection, table)
        if product.adopted:
            execute(connection, THEIRS.format(**TYPES[engine]))
    if product.inbox:
        with Inbox(url, INBOX) as inbox:
            if product.adopted:
                inbox.adopt("seam_theirs", COLUMNS)
                inbox.configure(retry=settings({}).delivery.retry)
            else:
                inbox.migrate()
                inbox.configure(order=Order() if product.ordered else None)
        return
    with Outbox(url) as box:
        box.migrate()
        if product.topic:
            box.topics.configure(make_topic(product, topic_options))
        if product.kind == "pull":
            box.topics.group(TOPIC, GROUP, start=StartFrom.earliest(), on_exhausted="skip").create()


def make_topic(product: Product, options: dict[str, Any]) -> Topic:
    given = {
        "shards": 4,
        "heartbeat_interval": timedelta(seconds=1),
        "heartbeat_timeout": timedelta(seconds=60),
        **{name: timedelta(seconds=value) for name, value in options.items()},
    }
    if product.kind == "queue":
        return Topic.queue(TOPIC, tracking=product.tracking, **given)  # type: ignore[arg-type]
    return Topic.pub_sub(TOPIC, tracking=product.tracking, **given)  # type: ignore[arg-type]


def outbox(product: Product, url: str, values: dict[str, Any], *, asynchronous: bool) -> Any:
    kind: Any = AsyncOutbox if asynchronous else Outbox
    return kind(url, settings=settings({"order.strategy": product.strategy, **values}))
