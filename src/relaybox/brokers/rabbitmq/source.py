"""RabbitMQ: one consumer of one queue, which acknowledges by hand.

    RabbitMQSource("amqps://billing:secret@rabbit.example/shop", queue="billing-orders")

The queue is there already, or `declare` makes it: durable, and with a single active consumer, so that several ingests
of a queue keep its order. What was not acknowledged goes back to its place in the queue when the connection ends.

A queue has no offsets: a message is known by its `message_id`. One that has none, and no id in its headers either, is
never taken for a duplicate; it arrives twice if the process dies between storing and acknowledging it.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple, TypeAlias, cast

import aiormq
from aiormq.abc import DeliveredMessage

from ...errors import Closed, ConfigError, InvalidEvent
from ...ids import new_id
from ..connection import Connected
from ..door import taken
from ..options import check_choice, check_range
from ..spi import Incoming
from .connection import LONGEST, LOST, RabbitMQConnection, RabbitMQLink, aware, reason_of
from .frames import UNREADABLE

log = logging.getLogger("relaybox")
Declare: TypeAlias = Literal["no", "quorum", "classic"]
COUNTERS = frozenset(["x-delivery-count", "x-acquired-count"])  # the broker's, other at every delivery
MOST_PREFETCH = 65_535
ACK_SECONDS = 5.0


class _Receipt(NamedTuple):
    channel: aiormq.Channel
    tag: int


class RabbitMQSource(Connected[RabbitMQConnection]):
    """Reads one queue. The first argument is a URL or a RabbitMQConnection.

    queue     what is read
    declare   no: the queue must exist; quorum or classic: made if it does not
    prefetch  most messages that are here and not acknowledged; at least a batch
    """

    name = "rabbitmq"
    connection_type = RabbitMQConnection

    def __init__(
        self,
        connection: str | RabbitMQConnection = "amqp://localhost:5672/",
        *,
        queue: str,
        declare: Declare = "no",
        prefetch: int = 1000,
    ) -> None:
        if not 0 < len(queue.encode()) <= LONGEST:
            raise ConfigError(f"expected queue to be a name of 1 to {LONGEST} bytes, got {queue[:40]!r}")
        check_choice("declare", declare, Declare)
        check_range("prefetch", prefetch, 1, MOST_PREFETCH)
        self._connection = RabbitMQConnection.of(connection)
        self._queue = queue
        self._declare = declare
        self._prefetch = prefetch
        self._link: RabbitMQLink | None = None
        self._channel: aiormq.Channel | None = None
        self._lost: str | None = "not connected"
        self._ready: deque[Incoming] = deque()
        self._news = asyncio.Event()
        self._warned = False
        self._closed = False

    def __repr__(self) -> str:
        return f"RabbitMQSource({str(self._connection)!r}, {self._queue!r})"

    # -- what an ingest asks ------------------------------------------------------------------------

    async def open(self) -> None:
        if self._closed:
            raise Closed(f"{self!r} is closed; make a new one")
        await self._disconnect()
        try:
            self._link = await self._connection.connect()
            with aware():
                await self._consume(self._link)
        except BaseException as error:
            await self._disconnect()
            if isinstance(error, aiormq.ChannelPreconditionFailed):
                raise ConfigError(f"the queue {self._queue!r} is another than declared: {reason_of(error)}") from None
            if isinstance(error, LOST):
                raise self._unavailable(reason_of(error)) from None
            raise

    async def receive(self, limit: int, wait: float) -> Sequence[Incoming]:
        if not self._ready and self._lost is None:
            self._news.clear()
            try:
                async with asyncio.timeout(wait):
                    await self._news.wait()
            except TimeoutError:
                return []
        if not self._ready and self._lost is not None:
            raise self._unavailable(self._lost)
        return [self._ready.popleft() for _ in range(min(limit, len(self._ready)))]

    async def acknowledge(self, messages: Sequence[Incoming]) -> None:
        """Acknowledges the last one, which includes all before it on this channel. The broker does not answer that, but
        it does answer the question that follows."""
        if not messages:
            return
        last: _Receipt = messages[-1].receipt
        try:
            with aware():
                await last.channel.basic_ack(last.tag, multiple=True)
                await last.channel.basic_qos(prefetch_count=self._prefetch, timeout=ACK_SECONDS)
        except TimeoutError:
            raise self._unavailable(f"no answer within {ACK_SECONDS:g} s") from None
        except LOST as error:
            raise self._unavailable(reason_of(error)) from None

    async def close(self) -> None:
        self._closed = True
        await self._disconnect()

    # -- the connection -----------------------------------------------------------------------------

    async def _consume(self, link: RabbitMQLink) -> None:
        channel = self._channel = cast(aiormq.Channel, await link.connection.channel(publisher_confirms=False))
        self._lost = None
        channel.closing.add_done_callback(lambda _: self._ended(channel, "the connection or channel was closed"))
        channel.on_consumer_cancel_callbacks.add(lambda _: self._ended(channel, "the queue is gone"))
        arguments: dict[str, Any] = {"x-queue-type": self._declare, "x-single-active-consumer": True}
        if self._declare == "no":
            await channel.queue_declare(self._queue, passive=True)
        else:
            await channel.queue_declare(self._queue, durable=True, arguments=arguments)
        await channel.basic_qos(prefetch_count=self._prefetch)
        await channel.basic_consume(self._queue, self._arrived)

    async def _disconnect(self) -> None:
        link, self._link, self._channel = self._link, None, None
        self._lost = "not connected"
        self._ready.clear()
        self._news.set()
        if link is not None:
            await link.close()

    def _ended(self, channel: aiormq.Channel, reason: str) -> None:
        if channel is self._channel:
            self._lost = reason
            self._news.set()

    async def _arrived(self, message: DeliveredMessage) -> None:
        if message.channel is self._channel:
            self._ready.append(self._incoming(message))
            self._news.set()

    def _incoming(self, message: DeliveredMessage) -> Incoming:
        properties = message.header.properties
        if not properties.message_id and not self._warned:
            self._warned = True
            log.warning("%r has messages without message_id: such a one may arrive twice after a crash", self)
        named = properties.message_id or None
        place = f"{self._queue}#{named or new_id()}"  # of what cannot be read; the rest is known by that id
        receipt = _Receipt(cast(aiormq.Channel, message.channel), message.delivery_tag or 0)

        def read() -> Incoming:
            sent, given = properties.timestamp, properties.headers or {}
            if UNREADABLE in given:
                raise InvalidEvent(str(given[UNREADABLE]))
            return Incoming(
                channel=self._queue,
                place=place,
                id=named,
                body=message.body,
                headers={n: _text(v) for n, v in given.items() if v is not None and n not in COUNTERS},
                content_type=properties.content_type or None,
                sent_at=sent.replace(tzinfo=sent.tzinfo or UTC) if isinstance(sent, datetime) else None,
                receipt=receipt,
            )

        return taken(read, channel=self._queue, place=place, body=message.body, receipt=receipt)


def _text(value: Any) -> str:
    """A header's value; AMQP has more kinds of them than text."""
    if isinstance(value, str):
        return value
    if isinstance(value, (bytes, bytearray)):
        return value.decode(errors="replace")
    return json.dumps(value, default=str)
