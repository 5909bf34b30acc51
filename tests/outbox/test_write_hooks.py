"""Writer hooks, and transactions that relaybox begins and ends."""

# ruff: noqa: PT012 - a transaction block fails at its end, so the whole of it stands inside raises()

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import asyncpg
import psycopg
import pytest
import sqlalchemy
from sqlalchemy.orm import Session

from kit import QUICK, Probe, happened, make_box, rows, stored, waiting
from relaybox import AsyncOutbox, ConfigError, Event, Outbox
from relaybox.errors import Closed, InvalidEvent, StoreError
from relaybox.spi import WriterHook


class Recorder(WriterHook):
    """Notes every call; `fails` names phases that raise."""

    def __init__(self, *fails: str) -> None:
        self.calls: list[tuple[str, int]] = []
        self.fails = fails

    def _note(self, phase: str, events: Sequence[Event]) -> None:
        self.calls.append((phase, len(events)))
        if phase in self.fails:
            raise RuntimeError(f"{phase} fails")

    def before_write(self, events: Sequence[Event]) -> Sequence[Event] | None:
        self._note("before_write", events)
        return events

    def after_write(self, events: Sequence[Event]) -> None:
        self._note("after_write", events)

    def after_commit(self, events: Sequence[Event]) -> None:
        self._note("after_commit", events)

    def after_rollback(self, events: Sequence[Event]) -> None:
        self._note("after_rollback", events)


@pytest.mark.parametrize("way", ["plain", "delivery", "ordered", "cdc"])
async def test_hooks_fire_in_order_once_per_batch(pg: str, probe: Probe, way: str) -> None:
    hook = Recorder()
    async with make_box(way, pg, probe, hooks=[hook]) as box:
        connection = await asyncpg.connect(pg)
        async with connection.transaction():
            await box.raw.write_all(connection, [happened(n) for n in range(3)])
            assert hook.calls == [("before_write", 3), ("after_write", 3)]
        await asyncio.sleep(0)  # asyncpg tells of its commit in the loop's next turn
        assert hook.calls[2:] == [("after_commit", 3)]
        transaction = connection.transaction()
        await transaction.start()
        await box.raw.write_all(connection, [happened(n) for n in range(2)])
        await transaction.rollback()
        await asyncio.sleep(0)
        assert hook.calls[3:] == [("before_write", 2), ("after_write", 2), ("after_rollback", 2)]
        await connection.close()


async def test_a_hook_that_sees_no_commit_is_never_told(pg: str, probe: Probe) -> None:
    """psycopg cannot tell of its commit: neither callback fires, and the poller delivers."""
    hook = Recorder()
    async with make_box("delivery", pg, probe, hooks=[hook]) as box:
        async with await psycopg.AsyncConnection.connect(pg) as connection:
            written_event = happened()
            await box.raw.write(connection, written_event)
            written = written_event.id
        await probe.until(probe.has(written))
    assert hook.calls == [("before_write", 1), ("after_write", 1)]


async def test_a_failed_transaction_that_is_committed_counts_as_rolled_back(pg: str, probe: Probe) -> None:
    hook = Recorder()
    box = AsyncOutbox(pg, hooks=[hook])
    connection = await asyncpg.connect(pg)
    async with connection.transaction():
        await box.write(connection, happened())
        with pytest.raises(asyncpg.PostgresError):
            await connection.execute("SELECT nonsense")
    await asyncio.sleep(0)
    assert hook.calls[2:] == [("after_rollback", 1)]
    async with connection.transaction():
        await box.write(connection, happened())
        with pytest.raises(asyncpg.PostgresError):
            async with connection.transaction():
                await connection.execute("SELECT nonsense")
    await asyncio.sleep(0)
    assert hook.calls[5:] == [("after_commit", 1)]
    await connection.close()
    await box.close()
    assert stored(pg) == 1


@pytest.mark.parametrize("answer", [None, []])
def test_before_write_may_suppress(pg: str, answer: Any) -> None:
    class Suppress(Recorder):
        def before_write(self, events: Sequence[Event]) -> Sequence[Event] | None:
            return answer  # type: ignore[no-any-return]

    hook = Suppress()
    box = Outbox(pg, hooks=[hook])
    with box.transaction() as tx:
        assert box.write(tx, happened()) is None
        assert box.write_all(tx, [happened(), happened()]) == [None, None]
    box.close()
    assert hook.calls == []
    assert stored(pg) == 0


def test_before_write_may_transform(pg: str) -> None:
    class Stamp(WriterHook):
        def before_write(self, events: Sequence[Event]) -> Sequence[Event]:
            return [event.with_headers({"stamp": "yes"}) for event in events[1:]]

    box = Outbox(pg, hooks=[Stamp()])
    events = [happened(n) for n in range(3)]
    with box.transaction() as tx:
        first, *numbers = box.write_all(tx, events)
    assert first is None
    assert rows(pg, "SELECT seq FROM outbox_event ORDER BY seq") == [(number,) for number in numbers]
    box.close()
    assert rows(pg, "SELECT headers::json->>'stamp' FROM outbox_event") == [("yes",), ("yes",)]


