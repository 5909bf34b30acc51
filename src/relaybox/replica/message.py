"""A message of a feed as its headers tell it: a delta, a snapshot, or one row of either."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, NamedTuple

from ..errors import FeedError, Undecodable
from ..event import Event
from ..store.feeds.reading import StoredDelta
from ..store.replica.rows import Members, decode

_OPS = {op: op for op in "cudr"}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
RowValues = Mapping[str, Any]


class FeedMessage(NamedTuple):
    feed: str
    epoch: str
    n: int
    body: bytes | None
    inserted: int = 0
    deleted: int = 0
    claim_check: bool = False
    snapshot: bool = False
    op: str | None = None  # of one row: c, u, d, or r for a row of a snapshot; None: a delta
    rows: int = 0  # of that snapshot
    at: int = 0  # microseconds since 1970: when it was written
    seq: int | None = None  # in the source's log, if it was read there
    key: str | None = None  # of that row, as JSON

    @classmethod
    def of(cls, event: Event[Any]) -> FeedMessage:
        return cls.read(event.headers, event.body, event.id)._replace(at=micros(event.occurred_at), key=event.key)

    @classmethod
    def stored(cls, delta: StoredDelta) -> FeedMessage:
        return cls.read(delta.headers, delta.body, f"number {delta.seq}")._replace(seq=delta.seq)

    @classmethod
    def read(cls, headers: Mapping[str, str], body: bytes | None, name: str) -> FeedMessage:
        try:
            place = headers["feed"], _epoch(headers["feed-epoch"]), _count(headers["feed-n"])
            if (op := headers.get("feed-op")) is not None:
                return cls(*place, body, op=_OPS[op], rows=_count(headers.get("feed-rows", "0")))
            return cls(
                *place,
                body,
                _count(headers["feed-inserted"]),
                _count(headers["feed-deleted"]),
                headers["feed-claim-check"] == "true",
                headers.get("feed-snapshot") == "true",
            )
        except (KeyError, ValueError):
            raise FeedError(f"event {name} is no message of a feed: its headers do not say which", "message") from None

    def decoded(self) -> dict[str, Any]:
        return self._members(self.body or b"")

    def row(self) -> RowValues:
        """As it is now, or as it was if it is gone. Of a tombstone the key is left: a broker that compacts its topic
        may have nothing else of a deleted row."""
        if not self.body and self.op == "d":
            return self._members((self.key or "").encode())
        (row,) = rows_of([self.decoded().get("before" if self.op == "d" else "after")])
        return row

    def _members(self, text: bytes) -> dict[str, Any]:
        with suppress(ValueError):
            if isinstance(found := decode(text.decode()), Members):
                return dict(found)
        raise Undecodable(f"message {self.n} of feed {self.feed!r} cannot be read")


def micros(moment: datetime) -> int:
    """Since 1970."""
    return (moment - _EPOCH) // datetime.resolution


def _count(text: str) -> int:
    """ValueError: no number that a column holds."""
    if len(text) > 18 or not (text.isascii() and text.isdigit()):
        raise ValueError(text)
    return int(text)


def _epoch(text: str) -> str:
    if not 0 < len(text) <= 64:
        raise ValueError(text)
    return text


def rows_of(lines: Any) -> list[RowValues]:
    """What JSON has as rows."""
    if isinstance(lines, list) and all(isinstance(line, Members) for line in lines):
        return [dict(line) for line in lines]
    raise Undecodable("a message of a feed has something else than rows")
