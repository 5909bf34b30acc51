"""Events for one topic, from payloads.

    orders = outbox.topics.producer("orders", OrderPlaced)
    with Session.begin() as session:
        number = orders.send(session, OrderPlaced(7), key="order-7")

The number is the event's place in the topic's log. Who must receive the event is read from the topic in the statement
that inserts it, so it is never older than the subscriptions that are committed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import Enum
from typing import Any, Generic, TypedDict, TypeVar, Unpack

from ..codec import Codec
from ..errors import ConfigError, InvalidEvent
from ..event import Event, check_topic
from ..ids import new_id, shard_of

P = TypeVar("P")

Write = Callable[[Any, Sequence[Event]], list[int | None]]
AsyncWrite = Callable[[Any, Sequence[Event]], Awaitable[list[int | None]]]


class SendOptions(TypedDict, total=False):
    key: str | None  # what is ordered: events of one key are delivered one after the other
    headers: Mapping[str, str] | None
    correlation_id: str | None
    type: str | Enum | None  # None: the payload's class
    tenant: str | None
    id: str | None


def shard_topics(name: str, shards: int) -> list[str]:
    """The topics that a hot one is spread over."""
    if type(shards) is not int or shards < 1:
        raise ConfigError(f"expected shards to be a positive int, got {shards!r}")
    return [f"{name}.shard-{number}" for number in range(shards)]


class _Producer(Generic[P]):
    def __init__(self, topic: str, payload_type: type[P] | None, shards: int | None, codec: Codec) -> None:
        self.topic = topic
        self._payload_type = payload_type
        self._topics = [topic] if shards is None else shard_topics(topic, shards)
        self._codec = codec
        for name in self._topics:
            check_topic(name)

    def event(self, payload: P, **options: Unpack[SendOptions]) -> Event:
        """What `send` writes: for `write_all` with others, in one round trip."""
        if self._payload_type is not None and not isinstance(payload, self._payload_type):
            raise InvalidEvent(
                f"topic {self.topic!r} takes {self._payload_type.__qualname__}, got {type(payload).__qualname__}"
            )
        key = options.get("key")
        event_id = options.get("id") or new_id()
        return Event(
            options.get("type") or _type_of(payload),
            payload,
            key=key,
            headers=options.get("headers"),
            correlation_id=options.get("correlation_id"),
            tenant=options.get("tenant"),
            id=event_id,
            topic=self._topics[shard_of(key or event_id, len(self._topics))],
            codec=self._codec,
        )


class Producer(_Producer[P]):
    def __init__(
        self, write: Write, topic: str, payload_type: type[P] | None, shards: int | None, codec: Codec
    ) -> None:
        super().__init__(topic, payload_type, shards, codec)
        self._write = write

    def send(self, handle: Any, payload: P, **options: Unpack[SendOptions]) -> int | None:
        """In the handle's transaction. The event's number, or None when a hook dropped it."""
        return self._write(handle, (self.event(payload, **options),))[0]


class AsyncProducer(_Producer[P]):
    def __init__(
        self, write: AsyncWrite, topic: str, payload_type: type[P] | None, shards: int | None, codec: Codec
    ) -> None:
        super().__init__(topic, payload_type, shards, codec)
        self._write = write

    async def send(self, handle: Any, payload: P, **options: Unpack[SendOptions]) -> int | None:
        return (await self._write(handle, (self.event(payload, **options),)))[0]


def _type_of(payload: object) -> str:
    kind = type(payload)
    return "Message" if kind.__module__ == "builtins" else kind.__name__
