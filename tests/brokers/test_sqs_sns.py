"""The SQS and SNS sinks against moto: the contract, and what only they do."""

from __future__ import annotations

import hashlib
import urllib.request
from collections.abc import Iterator
from datetime import timedelta

import pytest
from aws_harness import ACCOUNT, SnsHarness, SqsHarness

from relaybox.brokers.aws.messages import encode
from relaybox.brokers.aws.sqs_sink import SqsSink
from relaybox.errors import BrokerUnavailable, DeliveryError
from relaybox.testing.servers import MotoServer, TcpGate, require
from relaybox.testing.sink_contract import SinkContract, arrived, messages, opened, publish


@pytest.fixture(scope="module")
def server() -> MotoServer:
    return require("moto")


@pytest.fixture(scope="module")
def gate(server: MotoServer) -> Iterator[TcpGate]:
    with TcpGate(server.port) as gate:
        yield gate


@pytest.fixture(scope="module")
def guarded(server: MotoServer) -> Iterator[MotoServer]:
    """A moto that checks credentials, and knows none."""
    with MotoServer() as strict:
        switch = urllib.request.Request(f"{strict.url}/moto-api/reset-auth", b"0", {"Content-Type": "text/plain"})
        urllib.request.urlopen(switch).close()
        yield strict


class TestSqs(SinkContract):
    @pytest.fixture
    def harness(self, server: MotoServer, gate: TcpGate, guarded: MotoServer) -> SqsHarness:
        return SqsHarness(server, gate, guarded, fifo=False)


class TestSqsFifo(SinkContract):
    @pytest.fixture
    def harness(self, server: MotoServer, gate: TcpGate, guarded: MotoServer) -> SqsHarness:
        return SqsHarness(server, gate, guarded, fifo=True)


class TestSns(SinkContract):
    @pytest.fixture
    def harness(self, server: MotoServer, gate: TcpGate, guarded: MotoServer) -> SnsHarness:
        return SnsHarness(server, gate, guarded, fifo=False)


class TestSnsFifo(SinkContract):
    @pytest.fixture
    def harness(self, server: MotoServer, gate: TcpGate, guarded: MotoServer) -> SnsHarness:
        return SnsHarness(server, gate, guarded, fifo=True)


@pytest.fixture(params=[SqsHarness, SnsHarness])
def harness(request: pytest.FixtureRequest, server: MotoServer, gate: TcpGate, guarded: MotoServer) -> SqsHarness:
    return request.param(server, gate, guarded, fifo=True)


async def test_headers_that_do_not_fit_travel_together(harness: SqsHarness) -> None:
    headers = {f"x-{n}": f"value {n}" for n in range(12)}
    headers |= {"empty": "", "bell": "\x07", "größe": "XL", "AWS.thing": "1", "a..b": "2", "headers": "3"}
    destination = await harness.destination()
    async with opened(harness.sink()) as sink:
        [plain] = messages(sink, destination, ["a"])
        event = plain.event.with_headers(headers)
        message = plain._replace(event=event, attributes={**headers, **plain.attributes})
        assert await publish(sink, [message]) == [None]
        assert len(encode(message).attributes) == 10
    [found] = await harness.read(destination, 1)
    assert found.attributes == message.attributes


async def test_groups_and_deduplication_ids(harness: SqsHarness) -> None:
    destination = await harness.destination()
    async with opened(harness.sink()) as sink:
        sent = messages(sink, destination, ["order-7", "with space", None])
        assert await publish(sink, sent) == [None] * 3
    url = harness.queues.get_queue_url(QueueName=destination)["QueueUrl"]
    found = harness.queues.receive_message(QueueUrl=url, MaxNumberOfMessages=10, AttributeNames=["All"])["Messages"]
    ids = [(m["Attributes"]["MessageGroupId"], m["Attributes"]["MessageDeduplicationId"]) for m in found]
    space = hashlib.sha256(b"with space").hexdigest()
    assert ids == [("order-7", sent[0].id), (space, sent[1].id), (sent[2].id, sent[2].id)]


async def test_a_queue_that_is_deleted_and_made_again(harness: SqsHarness) -> None:
    destination = await harness.destination()
    async with opened(harness.sink()) as sink:
        assert await publish(sink, messages(sink, destination, ["a"])) == [None]
        harness.delete(destination)
        [answer] = await publish(sink, messages(sink, destination, ["a"]))
        assert type(answer) is DeliveryError
        assert destination in str(answer)
        harness._create_queue(destination)
        assert await publish(sink, messages(sink, destination, ["a"])) == [None]


async def test_names_urls_and_arns(harness: SqsHarness) -> None:
    destination = await harness.destination()
    arn = f"arn:aws:{harness.kind.name}:{harness.server.region}:{ACCOUNT}:{destination}"
    url = harness.queues.get_queue_url(QueueName=destination)["QueueUrl"]
    names = [destination, arn, url] if harness.kind is SqsSink else [destination, arn]
    async with opened(harness.sink()) as sink:
        sent = [message for name in names for message in messages(sink, name, ["a"])]
        assert await publish(sink, sent) == [None] * len(names)
    assert len(await harness.read(destination, len(names))) == len(names)


async def test_a_fifo_sink_refuses_other_destinations(harness: SqsHarness) -> None:
    async with opened(harness.sink()) as sink:
        [answer] = await publish(sink, messages(sink, "orders", ["a"]))
        assert type(answer) is DeliveryError
        assert "'orders'" in str(answer)


async def test_a_topic_name_without_an_account(server: MotoServer, gate: TcpGate, guarded: MotoServer) -> None:
    harness = SnsHarness(server, gate, guarded, fifo=False)
    async with opened(harness.sink(account=None)) as sink:
        [answer] = await publish(sink, messages(sink, "orders", ["a"]))
        assert type(answer) is DeliveryError
        assert "account" in str(answer)


async def test_a_blackhole(harness: SqsHarness) -> None:
    destination = await harness.destination()
    async with opened(harness.sink(read_timeout=timedelta(seconds=1))) as sink:
        sent = messages(sink, destination, ["a", "b"])
        harness.gate.blackhole()
        try:
            answers = await publish(sink, sent)
            assert [type(answer) for answer in answers] == [BrokerUnavailable] * 2
            with pytest.raises(BrokerUnavailable):
                await sink.probe()
        finally:
            harness.gate.open()
        await sink.probe()
        assert await publish(sink, sent) == [None, None]
    await arrived(harness, destination, sent)


@pytest.mark.parametrize("text", ["", "bell \x07", "fine\t✓", "\ufffe"])
def test_what_is_no_text_for_aws(text: str) -> None:
    [message] = messages(SqsSink(), "orders", ["a"], text.encode())
    encoding = encode(message).attributes.get("body_encoding")
    assert (encoding is None) == (text == "fine\t✓")


def test_sizes_count_names_types_and_values() -> None:
    [message] = messages(SqsSink(), "orders", [None], "Zürich".encode())
    message = message._replace(attributes={"name": "välue"}, content_type="text/plain")
    expected = len("Zürich".encode()) + len("content_typeStringtext/plain") + len("nameStringvälue".encode())
    assert encode(message).size == expected
