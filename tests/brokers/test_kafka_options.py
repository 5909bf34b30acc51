"""Options of the Kafka sink: what is taken, what is refused and why, and that no secret shows."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from kit.certificates import Authority, Pair
from relaybox.brokers.kafka import KafkaConnection, KafkaSink
from relaybox.errors import BrokerUnavailable, ConfigError
from relaybox.testing.sink_contract import SECRET
from relaybox.testing.sink_contract.harness import check_discreet

HERE = "kafka://localhost:9092"
THERE = "kafka://clear.example:9092"
SECURE = "kafkas://localhost:9092"
LOGIN = {"sasl": "PLAIN", "username": "shop", "password": SECRET, "url": SECURE}
OWN = ("linger", "compression", "delivery_timeout")


def made(options: dict[str, Any]) -> KafkaSink:
    connection = {name: value for name, value in {"url": HERE, **options}.items() if name not in OWN}
    return KafkaSink(KafkaConnection(**connection), **{name: options[name] for name in OWN if name in options})


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"url": ""}, "expected kafka://, kafkas:// and host:port"),
        ({"url": "kafka://a:1,,b:2"}, "expected kafka://"),
        ({"url": f"shop:{SECRET}@a:1"}, "expected kafka://"),
        ({"url": "kafka://a:1/orders"}, "to end behind its hosts"),
        ({"ca_file": "/ca.pem"}, "ca_file needs a URL that begins with kafkas://"),
        ({"key_password": SECRET}, "key_password needs a URL that begins with kafkas://"),
        ({"compression": "rar"}, "compression to be one of .*zstd.*'rar'"),
        ({"linger": timedelta(seconds=1)}, "linger to be between 0 and 5 ms, got 1000 ms"),
        ({"delivery_timeout": timedelta(0)}, "delivery_timeout to be between 1000"),
        ({"sasl": "GSSAPI"}, "sasl to be one of PLAIN"),
        ({"username": "shop"}, "credentials need the option sasl"),
        ({"password": SECRET}, "credentials need the option sasl"),
        ({**LOGIN, "password": None}, "sasl=PLAIN needs username and password"),
        ({**LOGIN, "url": THERE}, "the password for .* in clear text; use kafkas://, or insecure_no_tls"),
        ({"sasl": "OAUTHBEARER", "token": lambda: ("", 0.0), "url": THERE}, "the token for .* in clear text"),
        ({"url": SECURE, "tls": "off"}, "tls=off makes no sense with kafkas://"),
        ({"url": HERE, "tls": "maybe"}, "expected tls to be verify, require or off, got 'maybe'"),
        ({"url": SECURE, "tls": "require", "ca_file": "x"}, "ca_file makes no sense with tls=require"),
        ({"sasl": "OAUTHBEARER", "url": SECURE}, "needs token, or sasl.oauthbearer.method=oidc"),
        ({"config": {"acks": 1}}, "may not set acks to 1: a message could be lost.*expected all|-1"),
        ({"config": {"request.required.acks": 0}}, "could be lost"),
        ({"config": {"enable.idempotence": False}}, "enable.idempotence to False: messages of a key could overtake"),
        ({"config": {"max.in.flight": 6}}, "overtake"),
        ({"config": {"max.in.flight.requests.per.connection": 50}}, "overtake"),
        ({"config": {"partitioner": "random"}}, "overtake"),
        ({"config": {"queuing.strategy": "lifo"}}, "overtake"),
        ({"config": {"enable.ssl.certificate.verification": "false"}}, "pose as the broker"),
        ({"config": {"ssl.endpoint.identification.algorithm": "none"}}, "pose as the broker"),
        ({"config": {"delivery.timeout.ms": 1}}, "use the option delivery_timeout"),
        ({"config": {"transactional.id": "x"}}, "no transactions"),
        ({"config": {"default.topic.config": {"acks": 0}}}, "give its properties directly"),
        ({"config": {"error_cb": print}}, "relaybox needs its own"),
    ],
)
def test_what_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        made(options)
    check_discreet(str(caught.value))


@pytest.mark.parametrize(
    "config",
    [
        {"acks": "all"},
        {"acks": -1},
        {"enable.idempotence": True},
        {"max.in.flight": 1},
        {"partitioner": "consistent_random"},
        {"batch.size": 65536, "queue.buffering.max.kbytes": 1024, "client.rack": "b"},
    ],
)
async def test_what_is_passed_on(config: dict[str, Any]) -> None:
    sink = made({"url": "kafka://127.0.0.1:1", "config": config})
    with pytest.raises(BrokerUnavailable, match="Connection refused"):
        await sink.probe()
    await sink.close()


@pytest.mark.parametrize(
    "options",
    [
        {"config": {"no.such.property": 1}},
        {"config": {"linger.ms": "soon"}},
        {"url": SECURE, "ca_file": "/no/such/file.pem"},
        {"url": SECURE, "config": {"ssl.key.pem": f"no PEM, but {SECRET}"}},
        {**LOGIN, "config": {"ssl.keystore.location": "/no/such", "ssl.keystore.password": SECRET}},
        {"url": SECURE, "sasl": "OAUTHBEARER", "config": {"sasl.oauthbearer.method": "oidc"}},
    ],
)
async def test_what_librdkafka_refuses(options: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    sink = made(options)
    with pytest.raises(ConfigError, match="librdkafka refuses the settings") as caught:
        await sink.open()
    check_discreet(str(caught.value) + repr(caught.value.__cause__) + caplog.text + repr(sink))


def test_credentials_without_tls_are_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    made({**LOGIN, "url": HERE})
    assert not caplog.text  # does not leave this machine
    for _ in range(2):
        made({**LOGIN, "url": THERE, "insecure_no_tls": True})
    made({**LOGIN, "sasl": "SCRAM-SHA-256", "url": THERE})
    assert caplog.text.count("Kafka at clear.example is not encrypted: use kafkas://") == 1
    check_discreet(caplog.text)


def test_tls_by_option() -> None:
    for mode, verified in (("verify", None), ("require", False)):
        properties = KafkaConnection("kafka://broker.example", tls=mode).properties({})  # type: ignore[arg-type]
        assert properties["security.protocol"] == "ssl"
        assert properties.get("enable.ssl.certificate.verification") is verified


# -- URLs -------------------------------------------------------------------------------------------


def properties(url: str, **options: Any) -> dict[str, Any]:
    return KafkaSink.from_url(url, options)._config


def test_urls() -> None:
    plain = properties("kafka://broker-1:9092,broker-2:9092")
    assert plain["bootstrap.servers"] == "broker-1:9092,broker-2:9092"
    assert plain["security.protocol"] == "plaintext"
    full = properties(
        "kafkas://shop:p%40ss@broker:9093?sasl=SCRAM-SHA-256&linger=2ms",
        compression="zstd",
        delivery_timeout="5s",
        config={"batch.size": 1000},
    )
    expected = {
        "bootstrap.servers": "broker:9093",
        "security.protocol": "sasl_ssl",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": "shop",
        "sasl.password": "p@ss",
        "linger.ms": 2,
        "compression.type": "zstd",
        "delivery.timeout.ms": 5000,
        "batch.size": 1000,
        "acks": "all",
        "enable.idempotence": True,
    }
    assert {name: full[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("url", "options", "says"),
    [
        ("kafka://", {}, "expected kafka://"),
        ("kafka://a:1", {"bootstrap": "b:1"}, "unknown option 'bootstrap'"),
        ("kafka://a:1?color=red", {}, "unknown option 'color' of KafkaSink; known: ca_file, cert_file, client_id"),
        ("kafka://a:1", {"token": "x"}, "unknown option 'token'"),
        ("kafka://a:1", {"insecure_no_tls": "maybe"}, "expected insecure_no_tls to be true or false, got 'maybe'"),
        ("kafka://a:1", {"config": "acks=1"}, "expected config to be a table"),
        (f"kafka://shop:{SECRET}@[a:1", {}, "cannot read the broker's URL"),
    ],
)
def test_urls_that_are_refused(url: str, options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        KafkaSink.from_url(url, options)
    check_discreet(str(caught.value))


# -- Certificates -----------------------------------------------------------------------------------


@asynccontextmanager
async def impostor(pair: Pair) -> AsyncIterator[tuple[int, list[bytes]]]:
    """A server with a certificate on a port; and what it was told."""
    heard: list[bytes] = []

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.read(1000))
        writer.close()

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*pair)
    async with await asyncio.start_server(listen, "127.0.0.1", 0, ssl=context) as server:
        yield server.sockets[0].getsockname()[1], heard


@pytest.mark.parametrize(
    ("name", "host", "days", "trusted"),
    [("other", "other.example", 2, True), ("expired", "127.0.0.1", -1, True), ("unknown", "127.0.0.1", 2, False)],
)
async def test_certificates_that_are_refused(tmp_path: Path, name: str, host: str, days: int, trusted: bool) -> None:
    authority = Authority(tmp_path)
    ca_file = authority.ca_file if trusted else Authority(tmp_path, "another").ca_file
    async with impostor(authority.issue(name, host, days=days)) as (port, heard):
        sink = made({**LOGIN, "url": f"kafkas://127.0.0.1:{port}", "ca_file": ca_file})
        with pytest.raises(BrokerUnavailable, match="certificate verify failed") as caught:
            await sink.open()
        await sink.close()
    check_discreet(str(caught.value))
    assert b"".join(heard) == b""
