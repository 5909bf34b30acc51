"""The source contract at Kafka and RabbitMQ."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from contextlib import closing
from urllib.parse import quote

import pytest

from relaybox.brokers.kafka.sink import KafkaSink
from relaybox.brokers.kafka.source import KafkaSource
from relaybox.brokers.rabbitmq.sink import RabbitMQSink
from relaybox.brokers.rabbitmq.source import RabbitMQSource
from relaybox.testing.servers import RabbitMQServer, TcpGate, require
from relaybox.testing.sink_contract import SECRET
from relaybox.testing.source_contract import SourceContract, SourceHarness

from .kafka_behind_gate import SESSION, KafkaBehindGate

_names = itertools.count()


class KafkaHarness(SourceHarness):
    kind = KafkaSource
    leases = False
    has_key = True

    def __init__(self, server: KafkaBehindGate) -> None:
        self.server = server

    def sink(self) -> KafkaSink:
        return KafkaSink(f"kafka://{self.server.bootstrap}")

    def url(self, channel: str, *, lease: float | None = None) -> str:
        return f"kafka://{self.server.bootstrap}/{channel}?group=of-{channel}&{SESSION}"

    async def channel(self) -> str:
        return await asyncio.to_thread(self.server.fresh_topic, 2)

    async def outage(self) -> None:
        self.server.gate.refuse()

    async def recovery(self) -> None:
        self.server.gate.open()


class RabbitMQHarness(SourceHarness):
    kind = RabbitMQSource
    leases = False

    def __init__(self) -> None:
        self.server: RabbitMQServer = require("rabbitmq")
        self.gate = TcpGate(self.server.port)
        self.address = self.gate.through(self.server.url)

    def sink(self) -> RabbitMQSink:
        return RabbitMQSink(self.address)

    def url(self, channel: str, *, lease: float | None = None) -> str:
        return f"{self.address}?queue={channel}"

    async def channel(self) -> str:
        name = f"rb-{next(_names)}"
        source = RabbitMQSource(self.server.url, queue=name, declare="quorum")
        await source.open()
        await source.close()
        return name

    async def outage(self) -> None:
        self.gate.refuse()

    async def recovery(self) -> None:
        self.gate.open()

    def wrong_url(self, channel: str) -> str | None:
        account, _, rest = self.url(channel).rpartition("@")
        return f"{account.rpartition(':')[0]}:{quote(SECRET)}@{rest}"


class TestKafka(SourceContract):
    @pytest.fixture
    def harness(self, kafka_server: KafkaBehindGate) -> SourceHarness:
        return KafkaHarness(kafka_server)


class TestRabbitMQ(SourceContract):
    @pytest.fixture
    def harness(self) -> Iterator[SourceHarness]:
        made = RabbitMQHarness()
        with closing(made.gate):
            yield made
