"""The NATS sink when the server refuses, falls silent, loses its answers or goes away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from nats_harness import USER, NatsHarness, RawNats, Settings, private_server

from relaybox.brokers.nats.connection import NatsConnection
from relaybox.brokers.nats.sink import NatsSink
from relaybox.errors import BrokerUnavailable, DeliveryError
from relaybox.testing.servers import NatsServer
from relaybox.testing.servers.gate import TcpGate
from relaybox.testing.sink_contract import SECRET, arrived, deliver, messages, opened, publish
from relaybox.testing.sink_contract.life import open_sockets

RESUME_SECONDS = 2.0


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with private_server() as running:
        yield running


@pytest.fixture
def harness(server: NatsServer) -> NatsHarness:
    return NatsHarness(server, timeout=timedelta(seconds=1), connect_timeout=timedelta(seconds=1))


@pytest.fixture
async def sink(harness: NatsHarness) -> AsyncIterator[NatsSink]:
    async with opened(harness.sink()) as sink:
        yield sink


@pytest.fixture
def gate(harness: NatsHarness) -> Iterator[TcpGate]:
    with TcpGate(harness.server.port) as gate:
        harness.options["url"] = gate.through(harness.url)
        yield gate


def outage(answers: list[Any]) -> bool:
    return {type(answer) for answer in answers} == {BrokerUnavailable} and {a.destination for a in answers} == {None}


async def resumed(sink: NatsSink) -> None:
    async with asyncio.timeout(RESUME_SECONDS):
        while True:
            try:
                return await sink.probe()
            except BrokerUnavailable:
                await asyncio.sleep(0.1)


# -- outages ----------------------------------------------------------------------------------------


async def test_what_failed_is_not_sent_behind_the_relays_back(harness: NatsHarness, sink: NatsSink) -> None:
    """A client that buffers, or reconnects by itself, would deliver these after the server's return."""
    destination = await harness.destination()
    before = messages(sink, destination, ["a"])
    assert await publish(sink, before) == [None]
    await harness.outage()
    try:
        for number in range(3):
            assert outage(await publish(sink, messages(sink, destination, ["a"], first=number)))
    finally:
        await harness.recovery()
    await resumed(sink)
    after = messages(sink, destination, ["a"], first=9)
    assert await publish(sink, after) == [None]
    await arrived(harness, destination, before + after)


async def test_a_paused_server(harness: NatsHarness, sink: NatsSink) -> None:
    destination = await harness.destination()
    before = messages(sink, destination, ["key-0"])
    during = messages(sink, destination, [f"key-{n}" for n in range(200)])
    after = messages(sink, destination, [f"key-{n}" for n in range(200)], first=200)
    assert await publish(sink, before) == [None]
    harness.server.pause()
    try:
        assert outage(await publish(sink, during))
        for _ in range(2):
            with pytest.raises(BrokerUnavailable):
                await sink.probe()
    finally:
        harness.server.resume()
    await resumed(sink)
    await deliver(sink, during)
    await deliver(sink, after)
    await arrived(harness, destination, before + during + after)


async def test_a_network_that_swallows_everything(harness: NatsHarness, gate: TcpGate) -> None:
    destination = await harness.destination()
    async with opened(harness.sink()) as sink:
        during = messages(sink, destination, ["a", "b"])
        after = messages(sink, destination, ["a", "b"], first=2)
        gate.blackhole()
        assert outage(await publish(sink, during))
        with pytest.raises(BrokerUnavailable):
            await sink.probe()
        gate.open()
        await resumed(sink)
        await deliver(sink, during)
        await deliver(sink, after)
    await arrived(harness, destination, during + after)


async def test_lost_acknowledgements(harness: NatsHarness, gate: TcpGate) -> None:
    """The stream has the messages and we do not know: they go again with the same id, and it drops them."""
    destination = await harness.destination()
    async with opened(harness.sink()) as sink:
        first = messages(sink, destination, ["a", "b"])
        gate.drop_replies()
        assert outage(await publish(sink, first))
        gate.open()
        await resumed(sink)
        await deliver(sink, first)
        later = messages(sink, destination, ["a", "b"], first=2)
        await deliver(sink, later)
    await arrived(harness, destination, first + later)


async def test_closing_into_silence(harness: NatsHarness) -> None:
    """More than the kernel buffers is under way. It failed, so it must not be sent when the server reads again."""
    destination = await harness.destination()
    sockets = open_sockets()
    sink = harness.sink()
    await sink.open()
    harness.server.pause()
    try:
        large = messages(sink, destination, [f"key-{n}" for n in range(100)], b"x" * 200_000)
        assert outage(await publish(sink, large))
        async with asyncio.timeout(2):
            await sink.close()
            while open_sockets() > sockets:
                await asyncio.sleep(0.02)
    finally:
        harness.server.resume()


async def test_a_publish_hears_of_the_end_of_its_connection(harness: NatsHarness) -> None:
    destination = await harness.destination()
    async with opened(harness.sink(timeout=timedelta(seconds=60))) as sink:
        harness.server.pause()
        try:
            publishing = asyncio.create_task(publish(sink, messages(sink, destination, ["a"])))
            await asyncio.sleep(0)
            await harness.outage()
            async with asyncio.timeout(2):
                assert outage(await publishing)
        finally:
            await harness.recovery()


