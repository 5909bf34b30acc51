"""What a topic's tracking costs, as counters. See sql/measure.sql."""

from __future__ import annotations

from datetime import datetime

from ...errors import StoreError
from ...op import Op
from . import TopicRow
from .completion import Counters
from .logs import LogQueries

SPAN = 10_000


class MeasureOps(LogQueries):
    def counters(self, topic: TopicRow, now: datetime | None) -> Op[Counters]:
        log = self.log(topic.id)
        at, numbers, groups, inserted, deleted = (yield log["topic.measure.log"].bind(topic=topic.id)).rows[0]
        drawn, seconds = (yield self.sql["topic.measure.ticks"].bind(topic=topic.id, now=now)).rows[0]
        acks = dead = live = oldest = ack_rows = None
        if topic.topic.tracking in ("bitmap", "acks"):
            marks = yield log["topic.measure.marks"].bind(now=now)
            if marks.rows:
                acks, dead, live, oldest, ack_rows = marks.rows[0]
        return Counters(
            at=self.from_time(at),
            numbers=numbers,
            groups=groups,
            inserted=inserted,
            deleted=deleted,
            tick_rate=drawn / seconds if seconds else None,
            acks=acks,
            dead_marks=dead,
            live_marks=live,
            oldest_open=oldest,
            ack_rows=ack_rows,
        )

    def io_bytes(self) -> Op[tuple[int, int] | None]:
        """WAL and data pages, of the whole server. None: this server does not say. Not in a transaction."""
        for name in ("topic.measure.io", "topic.measure.io_views"):
            try:
                found = yield self.sql[name].bind()
            except StoreError:
                continue
            return found.rows[0][0], found.rows[0][1]
        return None

    def fetch_probe(self, topic: TopicRow, shard: int) -> Op[None]:
        """What a reader does; for the time it takes."""
        yield self.log(topic.id)["topic.measure.fetch"].bind(shard=shard % topic.topic.shards, span=SPAN)

    def queue_numbers(self, topic: TopicRow) -> Op[int]:
        """How many numbers a queue tracked by rows has drawn."""
        found = yield self.log(topic.id)["topic.measure.queue"].bind()
        return int(found.rows[0][0])
