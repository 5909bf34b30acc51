"""The SQS source against moto: the contract for FIFO queues, then standard ones, SNS, requests that fail in part."""

from __future__ import annotations

import asyncio
import functools
import itertools
import json
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from relaybox.brokers.aws.connection import AwsConnection
from relaybox.brokers.aws.sns_sink import SnsSink
from relaybox.brokers.aws.sqs_sink import SqsSink
from relaybox.brokers.aws.sqs_source import SqsSource
from relaybox.errors import BrokerUnavailable, ConfigError
from relaybox.testing.servers import MotoServer, TcpGate, require
from relaybox.testing.sink_contract import SECRET, deliver, messages
from relaybox.testing.source_contract import SourceContract, SourceHarness, collect, comes_no_more, opened, send

_names = itertools.count()


@functools.cache
def client(server: MotoServer) -> Any:
    return server.client("sqs")


class SqsHarness(SourceHarness):
    kind = SqsSource
    ordered_after_outage = False  # moto's long polls for clients that are gone run on, unaware of each other's groups

    def __init__(self, server: MotoServer, gate: TcpGate, guarded: MotoServer, *, fifo: bool) -> None:
        self.server = server
        self.gate = gate
        self.guarded = guarded
        self.queues = client(server)
        self.ordered = self.has_key = self.fifo = fifo

    @property
    def access(self) -> dict[str, Any]:
        keys = {"access_key_id": "canary", "secret_access_key": SECRET}
        return {"endpoint_url": self.gate.through(self.server.url), "region": self.server.region, **keys}

    def sink(self) -> SqsSink:
        return SqsSink(AwsConnection(**self.access), fifo=self.fifo)

    def url(self, channel: str, *, lease: float | None = None, **options: Any) -> str:
        given = {**self.access, "queue": channel, "visibility": f"{lease or 30:g}s", **options}
        return f"sqs://{given.pop('region')}?" + "&".join(f"{name}={value}" for name, value in given.items())

    async def channel(self) -> str:
        name = f"ingested-{next(_names)}{'.fifo' if self.fifo else ''}"
        settings = {"FifoQueue": "true"} if self.fifo else {}
        await asyncio.to_thread(self.queues.create_queue, QueueName=name, Attributes=settings)
        return name

    async def outage(self) -> None:
        self.gate.refuse()

    async def recovery(self) -> None:
        self.gate.open()

    def wrong_url(self, channel: str) -> str:
        return self.url(channel, endpoint_url=self.guarded.url)

    def reader(self, channel: str, **options: Any) -> SqsSource:
        return SqsSource.from_url(self.url(channel, **options), {})

    def waiting(self, queue: str) -> int:
        """Messages, hidden ones too."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        url = self.queues.get_queue_url(QueueName=queue)["QueueUrl"]
        found = self.queues.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]
        return sum(int(found[name]) for name in names)


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


@pytest.fixture
def harness(server: MotoServer, gate: TcpGate, guarded: MotoServer) -> SqsHarness:
    return SqsHarness(server, gate, guarded, fifo=False)


class TestSqsFifo(SourceContract):
    @pytest.fixture
    def harness(self, server: MotoServer, gate: TcpGate, guarded: MotoServer) -> SqsHarness:
        return SqsHarness(server, gate, guarded, fifo=True)


async def test_more_than_one_request_takes(harness: SqsHarness) -> None:
    queue = await harness.channel()
    sent = await send(harness, queue, [f"key-{n}" for n in range(57)])
    async with opened(harness.reader(queue)) as source:
        assert len(await source.receive(25, 5.0)) == 25
        await collect(source, sent[:0])
        rest = await source.receive(100, 5.0)
        assert len(rest) == 32
        await source.acknowledge(rest)
    assert await asyncio.to_thread(harness.waiting, queue) == 0


@pytest.mark.parametrize("raw", [True, False])
async def test_a_queue_that_a_topic_fills(harness: SqsHarness, raw: bool) -> None:
    queue = await harness.channel()
    topics = harness.server.client("sns")
    topic = topics.create_topic(Name=queue)["TopicArn"]
    settings = {"RawMessageDelivery": "true" if raw else "false"}
    topics.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=topic.replace(":sns:", ":sqs:"), Attributes=settings)
    sink = SnsSink(AwsConnection(**harness.access))
    await sink.open()
    bodies = [b'{"n": 1}', b"\xff\x00", b""]
    sent = [message for body in bodies for message in messages(sink, topic, ["order-7"], body)]
    await deliver(sink, sent)
    await sink.close()
    async with opened(harness.reader(queue)) as source:
        found = {message.headers["event_id"]: message for message in await collect(source, sent)}
    for message in sent:
        received = found[message.id]
        assert received.body == message.body
        assert received.headers == message.attributes
        assert received.content_type == "application/json"
        assert "-" in received.place


@pytest.mark.parametrize(
    "body",
    [
        '{"Type": "Notification"}',
        '{"Type": "Notification", "TopicArn": 7, "MessageId": "x", "Message": "y"}',
        '{"Type": "Notification", "TopicArn": "arn:x", "MessageId": "x", "Message": "y", "MessageAttributes": [1]}',
        '["Notification"]',
    ],
)
async def test_what_only_looks_like_an_envelope(harness: SqsHarness, body: str) -> None:
    queue = await harness.channel()
    url = harness.queues.get_queue_url(QueueName=queue)["QueueUrl"]
    harness.queues.send_message(QueueUrl=url, MessageBody=body)
    async with opened(harness.reader(queue)) as source:
        [message] = await source.receive(1, 5.0)
    assert message.body == body.encode()


async def test_an_envelope_that_is_wanted_as_it_is(harness: SqsHarness) -> None:
    queue = await harness.channel()
    url = harness.queues.get_queue_url(QueueName=queue)["QueueUrl"]
    envelope = {"Type": "Notification", "TopicArn": "arn:aws:sns:x:1:t", "MessageId": "id-1", "Message": "hello"}
    harness.queues.send_message(QueueUrl=url, MessageBody=json.dumps(envelope))
    async with opened(harness.reader(queue, unwrap_sns="no")) as source:
        [message] = await source.receive(1, 5.0)
        assert json.loads(message.body) == envelope
    async with opened(harness.reader(queue)) as source:
        [message] = await source.receive(1, 5.0)
        assert (message.body, message.id) == (b"hello", "id-1")


async def test_somebody_elses_attributes(harness: SqsHarness) -> None:
    """Names of ours with other meanings stay headers, bytes become base64."""
    queue = await harness.channel()
    url = harness.queues.get_queue_url(QueueName=queue)["QueueUrl"]
    values = {"body_encoding": "base64", "headers": "[1]", "content_type": "text/plain"}
    attributes: dict[str, Any] = {name: {"DataType": "String", "StringValue": v} for name, v in values.items()}
    attributes["raw"] = {"DataType": "Binary", "BinaryValue": b"\xff"}
    harness.queues.send_message(QueueUrl=url, MessageBody="not base64!", MessageAttributes=attributes)
    async with opened(harness.reader(queue)) as source:
        [message] = await source.receive(1, 5.0)
    assert message.body == b"not base64!"
    assert message.content_type == "text/plain"
    assert message.headers == {"body_encoding": "base64", "headers": "[1]", "raw": "/w=="}


async def test_deletions_that_fail_in_part(harness: SqsHarness) -> None:
    queue = await harness.channel()
    sent = await send(harness, queue, ["a", "b", "c"])
    async with opened(harness.reader(queue)) as source:
        found = await collect(source, sent, acknowledge=False)
        assert isinstance(source, SqsSource)
        client, asked = source._client, list[int]()

        class Failing:
            def __getattr__(self, name: str) -> Any:
                return getattr(client, name)

            async def delete_message_batch(self, *, Entries: list[dict[str, str]], QueueUrl: str) -> Any:
                asked.append(len(Entries))
                if len(asked) == 1:
                    await client.delete_message_batch(QueueUrl=QueueUrl, Entries=Entries[1:])
                    return {"Failed": [{"Id": Entries[0]["Id"], "Code": "InternalError", "SenderFault": False}]}
                return await client.delete_message_batch(QueueUrl=QueueUrl, Entries=Entries)

        source._client = Failing()
        await source.acknowledge(found)
        assert asked == [3, 1]
    assert await asyncio.to_thread(harness.waiting, queue) == 0


async def test_deletions_that_go_on_failing(harness: SqsHarness) -> None:
    queue = await harness.channel()
    sent = await send(harness, queue, ["a", "b"])
    async with opened(harness.reader(queue)) as source:
        found = await collect(source, sent, acknowledge=False)
        assert isinstance(source, SqsSource)
        client = source._client

        class Failing:
            def __getattr__(self, name: str) -> Any:
                return getattr(client, name)

            async def delete_message_batch(self, *, Entries: list[dict[str, str]], QueueUrl: str) -> Any:
                return {"Failed": [{"Id": entry["Id"], "Code": "InternalError"} for entry in Entries]}

        source._client = Failing()
        with pytest.raises(BrokerUnavailable, match="2 of 2 messages could not be deleted"):
            await source.acknowledge(found)
        await source.open()
        await collect(source, sent)


async def test_a_receipt_that_has_run_out_is_no_failure(harness: SqsHarness) -> None:
    queue = await harness.channel()
    sent = await send(harness, queue, ["a"])
    async with opened(harness.reader(queue)) as source:
        found = await collect(source, sent, acknowledge=False)
        url = harness.queues.get_queue_url(QueueName=queue)["QueueUrl"]
        harness.queues.delete_message(QueueUrl=url, ReceiptHandle=found[0].receipt)
        await source.acknowledge(found)
        await comes_no_more(source, sent)


async def test_a_queue_by_url_and_arn(harness: SqsHarness) -> None:
    queue = await harness.channel()
    url = harness.gate.through(harness.queues.get_queue_url(QueueName=queue)["QueueUrl"])
    sent = await send(harness, queue, ["a", "b"])
    for name, part in zip((url, f"arn:aws:sqs:us-east-1:123456789012:{queue}"), sent, strict=True):
        async with opened(harness.reader(name)) as source:
            [message] = await source.receive(1, 5.0)
            assert message.headers["event_id"] in {message.id for message in sent}
            await source.acknowledge([message])
            assert part


async def test_a_queue_that_is_not_there(harness: SqsHarness) -> None:
    with pytest.raises(ConfigError, match="there is no queue 'nobody-made-it'"):
        await harness.reader("nobody-made-it").open()


@pytest.mark.parametrize(
    ("url", "options", "expected"),
    [
        ("sqs://eu-central-1", {}, "expected queue"),
        ("sqs://eu-central-1/path", {"queue": "q"}, "expected sqs://region"),
        (
            "sqs://e",
            {"queue": "q", "visibility": "0.5s"},
            "expected visibility to be one second to 12 hours, got 0:00:00.5",
        ),
        (
            "sqs://e",
            {"queue": "q", "visibility": "13h"},
            "expected visibility to be one second to 12 hours, got 13:00:00",
        ),
        ("sqs://e", {"queue": "q", "read_timeout": "1s"}, "expected read_timeout to be at least two seconds"),
        ("sqs://e", {"queue": "q", "access_key_id": "x"}, "access_key_id and secret_access_key together"),
        ("sqs://e", {"queue": "q", "endpoint_url": "ftp://x"}, "expected endpoint_url"),
        ("sqs://e", {"queue": "q", "unwrap_sns": "maybe"}, "expected unwrap_sns to be true or false, got 'maybe'"),
    ],
)
def test_wrong_options(url: str, options: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        SqsSource.from_url(url, options)