# -- nobody answers ---------------------------------------------------------------------------------


async def test_a_subscriber_is_no_stream(harness: NatsHarness, sink: NatsSink) -> None:
    """Somebody listens and nobody stores: no server says "no responders", and it is no outage either."""
    destination = await harness.destination()
    async with RawNats(harness.server.port) as listener:
        await listener.subscribe("only.listened.to")
        lost = messages(sink, "only.listened.to", ["a"])
        sent = messages(sink, destination, ["b"])
        failed, accepted = await publish(sink, lost + sent)
    assert accepted is None
    assert type(failed) is DeliveryError
    assert "no stream takes the subject 'only.listened.to'" in str(failed)


async def test_something_else_answers(harness: NatsHarness, sink: NatsSink) -> None:
    async with RawNats(harness.server.port) as responder:
        await responder.subscribe("echo")
        replying = asyncio.create_task(responder.reply(b'"hello"'))
        [answer] = await publish(sink, messages(sink, "echo", ["a"]))
        await replying
    assert type(answer) is DeliveryError
    assert "no stream answers on 'echo'" in str(answer)


async def test_a_stream_that_never_acknowledges(harness: NatsHarness, sink: NatsSink) -> None:
    silent = await harness.destination(no_ack=True)
    destination = await harness.destination()
    waits, accepted = await publish(sink, messages(sink, silent, ["a"]) + messages(sink, destination, ["b"]))
    assert accepted is None
    assert isinstance(waits, BrokerUnavailable)
    assert waits.destination == silent


async def test_jetstream_is_off() -> None:
    """An operator must act; events must not die of it."""
    with private_server(Settings(jetstream=False)) as server:
        async with opened(NatsHarness(server).sink()) as sink:
            [answer] = await publish(sink, messages(sink, "orders", ["a"]))
    assert isinstance(answer, BrokerUnavailable)
    assert "JetStream is off" in str(answer)


# -- permissions ------------------------------------------------------------------------------------


def shy(**permissions: dict[str, list[str]]) -> Settings:
    """A second account, which may not do everything."""
    everything = {"user": USER, "password": SECRET}
    return Settings(authorization={"users": [everything, {**everything, "user": "shy", "permissions": permissions}]})


async def test_no_permission_to_publish() -> None:
    """The server says it once, unasked, and never answers the message."""
    with private_server(shy(publish={"deny": ["Forbidden.>", "$JS.API.>"]})) as server:
        harness = NatsHarness(server, timeout=timedelta(seconds=5))
        destination = await harness.destination()
        async with opened(harness.sink(username="shy")) as sink:
            lost = messages(sink, "Forbidden.Fruit", ["a"])
            sent = messages(sink, destination, ["b"])
            async with asyncio.timeout(3):
                refused, accepted = await publish(sink, lost + sent)
            assert accepted is None
            assert isinstance(refused, BrokerUnavailable)
            assert refused.destination == "Forbidden.Fruit"
            assert sink.features.dedup_window == timedelta(minutes=2)  # it may not ask the stream either
            await deliver(sink, messages(sink, destination, ["b"], first=1))


async def test_no_permission_for_the_inbox() -> None:
    with private_server(shy(subscribe={"allow": ["mine.>"]})) as server:
        harness = NatsHarness(server)
        sink = harness.sink(username="shy")
        with pytest.raises(BrokerUnavailable, match="inbox_prefix"):
            await sink.open()
        await sink.close()
        destination = await harness.destination()
        async with opened(harness.sink(username="shy", inbox_prefix="mine")) as sink:
            assert await publish(sink, messages(sink, destination, ["a"])) == [None]


async def test_a_token() -> None:
    with private_server(Settings(authorization={"token": SECRET})) as server:
        connection = NatsConnection(f"nats://127.0.0.1:{server.port}", token=SECRET)
        assert SECRET not in repr(connection)
        for given in (connection, f"nats://{SECRET}@127.0.0.1:{server.port}"):
            async with opened(NatsSink(given)) as sink:
                assert SECRET not in repr(sink)
                await sink.probe()
        sink = NatsSink(f"nats://wrong-{SECRET}@127.0.0.1:{server.port}")
        with pytest.raises(BrokerUnavailable) as caught:
            await sink.open()
        assert SECRET not in str(caught.value)


async def test_an_nkey(tmp_path: Path) -> None:
    nkeys = pytest.importorskip("nkeys", reason="pip install nats-py[nkeys]")
    seed = b"SUAMLK2ZNL35WSMW37E7UD4VZ7ELPKW7DHC3BWBSD2GCZ7IUQQXZIORRBU"
    public = nkeys.from_seed(bytearray(seed)).public_key.decode()
    file = tmp_path / "relay.nk"
    file.write_bytes(seed)
    with private_server(Settings(authorization={"users": [{"nkey": public}]})) as server:
        async with opened(NatsSink(f"nats://127.0.0.1:{server.port}?nkey_file={file}")) as sink:
            await sink.probe()
        sink = NatsSink(f"nats://127.0.0.1:{server.port}?nkey_file={file}")
        file.write_bytes(b"SU no longer a seed")
        with pytest.raises(BrokerUnavailable):
            await sink.open()
