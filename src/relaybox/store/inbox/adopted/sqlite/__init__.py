"""Adopted tables on SQLite: what their columns may be, and how they are read and written.

A declared type says little here, so more is taken: times are text, or seconds since 1970 in a column of numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

from ....queries import texts
from ..adoption import Adoption, ColumnKind, quoted

_CLOCK = texts("shared", "sqlite").slots["clock"]
_FITS: dict[str, tuple[ColumnKind, ...]] = {
    "integer": ("integer", "time"),
    "real": ("time",),
    "text": ("text", "uuid", "time", "json"),
    "blob": ("bytes", "text", "uuid"),
    "numeric": ("time", "json", "text", "uuid"),
}


class SqliteColumns:
    quote = '"'

    def kind(self, type: str) -> ColumnKind | None:
        return {"integer": "integer", "blob": "bytes"}.get(affinity(type), "text")

    def fits(self, type: str, kinds: Sequence[ColumnKind]) -> bool:
        return bool(set(_FITS[affinity(type)]) & set(kinds))

    def fragments(self, adoption: Adoption) -> dict[str, str]:
        columns = {name: f"t.{quoted(column, self.quote)}" for name, column in adoption.columns.items()}
        types, own = adoption.types, [name for name in columns if name not in ("processed_at", "error")]
        received = _moment(columns["received_at"], types["received_at"]) if "received_at" in columns else "NULL"
        fixed = {"received_at": _now(types.get("received_at", "")), "retry_count": "0"}
        return {
            "given_error": ":error",
            "id_type": affinity(types["id"]),
            "now": _now(types["processed_at"]),
            "given": ", ".join(own),
            "values": ", ".join(fixed.get(name, f":{name}") for name in own),
            "their_given": ", ".join(quoted(adoption.columns[name], self.quote) for name in own),
            "new_given": ", ".join(f"NEW.{name}" for name in own),
            "arrival": "t.received_at, t.id" if "received_at" in columns else "t.id",
            "finished": _moment("t.processed_at", types["processed_at"]),
            "of_event_type": f"substr({_text(columns.get('event_type'), 'message')}, 1, 255)",
            "by_sender": f"coalesce({_text(columns.get('sender'))}, '')",
            "of_aggregate_id": _text(columns.get("aggregate_id")),
            "of_payload": f"CAST(coalesce({columns.get('payload', 'NULL')}, 'null') AS blob)",
            "of_headers": _headers(columns),
            "history_key": _text("t.aggregate_id" if "aggregate_id" in columns else None),
            "history_headers": _headers({name: f"t.{name}" for name in columns}),
            "of_received_at": f"coalesce({received}, m.picked_at)",
        }


def affinity(type: str) -> str:
    """The affinity of a type by the rules of SQLite."""
    upper = type.upper()
    for words, found in (
        (("INT",), "integer"),
        (("CHAR", "CLOB", "TEXT"), "text"),
        (("BLOB",), "blob"),
        (("REAL", "FLOA", "DOUB"), "real"),
    ):
        if any(word in upper for word in words):
            return found
    return "numeric" if upper else "blob"


def _text(column: str | None, instead: str | None = None) -> str:
    if column is None:
        return f"'{instead}'" if instead else "NULL"
    return f"coalesce(nullif(CAST({column} AS text), ''), '{instead}')" if instead else f"CAST({column} AS text)"


def _headers(columns: dict[str, str]) -> str:
    own = "'{}'"
    if "headers" in columns:
        given = columns["headers"]
        own = f"CASE WHEN json_valid({given}) AND json_type({given}) = 'object' THEN {given} ELSE {own} END"
    more = [
        f"'{name}', CAST({columns[name]} AS text)" for name in ("sequence", "priority", "trace_id") if name in columns
    ]
    return f"nullif(json_patch({own}, json_object({', '.join(more)})), '{{}}')"


def _moment(column: str, type: str) -> str:
    if affinity(type) in ("integer", "real"):
        return f"CAST(round({column} * 1000000.0) AS integer)"
    return f"CAST(round((julianday({column}) - 2440587.5) * 86400000.0) AS integer) * 1000"


def _now(type: str) -> str:
    match affinity(type):
        case "integer":
            return f"{_CLOCK} / 1000000"
        case "real":
            return f"{_CLOCK} / 1000000.0"
    return f"strftime('%Y-%m-%d %H:%M:%f', {_CLOCK} / 1000000.0, 'unixepoch')"


COLUMNS = SqliteColumns()
