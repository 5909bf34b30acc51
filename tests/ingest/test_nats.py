"""The NATS JetStream source: the contract, and what only a pull consumer does."""

from __future__ import annotations

import asyncio
import itertools
import json
import ssl
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client
from nats.js.api import AckPolicy
from nats.js.client import JetStreamContext

from relaybox.brokers.nats.sink import NatsSink
from relaybox.brokers.nats.source import NatsSource
from relaybox.errors import BrokerUnavailable, ConfigError
from relaybox.spi import Source
from relaybox.testing.servers import NatsServer, TcpGate, require
from relaybox.testing.sink_contract import SECRET, deliver, messages
from relaybox.testing.source_contract import SourceContract, SourceHarness, collect, comes_no_more, opened, send

_names = itertools.count()


class NatsHarness(SourceHarness):
    """One stream per channel, of the same name."""

    kind = NatsSource

    def __init__(self, server: NatsServer) -> None:
        self.server = server

    def sink(self) -> NatsSink:
        return NatsSink(self.server.url)

    def url(self, channel: str, *, lease: float | None = None, **options: Any) -> str:
        given = {"stream": channel, "ack_wait": f"{lease or 30}s", **options}
        return self.server.url + "?" + "&".join(f"{name}={value}" for name, value in given.items())

    async def channel(self) -> str:
        name = f"orders-{next(_names)}"
        async with self.streams() as streams:
            await streams.add_stream(name=name, subjects=[name, f"{name}.>"])
        return name

    async def outage(self) -> None:
        self.server.kill()

    async def recovery(self) -> None:
        await asyncio.to_thread(self.server.start)

    def wrong_url(self, channel: str) -> str:
        return self.url(channel).replace(SECRET, f"wrong-{SECRET}")

    def reader(self, channel: str, **options: Any) -> NatsSource:
        return NatsSource.from_url(self.url(channel, **options), {})

    @asynccontextmanager
    async def streams(self) -> AsyncIterator[JetStreamContext]:
        client = Client()
        await client.connect(self.server.url)
        try:
            yield client.jetstream()
        finally:
            await client.close()


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    require("nats", durable=False)  # skips where there is none
    with NatsServer(durable=False, user="relay", password=SECRET) as running:
        yield running


@pytest.fixture
def harness(server: NatsServer) -> NatsHarness:
    return NatsHarness(server)


class TestNats(SourceContract):
    @pytest.fixture
    def harness(self, server: NatsServer) -> NatsHarness:
        return NatsHarness(server)


async def test_a_crash_does_not_change_the_order(harness: NatsHarness) -> None:
    """What the dead one had comes before anything new, long before `ack_wait` is over."""
    stream = await harness.channel()
    sent = await send(harness, stream, ["a"] * 4)
    async with harness.streams() as streams:
        await streams.add_consumer(stream, durable_name="relaybox", ack_policy=AckPolicy.EXPLICIT, ack_wait=600)
        crashed = await streams.pull_subscribe_bind("relaybox", stream)
        assert len(await crashed.fetch(3)) == 3
    sent += await send(harness, stream, ["a"], first=4)
    async with opened(harness.reader(stream)) as source:
        found = await collect(source, sent, limit=2)
        assert [message.headers["event_id"] for message in found] == [message.id for message in sent]


class StrictServer(NatsServer):
    """Whose account may not read single messages."""

    def _command(self) -> Sequence[str | Path]:
        command = super()._command()
        file = Path(command[-1])
        settings = json.loads(file.read_text())
        account = {**settings.pop("authorization"), "permissions": {"publish": {"deny": "$JS.API.STREAM.MSG.GET.>"}}}
        self._write(file.name, json.dumps({**settings, "authorization": {"users": [account]}}))
        return command


async def test_an_account_that_may_not_read_single_messages(caplog: pytest.LogCaptureFixture) -> None:
    require("nats", durable=False)
    with StrictServer(durable=False, user="relay", password=SECRET) as server:
        harness = NatsHarness(server)
        stream = await harness.channel()
        sent = await send(harness, stream, ["a"] * 2)
        async with harness.streams() as streams:
            await streams.add_consumer(stream, durable_name="relaybox", ack_policy=AckPolicy.EXPLICIT, ack_wait=1)
            assert len(await (await streams.pull_subscribe_bind("relaybox", stream)).fetch(1)) == 1
        async with opened(harness.reader(stream)) as source:
            await collect(source, sent)
    assert "it comes out of order" in caplog.text


async def test_a_consumer_that_is_there_is_used_as_it_is(harness: NatsHarness) -> None:
    stream = await harness.channel()
    async with harness.streams() as streams:
        await streams.add_consumer(
            stream,
            durable_name="billing",
            ack_policy=AckPolicy.EXPLICIT,
            ack_wait=2,
            filter_subject=f"{stream}.paid",
            max_ack_pending=1,
        )
        async with opened(harness.reader(stream, consumer="billing")) as source:
            await streams.publish(f"{stream}.open", b"1")
            await streams.publish(f"{stream}.paid", b"2", headers={"Content-Type": "text/plain", "who": "me"})
            await streams.publish(f"{stream}.paid", b"3")
            [two] = await source.receive(10, 5.0)
            assert (two.body, two.channel, two.content_type) == (b"2", f"{stream}.paid", "text/plain")
            assert two.headers == {"who": "me"}
            assert two.place == f"{stream}:2"
            assert list(await source.receive(10, 3.0)) == []  # kept alive beyond the consumer's own ack_wait
            await source.acknowledge([two])
            [three] = await source.receive(10, 5.0)
            assert three.body == b"3"
        info = await streams.consumer_info(stream, "billing")
        assert info.ack_floor.stream_seq == 2
        assert info.config.ack_wait == 2


