"""A private Kafka for the sink contract, read with aiokafka."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition

from relaybox.brokers.kafka import KafkaConnection, KafkaSink
from relaybox.testing.servers.kafka import KafkaServer
from relaybox.testing.sink_contract import Received, SinkHarness


class KafkaHarness(SinkHarness):
    oversize = 1_100_000  # the broker takes 1,048,588 bytes

    def __init__(self, server: KafkaServer) -> None:
        self.server = server

    @property
    def url(self) -> str:
        return f"kafka://{self.server.bootstrap}"

    def sink(self, **options: Any) -> KafkaSink:
        own = {name: options.pop(name) for name in ("delivery_timeout",) if name in options}
        return KafkaSink(KafkaConnection(self.url, **options), **own)

    def consumer_options(self) -> dict[str, Any]:
        return {"bootstrap_servers": self.server.bootstrap}

    async def destination(self) -> str:
        return await self.topic()

    async def topic(self, partitions: int = 3, **settings: str) -> str:
        """A fresh topic that the broker knows, and not only its controller."""
        name = f"{await asyncio.to_thread(self.server.fresh_topic)}-{partitions}"
        await asyncio.to_thread(self.server.create_topic, name, partitions, settings)
        await self.records(name, 0)
        return name

    async def read(self, destination: str, count: int, timeout: float = 20) -> list[Received]:
        return [received(record) for record in await self.records(destination, count, timeout)]

    async def records(self, topic: str, count: int, seconds: float = 20) -> list[Any]:
        """Everything in the topic once there are `count` records, partition by partition."""
        options = {"auto_offset_reset": "earliest", **self.consumer_options()}
        async with asyncio.timeout(seconds), AIOKafkaConsumer(topic, **options) as consumer:
            while not (numbers := consumer.partitions_for_topic(topic)):
                await consumer._client.force_metadata_update()
            partitions = [TopicPartition(topic, number) for number in sorted(numbers)]
            while sum((ends := await consumer.end_offsets(partitions)).values()) < count:
                await asyncio.sleep(0.02)
            found: list[Any] = []
            while any([await consumer.position(each) < end for each, end in ends.items()]):  # compacted, it has gaps
                for batch in (await consumer.getmany(timeout_ms=100)).values():
                    found += batch
        return sorted(found, key=lambda record: (record.partition, record.offset))

    async def missing(self) -> str:
        return "no-such-topic"

    async def outage(self) -> None:
        await asyncio.to_thread(self.server.kill)

    async def recovery(self) -> None:
        await asyncio.to_thread(self.server.start)


class SecuredHarness(KafkaHarness):
    """A broker that wants TLS and a password."""

    @property
    def url(self) -> str:
        return f"kafkas://{self.server.bootstrap}"

    def sink(self, **options: Any) -> KafkaSink:
        given = self.server.client_settings
        login = {"username": given["sasl.username"], "password": given["sasl.password"], "sasl": "PLAIN"}
        return super().sink(**{"ca_file": self.server.ca_file, **login, **options})

    def wrong_credentials(self) -> KafkaSink:
        return self.sink(password=f"not-{self.server.client_settings['sasl.password']}")

    def consumer_options(self) -> dict[str, Any]:
        given = self.server.client_settings
        return {
            **super().consumer_options(),
            "security_protocol": "SASL_SSL",
            "ssl_context": ssl.create_default_context(cafile=self.server.ca_file),
            "sasl_mechanism": "PLAIN",
            "sasl_plain_username": given["sasl.username"],
            "sasl_plain_password": given["sasl.password"],
        }


def received(record: Any) -> Received:
    attributes = {name: value.decode() for name, value in record.headers}
    content_type = attributes.pop("content-type")
    key = None if record.key is None else record.key.decode()
    return Received(attributes["event_id"], key, record.value, content_type, attributes)
