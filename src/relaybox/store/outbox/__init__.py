"""The tables of an outbox: events, what is pending of them, claims, dead letters, instances, shards."""

from __future__ import annotations

from importlib import import_module

from ...codec import JSON_CODEC, Codec
from ...errors import ConfigError
from ..names import Tables
from .store import OutboxStore

__all__ = ["OutboxStore", "open_store"]

_STORES = {"postgres": "PostgresStore", "sqlite": "SqliteStore", "mysql": "MysqlStore"}


def open_store(dialect: str, tables: Tables | None = None, codec: Codec = JSON_CODEC) -> OutboxStore:
    if dialect not in _STORES:
        raise ConfigError(f"no store for the database dialect {dialect!r}; known are {', '.join(_STORES)}")
    module = import_module(f"{__name__}.{dialect}")
    store: OutboxStore = getattr(module, _STORES[dialect])(tables, codec)
    return store
