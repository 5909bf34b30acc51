"""What every mixin stands on: the queries, and those of one topic's log compiled when first used."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC
from typing import Any

from ...op import Query
from ..dialect import POSTGRES
from ..outbox.postgres import PostgresStore
from ..queries import Block, Names, fill, load, texts
from ..schema import Schema
from . import Row, TopicRow, TopicTables

_LOG_SLOTS = ("{log", "{mark", "{ack", "{queue_", "{writable}")


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
            known = texts(self._product, self.dialect).queries.items()
            of_logs = {name: block for name, block in known if _of_a_log(block[0])}
            found = self._logs[topic_id] = load(of_logs, self.log_slots(topic_id), self._dialect.finish)
        return found

    def log_slots(self, topic_id: int) -> Names:
        return self.slots(**self.tables.log(topic_id, self.quote))

    def later(self, topic: TopicRow, name: str, **words: str) -> Query:
        """A query of a log with the slots filled that depend on the topic's state, or on what is at hand."""
        query = self.log(topic.id)[name]
        return Query(name, self._dialect.finish(fill(query.text, words)), query.answer)

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
