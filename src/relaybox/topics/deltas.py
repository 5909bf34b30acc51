"""The rows of a delta, as events of feeds carry them: in the event itself, or by claim check in chunks of the database.

    with group.consumer() as consumer:
        for event in consumer.poll():
            for row in consumer.rows(event):
                ...

Deleted rows come before inserted ones; a row that was updated comes as both. Numbers that are no integers are Decimals.
No more than a chunk is in memory.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from decimal import Decimal
from typing import Any, Literal, NamedTuple

from ..drivers.spi import AsyncRunner, Runner
from ..errors import ConfigError, Undecodable
from ..event import Event
from ..store.feeds import Chunk
from ..store.feeds.store import FeedStore


class DeltaRow(NamedTuple):
    """A row that is in the result of the query no more, or now."""

    op: Literal["deleted", "inserted"]
    row: dict[str, Any]


class DeltaPlace(NamedTuple):
    """Which delta an event is."""

    feed: str
    epoch: str
    n: int
    claim_check: bool
    snapshot: bool  # all rows there are: a reader deletes those that are not in it

    @classmethod
    def of(cls, event: Event[Any]) -> DeltaPlace:
        try:
            headers = event.headers
            claim_check, snapshot = headers["feed-claim-check"] == "true", headers.get("feed-snapshot") == "true"
            return cls(headers["feed"], headers["feed-epoch"], int(headers["feed-n"]), claim_check, snapshot)
        except (KeyError, ValueError):
            raise ConfigError(f"event {event.id} ({event.type}) is no delta of a feed") from None


def delta_rows(event: Event[Any], store: FeedStore, db: Runner) -> Iterator[DeltaRow]:
    place = DeltaPlace.of(event)
    if not place.claim_check:
        yield from _inline(event)
        return
    number = 0
    while (chunk := db.run(store.chunk(place.feed, place.epoch, place.n, number), tx=False)) is not None:
        yield from _of_chunk(chunk)
        number += 1


async def adelta_rows(event: Event[Any], store: FeedStore, db: AsyncRunner) -> AsyncIterator[DeltaRow]:
    place = DeltaPlace.of(event)
    if not place.claim_check:
        for row in _inline(event):
            yield row
        return
    number = 0
    while (chunk := await db.run(store.chunk(place.feed, place.epoch, place.n, number), tx=False)) is not None:
        for row in _of_chunk(chunk):
            yield row
        number += 1


def _inline(event: Event[Any]) -> Iterator[DeltaRow]:
    try:
        found = json.loads(event.body, parse_float=Decimal)
        deleted, inserted = found["deleted"], found["inserted"]
    except (ValueError, KeyError, TypeError):
        raise Undecodable(f"event {event.id} is no delta that this release can read") from None
    for row in deleted:
        yield DeltaRow("deleted", row)
    for row in inserted:
        yield DeltaRow("inserted", row)


def _of_chunk(chunk: Chunk) -> Iterator[DeltaRow]:
    for row in json.loads(chunk.payload, parse_float=Decimal):
        yield DeltaRow("deleted" if chunk.op == "D" else "inserted", row)
