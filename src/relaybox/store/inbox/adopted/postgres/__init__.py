"""Adopted tables on PostgreSQL: what their columns may be, and how they are read and written."""

from __future__ import annotations

from collections.abc import Sequence

from ..adoption import Adoption, ColumnKind, quoted

_KINDS: dict[str, ColumnKind] = {
    "text": "text",
    "character varying": "text",
    "character": "text",
    "uuid": "uuid",
    "bigint": "integer",
    "integer": "integer",
    "smallint": "integer",
    "timestamp with time zone": "time",
    "timestamp without time zone": "time",
    "json": "json",
    "jsonb": "json",
    "bytea": "bytes",
}
_NAIVE = "timestamp without time zone"  # taken for UTC
CUT = 10_000  # of an error, when the column has no limit
_NOW = "coalesce(:now, clock_timestamp())"


class PostgresColumns:
    quote = '"'

    def kind(self, type: str) -> ColumnKind | None:
        return _KINDS.get(type)

    def fits(self, type: str, kinds: Sequence[ColumnKind]) -> bool:
        return self.kind(type) in kinds

    def fragments(self, adoption: Adoption) -> dict[str, str]:
        columns = {name: f"t.{quoted(column, self.quote)}" for name, column in adoption.columns.items()}
        received = _moment(columns.get("received_at"), adoption.types.get("received_at"))
        return {
            "id_type": adoption.types["id"],
            "now": _now(adoption.types["processed_at"]),
            "given": ", ".join(name for name in columns if name not in ("processed_at", "error")),
            "values": ", ".join(_given(n, adoption.types[n]) for n in columns if n not in ("processed_at", "error")),
            "arrival": "t.received_at, t.id" if "received_at" in columns else "t.id",
            "last_error": f"left(w.last_error, {adoption.error_size or CUT})",
            "given_error": f"left(:error::text, {adoption.error_size or CUT})",
            "finished": _moment("t.processed_at", adoption.types["processed_at"]),
            "of_event_type": f"left({_text(columns.get('event_type'), 'message')}, 255)",
            "by_sender": f"coalesce({_text(columns.get('sender'))}, '')",
            "of_aggregate_id": _text(columns.get("aggregate_id")),
            "of_payload": _payload(columns.get("payload"), adoption.types.get("payload", "")),
            "of_headers": _headers(columns),
            "history_key": _text("t.aggregate_id" if "aggregate_id" in columns else None),
            "history_headers": _headers({name: f"t.{name}" for name in columns}),
            "of_received_at": f"coalesce({received}, m.picked_at)",
        }


def _text(column: str | None, instead: str | None = None) -> str:
    if column is None:
        return f"'{instead}'::text" if instead else "NULL::text"
    return f"coalesce(nullif({column}::text, ''), '{instead}')" if instead else f"{column}::text"


def _payload(column: str | None, type: str) -> str:
    if column is None:
        return "'null'::bytea"
    text = f"coalesce({column}::text, 'null')"
    return f"coalesce({column}, 'null'::bytea)" if type == "bytea" else f"convert_to({text}, 'UTF8')"


def _headers(columns: dict[str, str]) -> str:
    own = "'{}'::jsonb"
    if "headers" in columns:
        given = f"{columns['headers']}::jsonb"
        own = f"CASE WHEN jsonb_typeof({given}) = 'object' THEN {given} ELSE {own} END"
    more = [f"'{name}', {columns[name]}::text" for name in ("sequence", "priority", "trace_id") if name in columns]
    added = f" || jsonb_strip_nulls(jsonb_build_object({', '.join(more)}))" if more else ""
    return f"nullif(({own}){added}, '{{}}')::text"


def _moment(column: str | None, type: str | None) -> str:
    if column is None:
        return "NULL::timestamptz"
    return f"{column} AT TIME ZONE 'UTC'" if type == _NAIVE else column


def _now(type: str) -> str:
    return f"timezone('UTC', {_NOW})" if type == _NAIVE else _NOW


def _given(name: str, type: str) -> str:
    match name, _KINDS[type]:
        case "received_at", _:
            return _now(type)
        case "retry_count", _:
            return "0"
        case _, "integer":
            return f":{name}::bigint::{type}"
        case _, "bytes":
            return f":{name}::bytea"
    return f":{name}::text::{type}"


COLUMNS = PostgresColumns()
