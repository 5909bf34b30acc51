"""The Pub/Sub sink against the emulator or the kit's stand-in; read back with bare gRPC calls."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
from google.pubsub_v1 import types

from relaybox.brokers.pubsub.sink import PubSubSink
from relaybox.testing.servers import PubSubServer, TcpGate
from relaybox.testing.sink_contract import Received, SinkHarness


class PubSubHarness(SinkHarness):
    """An emulator is not ours to be killed: a gate in front of it refuses instead."""

    def __init__(self, server: PubSubServer, gate: TcpGate) -> None:
        self.server = server
        self.gate = gate
        self._subscriptions: dict[str, str] = {}
        self._read: dict[str, list[Received]] = {}

    def sink(self, **options: Any) -> PubSubSink:
        return PubSubSink.from_url("pubsub://relaybox", {"emulator_host": f"127.0.0.1:{self.gate.port}", **options})

    async def destination(self) -> str:
        topic = await asyncio.to_thread(self.server.fresh_topic)
        self._subscriptions[topic] = await asyncio.to_thread(self.server.fresh_subscription, topic)
        return topic

    async def missing(self) -> str:
        return "nobody-made-this-topic"

    async def read(self, destination: str, count: int, timeout: float = 20) -> list[Received]:
        return await asyncio.to_thread(self._pull, destination, count, timeout)

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

    def _pull(self, topic: str, count: int, timeout: float) -> list[Received]:
        """Until there are enough and then nothing more. An ordered subscription shows a key's next after an ack."""
        found = self._read.setdefault(topic, [])
        subscription = self._subscriptions[topic]
        with grpc.insecure_channel(self.server.host, [("grpc.max_receive_message_length", -1)]) as channel:
            service = "/google.pubsub.v1.Subscriber/"
            pull = channel.unary_unary(f"{service}Pull", types.PullRequest.serialize, types.PullResponse.deserialize)
            acknowledge = channel.unary_unary(f"{service}Acknowledge", types.AcknowledgeRequest.serialize)
            while True:
                enough = len(found) >= count
                request = types.PullRequest(subscription=subscription, max_messages=1000, return_immediately=enough)
                some = pull(request, timeout=timeout).received_messages
                if not some and enough:
                    return found
                found += [received(each.message) for each in some]
                if some:
                    acked = [each.ack_id for each in some]
                    acknowledge(types.AcknowledgeRequest(subscription=subscription, ack_ids=acked), timeout=timeout)


def received(message: types.PubsubMessage) -> Received:
    attributes = dict(message.attributes)
    content_type = attributes.pop("content-type")
    return Received(attributes["event_id"], message.ordering_key or None, message.data, content_type, attributes)
