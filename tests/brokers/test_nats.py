"""The NATS JetStream sink: the contract, where messages go and what they carry."""

from __future__ import annotations

import base64
import inspect
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client
from nats.aio.transport import TcpTransport
from nats_harness import NatsHarness, headers_of, private_server

from relaybox import Event
from relaybox.brokers.formats import renderer
from relaybox.brokers.nats import connection as nats_connection
from relaybox.brokers.nats.sink import NatsSink
from relaybox.errors import BrokerUnavailable, ConfigError, DeliveryError, MissingExtra, Reject
from relaybox.testing.servers import NatsServer
from relaybox.testing.sink_contract import SECRET, SinkContract, arrived, messages, opened, publish


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with private_server() as running:
        yield running


@pytest.fixture
def harness(server: NatsServer) -> NatsHarness:
    return NatsHarness(server)


@pytest.fixture
async def sink(harness: NatsHarness) -> AsyncIterator[NatsSink]:
    async with opened(harness.sink()) as sink:
        yield sink


class TestNats(SinkContract):
    @pytest.fixture
    def harness(self, server: NatsServer) -> NatsHarness:
        return NatsHarness(server)


class TestNatsWithKeysInSubjects(SinkContract):
    @pytest.fixture
    def harness(self, server: NatsServer) -> NatsHarness:
        return NatsHarness(server, key_token=True)


# -- what a message carries -------------------------------------------------------------------------


async def test_cloud_events(harness: NatsHarness, sink: NatsSink) -> None:
    destination = await harness.destination()
    event = Event("OrderPlaced", {"n": 1}, key="order 7", aggregate_type="order")
    render = renderer("cloudevents", "https://shop.example", sink.features)
    assert await publish(sink, [render(event, destination)]) == [None]
    [entry] = await harness.entries(destination)
    assert base64.b64decode(entry["data"]) == event.body
    headers = headers_of(entry, decoded=False)
    assert headers["Nats-Msg-Id"] == headers["ce-id"] == event.id
    assert headers["ce-specversion"] == "1.0"
    assert headers["ce-partitionkey"] == "order%207"
    assert headers["content-type"] == "application/json"


async def test_odd_names_of_headers(harness: NatsHarness, sink: NatsSink) -> None:
    destination = await harness.destination()
    [message] = messages(sink, destination, ["a"])
    odd = {"with space": "1", "Größe": "2", "fine-name": "3", "Content-Type": "text/plain"}
    injected = "application/json\r\nNats-Rollup: all"
    assert await publish(sink, [message._replace(attributes={**message.attributes, **odd})]) == [None]
    assert await publish(sink, [messages(sink, destination, ["b"])[0]._replace(content_type=injected)]) == [None]
    received, other = await harness.read(destination, 2)
    assert other.content_type == "application/json%0D%0ANats-Rollup: all"
    assert received.attributes["with%20space"] == "1"
    assert received.attributes["Gr%C3%B6%C3%9Fe"] == "2"
    assert received.attributes["fine-name"] == "3"
    assert "Content-Type" not in received.attributes
    assert received.content_type == "application/json"


async def test_no_header_can_instruct_the_server(harness: NatsHarness, sink: NatsSink) -> None:
    """`Nats-Rollup: all` would purge the stream, `Nats-Msg-Id` hide the message, `Nats-Expected-…` refuse it."""
    destination = await harness.destination(allow_rollup_hdrs=True)
    sent = messages(sink, destination, ["a", "b"])
    orders = {"Nats-Rollup": "all", "nats-msg-id": "x", "Nats-Msg-Id": "y", "Nats-Expected-Last-Sequence": "77"}
    sent[1] = sent[1]._replace(attributes={**sent[1].attributes, **orders})
    assert await publish(sink, sent) == [None, None]
    await arrived(harness, destination, sent)


# -- where it goes ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "token"), [("order-7", "order-7"), ("a.b c*>/ü", "a%2Eb%20c%2A%3E%2F%C3%BC"), (None, "_")]
)
async def test_the_key_as_a_token(harness: NatsHarness, key: str | None, token: str) -> None:
    harness.options["key_token"] = True
    destination = await harness.destination()
    async with opened(harness.sink()) as sink:
        assert await publish(sink, messages(sink, destination, [key])) == [None]
    [entry] = await harness.entries(destination)
    assert entry["subject"] == f"{destination}.{token}"


@pytest.mark.parametrize(
    "subject", ["", "with space", "a..b", "orders.*", "orders.>", "$JS.API.STREAM.DELETE.orders", "x" * 2001]
)
async def test_what_is_no_subject(harness: NatsHarness, sink: NatsSink, subject: str) -> None:
    destination = await harness.destination()
    sent = messages(sink, destination, ["a"])
    failed, accepted = await publish(sink, messages(sink, subject, ["b"]) + sent)
    assert accepted is None
    assert type(failed) is DeliveryError
    await arrived(harness, destination, sent)


async def test_the_second_host_when_the_first_is_down(harness: NatsHarness) -> None:
    async with opened(harness.sink(url=f"nats://127.0.0.1:1,127.0.0.1:{harness.server.port}")) as sink:
        await sink.probe()


# -- streams ----------------------------------------------------------------------------------------


