"""Two sessions of PostgreSQL interleaved on purpose: where a snapshot is older than what it should see."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any, Literal

import pytest
import pytest_asyncio

from relaybox import Event
from relaybox.drivers import AsyncDatabase, open_async
from relaybox.errors import ConfigError
from relaybox.ids import key_hash, new_token
from relaybox.op import Op, Query, arun
from relaybox.store.claims import Claim, HeldRow, RetryRow
from relaybox.store.outbox.postgres import PostgresStore
from relaybox.store.outbox.values import ClaimedRow, KeyChoice, KeyLease, KeyRound, Settlement
from relaybox.testing.servers import require

LEASE = timedelta(seconds=30)
STORE = PostgresStore()
Pair = tuple[AsyncDatabase, AsyncDatabase]
BY: list[Literal["advisory", "rows"]] = ["advisory", "rows"]


@pytest_asyncio.fixture
async def two() -> AsyncIterator[Pair]:
    server = require("postgres-wheel", durable=False)
    url = server.create_database()
    first, second = open_async(url), open_async(url)
    await first.run(STORE.migrate())
    yield first, second
    await first.close()
    await second.close()
    server.drop_database(url)


async def ask(db: AsyncDatabase, text: str) -> Any:
    def op() -> Op[Any]:
        return (yield Query("test", text, "rows").bind()).rows

    return await db.run(op())


async def blocked(db: AsyncDatabase) -> None:
    """Until some session waits for another's lock."""
    waits = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    async with asyncio.timeout(10):
        while not (await ask(db, waits))[0][0]:
            await asyncio.sleep(0.01)


async def write(db: AsyncDatabase, count: int, key: str = "a") -> list[int]:
    return await db.run(STORE.write([Event("E", n, key=key) for n in range(count)], None, None))


def claiming(owner: int, choice: KeyChoice, limit: int = 100) -> tuple[Claim, Op[list[ClaimedRow]]]:
    claim = Claim(owner, new_token(), LEASE)
    return claim, STORE.claim_keys(claim, limit, choice, KeyRound(), None)


def seqs(claimed: list[ClaimedRow]) -> list[int]:
    return [row.row[0] for row in claimed]


def lease_of(claim: Claim, key: str = "a") -> list[KeyLease]:
    return [KeyLease(key_hash(key), claim.token)]


@pytest.mark.parametrize("by", BY)
async def test_who_comes_second_does_not_wait(two: Pair, by: Literal["advisory", "rows"]) -> None:
    ours = await write(two[0], 2)
    async with two[0].connection() as first:
        await first.begin()
        claim, op = claiming(1, KeyChoice(by))
        assert seqs(await arun(op, first)) == ours
        turn = KeyRound()
        async with asyncio.timeout(5):
            late = STORE.claim_keys(Claim(2, new_token(), LEASE), 100, KeyChoice(by), turn, None)
            assert await two[1].run(late) == []
        assert (turn.tried, turn.taken) == (1, 0), "told as contention"
        await first.commit()
    await write(two[0], 1)
    assert await two[1].run(claiming(2, KeyChoice(by))[1]) == [], "rows written later belong to the holder too"
    held = [HeldRow(seq, claim.token) for seq in ours]
    await two[0].run(STORE.settle(Settlement(done=held, ordered=True, free=lease_of(claim)), None))
    assert len(await two[1].run(claiming(2, KeyChoice(by))[1])) == 1


async def test_the_lease_holds_where_the_locks_do_not_meet(two: Pair) -> None:
    """Two advisory namespaces by mistake, or two heads of one key in two snapshots: the primary key decides."""
    ours = await write(two[0], 2)
    async with two[0].connection() as first:
        await first.begin()
        assert seqs(await arun(claiming(1, KeyChoice("advisory", namespace=1))[1], first)) == ours
        second = asyncio.create_task(two[1].run(claiming(2, KeyChoice("advisory", namespace=2))[1]))
        await blocked(two[0])
        await first.commit()
    assert await second == []


async def test_a_stale_lease_goes_to_one(two: Pair) -> None:
    """Both see a lease whose claim is gone. The second must not take it from the first, whose claim it cannot see."""
    await write(two[0], 2)
    await ask(two[0], f"INSERT INTO outbox_event_lease VALUES ({key_hash('a')}, 7) RETURNING token")
    async with two[0].connection() as first:
        await first.begin()
        assert len(await arun(claiming(1, KeyChoice("advisory", namespace=1))[1], first)) == 2
        second = asyncio.create_task(two[1].run(claiming(2, KeyChoice("advisory", namespace=2))[1]))
        await blocked(two[0])
        await first.commit()
    assert await second == []


async def test_a_sweep_leaves_a_lease_that_was_taken_meanwhile(two: Pair) -> None:
    """It saw the lease stale; before it could delete it somebody took the key under a claim the sweep cannot see."""
    await write(two[0], 2)
    await ask(two[0], f"INSERT INTO outbox_event_lease VALUES ({key_hash('a')}, 7), (1, 7) RETURNING token")
    async with two[0].connection() as first:
        await first.begin()
        claim, op = claiming(1, KeyChoice("rows"))
        assert len(await arun(op, first)) == 2
        await two[1].run(sweep())  # passes over what is locked
        await first.commit()
    await two[1].run(sweep())
    assert await ask(two[0], "SELECT key_hash, token FROM outbox_event_lease") == [(key_hash("a"), claim.token)]


def sweep() -> Op[None]:
    yield STORE.sql["outbox.lease.sweep"].bind()


async def test_rows_are_read_after_the_lease_was_taken(two: Pair) -> None:
    """While we waited for the lease its holder failed at the head: its followers must not come to us before it."""
    [one, *_] = await write(two[0], 3)
    holder = Claim(1, new_token(), LEASE)
    choice = KeyChoice("advisory", namespace=1)
    assert len(await two[0].run(STORE.claim_keys(holder, 1, choice, KeyRound(), None))) == 1
    async with two[0].connection() as first:
        await first.begin()
        free = STORE.settle(
            Settlement(
                retry=[RetryRow(one, holder.token, LEASE, "bad")],
                hold=[HeldRow(one, holder.token)],
                ordered=True,
                free=lease_of(holder),
            ),
            None,
        )
        await arun(free, first)
        async with two[1].connection() as second:
            await second.begin()
            claim = Claim(2, new_token(), LEASE)
            keys = [key_hash("a")]
            waiting = asyncio.create_task(arun(lease(claim, keys), second))
            await blocked(two[0])
            await first.commit()
            assert await waiting == keys
            assert await arun(STORE.claim_leased(claim, keys, 100, None), second) == []
            await second.commit()
    assert await ask(two[0], "SELECT * FROM outbox_event_lease") == []


def lease(claim: Claim, keys: list[int]) -> Op[list[int]]:
    """The statement alone, as if the walk had not seen that somebody has the key."""
    result = yield STORE.sql["outbox.keys.advisory"].bind(
        keys=keys, refused=[False] * len(keys), token=claim.token, limit=9, namespace=2
    )
    return [row[0] for row in result.rows]


async def test_one_snapshot_for_the_whole_transaction_is_refused(two: Pair) -> None:
    await write(two[0], 1)

    def serializable() -> Op[list[ClaimedRow]]:
        yield Query("test", "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ", "count").bind()
        return (yield from claiming(1, KeyChoice())[1])

    with pytest.raises(ConfigError, match="read committed"):
        await two[0].run(serializable())
