"""Events for one topic, from payloads.

    orders = outbox.topics.producer("orders", OrderPlaced)
    with Session.begin() as session:
        number = orders.send(session, OrderPlaced(7), key="order-7")

The number is the event's place in the topic. Who must receive the event is read from the topic in the statement that
inserts it, so it is never older than the subscriptions that are committed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar, Unpack

from ..codec import Codec
from ..drivers.spi import AsyncHandle, Handle
from ..errors import InvalidEvent
from ..event import Event, EventOptions, check_topic
from ..twins import told_by

P = TypeVar("P")

Write = Callable[[Any, Event], int | None]
AsyncWrite = Callable[[Any, Event], Awaitable[int | None]]


class _Producer(Generic[P]):
    def __init__(self, write: Any, topic: str, model: Any, codec: Codec) -> None:
        check_topic(topic)
        self._write = write
        self.topic = topic
        self._model = model
        self._codec = codec

    def _event(self, payload: P, type: Any, options: EventOptions) -> Event:
        if self._model is not Any and not isinstance(payload, self._model):
            wanted, given = self._model.__qualname__, payload.__class__.__qualname__
            raise InvalidEvent(f"topic {self.topic!r} takes {wanted}, got {given}")
        kind = payload.__class__
        plain = "Message" if kind.__module__ == "builtins" else kind.__name__
        placed: EventOptions = {"codec": self._codec, **options, "topic": self.topic}
        return Event(type or getattr(kind, "event_type", plain), payload, **placed)


class Producer(_Producer[P]):
    """Writes payloads to one topic."""

    _write: Write

    def send(
        self, handle: Handle, payload: P, *, type: str | None = None, **options: Unpack[EventOptions]
    ) -> int | None:
        """Writes the payload in the handle's transaction. Returns its number; None: a hook dropped it.

        key      what is ordered: events of one key are delivered one after the other
        type     of the event; the name of the payload's class, if it is not given
        options  as of `Event`
        """
        return self._write(handle, self._event(payload, type, options))


@told_by(Producer)
class AsyncProducer(_Producer[P]):
    """Writes payloads to one topic."""

    _write: AsyncWrite

    async def send(
        self, handle: AsyncHandle, payload: P, *, type: str | None = None, **options: Unpack[EventOptions]
    ) -> int | None:
        return await self._write(handle, self._event(payload, type, options))
