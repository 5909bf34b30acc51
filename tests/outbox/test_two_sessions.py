"""Interleavings of two sessions on PostgreSQL, put in order on purpose."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest_asyncio

from kit import in_claims, one, rows, waiting
from relaybox import Event
from relaybox.drivers import AsyncDatabase, open_async
from relaybox.ids import new_token
from relaybox.op import arun
from relaybox.store.claims import Claim, HeldRow
from relaybox.store.outbox.postgres import PostgresStore
from relaybox.store.outbox.values import Settlement

LEASE = timedelta(seconds=30)
SHARDS = 4
STORE = PostgresStore()
Pair = tuple[AsyncDatabase, AsyncDatabase]


@pytest_asyncio.fixture
async def two(pg: str) -> AsyncIterator[Pair]:
    first, second = open_async(pg), open_async(pg)
    yield first, second
    await first.close()
    await second.close()


async def written(db: AsyncDatabase, count: int, *, key: str | None = None, claim: Claim | None = None) -> list[int]:
    return await db.run(STORE.write([Event("Happened", n, key=key) for n in range(count)], claim, None, copy=True))


async def blocked(pg: str) -> None:
    """Until some session waits for another's lock."""
    here = "FROM pg_stat_activity WHERE datname = current_database()"
    for _ in range(500):
        if one(pg, f"SELECT count(*) {here} AND wait_event_type = 'Lock'"):
            return
        await asyncio.sleep(0.01)
    raise AssertionError("nobody waits")


async def take_ordered(db: AsyncDatabase, owner: int, lease: timedelta = LEASE) -> tuple[Claim, list[int]]:
    claim = Claim(owner, new_token(), lease)
    claimed = await db.run(STORE.claim_ordered(claim, 100, SHARDS, None), tx=False)
    return claim, [c.row[0] for c in claimed]


async def test_settling_one_part_of_a_claim_while_another_part_is_given_back(pg: str, two: Pair) -> None:
    """The hot queue took two of three events and refused the third: its release must not undo their settling."""
    claim = Claim(1, new_token(), LEASE)
    seqs = await written(two[0], 3, claim=claim)
    held = [HeldRow(seq, claim.token) for seq in seqs]
    async with two[0].connection() as releasing:
        await releasing.begin()
        await arun(STORE.release(held[2:], None), releasing)
        settling = asyncio.create_task(two[1].run(STORE.settle(Settlement(done=held[:2]), None), tx=False))
        await blocked(pg)
        await releasing.commit()
    assert (await settling, in_claims(pg), waiting(pg)) == (0, 0, 1)


async def test_an_expired_claim_comes_back_in_order(two: Pair) -> None:
    """Jitter keeps poison apart where order does not matter; where it does, later events would overtake."""
    db = two[0]
    brief = timedelta(milliseconds=1)
    await db.run(STORE.acquire_shards(1, SHARDS, SHARDS, LEASE, None))
    seqs = await written(db, 2, key="a")
    for _ in range(2):
        assert (await take_ordered(db, 1, brief))[1] == seqs
        await asyncio.sleep(0.01)
        await db.run(STORE.take_over(None, None))
    seqs += await written(db, 1, key="a")
    assert (await take_ordered(db, 1))[1] == seqs


async def test_a_shard_moves_only_when_the_former_owners_claims_are_free(pg: str, two: Pair) -> None:
    """The former owner was paused inside a settle: its claim is locked and must not be passed over."""
    seqs = await written(two[0], 2, key="a")
    await two[0].run(STORE.acquire_shards(1, SHARDS, SHARDS, timedelta(milliseconds=50), None))
    claim, taken = await take_ordered(two[0], 1)
    assert taken == seqs
    async with two[0].connection() as paused:
        await paused.begin()
        await arun(iter_lock(claim.token), paused)
        await asyncio.sleep(0.1)
        await two[1].run(STORE.acquire_shards(2, SHARDS, SHARDS, LEASE, None))
        await written(two[1], 1, key="a")
        assert (await take_ordered(two[1], 2))[1] == []
        await paused.rollback()
    await two[1].run(STORE.acquire_shards(2, SHARDS, SHARDS, LEASE, None))
    assert (await take_ordered(two[1], 2))[1][:2] == seqs


def iter_lock(token: int) -> Any:
    yield STORE.sql["outbox.claim.lock"].bind(tokens=[token])


async def test_a_large_refused_batch_is_given_back_in_time(pg: str, two: Pair) -> None:
    claim = Claim(1, new_token(), LEASE)
    seqs = await written(two[0], 20_000, claim=claim)
    held = [HeldRow(seq, claim.token) for seq in seqs]
    async with asyncio.timeout(10):
        assert await two[0].run(STORE.release(held[1_000:], None)) == 19_000
        assert await two[0].run(STORE.settle(Settlement(done=held[:999]), None), tx=False) == 0
    assert rows(pg, "SELECT cardinality(items) FROM outbox_event_claim") == [(1,)]
