"""What operators ask of the events of a group that reads a log, as `operate.Kept` says. See sql/events.sql."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from itertools import takewhile
from typing import Any

from ...codec import JSON_CODEC, Codec
from ...errors import ConfigError
from ...event import Event
from ...ids import key_hash
from ...op import Op, Query
from ...values import BlockedKey, StoredEvent
from ..events import ROOM, EventPage, Kind, Search
from . import GroupRow, TopicRow
from .parked import ParkedOps

# Where events of a kind are. Of what is open, first what is parked: that can be changed.
_LISTS: dict[Kind, tuple[str, ...]] = {
    "open": ("topic.events.parked", "topic.events.waiting"),
    "dead": ("topic.events.parked",),
    "done": ("topic.events.done",),
}
_COUNTS: dict[Kind, tuple[str, ...]] = {
    "open": ("topic.events.parked_count", "topic.events.waiting_count"),
    "dead": ("topic.events.parked_count",),
    "done": ("topic.events.done_count",),
}


class LogEvents:
    def __init__(self, store: ParkedOps, topic: TopicRow, group: GroupRow, codec: Codec = JSON_CODEC) -> None:
        self._store = store
        self._sql: dict[str, Query] = store.sql | store.log(topic.id)
        self._topic = topic
        self._group = group
        self._codec = codec

    def newest(self, now: datetime | None) -> Op[tuple[int, datetime]]:
        found = yield self._sql["topic.events.newest"].bind(now=now)
        return found.rows[0][0], self._store.from_time(found.rows[0][1])

    def numbers_of(self, ids: Sequence[str], sender: str | None) -> Op[list[int] | None]:
        yield from ()
        return None

    # -- looking ----------------------------------------------------------------------------------

    def events(self, kind: Kind, search: Search, limit: int, room: int = ROOM) -> Op[EventPage]:
        found: list[Sequence[Any]] = []
        for name in _LISTS[kind]:
            found += (yield self._sql[name].bind(**self._terms(kind, search), limit=limit, room=room)).rows
        found.sort(key=lambda row: int(row[0]))
        here = list(takewhile(lambda row: row[10] is None, found[:limit]))
        return EventPage(
            [self._stored_event(row) for row in self._store.event_rows(here)], len(here) == len(found[:limit])
        )

    def _stored_event(self, row: Sequence[Any]) -> StoredEvent:
        attempts, error, due, ended, state = row[12:17]
        due, ended = (None if at is None else self._store.from_time(at) for at in (due, ended))
        event = Event.stored(row, self._codec, self._topic.topic.name)
        return StoredEvent(event, state, attempts, error, due, ended)

    def count_events(self, kind: Kind, search: Search, changeable: bool = False) -> Op[int]:
        if changeable:
            yield from self._refuse_done(kind, search)
        total = 0
        for name in _COUNTS[kind][: 1 if changeable else None]:
            total += (yield self._sql[name].bind(**self._terms(kind, search), limit=None)).rows[0][0]
        return total

    def _terms(self, kind: Kind, search: Search) -> dict[str, Any]:
        where = search.where
        names = ("type", "aggregate_type", "key", "tenant", "error", "data_key")
        terms = {name: getattr(where, name) for name in names}
        return terms | {
            "topic": self._topic.id,
            "group": self._group.id,
            "dead": kind == "dead",
            "ids": None if where.ids is None else list(where.ids),
            "since": search.since,
            "until": search.until,
            "after": search.after,
            "upto": search.upto,
        }

    # -- changing: needs a transaction ------------------------------------------------------------

    def _refuse_done(self, kind: Kind, search: Search) -> Op[None]:
        if kind != "done":
            return
        if ids := search.where.ids:  # which need not be looked for in the log if all of them are parked
            parked = yield from self.count_events("dead", search)
            parked += yield from self.count_events("open", search, changeable=True)
            if parked >= len(ids):
                return
        if (yield from self.events(kind, search, 1)).events:
            name = f"{self._group.topic}/{self._group.name}"
            raise ConfigError(
                f"group {name} reads a log, and finished events are among these: they are seen again from a place on, "
                "by seek(); dead letters alone are replayed by dead.replay()"
            )

    def event_numbers(self, kind: Kind, search: Search, limit: int) -> Op[list[int]]:
        """What waits in the log cannot be taken out of it."""
        yield from self._refuse_done(kind, search)
        if kind == "done":
            return []
        found = yield self._sql["topic.events.parked_numbers"].bind(**self._terms(kind, search), limit=limit)
        return [row[0] for row in found.rows]

    def replay(self, kind: Kind, seqs: Sequence[int], cutoff: datetime, now: datetime | None) -> Op[int]:
        group = self._group
        yield from self._store.lock_parked(group)
        found = yield self._sql["topic.events.replay"].bind(group=group.id, seqs=sorted(seqs), cutoff=cutoff, now=now)
        if group.ordered and found.rows:
            yield self._sql["topic.events.queue"].bind(group=group.id, seqs=[row[0] for row in found.rows])
            yield from self._store.promote(group, [row[1] for row in found.rows], now)
        return len(found.rows)

    def discard(self, kind: Kind, seqs: Sequence[int], now: datetime | None) -> Op[int]:
        group = self._group
        yield from self._store.lock_parked(group)
        discard = self._sql["topic.events.discard"]
        gone = yield discard.bind(group=group.id, seqs=sorted(seqs), dead=kind == "dead")
        yield from self._store.promote(group, [row[1] for row in gone.rows], now)
        yield from self._store.complete(self._topic, group, sorted(row[0] for row in gone.rows), now)
        return len(gone.rows)

    # -- keys -------------------------------------------------------------------------------------

    def blocked(self, limit: int, now: datetime | None) -> Op[list[BlockedKey]]:
        found = yield self._sql["topic.events.blocked"].bind(group=self._group.id, limit=limit)
        return [
            BlockedKey(key, "dead" if state == "dead" else "retry", self._store.from_time(since), id, attempts, error)
            for key, id, state, since, attempts, error in found.rows
        ]

    def release_key(self, key: str, to: int | None, now: datetime | None) -> Op[bool]:
        group, hashed = self._group, key_hash(key)
        yield from self._store.lock_parked(group)
        found = yield self._sql["topic.events.release"].bind(group=group.id, key_hash=hashed)
        if found.rows:
            yield from self._store.promote(group, [hashed], now)
        return bool(found.rows)
