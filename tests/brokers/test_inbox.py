"""The inbox sink: the contract on every engine, and what only a database does."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from inbox_harness import RELAY, DatabaseHarness, GuardedPostgres, MariaDBHarness, PostgresHarness, SqliteHarness
from sqlalchemy.ext.asyncio import create_async_engine

from relaybox import AsyncOutbox, AsyncRelay, Event, Inbox
from relaybox.brokers import sink_from_url
from relaybox.brokers.formats import renderer
from relaybox.drivers.asyncmy import AsyncmyConnection
from relaybox.drivers.asyncpg import AsyncpgConnection
from relaybox.errors import (
    BrokerUnavailable,
    ConfigError,
    ConnectionLost,
    DeliveryError,
    StoreBusy,
    StoreError,
    StoreFull,
)
from relaybox.testing.servers import MariaDBServer, PostgresServer, TcpGate, require
from relaybox.testing.sink_contract import SECRET, SinkContract, arrived, messages, opened, publish
from relaybox.testing.sink_contract.harness import RESUME_SECONDS, until_back


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    require("postgres-wheel", durable=False)  # skips where there is none
    with GuardedPostgres.from_wheel() as running:
        yield running


@pytest.fixture(scope="module")
def mariadb() -> Iterator[MariaDBServer]:
    require("mariadb", durable=False)
    with MariaDBServer.from_system() as running:
        yield running


class TestPostgres(SinkContract):
    @pytest.fixture
    def harness(self, postgres: PostgresServer) -> PostgresHarness:
        return PostgresHarness(postgres)


class TestMariaDB(SinkContract):
    @pytest.fixture
    def harness(self, mariadb: MariaDBServer) -> MariaDBHarness:
        return MariaDBHarness(mariadb)


class TestSqlite(SinkContract):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> SqliteHarness:
        return SqliteHarness(tmp_path / "billing.db")


@pytest.fixture(params=["postgres", "mariadb", "sqlite"])
def harness(request: pytest.FixtureRequest, tmp_path: Path) -> DatabaseHarness:
    if request.param == "sqlite":
        return SqliteHarness(tmp_path / "billing.db")
    server = request.getfixturevalue(request.param)
    return PostgresHarness(server) if request.param == "postgres" else MariaDBHarness(server)


@pytest.fixture(params=["postgres", "mariadb"])
def served(request: pytest.FixtureRequest) -> PostgresHarness | MariaDBHarness:
    server = request.getfixturevalue(request.param)
    return PostgresHarness(server) if request.param == "postgres" else MariaDBHarness(server)


# -- where messages go, and as what ---------------------------------------------------------------------


async def test_a_missing_inbox_holds_back_its_keys_only(harness: DatabaseHarness) -> None:
    good, other, bad = await harness.destination(), await harness.destination(), await harness.missing()
    async with opened(harness.sink()) as sink:
        first, last, free, alone = messages(sink, good, ["a", "a", "b", None])
        [wrong] = messages(sink, bad, ["a"])
        [wrong_too] = messages(sink, "no-name for a table", [None])
        [elsewhere] = messages(sink, other, ["b"])
        answers = await publish(sink, [first, wrong, last, wrong_too, free, elsewhere, alone])
        assert [answer is None for answer in answers] == [True, False, False, False, True, True, True]
        assert {type(answer) for answer in answers if answer} == {DeliveryError}
        assert "migrate()" in str(answers[1])
        assert "no-name for a table" in str(answers[3])
        await arrived(harness, good, [first, free, alone])
        await arrived(harness, other, [elsewhere])
        await asyncio.to_thread(harness.migrate, bad)
        assert await publish(sink, [wrong, last]) == [None, None]
        await arrived(harness, bad, [wrong])


async def test_one_inbox_for_everything(harness: DatabaseHarness) -> None:
    name = await harness.destination()
    async with opened(harness.sink(inbox=name, sender="shop")) as sink:
        sent = messages(sink, "orders.v1", ["a"]) + messages(sink, "payments.v1", ["a"])
        assert await publish(sink, sent) == [None, None]
    await arrived(harness, name, sent)
    assert await harness.query(f"SELECT DISTINCT sender FROM {name}") == [("shop",)]


async def test_a_schema(postgres: PostgresServer) -> None:
    harness = PostgresHarness(postgres)
    await harness.query(f"CREATE SCHEMA receiving AUTHORIZATION {RELAY}")
    with Inbox(harness.relay_url, "orders", schema="receiving") as inbox:
        inbox.migrate()
    async with opened(harness.sink(schema="receiving")) as sink:
        sent = messages(sink, "orders", ["a"])
        assert await publish(sink, sent) == [None]
    await arrived(harness, "receiving.orders", sent)


async def test_a_structured_message_is_stored_as_it_is(harness: DatabaseHarness) -> None:
    name = await harness.destination()
    async with opened(harness.sink()) as sink:
        render = renderer("cloudevents-structured", "https://shop.example", sink.features)
        message = render(Event("OrderPlaced", {"id": 7}, key="order-7"), name)
        assert await publish(sink, [message]) == [None]
        [found] = await arrived(harness, name, [message])
    assert found.body == message.body
    assert json.loads(found.body)["source"] == "https://shop.example"
    assert found.content_type == "application/cloudevents+json; charset=utf-8"


async def test_what_has_a_column_is_no_header(harness: DatabaseHarness) -> None:
    name = await harness.destination()
    async with opened(harness.sink()) as sink:
        event = Event("OrderPlaced", {}, key="k", tenant="acme", headers={"tenant": "other", "note": "kept"})
        message = renderer("plain", "", sink.features)(event, name)
        assert await publish(sink, [message]) == [None]
    [(headers,)] = await harness.query(f"SELECT headers FROM {name}")
    assert json.loads(headers).keys() == {"created_at", "note"}


async def test_a_publish_is_all_or_nothing(harness: DatabaseHarness) -> None:
    """An inbox whose pending rows cannot be written has neither the message nor its id."""
    good, broken = sorted([await harness.destination(), await harness.destination()])
    async with opened(harness.sink()) as sink:
        await harness.query(f"ALTER TABLE {broken}_pending RENAME TO {broken}_gone")
        one, two = messages(sink, good, ["a"]) + messages(sink, broken, ["b"])
        answers = await publish(sink, [two, one])
        assert [type(answer) for answer in answers] == [DeliveryError, type(None)]
        assert await harness.read(broken, 0) == []
        await arrived(harness, good, [one])
        await harness.query(f"ALTER TABLE {broken}_gone RENAME TO {broken}_pending")
        assert await publish(sink, [two, one]) == [None, None]
    await arrived(harness, broken, [two])
    await arrived(harness, good, [one])


async def test_an_engine(postgres: PostgresServer) -> None:
    harness = PostgresHarness(postgres)
    name = await harness.destination()
    engine = create_async_engine(harness.relay_url.replace("postgresql", "postgresql+asyncpg"))
    async with opened(harness.sink(target=engine)) as sink:
        sent = messages(sink, name, ["a"])
        assert await publish(sink, sent) == [None]
        assert SECRET not in repr(sink)
    await engine.dispose()
    await arrived(harness, name, sent)


async def test_from_outbox_to_inbox(harness: DatabaseHarness, tmp_path: Path) -> None:
    """The whole way, twice over the same events: a relay that forgot what it had sent changes nothing."""
    name = await harness.destination()
    shop = f"sqlite:///{tmp_path / 'shop.db'}"
    async with AsyncOutbox(shop) as outbox:
        await outbox.migrate()
        async with outbox.transaction() as tx:
            sent = [Event("OrderPlaced", {"n": n}, key=f"k{n % 5}") for n in range(200)]
            await outbox.write_all(tx, sent)
        for _ in range(2):
            async with AsyncRelay(shop, harness.sink(sender="shop"), to=name) as relay:
                await relay.drain()
            with sqlite3.connect(tmp_path / "shop.db") as connection:
                columns = "(seq, due, key_hash, attempts) SELECT seq, 0, 1, 0"
                connection.execute(f"INSERT INTO outbox_event_pending {columns} FROM outbox_event")
            connection.close()
    found = await harness.read(name, 200)
    assert len(found) == 200
    for key in {event.key for event in sent}:
        assert [r.id for r in found if r.key == key] == [event.id for event in sent if event.key == key]


# -- trouble ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [ConnectionLost, StoreBusy, StoreFull, StoreError])
async def test_no_event_dies_of_what_the_database_refuses(
    error: type[StoreError], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = SqliteHarness(tmp_path / "billing.db")
    name = await harness.destination()

    async def refuse(op: Any, *, tx: bool = True) -> None:
        op.close()
        raise error("out of paper")

    async with opened(harness.sink()) as sink:
        sent = messages(sink, name, ["a"])
        with monkeypatch.context() as patch:
            patch.setattr(sink._db, "run", refuse)
            [answer] = await publish(sink, sent)
        assert isinstance(answer, BrokerUnavailable)
        assert "out of paper" in str(answer)
        assert await publish(sink, sent) == [None]


@pytest.mark.parametrize("adapter", [AsyncpgConnection, AsyncmyConnection])
async def test_a_lost_reply_changes_nothing(
    adapter: Any, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gate swallows the answer to COMMIT: everything is stored, and we do not know."""
    postgres = adapter is AsyncpgConnection
    server = request.getfixturevalue("postgres" if postgres else "mariadb")
    harness = PostgresHarness(server) if postgres else MariaDBHarness(server)
    name = await harness.destination()
    with TcpGate(server.port) as gate:
        async with opened(harness.sink(target=gate.through(harness.relay_url))) as sink:
            commit = adapter.commit

            async def unheard(connection: Any) -> None:
                gate.drop_replies()
                await commit(connection)

            first, second = messages(sink, name, ["a", "a"])
            with monkeypatch.context() as patch:
                patch.setattr(adapter, "commit", unheard)
                publishing = asyncio.create_task(sink.publish([first]))
                async with asyncio.timeout(20):
                    while not await harness.read(name, 1):
                        await asyncio.sleep(0.01)
                assert not publishing.done()
                publishing.cancel()
            gate.open()
            await until_back(sink, RESUME_SECONDS)
            assert await publish(sink, [first, second]) == [None, None]
    await arrived(harness, name, [first, second])


