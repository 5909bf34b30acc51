"""Memory while a million rows of a delta are written and read:  .venv/bin/python scripts/feed_memory_1m.py [--rows N]

Prints what the reading process and all server processes together need more at their peaks than before: of the server
private memory, because the buffers that they share are touched by whatever is read.
"""

# ruff: noqa: T201 - printing is what it is for

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg

from relaybox import Feed, Outbox, StartFrom
from relaybox.testing.servers import PostgresServer

SOURCE = "CREATE TABLE orders (id integer PRIMARY KEY, amount numeric, note text)"
FILL = "INSERT INTO orders SELECT g, g / 7.0, repeat(md5(g::text), 3) FROM generate_series(1, {}) g"
ALLOWED = 50_000  # kilobytes, on either side


def private(process: int | str) -> int:
    """Kilobytes that are not shared; 0 for a process that is gone."""
    with suppress(OSError):
        for line in Path(f"/proc/{process}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1])
    return 0


def of_server(server: PostgresServer) -> int:
    found = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
    return sum(map(private, found))


class Peaks:
    """Looks again and again, in a thread."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self.server = self.client = 0

    def look(self) -> None:
        self.server = max(self.server, of_server(self._server))
        self.client = max(self.client, private("self"))

    @contextmanager
    def during(self, what: str) -> Iterator[None]:
        self.server = self.client = 0
        self.look()
        before, started = (self.server, self.client), time.monotonic()
        over = threading.Event()

        def watch() -> None:
            while not over.wait(0.02):
                self.look()

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            yield
        finally:
            over.set()
            watcher.join()
        self.server, self.client = self.server - before[0], self.client - before[1]
        took = time.monotonic() - started
        print(f"{what:<22} server {self.server:>+8,} kB  client {self.client:>+8,} kB  {took:>6.1f} s", flush=True)


def read(box: Outbox) -> list[int]:
    """How many rows each event has."""
    counts: list[int] = []
    with box.topics.group("orders", "all").consumer() as consumer:
        while batch := consumer.poll(1, wait=0):
            counts.append(sum(1 for _ in consumer.rows(batch[0])))
            consumer.commit(batch)
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    rows = parser.parse_args().rows
    settings = {"autovacuum": "off"}  # another process, whose memory is not ours to tell
    with PostgresServer.from_wheel(durable=False, settings=settings) as server:
        url = server.create_database()
        with psycopg.connect(url, autocommit=True) as source, Outbox(url) as box:
            box.migrate()
            source.execute(SOURCE)
            box.feeds.create(Feed("orders", "SELECT * FROM orders", key="id", sources={"orders": "id"}))
            box.topics.group("orders", "all", start=StartFrom.earliest()).create()
            source.execute(FILL.format(10))  # type: ignore[arg-type]
            box.feeds.refresh(None, "orders")
            source.execute("DELETE FROM orders")
            box.feeds.snapshot(None, "orders")  # everybody has seen every kind of event once
            read(box)
            source.execute(FILL.format(rows))  # type: ignore[arg-type]
            peaks, worst, counts = Peaks(server), 0, list[int]()
            for what in ("refresh", "snapshot", "read"):
                with peaks.during(f"{what}, {rows:,} rows"):
                    if what == "read":
                        counts = read(box)
                    else:
                        getattr(box.feeds, what)(None, "orders")
                worst = max(worst, peaks.server, peaks.client)
    assert counts == [rows, rows], counts
    print(f"verdict: {'PASS' if worst <= ALLOWED else 'FAIL'}, at most {worst:,} kB more")
    return 0 if worst <= ALLOWED else 1


if __name__ == "__main__":
    sys.exit(main())
