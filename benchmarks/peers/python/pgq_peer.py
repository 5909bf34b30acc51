"""PgQ, whose Debian package is unpacked in a folder. `python -m …pgq_peer FOLDER [hand | CONSUMERS]`: read by its own
consumer framework; or by a loop over its SQL written here, event by event, or by so many consumers in whole batches.

Only pgq.insert_event is written in C, for one version of PostgreSQL; the package has it in SQL as well, for all others.
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from tempfile import NamedTemporaryFile
from types import MappingProxyType
from typing import Any

import pgq
import psycopg

from benchmarks.peers.python.peer import BUSINESS_NOTE, BUSINESS_TABLE, Peer, payload_bytes, serve

QUEUE, TYPE = "bench", "order.placed"
TICKER_SECONDS = 0.01
QUICK = {"ticker_max_count": "1", "ticker_max_lag": "0", "ticker_idle_period": "0"}


class PgqPeer(Peer):
    """pgq.insert_event, and a reader."""

    sync_producer = True
    read = "pgq.Consumer.process_event, its defaults"

    def __init__(self, package: Path, consumers: int = 1) -> None:
        super().__init__()
        self._package = package
        self._consumers = [f"reader{number}" for number in range(consumers)]

    async def setup(self, fresh: bool) -> None:
        self.connection = psycopg.connect(self.url, autocommit=True)
        sql, insert = self._source()
        if fresh:
            self.connection.execute(sql.encode())
            self.connection.execute("SELECT pgq.create_queue(%s)", (QUEUE,))
            for consumer in self._consumers:
                self.connection.execute("SELECT pgq.register_consumer(%s, %s)", (QUEUE, consumer))
            self.connection.execute(BUSINESS_TABLE)
            if self.workload.startswith("latency"):
                for name, value in QUICK.items():
                    self.connection.execute("SELECT pgq.set_queue_config(%s, %s, %s)", (QUEUE, name, value))
        (package,) = self._package.glob("*.deb")
        self.version = package.name.split("_")[1]
        self.settings = MappingProxyType(
            {
                "driver": "psycopg 3; the framework psycopg 2",
                "insert_event": insert,
                "read": self.read,
                "ticker": f"drain: at each batched write; latency: every {TICKER_SECONDS * 1000:.0f} ms, as the reader",
                "payload": "JSON text",
            }
        )

    def _source(self) -> tuple[str, str]:
        """Its SQL for this server, and what insert_event is made of there."""
        major = str(self.connection.info.server_version // 10_000)
        (home,) = self._package.glob("usr/share/postgresql/*/contrib")
        library = self._package / "usr" / "lib" / "postgresql" / major / "lib"
        if library.is_dir():
            return (home / "pgq.sql").read_text().replace("$libdir", str(library)), "C"
        return (home / "pgq_pl_only.sql").read_text(), "PL/pgSQL"

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
                body = payload_bytes(seq).decode()
                connection.execute("SELECT pgq.insert_event(%s, %s, %s)", (QUEUE, TYPE, body))

    async def write_batch(self, first: int, count: int) -> None:
        bodies = [payload_bytes(seq).decode() for seq in range(first, first + count)]
        insert = "SELECT count(pgq.insert_event(%s, %s, body)) FROM unnest(%s::text[]) AS body"
        with self.connection.transaction():
            self.connection.execute(insert, (QUEUE, TYPE, bodies))
        self.connection.execute("SELECT pgq.ticker(%s)", (QUEUE,))

    async def start(self) -> None:
        self.halt = threading.Event()
        self.threads = [threading.Thread(target=self._work, daemon=True)]
        if self.workload.startswith("latency"):
            self.threads.append(threading.Thread(target=self._tick, daemon=True))
        for thread in self.threads:
            thread.start()

    async def stop(self) -> None:
        self.halt.set()
        for thread in self.threads:
            thread.join(10)

    def _tick(self) -> None:
        with psycopg.connect(self.url, autocommit=True) as ticker:
            while not self.halt.is_set():
                ticker.execute("SELECT pgq.ticker(%s)", (QUEUE,))
                time.sleep(TICKER_SECONDS)

    def _work(self) -> None:
        meter = self.meter

        class Reader(pgq.Consumer):  # type: ignore[misc]
            def process_event(self, db: Any, event: Any) -> None:
                meter.one(event.data)

        with NamedTemporaryFile("w", suffix=".ini") as config:
            settings = {"job_name": self._consumers[0], "db": self.url.replace("%", "%%"), "queue_name": QUEUE}
            config.write("\n".join(["[bench]", *(f"{name} = {value}" for name, value in settings.items())]))
            config.flush()
            reader = Reader("bench", "db", [config.name])
            while not self.halt.is_set():
                if not reader.work():  # what start() calls, which rests for longer
                    time.sleep(TICKER_SECONDS)


class ByHand(PgqPeer):
    """A loop of pgq.next_batch, get_batch_events and finish_batch, of each event no more than its data."""

    read = "next_batch, get_batch_events, finish_batch"

    def _work(self) -> None:
        with psycopg.connect(self.url, autocommit=True) as reader:
            while not self.halt.is_set():
                if not sum([self._read(reader, consumer) for consumer in self._consumers]):
                    time.sleep(TICKER_SECONDS)

    def _read(self, reader: psycopg.Connection, consumer: str) -> bool:
        """One batch, if there is one."""
        batch = reader.execute("SELECT pgq.next_batch(%s, %s)", (QUEUE, consumer)).fetchone()
        if batch is None or batch[0] is None:
            return False
        self._handle([row[1] for row in reader.execute("SELECT ev_id, ev_data FROM pgq.get_batch_events(%s)", batch)])
        reader.execute("SELECT pgq.finish_batch(%s)", batch)
        return True

    def _handle(self, bodies: list[str]) -> None:
        for body in bodies:
            self.meter.one(body)


class InBatches(ByHand):
    def _handle(self, bodies: list[str]) -> None:
        self.meter.many(bodies)


if __name__ == "__main__":
    folder, how = Path(sys.argv[1]), sys.argv[2:]
    if not how:
        serve(PgqPeer(folder))
    elif how == ["hand"]:
        serve(ByHand(folder))
    else:
        serve(InBatches(folder, int(how[0])))
