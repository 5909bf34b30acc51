"""What goes to a broker without TLS: nothing that logs in, to a remote host, unless somebody says so."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from relaybox.brokers.connection import BrokerConnection, HostsConnection
from relaybox.brokers.kafka import KafkaConnection
from relaybox.brokers.nats.connection import NatsConnection
from relaybox.brokers.rabbitmq.connection import RabbitMQConnection
from relaybox.brokers.redis.connection import RedisConnection
from relaybox.errors import ConfigError
from relaybox.guard.redis import connect as guard_redis
from relaybox.testing.sink_contract import SECRET

PLAIN = {"sasl": "PLAIN", "username": "relay", "password": SECRET}
SCRAM = {**PLAIN, "sasl": "SCRAM-SHA-512"}
IN_CLEAR: list[tuple[type[HostsConnection], str, dict[str, Any]]] = [
    (KafkaConnection, "kafka://{}:9092", PLAIN),
    (KafkaConnection, "kafka://{}:9092", {"sasl": "OAUTHBEARER", "token": lambda: ("", 0.0)}),
    (KafkaConnection, "kafka://localhost,{}", PLAIN),
    (RabbitMQConnection, "amqp://relay:" + SECRET + "@{}/shop", {}),
    (RabbitMQConnection, "amqp://{}/shop", {"username": "relay", "password": SECRET}),
    (NatsConnection, "nats://relay:" + SECRET + "@{}", {}),
    (NatsConnection, "nats://" + SECRET + "@{}", {}),
    (NatsConnection, "nats://{}", {"token": SECRET}),
    (RedisConnection, "redis://:" + SECRET + "@{}/0", {}),
    (RedisConnection, "redis://{}/0", {"password": SECRET, "tls": "off"}),
]
clear = pytest.mark.parametrize(("kind", "url", "options"), IN_CLEAR)


@clear
@pytest.mark.parametrize("host", ["broker.example", "10.0.0.7", "0.0.0.0", "localhost.example", "host.docker.internal"])
def test_refused_to_a_remote_host(kind: type[HostsConnection], url: str, options: dict[str, Any], host: str) -> None:
    with pytest.raises(ConfigError, match=r"would go over the network in clear text; use \w+s://") as caught:
        kind(url.format(host), **options)
    assert SECRET not in str(caught.value)


@clear
@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]", "127.1.2.3", "broker.localhost"])
def test_nothing_to_say_on_this_machine(
    kind: type[HostsConnection], url: str, options: dict[str, Any], host: str, caplog: pytest.LogCaptureFixture
) -> None:
    kind(url.format(host), **options)
    assert not caplog.records


@clear
def test_allowed_by_name_and_said_once(
    kind: type[HostsConnection], url: str, options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    host = f"clear-{IN_CLEAR.index((kind, url, options))}.example"
    for _ in range(3):
        kind(url.format(host), insecure_no_tls=True, **options)
    [line] = [record.getMessage() for record in caplog.records]
    assert line.startswith(f"the connection to {kind.product} at {host} is not encrypted: use ")
    assert SECRET not in line


@pytest.mark.parametrize(
    ("kind", "url", "options"),
    [
        (KafkaConnection, "kafka://broker.example", SCRAM),
        (RabbitMQConnection, "amqp://broker.example", {}),
        (RedisConnection, "redis://broker.example", {}),
        (NatsConnection, "nats://broker.example", {}),
        *[(kind, url.format("broker.example"), {**options, "tls": "verify"}) for kind, url, options in IN_CLEAR],
        *[(kind, url.format("broker.example"), {**options, "tls": "require"}) for kind, url, options in IN_CLEAR],
    ],
)
def test_what_tells_no_password(kind: type[HostsConnection], url: str, options: dict[str, Any]) -> None:
    kind(url, **options)


@pytest.mark.parametrize(
    ("connection", "port"),
    [
        (RabbitMQConnection("amqp://broker.example", tls="verify"), 5671),
        (RabbitMQConnection("amqp://broker.example:5672", tls="verify"), 5672),
        (NatsConnection("nats://broker.example", tls="require"), 4222),
        (RedisConnection("redis://broker.example", tls="verify"), 6379),
    ],
)
def test_tls_by_option(connection: HostsConnection, port: int) -> None:
    assert connection.secure
    assert connection.hosts.addresses == (("broker.example", port),)
    context = connection.tls_context
    assert context is not None
    assert context.check_hostname is (connection.tls == "verify")


def test_redis_without_verifying() -> None:
    settings = RedisConnection("rediss://broker.example", tls="require").settings()
    assert (settings["ssl"], settings["ssl_check_hostname"], settings["ssl_cert_reqs"]) == (True, False, "none")


@pytest.mark.parametrize("url", ["amqp://h?tls=maybe", "amqps://h?tls=off", "amqps://h?tls=require&ca_file=x"])
def test_contradictions(url: str) -> None:
    with pytest.raises(ConfigError, match="tls"):
        RabbitMQConnection.of(url)


def test_a_url_gives_the_mode() -> None:
    connection: BrokerConnection = RabbitMQConnection.of(f"amqp://u:{SECRET}@broker.example?tls=verify")
    assert isinstance(connection, RabbitMQConnection)
    assert connection.secure
    assert RabbitMQConnection.of(f"amqp://u:{SECRET}@broker.example?insecure_no_tls=true").insecure_no_tls


# -- the guard, whose URL is read by redis-py -------------------------------------------------------


def guarded(url: str) -> dict[str, Any]:
    kwargs: dict[str, Any] = guard_redis(url, timedelta(seconds=1))._client.connection_pool.connection_kwargs
    return kwargs


def test_the_guard_tells_no_password_in_clear_text(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ConfigError, match="in clear text; use rediss://"):
        guarded(f"redis://:{SECRET}@guard.example/0")
    guarded(f"redis://:{SECRET}@localhost/0")
    assert not caplog.records
    assert guarded(f"redis://:{SECRET}@guard.example/0?insecure_no_tls=true")["password"] == SECRET
    assert "Redis at guard.example is not encrypted" in caplog.text


def test_the_guard_verifies(tmp_path: Path) -> None:
    found = guarded(f"redis://:{SECRET}@guard.example/0?tls=verify")
    assert (found["ssl_check_hostname"], found["ssl_cert_reqs"]) == (True, "required")
    assert guarded(f"rediss://:{SECRET}@guard.example/0")["ssl_check_hostname"] is True
    assert guarded("rediss://guard.example/0?tls=require")["ssl_cert_reqs"] == "none"
    with pytest.raises(ConfigError, match="cannot use the TLS files"):
        guarded(f"rediss://guard.example/0?ssl_ca_certs={tmp_path}/none.pem")
    with pytest.raises(ConfigError, match="tls=off makes no sense with rediss://"):
        guarded("rediss://guard.example/0?tls=off")
