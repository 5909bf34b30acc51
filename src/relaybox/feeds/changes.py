"""A delta by key: what was there under it before, and what is there now. For relays that send a message for each row.

Rows stay the text that the database wrote, so no number is ever rounded. Of an event by claim check two chunks are in
memory at most: refreshes put what went and what came of the same keys at the same place.

Keys are JSON objects in one spelling: without blanks, columns in the order of the feed's key, numbers without zeros at
their end. 1.0 and 1.00 are the same key to the database, and so they are here.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Sequence
from json.encoder import encode_basestring
from typing import Any, NamedTuple

from ..brokers.json_members import members, valued
from ..drivers.spi import AsyncRunner
from ..errors import InvalidEvent, NotFound, Reject, Undecodable
from ..event import Event
from ..feed import key_number
from ..store.feeds.store import FeedStore
from ..topics.deltas import DeltaPlace


class RowChange(NamedTuple):
    """One key of a delta; texts are JSON."""

    key: str
    before: str | None  # None: there was no row
    after: str | None  # None: there is none any more


async def changes(event: Event[Any], store: FeedStore, db: AsyncRunner) -> AsyncGenerator[list[RowChange], None]:
    """All of a delta, in the same order at every call. Reject: its rows are not kept any more, or not as they were
    written."""
    place = DeltaPlace.of(event)
    try:
        key: list[str] = json.loads(event.headers["feed-key"])
        if not place.claim_check:
            found = members(event.body)
            yield _paired(found["deleted"].text, found["inserted"].text, key)
            return
        async for deleted, inserted in _parts(place, store, db):
            yield _paired(deleted, inserted, key)
    except NotFound as error:
        raise Reject(str(error)) from error
    except (InvalidEvent, KeyError, TypeError, ValueError):
        raise Undecodable(f"event {event.id} is no delta that this release can read") from None


async def _parts(place: DeltaPlace, store: FeedStore, db: AsyncRunner) -> AsyncGenerator[tuple[str, str], None]:
    """Deleted and inserted rows of the same keys."""

    async def chunk(number: int) -> str:
        found = await db.run(store.chunk(place.feed, place.epoch, place.n, number), tx=False)
        return "[]" if found is None else found.payload

    kept = await db.run(store.kept(place.feed, place.epoch, place.n), tx=False)
    if kept.inserted and kept.deleted:
        half = kept.chunks // 2
        for number in range(half):
            yield await chunk(number), await chunk(half + number)
    else:
        for number in range(kept.chunks):
            rows = await chunk(number)
            yield (rows, "[]") if kept.deleted else ("[]", rows)


def _paired(deleted: str, inserted: str, key: Sequence[str]) -> list[RowChange]:
    before = dict(_keyed(deleted, key))
    found = [RowChange(at, before.pop(at, None), row) for at, row in _keyed(inserted, key)]
    return found + [RowChange(at, row, None) for at, row in before.items()]


def _keyed(rows: str, key: Sequence[str]) -> list[tuple[str, str]]:
    names = [(name, f"{encode_basestring(name)}:") for name in key]
    return [
        ("{" + ",".join([text + _written(row.value[name]) for name, text in names]) + "}", row.text)
        for row in valued(rows.encode(), _DECODER)
    ]


class _Number(str):
    """A number in its one spelling."""

    __slots__ = ()

    def __new__(cls, text: str) -> _Number:
        return str.__new__(cls, key_number(text))


_DECODER = json.JSONDecoder(parse_int=_Number, parse_float=_Number)


def _written(value: Any) -> str:
    if isinstance(value, _Number):
        return value
    if isinstance(value, str):
        return encode_basestring(value)
    if isinstance(value, list):
        return "[" + ",".join(map(_written, value)) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{encode_basestring(name)}:{_written(each)}" for name, each in value.items()) + "}"
    return {None: "null", True: "true", False: "false"}[value]
