"""Locks of ours are on rows and tables of ours: a stranger, who may do no more than connect, holds none of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import psycopg
import pytest

from kit import make_postgres, until
from relaybox import AsyncOutbox, Event, Inbox, Outbox, Settings, Topic
from relaybox.ids import key_hash
from relaybox.types import DeliverySettings, Order, OrderSettings

NUMBERS = """
SELECT pg_advisory_lock(a, b), pg_advisory_lock((a::bigint << 32) | b) FROM (
  SELECT 1 AS a, {key} AS b
  UNION ALL SELECT c.oid::integer, n FROM pg_class c, generate_series(1, 9) n
  WHERE c.relname LIKE 'outbox%' AND relkind = 'r') x
"""
HASHED = """
SELECT pg_advisory_lock(hashtextextended(text, 0))
FROM unnest(ARRAY['relaybox.migrate..outbox_event', 'relaybox.migrate..inbox', '"inbox_meta"']) AS text
"""


@pytest.fixture
def stranger() -> Iterator[str]:
    """A database in which somebody holds every number that can be guessed."""
    url = make_postgres()
    with Outbox(url) as box:
        box.topics.configure(Topic.pub_sub("orders"))
    with psycopg.connect(url, autocommit=True) as holder:
        holder.execute(NUMBERS.replace("{key}", str(key_hash("a") & 2147483647)).encode())
        holder.execute(HASHED)
        assert holder.execute("SELECT count(*) > 30 FROM pg_locks WHERE locktype = 'advisory'").fetchone() == (True,)
        yield url


def test_tables_can_be_made(stranger: str) -> None:
    with Outbox(stranger) as box, Inbox(stranger) as inbox:
        assert box.migrate() == []
        inbox.migrate()
        inbox.configure(order=Order())


async def test_topics_are_delivered(stranger: str) -> None:
    """Ticks, and the queues of parked events."""
    seen: list[int] = []

    async def handle(event: Event) -> None:
        seen.append(event.payload)
        if len(seen) == 1:
            raise RuntimeError("once")

    async with AsyncOutbox(stranger) as box, box.topics.group("orders", "mail").deliver(handle):
        for n in range(3):
            async with box.transaction() as tx:
                await box.write(tx, Event("Happened", n, key="a", topic="orders"))
        await until(lambda: seen == [0, 0, 1, 2])


async def test_ordered_events_are_delivered(stranger: str) -> None:
    seen: list[int] = []
    settings = Settings(order=OrderSettings(strategy="advisory"), delivery=DeliverySettings(poll="50ms"))

    async def handle(event: Event) -> None:
        seen.append(event.payload)

    async with AsyncOutbox(stranger, settings=settings) as box, box.deliver(handle, ordered=True):
        for n in range(3):
            async with box.transaction() as tx:
                await box.write(tx, Event("Happened", n, key="a"))
        async with asyncio.timeout(20):
            await until(lambda: seen == [0, 1, 2])
