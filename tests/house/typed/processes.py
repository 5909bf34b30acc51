"""Relays, ingests, maintainers and guards as programs use them. It is read, never run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_type

from relaybox import (
    AsyncGuard,
    AsyncInbox,
    AsyncIngest,
    AsyncMaintainer,
    AsyncOutbox,
    AsyncRelay,
    Event,
    Guard,
    Inbox,
    Ingest,
    Maintainer,
    Outbox,
    Relay,
    Settings,
)
from relaybox.spi import Answer, Features, Message
from relaybox.types import Counts, Health, Preview, Reading, Report, Service


class Nowhere:
    """A sink."""

    name = "nowhere"
    features = Features(keyed_order=True, dedup=False)

    async def open(self) -> None: ...

    async def publish(self, messages: Sequence[Message]) -> Sequence[Answer]:
        return [None for _ in messages]

    async def probe(self) -> None: ...

    async def close(self) -> None: ...


def by_type(event: Event) -> str:
    return event.type


def threads(outbox: Outbox, inbox: Inbox) -> None:
    services: list[Service] = [
        Relay(outbox, Nowhere(), to=by_type, ordered=False, format="cloudevents", ce_source="/shop"),
        Ingest("kafka://localhost/orders?group=billing", inbox, sender="shop", reading=Reading(type="OrderPlaced")),
        Maintainer("postgresql://localhost/shop", jobs=("ticks",), settings=Settings(), observers=[print]),
    ]
    for service in services:
        assert_type(service.once(), Counts)
        assert_type(service.health(), Health)
    with Relay("sqlite:///shop.db", "jsonl://out.jsonl", to="orders") as relay:
        assert_type(relay.drain(timeout="5s"), Counts)
        assert_type(relay.preview(10), list[Preview])
        assert_type(relay.failing(), int)
        print(relay.status().oldest_due)
    maintainer = Maintainer(outbox)
    assert_type(maintainer.report, Report)
    assert_type(maintainer.leading, bool)


async def loops(outbox: AsyncOutbox, inbox: AsyncInbox) -> None:
    async with AsyncRelay(outbox, Nowhere(), to="orders") as relay, AsyncIngest("sqs://eu?queue=q", inbox):
        assert_type(await relay.preview(limit=1), list[Preview])
        assert_type(await relay.drain(), Counts)
    await AsyncMaintainer(outbox).run(listen="127.0.0.1:9400")


def guards(event: Event) -> None:
    with Guard.sql("sqlite:///shop.db", consumer="mail") as guard:
        guard.migrate()
        with guard(event) as first:
            assert_type(first, bool)
        assert_type(guard.try_mark("id"), bool)
        guard.forget(event)


async def async_guards(event: Event) -> None:
    async with AsyncGuard.redis("redis://localhost", consumer="mail", ttl="30d") as guard:
        async with guard(event.id) as first:
            assert_type(first, bool)
        assert_type(await guard.try_mark(event), bool)
        await guard.forget("id")
