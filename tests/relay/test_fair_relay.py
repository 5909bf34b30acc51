"""A relay that claims fairly: what one tenant has waiting delays no other's message."""

from __future__ import annotations

from contextlib import closing

import pytest
from relay_kit import settings, write
from scripted_sink import ScriptedSink

from relaybox import AsyncRelay, Event, Outbox
from relaybox.errors import ConfigError, SchemaMissing
from relaybox.topics.start import StartFrom


def backlog() -> list[Event]:
    return [Event("T", "big", tenant="big") for _ in range(600)] + [
        Event("T", "small", tenant="small") for _ in range(5)
    ]


@pytest.mark.parametrize("way", ["argument", "setting"])
async def test_messages_go_out_from_one_tenant_after_the_other(url: str, way: str) -> None:
    for start in range(0, 605, 100):  # each waits by itself
        write(url, backlog()[start : start + 100])
    with closing(Outbox(url)) as box:
        box.migrate(fair="tenant")
    sink = ScriptedSink()
    changes = {"delivery.batch": 50, **({} if way == "argument" else {"delivery.fair": "tenant"})}
    fair = {"fair": "tenant"} if way == "argument" else {}
    async with AsyncRelay(url, sink, to="x", ordered=False, settings=settings(changes), **fair) as relay:  # type: ignore[arg-type]
        await relay.drain()
    bodies = [message.body for message in sink.sent]
    assert len(bodies) == 605
    assert max(place for place, body in enumerate(bodies) if b"small" in body) < 400


async def test_what_does_not_fit_together_is_refused_at_once(sqlite: str) -> None:
    sink = ScriptedSink()
    with pytest.raises(ConfigError, match=r"fair='tenant' .* or ordered"):
        AsyncRelay(sqlite, sink, to="x", fair="tenant")
    with pytest.raises(ConfigError, match=r"fair='tenant' .* or ordered"):
        AsyncRelay(sqlite, sink, to="x", settings=settings({"delivery.fair": "tenant"}))
    relay = AsyncRelay(sqlite, sink, to="x", ordered=False, fair="tenant")
    with pytest.raises(SchemaMissing, match="migrate --fair tenant"):
        await relay.start()
    AsyncRelay(sqlite, sink, to="x", fair="off", settings=settings({"delivery.fair": "tenant"}))


@pytest.mark.parametrize("url", ["postgres"], indirect=True)
async def test_a_log_has_an_order_of_its_own(url: str) -> None:
    with closing(Outbox(url)) as box:
        group = box.topics.group("orders", "relay", start=StartFrom.latest())
        with pytest.raises(ConfigError, match="a group's log is read in its order"):
            AsyncRelay(group, ScriptedSink(), to="x", fair="tenant")
        AsyncRelay(group, ScriptedSink(), to="x", settings=settings({"delivery.fair": "tenant"}))
