"""The RabbitMQ sink against a private node; read back with pika."""

from __future__ import annotations

import asyncio
import itertools
import time
from functools import cache
from typing import Any

import pika
from pika.adapters.blocking_connection import BlockingChannel

from relaybox.brokers.rabbitmq.sink import RabbitMQSink
from relaybox.testing.servers import RabbitMQServer, require
from relaybox.testing.sink_contract import SECRET, Received, SinkHarness

EXCHANGE = "events"
USER = "publisher"
QUIET_SECONDS = 0.2  # after the last message, for one more that should not be there
_names = itertools.count()


class RabbitMQHarness(SinkHarness):
    """Queues behind a direct exchange; a destination is `events/<queue>`."""

    oversize = 1_000_000

    def __init__(self, server: RabbitMQServer, **options: Any) -> None:
        self.server = server
        self.options: dict[str, Any] = {"password": SECRET, "max_bytes": 900_000, **options}

    @property
    def url(self) -> str:
        return f"amqp://{USER}@127.0.0.1:{self.server.port}/"

    def sink(self, **options: Any) -> RabbitMQSink:
        given = {"url": self.url, **self.options, **options}
        return RabbitMQSink.from_url(given.pop("url"), given)

    async def destination(self, **arguments: Any) -> str:
        queue = f"orders-{next(_names)}"

        def declare(channel: BlockingChannel) -> None:
            channel.exchange_declare(EXCHANGE, "direct", durable=True)
            channel.queue_declare(queue, durable=True, arguments=arguments)
            channel.queue_bind(queue, EXCHANGE, queue)

        await self.with_pika(declare)
        return f"{EXCHANGE}/{queue}"

    async def read(self, destination: str, count: int, timeout: float = 20) -> list[Received]:
        return await self.with_pika(lambda channel: _read(channel, destination.rpartition("/")[2], count, timeout))

    async def missing(self) -> str:
        return f"{EXCHANGE}/nobody-listens"

    async def outage(self) -> None:
        self.server.kill()

    async def recovery(self) -> None:
        await asyncio.to_thread(self.server.start)

    def wrong_credentials(self) -> RabbitMQSink:
        return self.sink(password=f"wrong-{SECRET}")

    async def with_pika(self, work: Any) -> Any:
        """Run `work(channel)` in a thread, on a connection of its own."""

        def run() -> Any:
            with pika.BlockingConnection(pika.URLParameters(self.server.url)) as connection:
                return work(connection.channel())

        return await asyncio.to_thread(run)


@cache
def shared_server() -> RabbitMQServer:
    """With an account that may only publish, and whose password is the secret that nobody may see."""
    server = require("rabbitmq")
    server.ctl("add_user", USER, SECRET)
    server.ctl("set_permissions", USER, "", ".*", "")
    return server


def _read(channel: BlockingChannel, queue: str, count: int, timeout: float) -> list[Received]:
    """Without acknowledging: the messages go back in order when the channel closes. A server may pause in the middle of
    many, so all that is there counts."""
    found: list[Received] = []
    count = max(count, channel.queue_declare(queue, passive=True).method.message_count)
    deadline = time.monotonic() + timeout
    for method, properties, body in channel.consume(queue, inactivity_timeout=QUIET_SECONDS):
        if method is not None:
            found.append(_received(properties, body))
        elif len(found) >= count or time.monotonic() > deadline:
            return found
    return found


def _received(properties: pika.BasicProperties, body: bytes) -> Received:
    assert properties.delivery_mode == 2
    headers = dict(properties.headers or {})
    return Received(properties.message_id, headers.get("aggregate_id"), body, properties.content_type, headers)
