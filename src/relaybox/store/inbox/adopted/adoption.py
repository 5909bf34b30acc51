"""Somebody else's table as an inbox: which of its columns means what, and whether it can serve at all. No I/O.

Nothing of the table is changed. Two views and a table of ours stand between it and the machinery of an inbox:

    theirs    their columns under our names; what is written through it lands in their table
    map       a number for each of their rows that was picked up
    message   the relation every query of an inbox reads, made of the two
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, Protocol
from uuid import UUID

from ....errors import ConfigError, NotFound

ColumnKind = str  # "text", "uuid", "integer", "time", "json" or "bytes"


def _column(default: str | None, *kinds: ColumnKind, needed: bool = False) -> Any:
    return field(default=default, metadata={"kinds": kinds, "needed": needed})


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """The names of the columns of an adopted table. None: it has no such column.

    `sender`, `aggregate_id` and `trace_id` need not be there under the names they have here.
    """

    id: str = _column("event_id", "text", "uuid", "integer", needed=True)
    processed_at: str = _column("processed_at", "time", needed=True)
    retry_count: str = _column("retry_count", "integer", needed=True)
    error: str = _column("error", "text", needed=True)
    received_at: str | None = _column("received_at", "time")
    event_type: str | None = _column("event_type", "text", "uuid", "integer")
    payload: str | None = _column("payload", "json", "text", "bytes")
    sender: str | None = _column("sender", "text", "uuid", "integer")
    aggregate_id: str | None = _column("aggregate_id", "text", "uuid", "integer")
    trace_id: str | None = _column("trace_id", "text", "uuid", "integer")
    headers: str | None = _column(None, "json")  # an object of strings
    sequence: str | None = _column(None, "integer")
    priority: str | None = _column(None, "integer")

    def __post_init__(self) -> None:
        for entry in fields(self):
            name = getattr(self, entry.name)
            if name is None and not entry.metadata["needed"]:
                continue
            if not isinstance(name, str) or not name or "\0" in name:
                raise ConfigError(f"expected {entry.name} to be the name of a column, got {name!r}")


OPTIONAL = ("sender", "aggregate_id", "trace_id")  # may be missing under their own names
_FIELDS = {entry.name: entry for entry in fields(Columns)}


class Column(NamedTuple):
    """A column as the database describes it."""

    name: str
    type: str
    nullable: bool
    unique: str  # the index by which it is so alone, over all rows
    indexed: bool  # an index begins with it, or has only the rows where it is NULL
    size: int | None  # most characters it takes; None: any number


class ColumnDialect(Protocol):
    """How an engine reads and writes columns of each kind, as SQL."""

    def kind(self, type: str) -> ColumnKind | None: ...
    def fits(self, type: str, kinds: Sequence[ColumnKind]) -> bool: ...
    def fragments(self, adoption: Adoption) -> dict[str, str]: ...


@dataclass(frozen=True, slots=True)
class Adoption:
    """What was agreed on when a table was adopted; kept with the inbox."""

    table: str
    schema: str | None
    columns: Mapping[str, str]  # our name of a column: theirs
    types: Mapping[str, str]  # our name of a column: its type
    index: str  # that makes its id unique
    error_size: int | None  # what is longer is cut
    max_attempts: int
    hints: tuple[str, ...] = ()  # what works, and could work better

    @property
    def identity(self) -> str:
        """What makes a message a duplicate: the id has to be unique by itself, so two senders cannot have the same."""
        return f"the same {self.columns['id']} from any sender"

    def to_json(self) -> dict[str, Any]:
        """As it is kept."""
        return {entry.name: getattr(self, entry.name) for entry in fields(self) if entry.name != "hints"}

    @classmethod
    def from_json(cls, text: str) -> Adoption:
        """As it was kept, by an earlier release perhaps, to which a sender was a source."""
        kept = json.loads(text)
        for part in ("columns", "types"):
            kept[part] = {"sender" if name == "source" else name: value for name, value in kept[part].items()}
        return cls(**kept)

    def native(self, dialect: ColumnDialect, ids: Sequence[str]) -> list[Any]:
        """Ids as the column has them, without those that it cannot have."""
        kind = dialect.kind(self.types["id"])
        found = [_native(kind, text) for text in ids]
        return [value for value in found if value is not None]


def _native(kind: ColumnKind | None, text: str) -> str | int | None:
    if kind == "integer":
        digits = text.removeprefix("-")
        fits = digits.isascii() and digits.isdigit() and len(digits) < 20 and -(2**63) <= int(text) < 2**63
        return int(text) if fits and str(int(text)) == text else None
    if kind == "uuid":
        try:
            return text if str(UUID(text)) == text.lower() else None
        except ValueError:
            return None
    return None if "\0" in text else text


def agreed(
    dialect: ColumnDialect,
    table: str,
    schema: str | None,
    wanted: Columns,
    there: Sequence[Column],
    max_attempts: int,
) -> Adoption:
    """Checks everything before anything is made; says all that is wrong at once."""
    found = {column.name: column for column in there}
    chosen: dict[str, Column] = {}
    missing, unfit = [], []
    for name, entry in _FIELDS.items():
        column = getattr(wanted, name)
        if column is None or (name in OPTIONAL and column == name and column not in found):
            continue
        if column not in found:
            missing.append(f"{column!r} ({name})")
            continue
        chosen[name] = found[column]
        if not dialect.fits(found[column].type, entry.metadata["kinds"]):
            expected = " or ".join(entry.metadata["kinds"])
            unfit.append(f"{column!r} ({name}) is {found[column].type or 'of no type'}, expected {expected}")
    if missing:
        raise NotFound(
            "column",
            ", ".join(missing),
            f"table {table!r} has no column {', '.join(missing)}; it has {', '.join(map(repr, found))}. "
            "Columns(…) says which is which, None that there is none",
        )
    key = chosen["id"]
    if not key.unique:
        unfit.append(f"{key.name!r} (id) is neither the primary key nor unique by itself: duplicates could come in")
    elif key.nullable:
        unfit.append(f"{key.name!r} (id) may be NULL; make it NOT NULL")
    if chosen["processed_at"].type and not chosen["processed_at"].nullable:
        unfit.append(f"{chosen['processed_at'].name!r} (processed_at) is NOT NULL: nothing could wait")
    doubled = sorted({repr(c.name) for c in chosen.values() if list(chosen.values()).count(c) > 1})
    if doubled:
        unfit.append(f"{', '.join(doubled)} cannot stand for two things")
    if unfit:
        raise ConfigError(f"table {table!r} cannot be adopted: {'; '.join(unfit)}")
    hints: tuple[str, ...] = ()
    if not chosen["processed_at"].indexed:
        hints = (
            f"no index of {table!r} serves the rows that wait: one on ({chosen['processed_at'].name}), best "
            "only of the rows where it is NULL, keeps every poll short",
        )
    return Adoption(
        table,
        schema,
        {name: column.name for name, column in chosen.items()},
        {name: column.type for name, column in chosen.items()},
        key.unique,
        chosen["error"].size,
        max_attempts,
        hints,
    )


def quoted(name: str, quote: str) -> str:
    """Any legal name of theirs as an identifier; ours are checked in names.py."""
    return quote + name.replace(quote, quote * 2) + quote


def place(adoption: Adoption, quote: str) -> str:
    table = quoted(adoption.table, quote)
    return f"{quoted(adoption.schema, quote)}.{table}" if adoption.schema else table