async def test_a_network_that_swallows_everything(served: PostgresHarness | MariaDBHarness) -> None:
    """Probes and cancelled publishes end in time, and delivery resumes on new connections."""
    name = await served.destination()
    with TcpGate(served.server.port) as gate:
        async with opened(served.sink(target=gate.through(served.relay_url))) as sink:
            first = messages(sink, name, [f"k{n}" for n in range(8)])
            await asyncio.gather(*(publish(sink, [message]) for message in first))  # idle connections
            gate.blackhole()
            later = messages(sink, name, [f"k{n}" for n in range(8)], first=8)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3):
                    await sink.publish(later)
            for _ in range(2):
                async with asyncio.timeout(3):
                    with pytest.raises(BrokerUnavailable):
                        await sink.probe()
            gate.open()
            await until_back(sink, RESUME_SECONDS)
            assert await publish(sink, later) == [None] * 8
    await arrived(served, name, first + later)


async def test_connections_that_died_in_silence(postgres: PostgresServer) -> None:
    """One probe finds it out, and the next does not have to try the other dead ones."""
    harness = PostgresHarness(postgres)
    name = await harness.destination()
    async with opened(harness.sink()) as sink:
        sent = messages(sink, name, [f"k{n}" for n in range(20)])
        await asyncio.gather(*(publish(sink, [message]) for message in sent[:10]))
        sessions = await harness.query(f"SELECT pid FROM pg_stat_activity WHERE usename = '{RELAY}'")
        assert len(sessions) > 1
        for (pid,) in sessions:
            os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(BrokerUnavailable, match="did not answer"):
                await sink.probe()
            await sink.probe()
            assert await publish(sink, sent[10:]) == [None] * 10
        finally:
            for (pid,) in sessions:
                os.kill(pid, signal.SIGCONT)
    await arrived(harness, name, sent)


