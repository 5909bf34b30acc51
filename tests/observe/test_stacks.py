"""The log says where something failed: in listeners of every kind, sinks, sources and loops; and no payload."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ingest.scripted_source import ScriptedSource
from kit import migrated
from relay.scripted_sink import ScriptedSink
from relaybox import (
    AsyncInbox,
    AsyncIngest,
    AsyncOutbox,
    AsyncRelay,
    Event,
    Inbox,
    Listeners,
    Outbox,
    Retry,
    Settings,
    Topic,
)
from relaybox.clock import SYSTEM_CLOCK
from relaybox.facts import LoopFailed, Observers
from relaybox.settings import DeliverySettings
from relaybox.spi import Incoming, Message
from relaybox.tasks import forever
from relaybox.testing import Probe
from relaybox.testing.servers import require

ONCE = Settings(delivery=DeliverySettings(retry=Retry(attempts=1)))


def stumble(values: object) -> None:
    raise ValueError(f"refused {values}")


@pytest.fixture
def url(tmp_path: Path) -> str:
    address = f"sqlite:///{tmp_path}/shop.db"
    with migrated(address):
        pass
    return address


def listeners(how: str) -> Listeners[Any]:
    made: Listeners[Any] = Listeners()
    if how == "async":

        @made.on("T")
        async def listen(event: Event) -> None:
            stumble(event.payload)
    elif how == "batch":

        @made.on_batch("T")
        def listen_to_many(events: Sequence[Event]) -> None:
            stumble(events[0].payload)
    else:

        @made.on("T")
        def listen_in_a_thread(event: Event) -> None:
            stumble(event.payload)

    return made


def said(caplog: pytest.LogCaptureFixture) -> str:
    """The one line about it: a warning that shows our way through this file, and nothing of the payload."""
    (line,) = [
        r.getMessage() for r in caplog.records if "in stumble" in r.getMessage() and r.levelno == logging.WARNING
    ]
    assert line.count("ValueError") >= 1
    assert "4111" not in line
    assert "concurrent/futures" not in line
    return line


@pytest.mark.parametrize("how", ["thread", "async", "batch"])
def test_a_listener_of_an_outbox(url: str, how: str, caplog: pytest.LogCaptureFixture) -> None:
    with Outbox(url, settings=ONCE) as box:
        with box.transaction() as tx:
            box.write(tx, Event("T", "4111"))
        assert box.deliver(listeners(how)).once().dead == 1
    assert said(caplog).startswith("event ")


@pytest.mark.parametrize("batch", [1, 10])
def test_a_listener_of_an_inbox(url: str, batch: int, caplog: pytest.LogCaptureFixture) -> None:
    made: Listeners[Any] = Listeners()

    @made.on("T")
    def listen(event: Event, connection: Any) -> None:
        stumble(event.payload)

    with Inbox(url, "orders", settings=ONCE) as inbox:
        inbox.migrate()
        inbox.accept(None, Event("T", "4111"))
        assert inbox.process(made, batch=batch).once().dead == 1
    assert "in listen" in said(caplog)


@pytest.mark.parametrize("how", ["thread", "async", "batch"])
def test_a_listener_of_a_group(how: str, caplog: pytest.LogCaptureFixture) -> None:
    with migrated(require("postgres-wheel", durable=False).create_database()) as box:
        box.topics.configure(Topic.pub_sub("orders"))
        group = box.topics.group("orders", "mail", on_exhausted="park", retry=Retry(attempts=1))
        group.create()
        with box.transaction() as tx:
            box.write(tx, Event("T", "4111", topic="orders"))
        group.deliver(listeners(how)).once()
    said(caplog)


async def test_a_sink_with_a_bug(url: str, caplog: pytest.LogCaptureFixture) -> None:
    def broken(message: Message) -> None:
        stumble(message.body)

    settings = Settings().replaced({"relay.retry.attempts": 1, "order.on_exhausted": "park"})
    async with AsyncOutbox(url) as box:
        async with box.transaction() as tx:
            await box.write(tx, Event("T", "4111"))
        await AsyncRelay(box, ScriptedSink(broken), to="x", settings=settings).once()
    assert "in broken" in said(caplog)


async def test_a_source_with_a_bug(url: str, caplog: pytest.LogCaptureFixture) -> None:
    class Broken(ScriptedSource):
        async def receive(self, limit: int, wait: float) -> Sequence[Incoming]:
            stumble("41" + "11")
            return []

    probe = Probe()
    async with AsyncInbox(url, "orders") as inbox:
        await inbox.migrate()
        async with AsyncIngest(Broken(), inbox, sender="shop", observers=[probe]):
            await probe.wait(LoopFailed)
    assert said(caplog).startswith("scripted is unavailable: ValueError")


async def test_a_loop_with_a_bug_shows_its_stack_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    import asyncio

    probe, calls = Probe(), 0

    async def step() -> None:
        nonlocal calls
        calls += 1
        raise KeyError("nobody expected it")

    looping = asyncio.create_task(forever("purge", step, Observers([probe]), SYSTEM_CLOCK, longest=0.01))
    await probe.wait(LoopFailed, 3)
    looping.cancel()
    await asyncio.wait([looping])
    lines = [record.getMessage() for record in caplog.records if record.getMessage().startswith("purge failed")]
    assert [("in step" in line) for line in lines[:3]] == [True, False, False]
