"""A relay that claims fairly: what one tenant has waiting delays no other's message."""

from __future__ import annotations

from contextlib import closing

import pytest
from relay_kit import settings, write
from scripted_sink import ScriptedSink

from relaybox import AsyncRelay, Event, Outbox, Topic
from relaybox.errors import ConfigError, SchemaMissing


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
        box.topics.configure(Topic.pub_sub("orders"))
        group = box.topics.group("orders", "relay")
        with pytest.raises(ConfigError, match="'orders' is a log"):
            await AsyncRelay(group, ScriptedSink(), to="x", fair="tenant").start()
        assert not box.topics.groups("orders")
        async with AsyncRelay(group, ScriptedSink(), to="x", settings=settings({"delivery.fair": "tenant"})):
            pass


@pytest.mark.parametrize("url", ["postgres"], indirect=True)
async def test_a_queue_goes_out_from_one_tenant_after_the_other(url: str) -> None:
    with closing(Outbox(url)) as box:
        box.topics.configure(Topic.queue("jobs"))
        box.migrate(fair="tenant")
        for tenant, count in (("big", 600), ("small", 5)):
            for _ in range(0, count, 100):
                with box.transaction() as tx:
                    box.write_all(tx, [Event("T", tenant, tenant=tenant, topic="jobs") for _ in range(min(count, 100))])
        sink = ScriptedSink()
        with pytest.raises(ConfigError, match=r"fair='tenant' .* or ordered"):
            await AsyncRelay(box.topics.queue("jobs"), sink, to="x", fair="tenant").start()
        queue = box.topics.queue("jobs", fair="tenant")
        async with AsyncRelay(queue, sink, to="x", ordered=False, settings=settings({"delivery.batch": 50})) as relay:
            await relay.drain()
    bodies = [message.body for message in sink.sent]
    assert len(bodies) == 605
    assert max(place for place, body in enumerate(bodies) if b"small" in body) < 400