async def test_closing_while_nothing_answers(served: PostgresHarness | MariaDBHarness) -> None:
    name = await served.destination()
    with TcpGate(served.server.port) as gate:
        sink = served.sink(target=gate.through(served.relay_url))
        await sink.open()
        gate.blackhole()
        waiting = asyncio.create_task(publish(sink, messages(sink, name, ["a"])))
        await asyncio.sleep(0)
        async with asyncio.timeout(5):
            await sink.close()
        [answer] = await waiting
        assert isinstance(answer, BrokerUnavailable)
        gate.open()


async def test_a_server_that_is_read_only(served: PostgresHarness | MariaDBHarness) -> None:
    name = await served.destination()
    if isinstance(served, PostgresHarness):
        read_only = f"ALTER ROLE {RELAY} SET default_transaction_read_only = "
    else:
        read_only = "SET GLOBAL read_only = "
    await served.query(f"{read_only}on")
    try:
        sink = served.sink()
        with pytest.raises(BrokerUnavailable, match="read-only"):
            await sink.open()
        sent = messages(sink, name, ["a"])
        [answer] = await publish(sink, sent)
        assert isinstance(answer, BrokerUnavailable)
        assert "read-only" in str(answer)
        await sink.close()
    finally:
        await served.query(f"{read_only}off")
    async with opened(served.sink()) as sink:
        assert await publish(sink, sent) == [None]


