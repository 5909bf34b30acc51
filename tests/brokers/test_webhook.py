"""The sink contract for webhooks, with its outages seen per destination."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from webhook_harness import ReceiverServer, WebhookHarness

from relaybox.errors import BrokerUnavailable
from relaybox.spi import Sink
from relaybox.testing.sink_contract import SinkContract, SinkHarness, arrived, deliver, messages, publish


@pytest.fixture(scope="module")
def server() -> Iterator[ReceiverServer]:
    with ReceiverServer() as running:
        yield running


@pytest.fixture
def harness(server: ReceiverServer) -> WebhookHarness:
    server.start()
    return WebhookHarness(server)


class TestWebhook(SinkContract):
    """A probe says nothing about destinations, so the tests that ask one during an outage ask a publish instead."""

    async def test_an_outage(self, harness: SinkHarness, sink: Sink, destination: str) -> None:
        before = messages(sink, destination, ["a", "b"])
        during = messages(sink, destination, ["a", "b", "c"], first=2)
        after = messages(sink, destination, ["a", "b", "c"], first=5)
        assert await publish(sink, before) == [None, None]
        await harness.outage()
        try:
            for _ in range(2):
                answers = await publish(sink, during)
                assert [type(answer) for answer in answers] == [BrokerUnavailable] * 3
                assert {getattr(answer, "destination", None) for answer in answers} == {destination}
                await sink.probe()
        finally:
            await harness.recovery()
        assert await publish(sink, during) == [None] * 3
        assert await publish(sink, after) == [None] * 3
        await arrived(harness, destination, before + during + after, repeated=True)

    async def test_an_outage_under_load(self, harness: SinkHarness, sink: Sink, destination: str) -> None:
        sent = []
        started, stop = asyncio.Event(), False

        async def load() -> None:
            while not stop:
                batch = messages(sink, destination, [f"key-{n}" for n in range(20)], first=len(sent))
                sent.extend(batch)
                await deliver(sink, batch)
                started.set()

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(load())
            for _ in range(2):
                await started.wait()
                await harness.outage()
                await harness.recovery()
                started.clear()
            await started.wait()
            stop = True
        await arrived(harness, destination, sent, repeated=True)

    async def test_opening_while_the_broker_is_away(self, harness: SinkHarness, destination: str) -> None:
        """No endpoint stands for the others: opening needs none."""
        sink = harness.sink()
        await harness.outage()
        try:
            await sink.open()
        finally:
            await harness.recovery()
        sent = messages(sink, destination, ["a"])
        assert await publish(sink, sent) == [None]
        await sink.close()
        await arrived(harness, destination, sent)
