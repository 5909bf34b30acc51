"""The table of a guard: a set of migrations and queries of its own, so that a consumer needs no outbox.

In its files `{guard}` is the table.
"""

from __future__ import annotations

from ...errors import ConfigError
from ..dialect import DIALECTS, Dialect
from ..names import Tables
from ..schema import Schema


class GuardTables(Tables):
    __slots__ = ()

    def substitutions(self, quote: str) -> dict[str, str]:
        names = Tables.substitutions(self, quote)
        return names | {"guard": names["event"], "guard_name": names["event_name"]}


class GuardSchema(Schema):
    _product = "guard"

    def __init__(self, dialect: Dialect, tables: Tables) -> None:
        self._dialect = dialect
        super().__init__(GuardTables(tables.event, tables.schema))
        self.text = dialect.exact  # a consumer or key as it is stored: compared byte by byte everywhere

    @property
    def advice(self) -> str:
        return "call migrate() of the guard"


def open_guard_schema(dialect: str, tables: Tables) -> GuardSchema:
    if dialect not in DIALECTS:
        raise ConfigError(f"a guard cannot keep its marks in {dialect!r}; it knows {', '.join(DIALECTS)}")
    return GuardSchema(DIALECTS[dialect], tables)
