"""close() that is interrupted leaves nothing open, and an outbox refuses what it would not use."""

from __future__ import annotations

import asyncio
import threading
from datetime import datetime, timedelta
from typing import Any

import pytest

from kit import QUICK, Probe, delivering, one
from relaybox import ALL, AsyncOutbox, ConfigError, Event, Listeners, Outbox
from relaybox.clock import SystemClock, utc_now

OPEN = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"


async def nobody_left(pg: str) -> None:
    """The server notices a closed connection a moment later."""
    async with asyncio.timeout(10):
        while one(pg, OPEN):
            await asyncio.sleep(0.01)


async def test_a_cancelled_close_leaves_no_connection(pg: str) -> None:
    begun, listeners = asyncio.Event(), Listeners()

    @listeners.on("Slow")
    async def slow(event: Event) -> None:
        begun.set()
        await asyncio.Event().wait()

    box = await delivering(AsyncOutbox, pg, listeners, settings=QUICK).__aenter__()
    async with box.transaction() as tx:
        await box.write(tx, Event("Slow", None))
    await begun.wait()
    closing = asyncio.create_task(box.close())
    await asyncio.sleep(0)  # it waits for the listener now
    closing.cancel()
    await asyncio.wait([closing])
    assert closing.cancelled()
    await nobody_left(pg)


async def test_an_interrupted_close_leaves_neither_connection_nor_thread(
    pg: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = Outbox(pg, settings=QUICK)
    service = box.deliver(Listeners()).start()
    assert service._thread is not None
    call = service._thread.call

    def impatient(work: Any) -> None:
        call(work)
        raise KeyboardInterrupt

    monkeypatch.setattr(service._thread, "call", impatient)
    with pytest.raises(KeyboardInterrupt):
        box.close()
    await nobody_left(pg)
    assert not [thread for thread in threading.enumerate() if thread.name == "relaybox"]


@pytest.mark.parametrize("kind", [Outbox, AsyncOutbox])
def test_nothing_is_delivered_where_change_data_capture_does(kind: Any) -> None:
    with pytest.raises(ConfigError, match="change data capture delivers the events of this outbox"):
        kind("sqlite:///shop.db", cdc=True).deliver(Listeners())


class Ahead(SystemClock):
    """A machine whose clock is a year ahead of its database's."""

    def now(self) -> datetime:
        return utc_now() + timedelta(days=365)


def test_ages_are_counted_by_the_clock_of_the_database(url: str, probe: Probe) -> None:
    listeners = Listeners()
    listeners.on("Good")(lambda event, delivery: probe.deliver(event, delivery))
    with delivering(Outbox, url, listeners, clock=Ahead(), settings=QUICK) as box:
        with box.transaction() as tx:
            box.write(tx, Event("Good", None))
        probe.wait(probe.wrote(1))
        assert box.purge(done="7d", dead="7d") == 0
        assert one(url, "SELECT count(*) FROM outbox_event") == 1


def test_a_replay_of_all_reads_no_events(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with Outbox(url) as box:
        with box.transaction() as tx:
            box.write_all(tx, [Event("E", {"n": n}) for n in range(5)])
            cursor = tx.connection.cursor()
            hashed = "" if "postgres" in url else "key_hash, "
            cursor.execute(
                f"INSERT INTO outbox_event_dead (seq, {hashed}attempts, dead_at) "
                f"SELECT seq, {hashed}1, due FROM outbox_event_pending"
            )
            cursor.execute("DELETE FROM outbox_event_pending")
        monkeypatch.setattr(Event, "stored", lambda *_: pytest.fail("an event was read"))
        assert box.dead.replay(ALL) == 5
        assert box.dead.count() == 0
        assert box.status().due == 5
