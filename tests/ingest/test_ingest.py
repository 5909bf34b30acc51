"""Received, stored, acknowledged: in this order, whatever is away meanwhile."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from inbox.kit import ENGINES, pending_ids
from kit import rows, until
from relaybox import AsyncInbox, AsyncIngest, Event, Inbox
from relaybox.errors import Closed, ConfigError, SchemaMissing
from relaybox.facts import CircuitChanged, Ingested, LoopFailed
from relaybox.ingest.ingest import LONGEST_PAUSE
from relaybox.settings import IngestSettings, Settings
from relaybox.spi import MALFORMED, Incoming
from relaybox.testing.crash import InjectedFault, crash_at
from relaybox.testing.servers import TcpGate
from relaybox.types import Health, Reading

from .ingest_kit import arrivals, events, fresh_url, in_order, inbox_url, ingesting, totals
from .scripted_source import ScriptedSource

BROKEN = Incoming(
    channel="orders",
    place="orders/0/17",
    body=b"{",
    headers={"x": "1", "sequence": "5"},
    content_type="application/cloudevents+json",
)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return inbox_url("sqlite", tmp_path)


@pytest.fixture
def source() -> ScriptedSource:
    return ScriptedSource()


async def test_messages_are_stored_in_order_then_acknowledged(url: str, source: ScriptedSource) -> None:
    sent = events(30)
    source.put(*sent, *sent[:5])
    async with ingesting(source, url, sender="shop", settings=Settings(ingest=IngestSettings(batch=8))) as (
        ingest,
        facts,
    ):
        await until(lambda: source.queue == [])
    assert in_order(sent, arrivals(url))
    assert {row[0] for row in rows(url, "SELECT sender FROM inbox")} == {"shop"}
    assert totals(ingest) == (30, 5, 0)
    told = [fact for fact in facts if isinstance(fact, Ingested)]
    assert sum(fact.accepted for fact in told) == 30
    assert sum(fact.duplicates for fact in told) == 5
    assert {fact.source for fact in told} == {"scripted"}
    assert max(fact.accepted + fact.duplicates for fact in told) == 8
    assert source.closed == 1


async def test_nothing_is_acknowledged_before_the_commit(url: str, source: ScriptedSource) -> None:
    """The commit fails twice with what is no error of a database: it counts as trouble all the same."""
    source.put(*events(3))
    with crash_at("write.before", hit=1) as first, crash_at("write.committed", hit=1) as second:
        async with ingesting(source, url) as (ingest, facts):
            await until(lambda: source.queue == [])
    assert first.fired
    assert second.fired
    assert source.opened == 3
    assert len(arrivals(url)) == 3
    assert totals(ingest) == (0, 3, 0)
    assert [fact.error for fact in facts if isinstance(fact, LoopFailed)] == [InjectedFault.__name__] * 2


@pytest.mark.parametrize("engine", ENGINES)
async def test_what_cannot_be_read_is_a_dead_letter_and_blocks_nothing(
    engine: str, source: ScriptedSource, tmp_path: Path
) -> None:
    url = inbox_url(engine, tmp_path)
    good = events(2)
    source.put(good[0], BROKEN, good[1], BROKEN)
    async with ingesting(source, url, sender="shop") as (ingest, _):
        await until(lambda: source.queue == [])
        assert totals(ingest) == (3, 1, 1)
    with Inbox(url) as inbox:
        (letter,) = inbox.dead.list()
        assert (letter.event.id, letter.event.type, letter.event.body) == ("at:orders/0/17", MALFORMED, b"{")
        assert (letter.event.sender, letter.attempts, letter.event.headers["x"]) == ("shop", 0, "1")
        assert letter.error is not None
        assert letter.error.startswith("InvalidEvent: ")
        assert letter.error.endswith("(read at orders/0/17)")
        assert pending_ids(url) == [event.id for event in good]
        assert inbox.dead.replay(letter.event.id) == 1
        processed = []
        inbox.process(lambda event, _: processed.append(event.type)).once()
        assert sorted(processed) == ["OrderPlaced", "OrderPlaced", MALFORMED]
        assert inbox.dead.list() == []


@pytest.mark.parametrize("engine", ENGINES)
async def test_a_giant_blocks_nothing(engine: str, source: ScriptedSource, tmp_path: Path) -> None:
    url = inbox_url(engine, tmp_path)
    source.put(replace(BROKEN, body=b"\xff" * 16_000_000, content_type=None), *events(1))
    async with ingesting(source, url) as (ingest, _):
        await until(lambda: source.queue == [])
        assert totals(ingest) == (2, 0, 1)
    with Inbox(url) as inbox:
        (letter,) = inbox.dead.list()
    assert letter.event.body == b"\xff" * 8_388_608
    assert letter.error is not None
    assert letter.error.startswith("PayloadTooLarge: payload is 16,000,000 bytes")


async def test_a_dead_letter_that_cannot_be_read_can_be_discarded(url: str, source: ScriptedSource) -> None:
    source.put(BROKEN)
    async with ingesting(source, url):
        await until(lambda: source.queue == [])
    with Inbox(url) as inbox:
        assert inbox.dead.discard("at:orders/0/17") == 1
        assert inbox.status().pending == inbox.dead.count() == 0
    source.put(BROKEN)
    async with ingesting(source, url) as (ingest, _):
        await until(lambda: source.queue == [])
        assert totals(ingest) == (0, 1, 0)


async def test_other_systems_messages_are_read_as_told(url: str, source: ScriptedSource) -> None:
    source.put(Incoming(channel="orders", place="7", body=b"x", headers={"kind": "Placed"}))
    async with ingesting(source, url, reading=Reading(type_header="kind")):
        await until(lambda: source.queue == [])
    assert rows(url, "SELECT event_id, event_type FROM inbox") == [("at:7", "Placed")]


async def test_a_database_that_is_away(source: ScriptedSource, tmp_path: Path) -> None:
    gate = TcpGate()
    direct = inbox_url("postgres", tmp_path)
    gate.target_port = int(direct.rpartition("/")[0].rpartition(":")[2])
    sent = events(10)
    try:
        async with ingesting(source, gate.through(direct), settings=Settings(ingest=IngestSettings(batch=4))) as (
            ingest,
            facts,
        ):
            source.put(*sent[:5])
            await until(lambda: source.queue == [])
            gate.refuse()
            source.put(*sent[5:])
            await until(lambda: len([fact for fact in facts if isinstance(fact, LoopFailed)]) >= 4)
            assert len(source.queue) == 5
            assert ingest.health() == Health("critical", ("the database does not accept",))
            gate.open()
            back = time.monotonic()
            await until(lambda: source.queue == [])
            assert time.monotonic() - back < LONGEST_PAUSE + 5
            assert ingest.health() == Health()
    finally:
        gate.close()
    assert source.opened == 1
    assert in_order(sent, arrivals(direct))


async def test_stopping_while_the_database_is_away_acknowledges_nothing(source: ScriptedSource, tmp_path: Path) -> None:
    gate = TcpGate()
    direct = inbox_url("postgres", tmp_path)
    gate.target_port = int(direct.rpartition("/")[0].rpartition(":")[2])
    try:
        async with ingesting(source, gate.through(direct)) as (_, facts):
            gate.refuse()
            source.put(*events(3))
            await until(lambda: any(isinstance(fact, LoopFailed) for fact in facts))
    finally:
        gate.close()
    assert (len(source.queue), source.acknowledged, source.closed) == (3, [], 1)


async def test_a_broker_that_is_away(url: str, source: ScriptedSource, caplog: pytest.LogCaptureFixture) -> None:
    source.away = "not there yet"
    with caplog.at_level(logging.WARNING, "relaybox"):
        async with ingesting(source, url) as (ingest, facts):
            assert ingest.health() == Health("critical", ("scripted is unavailable",))
            source.away = None
            source.put(*events(2))
            await until(lambda: source.queue == [])
            source.break_off()
            await until(lambda: ingest.health().reasons != ())
            source.put(*events(2))
            source.away = None
            await until(lambda: source.queue == [])
            assert ingest.health() == Health()
    assert [fact.open for fact in facts if isinstance(fact, CircuitChanged)] == [True, False, True, False]
    assert "scripted is unavailable: pulled out; messages wait there" in caplog.messages
    assert totals(ingest) == (4, 0, 0)


async def test_an_acknowledgement_that_is_lost_brings_the_messages_again(url: str, source: ScriptedSource) -> None:
    sent = events(4)
    source.put(*sent)
    async with ingesting(source, url) as (ingest, _):
        with crash_at("write.committed", error=RuntimeError()):
            await until(lambda: source.queue == [])
    assert in_order(sent, arrivals(url))
    assert totals(ingest).duplicates == 4


async def test_stopping_ends_the_batch_under_way(url: str, source: ScriptedSource) -> None:
    sent = events(6)
    source.put(*sent)
    async with AsyncInbox(url) as inbox:
        ingest = AsyncIngest(source, inbox, settings=Settings(ingest=IngestSettings(batch=2)))
        with crash_at("write.before", hit=2, action="delay"):
            async with ingest:
                await until(lambda: len(source.queue) == 4)
        assert ingest.health().reasons == ("not running",)
    assert len(source.acknowledged) == len(arrivals(url)) < 6
    assert source.closed == 1
    with pytest.raises(Closed):
        await ingest.__aenter__()


async def test_drained_means_that_nothing_was_left(url: str, source: ScriptedSource) -> None:
    source.put(*events(7))
    async with ingesting(source, url, settings=Settings(ingest=IngestSettings(batch=2, wait=0.05))) as (ingest, _):
        await ingest.drain()
    assert len(arrivals(url)) == 7


async def test_what_is_wrong_from_the_start_is_said_at_once(source: ScriptedSource, tmp_path: Path) -> None:
    empty = fresh_url("sqlite", tmp_path)
    async with AsyncInbox(empty) as inbox:
        with pytest.raises(SchemaMissing):
            await AsyncIngest(source, inbox).__aenter__()
        with pytest.raises(ConfigError, match="batch"):
            AsyncIngest(source, inbox, settings=Settings(ingest=IngestSettings(batch=0)))
        with pytest.raises(ConfigError, match="sender"):
            AsyncIngest(source, inbox, sender="s" * 256)
    assert source.closed == 1


async def test_a_standby_is_refused(source: ScriptedSource, tmp_path: Path) -> None:
    url = inbox_url("postgres", tmp_path)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"ALTER DATABASE {url.rpartition('/')[2]} SET default_transaction_read_only = on")
    async with AsyncInbox(url) as inbox:
        with pytest.raises(ConfigError, match="primary"):
            await AsyncIngest(source, inbox).__aenter__()


async def test_no_payload_and_no_header_is_logged(url: str, caplog: pytest.LogCaptureFixture) -> None:
    source: Any = ScriptedSource()
    source.put(Incoming(channel="orders", place="1", body=b"secret body", headers={"a": "secret\r"}))
    source.put(Event("OrderPlaced", {"card": "secret body"}))
    with caplog.at_level(logging.DEBUG):
        async with ingesting(source, url):
            await until(lambda: source.queue == [])
            await asyncio.sleep(0)
    assert "secret" not in caplog.text
    assert "message at:1 cannot be read and is a dead letter" in caplog.messages
