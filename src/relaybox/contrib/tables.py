"""Which tables a product has, for the migrations of frameworks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from ..drivers.spi import DialectName
from ..store.feeds import open_feed_store
from ..store.guard import open_guard_schema
from ..store.inbox import InboxTables, open_inbox_store
from ..store.names import Tables
from ..store.outbox import open_store
from ..store.schema import Schema
from ..store.topics import open_topic_store
from ..store.vault import open_vault_store

ProductName = Literal["outbox", "inbox", "guard", "vault"]


def stores(product: ProductName, dialect: DialectName, tables: Tables) -> Iterator[Schema]:
    """In the order in which they are migrated."""
    match product:
        case "outbox":
            yield open_store(dialect, tables)
            if dialect == "postgres":
                yield open_topic_store(dialect, tables)
                yield open_feed_store(dialect, tables)
        case "inbox":
            yield open_inbox_store(dialect, InboxTables(tables.event, tables.schema))
        case "guard":
            yield open_guard_schema(dialect, tables)
        case "vault":
            yield open_vault_store(dialect, tables)
