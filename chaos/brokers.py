"""The brokers a relay trial can use: the harness of the sink contract, and how a relay process is told of it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from relaybox.testing.sink_contract import SinkHarness

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "brokers"))


class Broker(NamedTuple):
    harness: Any  # a SinkHarness
    url: str  # of the sink
    options: dict[str, Any]
    batch: int | None = None  # None: as the trial says
    workers: int = 4
    drained: bool = False  # is read while it is written to: moto searches its whole queue for every message


def _kafka(stack: ExitStack, folder: Path) -> Broker:
    from kafka_harness import KafkaHarness

    from relaybox.testing.servers.kafka import KafkaServer

    server = stack.enter_context(KafkaServer())
    return Broker(KafkaHarness(server), f"kafka://{server.bootstrap}", {})


def _rabbitmq(stack: ExitStack, folder: Path) -> Broker:
    from rabbitmq_harness import RabbitMQHarness

    from relaybox.testing.servers.rabbitmq import RabbitMQServer

    harness = RabbitMQHarness(stack.enter_context(RabbitMQServer()))
    return Broker(harness, harness.server.url, {})


def _nats(stack: ExitStack, folder: Path) -> Broker:
    from nats_harness import NatsHarness

    from relaybox.testing.servers.nats import NatsServer

    harness = NatsHarness(stack.enter_context(NatsServer(durable=True)))
    return Broker(harness, harness.url, {})


def _redis(stack: ExitStack, folder: Path) -> Broker:
    from redis_harness import RedisHarness

    from relaybox.testing.servers.redis import RedisServer

    server = stack.enter_context(RedisServer(durable=True))
    return Broker(RedisHarness(server), server.url, {})


def _aws(kind: str) -> Callable[[ExitStack, Path], Broker]:
    def make(stack: ExitStack, folder: Path) -> Broker:
        import aws_harness

        from relaybox.testing.servers.gate import TcpGate
        from relaybox.testing.servers.moto import MotoServer

        server = stack.enter_context(MotoServer())
        gate = stack.enter_context(TcpGate(server.port))
        harness = getattr(aws_harness, f"{kind.capitalize()}Harness")(server, gate, server, fifo=True)
        options = {
            "region": server.region,
            "account": aws_harness.ACCOUNT,
            "endpoint_url": gate.through(server.url),
            "access_key_id": "any",
            "secret_access_key": "any",
            "fifo": True,
        }
        return Broker(harness, f"{kind}://", options, batch=10, workers=1, drained=True)

    return make


def _pubsub(stack: ExitStack, folder: Path) -> Broker:
    from pubsub_harness import PubSubHarness

    from relaybox.testing.servers.gate import TcpGate
    from relaybox.testing.servers.pubsub import PubSubServer

    server = stack.enter_context(PubSubServer())
    gate = stack.enter_context(TcpGate(server.port))
    return Broker(PubSubHarness(server, gate), "pubsub://relaybox", {"emulator_host": f"127.0.0.1:{gate.port}"})


def _webhook(stack: ExitStack, folder: Path) -> Broker:
    from webhook_harness import WHSEC, ReceiverServer, WebhookHarness

    server = stack.enter_context(ReceiverServer())
    options = {
        "secrets": [WHSEC],
        "allow_networks": ["127.0.0.1/32"],
        "ports": [server.port],
        "ca_file": str(server.ca_file),
    }
    return Broker(WebhookHarness(server), "webhook://", options)


def _inbox(stack: ExitStack, folder: Path) -> Broker:
    from inbox_harness import GuardedPostgres, PostgresHarness

    harness = PostgresHarness(stack.enter_context(GuardedPostgres.from_wheel(durable=True)))
    return Broker(harness, f"inbox+{harness.relay_url}", {})


def _json_lines(stack: ExitStack, folder: Path) -> Broker:
    from json_lines_harness import JsonLinesHarness

    harness = JsonLinesHarness(folder)
    return Broker(harness, f"file://{harness.path}", {})


BROKERS: dict[str, Callable[[ExitStack, Path], Broker]] = {
    "kafka": _kafka,
    "rabbitmq": _rabbitmq,
    "nats": _nats,
    "redis": _redis,
    "sqs": _aws("sqs"),
    "sns": _aws("sns"),
    "pubsub": _pubsub,
    "webhook": _webhook,
    "inbox": _inbox,
    "json-lines": _json_lines,
}


@contextmanager
def broker(name: str, folder: Path) -> Iterator[Broker]:
    with ExitStack() as stack:
        made = BROKERS[name](stack, folder)
        assert isinstance(made.harness, SinkHarness)
        yield made
