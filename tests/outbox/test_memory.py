"""A backlog drains in flat memory: what is here is bounded by the queues, not by what waits."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from typing import Any

import psycopg

from kit import delivering
from relaybox import AsyncOutbox, Event, Listeners, Settings
from relaybox.facts import Delivered, Fact

BACKLOG = 100_000
FILL = """
WITH e AS (
  INSERT INTO outbox_event (event_id, event_type, aggregate_id, payload, occurred_at, created_at)
  SELECT 'e-' || n, 'Happened', 'k' || n, convert_to(repeat('x', 300), 'UTF8'), now(), now()
  FROM generate_series(1, {}) n RETURNING seq)
INSERT INTO outbox_event_pending (seq, due, key_hash, attempts) SELECT seq, now(), seq << 32, 0 FROM e
"""


async def test_a_backlog_of_100k_drains_in_flat_memory(pg: str) -> None:
    with psycopg.connect(pg, autocommit=True) as connection:
        connection.execute(FILL.format(BACKLOG))  # type: ignore[arg-type]
    done = 0
    samples: list[int] = []
    finished = asyncio.Event()

    def observe(fact: Fact) -> Any:
        nonlocal done
        if isinstance(fact, Delivered):
            done += fact.count
            if done // 10_000 > len(samples):
                samples.append(tracemalloc.get_traced_memory()[0])
            if done >= BACKLOG:
                finished.set()

    listeners = Listeners()

    async def listen(event: Event) -> None:
        return None

    listeners.on("Happened")(listen)
    gc.collect()
    tracemalloc.start(1)
    try:
        async with delivering(AsyncOutbox, pg, listeners, settings=Settings(), observers=[observe]):
            await asyncio.wait_for(finished.wait(), 100)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 24_000_000, f"peak {peak:,} bytes for at most 1,000 events in flight"
    first, last = max(samples[:3]), max(samples[-3:])
    assert last < first * 1.5 + 1_000_000, f"grows while it drains: {samples}"