@pytest.mark.parametrize(
    ("settings", "options", "expected"),
    [
        ({"ack_policy": AckPolicy.ALL}, {}, "has ack_policy .*expected explicit"),
        ({"deliver_subject": "push"}, {}, "is a push consumer"),
        ({"filter_subject": "{stream}.a"}, {"subject": "{stream}.b"}, r"reads '.*\.a', not '.*\.b'"),
    ],
)
async def test_a_consumer_that_will_not_do(
    harness: NatsHarness, settings: dict[str, Any], options: dict[str, str], expected: str
) -> None:
    stream = await harness.channel()
    filled = {
        name: value.format(stream=stream) if name.endswith("subject") else value for name, value in settings.items()
    }
    async with harness.streams() as streams:
        await streams.add_consumer(stream, durable_name="relaybox", **{"ack_policy": AckPolicy.EXPLICIT, **filled})
    with pytest.raises(ConfigError, match=expected):
        await harness.reader(stream, **{name: value.format(stream=stream) for name, value in options.items()}).open()


async def test_what_is_not_there(harness: NatsHarness) -> None:
    with pytest.raises(ConfigError, match="there is no stream 'nobody'"):
        await harness.reader("nobody").open()


async def test_a_consumer_that_the_stream_refuses(harness: NatsHarness) -> None:
    async with harness.streams() as streams:
        limits = {"name": "strict", "subjects": ["strict"], "consumer_limits": {"max_ack_pending": 10}}
        await streams._nc.request("$JS.API.STREAM.CREATE.strict", json.dumps(limits).encode())
    with pytest.raises(ConfigError, match=r"cannot be made: .*max ack pending"):
        await harness.reader("strict").open()
    async with opened(harness.reader("strict", max_ack_pending=10)) as source:
        await collect(source, await send(harness, "strict", [None] * 25), limit=20)


async def test_where_a_new_consumer_begins(harness: NatsHarness) -> None:
    stream = await harness.channel()
    old = await send(harness, stream, ["a"])
    async with opened(harness.reader(stream, start="new", consumer="late")) as late:
        await comes_no_more(late, old, wait=0.2)
        await collect(late, await send(harness, stream, ["b"]))


async def test_a_consumer_that_is_deleted(harness: NatsHarness) -> None:
    """It is made again, from the start: the inbox knows what it has."""
    stream = await harness.channel()
    async with harness.streams() as streams, opened(harness.reader(stream, start="new")) as source:
        sent = await send(harness, stream, ["a"])
        await collect(source, sent)
        waiting = asyncio.create_task(source.receive(10, 20.0))
        while not (await streams.consumer_info(stream, "relaybox")).num_waiting:
            await asyncio.sleep(0.02)
        await streams.delete_consumer(stream, "relaybox")
        with pytest.raises(BrokerUnavailable, match="Consumer Deleted"):
            await waiting
        await source.open()
        await collect(source, sent)


@pytest.mark.usefixtures("server")  # which skips where there is none
async def test_tls() -> None:
    with NatsServer(durable=False, tls=True) as server:
        async with opened(NatsSink(f"{server.url}?ca_file={server.ca_file}")) as sink:
            context = ssl.create_default_context(cafile=server.ca_file)
            client = Client()
            await client.connect(server.url, tls=context)
            await client.jetstream().add_stream(name="orders", subjects=["orders"])
            await client.close()
            sent = messages(sink, "orders", ["a"])
            await deliver(sink, sent)
        async with opened(NatsSource(f"{server.url}?ca_file={server.ca_file}", stream="orders")) as source:
            await collect(source, sent)
        with pytest.raises(BrokerUnavailable, match="certificate"):
            await NatsSource(server.url, stream="orders").open()


async def receive_on(source: Source) -> None:
    while True:
        await source.receive(10, 0.2)


async def test_a_silent_connection(harness: NatsHarness) -> None:
    stream = await harness.channel()
    with TcpGate(harness.server.port) as gate:
        source = NatsSource.from_url(gate.through(harness.url(stream)), {"timeout": "0.5s"})
        async with opened(source):
            gate.blackhole()
            with pytest.raises(BrokerUnavailable, match="no answer in time"):
                await receive_on(source)
            gate.open()
            await source.open()
            await collect(source, await send(harness, stream, ["a"]))


@pytest.mark.parametrize(
    ("url", "options", "expected"),
    [
        ("nats://h", {}, r"expected stream, which NatsSource needs; say it in the URL, as in \?stream=…"),
        ("nats://h", {"stream": "a.b"}, "expected stream to be a name without .*got 'a.b'"),
        ("nats://h", {"stream": "s", "consumer": "a b"}, "expected consumer to be a name"),
        ("nats://h", {"stream": "s", "subject": "a..b"}, "expected subject to be a subject, .*got 'a..b'"),
        ("nats://h", {"stream": "s", "start": "middle"}, "expected start to be one of all, new, got 'middle'"),
        ("nats://h", {"stream": "s", "ack_wait": "0s"}, "expected ack_wait to be a positive duration"),
        ("nats://h", {"stream": "s", "max_ack_pending": "0"}, "expected max_ack_pending to be at least 1, got 0"),
        ("nats://h", {"stream": "s", "ca_file": "ca.pem"}, "ca_file needs a URL that begins with tls://"),
        ("tls://h", {"stream": "s", "token": "x", "username": "u", "password": "y"}, "one way to log in"),
    ],
)
def test_wrong_options(url: str, options: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        NatsSource.from_url(url, options)
