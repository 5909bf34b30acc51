"""WHAT we ask a database: ops that yield statements, named .sql files, migrations; one folder per dialect."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points

from ..codec import JSON_CODEC, Codec
from ..errors import ConfigError
from .names import Tables
from .spi import OutboxStore

__all__ = ["OutboxStore", "Tables", "open_store"]

_STORES = {
    "postgres": "relaybox.store.postgres:PostgresStore",
    "sqlite": "relaybox.store.sqlite:SqliteStore",
    "mysql": "relaybox.store.mysql:MysqlStore",
}


def open_store(dialect: str, tables: Tables | None = None, codec: Codec = JSON_CODEC) -> OutboxStore:
    """The store of a dialect: ours, or one registered under the entry point group "relaybox.stores"."""
    path = _STORES.get(dialect)
    if path is None:
        path = next((p.value for p in entry_points(group="relaybox.stores") if p.name == dialect), None)
    if path is None:
        raise ConfigError(f"no store for the database dialect {dialect!r}; known are {', '.join(_STORES)}")
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)(tables, codec)  # type: ignore[no-any-return]
