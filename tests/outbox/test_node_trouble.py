"""Whole nodes on PostgreSQL: lost replies, shards that leave, transactions undone or cancelled, listeners that exit."""

from __future__ import annotations

import asyncio
import sys
from contextlib import AsyncExitStack, suppress
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from kit import QUICK, Probe, delivering, happened, make_box, one, recording, rows, with_driver
from relaybox import AsyncOutbox, Event, Listeners, Outbox, Settings
from relaybox.drivers import open_async
from relaybox.errors import ConnectionLost
from relaybox.store.outbox.postgres import PostgresStore
from relaybox.types import DeliverySettings, OrderSettings


async def test_a_claim_whose_reply_was_lost_goes_before_later_events(pg: str, probe: Probe) -> None:
    box = make_box("ordered", pg, probe)
    async with box:
        source = box.raw._node._source
        run, lost = source._db.run, asyncio.Event()

        async def reply_lost(op: Any, **options: Any) -> Any:
            value = await run(op, **options)
            if getattr(op, "__name__", "") == "claim_ordered" and value and not lost.is_set():
                lost.set()
                raise ConnectionLost("cut after the commit")
            return value

        source._db.run = reply_lost
        async with box.raw.transaction() as tx:
            await box.raw.write(tx, happened(1, key="a"))
        await asyncio.wait_for(lost.wait(), 10)
        async with box.raw.transaction() as tx:
            await box.raw.write(tx, happened(2, key="a"))
        await probe.until(probe.wrote(2))
    assert [seen.event.payload["n"] for seen in probe.seen] == [1, 2]


async def test_a_shard_that_need_not_leave_after_all_is_served_again(pg: str, probe: Probe) -> None:
    """A peer came while every shard was busy, and went before one could be handed over."""
    gate, listeners, store = asyncio.Event(), Listeners(), PostgresStore()

    async def listen(event: Event, delivery: Any) -> None:
        await gate.wait()
        probe.deliver(event, delivery)

    listeners.on("Happened")(listen)
    settings = Settings(
        order=OrderSettings(shards=2), delivery=DeliverySettings(workers=8, instance_ttl="1s", lease="3s")
    )
    peers = open_async(pg)
    async with make_box("ordered", pg, probe, listeners=listeners, settings=settings) as box:
        source = box.raw._node._source
        async with box.raw.transaction() as tx:
            await box.raw.write_all(tx, [happened(n, key=f"k{n}") for n in range(8)])
        while len(list(box.raw._node.engine.in_flight())) < 8:
            await asyncio.sleep(0.01)
        peer = await peers.run(store.register("peer", "ordered", timedelta(seconds=30), None))
        while not source.leaving:
            await asyncio.sleep(0.01)
        await peers.run(store.retire(peer, None))
        async with asyncio.timeout(10):
            while source.leaving:
                await asyncio.sleep(0.01)
        gate.set()
        async with box.raw.transaction() as tx:
            await box.raw.write_all(tx, [happened(n, key=f"k{n}") for n in range(8)])
        await probe.until(probe.wrote(16), 5)
    await peers.close()


async def test_shards_are_given_up_together_with_the_claims(pg: str, probe: Probe) -> None:
    """In between, another node could claim what comes after events that are still claimed here."""
    box = make_box("ordered", pg, probe)
    async with box:
        store, owned = box.raw.store, []
        retire = store.retire

        def looking(*args: Any) -> Any:
            result = yield from retire(*args)
            owned.append(one(pg, "SELECT count(*) FROM outbox_event_shard WHERE owner IS NOT NULL"))
            return result

        store.retire = looking
    assert owned == [16]
    assert one(pg, "SELECT count(*) FROM outbox_event_shard WHERE owner IS NOT NULL") == 0


@pytest.mark.parametrize("undo", ["transaction", "savepoint", "rollback"])
def test_a_transaction_undone_behind_our_back_delivers_nothing(pg: str, probe: Probe, undo: str) -> None:
    """psycopg's own nested block is a savepoint that relaybox does not see."""
    with delivering(Outbox, pg, recording(probe), settings=QUICK) as box, psycopg.connect(pg, autocommit=True) as raw:
        with box.transaction(raw) as tx:
            if undo == "transaction":
                with suppress(ZeroDivisionError), raw.transaction():
                    box.write(tx, happened(1))
                    raise ZeroDivisionError
            elif undo == "savepoint":
                raw.execute("SAVEPOINT s")
                box.write(tx, happened(1))
                raw.execute("ROLLBACK TO SAVEPOINT s")
            else:
                box.write(tx, happened(1))
                raw.rollback()
        with box.transaction(raw) as tx:
            box.write(tx, happened(2))
        probe.wait(lambda: any(seen.event.payload["n"] == 2 for seen in probe.seen))
    assert [seen.event.payload["n"] for seen in probe.seen] == [2]


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_a_cancelled_begin_leaves_no_transaction_in_the_pool(pg: str, driver: str) -> None:
    store = PostgresStore()
    for pause in range(12):
        db = open_async(with_driver(pg, driver), size=1)
        await db.run(store.status(None), tx=False)
        task = asyncio.create_task(db.run(store.status(None)))
        for _ in range(pause):
            await asyncio.sleep(0)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        async with db.connection() as connection:
            await connection.execute(store.sql["schema.exists"].bind())
            assert not connection.in_transaction(), f"after {pause} steps"
        await db.close()


async def test_open_transactions_of_the_program_do_not_stop_the_heart(pg: str, probe: Probe) -> None:
    async with delivering(AsyncOutbox, pg, recording(probe), settings=QUICK) as box, AsyncExitStack() as stack:
        for _ in range(4):
            await stack.enter_async_context(box.transaction())
        beat = rows(pg, "SELECT expires_at FROM outbox_event_instance")
        async with asyncio.timeout(10):
            while rows(pg, "SELECT expires_at FROM outbox_event_instance") == beat:
                await asyncio.sleep(0.02)


def test_a_listener_that_exits_does_not_take_the_node_with_it(pg: str, probe: Probe) -> None:
    listeners = Listeners()

    def listen(event: Event, delivery: Any) -> None:
        if delivery.attempts == 1:
            sys.exit("as a command line tool does")
        probe.deliver(event, delivery)

    listeners.on("Happened")(listen)
    with delivering(Outbox, pg, listeners, settings=QUICK) as box:
        with box.transaction() as tx:
            box.write(tx, happened(1))
        probe.wait(probe.wrote(1))
