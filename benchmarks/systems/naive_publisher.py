"""The usual hand-written publisher: lock the oldest unpublished rows, publish, flush, mark, 50 at a time."""

from __future__ import annotations

import threading
import time
from functools import partial
from types import MappingProxyType

import confluent_kafka
import psycopg

from benchmarks.peers.python.peer import Peer, key, payload_bytes, serve

BATCH = 50
TABLE = """
CREATE TABLE outbox_events (
  id uuid PRIMARY KEY DEFAULT gen_random_uuid(), event_type text NOT NULL, aggregate_type text NOT NULL,
  aggregate_id text NOT NULL, payload_json bytea NOT NULL, created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  published_at timestamptz, attempt_count integer NOT NULL DEFAULT 0, last_error text);
CREATE INDEX ON outbox_events (created_at) WHERE published_at IS NULL;
"""
NEXT = """
SELECT id::text, event_type, aggregate_type, aggregate_id, payload_json, created_at FROM outbox_events
WHERE published_at IS NULL AND attempt_count < 25
ORDER BY created_at FOR UPDATE SKIP LOCKED LIMIT %s
"""
PUBLISHED = "UPDATE outbox_events SET published_at = now() WHERE id = ANY(%s::uuid[])"


class NaivePublisher(Peer):
    version = f"psycopg {psycopg.__version__}, confluent-kafka {confluent_kafka.version()}"
    settings = MappingProxyType(
        {
            "driver": "psycopg 3",
            "batch": BATCH,
            "producer": "idempotent, acks all",
            "transaction": "SELECT … FOR UPDATE SKIP LOCKED, publish, flush, UPDATE published_at",
        }
    )

    async def setup(self, fresh: bool) -> None:
        self.connection = psycopg.connect(self.url, autocommit=True)
        if fresh:
            self.connection.execute(TABLE)

    async def hold(self, total: int, keys: int) -> None:
        connection = self.connection
        connection.execute("BEGIN")
        columns = "event_type, aggregate_type, aggregate_id, payload_json"
        with connection.cursor().copy(f"COPY outbox_events ({columns}) FROM STDIN (FORMAT binary)") as copy:
            copy.set_types(["text", "text", "text", "bytea"])
            for seq in range(total):
                copy.write_row(("order.placed", "order", key(seq, keys), payload_bytes(seq)))
        connection.execute("ANALYZE")

    async def commit(self) -> float:
        self.connection.execute("COMMIT")
        return time.time()

    async def start(self) -> None:
        self.producer = confluent_kafka.Producer(
            {"bootstrap.servers": self.options["bootstrap"], "acks": "all", "enable.idempotence": True}
        )
        self.producer.list_topics(self.options["topic"], timeout=10)
        self.halt = threading.Event()
        self.thread = threading.Thread(target=self._work, daemon=True)
        self.thread.start()

    async def stop(self) -> None:
        self.halt.set()
        self.thread.join(10)

    def _work(self) -> None:
        while not self.halt.is_set():
            if not self._publish_batch():
                time.sleep(0.01)

    def _publish_batch(self) -> int:
        published: list[str] = []
        with self.connection.transaction():
            rows = self.connection.execute(NEXT, (BATCH,), binary=True).fetchall()
            for event_id, event_type, aggregate_type, aggregate_id, body, created_at in rows:
                headers: dict[str, str | bytes | None] = {
                    "event_id": event_id,
                    "event_type": event_type,
                    "aggregate_type": aggregate_type,
                    "aggregate_id": aggregate_id,
                    "created_at": created_at.isoformat(),
                }
                self.producer.produce(
                    self.options["topic"],
                    body,
                    aggregate_id,
                    headers=headers,
                    on_delivery=partial(_reported, published, event_id),
                )
            self.producer.flush()
            if rows:
                self.connection.execute(PUBLISHED, (published,))
        return len(rows)


def _reported(published: list[str], event_id: str, error: object, _: object) -> None:
    if error is None:
        published.append(event_id)


if __name__ == "__main__":
    serve(NaivePublisher())
