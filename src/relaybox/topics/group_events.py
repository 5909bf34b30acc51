"""What operators ask of a group's events: of its place in a log, or of the outbox that a queue of rows is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from ..op import Op
from ..operate import EventStore
from ..store.outbox import open_store
from ..store.topics import QUEUE
from ..store.topics.events import LogEvents
from .context import TopicContext

P = ParamSpec("P")
T = TypeVar("T")


def asked(method: Callable[Concatenate[EventStore, P], Op[T]]) -> Callable[Concatenate[GroupEvents, P], Op[T]]:
    """The same method, of where the group's events are now: its topic may be moved."""

    def ask(self: GroupEvents, /, *args: P.args, **kwargs: P.kwargs) -> Op[T]:
        kept = yield from self._kept()
        answer: T = yield from getattr(kept, method.__name__)(*args, **kwargs)
        return answer

    return ask


class GroupEvents:
    """`operate.EventStore` of a group."""

    def __init__(self, context: TopicContext[Any], topic: str, group: str) -> None:
        self._context = context
        self._topic = topic
        self._group = group

    def _kept(self) -> Op[EventStore]:
        context = self._context
        topic = yield from context.known(self._topic)
        if topic.topic.tracking == "rows" and self._group == QUEUE:  # which may have no group yet
            return open_store("postgres", context.store.tables.queue(topic.id), context.codec)
        _, group = yield from context.reader(self._topic, self._group)
        return LogEvents(context.store, topic, group, context.codec)

    newest = asked(EventStore.newest)
    numbers_of = asked(EventStore.numbers_of)
    events = asked(EventStore.events)
    count_events = asked(EventStore.count_events)
    event_numbers = asked(EventStore.event_numbers)
    replay = asked(EventStore.replay)
    discard = asked(EventStore.discard)
    blocked = asked(EventStore.blocked)
    release_key = asked(EventStore.release_key)