async def test_the_relay_may_add_and_look_and_nothing_else(served: PostgresHarness | MariaDBHarness) -> None:
    """The account needs no right to make, change or delete anything."""
    with Inbox(served.url, "orders") as inbox:
        inbox.migrate()
    account = RELAY
    if isinstance(served, MariaDBHarness):
        account = f"'{RELAY}'@'127.0.0.1'"
        await served.query(f"REVOKE ALL ON `{served.url.rpartition('/')[2]}`.* FROM {account}")
    ledger = ["orders_seen"] if isinstance(served, MariaDBHarness) else []
    for table in ("orders", "orders_pending", *ledger):
        await served.query(f"GRANT INSERT, SELECT ON {table} TO {account}")
    await served.query(f"GRANT INSERT ON orders_journal TO {account}")
    await served.query(f"GRANT SELECT ON orders_meta TO {account}")
    if isinstance(served, PostgresHarness):
        await served.query(f"GRANT USAGE ON SEQUENCE orders_seq TO {account}")
    async with opened(served.sink()) as sink:
        sent = messages(sink, "orders", ["a", "b"])
        assert await publish(sink, sent[:1]) == [None]
        assert await publish(sink, sent) == [None, None]
    await arrived(served, "orders", sent)


async def test_a_table_we_may_not_write(postgres: PostgresServer) -> None:
    harness = PostgresHarness(postgres)
    name = await harness.destination()
    await harness.query(f"ALTER TABLE {name}_pending OWNER TO relaybox")
    async with opened(harness.sink()) as sink:
        [answer] = await publish(sink, messages(sink, name, ["a"]))
    assert isinstance(answer, BrokerUnavailable)
    assert "permission denied" in str(answer)


# -- settings --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (
            f"inbox+postgresql://relay:{SECRET}@db/billing?sslmode=require",
            "postgresql://relay:***@db/billing?sslmode=require",
        ),
        ("inbox+postgresql://db/billing?inbox=orders&sslmode=require", "postgresql://db/billing?sslmode=require"),
        ("inbox+mysql://db/billing?sender=a%20shop", "mysql://db/billing"),
        ("inbox+sqlite:///billing.db", "sqlite:///billing.db"),
        ("inbox+sqlite:////var/lib/billing.db?inbox=orders", "sqlite:////var/lib/billing.db"),
    ],
)
async def test_urls(url: str, shown: str) -> None:
    sink = sink_from_url(url, {"connections": "2"})
    assert repr(sink) == f"InboxSink({shown!r})"
    assert (sink._inbox == "orders") is ("inbox=orders" in url)  # type: ignore[attr-defined]
    assert sink._sender == ("a shop" if "sender" in url else "")  # type: ignore[attr-defined]
    assert sink._connections == 2  # type: ignore[attr-defined]
    await sink.close()


@pytest.mark.parametrize(
    ("url", "options", "says"),
    [
        ("inbox+sqlite://:memory:", {}, "in-memory"),
        ("inbox+sqlite:///x.db", {"connections": "0"}, "connections"),
        ("inbox+sqlite:///x.db", {"colour": "red"}, "known: connections, inbox, schema, sender"),
        ("inbox+sqlite:///x.db", {"inbox": "a b"}, "table name"),
        ("inbox+sqlite:///x.db", {"schema": "s"}, "no schemas"),
        ("inbox+sqlite:///x.db", {"source": "x" * 256}, "source"),
        ("inbox+mysql:///x", {}, "host"),
    ],
)
def test_wrong_settings(url: str, options: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        sink_from_url(url, options)
