"""Google Pub/Sub: publish requests with ordering keys.

    PubSubSink("pubsub://shop-prod?endpoint=europe-west3-pubsub.googleapis.com")

The destination is the name of a topic in the project, or `projects/…/topics/…`. The ordering key is the event's key;
the content type is the attribute `content-type`. Pub/Sub keeps the order of a key that is published in one region, one
request after the other: `endpoint` sees to the first, the relay to the second. It drops no repetitions: consumers do,
by the attribute `event_id`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import grpc
from google.pubsub_v1 import types
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from grpc import StatusCode

from ...errors import BrokerUnavailable, Closed, DeliveryError, Reject
from ..batches import grouped, parts
from ..connection import Connected
from ..spi import Answer, Features, Message
from .connection import LONGEST_TEXT, PubSubChannel, PubSubConnection

PROBE_SECONDS = 2.0
THROTTLE_PAUSE = timedelta(seconds=1)  # where Google names none
MOST_BYTES = 9_900_000  # of a request, and so of a message: 10 MB less what the envelope may take
MOST_MESSAGES = 1000
TOPIC = re.compile(r"projects/[^/]+/topics/(?!goog)[A-Za-z][\w.~+%-]{2,254}", re.ASCII)
PubsubMessage: Any = types.PubsubMessage.pb()


class PubSubSink(Connected[PubSubConnection]):
    """Publishes events to topics of a project. The first argument is a URL or a PubSubConnection."""

    name = "pubsub"
    features = Features(keyed_order=True, dedup=False, max_bytes=MOST_BYTES, attribute_prefix="ce-")
    connection_type = PubSubConnection

    def __init__(self, connection: str | PubSubConnection) -> None:
        self._connection = PubSubConnection.of(connection)
        self._channel = PubSubChannel(self._connection)

    # Life

    async def open(self) -> None:
        try:
            await self._channel.open()
            await self._ask(None)
        except ConnectionError as error:
            raise self._unavailable(error) from None
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        await self._channel.close()

    async def probe(self) -> None:
        """After a failure with a new channel."""
        self._check_open()
        try:
            await self._ask(PROBE_SECONDS)
        except BrokerUnavailable:
            await self._channel.replace()
            raise

    async def _ask(self, seconds: float | None) -> None:
        """Whether the topic exists and may be looked at does not matter, only who answers."""
        try:
            await self._call("GetTopic", "relaybox-probe", seconds)
        except DeliveryError as error:
            if isinstance(error, BrokerUnavailable) and error.destination is None:
                raise

    def _check_open(self) -> None:
        if not self._channel.is_open:
            raise Closed(f"{self!r} is not open")

    # Publishing

    async def publish(self, messages: Sequence[Message]) -> Sequence[Answer]:
        self._check_open()
        ready = [_message(message) for message in messages]
        answers: list[Answer] = [_refusal(message) for message in ready]
        fine = [number for number, refusal in enumerate(answers) if refusal is None]
        await asyncio.gather(
            *(
                self._send(destination, [(number, ready[number]) for number in part], answers)
                for destination, some in grouped(fine, lambda number: messages[number].destination).items()
                for part in parts(some, lambda number: int(ready[number].ByteSize()), MOST_BYTES, MOST_MESSAGES)
            )
        )
        return answers

    async def _send(self, destination: str, batch: list[tuple[int, Any]], answers: list[Answer]) -> None:
        answer: Answer = None
        try:
            await self._call("Publish", destination, messages=[message for _, message in batch])
        except Reject as error:
            if len(batch) > 1:  # one of them: find out which
                half = len(batch) // 2
                await asyncio.gather(*(self._send(destination, b, answers) for b in (batch[:half], batch[half:])))
                return
            answer = error
        except DeliveryError as error:
            answer = error
        for number, _ in batch:
            answers[number] = answer

    async def _call(self, method: str, destination: str, seconds: float | None = None, **fields: Any) -> None:
        topic = destination if "/" in destination else f"projects/{self._connection.project}/topics/{destination}"
        if not TOPIC.fullmatch(topic):  # or Pub/Sub would blame the messages
            raise DeliveryError(f"expected a topic's name or projects/…/topics/…, got {destination!r}")
        try:
            await self._channel.call(f"Publisher/{method}", seconds, topic=topic, **fields)
        except grpc.aio.AioRpcError as error:
            raise _answer(error, destination) from None
        except ConnectionError as error:
            raise self._unavailable(error) from None


def _message(message: Message) -> Any:
    attributes = {**message.attributes, "content-type": message.content_type}
    return PubsubMessage(data=message.body, attributes=attributes, ordering_key=message.key or "")


def _refusal(message: Any) -> Reject | None:
    """What Pub/Sub would refuse together with the rest of the request."""
    if message.ByteSize() > MOST_BYTES:
        return Reject(f"the message is {message.ByteSize():,} bytes, Pub/Sub takes {MOST_BYTES:,}")
    if len(message.attributes) > 100:
        return Reject(f"the message has {len(message.attributes)} attributes, Pub/Sub takes 100")
    for name, value in message.attributes.items():
        if len(name.encode()) > 256 or len(value.encode()) > 1024 or name.startswith("goog"):
            return Reject(f"Pub/Sub takes no attribute {name[:256]!r} of {len(value.encode()):,} bytes")
    return None


def _answer(error: grpc.aio.AioRpcError, destination: str) -> DeliveryError:
    """An operator has to act on what concerns one topic: the others go on. Everything unknown is an outage."""
    said = f"Pub/Sub: {error.code().name}: {str(error.details())[:LONGEST_TEXT]}"
    match error.code():
        case StatusCode.NOT_FOUND:
            return DeliveryError(f"there is no topic {destination!r}")
        case StatusCode.INVALID_ARGUMENT:
            return Reject(said)
        case StatusCode.PERMISSION_DENIED | StatusCode.FAILED_PRECONDITION:  # also a disabled encryption key
            return BrokerUnavailable(f"{said} ({destination})", destination=destination)
        case StatusCode.RESOURCE_EXHAUSTED:
            return BrokerUnavailable(said, retry_after=_pause(error))
    return BrokerUnavailable(said)


def _pause(error: grpc.aio.AioRpcError) -> timedelta:
    for name, value in error.trailing_metadata() or ():
        if name == "grpc-status-details-bin":
            for detail in Status.FromString(value).details:
                info = RetryInfo()
                if detail.Unpack(info):
                    pause: timedelta = info.retry_delay.ToTimedelta()
                    return pause
    return THROTTLE_PAUSE
