"""A connection to RabbitMQ: where the nodes are, how to log in, and what aiormq raises when it is lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias, cast

import aiormq
from aiormq.abc import ChannelFrame, DeliveredMessage
from pamqp.body import ContentBody
from yarl import URL

from ...durations import DurationField
from ...errors import DeliveryError
from ...tasks import is_cancelled
from ..connection import HostsConnection
from ..options import check_choice, check_positive
from .frames import Readable

HEARTBEAT = 10  # seconds
CLOSE_SECONDS = 0.5
PROBE_SECONDS = 0.5
LONGEST = 255  # bytes of a short string
LOST = (aiormq.AMQPError, OSError, RuntimeError)  # what aiormq raises once a channel or connection is gone, or refuses

Auth: TypeAlias = Literal["plain", "external"]


@dataclass(frozen=True, kw_only=True, repr=False)
class RabbitMQConnection(HostsConnection):
    """Where RabbitMQ is, and how to log in.

        RabbitMQConnection("amqps://relay:secret@rabbit-1.example,rabbit-2.example/shop")

    url                  some nodes and the virtual host; amqps:// is encrypted, and certificates and names are checked
    username, password   the account, where the URL has none; guest and guest if it is nowhere
    auth                 external lets the client certificate log in instead (RabbitMQ's ssl auth plugin)
    tls                  verify, require (which verifies nobody) or off, instead of the scheme of the URL
    insecure_no_tls      let a password go over the network in clear text
    ca_file              who signed the nodes' certificates, if the system does not know them
    cert_file, key_file  our own certificate
    connect_timeout      of one node
    """

    product: ClassVar[str] = "RabbitMQ"
    ports: ClassVar[Mapping[str, int]] = {"amqp": 5672, "amqps": 5671}

    auth: Auth = "plain"
    connect_timeout: DurationField = DurationField("2s")

    def __post_init__(self) -> None:
        check_choice("auth", self.auth, Auth)
        super().__post_init__()
        check_positive(connect_timeout=self.connect_timeout)
        _ = self.tls_context  # says what is wrong with the files

    def _for_tls(self) -> dict[str, object]:
        return {**super()._for_tls(), "auth=external": self.auth == "external"}

    async def connect(self) -> RabbitMQLink:
        """To the first node that answers; ConnectionError says why none did."""
        failures = []
        seconds = self.connect_timeout.total_seconds()
        for host, port in self.hosts.addresses:
            try:
                async with asyncio.timeout(seconds):
                    return await self._dial(host, port)
            except TimeoutError:
                failures.append(f"no connection to {host}:{port} within {seconds:g} s")
            except (OSError, aiormq.AMQPError) as error:
                failures.append(reason_of(error))
        raise ConnectionError("; ".join(failures))

    async def _dial(self, host: str, port: int) -> RabbitMQLink:
        reader, writer = await asyncio.open_connection(host, port, ssl=self.tls_context)
        try:
            username, password = self.account
            url = URL.build(
                scheme=self.hosts.scheme,
                host=host,
                port=port,
                user=username or "guest",
                password=password or "guest",
                path=self.hosts.path if len(self.hosts.path) > 1 else "/",
                query={"name": "relaybox", "auth": self.auth, "heartbeat": str(HEARTBEAT)},
            )
            connection = aiormq.Connection(url, transport_factory=_Streams(Readable(reader), writer))
            await connection.connect()
        except BaseException:
            writer.transport.abort()
            raise
        return RabbitMQLink(connection, writer)


class RabbitMQLink:
    """One connection and the channels of its exchanges; we keep its writer, to abort it."""

    def __init__(self, connection: aiormq.Connection, writer: asyncio.StreamWriter) -> None:
        self.connection = connection
        self._writer = writer
        self._channels: dict[str, aiormq.Channel] = {}
        self._opening = asyncio.Lock()

    @property
    def alive(self) -> bool:
        return self.connection.is_opened

    @property
    def blocked(self) -> bool:
        """The broker stopped reading from us. It tells a connection after its first publish under an alarm."""
        ready = self.connection.ready()
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
                    channel = await self.connection.channel(publisher_confirms=False)
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
                    channel = cast(aiormq.Channel, await self.connection.channel())
                    try:
                        if exchange:
                            await channel.exchange_declare(exchange, passive=True)
                    except aiormq.ChannelNotFoundEntity as error:
                        return DeliveryError(f"RabbitMQ knows no exchange {exchange!r}: {reason_of(error)}")
                    except aiormq.ChannelAccessRefused:  # who may publish may not always ask: RabbitMQ 4.3
                        channel = cast(aiormq.Channel, await self.connection.channel())
                self._channels[exchange] = channel
            return channel

    async def close(self) -> None:
        """Politely, if the broker listens: aiormq waits for its buffers, and cannot be cancelled while it does."""
        closing = asyncio.create_task(self.connection.close(aiormq.ConnectionClosed(0, "closed by us")))
        try:
            await asyncio.wait([closing], timeout=CLOSE_SECONDS)
        finally:
            await self.abort()
        await closing

    async def abort(self) -> None:
        self._writer.transport.abort()


class _Streams(aiormq.TransportFactory):
    """Streams that are connected already: no TLS but ours is possible."""

    def __init__(self, *streams: Any) -> None:
        self._streams = streams

    async def create(self, url: URL, **kwargs: Any) -> Any:
        return self._streams


@contextmanager
def aware() -> Iterator[None]:
    """aiormq cancels what waits for a connection that it gave up; the caller was not cancelled."""
    try:
        yield
    except asyncio.CancelledError:
        if is_cancelled():
            raise
        raise ConnectionError("connection lost") from None


def reason_of(error: BaseException) -> str:
    return " ".join(str(part) for part in error.args) or type(error).__name__


def _without_payload(record: logging.LogRecord) -> bool:
    args = record.args if isinstance(record.args, tuple) else ()
    return not any(isinstance(arg, (ChannelFrame, ContentBody, DeliveredMessage)) for arg in args)


# aiormq logs whole frames at DEBUG and some returned messages as errors; payloads stay out of every log.
for _name in ("aiormq.connection", "aiormq.channel"):
    logging.getLogger(_name).addFilter(_without_payload)
