"""What the machine can do: single-row inserts per second, and bytes per second to disk."""

from __future__ import annotations

import os
import tempfile
import threading
import time

import psycopg

SECONDS = 10.0
CLIENTS = os.cpu_count() or 1
PER_TRANSACTION = 100
BLOCK = bytes(1 << 20)


def inserts_per_second(url: str, seconds: float = SECONDS) -> float:
    """One row per statement, a hundred statements per transaction, a client per core: the cost of an insert, not of a
    commit."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "CREATE TABLE raw (id bigserial PRIMARY KEY, payload bytea NOT NULL, at timestamptz NOT NULL)"
        )
    counts = [0] * CLIENTS
    stop = time.monotonic() + seconds

    def insert(number: int) -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            while time.monotonic() < stop:
                with connection.transaction():
                    for _ in range(PER_TRANSACTION):
                        connection.execute(
                            "INSERT INTO raw (payload, at) VALUES (%s, clock_timestamp())", (bytes(200),)
                        )
                counts[number] += PER_TRANSACTION

    threads = [threading.Thread(target=insert, args=(n,)) for n in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DROP TABLE raw")
    return sum(counts) / seconds


def disk_bytes_per_second(seconds: float = 3.0) -> float:
    written = 0
    with tempfile.NamedTemporaryFile(prefix="relaybox-ga-") as file:
        start = time.monotonic()
        while time.monotonic() - start < seconds:
            for _ in range(16):
                written += file.write(BLOCK)
            file.flush()
            os.fdatasync(file.fileno())
            if written > 1 << 30:
                file.seek(0)
        return written / (time.monotonic() - start)
