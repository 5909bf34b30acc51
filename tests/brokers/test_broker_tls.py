"""TLS to RabbitMQ and NATS: a server that cannot prove its name gets nothing, least of all the password."""

from __future__ import annotations

import asyncio
import json
import traceback
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from nats_harness import Settings
from nats_harness import private_server as private_nats
from rabbitmq_harness import RabbitMQHarness

from kit.certificates import Authority, Pair
from relaybox.brokers.nats.connection import NatsConnection
from relaybox.brokers.nats.sink import NatsSink
from relaybox.brokers.rabbitmq.connection import RabbitMQConnection
from relaybox.brokers.rabbitmq.sink import RabbitMQSink
from relaybox.errors import BrokerUnavailable
from relaybox.spi import Sink
from relaybox.testing.servers import NatsServer, RabbitMQServer, require
from relaybox.testing.servers.process import free_port
from relaybox.testing.sink_contract import SECRET, arrived, messages, opened, publish


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(autouse=True)
def _discreet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    caplog.set_level("DEBUG")
    yield
    assert SECRET not in caplog.text


async def refused(sink: Sink, because: str) -> None:
    with pytest.raises(BrokerUnavailable, match=because) as caught:
        async with asyncio.timeout(10):
            await sink.open()
    assert SECRET not in "".join(traceback.format_exception(caught.value))
    with pytest.raises(BrokerUnavailable, match=because):
        await sink.probe()
    await sink.close()


# -- RabbitMQ ---------------------------------------------------------------------------------------


class TlsRabbitMQ(RabbitMQServer):
    """A second listener with TLS. Certificates may log in by their common name."""

    def __init__(self, ca_file: Path, pair: Pair) -> None:
        super().__init__()
        self._ca_file = ca_file
        self._pair = pair
        self.tls_port = 0

    def use(self, pair: Pair) -> None:
        """From the next handshake on."""
        self._write("cert.pem", pair.cert_file.read_text())
        self._write("key.pem", pair.key_file.read_text())
        if self.running:
            self.ctl("eval", "ssl:clear_pem_cache().")

    def _prepare(self) -> None:
        super()._prepare()
        self._write("enabled_plugins", "[rabbitmq_auth_mechanism_ssl, rabbitmq_consistent_hash_exchange].\n")
        self._write("ca.pem", self._ca_file.read_text())
        self.use(self._pair)

    def _command(self) -> Sequence[str | Path]:
        command = super()._command()
        self.tls_port = free_port()
        file = self.folder / "rabbitmq.conf"
        lines = [
            f"listeners.ssl.1 = 127.0.0.1:{self.tls_port}",
            f"ssl_options.cacertfile = {self.folder / 'ca.pem'}",
            f"ssl_options.certfile = {self.folder / 'cert.pem'}",
            f"ssl_options.keyfile = {self.folder / 'key.pem'}",
            "ssl_options.verify = verify_peer",
            "ssl_options.fail_if_no_peer_cert = false",
            "ssl_cert_login_from = common_name",
            "auth_mechanisms.1 = PLAIN",
            "auth_mechanisms.2 = EXTERNAL",
        ]
        self._write(file.name, file.read_text() + "\n".join(lines) + "\n")
        return command


@pytest.fixture(scope="module")
def good(authority: Authority) -> Pair:
    return authority.issue("good", "localhost")


@pytest.fixture(scope="module")
def rabbitmq(authority: Authority, good: Pair) -> Iterator[TlsRabbitMQ]:
    require("rabbitmq")  # skips where there is none
    with TlsRabbitMQ(authority.ca_file, good) as server:
        server.ctl("add_user", "publisher", SECRET)
        server.ctl("set_permissions", "publisher", "", ".*", "")
        yield server


@pytest.fixture
def amqps(rabbitmq: TlsRabbitMQ, authority: Authority) -> Callable[..., RabbitMQSink]:
    def make(host: str = "localhost", **options: Any) -> RabbitMQSink:
        url = f"amqps://publisher@{host}:{rabbitmq.tls_port}/"
        given = {"url": url, "password": SECRET, "ca_file": authority.ca_file, **options}
        return RabbitMQSink(RabbitMQConnection(**given))

    return make


