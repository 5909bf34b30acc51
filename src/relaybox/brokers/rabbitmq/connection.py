"""A connection to RabbitMQ: where the nodes are, how to log in, and what aiormq raises when it is lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, get_args

from ...errors import ConfigError, MissingExtra
from ..hosts import Hosts, client_context

try:
    import aiormq
    from aiormq.abc import ChannelFrame, DeliveredMessage
    from pamqp.body import ContentBody
    from yarl import URL
except ModuleNotFoundError as error:
    raise MissingExtra("aiormq", "rabbitmq") from error

PORTS = {"amqp": 5672, "amqps": 5671}
HEARTBEAT = 10  # seconds
CLOSE_SECONDS = 0.5
LOST = (aiormq.AMQPError, OSError, RuntimeError)  # what aiormq raises once a channel or connection is gone, or refuses

Auth = Literal["plain", "external"]


class RabbitMQNodes:
    """`auth="external"` lets the client certificate log in instead of a password (RabbitMQ's ssl auth plugin)."""

    def __init__(
        self,
        url: str,
        *,
        username: str | None,
        password: str | None,
        auth: Auth,
        ca_file: Path | None,
        cert_file: Path | None,
        key_file: Path | None,
        connect_timeout: timedelta,
    ) -> None:
        self._hosts = hosts = Hosts.parse(url, PORTS)
        if auth not in get_args(Auth):
            raise ConfigError(f"expected auth to be plain or external, got {auth!r}")
        if hosts.scheme == "amqp" and (ca_file or cert_file or key_file or auth == "external"):
            raise ConfigError(f"ca_file, cert_file, key_file and auth=external need an amqps:// URL, got {hosts}")
        if connect_timeout <= timedelta(0):
            raise ConfigError(f"expected connect_timeout to be a positive duration, got {connect_timeout}")
        self._tls = client_context(ca_file, cert_file, key_file) if hosts.scheme == "amqps" else None
        self._account = (username or hosts.username or "guest", password or hosts.password or "guest")
        self._auth = auth
        self._patience = connect_timeout.total_seconds()

    def __str__(self) -> str:
        return str(self._hosts)

    async def connect(self) -> RabbitMQLink:
        """To the first node that answers; ConnectionError says why none did."""
        failures = []
        for host, port in self._hosts.addresses:
            try:
                async with asyncio.timeout(self._patience):
                    return await self._dial(host, port)
            except TimeoutError:
                failures.append(f"no connection to {host}:{port} within {self._patience:g} s")
            except (OSError, aiormq.AMQPError) as error:
                failures.append(reason_of(error))
        raise ConnectionError("; ".join(failures))

    async def _dial(self, host: str, port: int) -> RabbitMQLink:
        reader, writer = await asyncio.open_connection(host, port, ssl=self._tls)
        try:
            user, password = self._account
            url = URL.build(
                scheme=self._hosts.scheme,
                host=host,
                port=port,
                user=user,
                password=password,
                path=self._hosts.path if len(self._hosts.path) > 1 else "/",
                query={"name": "relaybox", "auth": self._auth, "heartbeat": str(HEARTBEAT)},
            )
            connection = aiormq.Connection(url, transport_factory=_Streams(reader, writer))
            await connection.connect()
        except BaseException:
            writer.transport.abort()
            raise
        return RabbitMQLink(connection, writer)


class RabbitMQLink:
    """One connection; we keep its writer, to abort it."""

    def __init__(self, connection: aiormq.Connection, writer: asyncio.StreamWriter) -> None:
        self.connection = connection
        self._writer = writer

    @property
    def alive(self) -> bool:
        return self.connection.is_opened

    async def close(self) -> None:
        """Politely, if the broker listens: aiormq waits for its buffers, and cannot be cancelled while it does."""
        closing = asyncio.create_task(self.connection.close(aiormq.ConnectionClosed(0, "closed by us")))
        try:
            await asyncio.wait([closing], timeout=CLOSE_SECONDS)
        finally:
            self.abort()
        await closing

    def abort(self) -> None:
        """What is still in our buffers must not be sent some day."""
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
        task = asyncio.current_task()
        if task is None or task.cancelling():
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
