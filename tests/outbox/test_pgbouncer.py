"""Behind pgbouncer in transaction mode with two server connections: everything works, by polling."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import psycopg
import pytest

from kit import Probe, happened, make_box, make_postgres, recording, rows, waiting, with_driver
from relaybox import ALL, AsyncOutbox, Event, Listeners, Outbox, Reject, Settings
from relaybox.facts import Died, LoopFailed, WakeUps
from relaybox.testing.servers import require
from relaybox.types import DeliverySettings

DRIVERS = pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
SETTINGS = Settings(delivery=DeliverySettings(poll="50ms", instance_ttl="2s", lease="6s"))


@pytest.fixture(scope="module")
def bouncer() -> Any:
    bouncer = require("pgbouncer", durable=False)
    assert (bouncer.pool_mode, bouncer.pool_size) == ("transaction", 2)
    return bouncer


@pytest.fixture
def direct() -> str:
    return make_postgres()


@pytest.fixture
def pooled(bouncer: Any, direct: str) -> str:
    if bouncer.postgres is not require("postgres-wheel", durable=False):
        pytest.skip("the bouncer stands before another server")
    return str(bouncer.url(direct))


@DRIVERS
@pytest.mark.parametrize("way", ["alone", "delivery", "ordered"])
async def test_ways_under_concurrent_writers(pooled: str, direct: str, probe: Probe, way: str, driver: str) -> None:
    url = with_driver(pooled, driver)
    async with make_box(way, url, probe, settings=SETTINGS) as node:

        async def writer(n: int) -> list[str]:
            ids = []
            for i in range(15):
                async with node.raw.transaction() as tx:
                    await tx.connection.execute(f"INSERT INTO business VALUES ({i})")
                    event = happened(i, key=f"k{n}")
                    await node.raw.write(tx, event)
                    ids.append(event.id)
            return ids

        written = [i for ids in await asyncio.gather(*(writer(n) for n in range(6))) for i in ids]
        await probe.until(probe.has(*written))
    assert sorted(probe.ids) == sorted(written)
    assert waiting(direct) == 0
    last = probe.of(WakeUps)[-1]
    assert last.mode == "poll"
    assert not probe.of(LoopFailed)


@DRIVERS
async def test_the_wake_ups_fact_names_the_reason(pooled: str, driver: str, caplog: pytest.LogCaptureFixture) -> None:
    probe = Probe()
    with caplog.at_level("INFO", "relaybox"):
        async with make_box("delivery", with_driver(pooled, driver), probe, settings=SETTINGS):
            await probe.until(lambda: "pooler" in caplog.text)
    modes = {fact.mode for fact in probe.of(WakeUps)}
    assert modes == {"poll"}
    assert any("pooler" in fact.reason for fact in probe.of(WakeUps))


@DRIVERS
async def test_the_callers_own_connection(pooled: str, direct: str, probe: Probe, driver: str) -> None:
    """asyncpg behind a pooler needs statement_cache_size=0, as its own documentation says; psycopg no prepare."""
    async with make_box("delivery", with_driver(pooled, driver), probe, settings=SETTINGS) as node:

        async def write(n: int) -> str:
            if driver == "asyncpg":
                raw = await asyncpg.connect(pooled, statement_cache_size=0)
                async with raw.transaction():
                    written_event = happened(n)
                    await node.raw.write(raw, written_event)
                    written = written_event.id
            else:
                raw = await psycopg.AsyncConnection.connect(pooled, prepare_threshold=None)
                async with raw.transaction():
                    written_event = happened(n)
                    await node.raw.write(raw, written_event)
                    written = written_event.id
            await raw.close()
            return str(written)

        ids = await asyncio.gather(*(write(n) for n in range(12)))
        await probe.until(probe.has(*ids))
    assert sorted(probe.ids) == sorted(ids)
    assert waiting(direct) == 0


@DRIVERS
async def test_batches_and_large_copies(pooled: str, direct: str, probe: Probe, driver: str) -> None:
    box = AsyncOutbox(with_driver(pooled, driver))

    async def batch(n: int) -> None:
        async with box.transaction() as tx:
            await box.write_all(tx, [happened(i, key=f"k{n}") for i in range(300)])

    await asyncio.gather(*(batch(n) for n in range(6)))
    await box.close()
    assert waiting(direct) == 1_800


@DRIVERS
async def test_migrate_dead_letters_and_purge(bouncer: Any, driver: str, probe: Probe) -> None:
    direct = make_postgres(migrated=False)
    url = with_driver(bouncer.url(direct), driver)
    boxes = [AsyncOutbox(url) for _ in range(3)]
    done = await asyncio.gather(*(box.migrate() for box in boxes))
    assert sorted(map(bool, done)) == [False, False, True]
    allowed: list[bool] = []
    listeners = Listeners()

    async def moody(event: Event, delivery: Any) -> None:
        if not allowed:
            raise Reject("no")
        probe.deliver(event, delivery)

    listeners.on("Happened")(moody)
    async with make_box("delivery", url, probe, settings=SETTINGS, listeners=listeners) as node:
        async with node.raw.transaction() as tx:
            written_events = [happened(n) for n in range(6)]
            await node.raw.write_all(tx, written_events)
            ids = [written.id for written in written_events]
        await probe.until(lambda: len(probe.of(Died)) == 6)
        assert await boxes[0].dead.count() == 6
        allowed.append(True)
        assert await boxes[1].dead.replay(ids[0])
        assert await boxes[2].dead.replay(ALL) == 5
        await probe.until(probe.has(*ids))
        await probe.until(lambda: waiting(direct) == 0)
        assert await boxes[0].purge(done=0) == 6
        assert (await boxes[0].status()).dead == 0
    for box in boxes:
        await box.close()


def test_sync_outbox_under_threads(pooled: str, direct: str, probe: Probe) -> None:
    import threading

    with make_box("delivery", pooled, probe, is_async=False, settings=SETTINGS).running() as node:
        written: list[str] = []

        def write(n: int) -> None:
            for i in range(10):
                with node.transaction() as tx:
                    event = happened(i, key=f"k{n}")
                    node.write(tx, event)
                    written.append(event.id)

        threads = [threading.Thread(target=write, args=(n,)) for n in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        probe.wait(probe.has(*written))
    assert sorted(probe.ids) == sorted(written)
    assert len(written) == 50


def test_server_sessions_keep_nothing_of_ours(pooled: str, direct: str, probe: Probe) -> None:
    """Two clients share a server connection: a SET or a prepared statement left behind would show here."""
    box = Outbox(pooled)
    for n in range(5):
        with box.transaction() as tx:
            box.write(tx, happened(n))
    with psycopg.connect(pooled, autocommit=True, prepare_threshold=None) as other:
        for _ in range(4):
            assert other.execute("SHOW lock_timeout").fetchone() == ("0",)
            assert other.execute("SELECT count(*) FROM pg_prepared_statements").fetchone() == (0,)
    box.close()


async def test_a_restart_of_the_pooler(bouncer: Any, pooled: str, direct: str, probe: Probe) -> None:
    from relaybox.errors import StoreError

    async with make_box("delivery", pooled, probe, settings=SETTINGS, listeners=recording(probe)) as node:
        async with node.raw.transaction() as tx:
            written_event = happened(1)
            await node.raw.write(tx, written_event)
            first = written_event.id
        await probe.until(probe.has(first))
        await asyncio.to_thread(bouncer.restart)
        while True:
            try:
                async with node.raw.transaction() as tx:
                    written_event = happened(2)
                    await node.raw.write(tx, written_event)
                    second = written_event.id
                break
            except StoreError:
                await asyncio.sleep(0.01)
        await probe.until(probe.has(second))
    assert rows(direct, "SELECT count(*) FROM outbox_event_pending") == [(0,)]
