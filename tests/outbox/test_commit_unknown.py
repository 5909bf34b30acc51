"""A commit whose reply is lost is neither success nor failure; resolve() tells which."""

# ruff: noqa: PT012 - a transaction block fails at its end, so the whole of it stands inside raises()

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from datetime import timedelta
from urllib.parse import urlsplit

import asyncpg
import psycopg
import pytest

from kit import Probe, happened, make_box, make_database, recording, stored, with_driver
from kit.proxy import Cut, Proxy
from relaybox import AsyncOutbox, CommitUnknown, Outbox, Settings
from relaybox.drivers import open_sync
from relaybox.errors import StillCommitting
from relaybox.testing.servers import TcpGate
from relaybox.types import DeliverySettings

CUTS = pytest.mark.parametrize("cut", ["before", "after"])


@pytest.fixture(params=["postgres", "mariadb"])
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def proxy(engine: str, tmp_path: object) -> Iterator[Proxy]:
    proxy = Proxy(make_database(engine, tmp_path))  # type: ignore[arg-type]
    yield proxy
    proxy.close()


@pytest.fixture
def truth(proxy: Proxy) -> str:
    """The database itself, past the proxy."""
    from urllib.parse import urlunsplit

    return urlunsplit(proxy._parts)


@CUTS
def test_sync(proxy: Proxy, truth: str, cut: Cut) -> None:
    box = Outbox(proxy.url)
    box.verify()
    with pytest.raises(CommitUnknown, match="resolve") as caught, box.transaction() as tx:
        written_events = [happened(n) for n in range(3)]
        box.write_all(tx, written_events)
        ids = [written.id for written in written_events]
        proxy.cut = cut
    assert proxy.cuts == 1
    assert caught.value.event_ids == tuple(ids)
    assert box.resolve(caught.value.event_ids) == dict.fromkeys(ids, cut == "after")
    assert stored(truth) == (3 if cut == "after" else 0)
    with box.transaction() as tx:
        box.write(tx, happened(4))
    box.close()


@CUTS
@pytest.mark.parametrize("driver", ["asyncpg", "psycopg", "asyncmy"])
async def test_async(engine: str, proxy: Proxy, truth: str, cut: Cut, driver: str) -> None:
    if (driver == "asyncmy") != (engine == "mariadb"):
        pytest.skip("a driver of the other engine")
    box = AsyncOutbox(with_driver(proxy.url, driver))
    await box.verify()
    with pytest.raises(CommitUnknown) as caught:
        async with box.transaction() as tx:
            written_events = [happened(n) for n in range(3)]
            await box.write_all(tx, written_events)
            ids = [written.id for written in written_events]
            proxy.cut = cut
    assert caught.value.event_ids == tuple(ids)
    assert await box.resolve(ids) == dict.fromkeys(ids, cut == "after")
    assert stored(truth) == (3 if cut == "after" else 0)
    async with box.transaction() as tx:
        await box.write(tx, happened(4))
    await box.close()


@CUTS
async def test_neither_hook_fires_and_the_poller_delivers_what_is_there(truth: str, proxy: Proxy, cut: Cut) -> None:
    from .test_write_hooks import Recorder

    probe, hook = Probe(), Recorder()
    short = Settings(delivery=DeliverySettings(lease="1s", instance_ttl="500ms"))
    async with make_box("delivery", truth, probe, settings=short, listeners=recording(probe)) as node:
        writer = AsyncOutbox(proxy.url, hooks=[hook])
        with pytest.raises(CommitUnknown):
            async with writer.transaction() as tx:
                written_event = happened(1)
                await writer.write(tx, written_event)
                lost = written_event.id
                proxy.cut = cut
        async with node.raw.transaction() as tx:
            written_event = happened(2)
            await node.raw.write(tx, written_event)
            sentinel = written_event.id
        await probe.until(probe.has(sentinel))
        if cut == "after":
            await probe.until(probe.has(lost))
        await writer.close()
    assert probe.count(lost) == (1 if cut == "after" else 0)
    assert [phase for phase, _ in hook.calls] == ["before_write", "after_write"]


