"""Where an event with a topic goes: into the topic's log or its queue. An event of a topic that is not configured is
refused, or goes into the outbox with the topic's name in a header (`outbox.unknown_topics`).

What is configured is remembered for ever and checked by its version in the statement that writes; when that has changed
the topic is asked for again, in the caller's transaction, and the write is repeated. What is not configured is not
remembered: the moment it is, events must go where its groups look.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from ..errors import InvalidEvent, NotFound, SchemaMissing, StoreBusy, StoreError
from ..event import TOPIC_HEADER, Event
from ..op import Op
from ..settings import UnknownTopics
from ..store.feeds import open_feed_store
from ..store.outbox import OutboxStore
from ..store.schema import Migration, Schema
from ..store.topics import TopicRow
from ..words import did_you_mean

if TYPE_CHECKING:
    from ..store.topics.store import TopicStore

_TRIES = 3


class Routes:
    def __init__(self, store: TopicStore, unknown: UnknownTopics) -> None:
        self.store = store
        self._unknown = unknown
        self._known: dict[str, TopicRow] = {}

    def write(
        self,
        events: Sequence[Event],
        topics: Sequence[str | None],
        outbox: Callable[[Sequence[Event]], Op[list[int]]],
        now: datetime | None,
        *,
        copy: bool,
    ) -> Op[tuple[list[int], list[int]]]:
        """The events' numbers, and which of them (by their place in the list) went into the outbox."""
        places: dict[str, list[int]] = {}
        for place, topic in enumerate(topics):
            if topic is not None:
                places.setdefault(topic, []).append(place)
        yield from self._learn_all(places)
        self._refuse_delays(events, topics)
        seqs = [0] * len(events)
        elsewhere: set[int] = set()
        for topic in sorted(places, key=self._blocks, reverse=True):  # what may refuse comes first
            written = yield from self._into(topic, [events[place] for place in places[topic]], now, copy=copy)
            if written is not None:
                elsewhere.update(places[topic])
                for place, seq in zip(places[topic], written, strict=True):
                    seqs[place] = seq
        here = [place for place in range(len(events)) if place not in elsewhere]
        if here:
            written = yield from outbox([labelled(events[place], topics[place]) for place in here])
            for place, seq in zip(here, written, strict=True):
                seqs[place] = seq
        return seqs, here

    def _into(self, topic: str, events: Sequence[Event], now: datetime | None, *, copy: bool) -> Op[list[int] | None]:
        """None: it is not configured."""
        for _ in range(_TRIES):
            row = self._known.get(topic)
            if row is None:
                return None
            try:
                seqs = yield from self.store.write(row, events, now, copy=copy)
            except SchemaMissing as error:
                self._known.pop(topic, None)
                raise StoreBusy(f"topic {topic!r} was dropped or moved; repeat the transaction") from error
            except StoreError:
                self._known.pop(topic, None)  # it may be why: a repeated transaction asks again
                raise
            if seqs is not None:
                return seqs
            yield from self._learn([topic])
        raise StoreBusy(f"topic {topic!r} changed {_TRIES} times while it was written to; repeat the transaction")

    def queues(self, topics: Collection[str]) -> Op[dict[str, OutboxStore | None]]:
        """Where the events of those that are configured wait; None: in a log, of which nobody counts what waits. Raises
        NotFound."""
        yield from self._learn_all(topics)
        rows = [self._known[topic] for topic in topics if topic in self._known]
        return {row.topic.name: self.store.queue(row.id) if row.topic.tracking == "rows" else None for row in rows}

    def forget(self, topics: Iterable[str]) -> None:
        for topic in topics:
            self._known.pop(topic, None)

    def _learn_all(self, topics: Collection[str]) -> Op[None]:
        """Raises NotFound, before anything is written."""
        topics = [topic for topic in topics if topic not in self._known]
        yield from self._learn(topics)
        if self._unknown == "refuse":
            for topic in topics:
                if topic not in self._known:
                    raise (yield from unknown_topic(self.store, topic))

    def _learn(self, topics: Sequence[str]) -> Op[None]:
        if topics:
            found = {row.topic.name: row for row in (yield from self.store.topics(topics))}
            self.forget(topics)
            self._known |= found

    def _blocks(self, topic: str) -> bool:
        row = self._known.get(topic)
        return row is not None and row.topic.block_writes

    def _refuse_delays(self, events: Sequence[Event], topics: Sequence[str | None]) -> None:
        for event, topic in zip(events, topics, strict=True):
            if event.deliver_at is None or topic is None:
                continue
            row = self._known.get(topic)
            if row is not None and row.topic.tracking != "rows":
                raise InvalidEvent(
                    f"event {event.id} has deliver_at, but topic {topic!r} is a log (tracking {row.topic.tracking!r}), "
                    "which is read in the order it was written; a queue with tracking 'rows' can wait"
                )

    def stored(self, event_ids: Sequence[str]) -> Op[set[str]]:
        """Which of these are in any topic."""
        found: set[str] = set()
        if not (yield from self.store.applied()):
            return found
        for row in (yield from self.store.topics()):
            missing = [event_id for event_id in event_ids if event_id not in found]
            if missing:
                found |= yield from self.store.stored(row, missing)
        return found

    def notify(self, outbox: OutboxStore, now: datetime | None) -> Op[bool]:
        """Wake the readers of the outbox and of the topics; once where they listen to the same."""
        heard = (yield from self.store.notify(now)) or (yield from outbox.notify(now))
        return (yield from self.store.notify_queues(now)) or heard


def unknown_topic(store: TopicStore, name: str) -> Op[NotFound]:
    """The error to raise, with a name that is like it."""
    names = [row.topic.name for row in (yield from store.topics())]
    hint = did_you_mean(name, names, f"; topics.configure(Topic.pub_sub({name!r})) makes it")
    return NotFound("topic", name, f"topic {name!r} is not configured{hint}")


def labelled(event: Event, topic: str | None) -> Event:
    return event if topic is None else event.with_headers({TOPIC_HEADER: topic})


def migrate(outbox: OutboxStore, topics: TopicStore | None, fair: bool = False) -> Op[list[Migration]]:
    """The tables of an outbox and, where the database can have them, of its topics and feeds. `fair`: also what fair
    claims need."""
    done = list[Migration]()
    for store in _stores(outbox, topics):
        done += yield from store.migrate()
    if fair:
        done += yield from outbox.make_fair()
    if fair and topics:
        done += yield from topics.make_fair()
    return done


def plan(outbox: OutboxStore, topics: TopicStore | None, fair: bool = False) -> Op[list[Migration]]:
    todo = list[Migration]()
    for store in _stores(outbox, topics):
        todo += yield from store.plan()
    if fair:
        todo += yield from outbox.fair_plan()
    if fair and topics:
        todo += yield from topics.fair_plan()
    return todo


def verify(outbox: OutboxStore, topics: TopicStore | None, fair: bool = False) -> Op[None]:
    for store in _stores(outbox, topics):
        yield from store.verify_schema()
    if fair:
        yield from outbox.verify_fair()
        if topics is not None:
            yield from topics.verify_fair()


def _stores(outbox: OutboxStore, topics: TopicStore | None) -> tuple[Schema, ...]:
    return (outbox,) if topics is None else (outbox, topics, open_feed_store(topics.dialect, topics.tables))
