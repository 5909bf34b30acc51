"""Events into a topic's log, in the caller's transaction, numbered in list order."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import pairwise
from operator import itemgetter
from typing import Any

from ...errors import NoSubscribers, SchemaMissing
from ...event import Event
from ...ids import shard_of
from ...op import Copy, Op, Statement
from ..event_rows import arrays, by_column, lane_key
from ..outbox.postgres import COLUMN_TYPES, COPY_FROM
from . import TopicRow
from .logs import LogQueries

log = logging.getLogger("relaybox")

_RECENT = (0, 10_000, 100_000, 1_000_000)  # how far back `stored` looks, step by step
_by_shard = itemgetter(1)  # as a log is read: else each event of a range would lie on another page
_MARK_TYPES = {"bitmap": "int8", "acks": "int4[]"}


class WriteOps(LogQueries):
    def write(
        self, topic: TopicRow, events: Sequence[Event], now: datetime | None, *, copy: bool = False
    ) -> Op[list[int] | None]:
        """Into the log or the queue, in list order. None: nothing was written because the topic has changed; ask for
        it again. Raises NoSubscribers."""
        if copy and len(events) >= COPY_FROM:
            rows = topic.topic.tracking == "rows"
            written = yield from (self._enqueue_copy if rows else self._write_copy)(topic, events, now)
            if written != []:
                return written
        if len(events) == 1 and topic.topic.tracking == "offset":
            result = yield self._one(topic, events[0], now)
        else:
            names = {
                "rows": "topic.write.queue",
                "offset": "topic.write.many",
                "bitmap": "topic.write.many_bitmap",
                "acks": "topic.write.many_acks",
            }
            if topic.topic.tracking == "rows":
                self.queue(topic.id)  # whose readers `notify_queues` is to wake
            values = arrays(events) | _at(topic, now) | {"shards": _shards(topic, events)}
            result = yield Statement(self.log(topic.id)[names[topic.topic.tracking]], values)
        if not result.rows:
            return (yield from self._refused(topic))
        return sorted(row[0] for row in result.rows)

    def _one(self, topic: TopicRow, event: Event, now: datetime | None) -> Statement:
        values = {name: column[0] for name, column in by_column([event]).items()} | _at(topic, now)
        values["shard"] = shard_of(lane_key(event), topic.topic.shards)
        return Statement(self.log(topic.id)["topic.write.one"], values)

    def _write_copy(self, topic: TopicRow, events: Sequence[Event], now: datetime | None) -> Op[list[int] | None]:
        """One COPY of the columns that are used at all, and one of the marks. []: the log is under row-level security,
        and nothing was written."""
        drawn = yield self.log(topic.id)["topic.write.numbers"].bind(
            topic=topic.id, version=topic.version, count=len(events)
        )
        if not drawn.rows:
            return (yield from self._refused(topic))
        numbers, required, audience, secured = drawn.rows[0]
        if secured:
            return []
        seqs: list[int] = sorted(numbers)
        columns: dict[str, list[Any]] = {"seq": seqs, "shard": _shards(topic, events), **by_column(events)}
        if now is not None:  # otherwise the column's default, the database's clock
            columns["created_at"] = [now] * len(events)
        yield self._copy(f"log_{topic.id}", columns, COLUMN_TYPES, order=_by_shard)
        tracking = topic.topic.tracking
        if tracking != "offset":
            who = required if tracking == "bitmap" else list(audience)
            marks: dict[str, list[Any]] = {"seq": seqs, "required": [who] * len(seqs)}
            if now is not None:
                marks["created_at"] = columns["created_at"]
            yield self._copy(f"mark_{topic.id}", marks, COLUMN_TYPES | {"required": _MARK_TYPES[tracking]})
        return seqs

    def _enqueue_copy(self, topic: TopicRow, events: Sequence[Event], now: datetime | None) -> Op[list[int] | None]:
        found = yield self.log(topic.id)["topic.write.queued"].bind(topic=topic.id, version=topic.version)
        if not found.rows:
            return None
        return (yield from self.queue(topic.id).write(events, None, now, copy=True))

    def _copy(
        self,
        part: str,
        columns: dict[str, list[Any]],
        types: dict[str, str],
        order: Callable[[tuple[Any, ...]], int] | None = None,
    ) -> Copy:
        used = {name: values for name, values in columns.items() if values.count(None) < len(values)}
        rows = list(zip(*used.values(), strict=True))
        if order is not None:
            rows.sort(key=order)
        return Copy(self.tables.part(part), self.tables.schema, list(used), [types[name] for name in used], rows)

    def _refused(self, topic: TopicRow) -> Op[list[int] | None]:
        found = yield self.sql["topic.write.state"].bind(topic=topic.id)
        if found.rows and found.rows[0][0] == topic.version and found.rows[0][1]:
            log.warning("topic %s has no active subscription and blocks writes: refused", topic.topic.name)
            raise NoSubscribers(topic.topic.name)
        return None

    def notify(self, now: datetime | None) -> Op[bool]:
        """Wake the members there are. False: there are none."""
        result = yield self.sql["topic.write.notify"].bind(now=now)
        return bool(result.rows)

    def notify_queues(self, now: datetime | None) -> Op[bool]:
        """Wake those who work on the queues that were written to through this store."""
        heard = False
        for topic_id, queue in list(self._queues.items()):
            try:
                heard |= yield from queue.notify(now)
            except SchemaMissing:  # it was dropped or moved
                self._queues.pop(topic_id, None)
        return heard

    def stored(self, topic: TopicRow, event_ids: Sequence[str]) -> Op[set[str]]:
        """In a log among the newest million: this is asked right after a commit."""
        if topic.topic.tracking == "rows":
            return (yield from self.queue(topic.id).stored(event_ids))
        missing = set(event_ids)
        for skip, newest in pairwise(_RECENT):
            if missing:
                result = yield self.log(topic.id)["topic.write.stored"].bind(
                    shards=topic.topic.shards, newest=newest, skip=skip, event_ids=sorted(missing)
                )
                missing -= {row[0] for row in result.rows}
        return set(event_ids) - missing


def _at(topic: TopicRow, now: datetime | None) -> dict[str, Any]:
    return {"topic": topic.id, "version": topic.version, "now": now}


def _shards(topic: TopicRow, events: Sequence[Event]) -> list[int]:
    shards = topic.topic.shards
    return [shard_of(lane_key(event), shards) for event in events]
