"""Adopted tables on MySQL and MariaDB: what their columns may be, and how they are read and written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ....queries import texts
from ..adoption import Adoption, ColumnKind, quoted

_SLOTS = texts("shared", "mysql").slots
_CLOCK = _SLOTS["clock"]
_KINDS: dict[str, ColumnKind] = {
    **dict.fromkeys(("varchar", "char", "tinytext", "text", "mediumtext", "longtext"), "text"),
    **dict.fromkeys(("tinyint", "smallint", "mediumint", "int", "bigint"), "integer"),
    **dict.fromkeys(("tinyblob", "blob", "mediumblob", "longblob", "varbinary"), "bytes"),
    **dict.fromkeys(("datetime", "timestamp"), "time"),
    "uuid": "uuid",
    "json": "json",
}
_JSON = ("longtext", "json")  # the same on MariaDB


class MysqlColumns:
    """A type is written as in CREATE TABLE: `varchar(36) CHARACTER SET latin1 COLLATE latin1_bin`."""

    quote = "`"

    def kind(self, type: str) -> ColumnKind | None:
        return _KINDS.get(_word(type))

    def fits(self, type: str, kinds: Sequence[ColumnKind]) -> bool:
        return self.kind(type) in kinds or ("json" in kinds and _word(type) in _JSON)

    def fragments(self, adoption: Adoption) -> dict[str, str]:
        columns = {name: f"t.{quoted(column, self.quote)}" for name, column in adoption.columns.items()}
        types, own = adoption.types, [name for name in columns if name not in ("processed_at", "error")]
        received = _moment(columns["received_at"], types["received_at"]) if "received_at" in columns else "NULL"
        fixed = {"received_at": _now(types.get("received_at", "")), "retry_count": "0"}
        return {
            "id_type": types["id"],
            "id_json": "bigint" if self.kind(types["id"]) == "integer" else f"varchar(768) {_SLOTS['text']}",
            "id_value": _in_their_words("s.id", types["id"]),
            "now": _now(types["processed_at"]),
            "given": ", ".join(own),
            "values": ", ".join(fixed.get(name, f":{name}") for name in own),
            "arrival": "t.received_at, t.id" if "received_at" in columns else "t.id",
            "last_error": _error("coalesce(p.last_error, d.last_error)", adoption),
            "given_error": _error(":error", adoption),
            "finished": _moment("t.processed_at", types["processed_at"]),
            "of_event_type": f"left({_text(columns.get('event_type'), 'message')}, 255)",
            "by_sender": f"coalesce({_text(columns.get('sender'))}, '')",
            "of_aggregate_id": _text(columns.get("aggregate_id")),
            "of_payload": f"CAST(coalesce({_bytes(columns, types)}, 'null') AS binary)",
            "of_headers": _headers(columns),
            "history_key": _text("t.aggregate_id" if "aggregate_id" in columns else None),
            "history_headers": _headers({name: f"t.{name}" for name in columns}),
            "of_received_at": f"coalesce({received}, m.picked_at)",
        }


def _error(text: str, adoption: Adoption) -> str:
    """As much of it as the column takes; where that has a narrower character set, question marks for all but ASCII."""
    short = f"left({text}, {adoption.error_size})"
    return short if " CHARACTER SET utf8mb4 " in adoption.types["error"] else f"regexp_replace({short}, '[^ -~]', '?')"


def _word(type: str) -> str:
    return type.partition(" ")[0].partition("(")[0]


def _in_their_words(value: str, type: str) -> str:
    """For a comparison that can use their index: in the character set and collation of the column."""
    _, _, words = type.partition(" CHARACTER SET ")
    charset, _, collation = words.partition(" COLLATE ")
    return f"CONVERT({value} USING {charset}) COLLATE {collation}" if collation else value


def _text(column: str | None, instead: str | None = None) -> str:
    if column is None:
        return f"'{instead}'" if instead else "CAST(NULL AS char)"
    text = f"CONVERT({column} USING utf8mb4) COLLATE utf8mb4_bin"
    return f"coalesce(nullif({text}, ''), '{instead}')" if instead else text


def _bytes(columns: Mapping[str, str], types: Mapping[str, str]) -> str:
    if "payload" not in columns:
        return "NULL"
    return (
        columns["payload"]
        if _KINDS[_word(types["payload"])] == "bytes"
        else f"CONVERT({columns['payload']} USING utf8mb4)"
    )


def _headers(columns: dict[str, str]) -> str:
    own = "'{}'"
    if "headers" in columns:
        given = columns["headers"]
        own = f"CASE WHEN JSON_VALID({given}) AND JSON_TYPE({given}) = 'OBJECT' THEN {given} ELSE {own} END"
    more = [f"'{name}', {_text(columns[name])}" for name in ("sequence", "priority", "trace_id") if name in columns]
    return f"nullif(CAST(JSON_MERGE_PATCH({own}, JSON_OBJECT({', '.join(more)})) AS char), '{{}}')"


def _moment(column: str, type: str) -> str:
    if _word(type) == "timestamp":
        return f"CAST('1970-01-01' AS datetime(6)) + INTERVAL unix_timestamp({column}) SECOND"
    return column


def _now(type: str) -> str:
    if _word(type) == "timestamp":
        return f"from_unixtime(timestampdiff(MICROSECOND, '1970-01-01', {_CLOCK}) / 1000000)"
    return _CLOCK


COLUMNS = MysqlColumns()
