"""The Pub/Sub sink: the contract, and what only Pub/Sub does."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.auth.credentials import AnonymousCredentials
from google.protobuf.any_pb2 import Any as Any_
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from pubsub_harness import PubSubHarness

from kit.certificates import Authority, Pair
from relaybox.brokers.pubsub.connection import PubSubConnection
from relaybox.brokers.pubsub.sink import PubSubSink
from relaybox.errors import BrokerUnavailable, Closed, ConfigError, DeliveryError, Reject
from relaybox.testing.servers import PubSubServer, TcpGate, require
from relaybox.testing.sink_contract import SECRET, SinkContract, arrived, messages, opened, publish


@pytest.fixture(scope="module")
def server() -> PubSubServer:
    return require("pubsub")


@pytest.fixture(scope="module")
def gate(server: PubSubServer) -> Iterator[TcpGate]:
    with TcpGate(int(server.host.rpartition(":")[2])) as gate:
        yield gate


class TestPubSub(SinkContract):
    @pytest.fixture
    def harness(self, server: PubSubServer, gate: TcpGate) -> PubSubHarness:
        return PubSubHarness(server, gate)


@pytest.fixture
def harness(server: PubSubServer, gate: TcpGate) -> PubSubHarness:
    return PubSubHarness(server, gate)


@pytest.fixture
def scripted(server: PubSubServer, gate: TcpGate) -> PubSubHarness:
    if server.emulator:
        pytest.skip("only the stand-in fails when a test wants it to")
    return PubSubHarness(server, gate)


# -- what a publish is refused for --------------------------------------------------------------------


@pytest.mark.parametrize("code", ["UNAVAILABLE", "DEADLINE_EXCEEDED", "INTERNAL", "ABORTED", "UNAUTHENTICATED"])
@pytest.mark.parametrize("done_first", [False, True])
async def test_an_outage_by_its_code(scripted: PubSubHarness, code: Any, done_first: bool) -> None:
    topic = await scripted.destination()
    async with opened(scripted.sink()) as sink:
        sent = messages(sink, topic, ["a", "b"])
        scripted.server.fail("Publish", code, done_first=done_first)
        answers = await publish(sink, sent)
        assert [type(answer) for answer in answers] == [BrokerUnavailable] * 2
        assert [getattr(answer, "destination", "") for answer in answers] == [None, None]
        assert await publish(sink, sent) == [None, None]
        await arrived(scripted, topic, sent, repeated=done_first)


async def test_a_quota(scripted: PubSubHarness) -> None:
    topic = await scripted.destination()
    async with opened(scripted.sink()) as sink:
        scripted.server.fail("Publish", "RESOURCE_EXHAUSTED")
        [answer] = await publish(sink, messages(sink, topic, ["a"]))
        assert isinstance(answer, BrokerUnavailable)
        assert answer.retry_after == timedelta(seconds=1)


async def test_a_topic_that_is_not_ours_stops_no_other(scripted: PubSubHarness) -> None:
    topic = await scripted.destination()
    async with opened(scripted.sink()) as sink:
        scripted.server.fail("Publish", "PERMISSION_DENIED")
        [answer] = await publish(sink, messages(sink, topic, ["a"]))
        assert isinstance(answer, BrokerUnavailable)
        assert answer.destination == topic
        scripted.server.fail("GetTopic", "PERMISSION_DENIED")
        await sink.probe()
        scripted.server.fail("GetTopic", "UNAUTHENTICATED")
        with pytest.raises(BrokerUnavailable):
            await sink.probe()


async def test_one_bad_message_does_not_refuse_the_request(scripted: PubSubHarness) -> None:
    topic = await scripted.destination()
    async with opened(scripted.sink()) as sink:
        sent = messages(sink, topic, [f"key-{n}" for n in range(20)])
        batch = list(sent)
        for place in (3, 16):
            batch[place] = batch[place]._replace(key="longer than Pub/Sub allows" * 50)
        answers = await publish(sink, batch)
        assert [number for number, answer in enumerate(answers) if isinstance(answer, Reject)] == [3, 16]
        good = [message for message, answer in zip(sent, answers, strict=True) if answer is None]
        assert len(good) == 18
        await arrived(scripted, topic, good)


async def test_what_is_refused_before_it_is_sent(harness: PubSubHarness) -> None:
    topic = await harness.destination()
    async with opened(harness.sink()) as sink:
        sent = messages(sink, topic, list("abcde"))
        batch = [
            sent[0],
            sent[1]._replace(attributes={"long": "x" * 1025}),
            sent[2]._replace(attributes={"google-thing": "x"}),
            sent[3]._replace(attributes={f"x-{n}": "x" for n in range(100)}),
            sent[4]._replace(body=b"x" * 10_000_000),
        ]
        answers = await publish(sink, batch)
        assert [type(answer) for answer in answers] == [type(None), *[Reject] * 4]
        await arrived(harness, topic, sent[:1])


@pytest.mark.parametrize("name", ["no topic", "x", "google-topic", "projects/shop/subscriptions/orders"])
async def test_a_name_that_no_topic_can_have(harness: PubSubHarness, name: str) -> None:
    """The messages are not to blame: they must not become dead letters at once."""
    async with opened(harness.sink()) as sink:
        answers = await publish(sink, messages(sink, name, ["a", "b"]))
        assert [type(answer) for answer in answers] == [DeliveryError] * 2


async def test_requests_are_bounded(harness: PubSubHarness) -> None:
    """Thirty megabytes would be refused as one request."""
    topic = await harness.destination()
    async with opened(harness.sink()) as sink:
        sent = messages(sink, topic, [f"key-{n}" for n in range(30)], b"x" * 1_000_000)
        assert await publish(sink, sent) == [None] * 30
        assert len(await harness.read(topic, 30)) == 30


# -- connections ----------------------------------------------------------------------------------------


async def test_a_connection_into_nowhere(harness: PubSubHarness) -> None:
    topic, gate = await harness.destination(), harness.gate
    async with opened(harness.sink(timeout=timedelta(seconds=1))) as sink:
        sent = messages(sink, topic, ["a", "b"])
        for fault in (gate.blackhole, gate.drop_replies):
            fault()
            try:
                assert [type(answer) for answer in await publish(sink, sent)] == [BrokerUnavailable] * 2
                with pytest.raises(BrokerUnavailable):
                    await sink.probe()
            finally:
                gate.open()
            await sink.probe()
            assert await publish(sink, sent) == [None, None]


async def test_a_probe_that_fails_does_not_cancel_who_publishes(scripted: PubSubHarness) -> None:
    topic = await scripted.destination()
    async with opened(scripted.sink()) as sink:
        scripted.server.pause()
        try:
            pending = asyncio.create_task(publish(sink, messages(sink, topic, ["a"])))
            with pytest.raises(BrokerUnavailable):
                await sink.probe()
            assert [type(answer) for answer in await pending] == [BrokerUnavailable]
        finally:
            scripted.server.resume()


async def test_probing_a_closed_sink(harness: PubSubHarness) -> None:
    sink = harness.sink()
    await sink.open()
    await sink.close()
    with pytest.raises(Closed):
        await sink.probe()
    assert not sink._channel.is_open


async def test_the_environment_names_an_emulator(harness: PubSubHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PUBSUB_EMULATOR_HOST", harness.server.host)
    async with opened(PubSubSink.from_url("pubsub://relaybox", {})) as sink:
        await sink.probe()


# -- a service of our own: TLS, credentials, details of errors ----------------------------------------------


@asynccontextmanager
async def service(identity: Pair, publish_: Any) -> AsyncIterator[str]:
    """host:port of a Publisher over TLS."""

    async def get_topic(request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        await context.abort(grpc.StatusCode.NOT_FOUND, "no such topic")
        return b""

    server = grpc.aio.server()
    handlers = {
        "GetTopic": grpc.unary_unary_rpc_method_handler(get_topic),
        "Publish": grpc.unary_unary_rpc_method_handler(publish_),
    }
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("google.pubsub.v1.Publisher", handlers)])
    pair = (identity.key_file.read_bytes(), identity.cert_file.read_bytes())
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair]))
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


async def accept(request: bytes, context: grpc.aio.ServicerContext) -> bytes:
    return b""


async def test_tls(tmp_path: Path, harness: PubSubHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PUBSUB_EMULATOR_HOST", raising=False)
    authority = Authority(tmp_path)

    def sink(host: str, ca_file: Path | None = authority.ca_file) -> PubSubSink:
        bounded = timedelta(seconds=3)
        return PubSubSink(
            PubSubConnection(
                "shop", endpoint=host, credentials=AnonymousCredentials(), ca_file=ca_file, timeout=bounded
            )
        )

    async with service(authority.issue("good", "127.0.0.1"), accept) as host:
        async with opened(sink(host)) as trusting:
            assert await publish(trusting, messages(trusting, "orders", ["a"])) == [None]
        with pytest.raises(BrokerUnavailable):
            await sink(host, ca_file=None).open()
    for identity in (authority.issue("elsewhere", "10.0.0.1"), authority.issue("expired", "127.0.0.1", days=-1)):
        async with service(identity, accept) as host:
            with pytest.raises(BrokerUnavailable):
                await sink(host).open()
    with pytest.raises(BrokerUnavailable):  # it speaks plain text: no
        await sink(harness.server.host).open()


async def test_a_quota_that_names_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PUBSUB_EMULATOR_HOST", raising=False)

    async def throttle(request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        detail = Any_()
        detail.Pack(RetryInfo(retry_delay={"seconds": 7}))
        status = Status(code=grpc.StatusCode.RESOURCE_EXHAUSTED.value[0], message="slow down", details=[detail])
        context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "slow down")
        return b""

    authority = Authority(tmp_path)
    async with service(authority.issue("service", "127.0.0.1"), throttle) as host:
        sink = PubSubSink(
            PubSubConnection("shop", endpoint=host, credentials=AnonymousCredentials(), ca_file=authority.ca_file)
        )
        async with opened(sink):
            [answer] = await publish(sink, messages(sink, "orders", ["a"]))
    assert isinstance(answer, BrokerUnavailable)
    assert answer.retry_after == timedelta(seconds=7)


async def test_credentials_that_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PUBSUB_EMULATOR_HOST", "GOOGLE_APPLICATION_CREDENTIALS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    with pytest.raises(BrokerUnavailable, match=r"(?i)credentials"):
        await PubSubSink("pubsub://shop").open()
    key = tmp_path / "key.json"
    with pytest.raises(ConfigError, match=r"key\.json is not the key file"):
        await PubSubSink(PubSubConnection("shop", credentials_file=key)).open()
    key.write_text(f'{{"private_key": "{SECRET}"}}')
    with pytest.raises(ConfigError, match=r"key\.json is not the key file") as caught:
        await PubSubSink(PubSubConnection("shop", credentials_file=key)).open()
    assert SECRET not in "".join(traceback.format_exception(caught.value))


# -- options -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "options", "text"),
    [
        ("pubsub://", {}, "pubsub://project"),
        ("pubsub://shop/orders", {}, "pubsub://project"),
        ("kafka://shop", {}, "pubsub://project"),
        ("pubsub://shop", {"endpont": "x"}, "unknown option 'endpont'.*endpoint"),
        ("pubsub://shop", {"endpoint": "https://pubsub.googleapis.com"}, "host:port"),
        ("pubsub://shop", {"timeout": "0s"}, "timeout"),
        ("pubsub://shop", {"cert_file": "/cert.pem"}, "together"),
        ("pubsub://shop", {"ca_file": "/no/such/file"}, "TLS files /no/such/file"),
    ],
)
def test_wrong_options(url: str, options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        PubSubSink.from_url(url, options)


def test_options_of_a_url() -> None:
    sink = PubSubSink.from_url("pubsub://shop?timeout=2s", {"credentials_file": "/key.json"})
    assert repr(sink) == "PubSubSink('shop')"
    assert not sink.features.dedup
    assert not sink.features.sequences
