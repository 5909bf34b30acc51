"""A table that a service had before it knew of relaybox, on every engine, with any names and types."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from kit import rows
from relaybox.types import Columns

from .effects import rows_or_none

# Per engine: id, time, count, text, payload.
PLAIN = {
    "postgresql": {
        "id": "text",
        "time": "timestamptz",
        "number": "integer",
        "text": "text",
        "payload": "jsonb",
        "headers": "json",
    },
    "mysql": {
        "id": "varchar(64)",
        "time": "datetime(6)",
        "number": "int",
        "text": "text",
        "payload": "json",
        "headers": "json",
    },
    "sqlite": {"id": "text", "time": "text", "number": "integer", "text": "text", "payload": "text"},
}
TIMES = ("processed_at", "received_at")
NUMBERS = ("retry_count", "sequence", "priority")


class Theirs:
    def __init__(self, url: str, table: str = "orders_in", columns: Columns | None = None, **types: str) -> None:
        self.url = url
        self.table = table
        self.columns = columns or Columns()
        self.names = {k: v for k, v in dataclasses.asdict(self.columns).items() if v is not None}
        self.types = PLAIN[url.partition(":")[0]] | types
        self._quote = "`" if url.startswith("mysql") else '"'
        parts = [f"{self.q(column)} {self._type(name)}" for name, column in self.names.items()]
        rows_or_none(url, f"CREATE TABLE {self.q(table)} ({', '.join(parts)})")

    def q(self, name: str) -> str:
        return self._quote + name.replace(self._quote, self._quote * 2) + self._quote

    def _type(self, name: str) -> str:
        if name == "id":
            return f"{self.types['id']} NOT NULL PRIMARY KEY"
        if name == "retry_count":
            return f"{self.types['number']} NOT NULL DEFAULT 0"
        kind = "time" if name in TIMES else "number" if name in NUMBERS else name if name in self.types else "text"
        return self.types[kind]

    def insert(self, id: object, n: int, **values: object) -> None:
        """`values` are SQL."""
        given = {"id": literal(id), "payload": f"'{{\"n\": {n}}}'", "event_type": "'OrderPlaced'"}
        self.say(self.insertion({k: v for k, v in given.items() if k in self.names} | values))

    def insertion(self, values: dict[str, Any]) -> str:
        columns = ", ".join(self.q(self.names[name]) for name in values)
        return f"INSERT INTO {self.q(self.table)} ({columns}) VALUES ({', '.join(map(str, values.values()))})"

    def say(self, text: str) -> None:
        rows_or_none(self.url, text)

    def set(self, id: object, **values: str) -> None:
        self.say(self.update(id, **values))

    def update(self, id: object, **values: str) -> str:
        changes = ", ".join(f"{self.q(self.names[name])} = {value}" for name, value in values.items())
        return f"UPDATE {self.q(self.table)} SET {changes} WHERE {self.q(self.names['id'])} = {literal(id)}"

    def read(self, *names: str) -> list[tuple[Any, ...]]:
        columns = ", ".join(self.q(self.names[name]) for name in names)
        text = f"SELECT {columns} FROM {self.q(self.table)} ORDER BY {self.q(self.names['id'])}"
        return [tuple(row) for row in rows(self.url, text)]

    def waiting(self) -> int:
        return sum(at is None for (at,) in self.read("processed_at"))

    def shape(self) -> Sequence[Any]:
        """All that could have been changed about the table: columns, indexes, triggers."""
        if self.url.startswith("sqlite"):
            text = f"SELECT type, name, sql FROM sqlite_master WHERE tbl_name = {literal(self.table)} ORDER BY 1, 2"
        elif self.url.startswith("mysql"):
            text = f"SHOW CREATE TABLE {self.q(self.table)}"
        else:
            relation = f"{literal(self.q(self.table))}::regclass"
            text = (
                f"SELECT attname::text, atttypid::int, attnotnull FROM pg_attribute WHERE attrelid = {relation} "
                f"UNION ALL SELECT indexrelid::regclass::text, 0, true FROM pg_index WHERE indrelid = {relation} "
                f"UNION ALL SELECT tgname::text, 0, true FROM pg_trigger WHERE tgrelid = {relation} ORDER BY 1, 2"
            )
        return [tuple(row) for row in rows(self.url, text)]


def literal(value: object) -> str:
    if isinstance(value, int):
        return str(value)
    return "'" + str(value).replace("'", "''") + "'"
