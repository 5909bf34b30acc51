"""Accepting: every message once, as it was sent, in order."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from kit import one, rows
from kit.handles import HANDLES, Handle, opened
from relaybox import ConfigError, Event, Inbox, InvalidEvent, NoTransaction, Outbox
from relaybox.drivers import open_sync
from relaybox.errors import SchemaMissing
from relaybox.op import Copy, Result, Statement, drive, run
from relaybox.store.inbox import InboxTables, open_inbox_store
from relaybox.testing.clock import ManualClock

from .kit import Twin, arrived, fresh_url, holds, inbox_url, message_ids, pending_ids, seen_ids


@pytest.fixture(params=HANDLES, ids=lambda kind: kind.__name__)
def kind(request: pytest.FixtureRequest) -> type[Handle]:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def home(kind: type[Handle], tmp_path: Path) -> str:
    """The inbox of a handle."""
    return inbox_url(kind.engine, tmp_path)


# -- in a transaction of its own ------------------------------------------------------------------------


async def test_a_message_is_new_once(url: str, is_async: bool) -> None:
    async with Twin(url, is_async=is_async) as inbox:
        first, second = arrived(1), arrived(2)
        assert await inbox.call("accept", None, first) is True
        assert await inbox.call("accept", None, first) is False
        assert await inbox.call("accept_all", None, [second, first]) == [True, False]
        status = await inbox.call("status")
        assert (status.pending, status.seen) == (2, 2)
    assert holds(url, [first.id, second.id])


async def test_everything_is_stored_as_it_came(url: str, is_async: bool) -> None:
    at = datetime(2031, 5, 4, 3, 2, 1, 123456, tzinfo=UTC)
    everything = Event(
        "Bestellung ✓",
        payload_bytes=bytes(range(256)),
        content_type="application/x-protobuf; proto=shop.Order",
        key="ключ",
        aggregate_type="order",
        tenant="acme",
        headers={"traceparent": "00-1-1-01", "note": "naïve \\ \" ' %s {x}"},
        occurred_at=at,
    )
    little = Event("Empty", payload_bytes=b"", content_type="application/json")
    async with Twin(url, is_async=is_async) as inbox:
        assert await inbox.call("accept_all", None, [everything, little], sender="shop") == [True, True]
        assert await inbox.call("accept", None, Event("Alone", payload_bytes=b"")) is True
    columns = "event_id, event_type, sender, aggregate_type, aggregate_id, tenant_id, content_type, payload, headers"
    full, empty, alone = rows(url, f"SELECT {columns} FROM inbox ORDER BY seq")
    assert full[:7] == (
        everything.id,
        "Bestellung ✓",
        "shop",
        "order",
        "ключ",
        "acme",
        "application/x-protobuf; proto=shop.Order",
    )
    assert bytes(full[7]) == bytes(range(256))
    assert json.loads(full[8]) == everything.headers
    assert empty[:7] == (little.id, "Empty", "shop", None, None, None, None)
    assert (bytes(empty[7]), empty[8]) == (b"", None)
    assert (alone[2], bytes(alone[7])) == ("", b"")
    store = open_inbox_store(open_sync(url).dialect, InboxTables())
    occurred = one(url, "SELECT occurred_at FROM inbox ORDER BY seq LIMIT 1")
    assert store.from_time(occurred) == at


async def test_received_when_the_clock_says_so(url: str, is_async: bool) -> None:
    clock = ManualClock()
    async with Twin(url, is_async=is_async, clock=clock) as inbox:
        clock.advance(timedelta(days=3).total_seconds())
        await inbox.call("accept", None, arrived(1))
    store: Any = open_inbox_store(open_sync(url).dialect, InboxTables())
    found = rows(url, "SELECT received_at, due, seen_at, attempts FROM inbox, inbox_pending, inbox_seen")
    assert [store.from_time(at) for at in found[0][:3]] == [clock.now()] * 3
    assert found[0][3] == 0


async def test_a_batch_keeps_its_order_and_counts_an_id_once(url: str, is_async: bool) -> None:
    events = [arrived(n, key=f"k{n % 7}") for n in range(500)]
    old, new = events[::5], [event for n, event in enumerate(events) if n % 5]
    async with Twin(url, is_async=is_async) as inbox:
        assert all(await inbox.call("accept_all", None, old))
        given = [event for event in events for _ in range(2)]
        answers = await inbox.call("accept_all", None, given)
        assert answers == [n % 2 == 0 and event not in old for n, event in enumerate(given)]
        assert await inbox.call("accept_all", None, []) == []
    assert holds(url, [event.id for event in old + new])


async def test_more_than_one_statement_can_carry(url: str, is_async: bool) -> None:
    events = [arrived(n) for n in range(1_500)]
    large = [Event("Large", payload_bytes=bytes([n]) * 1_000_000) for n in range(6)]
    async with Twin(url, is_async=is_async) as inbox:
        assert await inbox.call("accept_all", None, [*events, *large, events[0]]) == [True] * 1506 + [False]
    assert holds(url, [event.id for event in events + large])
    assert [
        bytes(row[0]) for row in rows(url, "SELECT payload FROM inbox WHERE event_type = 'Large' ORDER BY seq")
    ] == [event.body for event in large]


async def test_ids_are_compared_byte_by_byte(url: str, is_async: bool) -> None:
    ids = [
        "abc",
        "abc ",
        "ABC",
        "äbc",
        "a\u0308bc",
        "abc\u00a0",
        "1",
        "01",
        "1.0",
        "'; DROP TABLE inbox; --",
        "%s {x} :now",
    ]
    events = [arrived(n, id=event_id) for n, event_id in enumerate(ids)]
    async with Twin(url, is_async=is_async) as inbox:
        assert await inbox.call("accept", None, events[1])
        assert await inbox.call("accept_all", None, events) == [True, False, *[True] * 9]
        assert await inbox.call("accept_all", None, events) == [False] * 11
    assert sorted(message_ids(url)) == sorted(pending_ids(url)) == sorted(seen_ids(url)) == sorted(ids)


async def test_an_id_is_remembered_when_its_message_is_gone(url: str, is_async: bool) -> None:
    event = arrived(1)
    async with Twin(url, is_async=is_async) as inbox:
        await inbox.call("accept", None, event)
        await inbox.process(lambda event, handle: None)
        assert (await inbox.call("purge", done=0)) == 1
        assert await inbox.call("accept", None, event) is False
        assert await inbox.call("accept_all", None, [event, arrived(2)]) == [False, True]
        assert (await inbox.call("status")).seen == 2
        assert await inbox.call("events.get", event.id) is None
    assert (len(message_ids(url)), len(pending_ids(url)), len(seen_ids(url))) == (1, 1, 2)


async def test_no_id_is_purged_while_its_message_is_here(url: str) -> None:
    event = arrived(1)
    with Inbox(url) as inbox:
        inbox.accept(None, event)
        assert inbox.purge(done=None, dead=None, seen=0) == 0
        assert inbox.accept(None, event) is False
    assert holds(url, [event.id])


async def test_a_forgotten_id_is_new_beside_its_old_message(url: str) -> None:
    """The ledger has a retention of its own: an id may come back while the message is still there."""
    if url.startswith("postgresql"):
        pytest.skip("there a message is its own entry in the ledger")
    event = arrived(1)
    with Inbox(url) as inbox:
        inbox.accept(None, event)
        rows(url, "DELETE FROM inbox_seen")
        assert inbox.accept_all(None, [event, arrived(2)]) == [True, True]
    assert len(pending_ids(url)) == 3


async def test_status_of_many(url: str) -> None:
    """Beyond ten thousand counts are estimated, and never below what was counted."""
    with Inbox(url) as inbox:
        for _ in range(3):
            inbox.accept_all(None, [arrived(n) for n in range(4_000)])
        status = inbox.status()
    assert min(status.pending, status.seen) > 10_000


# -- in the caller's transaction -------------------------------------------------------------------------


async def test_an_accepted_message_shares_the_fate_of_the_transaction(kind: type[Handle], home: str) -> None:
    event, other = arrived(1), arrived(2)
    async with Twin(home, is_async=kind.is_async) as inbox, opened(kind, home) as handle:
        for ending, expected in (("rollback", True), ("commit", True), ("commit", False), ("rollback", False)):
            await handle.begin()
            assert await inbox.call("accept", handle.raw, event) is expected
            await getattr(handle, ending)()
            assert holds(home, [event.id] if ending == "commit" or not expected else [])
        await handle.begin()
        assert await inbox.call("accept_all", handle.raw, [event, other, other]) == [False, True, False]
        await handle.commit()
    assert holds(home, [event.id, other.id])


async def test_a_savepoint_rolled_back_takes_the_message_along(kind: type[Handle], home: str) -> None:
    event = arrived(1)
    async with Twin(home, is_async=kind.is_async) as inbox, opened(kind, home) as handle:
        await handle.begin()
        await handle.savepoint()
        assert await inbox.call("accept", handle.raw, event)
        await handle.rollback_to()
        assert await inbox.call("accept", handle.raw, event)
        assert not await inbox.call("accept", handle.raw, event)
        await handle.commit()
    assert holds(home, [event.id])


async def test_a_handle_without_a_transaction_is_refused(kind: type[Handle], home: str) -> None:
    async with Twin(home, is_async=kind.is_async) as inbox, opened(kind, home, autocommit=True) as handle:
        with pytest.raises(NoTransaction, match="accept\\(\\) needs an open transaction"):
            await inbox.call("accept", handle.raw, arrived(1))
    assert holds(home, [])


async def test_an_outbox_transaction_takes_both(url: str) -> None:
    """From inbox to outbox in one transaction."""
    event = arrived(1)
    with Outbox(url) as outbox, Inbox(url) as inbox:
        outbox.migrate()

        def both(fail: bool) -> None:
            with outbox.transaction() as tx:
                assert inbox.accept(tx, event)
                outbox.write(tx, Event("Answered", {}))
                assert not fail

        with pytest.raises(AssertionError):
            both(fail=True)
        assert holds(url, [])
        both(fail=False)
        assert outbox.status().due == 1
    assert holds(url, [event.id])


async def test_wrong_handles_and_values(tmp_path: Path) -> None:
    import aiosqlite

    url = inbox_url("sqlite", tmp_path)
    other = open_sync(fresh_url("mariadb", tmp_path))
    with Inbox(url) as inbox:
        with other.connection() as connection, pytest.raises(ConfigError, match="this inbox is on sqlite"):
            inbox.accept(connection.raw, arrived(1))
        async with aiosqlite.connect(tmp_path / "inbox.db") as connection:
            with pytest.raises(ConfigError, match="use AsyncInbox"):
                inbox.accept(connection, arrived(1))
        with pytest.raises(InvalidEvent, match="list of events"):
            inbox.accept_all(None, arrived(1))  # type: ignore[arg-type]
        with pytest.raises(InvalidEvent, match="list of events"):
            inbox.accept(None, "text")  # type: ignore[arg-type]
        for sender in (None, "x" * 256, "a\x00b", 7):
            with pytest.raises(ConfigError, match="sender"):
                inbox.accept(None, arrived(1), sender=sender)  # type: ignore[arg-type]
    other.close()
    assert holds(url, [])


# -- tables ----------------------------------------------------------------------------------------------


async def test_migrating(url: str, is_async: bool) -> None:
    async with Twin(url, "second", is_async=is_async) as inbox:
        with pytest.raises(SchemaMissing, match="second"):
            await inbox.call("verify")
        with pytest.raises(SchemaMissing):
            await inbox.call("accept", None, arrived(1))
        assert [m.version for m in await inbox.call("migrate")] == [1, 2, 3]
        await inbox.call("verify")
        assert await inbox.call("migrate") == []
        assert await inbox.call("accept", None, event := arrived(1))
    assert holds(url, [event.id], "second")
    assert holds(url, [])  # the first one knows nothing of it


async def test_migrating_at_once(engine: str, tmp_path: Path) -> None:
    url = fresh_url(engine, tmp_path)

    def migrate(_: int) -> int:
        with Inbox(url) as inbox:
            return len(inbox.migrate())

    with ThreadPoolExecutor(6) as threads:
        assert sum(threads.map(migrate, range(6))) == 3


@pytest.mark.parametrize("server", ["postgres", "mariadb"])
def test_another_process_makes_the_inbox_between_two_statements(server: str, tmp_path: Path) -> None:
    url = fresh_url(server, tmp_path)
    with Inbox(url) as inbox, Inbox(url) as other, closing(open_sync(url)) as db, db.connection() as connection:
        made: list[Any] = []

        def answer(step: Statement | Copy) -> Any:
            result = connection.execute(step)
            made.extend([] if made else other.migrate())
            return result

        connection.begin()
        assert drive(inbox.store.migrate(), answer) == []
        connection.commit()
    assert made


@pytest.mark.parametrize("name", ["a" * 48, "Orders_Inbox", "select", "_1"])
async def test_any_legal_name(engine: str, tmp_path: Path, name: str) -> None:
    with Inbox(fresh_url(engine, tmp_path), name) as inbox:
        inbox.migrate()
        event = arrived(1)
        assert inbox.accept(None, event) is True
        assert inbox.accept(None, event) is False
        assert inbox.status().seen == 1


async def test_a_schema_of_its_own(engine: str, tmp_path: Path) -> None:
    url = inbox_url(engine, tmp_path)
    if engine == "sqlite":
        with pytest.raises(ConfigError, match="no schemas"):
            Inbox(url, schema="receiving")
        return
    schema = "receiving" if engine == "postgres" else f"{url.rpartition('/')[2]}_receiving"
    with Inbox(url, schema=schema) as inbox:
        inbox.migrate()
        event = arrived(1)
        assert inbox.accept(None, event) is True
        assert inbox.status().seen == 1
    assert holds(url, [event.id], f"{schema}.inbox")
    assert holds(url, [])
    if engine == "mariadb":
        rows(url, f"DROP DATABASE {schema}")


@pytest.mark.parametrize("name", ["", "a" * 49, "a-b", "1a", 'a"b', "a;b", "ä", "a b"])
async def test_any_other_name_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="table name"):
        Inbox(fresh_url("sqlite", tmp_path), name)


# -- how it is done ----------------------------------------------------------------------------------------


async def test_five_hundred_are_one_statement_on_postgresql(tmp_path: Path) -> None:
    database = open_sync(inbox_url("postgres", tmp_path))
    store = open_inbox_store("postgres", InboxTables())
    asked: list[Statement] = []

    class Counting:
        def execute(self, statement: Any) -> Result:
            asked.append(statement)
            return connection.execute(statement)

    with database.connection() as connection:
        connection.begin()
        run(store.know(), connection)  # once per process
        assert all(run(store.accept([arrived(n) for n in range(500)], "", None), Counting()))
        text, params = asked[0].positional("format")
        plan = "\n".join(row[0] for row in connection.raw.execute("EXPLAIN " + text, params))
        connection.commit()
    database.close()
    assert len(asked) == 1
    assert "hashed SubPlan" in plan
    assert "Join" not in plan
    assert "Nested Loop" not in plan
