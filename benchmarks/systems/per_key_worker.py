"""The plain worker with a lock per key, as design documents write it: advisory locks on the next keys, status NEW to
PROCESSING, publish, status DONE. One connection per worker.
"""

from __future__ import annotations

import threading
import time
from operator import itemgetter
from types import MappingProxyType

import psycopg

from benchmarks.peers.python.peer import Peer, key, payload_bytes, serve

TABLE = """
CREATE TABLE outbox (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, entity_key text NOT NULL, payload bytea NOT NULL,
  status text NOT NULL DEFAULT 'NEW', locked_at timestamptz, worker_id text,
  created_at timestamptz NOT NULL DEFAULT clock_timestamp());
CREATE INDEX idx_outbox_new_entity ON outbox (entity_key) WHERE status = 'NEW';
CREATE INDEX idx_outbox_entity_status ON outbox (entity_key, status);
"""
CLAIM = """
WITH candidate_entities AS (
  SELECT DISTINCT entity_key FROM outbox WHERE status = 'NEW' ORDER BY entity_key LIMIT 200),
locked_entities AS (
  SELECT entity_key FROM candidate_entities
  WHERE pg_try_advisory_xact_lock(1, hashtext(entity_key)) LIMIT 50)
UPDATE outbox o SET status = 'PROCESSING', locked_at = now(), worker_id = %s
FROM locked_entities le WHERE o.entity_key = le.entity_key AND o.status = 'NEW'
RETURNING o.*
"""
DONE = "UPDATE outbox SET status = 'DONE' WHERE id = ANY(%s)"


class PerKeyWorker(Peer):
    version = f"psycopg {psycopg.__version__}"
    settings = MappingProxyType(
        {"driver": "psycopg 3", "candidate keys": 200, "keys per batch": 50, "claim and DONE": "a transaction each"}
    )

    async def setup(self, fresh: bool) -> None:
        self.connection = psycopg.connect(self.url, autocommit=True)
        if fresh:
            self.connection.execute(TABLE)

    async def hold(self, total: int, keys: int) -> None:
        self.held, connection = total, self.connection
        connection.execute("BEGIN")
        with connection.cursor().copy("COPY outbox (entity_key, payload) FROM STDIN (FORMAT binary)") as copy:
            copy.set_types(["text", "bytea"])
            for seq in range(total):
                copy.write_row((key(seq, keys), payload_bytes(seq)))
        connection.execute("ANALYZE")

    async def commit(self) -> float:
        self.connection.execute("COMMIT")
        return time.time()

    async def claims(self) -> list[float]:
        took, count = [], 0
        while True:
            began = time.perf_counter()
            rows = self.connection.execute(CLAIM, ("bench",), binary=True).fetchall()
            spent = time.perf_counter() - began
            if not rows:
                break
            took.append(spent * 1000)
            count += len(rows)
            self.connection.execute(DONE, ([row[0] for row in rows],))
        if count != self.held:
            raise RuntimeError(f"claimed {count} of {self.held} rows")
        return took

    async def start(self) -> None:
        self.halt = threading.Event()
        self.thread = threading.Thread(target=self._work, daemon=True)
        self.thread.start()

    async def stop(self) -> None:
        self.halt.set()
        self.thread.join(10)

    def _work(self) -> None:
        worker = self.connection
        name = f"worker-{worker.info.backend_pid}"
        while not self.halt.is_set():
            rows = worker.execute(CLAIM, (name,), binary=True).fetchall()
            if not rows:
                time.sleep(0.01)
                continue
            rows.sort(key=itemgetter(1, 0))  # the statement promises no order within a key
            self.meter.many([row[2] for row in rows])
            worker.execute(DONE, ([row[0] for row in rows],))


if __name__ == "__main__":
    serve(PerKeyWorker())