async def test_the_duplicate_window_of_the_stream_is_declared(
    harness: NatsHarness, sink: NatsSink, caplog: pytest.LogCaptureFixture
) -> None:
    assert sink.features.dedup_window == timedelta(minutes=2)
    long = await harness.destination(duplicate_window=600 * 10**9)
    assert await publish(sink, messages(sink, long, ["a"])) == [None]
    assert sink.features.dedup_window == timedelta(minutes=10)
    short = await harness.destination(duplicate_window=10**9)
    assert await publish(sink, messages(sink, short, ["a"])) == [None]
    assert sink.features.dedup_window == timedelta(seconds=1)
    assert f"the stream {short} drops repeated ids for 0:00:01 only" in caplog.text


async def test_a_full_stream_holds_back_its_destination_only(harness: NatsHarness, sink: NatsSink) -> None:
    full = await harness.destination(max_msgs=1, discard="new")
    other = await harness.destination()
    fits = messages(sink, full, ["a"])
    assert await publish(sink, fits) == [None]
    refused, accepted = await publish(sink, messages(sink, full, ["b"]) + messages(sink, other, ["c"]))
    assert accepted is None
    assert isinstance(refused, BrokerUnavailable)
    assert refused.destination == full
    await arrived(harness, full, fits)


async def test_the_size_limit_of_a_stream(harness: NatsHarness, sink: NatsSink) -> None:
    destination = await harness.destination(max_msg_size=1000)
    small = messages(sink, destination, ["a", "b"])
    large = messages(sink, destination, ["c"], b"x" * 2000)
    answers = await publish(sink, [small[0], *large, small[1]])
    assert [answers[0], answers[2]] == [None, None]
    assert isinstance(answers[1], Reject)


async def test_too_many_bytes_of_headers(harness: NatsHarness, sink: NatsSink) -> None:
    destination = await harness.destination()
    before, odd, after = messages(sink, destination, ["a", "b", "c"])
    odd = odd._replace(attributes={f"h{n}": "x" * 1000 for n in range(70)})
    answers = await publish(sink, [before, odd, after])
    assert [answers[0], answers[2]] == [None, None]
    assert isinstance(answers[1], Reject)
    await arrived(harness, destination, [before, after])


async def test_a_sealed_stream(harness: NatsHarness, sink: NatsSink) -> None:
    destination = await harness.destination()
    config = (await harness.ask(f"STREAM.INFO.{destination}"))["config"]
    await harness.ask(f"STREAM.UPDATE.{destination}", {**config, "sealed": True})
    [answer] = await publish(sink, messages(sink, destination, ["a"]))
    assert type(answer) is DeliveryError


# -- options ----------------------------------------------------------------------------------------


def test_options_of_the_standalone_relay() -> None:
    sink = NatsSink.from_url("tls://relay:hush@nats-1,nats-2:4223?key_token=yes", {"timeout": "3s"})
    assert repr(sink) == "NatsSink('tls://nats-1:4222,nats-2:4223')"


@pytest.mark.parametrize(
    ("url", "options", "expected"),
    [
        ("nats://h", {"colour": "red"}, "unknown option 'colour'"),
        ("http://h", {}, "expected nats"),
        ("nats://h:port", {}, "cannot read the broker's URL"),
        ("nats://h", {"handshake_first": "yes"}, "handshake_first needs a URL that begins with tls://"),
        ("nats://h", {"ca_file": "ca.pem"}, "ca_file needs a URL that begins with tls://"),
        ("tls://h", {"ca_file": "/no/such/ca.pem"}, "cannot use the TLS files /no/such/ca.pem"),
        ("nats://h", {"timeout": "0s"}, "expected timeout to be a positive duration"),
        ("nats://h", {"inbox_prefix": "a b"}, "expected inbox_prefix to be a subject"),
        ("tls://h", {"username": "relay", "password": "x", "token": "y"}, "one way to log in"),
        ("tls://h", {"password": "x"}, "username and password together"),
    ],
)
def test_wrong_options(url: str, options: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        NatsSink.from_url(url, options)


def test_errors_do_not_tell_the_password() -> None:
    for url in (f"nats://relay:{SECRET}@host:x", f"http://relay:{SECRET}@host", f"nats://{SECRET}@host?ca_file=x"):
        with pytest.raises(ConfigError) as caught:
            NatsSink.from_url(url, {})
        assert SECRET not in str(caught.value)


@pytest.mark.parametrize("option", ["credentials_file", "nkey_file"])
def test_credentials_that_cannot_be_used(option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = tmp_path / "empty"
    empty.touch()
    monkeypatch.setattr(nats_connection, "nkeys", None)
    with pytest.raises(MissingExtra, match=r"relaybox\[nats\]"):
        NatsSink.from_url("nats://h", {option: str(empty)})
    monkeypatch.setattr(nats_connection, "nkeys", object())
    with pytest.raises(ConfigError, match="cannot read /no/such/file"):
        NatsSink.from_url("nats://h", {option: "/no/such/file"})
    with pytest.raises(ConfigError, match="to have the credentials"):
        NatsSink.from_url("nats://h", {option: str(empty)})


# -- the client library -----------------------------------------------------------------------------


def test_what_the_connection_uses_of_nats_py_beside_its_api() -> None:
    """Looked at in 2.16. In another version look whether `_Impatient` still does what it says."""
    assert version("nats-py").split(".")[:2] == ["2", "16"]
    client = Client()
    for name in ("_pending", "_pending_data_size", "_transport", "_flush_queue"):
        assert hasattr(client, name), name
    assert list(inspect.signature(Client._close).parameters) == ["self", "status", "do_cbs"]
    assert list(inspect.signature(Client._process_info).parameters) == ["self", "info", "initial_connection"]
    assert hasattr(TcpTransport(), "_io_writer")
