"""What every mixin stands on: the queries, and those of one topic's log compiled when first used."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC
from typing import Any

from ...op import Query
from ..dialect import POSTGRES
from ..outbox.postgres import PostgresStore
from ..queries import Block, fill, load, texts
from ..schema import Schema
from . import Row, TopicTables

_LOG_SLOTS = ("{log", "{mark", "{ack", "{queue_", "{writable}")

# What the statements of sql/write.sql have in common. A batch is stored shard by shard, as it will be read: else each
# event of a range would lie on another page.
_WORDS = {
    "writable": """x AS MATERIALIZED (SELECT pg_current_xact_id() AS xid),
t AS MATERIALIZED (
  SELECT x.xid, t.required, t.audience FROM x, {topic} t
  WHERE t.id = :topic AND t.version = :version
    AND NOT (t.block_writes AND t.semantics = 'pub_sub' AND t.active = 0))""",
    "batch": """d AS MATERIALIZED (
  SELECT nextval('{log_seq}') AS seq, coalesce(:now, clock_timestamp()) AS created_at, o.*
  FROM (SELECT t.xid, u.* FROM t, unnest(
          :shards::smallint[], :event_ids::text[], :event_types::text[], :aggregate_types::text[],
          :aggregate_ids::text[], :tenant_ids::text[], :content_types::text[], :payloads::bytea[], :headers::text[],
          :occurred_ats::timestamptz[])
        WITH ORDINALITY AS u(shard, event_id, event_type, aggregate_type, aggregate_id, tenant_id, content_type,
                             payload, headers, occurred_at, ord)
        ORDER BY ord) o)""",
    "inserted": """e AS (
  INSERT INTO {log} (seq, xid, shard, event_id, event_type, aggregate_type, aggregate_id, tenant_id, content_type,
                     payload, headers, occurred_at, created_at)
  SELECT seq, xid, shard, event_id, event_type, aggregate_type, aggregate_id, tenant_id, content_type,
         payload, headers, occurred_at, created_at FROM d
  ORDER BY shard, seq)""",
}

# Where each group that is not cancelled stands, and what it has taken.
PLACES = """place AS MATERIALIZED (
  SELECT g.id, g.state, g.first_seq, g.since, c.shard, c.seq, b.snapshot AS base, k.snapshot AS target
  FROM {group} g JOIN {cursor} c ON c.group_id = g.id
  LEFT JOIN {tick} b ON b.topic_id = g.topic_id AND b.tick = c.base
  LEFT JOIN {tick} k ON k.topic_id = g.topic_id AND k.tick = c.target
  WHERE g.topic_id = :topic AND g.state IN ({promised_states})),
taken AS MATERIALIZED (
  SELECT r.group_id, r.shard, r.after, r.upto, r.finished, b.snapshot AS base, k.snapshot AS target
  FROM {group} g JOIN {range} r ON r.group_id = g.id
  JOIN {tick} b ON b.topic_id = g.topic_id AND b.tick = r.base
  JOIN {tick} k ON k.topic_id = g.topic_id AND k.tick = r.target
  WHERE g.topic_id = :topic AND g.state IN ({promised_states}))"""

# Whether the group at place `q` was still to have event `e`. What it parked it has: that is a copy.
UNREAD = """e.seq >= q.first_seq AND (q.since IS NULL OR e.created_at >= q.since) AND (
    (NOT coalesce(pg_visible_in_snapshot(e.xid, q.base), false)
     AND NOT coalesce(e.seq <= q.seq AND pg_visible_in_snapshot(e.xid, q.target), false))
    OR EXISTS (SELECT 1 FROM taken r
               WHERE r.group_id = q.id AND r.shard = e.shard AND e.seq > r.after AND e.seq <= r.upto
                 AND pg_visible_in_snapshot(e.xid, r.target) AND NOT pg_visible_in_snapshot(e.xid, r.base)
                 AND NOT e.seq = ANY(coalesce(r.finished, '{}'))))"""


class LogQueries(Schema):
    _dialect = POSTGRES
    _product = "topics"
    tables: TopicTables

    def __init__(self, tables: TopicTables) -> None:
        super().__init__(tables)
        self._logs: dict[int, dict[str, Query]] = {}
        self._queues: dict[int, PostgresStore] = {}

    def queries(self) -> dict[str, Block]:
        return {name: block for name, block in super().queries().items() if not _of_a_log(block[0])}

    def log(self, topic_id: int) -> dict[str, Query]:
        """The queries that name a topic's own tables."""
        found = self._logs.get(topic_id)
        if found is None:
            names = self.slots(**self.tables.log(topic_id, self.quote))
            names |= {word: fill(text, names) for word, text in _WORDS.items()}
            known = texts(self._product, self.dialect).queries.items()
            of_logs = {name: block for name, block in known if _of_a_log(block[0])}
            found = self._logs[topic_id] = load(of_logs, names)
        return found

    def queue(self, topic_id: int) -> PostgresStore:
        """The outbox of its own that a queue tracked by rows is."""
        found = self._queues.get(topic_id)
        if found is None:
            found = self._queues[topic_id] = PostgresStore(self.tables.queue(topic_id))
        return found

    def event_rows(self, rows: Sequence[Any]) -> Sequence[Row]:
        """Times in UTC: our own sessions answer so; those behind a pooler, or of a caller's engine, may not."""
        if not rows or rows[0][9].tzinfo is UTC:
            return rows
        return [(*row[:9], self.from_time(row[9]), None, self.from_time(row[11]), *row[12:]) for row in rows]


def _of_a_log(text: str) -> bool:
    return any(slot in text for slot in _LOG_SLOTS)
