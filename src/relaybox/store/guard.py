"""The table of a guard: a set of migrations and queries of its own, so that a consumer needs no outbox.

The files are in `store/<dialect>/guard`, laid out like a dialect's own folder; `{guard}` is the table. Quoting, times
and the migration lock are those of the dialect's store.
"""

from __future__ import annotations

import hashlib
from importlib import import_module
from typing import Any

from ..errors import ConfigError
from .migrate import migration_files
from .names import Tables
from .queries import fill, load
from .spi import Migration
from .sql_store import SqlOutboxStore

_SCHEMAS = {"postgres": "PostgresGuardSchema", "sqlite": "SqliteGuardSchema", "mysql": "MysqlGuardSchema"}


class GuardSchema(SqlOutboxStore):
    def __init__(self, tables: Tables) -> None:
        super().__init__(tables)
        words = {**self.words, "guard": "{event}"}
        self.sql |= load(f"{self.dialect}/guard", tables, self.quote, words)

    @property
    def advice(self) -> str:
        return "call migrate() of the guard"

    def migrations(self) -> list[Migration]:
        names = self.tables.substitutions(self.quote)
        names |= {"guard": names["event"], "guard_name": names["event_name"]}
        return [
            Migration(version, name, fill(text, names), hashlib.sha256(text.encode()).hexdigest())
            for version, name, text in migration_files(f"{self.dialect}/guard")
        ]

    def text(self, value: str) -> Any:
        """A consumer or key as the dialect stores it: compared byte by byte everywhere."""
        return value


def open_guard_schema(dialect: str, tables: Tables) -> GuardSchema:
    if dialect not in _SCHEMAS:
        raise ConfigError(f"a guard cannot keep its marks in {dialect!r}; it knows {', '.join(_SCHEMAS)}")
    module = import_module(f"relaybox.store.{dialect}.guard")
    return getattr(module, _SCHEMAS[dialect])(tables)  # type: ignore[no-any-return]
