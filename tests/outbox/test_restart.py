"""PostgreSQL is stopped without ceremony while events flow: delivery resumes, nothing is lost."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from kit import QUICK, Probe, happened, make_box, rows, waiting, with_driver
from relaybox.errors import CommitUnknown, StoreError
from relaybox.facts import WakeUps
from relaybox.testing.servers import PostgresServer, ServerUnavailable

IN_FLIGHT = 100


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    try:
        server = PostgresServer.from_wheel(durable=True)
    except ServerUnavailable as missing:
        pytest.skip(str(missing))
    with server:
        yield server


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
@pytest.mark.parametrize("way", ["delivery", "ordered"])
async def test_immediate_restart(server: PostgresServer, probe: Probe, way: str, driver: str) -> None:
    url = server.create_database()
    box = make_box("plain", url, probe)
    await box.call("migrate")
    await box.close()
    stop = asyncio.Event()
    written: list[str] = []
    unknown: list[str] = []

    settings = QUICK.replaced({"delivery.hot_queue": IN_FLIGHT // 2, "delivery.cold_queue": IN_FLIGHT // 2})
    async with make_box(way, with_driver(url, driver), probe, settings=settings) as node:

        async def write() -> None:
            n = 0
            while not stop.is_set():
                n += 1
                event = happened(n, key=f"k{n % 5}")
                try:
                    async with node.raw.transaction() as tx:
                        await node.raw.write(tx, event)
                    written.append(event.id)
                except CommitUnknown as error:
                    unknown.extend(error.event_ids)
                except StoreError:
                    await asyncio.sleep(0.01)
                await asyncio.sleep(0.001)

        writer = asyncio.create_task(write())
        for _ in range(2):
            seen = len(probe.seen)
            await probe.until(probe.wrote(seen + 50))
            await asyncio.to_thread(server.restart, "immediate")
            back = time.monotonic()
            seen = len(probe.seen)
            await probe.until(probe.wrote(seen + 50))
            assert time.monotonic() - back < 8
        stop.set()
        await writer
        there = {row[0] for row in rows(url, "SELECT event_id FROM outbox_event")}
        assert set(written) <= there <= set(written) | set(unknown)
        await probe.until(lambda: there <= set(probe.ids))
        await probe.until(lambda: waiting(url) == 0)
        await probe.until(lambda: probe.of(WakeUps)[-1].mode == "listen")  # it listens again
    counts = Counter(probe.ids)
    assert set(counts) == there
    assert sum(counts.values()) - len(counts) <= 2 * IN_FLIGHT, "duplicates: at most what was in flight at a crash"


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_terminated_backends(server: PostgresServer, probe: Probe, driver: str) -> None:
    """Every session ended by the administrator, the listening one too."""
    url = server.create_database()
    box = make_box("plain", url, probe)
    await box.call("migrate")
    async with make_box("delivery", with_driver(url, driver), probe):
        await probe.until(lambda: [f for f in probe.of(WakeUps) if f.mode == "listen"])
        for n in range(3):
            rows(
                url,
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()",
            )
            while True:  # a connection in our own pool was cut as well
                try:
                    async with box.raw.transaction() as tx:
                        written_event = happened(n)
                        await box.raw.write(tx, written_event)
                        event_id = written_event.id
                    break
                except StoreError:
                    continue
            await probe.until(probe.has(event_id), timeout=5)
            await probe.until(lambda: probe.of(WakeUps)[-1].mode == "listen")
    await box.close()
    assert waiting(url) == 0
