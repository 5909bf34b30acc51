"""RabbitMQ: persistent, mandatory, confirmed.

    RabbitMQSink("amqps://relay:secret@rabbit.example/shop", exchange="orders")

With `exchange` the destination is the routing key. Without it the destination is `exchange/routing-key`, or the name of
a queue where there is no slash (`/queue` where its name has one). A consistent-hash exchange gets the ordering key as
routing key with `to="{key}"`.

Each exchange has a channel of its own: order is a channel's, and a channel that the broker closes (no such exchange,
no permission) takes nobody else's messages with it. Copies that the broker never answered stay on their channel in
front of the next try, so none can come behind its successor.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from datetime import UTC, datetime

import aiormq
from aiormq import spec

from ...durations import Duration
from ...errors import BrokerUnavailable, ConfigError, DeliveryError, Reject
from ..linked import GLANCE_SECONDS, LinkedSink
from ..options import positive
from ..spi import Answer, Features, Message
from .connection import LONGEST, LOST, RabbitMQConnection, RabbitMQLink, reason_of

LONGEST_NAME = 128  # bytes of a header's name
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
BLOCKED = "blocked by a memory or disk alarm"


class RabbitMQSink(LinkedSink[RabbitMQConnection, RabbitMQLink]):
    """Sends events to exchanges and queues. The first argument is a URL or a RabbitMQConnection.

    exchange   all events go there, and destinations are routing keys
    max_bytes  of a body; a larger one is a dead letter
    timeout    of the confirms of a batch
    """

    name = "rabbitmq"
    connection_type = RabbitMQConnection

    def __init__(
        self,
        connection: str | RabbitMQConnection = "amqp://localhost:5672/",
        *,
        exchange: str | None = None,
        max_bytes: int = 16 * 1024 * 1024,
        timeout: Duration = "5s",
    ) -> None:
        super().__init__()
        if exchange is not None and len(exchange.encode()) > LONGEST:
            raise ConfigError(f"expected exchange to be at most {LONGEST} bytes long, got {exchange!r}")
        if max_bytes < 1:
            raise ConfigError(f"expected max_bytes to be positive, got {max_bytes}")
        self._connection = RabbitMQConnection.of(connection)
        self._exchange = exchange
        self._timeout = positive("timeout", timeout).total_seconds()
        self.features = Features(
            keyed_order=True,
            dedup=False,
            max_bytes=max_bytes,
            attribute_prefix="cloudEvents_",
            separator="/" if exchange is None else None,
        )

    async def _connect(self) -> RabbitMQLink:
        return await self._connection.connect()

    async def probe(self) -> None:
        if (await self._linked()).blocked:
            raise self._unavailable(BLOCKED)
        await super().probe()

    async def publish(self, messages: Sequence[Message]) -> Sequence[Answer]:
        link = await self._linked()
        late = "connection lost"
        tasks: list[asyncio.Task[Answer]] = []
        try:
            async with asyncio.timeout(self._timeout):
                routes = [self._route(message.destination) for message in messages]
                channels = {exchange: await link.channel(exchange) for exchange in dict(routes)}
                for message, (exchange, routing_key) in zip(messages, routes, strict=True):
                    sending = self._send(message, channels[exchange], exchange, routing_key)
                    tasks.append(asyncio.create_task(sending))
                waiting = set(tasks)
                while waiting and not link.blocked:
                    _, waiting = await asyncio.wait(waiting, timeout=GLANCE_SECONDS)
                if waiting:
                    late = BLOCKED
        except TimeoutError:
            late = f"no confirm within {self._timeout:g} s"
        except LOST as error:
            late = reason_of(error)
        finally:
            for task in tasks:
                task.cancel()
        if len(tasks) < len(messages):
            raise self._unavailable(late)
        return [task.result() if task.done() and not task.cancelled() else self._unavailable(late) for task in tasks]

    def _route(self, destination: str) -> tuple[str, str]:
        if self._exchange is not None:
            return self._exchange, destination
        exchange, slash, routing_key = destination.partition("/")
        return (exchange, routing_key) if slash else ("", destination)

    async def _send(
        self, message: Message, channel: aiormq.Channel | DeliveryError, exchange: str, routing_key: str
    ) -> Answer:
        if isinstance(channel, DeliveryError):
            return channel
        if (unfit := self._unfit(message, routing_key)) is not None:
            return unfit
        occurred = message.event.occurred_at
        properties = spec.Basic.Properties(
            delivery_mode=2,
            message_id=message.id,
            message_type=message.event.type,
            timestamp=occurred if occurred >= EPOCH else None,  # AMQP counts seconds from there, upwards
            content_type=message.content_type,
            headers=dict(message.attributes),
        )
        try:
            # Flushing after each message would make them wait for one another; the caller waits for all.
            await channel.basic_publish(
                message.body,
                exchange=exchange,
                routing_key=routing_key,
                properties=properties,
                mandatory=True,
                wait=False,
            )
        except LOST as error:
            return self._refusal(error, message)
        return None

    def _unfit(self, message: Message, routing_key: str) -> Reject | None:
        """What AMQP 0-9-1 has no room for; the client library would cut a header's name without a word."""
        limit = self.features.max_bytes
        if limit is not None and len(message.body) > limit:
            return Reject(f"the message is {len(message.body):,} bytes, max_bytes of the RabbitMQ sink is {limit:,}")
        for what, text, most in (
            ("routing key", routing_key, LONGEST),
            ("type", message.event.type, LONGEST),
            ("content type", message.content_type, LONGEST),
            *(("header name", name, LONGEST_NAME) for name in message.attributes),
        ):
            if len(text) > most // 4 and len(text.encode()) > most:
                return Reject(f"the {what} {text[:40]!r}… is longer than the {most} bytes that AMQP has for it")
        return None

    def _refusal(self, error: Exception, message: Message) -> DeliveryError:
        """Why a message was not confirmed.

        returned              no queue is bound: somebody may bind one, so it is tried again
        nack                  a queue is full (reject-publish) or failing: back-pressure, so its destination waits
        404                   the exchange is gone
        403                   an operator must act, the destination waits
        406, size             the broker's max_message_size: never
        everything else       the channel or connection was lost: the same message goes again
        """
        where = repr(message.destination)
        if isinstance(error, aiormq.PublishError):
            return DeliveryError(f"RabbitMQ returned a message for {where}: no queue is bound there; bind one")
        if isinstance(error, aiormq.DeliveryError):
            return BrokerUnavailable(
                f"RabbitMQ refused a message for {where} (nack): a queue is full or failing",
                destination=message.destination,
            )
        if isinstance(error, aiormq.ChannelNotFoundEntity):
            return DeliveryError(f"RabbitMQ knows no exchange for {where}: {reason_of(error)}")
        if isinstance(error, aiormq.ChannelAccessRefused):
            return BrokerUnavailable(f"no permission for {where}: {reason_of(error)}", destination=message.destination)
        if isinstance(error, aiormq.ChannelPreconditionFailed):
            limit = re.search(r"max size (\d+)", reason_of(error))
            if limit is not None and len(message.body) > int(limit[1]):
                return Reject(f"RabbitMQ refused {len(message.body):,} bytes: {reason_of(error)}")
        return self._unavailable(reason_of(error))
