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
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self, cast
from urllib.parse import urlunsplit

from ...errors import BrokerUnavailable, ConfigError, DeliveryError, MissingExtra, Reject, ServiceClosed
from ..options import split_url, typed
from ..spi import Answer, Features, Message
from .connection import LOST, Auth, RabbitMQLink, RabbitMQNodes, aware, reason_of

try:
    import aiormq
    from aiormq import spec
except ModuleNotFoundError as error:
    raise MissingExtra("aiormq", "rabbitmq") from error

PROBE_SECONDS = 0.5  # for a connection that is there; a new one follows if it is silent
GLANCE_SECONDS = 0.25  # between two looks at whether late confirms are late because of an alarm
LONGEST, LONGEST_NAME = 255, 128  # bytes of a short string, and of a header's name
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
BLOCKED = "blocked by a memory or disk alarm"


class RabbitMQSink:
    """`auth="external"` lets the client certificate log in instead of a password (RabbitMQ's ssl auth plugin)."""

    name = "rabbitmq"

    def __init__(
        self,
        url: str = "amqp://guest:guest@localhost:5672/",
        *,
        exchange: str | None = None,
        username: str | None = None,
        password: str | None = None,
        auth: Auth = "plain",
        ca_file: Path | None = None,
        cert_file: Path | None = None,
        key_file: Path | None = None,
        max_bytes: int = 16 * 1024 * 1024,
        connect_timeout: timedelta = timedelta(seconds=2),
        timeout: timedelta = timedelta(seconds=5),
    ) -> None:
        self._nodes = RabbitMQNodes(
            url,
            username=username,
            password=password,
            auth=auth,
            ca_file=ca_file,
            cert_file=cert_file,
            key_file=key_file,
            connect_timeout=connect_timeout,
        )
        if exchange is not None and len(exchange.encode()) > LONGEST:
            raise ConfigError(f"expected exchange to be at most {LONGEST} bytes long, got {exchange!r}")
        if timeout <= timedelta(0):
            raise ConfigError(f"expected timeout to be a positive duration, got {timeout}")
        if max_bytes < 1:
            raise ConfigError(f"expected max_bytes to be positive, got {max_bytes}")
        self._exchange = exchange
        self._timeout = timeout.total_seconds()
        self._link: _Link | None = None
        self._connecting = asyncio.Lock()
        self._closed = False
        self.features = Features(
            keyed_order=True,
            dedup=False,
            max_bytes=max_bytes,
            attribute_prefix="cloudEvents_",
            separator="/" if exchange is None else None,
        )

    @classmethod
    def from_url(cls, url: str, options: Mapping[str, Any]) -> Self:
        parts, options = split_url(url, options)
        return cls(urlunsplit(parts), **typed(cls, options, taken={"url"}))

    def __repr__(self) -> str:
        return f"RabbitMQSink({str(self._nodes)!r})"

    # Life

    async def open(self) -> None:
        self._closed = False
        await self._linked()

    async def probe(self) -> None:
        link = await self._linked()
        if link.blocked:
            raise self._unavailable(BLOCKED)
        if not await link.answers():
            await self._linked(instead_of=link)

    async def close(self) -> None:
        self._closed = True
        async with self._connecting:
            link, self._link = self._link, None
        if link is not None:
            await link.close()

    async def _linked(self, instead_of: _Link | None = None) -> _Link:
        """The connection, or a new one in place of one that is lost or that the caller found silent."""
        async with self._connecting:
            if self._closed:
                raise ServiceClosed("the RabbitMQ sink is closed")
            old = self._link
            if old is None or not old.alive or old is instead_of:
                self._link = await self._connect()
                if old is not None:
                    old.abort()
            assert self._link is not None
            return self._link

    async def _connect(self) -> _Link:
        try:
            return _Link(await self._nodes.connect())
        except ConnectionError as error:
            raise self._unavailable(str(error)) from None

    # Publishing

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
            # Draining after each message would make them wait for one another; the caller waits for all.
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

    def _unavailable(self, reason: str) -> BrokerUnavailable:
        return BrokerUnavailable(f"RabbitMQ at {self._nodes}: {reason}")


class _Link:
    """One connection and its channels."""

    def __init__(self, link: RabbitMQLink) -> None:
        self._connection = link.connection
        self._channels: dict[str, aiormq.Channel] = {}
        self._opening = asyncio.Lock()
        self.close = link.close
        self.abort = link.abort

    @property
    def alive(self) -> bool:
        return self._connection.is_opened

    @property
    def blocked(self) -> bool:
        """The broker stopped reading from us. It tells a connection after its first publish under an alarm."""
        ready = self._connection.ready()
        try:
            ready.send(None)
        except StopIteration:
            return False
        finally:
            ready.close()
        return True

    async def answers(self) -> bool:
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                with aware():
                    channel = await self._connection.channel(publisher_confirms=False)
                    await channel.close()
        except (TimeoutError, *LOST):
            return False
        return True

    async def channel(self, exchange: str) -> aiormq.Channel | DeliveryError:
        """Asks for the exchange first: a pipeline of messages into a missing one would cost the connection."""
        if len(exchange.encode()) > LONGEST:
            return DeliveryError(f"{exchange[:40]!r}… is no exchange: the name is longer than {LONGEST} bytes")
        async with self._opening:
            channel = self._channels.get(exchange)
            if channel is None or channel.is_closed:
                with aware():
                    channel = cast(aiormq.Channel, await self._connection.channel())
                    try:
                        if exchange:
                            await channel.exchange_declare(exchange, passive=True)
                    except aiormq.ChannelNotFoundEntity as error:
                        return DeliveryError(f"RabbitMQ knows no exchange {exchange!r}: {reason_of(error)}")
                self._channels[exchange] = channel
            return channel