def test_before_write_may_not_return_rubbish(pg: str) -> None:
    class Rubbish(WriterHook):
        def before_write(self, events: Sequence[Event]) -> Any:
            return ["not an event"]

    box = Outbox(pg, hooks=[Rubbish()])
    with pytest.raises(InvalidEvent, match="expected an Event"):
        with box.transaction() as tx:
            box.write(tx, happened())
    box.close()
    assert stored(pg) == 0


def test_an_error_in_before_write_reaches_the_caller(pg: str) -> None:
    hook = Recorder("before_write")
    box = Outbox(pg, hooks=[hook])
    with pytest.raises(RuntimeError, match="before_write fails"), box.transaction() as tx:
        box.write(tx, happened())
    box.close()
    assert hook.calls == [("before_write", 1)]
    assert stored(pg) == 0


@pytest.mark.parametrize("phase", ["after_write", "after_commit", "after_rollback"])
def test_an_error_in_a_later_phase_is_logged_only(pg: str, phase: str, caplog: pytest.LogCaptureFixture) -> None:
    hook = Recorder(phase)
    box = Outbox(pg, hooks=[hook])
    with caplog.at_level(logging.ERROR, "relaybox"):
        if phase == "after_rollback":
            with pytest.raises(ZeroDivisionError), box.transaction() as tx:
                box.write(tx, happened())
                raise ZeroDivisionError
        else:
            with box.transaction() as tx:
                box.write(tx, happened())
    box.close()
    assert any(phase in record.message for record in caplog.records)
    assert (phase, 1) in hook.calls
    assert stored(pg) == (0 if phase == "after_rollback" else 1)


# -- transactions of ours ------------------------------------------------------------------------------


def test_manual_transaction_commits_and_rolls_back(url: str, probe: Probe) -> None:
    with make_box("delivery", url, probe, is_async=False).running() as box:
        with box.transaction() as tx:
            tx.connection.cursor().execute("INSERT INTO business VALUES (1)")
            written_event = happened(1)
            box.write(tx, written_event)
            kept = written_event.id
            with pytest.raises(ZeroDivisionError), tx.savepoint():
                written_event = happened(2)
                box.write(tx, written_event)
                inner = written_event.id
                raise ZeroDivisionError
            with tx.savepoint():
                written_event = happened(3)
                box.write(tx, written_event)
                nested = written_event.id
        with pytest.raises(ZeroDivisionError), box.transaction() as tx:
            written_event = happened(4)
            box.write(tx, written_event)
            lost = written_event.id
            raise ZeroDivisionError
        probe.wait(probe.has(kept, nested))
    assert sorted(probe.ids) == sorted([kept, nested])
    assert inner not in probe.ids
    assert lost not in probe.ids
    assert rows(url, "SELECT n FROM business") == [(1,)]
    assert waiting(url) == 0


async def test_manual_transaction_async(url: str, probe: Probe) -> None:
    async with make_box("delivery", url, probe) as box:
        async with box.raw.transaction() as tx:
            written_event = happened(1)
            await box.raw.write(tx, written_event)
            kept = written_event.id
            with pytest.raises(ZeroDivisionError):
                async with tx.savepoint():
                    written_event = happened(2)
                    await box.raw.write(tx, written_event)
                    inner = written_event.id
                    raise ZeroDivisionError
        await probe.until(probe.has(kept))
    assert probe.ids == [kept]
    assert inner not in probe.ids
    assert {seen.source for seen in probe.seen} == {"HOT"}


def test_what_a_savepoint_took_back_is_told_as_rolled_back(url: str, probe: Probe) -> None:
    """Neither `after_commit` nor the ids of the transaction speak of it."""
    hook = Recorder()
    with Outbox(url, hooks=[hook]) as box:
        with box.transaction() as tx:
            written_event = happened(1)
            box.write(tx, written_event)
            kept = written_event.id
            with pytest.raises(ZeroDivisionError), tx.savepoint():
                box.write_all(tx, [happened(2), happened(3)])
                raise ZeroDivisionError
            assert hook.calls[-1] == ("after_rollback", 2)
            assert tx.event_ids == [kept]
    assert [call for call in hook.calls if call[0] == "after_commit"] == [("after_commit", 1)]


