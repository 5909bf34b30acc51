"""The Pub/Sub source against the emulator or the kit's stand-in: the contract, ordering keys, refused calls."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from relaybox.brokers.pubsub.sink import PubSubSink
from relaybox.brokers.pubsub.source import PubSubSource
from relaybox.errors import BrokerUnavailable, ConfigError
from relaybox.testing.servers import PubSubServer, TcpGate, require
from relaybox.testing.source_contract import SourceContract, SourceHarness, collect, comes_no_more, opened, send


class PubSubHarness(SourceHarness):
    """An emulator is not ours to be killed: a gate in front of it refuses instead."""

    kind = PubSubSource
    has_key = True

    def __init__(self, server: PubSubServer, gate: TcpGate) -> None:
        self.server = server
        self.gate = gate
        self._topics: dict[str, str] = {}

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.gate.port}"

    def sink(self) -> PubSubSink:
        return PubSubSink(f"pubsub://relaybox?emulator_host={self.host}")

    def url(self, channel: str, *, lease: float | None = None) -> str:
        return f"pubsub://relaybox?emulator_host={self.host}&subscription={channel}&ack_deadline={lease or 60:g}s"

    async def channel(self, **settings: Any) -> str:
        topic = await asyncio.to_thread(self.server.fresh_topic)
        name = await asyncio.to_thread(self.server.fresh_subscription, topic, **settings)
        self._topics[name] = topic
        return name

    def destination(self, channel: str) -> str:
        return self._topics[channel]

    async def outage(self) -> None:
        if self.server.emulator:
            self.gate.refuse()
        else:
            self.server.kill()

    async def recovery(self) -> None:
        if self.server.emulator:
            self.gate.open()
        else:
            await asyncio.to_thread(self.server.start)


@pytest.fixture(scope="module")
def server() -> PubSubServer:
    return require("pubsub")


@pytest.fixture(scope="module")
def gate(server: PubSubServer) -> Iterator[TcpGate]:
    with TcpGate(int(server.host.rpartition(":")[2])) as gate:
        yield gate


@pytest.fixture
def harness(server: PubSubServer, gate: TcpGate) -> PubSubHarness:
    return PubSubHarness(server, gate)


@pytest.fixture
def scripted(harness: PubSubHarness) -> PubSubHarness:
    if harness.server.emulator:
        pytest.skip("the emulator cannot be scripted")
    return harness


class TestPubSub(SourceContract):
    @pytest.fixture
    def harness(self, server: PubSubServer, gate: TcpGate) -> PubSubHarness:
        return PubSubHarness(server, gate)


async def test_a_key_stays_in_order_when_it_comes_again(harness: PubSubHarness) -> None:
    subscription = await harness.channel()
    sent = await send(harness, subscription, ["a", "b"] * 3)
    async with opened(harness.source(subscription)) as source:
        await collect(source, sent, acknowledge=False)
        await source.open()
        again = await collect(source, sent, limit=2)
    for key in "ab":
        found = [message.headers["event_id"] for message in again if message.key == key]
        assert found == [message.id for message in sent if message.key == key]


async def test_a_subscription_without_order_and_with_a_short_deadline(harness: PubSubHarness) -> None:
    """Its own deadline is not what counts: ours is set at once."""
    if harness.server.emulator:
        pytest.skip("the emulator takes no deadline below ten seconds")
    subscription = await harness.channel(ordered=False, ack_seconds=1)
    sent = await send(harness, subscription, ["a", "a", None])
    async with opened(harness.source(subscription)) as source:
        found = await collect(source, sent, acknowledge=False)
        assert list(await source.receive(10, 1.5)) == []
        await source.acknowledge(found)
        await comes_no_more(source, sent, wait=0.1)


async def test_a_pull_that_finds_nothing_in_time(scripted: PubSubHarness) -> None:
    subscription = await scripted.channel()
    async with opened(scripted.source(subscription)) as source:
        scripted.server.fail("Pull", "DEADLINE_EXCEEDED")
        assert list(await source.receive(10, 0.2)) == []
        await collect(source, await send(scripted, subscription, ["a"]))


@pytest.mark.parametrize("code", ["UNAVAILABLE", "RESOURCE_EXHAUSTED", "PERMISSION_DENIED", "INTERNAL"])
async def test_a_refused_pull(scripted: PubSubHarness, code: Any) -> None:
    subscription = await scripted.channel()
    sent = await send(scripted, subscription, ["a"])
    async with opened(scripted.source(subscription)) as source:
        scripted.server.fail("Pull", code)
        with pytest.raises(BrokerUnavailable, match=code):
            await source.receive(10, 5.0)
        await source.open()
        await collect(source, sent)


async def test_an_acknowledgement_that_is_done_but_not_answered(scripted: PubSubHarness) -> None:
    subscription = await scripted.channel()
    sent = await send(scripted, subscription, ["a"])
    async with opened(scripted.source(subscription)) as source:
        found = await collect(source, sent, acknowledge=False)
        scripted.server.fail("Acknowledge", "UNAVAILABLE", done_first=True)
        with pytest.raises(BrokerUnavailable):
            await source.acknowledge(found)
        await source.open()
        await comes_no_more(source, sent, wait=0.3)


async def test_a_subscription_that_is_not_there(harness: PubSubHarness) -> None:
    with pytest.raises(ConfigError, match="there is no subscription 'projects/relaybox/subscriptions/nobody'"):
        await harness.source("nobody").open()


@pytest.mark.parametrize(
    ("url", "options", "expected"),
    [
        ("pubsub://shop", {}, "expected subscription"),
        ("pubsub://", {"subscription": "orders"}, "expected pubsub://project"),
        ("pubsub://shop", {"subscription": "a b"}, "expected a subscription's name .*got 'a b'"),
        ("pubsub://shop", {"subscription": "topics/orders"}, "expected a subscription's name"),
        ("pubsub://shop", {"subscription": "orders", "ack_deadline": "11m"}, "one second to ten minutes, got 0:11:00"),
        ("pubsub://shop", {"subscription": "orders", "timeout": "0s"}, "expected timeout to be a positive duration"),
        ("pubsub://shop", {"subscription": "orders", "endpoint": "https://x"}, "expected endpoint"),
    ],
)
def test_wrong_options(url: str, options: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        PubSubSource.from_url(url, options)
