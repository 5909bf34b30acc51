"""pgmq: the SQL its PyPI package carries, called over psycopg."""

from __future__ import annotations

import threading
from importlib import resources
from importlib.metadata import version
from types import MappingProxyType

import psycopg
from psycopg.types.json import Jsonb

from benchmarks.peers.python.peer import BUSINESS_NOTE, BUSINESS_TABLE, Peer, payload, payload_bytes, serve

QUEUE = "bench"
BATCH = 1_000
LEASE_SECONDS = 30


class PgmqPeer(Peer):
    """pgmq.send / send_batch; a loop of pgmq.read and pgmq.delete with arrays."""

    sync_producer = True
    settings = MappingProxyType(
        {
            "driver": "psycopg 3",
            "read": f"pgmq.read(qty {BATCH}, vt {LEASE_SECONDS})",
            "acknowledge": "pgmq.delete(msg_ids[])",
            "wake-up": "drain: none; latency: enable_notify_insert(throttle 0) and LISTEN",
            "batched write": "pgmq.send_batch",
            "payload": "decoded JSON",
        }
    )

    async def setup(self, fresh: bool) -> None:
        sql = resources.files("pgmq").joinpath("sql")
        self.version = f"{sql.joinpath('VERSION').read_text().strip()} (PyPI pgmq {version('pgmq')})"
        self.connection = psycopg.connect(self.url, autocommit=True)
        if fresh:
            self.connection.execute(sql.joinpath("pgmq.sql").read_bytes())
            self.connection.execute("SELECT pgmq.create(%s)", (QUEUE,))
            self.connection.execute(BUSINESS_TABLE)
            if self.workload.startswith("latency"):
                self.connection.execute("SELECT pgmq.enable_notify_insert(%s, 0)", (QUEUE,))

    async def write_block(self, first: int, count: int, event: bool) -> None:
        for seq in range(first, first + count):
            self._commit(seq, event)

    def commit_one_sync(self, seq: int) -> None:
        self._commit(seq, True)

    def _commit(self, seq: int, event: bool) -> None:
        connection = self.connection
        with connection.transaction():
            connection.execute("INSERT INTO business (note) VALUES (%s)", (BUSINESS_NOTE,))
            if event:
                connection.execute("SELECT pgmq.send(%s, %s)", (QUEUE, Jsonb(payload(seq))))

    async def write_batch(self, first: int, count: int) -> None:
        bodies = [payload_bytes(seq).decode() for seq in range(first, first + count)]
        with self.connection.transaction():
            self.connection.execute("SELECT pgmq.send_batch(%s, %s::jsonb[])", (QUEUE, bodies))

    async def start(self) -> None:
        self.halt = threading.Event()
        self.ready = threading.Event()
        self.thread = threading.Thread(target=self._work, daemon=True)
        self.thread.start()
        self.ready.wait(10)

    async def stop(self) -> None:
        self.halt.set()
        self.thread.join(10)

    def _work(self) -> None:
        with psycopg.connect(self.url, autocommit=True) as worker:
            if self.workload.startswith("latency"):
                worker.execute(f'LISTEN "pgmq.q_{QUEUE}.INSERT"')
            self.ready.set()
            while not self.halt.is_set():
                rows = worker.execute(
                    "SELECT msg_id, message FROM pgmq.read(%s, %s, %s)", (QUEUE, LEASE_SECONDS, BATCH)
                ).fetchall()
                for _, message in rows:
                    self.meter.one(message)
                if rows:
                    worker.execute("SELECT pgmq.delete(%s, %s::bigint[])", (QUEUE, [row[0] for row in rows]))
                else:
                    for _ in worker.notifies(timeout=0.05, stop_after=1):
                        pass


if __name__ == "__main__":
    serve(PgmqPeer())
