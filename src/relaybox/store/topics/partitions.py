"""A log's partitions: made ahead of time, dropped when everybody has passed them. No insert waits for either longer
than the patience given; see docs/decisions/012-partitions.md."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta

from ...op import Op, Query, Statement
from ...topic import Partitions
from . import TopicRow
from .cleanup import CleanupOps
from .maintenance import Part, PartVerdict

AHEAD = {"day": 7, "month": 2}  # periods that are there before they begin
SPREAD = "PARTITION BY RANGE (shard)"
_FORMAT = {"day": "%Y%m%d", "month": "%Y%m"}


def period(strategy: Partitions, moment: datetime) -> tuple[datetime, datetime]:
    """The day or month (UTC) of a moment: its beginning and its end."""
    day = moment.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    if strategy == "day":
        return day, day + timedelta(days=1)
    first = day.replace(day=1)
    return first, (first + timedelta(days=32)).replace(day=1)


def coming(strategy: Partitions, moment: datetime, count: int) -> Iterator[tuple[datetime, datetime]]:
    """The period of a moment and `count` after it."""
    for _ in range(count + 1):
        start, end = period(strategy, moment)
        yield start, end
        moment = end


class PartitionOps(CleanupOps):
    def partitions(self, topic: TopicRow) -> Op[list[Part]]:
        found = yield self.log(topic.id)["topic.partition.list"].bind()
        return [self._named(row[0]) for row in found.rows]

    def _named(self, name: str) -> Part:
        digits = name.rpartition("_p")[2]
        strategy: Partitions = "day" if len(digits) == 8 else "month"
        start, end = period(strategy, datetime.strptime(digits, _FORMAT[strategy]).replace(tzinfo=UTC))
        return Part(name, start, end)

    def missing(self, topic: TopicRow, now: datetime | None) -> Op[list[Part]]:
        strategy = topic.topic.partitions
        if strategy == "none":
            return []
        moment = now
        if moment is None:
            asked = yield self.sql["topic.term.clock"].bind()
            moment = asked.rows[0][0]
        assert moment is not None
        there = yield from self.partitions(topic)
        log = self.tables.log(topic.id, self.quote)["log_name"]
        return [
            Part(f"{log}_p{start.strftime(_FORMAT[strategy])}", start, end)
            for start, end in coming(strategy, moment, AHEAD[strategy])
            if not any(start < part.end and part.start < end for part in there)
        ]

    def ahead(self, topic: TopicRow, now: datetime | None) -> Op[int]:
        """Make what is missing for this and the next periods, as far as it needs no waiting. Needs a transaction."""
        made = 0
        for part in (yield from self.missing(topic, now)):
            made += yield from self.make_part(topic, part)
        return made

    def make_part(self, topic: TopicRow, part: Part, patience: timedelta | None = None) -> Op[bool]:
        """False: the rest has events of that time already. They stay there, and are deleted by age."""
        if patience is not None:
            yield self._patience(patience)
        taken = yield self._of(topic, part, "topic.partition.taken").bind()
        if taken.rows[0][0]:
            return False
        yield from self.make_tables(topic, "topic.partition.create", part.name)
        yield self._of(topic, part, "topic.partition.attach").bind()
        return True

    def make_tables(self, topic: TopicRow, create: str, name: str) -> Op[None]:
        """A partition; of a log that is spread, with a table for each so many shards."""
        part, spread, shards = self._quoted(name), topic.topic.spread, topic.topic.shards
        yield self.later(topic, create, log_part=part, log_spread=SPREAD if spread > 1 else "").bind()
        for n in range(spread if spread > 1 else 0):
            bounds = {"log_from": f"{shards * n // spread}", "log_to": f"{shards * (n + 1) // spread}"}
            table = self._quoted(f"{name}_{n}")
            yield self.later(topic, "topic.partition.table", log_part=part, log_table=table, **bounds).bind()

    def verdict(self, topic: TopicRow, part: Part, now: datetime | None) -> Op[PartVerdict]:
        found = yield self._of(topic, part, "topic.partition.verdict").bind(topic=topic.id, now=now)
        aged, forced, unread = found.rows[0]
        if not unread and topic.topic.tracking in ("bitmap", "acks"):
            open_ = yield self._of(topic, part, "topic.partition.incomplete").bind()
            unread = open_.rows[0][0]
        return PartVerdict(aged, forced, unread)

    def unmark(self, topic: TopicRow, part: Part, shard: int, after: int, limit: int) -> Op[tuple[int, int]]:
        words = self.log_slots(topic.id)[f"unmark_{topic.topic.tracking}"]
        unmark = self._of(topic, part, "topic.partition.unmark", log_unmark=words)
        page = yield unmark.bind(shard=shard, after=after, limit=limit)
        return page.rows[0][0], page.rows[0][1]

    def lost_with(self, topic: TopicRow, part: Part, verdict: PartVerdict) -> Op[dict[int, int]]:
        """How many events of the partition each group was still to have, of those that cannot keep it."""
        found = yield self._of(topic, part, "topic.partition.lost").bind(topic=topic.id, forced=verdict.forced)
        return {row[0]: row[1] for row in found.rows}

    def drop_part(
        self, topic: TopicRow, part: Part, lost: Mapping[int, int], patience: timedelta, now: datetime | None
    ) -> Op[tuple[PartVerdict, dict[str, int]] | None]:
        """Drops it if it still may go, and counts what groups lose by it, by name. None: the topic is busy;
        StoreBusy too. Needs a transaction of its own."""
        locked = yield self.sql["topic.cleanup.lock"].bind(topic=topic.id)
        if not locked.rows:
            return None
        yield self._patience(patience)
        yield self._of(topic, part, "topic.partition.freeze").bind()
        verdict = yield from self.verdict(topic, part, now)
        if not verdict.droppable:
            return verdict, {}
        yield self._of(topic, part, "topic.partition.drop").bind()
        return verdict, (yield from self.count_lost(lost))

    def _patience(self, patience: timedelta) -> Statement:
        return self.sql["topic.partition.patience"].bind(patience=f"{patience.total_seconds() * 1000:.0f}ms")

    def _of(self, topic: TopicRow, part: Part, name: str, **more: str) -> Query:
        """A query about one partition. Names and bounds are made from numbers only."""
        return self.later(
            topic,
            name,
            log_part=self._quoted(part.name),
            log_from=part.start.isoformat(),
            log_to=part.end.isoformat(),
            log_nobody="'{}'" if topic.topic.tracking == "acks" else "0",
            **more,
        )

    def _quoted(self, name: str) -> str:
        return f'"{self.tables.schema}"."{name}"' if self.tables.schema else f'"{name}"'