async def test_rabbitmq_over_tls(rabbitmq: TlsRabbitMQ, amqps: Callable[..., RabbitMQSink]) -> None:
    harness = RabbitMQHarness(rabbitmq)
    destination = await harness.destination()
    async with opened(amqps()) as sink:
        sent = messages(sink, destination, ["a"])
        assert await publish(sink, sent) == [None]
    await arrived(harness, destination, sent)


async def test_rabbitmq_over_tls_by_option(rabbitmq: TlsRabbitMQ, amqps: Callable[..., RabbitMQSink]) -> None:
    url = f"amqp://publisher@localhost:{rabbitmq.tls_port}/"
    async with opened(amqps(url=url, tls="verify")) as sink:
        await sink.probe()
    async with opened(amqps(host="127.0.0.1", tls="require", ca_file=None)) as sink:
        await sink.probe()
    await refused(
        amqps(url=url.replace("localhost", "127.0.0.1"), tls="verify"), "IP address mismatch|Hostname mismatch"
    )


async def test_rabbitmq_of_an_unknown_authority(amqps: Callable[..., RabbitMQSink], tmp_path: Path) -> None:
    await refused(amqps(ca_file=Authority(tmp_path, "another").ca_file), "certificate verify failed")
    await refused(amqps(ca_file=None), "certificate verify failed")


async def test_rabbitmq_under_another_name(amqps: Callable[..., RabbitMQSink]) -> None:
    await refused(amqps(host="127.0.0.1"), "IP address mismatch|Hostname mismatch")


async def test_rabbitmq_with_an_expired_certificate(
    rabbitmq: TlsRabbitMQ, amqps: Callable[..., RabbitMQSink], authority: Authority, good: Pair
) -> None:
    rabbitmq.use(authority.issue("expired", "localhost", days=-1))
    try:
        await refused(amqps(), "certificate has expired")
    finally:
        rabbitmq.use(good)


async def test_rabbitmq_without_tls(rabbitmq: TlsRabbitMQ, amqps: Callable[..., RabbitMQSink]) -> None:
    await refused(amqps(url=f"amqps://publisher@localhost:{rabbitmq.port}/"), "SSL|connection|closed|reset")


async def test_rabbitmq_lets_a_certificate_log_in(
    rabbitmq: TlsRabbitMQ, amqps: Callable[..., RabbitMQSink], authority: Authority
) -> None:
    rabbitmq.ctl("add_user", "shop-relay", "not the one that is used")
    rabbitmq.ctl("set_permissions", "shop-relay", "", ".*", "")
    async with opened(amqps(auth="external", **authority.issue("shop-relay")._asdict())) as sink:
        await sink.probe()


async def test_a_consistent_hash_exchange_gets_the_key(rabbitmq: TlsRabbitMQ) -> None:
    """Not about TLS, but this node has the plugin: every message of a key goes into the same queue."""
    harness = RabbitMQHarness(rabbitmq)

    def declare(channel: Any) -> None:
        channel.exchange_declare("spread", "x-consistent-hash", durable=True)
        for name in ("spread-1", "spread-2"):
            channel.queue_declare(name, durable=True)
            channel.queue_bind(name, "spread", "1")

    await harness.with_pika(declare)
    keys = [f"order/{n}" for n in range(40)]
    async with opened(harness.sink(exchange="spread")) as sink:
        for _ in range(3):
            batch = [message for key in keys for message in messages(sink, key, [key])]
            assert await publish(sink, batch) == [None] * len(keys)
    one, two = [{r.key for r in await harness.read(name, 0)} for name in ("spread-1", "spread-2")]
    assert one
    assert two
    assert not one & two
    assert one | two == set(keys)


# -- NATS -------------------------------------------------------------------------------------------


def tls_nats(pair: Pair, **settings: Any) -> NatsServer:
    files = {"cert_file": str(pair.cert_file), "key_file": str(pair.key_file)}
    _readable(*pair)
    return private_nats(Settings(tls={**files, **settings}))


def _readable(*files: Path) -> None:
    """By the account that the server runs under."""
    for file in files:
        for folder in file.parents:  # all of them: each pytest that starts closes the folder that it shares with others
            if folder.stat().st_mode & 0o005 != 0o005:  # others may enter /tmp and /dev/shm already
                folder.chmod(0o755)
        file.chmod(0o644)


