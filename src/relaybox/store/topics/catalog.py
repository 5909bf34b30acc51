"""Which topics there are. Making one makes its tables in the same transaction; none is half there."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from ...errors import ConfigError, InUse, StoreBusy
from ...op import Op
from ...topic import Topic
from ..outbox.postgres import PostgresStore
from ..schema import Migration
from . import PARTS, TopicRow
from .marks import MarkOps
from .partitions import PartitionOps

_FIXED = ("semantics", "tracking", "shards", "spread")
_COLUMNS = (
    "name",
    "semantics",
    "tracking",
    "shards",
    "block_writes",
    "retention",
    "zero_retention",
    "max_retention",
    "zombie_ttl",
    "partitions",
)
_OPTIONS = ("fetch_batch", "cleanup_batch", "spread")
_DURATIONS = ("heartbeat_interval", "heartbeat_timeout")
_INDEX = re.compile(r"CREATE (?:UNIQUE )?INDEX (\S+) ON")


class CatalogOps(MarkOps, PartitionOps):
    def configure(self, topic: Topic, now: datetime | None) -> Op[TopicRow]:
        """Create, with its log, or change what may be changed. Refuses what needs `move`."""
        added = yield self.sql["topic.catalog.add"].bind(**_columns(topic), now=now)
        if not added.rows:
            yield from self._change(topic, now)
        row = yield from self.topic(topic.name)
        assert row is not None
        if added.rows:
            yield from self._make(row)
            if topic.partitions != "none" and topic.tracking != "rows":
                yield from self.ahead(row, now)  # of one that is in use the maintenance makes them, without a wait
        return row

    def _make(self, topic: TopicRow) -> Op[None]:
        tracking = topic.topic.tracking
        taken = yield self.log(topic.id)["topic.log.taken"].bind()
        if taken.rows:
            raise ConfigError(
                f"topic {topic.topic.name!r} needs the table name {taken.rows[0][0]}, which something else bears; "
                "rename that table, or give the outbox another name"
            )
        if tracking == "rows":
            yield from self.queue(topic.id).migrate()
            yield self.sql["topic.catalog.named"].bind(topic=topic.id, relation=self.queue(topic.id).tables.event)
            return
        yield from self.make_log(topic)
        yield self.sql["topic.catalog.named"].bind(topic=topic.id, relation=self.tables.part(f"log_{topic.id}"))
        if tracking != "offset":
            yield from self.make_marks(topic.id, tracking)

    def make_log(self, topic: TopicRow) -> Op[None]:
        log = self.log(topic.id)
        yield log["topic.log.create"].bind()
        yield log["topic.log.sequence"].bind()
        yield log["topic.log.by_shard"].bind()
        yield log["topic.log.by_xid"].bind()
        yield from self.make_tables(topic, "topic.log.rest", self.tables.part(f"log_{topic.id}_rest"))
        yield self.sql["topic.catalog.begin"].bind(topic=topic.id)

    def drop_queue(self, topic_id: int) -> Op[None]:
        log = self.log(topic_id)
        yield log["topic.log.drop_view"].bind()
        yield log["topic.log.drop_queue"].bind()
        yield log["topic.log.drop_sequence"].bind()
        yield log["topic.log.drop_hash"].bind()

    def _change(self, topic: Topic, now: datetime | None) -> Op[None]:
        yield self.sql["topic.catalog.lock"].bind(name=topic.name)
        row = yield from self.topic(topic.name)
        if row is None:
            raise StoreBusy(f"topic {topic.name!r} was dropped a moment ago; configure it again")
        for name in _FIXED:
            was, wanted = getattr(row.topic, name), getattr(topic, name)
            if was != wanted:
                movable = name in ("semantics", "tracking")
                how = "Use move() (`relaybox topics move`)" if movable else "Make another topic"
                raise ConfigError(
                    f"topic {topic.name!r} has {name} {was!r} and may hold events; configure() cannot make it "
                    f"{wanted!r}. {how}"
                )
        if row.topic != topic:
            yield self.sql["topic.catalog.change"].bind(**_columns(topic), topic=row.id, now=now)

    def topic(self, name: str) -> Op[TopicRow | None]:
        found = yield from self.topics([name])
        return found[0] if found else None

    def topics(self, names: Sequence[str] | None = None) -> Op[list[TopicRow]]:
        result = yield self.sql["topic.catalog.find"].bind(names=None if names is None else list(names))
        return [self._row(row) for row in result.rows]

    def drop(self, name: str) -> Op[bool]:
        """Refuses while a group reads it that is not cancelled, and while a queue has unfinished events."""
        locked = yield self.sql["topic.catalog.lock"].bind(name=name)
        row = yield from self.topic(name)
        if not locked.rows or row is None:
            return False
        readers = yield self.sql["topic.catalog.readers"].bind(topic=row.id)
        if readers.rows and row.topic.tracking != "rows":  # of which is asked whether anything is left
            names = ", ".join(f"{group} ({state})" for group, state in readers.rows)
            raise InUse(
                "topic", name, f"topic {name!r} is read by the group(s) {names}; cancel them before you drop it"
            )
        if row.moving is not None:
            raise InUse(
                "topic", name, f"topic {name!r} is being moved; finish or cancel that before you drop the topic"
            )
        if row.topic.tracking == "rows":
            status = yield from self.queue(row.id).status(None)
            left = status.due + status.delayed + status.claimed + status.retrying + status.dead
            if left:
                raise InUse(
                    "topic", name, f"topic {name!r} has {left} unfinished or dead event(s); deal with them first"
                )
            yield from self.drop_queue(row.id)
        yield self.log(row.id)["topic.log.drop"].bind()
        yield self.sql["topic.catalog.forget_groups"].bind(topic=row.id)
        yield self.sql["topic.catalog.forget"].bind(topic=row.id)
        return True

    def migrate(self) -> Op[list[Migration]]:
        """Migrates the topics and the queues that are outboxes of their own."""
        queues = yield from self._queues_there()
        done = yield from super().migrate()
        for queue in queues:
            done += yield from queue.migrate()
        return done

    def plan(self) -> Op[list[Migration]]:
        todo = yield from super().plan()
        for queue in (yield from self._queues_there()):
            todo += yield from queue.plan()
        return todo

    def make_fair(self) -> Op[list[Migration]]:
        """What fair claims from these queues need."""
        done = list[Migration]()
        for queue in (yield from self._queues_there()):
            done += yield from queue.make_fair()
        return done

    def fair_plan(self) -> Op[list[Migration]]:
        todo = list[Migration]()
        for queue in (yield from self._queues_there()):
            todo += yield from queue.fair_plan()
        return todo

    def verify_fair(self) -> Op[None]:
        for queue in (yield from self._queues_there()):
            yield from queue.verify_fair()

    def _queues_there(self) -> Op[list[PostgresStore]]:
        if not (yield from self.applied()):
            return []
        there = yield self.sql["topic.catalog.queues"].bind()
        return [self.queue(row[0]) for row in there.rows]

    def drift(self) -> Op[list[str]]:
        """What differs, also in the tables that each topic has."""
        expected, limits = self.expected_columns(), list[str]()
        indexes = {match.strip('"') for m in self.migrations() for match in _INDEX.findall(m.sql)}
        for row in (yield from self.topics()):
            if row.topic.tracking != "rows":
                log = self.log(row.id)
                table = self.tables.part(f"log_{row.id}")
                columns = re.findall(r"^\s+([a-z_]+)\s+[a-z]", log["topic.log.create"].text, re.MULTILINE)
                expected |= {(table, column) for column in columns}
                indexes |= {f"{table}_shard", f"{table}_xid"}
                limits.append(f"{table}_limits")
        tables = sorted({table for table, _ in expected} | {self.tables.part(part) for part in PARTS})
        there = yield self.sql["topic.catalog.columns"].bind(tables=tables)
        lines = [f"{table}.{column} is missing" for table, column in sorted(expected - set(map(tuple, there.rows)))]
        have = yield self.sql["topic.catalog.indexes"].bind(tables=tables)
        lines += [f"index {name} is missing" for name in sorted(indexes - {row[1] for row in have.rows})]
        return lines or (yield from self.missing_limits(limits))

    def _row(self, row: Sequence[Any]) -> TopicRow:
        topic_id, version, active, required, audience, moving, created_at, updated_at, *columns, options = row
        values = dict(zip(_COLUMNS, columns, strict=True)) | _from_json(options)
        return TopicRow(
            topic_id,
            version,
            Topic(**values),
            active,
            required,
            tuple(audience),
            json.loads(moving) if moving else None,
            self.from_time(created_at),
            self.from_time(updated_at),
        )


def _columns(topic: Topic) -> dict[str, Any]:
    options = {name: getattr(topic, name) for name in _OPTIONS}
    options |= {name: getattr(topic, name).total_seconds() for name in _DURATIONS}
    return {name: getattr(topic, name) for name in _COLUMNS} | {"options": json.dumps(options)}


def _from_json(text: str) -> dict[str, Any]:
    """Whatever a release before or after this one did not know or knows no more is left out."""
    options: dict[str, Any] = json.loads(text)
    durations = {name: timedelta(seconds=options[name]) for name in _DURATIONS if name in options}
    return {name: options[name] for name in _OPTIONS if name in options} | durations
