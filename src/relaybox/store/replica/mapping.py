"""Which type a column of a feed has in another database. Pure.

Where a database has no type that holds every value exactly, it is text. docs/guides/read-model.md has the table.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from ...errors import FeedError

KEY_BYTES = 3_072  # of all columns of a key together, on MySQL
_FIELDS = re.compile(r"interval (?:year|month|day|hour|minute|second)(?: to (?:month|hour|minute|second))?")
_TYPE = re.compile(r"([a-z][a-z0-9_ ]*?) *(?:\(([0-9]+)(?:, *(-?[0-9]+))?\))?( with(?:out)? time zone)?((?:\[\])*)\Z")
_MYSQL = {
    "smallint": "smallint",
    "integer": "int",
    "bigint": "bigint",
    "boolean": "boolean",
    "date": "date",
    "real": "double",
    "double precision": "double",
    "time without time zone": "time(6)",
    "timestamp without time zone": "datetime(6)",
    "timestamp with time zone": "datetime(6)",
}
_SQLITE = {
    **dict.fromkeys(("smallint", "integer", "bigint", "boolean"), "integer"),
    "real": "real",
    "double precision": "real",
    "bytea": "blob",
}
_SHORT = {
    "int": "integer",
    "int4": "integer",
    "int2": "smallint",
    "int8": "bigint",
    "bool": "boolean",
    "float4": "real",
    "float8": "double precision",
    "decimal": "numeric",
    "varchar": "character varying",
    "timestamptz": "timestamp with time zone",
    "timestamp": "timestamp without time zone",
    "time": "time without time zone",
    "timetz": "time with time zone",
    "char": "character",
}
_KNOWN = {
    *{*_MYSQL, "bytea", "numeric", "time with time zone", "text", "character varying", "character", "name", "uuid"},
    *{"interval", "json", "jsonb", "money", "inet", "cidr", "macaddr", "macaddr8", "bit", "bit varying", "xml", "oid"},
    *{"tsvector", "tsquery", "point", "line", "lseg", "box", "path", "polygon", "circle", "pg_lsn", "xid", "xid8"},
    *(f"{name}{kind}" for name in ("int4", "int8", "num", "ts", "tstz", "date") for kind in ("range", "multirange")),
}


class FeedType(NamedTuple):
    """A type of PostgreSQL."""

    name: str  # without what is in parentheses
    precision: int | None
    scale: int
    array: bool


def read_type(column: str, text: str) -> FeedType:
    found = _TYPE.match(_FIELDS.sub("interval", text)) if isinstance(text, str) else None
    name = "" if found is None else found[1] + (found[4] or "")
    name = _SHORT.get(name, name)
    if found is None or name not in _KNOWN:
        raise FeedError(
            f"column {column!r} of the feed has the type {text!r}, which a replica does not know: cast it in the query "
            "of the feed, to text for instance, or make the table yourself before migrate()",
            "types",
        )
    return FeedType(name, int(found[2]) if found[2] else None, int(found[3] or 0), bool(found[5]))


def free_text(type: str | None) -> bool:
    """Whether two values may differ in what some collations overlook. None: nobody said the type."""
    return type is None or type.startswith(("text", "char", "varchar", "name", "json"))


def holds_json(type: str) -> bool:
    return type in ("json", "jsonb")


def declared(column: str, text: str, dialect: str, *, key: int, collation: str) -> str:
    """The type of a column of the table. `key`: how many columns share a key with it; 0: it is none. `collation`: one
    of MySQL that tells every two texts apart."""
    type = read_type(column, text)
    if dialect == "postgres":
        return text
    if dialect == "sqlite":
        return "text" if type.array else _SQLITE.get(type.name, "text")
    room = KEY_BYTES // max(key, 1)
    if not type.array:
        if type.name in _MYSQL:
            return _MYSQL[type.name]
        if type.name == "bytea":
            return f"varbinary({room})" if key else "longblob"
        if type.name == "numeric":
            return _decimal(column, type)
    kind = f"varchar({36 if type.name == 'uuid' and not type.array else room // 4})" if key else "longtext"
    return f"{kind} CHARACTER SET utf8mb4 COLLATE {collation}"


def _decimal(column: str, type: FeedType) -> str:
    """Without limits it takes 35 digits and 30 behind the point: what has more is refused."""
    if type.precision is None:
        return "decimal(65,30)"
    precision, scale = max(type.precision - min(type.scale, 0), type.scale), max(type.scale, 0)
    if precision > 65 or scale > 30:
        raise FeedError(
            f"column {column!r} of the feed is numeric({type.precision},{type.scale}), and MySQL's decimals have 65 "
            "digits, 30 of them behind the point: cast it in the query of the feed, to text for instance",
            "types",
        )
    return f"decimal({precision},{scale})"