def tls_sink(server: NatsServer, authority: Authority, host: str = "localhost", **options: Any) -> NatsSink:
    account = {"username": "relay", "password": SECRET, "ca_file": authority.ca_file}
    return NatsSink(NatsConnection(f"tls://{host}:{server.port}", **{**account, **options}))


async def test_nats_over_tls(authority: Authority, good: Pair) -> None:
    with tls_nats(good) as server:
        async with opened(tls_sink(server, authority)) as sink:
            [answer] = await publish(sink, messages(sink, "orders", ["a"]))
    assert "no stream takes the subject" in str(answer)


async def test_nats_over_tls_by_option(authority: Authority, good: Pair) -> None:
    with tls_nats(good) as server:
        account = {"username": "relay", "password": SECRET}
        for options in ({"tls": "verify", "ca_file": authority.ca_file}, {"tls": "require"}):
            sink = NatsSink(NatsConnection(f"nats://localhost:{server.port}", **account, **options))  # type: ignore[arg-type]
            async with opened(sink):
                await sink.probe()
        await refused(
            NatsSink(NatsConnection(f"nats://localhost:{server.port}", **account, tls="verify")), "verify failed"
        )


async def test_nats_of_an_unknown_authority(authority: Authority, good: Pair, tmp_path: Path) -> None:
    with tls_nats(good) as server:
        await refused(tls_sink(server, Authority(tmp_path, "another")), "certificate verify failed")
        await refused(tls_sink(server, authority, ca_file=None), "certificate verify failed")


async def test_nats_under_another_name(authority: Authority, good: Pair) -> None:
    with tls_nats(good) as server:
        await refused(tls_sink(server, authority, host="127.0.0.1"), "IP address mismatch|Hostname mismatch")


async def test_nats_with_an_expired_certificate(authority: Authority) -> None:
    with tls_nats(authority.issue("expired-nats", "localhost", days=-1)) as server:
        await refused(tls_sink(server, authority), "certificate has expired")


async def test_nats_without_tls(authority: Authority) -> None:
    with private_nats() as server:
        await refused(tls_sink(server, authority), "offers no TLS")


async def test_nats_that_wants_a_certificate_of_ours(authority: Authority, good: Pair) -> None:
    _readable(authority.ca_file)
    ours = authority.issue("shop")
    with tls_nats(good, ca_file=str(authority.ca_file), verify=True) as server:
        async with opened(tls_sink(server, authority, **ours._asdict())) as sink:
            await sink.probe()
        sink = tls_sink(server, authority)
        with pytest.raises(BrokerUnavailable):
            await sink.open()
        await sink.close()


async def test_nats_that_begins_with_tls(authority: Authority, good: Pair) -> None:
    with tls_nats(good, handshake_first="auto") as server:  # our own test of readiness wants the greeting
        async with opened(tls_sink(server, authority, handshake_first=True)) as sink:
            await sink.probe()


# -- somebody in the middle -------------------------------------------------------------------------


@asynccontextmanager
async def impostor(greeting: bytes) -> AsyncIterator[tuple[int, bytearray]]:
    """Speaks plaintext, and keeps what it is told."""
    heard = bytearray()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(greeting)
        while data := await reader.read(4096):
            heard.extend(data)
        writer.close()

    async with await asyncio.start_server(listen, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1], heard


@pytest.mark.parametrize("info", [{}, {"tls_required": False, "tls_available": False, "auth_required": True}])
async def test_nats_credentials_are_not_told_in_plaintext(authority: Authority, info: dict[str, bool]) -> None:
    greeting = b"INFO " + json.dumps({"server_id": "X", "max_payload": 1000, **info}).encode() + b"\r\n"
    async with impostor(greeting) as (port, heard):
        sink = NatsSink(f"tls://relay:{SECRET}@localhost:{port}?ca_file={authority.ca_file}")
        await refused(sink, "offers no TLS")
    assert not heard


async def test_rabbitmq_credentials_are_not_told_in_plaintext(authority: Authority) -> None:
    async with impostor(b"AMQP\x00\x00\x09\x01") as (port, heard):
        sink = RabbitMQSink(f"amqps://publisher:{SECRET}@localhost:{port}/?ca_file={authority.ca_file}")
        await refused(sink, "SSL|connection|closed|reset")
    assert SECRET.encode() not in heard
