"""The Redis Streams source: the contract, and what only a consumer group does."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from relaybox.brokers.redis.sink import RedisStreamSink
from relaybox.brokers.redis.source import RedisStreamSource
from relaybox.errors import BrokerUnavailable, ConfigError
from relaybox.testing.servers import RedisServer, require
from relaybox.testing.servers.redis import connect
from relaybox.testing.sink_contract import SECRET, deliver, messages
from relaybox.testing.source_contract import SourceContract, SourceHarness, collect, comes_no_more, opened, send

_names = itertools.count()


class RedisHarness(SourceHarness):
    kind = RedisStreamSource
    leases = False  # from another consumer: a test below
    has_key = True

    def __init__(self, server: RedisServer) -> None:
        self.server = server

    def sink(self) -> RedisStreamSink:
        return RedisStreamSink(self.server.url)

    def url(self, channel: str, *, lease: float | None = None, consumer: str = "one", **options: Any) -> str:
        given = {"stream": channel, "consumer": consumer, "claim_idle": f"{lease or 60}s", **options}
        return self.server.url + "?" + "&".join(f"{name}={value}" for name, value in given.items())

    async def channel(self) -> str:
        return f"orders-{next(_names)}"

    async def outage(self) -> None:
        self.server.kill()

    async def recovery(self) -> None:
        await asyncio.to_thread(self.server.start)

    def wrong_url(self, channel: str) -> str:
        return self.url(channel).replace(SECRET, f"wrong-{SECRET}")

    def reader(self, channel: str, **options: Any) -> RedisStreamSource:
        return RedisStreamSource.from_url(self.url(channel, **options), {})


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    require("redis", durable=False)  # skips where there is none
    with RedisServer(durable=False, password=SECRET) as running:
        yield running


@pytest.fixture
def harness(server: RedisServer) -> RedisHarness:
    return RedisHarness(server)


class TestRedisStreams(SourceContract):
    @pytest.fixture
    def harness(self, server: RedisServer) -> RedisHarness:
        return RedisHarness(server)


async def test_a_dead_consumers_entries_are_claimed(harness: RedisHarness) -> None:
    stream = await harness.channel()
    sent = await send(harness, stream, ["a", "b"])
    async with opened(harness.reader(stream, lease=0.2)) as dead:
        await collect(dead, sent, acknowledge=False)
    async with opened(harness.reader(stream, lease=0.2, consumer="two")) as alive:
        await collect(alive, sent)


async def test_a_slow_consumers_entries_are_not(harness: RedisHarness) -> None:
    stream = await harness.channel()
    sent = await send(harness, stream, ["a", "b"])
    async with (
        opened(harness.reader(stream, lease=1)) as slow,
        opened(harness.reader(stream, lease=1, consumer="two")) as other,
    ):
        found = await collect(slow, sent, acknowledge=False)
        assert list(await other.receive(10, 2.5)) == []
        await slow.acknowledge(found)
        await comes_no_more(other, sent)


async def test_claiming_from_behind_many_entries_that_are_in_use(harness: RedisHarness) -> None:
    """One XAUTOCLAIM looks at ten times as many entries as it may take."""
    stream = await harness.channel()
    busy = await send(harness, stream, [None] * 15)
    async with opened(harness.reader(stream, consumer="busy", lease=30)) as other:
        await collect(other, busy, acknowledge=False)
        [lost] = await send(harness, stream, ["a"])
        with connect(harness.server.url) as client:
            client.xreadgroup("relaybox", "gone", {stream: ">"}, count=1)
            [[_, [[number, _]]]] = client.xreadgroup("relaybox", "gone", {stream: "0"})
            client.xclaim(stream, "relaybox", "gone", 0, [number], idle=60_000)
        async with opened(harness.reader(stream, lease=30)) as source:
            await collect(source, [lost], limit=1)


async def test_consumers_share_the_work(harness: RedisHarness) -> None:
    stream = await harness.channel()
    async with opened(harness.reader(stream)) as one, opened(harness.reader(stream, consumer="two")) as two:
        sent = await send(harness, stream, ["a", "b"])
        first, second = await one.receive(1, 1.0), await two.receive(10, 1.0)
        assert [message.headers["event_id"] for message in [*first, *second]] == [message.id for message in sent]


async def test_where_a_new_group_begins(harness: RedisHarness) -> None:
    stream = await harness.channel()
    old = await send(harness, stream, ["a"])
    async with opened(harness.reader(stream, start="new", group="late")) as late:
        await comes_no_more(late, old, wait=0.1)
        await collect(late, await send(harness, stream, ["b"]))
    async with opened(harness.reader(stream, group="whole")) as whole:
        await collect(whole, [*old], limit=1)


async def test_a_group_that_vanishes(harness: RedisHarness) -> None:
    """With its stream, say. Whatever is in the new one is new to us, also for a group that began at its end."""
    stream = await harness.channel()
    async with opened(harness.reader(stream, start="new")) as source:
        with connect(harness.server.url) as client:
            client.delete(stream)
        sent = await send(harness, stream, ["a"])
        with pytest.raises(BrokerUnavailable, match="NOGROUP"):
            await source.receive(10, 1.0)
        await source.open()
        await collect(source, sent)


async def test_pending_entries_that_were_trimmed(harness: RedisHarness, caplog: pytest.LogCaptureFixture) -> None:
    stream = await harness.channel()
    sent = await send(harness, stream, ["a", "b", "c"])
    async with opened(harness.reader(stream)) as source:
        await collect(source, sent, acknowledge=False)
    with connect(harness.server.url) as client:
        client.xtrim(stream, maxlen=1, approximate=False)
        async with opened(harness.reader(stream)) as source:
            await collect(source, sent[2:])
        assert "2 entries were trimmed" in caplog.text
        assert client.xpending(stream, "relaybox")["pending"] == 0


async def test_entries_of_somebody_else(harness: RedisHarness) -> None:
    stream = await harness.channel()
    with connect(harness.server.url) as client:
        client.xadd(stream, {"temperature": "21", "place": "attic"}, id="5-1")
        client.xadd(stream, {"data": b"\xff\x00", "type": "reading"})
    async with opened(harness.reader(stream)) as source:
        fields, data = await source.receive(10, 5.0)
    assert fields.body == b'{"temperature": "21", "place": "attic"}'
    assert fields.content_type == "application/json"
    assert fields.headers == {"temperature": "21", "place": "attic"}
    assert fields.place == f"{stream}:5-1"
    assert data.body == b"\xff\x00"
    assert data.headers == {"type": "reading"}
    assert data.content_type is None


@pytest.mark.usefixtures("server")  # which skips where there is none
async def test_tls() -> None:
    with RedisServer(durable=False, tls=True) as server:
        url = server.url.partition("?")[0]
        sink = RedisStreamSink(f"{url}?ca_file={server.ca_file}")
        await sink.open()
        sent = messages(sink, "orders", ["a"])
        await deliver(sink, sent)
        await sink.close()
        async with opened(RedisStreamSource(f"{url}?ca_file={server.ca_file}", stream="orders")) as source:
            await collect(source, sent)
        with pytest.raises(BrokerUnavailable, match="certificate"):
            await RedisStreamSource(url, stream="orders").open()


async def test_a_key_that_is_no_stream(harness: RedisHarness) -> None:
    name = await harness.channel()
    with connect(harness.server.url) as client:
        client.set(name, "text")
    with pytest.raises(ConfigError, match=f"{name}.*is not a stream"):
        await harness.reader(name).open()


@pytest.mark.parametrize(
    ("url", "options", "expected"),
    [
        ("redis://h", {}, "expected stream"),
        ("redis://h", {"stream": "s", "group": ""}, "expected group"),
        ("redis://h", {"stream": "s", "start": "middle"}, "expected start to be one of all, new, got 'middle'"),
        ("redis://h", {"stream": "s", "claim_idle": "0s"}, "expected claim_idle to be a positive duration"),
        ("redis://h", {"stream": "s", "timeout": "0s"}, "expected timeout to be a positive duration"),
        ("redis://h/x", {"stream": "s"}, "expected the number of a database"),
        ("redis://h", {"stream": "s", "ca_file": "ca.pem"}, "ca_file needs a URL that begins with rediss://"),
        ("http://h", {"stream": "s"}, "expected redis"),
    ],
)
def test_wrong_options(url: str, options: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        RedisStreamSource.from_url(url, options)