def test_what_a_savepoint_of_a_session_took_back_is_told_as_rolled_back(url: str) -> None:
    hook = Recorder()
    dialects = {"postgresql": "postgresql+psycopg", "mysql": "mysql+pymysql"}
    scheme, _, rest = url.partition("://")
    engine = sqlalchemy.create_engine(f"{dialects.get(scheme, scheme)}://{rest}")
    with Outbox(url, hooks=[hook]) as box, Session(engine) as session:
        outer = session.begin_nested()  # begun before anything was written
        box.write(session, happened(1))
        nested = session.begin_nested()
        box.write_all(session, [happened(2), happened(3)])
        nested.rollback()
        assert hook.calls[-1] == ("after_rollback", 2)
        outer.rollback()
        assert hook.calls[-1] == ("after_rollback", 1)
        box.write(session, happened(4))
        session.commit()
    engine.dispose()
    assert [call for call in hook.calls if call[0] == "after_commit"] == [("after_commit", 1)]
    assert stored(url) == 1


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg", "psycopg-sync"])
async def test_a_manual_transaction_that_failed_inside_is_not_handed_over(pg: str, probe: Probe, driver: str) -> None:
    """COMMIT of a failed transaction is answered with ROLLBACK and no error: that must not look like success."""
    if driver == "psycopg-sync":
        with make_box("delivery", pg, probe, is_async=False).running() as box:
            with pytest.raises(StoreError, match="failed"), box.transaction() as tx:
                box.write(tx, happened())
                with pytest.raises(psycopg.Error):
                    tx.connection.execute("SELECT nonsense")
            after = happened(7)
            with box.transaction() as tx:
                box.write(tx, after)
            probe.wait(probe.has(after.id))
    else:
        async with make_box("delivery", pg.replace("://", f"+{driver}://"), probe) as async_box:
            with pytest.raises(StoreError, match="failed"):
                async with async_box.raw.transaction() as tx:
                    await async_box.raw.write(tx, happened())
                    with pytest.raises((psycopg.Error, asyncpg.PostgresError)):
                        await tx.connection.execute("SELECT nonsense")
            after = happened(7)
            async with async_box.raw.transaction() as tx:
                await async_box.raw.write(tx, after)
            await probe.until(probe.has(after.id))
    assert probe.ids == [after.id]


def test_transaction_on_the_callers_connection(pg: str, probe: Probe) -> None:
    with make_box("delivery", pg, probe, is_async=False).running() as box, psycopg.connect(pg) as connection:
        with box.transaction(connection) as tx:
            tx.connection.execute("INSERT INTO business VALUES (5)")
            written_event = happened()
            box.write(tx, written_event)
            kept = written_event.id
        probe.wait(probe.has(kept))
        assert probe.seen[0].source == "HOT"
    assert rows(pg, "SELECT n FROM business") == [(5,)]


def test_the_block_owns_its_transaction(pg: str) -> None:
    box = Outbox(pg)
    with box.transaction() as tx:
        for verb in ("begin", "commit", "rollback", "close"):
            with pytest.raises(ConfigError, match="transaction"):
                getattr(tx, verb)()
        box.write(tx, happened())
    box.close()
    assert stored(pg) == 1


# -- wrong kinds of handle -------------------------------------------------------------------------------


async def test_an_async_handle_in_the_sync_outbox(pg: str) -> None:
    box = Outbox(pg)
    connection = await asyncpg.connect(pg)
    async with connection.transaction():
        with pytest.raises(ConfigError, match="async handle; use AsyncOutbox"):
            box.write(connection, happened())
        with pytest.raises(ConfigError, match="async handle; use AsyncOutbox"), box.transaction(connection):
            pass
    await connection.close()
    box.close()
    assert stored(pg) == 0


async def test_a_sync_handle_in_the_async_outbox(pg: str) -> None:
    """It would block the event loop."""
    box = AsyncOutbox(pg, settings=QUICK)
    with psycopg.connect(pg) as connection:
        with pytest.raises(ConfigError, match="synchronous handle, which would block the event loop; use Outbox"):
            await box.write(connection, happened())
        connection.commit()
        with pytest.raises(ConfigError, match="synchronous handle; use Outbox"):
            async with box.transaction(connection):
                pass
    await box.close()
    assert stored(pg) == 0


@pytest.mark.parametrize("handle", [None, object(), "postgresql://x/y", 7, {}])
def test_not_a_handle(pg: str, handle: Any) -> None:
    box = Outbox(pg)
    with pytest.raises(ConfigError, match="cannot write through a"):
        box.write(handle, happened())
    box.close()
    assert stored(pg) == 0


def test_writing_after_close(pg: str) -> None:
    box = Outbox(pg)
    box.close()
    with psycopg.connect(pg) as connection, pytest.raises(Closed, match="closed"):
        box.write(connection, happened())
    with pytest.raises(Closed), box.transaction():
        pass
    with pytest.raises(Closed):
        box.migrate()
    assert stored(pg) == 0
