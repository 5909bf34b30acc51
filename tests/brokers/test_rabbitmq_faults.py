"""The RabbitMQ sink when the broker presses back, refuses, falls silent or loses its answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from pika.adapters.blocking_connection import BlockingChannel
from rabbitmq_harness import EXCHANGE, USER, RabbitMQHarness, shared_server

from relaybox.brokers.rabbitmq import connection as rabbitmq_connection
from relaybox.brokers.rabbitmq.sink import RabbitMQSink
from relaybox.errors import BrokerUnavailable, Reject
from relaybox.testing.servers.gate import TcpGate
from relaybox.testing.sink_contract import arrived, deliver, messages, opened, publish
from relaybox.testing.sink_contract.life import open_sockets

RESUME_SECONDS = 2.0


@pytest.fixture
def harness() -> RabbitMQHarness:
    return RabbitMQHarness(shared_server(), timeout=timedelta(seconds=2), connect_timeout=timedelta(seconds=1))


@pytest.fixture
async def sink(harness: RabbitMQHarness) -> AsyncIterator[RabbitMQSink]:
    async with opened(harness.sink()) as sink:
        yield sink


@pytest.fixture
def gate(harness: RabbitMQHarness) -> Iterator[TcpGate]:
    with TcpGate(harness.server.port) as gate:
        harness.options["url"] = gate.through(harness.url)
        yield gate


def outage(answers: list[Any]) -> bool:
    return {type(answer) for answer in answers} == {BrokerUnavailable} and {a.destination for a in answers} == {None}


async def resumed(sink: RabbitMQSink) -> None:
    async with asyncio.timeout(RESUME_SECONDS):
        while True:
            try:
                return await sink.probe()
            except BrokerUnavailable:
                await asyncio.sleep(0.1)


# -- back-pressure ----------------------------------------------------------------------------------


async def test_a_memory_alarm(harness: RabbitMQHarness, sink: RabbitMQSink) -> None:
    """The connection is kept: what the broker had not read comes in front of the next try, on the same channel."""
    destination = await harness.destination()
    before = messages(sink, destination, ["a", "b"])
    during = messages(sink, destination, ["a", "b"], first=2)
    after = messages(sink, destination, ["a", "b"], first=4)
    assert await publish(sink, before) == [None, None]
    with alarm(harness):
        for _ in range(2):
            async with asyncio.timeout(1.5):
                answers = await publish(sink, during)
            assert outage(answers)
            assert "alarm" in str(answers[0])
            with pytest.raises(BrokerUnavailable, match="alarm"):
                await sink.probe()
    await resumed(sink)
    assert await publish(sink, during) == [None, None]
    assert await publish(sink, after) == [None, None]
    await arrived(harness, destination, before + during + after, repeated=True)


async def test_opening_under_an_alarm(harness: RabbitMQHarness) -> None:
    destination = await harness.destination()
    with alarm(harness):
        async with opened(harness.sink()) as sink:
            assert outage(await publish(sink, messages(sink, destination, ["a"])))


@contextmanager
def alarm(harness: RabbitMQHarness) -> Iterator[None]:
    harness.server.ctl("set_vm_memory_high_watermark", "0")
    try:
        yield
    finally:
        harness.server.ctl("set_vm_memory_high_watermark", "0.4")


async def test_a_full_queue_holds_back_its_destination_only(harness: RabbitMQHarness, sink: RabbitMQSink) -> None:
    full = await harness.destination(**{"x-max-length": 1, "x-overflow": "reject-publish"})
    other = await harness.destination()
    fits = messages(sink, full, ["a"])
    assert await publish(sink, fits) == [None]
    refused, accepted = await publish(sink, messages(sink, full, ["b"]) + messages(sink, other, ["c"]))
    assert accepted is None
    assert isinstance(refused, BrokerUnavailable)
    assert refused.destination == full
    await arrived(harness, full, fits)


# -- refusals ---------------------------------------------------------------------------------------


async def test_no_permission_for_an_exchange(harness: RabbitMQHarness) -> None:
    """Events must not die of it, and those for other exchanges go out."""

    def make(channel: BlockingChannel) -> None:
        channel.exchange_declare("secret", "fanout", durable=True)

    await harness.with_pika(make)
    destination = await harness.destination()
    harness.server.ctl("set_permissions", USER, "", EXCHANGE, "")
    try:
        async with opened(harness.sink()) as sink:
            for number in range(2):
                ours = messages(sink, destination, ["a"], first=number)
                refused, accepted = await publish(sink, messages(sink, "secret/x", ["a"]) + ours)
                assert accepted is None
                assert isinstance(refused, BrokerUnavailable)
                assert refused.destination == "secret/x"
            await deliver(sink, messages(sink, destination, ["b"]))
    finally:
        harness.server.ctl("set_permissions", USER, "", ".*", "")


async def test_the_size_limit_of_the_broker(harness: RabbitMQHarness) -> None:
    """It closes the channel for everybody; only the large one is to blame."""
    destination = await harness.destination()
    # RabbitMQ 4 reads the setting once, when it starts.
    usual = harness.server.ctl("eval", "persistent_term:get(max_message_size, none).").strip()
    set_term = "true" if usual == "none" else "persistent_term:put(max_message_size, 10000)"
    harness.server.ctl("eval", f"application:set_env(rabbit, max_message_size, 10000), {set_term}.")
    try:
        async with opened(harness.sink()) as sink:
            small = messages(sink, destination, [f"key-{n}" for n in range(5)])
            large = messages(sink, destination, ["large"], b"x" * 20_000)
            answers = await publish(sink, [*small, *large])
            assert isinstance(answers[-1], Reject)
            assert all(answer is None or isinstance(answer, BrokerUnavailable) for answer in answers[:-1])
            await deliver(sink, [m for m, answer in zip(small, answers, strict=False) if answer is not None])
    finally:
        set_term = "true" if usual == "none" else f"persistent_term:put(max_message_size, {usual})"
        harness.server.ctl("eval", f"application:unset_env(rabbit, max_message_size), {set_term}.")
    await arrived(harness, destination, small, repeated=True)


async def test_a_virtual_host_that_does_not_exist(harness: RabbitMQHarness) -> None:
    sink = harness.sink(url=f"{harness.url}nowhere")
    with pytest.raises(BrokerUnavailable, match="nowhere"):
        await sink.open()
    await sink.close()


# -- silence ----------------------------------------------------------------------------------------


async def test_a_paused_broker(harness: RabbitMQHarness, sink: RabbitMQSink) -> None:
    """It reads what was sent before the pause after it: the copies must not come behind newer messages."""
    destination = await harness.destination()
    during = messages(sink, destination, [f"key-{n}" for n in range(200)])
    after = messages(sink, destination, [f"key-{n}" for n in range(200)], first=200)
    before = messages(sink, destination, ["key-0"])
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
    await arrived(harness, destination, before + during + after, repeated=True)


async def test_a_network_that_swallows_everything(harness: RabbitMQHarness, gate: TcpGate) -> None:
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
    await arrived(harness, destination, during + after, repeated=True)


async def test_lost_confirms(harness: RabbitMQHarness, gate: TcpGate) -> None:
    """The broker has the messages and we do not know: they go again with the same id, in front of newer ones."""
    destination = await harness.destination()
    async with opened(harness.sink()) as sink:
        before = messages(sink, destination, ["c"])
        assert await publish(sink, before) == [None]
        first = messages(sink, destination, ["a", "b"])
        gate.drop_replies()
        assert outage(await publish(sink, first))
        gate.open()
        await resumed(sink)
        await deliver(sink, first)
        later = messages(sink, destination, ["a", "b"], first=2)
        await deliver(sink, later)
    found = await arrived(harness, destination, before + first + later, repeated=True)
    assert len(found) == 7, "the first two came twice"


async def test_closing_into_silence(harness: RabbitMQHarness) -> None:
    """More than the kernel buffers is under way. It failed, so it must not be sent when the broker reads again."""
    destination = await harness.destination()
    sockets = open_sockets()
    sink = harness.sink()
    await sink.open()
    assert await publish(sink, messages(sink, destination, ["a"])) == [None]
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


async def test_a_silent_connection_is_given_up(harness: RabbitMQHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """aiormq then cancels whatever waits for it; that must not look like a cancellation of the relay."""
    monkeypatch.setattr(rabbitmq_connection, "HEARTBEAT", 1)
    known, unknown = await harness.destination(), (await harness.destination()).rpartition("/")[2]
    async with opened(harness.sink(timeout=timedelta(seconds=60))) as sink:
        assert await publish(sink, messages(sink, known, ["a"])) == [None]
        harness.server.pause()
        try:
            answers = await asyncio.gather(  # one waits for a confirm, the other for a channel
                publish(sink, messages(sink, known, ["a"])), publish(sink, messages(sink, unknown, ["b"]))
            )
            assert [outage(each) for each in answers] == [True, True]
        finally:
            harness.server.resume()


async def test_a_connection_lost_while_idle_is_replaced_by_the_next_publish(
    harness: RabbitMQHarness, gate: TcpGate
) -> None:
    destination = await harness.destination()
    async with opened(harness.sink()) as sink:
        gate.refuse()
        async with asyncio.timeout(5):
            while True:
                try:
                    await sink.probe()
                except BrokerUnavailable:
                    break
        gate.open()
        sent = messages(sink, destination, ["a"])
        assert await publish(sink, sent) == [None]
    await arrived(harness, destination, sent)
