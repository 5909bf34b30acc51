"""Memory while a backlog of a million events drains:  .venv/bin/python scripts/memory_1m.py [--events 1000000]

Prints the resident set of the draining process at every tenth of the way.
"""

# ruff: noqa: T201 - printing is what it is for

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from pathlib import Path

import psycopg

from relaybox import AsyncOutbox, Event, Listeners
from relaybox.facts import Delivered, Fact
from relaybox.testing.servers import PostgresServer

FILL = """
WITH e AS (
  INSERT INTO outbox_event (event_id, event_type, aggregate_id, payload, occurred_at, created_at)
  SELECT 'e-' || n, 'Happened', 'k' || n, convert_to(repeat('x', 300), 'UTF8'), now(), now()
  FROM generate_series(1, {}) n RETURNING seq)
INSERT INTO outbox_event_pending (seq, due, key_hash, attempts) SELECT seq, now(), seq << 32, 0 FROM e
"""
ALLOWED = 1.25  # the last sample over the first


def resident() -> int:
    """Kilobytes, now (the peak that getrusage tells would hide a fall)."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4


async def drain(url: str, events: int) -> list[int]:
    samples: list[int] = []
    done = 0
    finished = asyncio.Event()
    started = time.monotonic()

    def observe(fact: Fact) -> None:
        nonlocal done
        if not isinstance(fact, Delivered):
            return
        done += fact.count
        while done >= (len(samples) + 1) * events // 10 and len(samples) < 10:
            samples.append(resident())
            print(f"{done:>12,} delivered  {samples[-1]:>9,} kB  {time.monotonic() - started:>7.1f} s", flush=True)
        if done >= events:
            finished.set()

    listeners = Listeners()

    @listeners.on("Happened")
    async def listen(event: Event) -> None:
        return None

    async with AsyncOutbox(url, observers=[observe]) as box, box.deliver(listeners):
        await finished.wait()
    return samples


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=1_000_000)
    events = parser.parse_args().events
    with PostgresServer.from_wheel(durable=True) as server:
        url = server.create_database()

        async def migrate() -> None:
            box = AsyncOutbox(url)
            await box.migrate()
            await box.close()

        asyncio.run(migrate())
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(FILL.format(events))  # type: ignore[arg-type]
        print(f"{0:>12,} delivered  {resident():>9,} kB", flush=True)
        samples = asyncio.run(drain(url, events))
    flat = samples[-1] <= samples[0] * ALLOWED
    print(f"verdict: {'PASS' if flat else 'FAIL'}, {samples[0]:,} kB after a tenth, {samples[-1]:,} kB at the end")
    return 0 if flat else 1


if __name__ == "__main__":
    sys.exit(main())
