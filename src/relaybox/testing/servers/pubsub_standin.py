"""A stand-in for Google Pub/Sub: a small gRPC server that speaks its protocol, for tests on one machine.

It is not Google's emulator. It knows topics, publishing with ordering keys, pull subscriptions with ordering and
redelivery, and streaming pull without flow control; it knows no push, filters, dead letters, snapshots, schemas or
permissions. What it acknowledged survives a kill. `PubSubServer` runs it as

    python -m relaybox.testing.servers.pubsub_standin PORT FOLDER
"""

from __future__ import annotations

import json
import sys
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.empty_pb2 import Empty
from google.pubsub_v1 import types
from grpc import StatusCode

from .process import LOOPBACK
from .pubsub_store import CallRefused, Store

CONTROL = "relaybox.testing.PubSubStandin"
PULL_SECONDS = 5.0
MAX_REQUEST = 10_000_000
MAX_MESSAGES = 1000
MAX_KEY = 1024
DEFAULT_ACK_SECONDS = 10

Rpc = Callable[[Any, grpc.ServicerContext], Any]


class Standin:
    """The RPCs of Publisher and Subscriber, with failures on demand."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._store = Store(folder / "journal.jsonl")
        self._faults: defaultdict[str, deque[tuple[StatusCode, bool]]] = defaultdict(deque)

    def handlers(self) -> list[grpc.GenericRpcHandler]:
        publisher = {
            "CreateTopic": self._unary(self.create_topic, types.Topic, types.Topic.serialize),
            "GetTopic": self._unary(self.get_topic, types.GetTopicRequest, types.Topic.serialize),
            "DeleteTopic": self._unary(self.delete_topic, types.DeleteTopicRequest, Empty.SerializeToString),
            "Publish": self._unary(self.publish, types.PublishRequest, types.PublishResponse.serialize),
        }
        subscription = types.Subscription.serialize
        nothing = Empty.SerializeToString
        subscriber = {
            "CreateSubscription": self._unary(self.create_subscription, types.Subscription, subscription),
            "GetSubscription": self._unary(self.get_subscription, types.GetSubscriptionRequest, subscription),
            "DeleteSubscription": self._unary(self.delete_subscription, types.DeleteSubscriptionRequest, nothing),
            "Pull": self._unary(self.pull, types.PullRequest, types.PullResponse.serialize),
            "Acknowledge": self._unary(self.acknowledge, types.AcknowledgeRequest, nothing),
            "ModifyAckDeadline": self._unary(self.modify_ack_deadline, types.ModifyAckDeadlineRequest, nothing),
            "StreamingPull": grpc.stream_stream_rpc_method_handler(
                self.streaming_pull, types.StreamingPullRequest.deserialize, types.StreamingPullResponse.serialize
            ),
        }
        control = {
            "Folder": grpc.unary_unary_rpc_method_handler(lambda request, context: str(self._folder).encode()),
            "Fail": grpc.unary_unary_rpc_method_handler(self.script),
        }
        return [
            grpc.method_handlers_generic_handler("google.pubsub.v1.Publisher", publisher),
            grpc.method_handlers_generic_handler("google.pubsub.v1.Subscriber", subscriber),
            grpc.method_handlers_generic_handler(CONTROL, control),
        ]

    def _unary(self, action: Rpc, request: Any, serialize: Callable[[Any], bytes]) -> grpc.RpcMethodHandler:
        method = "".join(word.capitalize() for word in action.__name__.split("_"))

        def call(request: Any, context: grpc.ServicerContext) -> Any:
            faults = self._faults[method]
            code, done_first = faults.popleft() if faults else (None, True)
            try:
                answer = action(request, context) if done_first else None
            except CallRefused as refused:
                context.abort(refused.code, str(refused))
            if code is not None:
                context.abort(code, "scripted by the test")
            return answer

        return grpc.unary_unary_rpc_method_handler(call, request.deserialize, serialize)

    def script(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        """Let the next calls of a method fail, before or (`done_first`) after it took effect."""
        fault = json.loads(request)
        code = StatusCode[fault["code"]]
        self._faults[fault["method"]].extend([(code, fault["done_first"])] * fault["times"])
        return b""

    # Publisher

    def create_topic(self, topic: types.Topic, context: grpc.ServicerContext) -> types.Topic:
        if not topic.name.startswith("projects/") or "/topics/" not in topic.name:
            raise CallRefused(StatusCode.INVALID_ARGUMENT, "a topic is named projects/<project>/topics/<topic>")
        self._store.create_topic(topic.name)
        return topic

    def get_topic(self, request: types.GetTopicRequest, context: grpc.ServicerContext) -> types.Topic:
        self._store.check_topic(request.topic)
        return types.Topic(name=request.topic)

    def delete_topic(self, request: types.DeleteTopicRequest, context: grpc.ServicerContext) -> Empty:
        self._store.delete_topic(request.topic)
        return Empty()

    def publish(self, request: types.PublishRequest, context: grpc.ServicerContext) -> types.PublishResponse:
        if not 1 <= len(request.messages) <= MAX_MESSAGES:
            raise CallRefused(StatusCode.INVALID_ARGUMENT, f"a request has 1 to {MAX_MESSAGES} messages")
        if types.PublishRequest.pb(request).ByteSize() > MAX_REQUEST:
            raise CallRefused(StatusCode.INVALID_ARGUMENT, f"a request has at most {MAX_REQUEST} bytes")
        for message in request.messages:
            if not message.data and not message.attributes:
                raise CallRefused(StatusCode.INVALID_ARGUMENT, "a message has data or attributes")
            if len(message.ordering_key.encode()) > MAX_KEY:
                raise CallRefused(StatusCode.INVALID_ARGUMENT, f"an ordering key has at most {MAX_KEY} bytes")
        return types.PublishResponse(message_ids=self._store.publish(request.topic, request.messages))

    # Subscriber

    def create_subscription(
        self, subscription: types.Subscription, context: grpc.ServicerContext
    ) -> types.Subscription:
        subscription.ack_deadline_seconds = subscription.ack_deadline_seconds or DEFAULT_ACK_SECONDS
        self._store.create_subscription(subscription)
        return subscription

    def get_subscription(
        self, request: types.GetSubscriptionRequest, context: grpc.ServicerContext
    ) -> types.Subscription:
        return self._store.subscription(request.subscription)

    def delete_subscription(self, request: types.DeleteSubscriptionRequest, context: grpc.ServicerContext) -> Empty:
        self._store.delete_subscription(request.subscription)
        return Empty()

    def pull(self, request: types.PullRequest, context: grpc.ServicerContext) -> types.PullResponse:
        remaining = context.time_remaining()
        patience = PULL_SECONDS if remaining is None else min(PULL_SECONDS, remaining / 2)
        wait = 0.0 if request.return_immediately else patience
        received = self._store.pull(request.subscription, request.max_messages, wait)
        return types.PullResponse(received_messages=received)

    def acknowledge(self, request: types.AcknowledgeRequest, context: grpc.ServicerContext) -> Empty:
        self._store.acknowledge(request.subscription, request.ack_ids)
        return Empty()

    def modify_ack_deadline(self, request: types.ModifyAckDeadlineRequest, context: grpc.ServicerContext) -> Empty:
        self._store.extend(request.subscription, request.ack_ids, request.ack_deadline_seconds)
        return Empty()

    def streaming_pull(
        self, requests: Iterator[types.StreamingPullRequest], context: grpc.ServicerContext
    ) -> Iterator[types.StreamingPullResponse]:
        first = next(requests)
        name = first.subscription

        def listen() -> None:
            try:
                for request in requests:
                    self._store.acknowledge(name, request.ack_ids)
                    for ack_id, seconds in zip(
                        request.modify_deadline_ack_ids, request.modify_deadline_seconds, strict=True
                    ):
                        self._store.extend(name, [ack_id], seconds)
            except (grpc.RpcError, CallRefused):
                context.cancel()

        threading.Thread(target=listen, daemon=True).start()
        try:
            while context.is_active():
                received = self._store.pull(name, 100, wait=0.2, seconds=first.stream_ack_deadline_seconds)
                if received:
                    yield types.StreamingPullResponse(received_messages=received)
        except CallRefused as refused:
            context.abort(refused.code, str(refused))


def serve(port: int, folder: Path) -> None:
    options = [("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", 2 * MAX_REQUEST)]
    server = grpc.server(ThreadPoolExecutor(max_workers=64), Standin(folder).handlers(), options=options)
    try:
        server.add_insecure_port(f"{LOOPBACK}:{port}")
    except RuntimeError as error:
        sys.exit(f"address already in use? {error}")
    server.start()
    server.wait_for_termination()


if __name__ == "__main__":
    serve(int(sys.argv[1]), Path(sys.argv[2]))
