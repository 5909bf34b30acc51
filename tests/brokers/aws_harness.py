"""The SQS and SNS sinks against moto; read back from queues with boto3."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
from typing import Any

from relaybox.brokers.aws.sink import AwsSink
from relaybox.brokers.aws.sns_sink import SnsSink
from relaybox.brokers.aws.sqs_sink import SqsSink
from relaybox.testing.servers import MotoServer, TcpGate
from relaybox.testing.sink_contract import SECRET, Received, SinkHarness

ACCOUNT = "123456789012"
_names = itertools.count()


class SqsHarness(SinkHarness):
    kind: type[AwsSink] = SqsSink
    oversize = 262_145

    def __init__(self, server: MotoServer, gate: TcpGate, guarded: MotoServer, *, fifo: bool) -> None:
        self.server = server
        self.gate = gate
        self.guarded = guarded
        self.fifo = fifo
        self.queues = server.client("sqs")
        self._read: dict[str, list[Received]] = {}

    def sink(self, **options: Any) -> AwsSink:
        given = {
            "region": self.server.region,
            "account": ACCOUNT,
            "endpoint_url": self.gate.through(self.server.url),
            "access_key_id": "canary",
            "secret_access_key": SECRET,
            "fifo": self.fifo,
        }
        return self.kind.from_url(f"{self.kind.name}://", {**given, **options})

    def wrong_credentials(self) -> AwsSink:
        return self.sink(endpoint_url=self.guarded.url)

    async def destination(self) -> str:
        name = self._name()
        await asyncio.to_thread(self._create_queue, name)
        return name

    async def missing(self) -> str:
        return self._name()

    async def read(self, destination: str, count: int, timeout: float = 20) -> list[Received]:
        found = self._read.setdefault(destination, [])
        url = await asyncio.to_thread(self.queues.get_queue_url, QueueName=destination)
        async with asyncio.timeout(timeout):
            while True:
                wait = 1 if len(found) < count else 0
                some = await asyncio.to_thread(self._receive, url["QueueUrl"], wait, found)
                if not some and len(found) >= count:
                    return found

    async def outage(self) -> None:
        self.gate.refuse()

    async def recovery(self) -> None:
        self.gate.open()

    def delete(self, destination: str) -> None:
        self.queues.delete_queue(QueueUrl=self.queues.get_queue_url(QueueName=destination)["QueueUrl"])

    def _name(self) -> str:
        return f"orders-{next(_names)}{'.fifo' if self.fifo else ''}"

    def _create_queue(self, name: str) -> str:
        created = self.queues.create_queue(QueueName=name, Attributes={"FifoQueue": "true"} if self.fifo else {})
        return str(created["QueueUrl"])

    def _receive(self, url: str, wait: int, found: list[Received]) -> int:
        """Noted before it is deleted: nothing is lost to a reader that gave up, and of a group nothing is overtaken."""
        wanted = {"MaxNumberOfMessages": 10, "WaitTimeSeconds": wait, "MessageAttributeNames": ["All"]}
        some = self.queues.receive_message(QueueUrl=url, **wanted).get("Messages", [])
        found += [received(message) for message in some]
        if some:
            handles = [{"Id": str(n), "ReceiptHandle": message["ReceiptHandle"]} for n, message in enumerate(some)]
            self.queues.delete_message_batch(QueueUrl=url, Entries=handles)
        return len(some)


class SnsHarness(SqsHarness):
    """A queue of the same name subscribes to each topic."""

    kind = SnsSink

    def _create_queue(self, name: str) -> str:
        topics = self.server.client("sns")
        topic = topics.create_topic(Name=name, Attributes={"FifoTopic": "true"} if self.fifo else {})["TopicArn"]
        queue = topic.replace(":sns:", ":sqs:")
        url = super()._create_queue(name)
        topics.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=queue, Attributes={"RawMessageDelivery": "true"})
        return url

    def delete(self, destination: str) -> None:
        super().delete(destination)
        self.server.client("sns").delete_topic(TopicArn=f"arn:aws:sns:{self.server.region}:{ACCOUNT}:{destination}")


def received(message: dict[str, Any]) -> Received:
    attributes = {name: value["StringValue"] for name, value in message["MessageAttributes"].items()}
    body = message["Body"].encode()
    match attributes.pop("body_encoding", None):
        case "base64":
            body = base64.b64decode(body, validate=True)
        case "empty":
            body = b""
    attributes |= json.loads(attributes.pop("headers", "{}"))
    return Received(
        attributes["event_id"], attributes.get("aggregate_id"), body, attributes.pop("content_type"), attributes
    )
