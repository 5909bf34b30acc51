"""Rows of a feed as JSON has them, and as columns take them. Pure.

A number is its text, from the first sign to the last: no float is made of it, and no digit is lost. Every value goes
to a database as text that the type of its column reads; what a column cannot hold exactly is refused, not rounded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

from ...errors import FeedError
from ..event_rows import CHUNK_BYTES, CHUNK_ROWS

_MOMENT = re.compile(r"(\d{4}-\d\d-\d\d)?T?(\d\d:\d\d:\d\d)(\.\d+)?(\+00:00)?\Z")
_DAY = re.compile(r"\d{4}-\d\d-\d\d\Z")
_FRACTION = re.compile(r"\.(\d+)")
_WORDS = {"postgres": ("false", "true"), "mysql": ("0", "1"), "sqlite": ("0", "1")}


LONGEST = 10**9  # zeros at the end of nothing


class Number(str):
    """A number, as it was written."""

    __slots__ = ()


class Members(list[tuple[str, Any]]):
    """An object of JSON: the type json keeps the order of its members, and those that are there twice."""

    __slots__ = ()


_DECODER = json.JSONDecoder(parse_float=Number, parse_int=Number, object_pairs_hook=Members)


def decode(text: str) -> Any:
    """ValueError: it is no JSON, or has too many levels."""
    try:
        return _DECODER.decode(text)
    except RecursionError:
        raise ValueError("JSON of too many levels") from None


def encode(value: Any) -> str:
    """As it was before `decode`, but for spaces. ASCII only: half a surrogate pair is legal there, and not in UTF-8."""
    if isinstance(value, Number):
        return value
    if isinstance(value, Members):
        return "{" + ", ".join(f"{json.dumps(name)}: {encode(member)}" for name, member in value) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(encode, value)) + "]"
    return json.dumps(value)


class KeptColumn(NamedTuple):
    """A column of a replicated table, as its database describes it."""

    name: str
    type: str  # as text is cast
    declared: str
    kind: str  # what it takes: text, number, float, date, time, bytes, json, array
    digits: int | None  # behind the point; None: any number, or none is counted
    optional: bool  # a row may leave it out
    writable: bool
    equals: str  # the operator that compares two values of it


Cell = Callable[[Any], Any]


def cell_of(column: KeptColumn, *, holds_json: bool, dialect: str) -> Cell:
    """What makes a cell of a value."""
    words, ours = _WORDS[dialect], dialect == "postgres"  # whose words and times PostgreSQL reads

    def refused(why: str) -> FeedError:
        return FeedError(f"column {column.name!r} ({column.declared}) cannot hold a value of the feed: {why}", "value")

    def text(value: Any) -> str:
        if isinstance(value, bool):
            return words[value]
        return value if isinstance(value, str) else encode(value)

    def number(value: Any) -> str:
        if isinstance(value, bool):
            return str(int(value))
        if not isinstance(value, Number):
            return beyond(value)
        if column.digits is not None and _digits(value) > column.digits:
            raise refused("it has more digits behind the point")
        return value

    def beyond(value: Any) -> str:
        """NaN, Infinity and -Infinity: words in JSON, and numbers to PostgreSQL."""
        if not ours:
            raise refused("it is no number")
        return text(value)

    def rounded(value: Any) -> str:
        """A double: where the number was one, it comes out as it went in. SQLite keeps words in columns of numbers."""
        if not isinstance(value, Number):
            return beyond(value) if dialect == "mysql" and isinstance(value, str) else text(value)
        if Decimal(repr(float(value))) != Decimal(value):
            raise refused("a double would be another number")
        return value

    def day(value: Any) -> str:
        if not isinstance(value, str) or not (_DAY.match(value) or (ours and "T" not in value)):
            raise refused("it is no date" if ours else "it is no date of the years 1 to 9999")
        return value

    def instant(value: Any) -> str:
        """As PostgreSQL reads it."""
        fraction = _FRACTION.search(value) if isinstance(value, str) else None
        if fraction is not None and column.digits is not None and len(fraction[1].rstrip("0")) > column.digits:
            raise refused("it is more precise")
        return text(value)

    def moment(value: Any) -> str:
        found = _MOMENT.match(value) if isinstance(value, str) else None
        if found is None:
            raise refused("it is no time of the years 1 to 9999")
        day, clock, fraction, _ = found.groups(default="")
        if column.digits is not None and len(fraction[1:].rstrip("0")) > column.digits:
            raise refused("it is more precise")
        return f"{day} {clock}{fraction}".strip()

    def hexadecimal(value: Any) -> str:
        if not isinstance(value, str) or not value.startswith("\\x"):
            raise refused("it is no bytea")
        return value[2:]

    cells: Mapping[str, Cell] = {
        "json": encode,
        "array": lambda value: array(value) if isinstance(value, list) else text(value),
        "number": number,
        "float": rounded,
        "date": day,
        "time": instant if ours else moment,
        "bytes": hexadecimal,
    }
    return encode if holds_json else cells.get(column.kind, text)


def _digits(number: str) -> int:
    """Behind the point; less than none, if it ends in zeros before it."""
    if "e" in number.lower():
        parts = Decimal(number).as_tuple()
        whole, zeros, fraction = "".join(map(str, parts.digits)), int(parts.exponent), ""
    else:
        (whole, _, fraction), zeros = number.partition("."), 0
    if fraction := fraction.rstrip("0"):
        return len(fraction)
    return len(whole.rstrip("0")) - len(whole) - zeros if whole.strip("-0") else -LONGEST


def array(values: Sequence[Any]) -> str:
    """As PostgreSQL reads an array."""

    def element(value: Any) -> str:
        if value is None:
            return "NULL"
        if isinstance(value, list) and not isinstance(value, Members):
            return array(value)
        text = value if isinstance(value, str) else encode(value)
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'

    return "{" + ",".join(map(element, values)) + "}"


def batches(rows: Sequence[list[Any]]) -> Iterator[Sequence[list[Any]]]:
    """Of cells. As many as a statement carries. It may be in ASCII, where a letter takes up to 12 bytes."""
    start = size = 0
    for number, row in enumerate(rows):
        text = "".join(filter(None, row))
        large = len(text) if text.isascii() else 12 * len(text)
        if number > start and (size + large > CHUNK_BYTES or number - start == CHUNK_ROWS):
            yield rows[start:number]
            start, size = number, 0
        size += large
    if start < len(rows):
        yield rows[start:]
