"""What was sent is what is received: bytes, attributes, content type, key and order."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import get_args

import pytest

from ...brokers.formats import MessageFormat, renderer
from ...brokers.parse import parse
from ...brokers.spi import Source
from ...event import Event
from ..sink_contract.content import BODIES
from ..sink_contract.harness import deliver
from .harness import PATIENCE, Fixtures, SourceHarness, check_order, collect, headers_of, id_of, send, sending


class DeliveryContract(Fixtures):
    async def test_bytes_arrive_as_they_were_sent(self, harness: SourceHarness, source: Source, channel: str) -> None:
        sent = [message for body in BODIES.values() for message in await send(harness, channel, ["a"], body)]
        bodies = {id_of(message): message.body for message in await collect(source, sent)}
        assert bodies == {message.id: message.body for message in sent}

    async def test_what_a_message_carries(self, harness: SourceHarness, source: Source, channel: str) -> None:
        sent = [*await send(harness, channel, ["order-7"]), *await send(harness, channel, [None])]
        found = {id_of(message): message for message in await collect(source, sent)}
        keyed, keyless = (found[message.id] for message in sent)
        for message in sent:
            received = found[message.id]
            assert headers_of(received) == message.attributes
            assert received.content_type == "application/json"
            assert received.sent_at is None or received.sent_at.tzinfo is not None
        assert keyed.key == ("order-7" if harness.has_key else None)
        assert keyed.place != keyless.place
        assert keyed.channel

    @pytest.mark.parametrize("form", get_args(MessageFormat))
    async def test_every_format_becomes_the_same_event(
        self, harness: SourceHarness, source: Source, channel: str, form: MessageFormat
    ) -> None:
        written = Event(
            "OrderPlaced",
            {"city": "Zürich", "total": 12.50},
            key="order 7/ü",
            aggregate_type="order",
            tenant="acme",
            occurred_at=datetime(2026, 1, 31, 12, 30, 15, 250000, tzinfo=UTC),
            headers={"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "note": "50 % für dich"},
        )
        async with sending(harness) as sink:
            render = renderer(form, "https://shop.example", sink.features)
            await deliver(sink, [render(written, harness.destination(channel))])
        async with asyncio.timeout(PATIENCE):
            while not (batch := await source.receive(10, 1.0)):
                pass
        await source.acknowledge(batch)
        [message] = batch
        read = parse(message)
        for name in ("id", "type", "key", "aggregate_type", "tenant", "content_type", "body"):
            assert getattr(read, name) == getattr(written, name), name
        assert {name: read.headers.get(name) for name in written.headers} == written.headers
        if form != "plain":  # which has the time of storing only
            assert read.occurred_at == written.occurred_at

    async def test_the_order_of_a_key(self, harness: SourceHarness, source: Source, channel: str) -> None:
        sent = await send(harness, channel, ["a", "b", "c"] * 10)
        found = await collect(source, sent, limit=7)
        if harness.ordered:
            check_order(sent, found)

    async def test_nothing_there(self, source: Source) -> None:
        loop = asyncio.get_running_loop()
        before = loop.time()
        assert list(await source.receive(10, 0.3)) == []
        assert loop.time() - before < 10

    async def test_who_waits_is_told_of_the_first(self, harness: SourceHarness, source: Source, channel: str) -> None:
        waiting = asyncio.create_task(source.receive(10, PATIENCE))
        sent = await send(harness, channel, ["a"])
        async with asyncio.timeout(PATIENCE / 2):
            batch = await waiting
        assert [id_of(message) for message in batch] == [sent[0].id]
        await source.acknowledge(batch)
