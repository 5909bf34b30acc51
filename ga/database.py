"""A clean database per test, and questions to it."""

from __future__ import annotations

from typing import Any

import psycopg

from relaybox import Outbox
from relaybox.testing.servers import PostgresServer
from relaybox.topic import Topic

LARGE = 10 << 20  # bytes; the percentage of dead rows of a smaller table says nothing


class Database:
    def __init__(self, server: PostgresServer) -> None:
        self.url = server.create_database()
        with Outbox(self.url) as outbox:
            outbox.migrate()

    def topic(self, topic: Topic) -> int:
        with Outbox(self.url) as outbox:
            return outbox.topics.configure(topic).id

    def scale_vacuum(self, factor: float) -> None:
        """The amounts of dead rows that our tables let vacuum wait for are amounts, so they are scaled too."""
        found = self.rows(
            "SELECT c.relname, o.option_name, o.option_value FROM pg_class c, pg_options_to_table(c.reloptions) o "
            "WHERE c.relkind = 'r' AND o.option_name LIKE 'autovacuum%%threshold'"
        )
        for table, option, value in found:
            self.rows(f'ALTER TABLE "{table}" SET ({option} = {max(50, int(int(value) * factor))})')

    def rows(self, text: str, *values: object) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(text, values)  # type: ignore[call-overload]
            return cursor.fetchall() if cursor.description else []

    def one(self, text: str, *values: object) -> Any:
        return self.rows(text, *values)[0][0]

    def wal(self) -> int:
        return int(self.one("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn"))

    def size(self) -> int:
        return int(self.one("SELECT pg_database_size(current_database())"))

    def stored(self, topic_id: int) -> int:
        return int(self.one(f"SELECT count(*) FROM outbox_event_log_{topic_id}"))

    def bloat(self) -> dict[str, float]:
        """Dead rows in per cent, of the large tables."""
        found = self.rows(
            "SELECT relname, 100.0 * n_dead_tup / greatest(n_live_tup + n_dead_tup, 1) FROM pg_stat_user_tables "
            "WHERE pg_total_relation_size(relid) > %s",
            LARGE,
        )
        return {name: float(dead) for name, dead in found}
