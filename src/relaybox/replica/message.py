"""A message of a feed as its headers tell it: a delta, a snapshot, or one row of either."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from ..errors import FeedError, Undecodable
from ..event import Event
from ..store.feeds.reading import StoredDelta
from ..store.replica.rows import Members, decode

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
        at = (event.occurred_at - _EPOCH) // (datetime.resolution)
        return cls.read(event.headers, event.body, event.id)._replace(at=at, key=event.key)

    @classmethod
    def stored(cls, delta: StoredDelta) -> FeedMessage:
        return cls.read(delta.headers, delta.body, f"number {delta.seq}")._replace(seq=delta.seq)

    @classmethod
    def read(cls, headers: Mapping[str, str], body: bytes | None, name: str) -> FeedMessage:
        try:
            place, op = (headers["feed"], headers["feed-epoch"], int(headers["feed-n"])), headers.get("feed-op")
            if op is not None:
                return cls(*place, body, op=op, rows=int(headers.get("feed-rows", 0)))
            return cls(
                *place,
                body,
                int(headers["feed-inserted"]),
                int(headers["feed-deleted"]),
                headers["feed-claim-check"] == "true",
                headers.get("feed-snapshot") == "true",
            )
        except (KeyError, ValueError):
            raise FeedError(f"event {name} is no message of a feed: its headers do not say which", "message") from None

    def decoded(self) -> dict[str, Any]:
        return self._members(self.body or b"")

    def row(self) -> RowValues:
        """The row that is there now, or the one that is gone: of that a tombstone has the key alone."""
        if not self.body:
            return self._members((self.key or "").encode())
        (row,) = rows_of([self.decoded().get("before" if self.op == "d" else "after")])
        return row

    def _members(self, text: bytes) -> dict[str, Any]:
        try:
            found = decode(text.decode())
            if isinstance(found, Members):
                return dict(found)
        except ValueError:
            pass
        raise Undecodable(f"message {self.n} of feed {self.feed!r} cannot be read")


def rows_of(lines: Any) -> list[RowValues]:
    """What JSON has as rows."""
    if isinstance(lines, list) and all(isinstance(line, Members) for line in lines):
        return [dict(line) for line in lines]
    raise Undecodable("a message of a feed has something else than rows")
