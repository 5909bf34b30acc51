"""Payloads that a claim leaves in the database, because many of that size would fill the memory of its process.

A claim brings payloads up to a size of which there is room for as many as it asks for (`Claim.room`). Of larger ones it
asks for the sizes here, and reads them in turn as long as there is room; the rest is to be given back. So a claim of
small payloads is one round trip, and whatever lies in the tables, no more than that comes into memory at once. What is
larger than any event may be is never read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from ..event import MAX_HEADER_TEXT, MAX_PAYLOAD
from ..op import Op
from .event_rows import Unreadable, unreadable
from .schema import Schema


class _Row(Protocol):
    @property
    def row(self) -> Sequence[Any]: ...


class LoadedPayloads(NamedTuple):
    """By their numbers: rows as they are to be read, what has to be given back, and the bytes of each payload."""

    rows: Mapping[int, Sequence[Any]]
    back: frozenset[int]
    sizes: Mapping[int, int]


def absent(row: Sequence[Any]) -> bool:
    """Whether the payload was left in the database. Of a row that is gone nothing is there."""
    return row[7] is None and row[1] is not None and row.__class__ is not Unreadable


class Payloads(Schema):
    _claims: str  # what the names of the queries begin with
    _largest: int | None = MAX_PAYLOAD

    def load(self, claimed: Sequence[_Row], room: int, *, first: bool, listed: bool = False) -> Op[LoadedPayloads]:
        """What is `absent`, in the order of the claim as far as `room` bytes go, and with `first` one in any case. What
        is behind an event of its key that has to be given back goes with it, or it would overtake it. `listed`: for
        people, who are shown what cannot be read as well."""
        left = {one.row[0]: one.row for one in claimed if absent(one.row)}
        if not left:
            return LoadedPayloads({}, frozenset(), {})
        largest = self._largest_listed() if listed else self._largest
        answer = yield self.sql[self._claims + "sizes"].bind(seqs=self.numbers(list(left)))
        reasons, sizes = dict[int, str](), dict[int, int]()
        for seq, *facts in answer.rows:
            if (reason := self._why_not(largest, *facts)) is None:
                sizes[seq] = facts[0]
            else:
                reasons[seq] = reason
        wanted, back, behind = list[int](), set[int](), set[str]()
        for one in claimed:
            seq, key = one.row[0], one.row[4]
            if key is not None and key in behind:
                back.add(seq)
            elif seq not in sizes:
                continue
            elif sizes[seq] <= room or (first and not wanted):
                wanted.append(seq)
                room -= sizes[seq]
            else:
                back.add(seq)
                behind |= {key} - {None}
        read: dict[int, Any] = {}
        if wanted:
            answer = yield self.sql[self._claims + "payloads"].bind(seqs=self.numbers(wanted))
            read = dict(answer.rows)
        rows: dict[int, Sequence[Any]] = {}
        for seq, row in left.items():
            if seq in reasons:
                rows[seq] = unreadable(row, reasons[seq])
            elif seq in read:
                rows[seq] = (*row[:7], read[seq], *row[8:12])
            elif seq not in back:  # deleted meanwhile
                rows[seq] = (seq, *[None] * 11)
        return LoadedPayloads(rows, frozenset(back), sizes)

    def _largest_listed(self) -> int | None:
        return self._largest

    def _why_not(self, largest: int | None, payload: int | None, headers: int | None, whole: bool) -> str | None:
        """Why a row is not that of an event, from what can be said of it without reading it."""
        if not whole:
            return "a column that every event has is NULL"
        if payload is None:
            return "its payload is NULL"
        if largest is not None and payload > largest:
            return f"its payload takes {payload:,} bytes, the limit is {largest:,}"
        if headers is not None and headers > MAX_HEADER_TEXT:
            return f"its headers take {headers:,} bytes, the limit is {MAX_HEADER_TEXT:,}"
        return None
