"""What operators ask of the events that a product keeps: pages of them, how many there are, and their numbers.

A product has the queries `<product>.events.open`, `.dead` and `.done`, each also with `_count` and `_numbers`; they
differ in where such events are found, not in how they are chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal, NamedTuple

from ..codec import JSON_CODEC, Codec
from ..event import Event
from ..op import Op
from ..values import StoredEvent, Where
from .event_rows import EPOCH, Unreadable, legible
from .instances import Instances
from .payloads import Payloads

Kind = Literal["open", "dead", "done"]
LAST = 2**63 - 1
ROOM = 16 * 2**20  # bytes of payloads in a page


class Search(NamedTuple):
    """A Where in the terms of a database: times are times, and ids are the numbers of their events."""

    where: Where
    since: datetime | None = None
    until: datetime | None = None
    seqs: Sequence[int] | None = None  # ascending; none of them beyond `upto`
    after: int = 0
    upto: int = LAST


class EventPage(NamedTuple):
    """The oldest first. `ended`: no more are there, or no more were asked for; otherwise there was no room for them."""

    events: list[StoredEvent]
    ended: bool


class Listed(NamedTuple):
    """A row without what is no column of an event."""

    row: Sequence[Any]


class EventOps(Instances, Payloads):
    _events: str  # what the names of the queries begin with
    codec: Codec = JSON_CODEC

    def events(self, kind: Kind, search: Search, limit: int, room: int = ROOM) -> Op[EventPage]:
        """As far as `room` bytes of payloads go, and one in any case."""
        found = yield self.sql[self._events + kind].bind(**self.search(search), limit=limit, room=room // limit)
        listed = [Listed(row[:12]) for row in found.rows]
        left = room - sum(len(row[7] or b"") for row in found.rows)
        loaded = yield from self.load(listed, left, first=True, listed=True)
        events: list[StoredEvent] = []
        for row in found.rows:
            if row[0] in loaded.back:
                if events:
                    return EventPage(events, ended=False)
                return (yield from self.events(kind, search._replace(after=row[0] - 1), limit, room))
            shown = loaded.rows.get(row[0], row)
            if shown[1] is not None:  # or it was deleted meanwhile
                events.append(self._stored_event(shown, row))
        return EventPage(events, ended=True)

    def _stored_event(self, shown: Sequence[Any], row: Sequence[Any]) -> StoredEvent:
        attempts, error, due, ended, state, *sender = row[12:18]
        if shown.__class__ is not Unreadable:
            shown = self.event_row(shown)
        event = Event.stored(shown, self.codec, sender=legible(sender[0]) or "" if sender else "")
        return StoredEvent(event, state, attempts, legible(error), self._time(due), self._time(ended))

    def _time(self, at: Any) -> datetime | None:
        """The first of all for what is not a time: a row may be anybody's."""
        try:
            return None if at is None else self.from_time(at)
        except (TypeError, ValueError, AttributeError, OverflowError):
            return EPOCH

    def count_events(self, kind: Kind, search: Search, changeable: bool = False) -> Op[int]:
        return int((yield self.sql[f"{self._events}{kind}_count"].bind(**self.search(search))).rows[0][0])

    def event_numbers(self, kind: Kind, search: Search, limit: int) -> Op[list[int]]:
        """The events themselves are not read."""
        found = yield self.sql[f"{self._events}{kind}_numbers"].bind(**self.search(search), limit=limit)
        return [row[0] for row in found.rows]

    def newest(self, now: datetime | None) -> Op[tuple[int, datetime]]:
        """The number of the last event there is, and the time."""
        found = yield self.sql[f"{self._events}newest"].bind(now=self.to_time(now))
        return int(found.rows[0][0]), self.from_time(found.rows[0][1])

    def search(self, search: Search) -> dict[str, Any]:
        where, seqs = search.where, search.seqs
        return {
            "type": where.type,
            "aggregate_type": where.aggregate_type,
            "key": where.key,
            "tenant": where.tenant,
            "sender": where.sender,
            "error": where.error,
            "data_key": where.data_key,
            "since": self.to_time(search.since),
            "until": self.to_time(search.until),
            "seqs": None if seqs is None else self.numbers(seqs),
            "after": max(search.after, seqs[0] - 1) if seqs else search.after,
            "upto": search.upto,
        }
