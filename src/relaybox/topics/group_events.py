"""What operators ask of a group's events: of its place in a log, or of the outbox that a queue of rows is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, TypeVar

from ..op import Op
from ..operate import EventStore
from ..store.events import Kind, Search
from ..store.outbox import open_store
from ..store.topics import QUEUE
from ..store.topics.events import LogEvents
from ..values import BlockedKey, StoredEvent
from .home import Home

T = TypeVar("T")


class GroupEvents:
    """`operate.EventStore` of a group, whose topic is looked up by each op: it may be moved."""

    def __init__(self, home: Home[Any], topic: str, group: str) -> None:
        self._home = home
        self._topic = topic
        self._group = group

    def _asked(self, ask: Callable[[EventStore], Op[T]]) -> Op[T]:
        home = self._home
        topic = yield from home.known(self._topic)
        if topic.topic.tracking == "rows" and self._group == QUEUE:  # which may have no group yet
            return (yield from ask(open_store("postgres", home.store.tables.queue(topic.id), home.codec)))
        _, group = yield from home.reader(self._topic, self._group)
        return (yield from ask(LogEvents(home.store, topic, group, home.codec)))

    def newest(self, now: datetime | None) -> Op[tuple[int, datetime]]:
        return self._asked(lambda kept: kept.newest(now))

    def numbers_of(self, ids: Sequence[str], sender: str | None) -> Op[list[int] | None]:
        return self._asked(lambda kept: kept.numbers_of(ids, sender))

    def events(self, kind: Kind, search: Search, limit: int) -> Op[list[StoredEvent]]:
        return self._asked(lambda kept: kept.events(kind, search, limit))

    def count_events(self, kind: Kind, search: Search, changeable: bool = False) -> Op[int]:
        return self._asked(lambda kept: kept.count_events(kind, search, changeable))

    def event_numbers(self, kind: Kind, search: Search, limit: int) -> Op[list[int]]:
        return self._asked(lambda kept: kept.event_numbers(kind, search, limit))

    def replay(self, kind: Kind, seqs: Sequence[int], cutoff: datetime, now: datetime | None) -> Op[int]:
        return self._asked(lambda kept: kept.replay(kind, seqs, cutoff, now))

    def discard(self, kind: Kind, seqs: Sequence[int], now: datetime | None) -> Op[int]:
        return self._asked(lambda kept: kept.discard(kind, seqs, now))

    def blocked(self, limit: int, now: datetime | None) -> Op[list[BlockedKey]]:
        return self._asked(lambda kept: kept.blocked(limit, now))

    def release_key(self, key: str, to: int | None, now: datetime | None) -> Op[bool]:
        return self._asked(lambda kept: kept.release_key(key, to, now))