@CUTS
@pytest.mark.parametrize("engine", ["postgres"], indirect=True)
async def test_the_callers_own_transaction_on_a_hot_node(truth: str, proxy: Proxy, cut: Cut) -> None:
    """Rows claimed by their insert, then silence: they are delivered when the claim's lease ends, and once."""
    probe = Probe()
    short = Settings(delivery=DeliverySettings(lease="1s", instance_ttl="500ms"))
    async with make_box("delivery", truth, probe, settings=short) as node:
        connection = await asyncpg.connect(proxy.url)
        with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
            async with connection.transaction():
                written_event = happened(1)
                await node.raw.write(connection, written_event)
                written = written_event.id
                proxy.cut = cut
        if cut == "after":
            await probe.until(probe.has(written))
        async with node.raw.transaction() as after:
            written_event = happened(2)
            await node.raw.write(after, written_event)
            sentinel = written_event.id
        await probe.until(probe.has(sentinel))
    assert probe.count(written) == (1 if cut == "after" else 0)


# -- the COMMIT is still under way in the server -------------------------------------------------------


@pytest.fixture(params=["postgres", "mariadb", "sqlite"])
def any_url(request: pytest.FixtureRequest, tmp_path: object) -> str:
    return make_database(str(request.param), tmp_path)  # type: ignore[arg-type]


@pytest.mark.parametrize("ending", ["commit", "rollback"])
@pytest.mark.parametrize("twin", ["sync", "async"])
async def test_an_open_transaction_is_waited_for(any_url: str, ending: str, twin: str) -> None:
    writer = open_sync(any_url)
    with Outbox(any_url) as box, writer.connection() as connection, ThreadPoolExecutor(1) as threads:
        connection.begin()
        written_event = happened(1)
        box.write(connection.raw, written_event)
        event_id = written_event.id

        async def ask() -> dict[str, bool]:
            async with AsyncOutbox(any_url) as other:
                return await other.resolve([event_id])

        def asked() -> dict[str, bool]:
            if twin == "async":
                return asyncio.run(ask())
            with Outbox(any_url) as other:
                return other.resolve([event_id])

        answer = threads.submit(asked)
        assert not wait([answer], 0.5).done, "it is not known yet"
        getattr(connection, ending)()
        assert await asyncio.wrap_future(answer) == {event_id: ending == "commit"}
    writer.close()


@pytest.mark.parametrize("fate", ["commits", "fails", "goes on"])
async def test_a_commit_under_way_in_the_server(tmp_path: object, fate: str) -> None:
    """A deferred trigger keeps the COMMIT waiting while the client loses its connection."""
    url = make_database("postgres", tmp_path)  # type: ignore[arg-type]
    with psycopg.connect(url, autocommit=True) as other, TcpGate(urlsplit(url).port or 0) as gate:
        other.execute("CREATE TABLE late (id int)")
        other.execute(
            "CREATE FUNCTION wait_for_it() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            "PERFORM pg_advisory_xact_lock(4711); IF NEW.id < 0 THEN RAISE 'no'; END IF; RETURN NULL; END $$"
        )
        other.execute(
            "CREATE CONSTRAINT TRIGGER late AFTER INSERT ON late DEFERRABLE INITIALLY DEFERRED "
            "FOR EACH ROW EXECUTE FUNCTION wait_for_it()"
        )
        other.execute("SELECT pg_advisory_lock(4711)")
        box, direct = Outbox(gate.through(url)), Outbox(url)

        def place() -> str:
            with pytest.raises(CommitUnknown) as caught, box.transaction() as tx:
                box.write(tx, happened(1))
                tx.raw.execute(f"INSERT INTO late VALUES ({-1 if fate == 'fails' else 1})")
            return caught.value.event_ids[0]

        with ThreadPoolExecutor(2) as threads:
            placed = threads.submit(place)
            waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
            while other.execute(waiting).fetchone() != (1,):
                await asyncio.sleep(0.01)
            gate.refuse()
            event_id = await asyncio.wrap_future(placed)
            if fate == "goes on":
                with pytest.raises(StillCommitting, match="do not repeat"):
                    direct.resolve([event_id], patience=timedelta(milliseconds=200))
            answer = threads.submit(direct.resolve, [event_id])
            assert not wait([answer], 0.3).done, "it is not known yet"
            other.execute("SELECT pg_advisory_unlock(4711)")
            assert await asyncio.wrap_future(answer) == {event_id: fate != "fails"}
        direct.close()
        box.close()
