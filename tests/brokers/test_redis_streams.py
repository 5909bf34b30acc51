"""The Redis Streams sink: the contract, and what only Redis does."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from redis_harness import ClusterNode, RedisHarness, command, three_nodes

from relaybox.brokers.redis import sink as redis_streams
from relaybox.brokers.redis.connection import RedisConnection
from relaybox.brokers.redis.sink import RedisStreamSink
from relaybox.errors import BrokerUnavailable, ConfigError, DeliveryError
from relaybox.testing.servers import RedisServer, TcpGate, require
from relaybox.testing.sink_contract import SECRET, SinkContract, arrived, messages, opened, publish

NO_DEDUP = {"dedup_window": timedelta(0)}


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    require("redis", durable=False)  # skips where there is none
    with RedisServer(durable=False, password=SECRET) as running:
        yield running


@pytest.fixture(scope="module")
def cluster() -> Iterator[RedisServer]:
    with ClusterNode(durable=False, password=SECRET) as running:
        yield running


@pytest.fixture
def harness(server: RedisServer) -> RedisHarness:
    return RedisHarness(server)


class TestRedisStreams(SinkContract):
    @pytest.fixture
    def harness(self, server: RedisServer) -> RedisHarness:
        return RedisHarness(server)


class TestRedisStreamsWithoutDedup(SinkContract):
    @pytest.fixture
    def harness(self, server: RedisServer) -> RedisHarness:
        return RedisHarness(server, **NO_DEDUP)


class TestRedisCluster(SinkContract):
    @pytest.fixture
    def harness(self, cluster: RedisServer) -> RedisHarness:
        return RedisHarness(cluster, cluster=True)


# -- batches ----------------------------------------------------------------------------------------


async def test_a_stream_that_fails_holds_back_its_keys_only(server: RedisServer, harness: RedisHarness) -> None:
    good, bad = await harness.destination(), await harness.destination()
    await command(server.url, "SET", bad, "not a stream")
    async with opened(harness.sink()) as sink:
        first, last, other, free = messages(sink, good, ["a", "a", "b", None])
        [wrong] = messages(sink, bad, ["a"])
        [wrong_too] = messages(sink, bad, [None])
        answers = await publish(sink, [first, wrong, last, wrong_too, other, free])
        assert [answer is None for answer in answers] == [True, False, False, False, True, True]
        assert {type(answer) for answer in answers if answer} == {DeliveryError}
        assert bad in str(answers[1])
        await arrived(harness, good, [first, other, free])


async def test_nothing_passes_a_failure_in_an_earlier_script(
    server: RedisServer, harness: RedisHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_streams, "MOST_BYTES", 1)
    good, bad = await harness.destination(), await harness.destination()
    await command(server.url, "SET", bad, "not a stream")
    async with opened(harness.sink()) as sink:
        wrong, later = messages(sink, bad, ["a"]) + messages(sink, good, ["a"])
        others = messages(sink, good, ["b", "b", "b"])
        answers = await publish(sink, [wrong, *others, later])
        assert [answer is None for answer in answers] == [False, True, True, True, False]
        await arrived(harness, good, others)


async def test_a_failed_message_is_not_a_repetition_the_next_time(server: RedisServer, harness: RedisHarness) -> None:
    stream = await harness.destination()
    await command(server.url, "SET", stream, "not a stream")
    async with opened(harness.sink()) as sink:
        sent = messages(sink, stream, ["a"])
        assert await publish(sink, sent) != [None]
        await command(server.url, "DEL", stream)
        assert await publish(sink, sent) == [None]
        await arrived(harness, stream, sent)


async def test_a_stream_that_does_not_exist(harness: RedisHarness) -> None:
    stream = await harness.destination()
    async with opened(harness.sink(create_streams=False)) as strict, opened(harness.sink()) as sink:
        [answer] = await publish(strict, messages(strict, stream, ["a"]))
        assert type(answer) is DeliveryError
        assert stream in str(answer)
        sent = messages(sink, stream, ["a", "b"])
        assert await publish(sink, sent[:1]) == [None]
        assert await publish(strict, sent[1:]) == [None]
        await arrived(harness, stream, sent)


async def test_maxlen_trims(server: RedisServer, harness: RedisHarness) -> None:
    stream = await harness.destination()
    async with opened(harness.sink(maxlen=100)) as sink:
        for _ in range(3):
            assert await publish(sink, messages(sink, stream, [f"key-{n}" for n in range(300)])) == [None] * 300
    assert 100 <= await command(server.url, "XLEN", stream) < 300


async def test_the_fields_of_an_entry(server: RedisServer, harness: RedisHarness) -> None:
    stream = await harness.destination()
    async with opened(harness.sink()) as sink:
        [message] = messages(sink, stream, ["order-7"])
        assert await publish(sink, [message]) == [None]
    [[_, entry]] = await command(server.url, "XRANGE", stream, "-", "+")
    assert entry[0::2] == [b"id", b"type", b"key", b"content_type", b"data", b"attributes"]
    assert entry[3] == b"OrderPlaced"
    assert json.loads(entry[-1]) == message.attributes


async def test_dedup_is_per_stream_and_ends(server: RedisServer, harness: RedisHarness) -> None:
    one, two = await harness.destination(), await harness.destination()
    async with opened(harness.sink(dedup_window=timedelta(milliseconds=50))) as sink:
        sent = messages(sink, one, ["a"])
        elsewhere = [message._replace(destination=two) for message in sent]
        assert await publish(sink, sent + elsewhere) == [None, None]
        while await command(server.url, "EXISTS", f"relaybox:dedup:{{{one}}}:{sent[0].id}"):
            await asyncio.sleep(0.005)
        assert await publish(sink, sent) == [None]
    assert [await command(server.url, "XLEN", stream) for stream in (one, two)] == [2, 1]


# -- what a server refuses ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("trouble", "remedy", "code"),
    [
        (["CONFIG", "SET", "maxmemory", "1"], ["CONFIG", "SET", "maxmemory", "0"], "OOM|OutOfMemory"),
        (["REPLICAOF", "127.0.0.1", "1"], ["REPLICAOF", "NO", "ONE"], "READONLY|ReadOnly"),
        (
            ["CONFIG", "SET", "min-replicas-to-write", "1"],
            ["CONFIG", "SET", "min-replicas-to-write", "0"],
            "NOREPLICAS",
        ),
    ],
)
async def test_a_server_that_takes_no_writes(
    server: RedisServer, harness: RedisHarness, trouble: list[str], remedy: list[str], code: str
) -> None:
    stream = await harness.destination()
    async with opened(harness.sink()) as sink:
        sent = messages(sink, stream, ["a", "b", "a"])
        await command(server.url, *trouble)
        try:
            answers = await publish(sink, sent)
            assert {type(answer) for answer in answers} <= {BrokerUnavailable, DeliveryError}
            assert isinstance(answers[0], BrokerUnavailable)
            assert isinstance(answers[1], BrokerUnavailable)
            with pytest.raises(BrokerUnavailable, match=code):
                await sink.probe()
        finally:
            await command(server.url, *remedy)
        await sink.probe()
        assert await publish(sink, sent) == [None] * 3
        await arrived(harness, stream, sent)


async def test_an_account_that_may_not_use_one_stream(server: RedisServer, harness: RedisHarness) -> None:
    allowed, denied = await harness.destination(), await harness.destination()
    rules = ["on", f">{SECRET}", "~relaybox:*", f"~{allowed}", "+xadd", "+set", "+exists", "+eval"]
    await command(server.url, "ACL", "SETUSER", "shop", *rules)
    async with opened(harness.sink(username="shop")) as sink:
        sent = messages(sink, allowed, ["a"])
        answers = await publish(sink, [*messages(sink, denied, ["b"]), *sent])
        assert isinstance(answers[0], BrokerUnavailable)
        assert (answers[0].destination, answers[1]) == (denied, None)
        await arrived(harness, allowed, sent)


@pytest.mark.parametrize(
    "rules", [["+xadd", "+exists", "+eval", "~*"], ["+xadd", "+exists", "+eval", "+set", "~orders*"]]
)
async def test_an_account_that_cannot_remember_ids(
    server: RedisServer, harness: RedisHarness, rules: list[str]
) -> None:
    """Found when it opens: later, each try would add the first message again."""
    await command(server.url, "ACL", "SETUSER", "forgetful", "reset", "on", f">{SECRET}", *rules)
    with pytest.raises(BrokerUnavailable):
        await harness.sink(username="forgetful").open()


async def test_a_connection_into_nowhere(server: RedisServer, harness: RedisHarness) -> None:
    stream = await harness.destination()
    with TcpGate(server.port) as gate:
        async with opened(RedisStreamSink(gate.through(server.url) + "?timeout=1s")) as sink:
            sent = messages(sink, stream, ["a"])
            gate.blackhole()
            assert [type(answer) for answer in await publish(sink, sent)] == [BrokerUnavailable]
            with pytest.raises(BrokerUnavailable):
                await sink.probe()
            gate.open()
            await sink.probe()
            assert await publish(sink, sent) == [None]
            gate.drop_replies()
            lost = messages(sink, stream, ["a"])
            assert [type(answer) for answer in await publish(sink, lost)] == [BrokerUnavailable]
            gate.open()
            await sink.probe()
            assert await publish(sink, lost) == [None]
            await arrived(harness, stream, sent + lost)


# -- copies ----------------------------------------------------------------------------------------


async def test_waiting_for_a_replica(server: RedisServer, harness: RedisHarness) -> None:
    stream = await harness.destination()
    with RedisServer(durable=False, password=SECRET) as replica:
        await command(replica.url, "CONFIG", "SET", "masterauth", SECRET)
        await command(replica.url, "REPLICAOF", "127.0.0.1", server.port)
        while "master_link_status:up" not in (await command(replica.url, "INFO", "replication")).decode():
            await asyncio.sleep(0.02)
        async with opened(harness.sink(wait_replicas=1, timeout=timedelta(seconds=1))) as sink:
            sent = messages(sink, stream, ["a", "b"])
            assert await publish(sink, sent[:1]) == [None]
            assert await command(replica.url, "XLEN", stream) == 1
            replica.pause()
            [answer] = await publish(sink, sent[1:])
            assert isinstance(answer, BrokerUnavailable)
            [again] = await publish(sink, sent[1:])
            assert isinstance(again, BrokerUnavailable), "the entry is there already, and still has no copy"
            replica.resume()
            assert await publish(sink, sent[1:]) == [None]
            assert await command(replica.url, "XLEN", stream) == 2
            await arrived(harness, stream, sent)


async def test_waiting_for_more_replicas_than_there_are(harness: RedisHarness) -> None:
    with pytest.raises(BrokerUnavailable, match="WAIT asked for"):
        await harness.sink(wait_replicas=3, timeout=timedelta(seconds=1)).open()


async def test_waiting_for_the_disk(server: RedisServer, harness: RedisHarness) -> None:
    version = (await command(server.url, "INFO", "server")).decode().partition("redis_version:")[2].split(".")
    if (int(version[0]), int(version[1])) < (7, 2):
        with pytest.raises(ConfigError, match="wait_fsync needs Redis"):
            await harness.sink(wait_fsync=True).open()
        return
    stream = await harness.destination()
    _, usual = await command(server.url, "CONFIG", "GET", "appendfsync")
    await command(server.url, "CONFIG", "SET", "appendfsync", "no")
    try:
        with pytest.raises(BrokerUnavailable, match="WAITAOF asked for"):
            await harness.sink(wait_fsync=True).open()
        await command(server.url, "CONFIG", "SET", "appendfsync", "always")
        async with opened(harness.sink(wait_fsync=True)) as sink:
            assert await publish(sink, messages(sink, stream, ["a"])) == [None]
    finally:
        await command(server.url, "CONFIG", "SET", "appendfsync", usual.decode())


async def test_it_warns_of_servers_that_forget(
    server: RedisServer, harness: RedisHarness, caplog: pytest.LogCaptureFixture
) -> None:
    for setting in (["appendonly", "no"], ["maxmemory", "1gb"], ["maxmemory-policy", "allkeys-lru"]):
        await command(server.url, "CONFIG", "SET", *setting)
    try:
        with caplog.at_level(logging.WARNING, "relaybox"):
            async with opened(harness.sink()):
                pass
    finally:
        for setting in (["appendonly", "yes"], ["maxmemory", "0"], ["maxmemory-policy", "noeviction"]):
            await command(server.url, "CONFIG", "SET", *setting)
    assert "append-only" in caplog.text
    assert "allkeys-lru" in caplog.text
    caplog.clear()
    async with opened(harness.sink()):
        pass
    assert caplog.text == ""


# -- cluster --------------------------------------------------------------------------------------------


async def test_streams_on_three_nodes() -> None:
    with three_nodes() as nodes:
        harness = RedisHarness(nodes[0], cluster=True)
        streams = [await harness.destination() for _ in range(20)] + ["{shop}:orders"]
        async with opened(harness.sink()) as sink:
            sent = {stream: messages(sink, stream, ["a", "b"]) for stream in streams}
            batch = [message for number in range(2) for stream in streams for message in [sent[stream][number]]]
            assert await publish(sink, batch) == [None] * len(batch)
            assert await publish(sink, batch) == [None] * len(batch)
        lengths: dict[str, int] = {}
        for node in nodes:
            mine = [key.decode() for key in await command(node.url, "KEYS", "*orders*") if b"dedup" not in key]
            assert mine, "every node has some"
            lengths |= {stream: await command(node.url, "XLEN", stream) for stream in mine}
        assert lengths == dict.fromkeys(streams, 2)


async def test_a_slot_that_moves_and_a_node_that_dies() -> None:
    with three_nodes() as nodes:
        harness = RedisHarness(nodes[0], cluster=True)
        by_node: dict[int, list[str]] = {0: [], 1: [], 2: []}
        for number in range(30):
            slot = await command(nodes[0].url, "CLUSTER", "KEYSLOT", f"stream-{number}")
            by_node[slot // 5462].append(f"stream-{number}")
        moving, staying, dying = by_node[0][0], by_node[1][0], by_node[2][0]
        async with opened(harness.sink(timeout=timedelta(seconds=1))) as sink:
            assert await publish(sink, messages(sink, staying, ["a"])) == [None]
            slot = await command(nodes[0].url, "CLUSTER", "KEYSLOT", moving)
            owner = (await command(nodes[1].url, "CLUSTER", "MYID")).decode()
            for node in (nodes[1], nodes[0]):
                await command(node.url, "CLUSTER", "SETSLOT", slot, "NODE", owner)
            assert await publish(sink, messages(sink, moving, ["a"])) == [None]
            assert await command(nodes[1].url, "XLEN", moving) == 1
            nodes[2].kill()
            answers = await publish(sink, messages(sink, dying, ["a"]) + messages(sink, staying, ["b"]))
            assert [type(answer) for answer in answers] == [BrokerUnavailable, type(None)]


async def test_a_cluster_taken_for_a_server(cluster: RedisServer) -> None:
    slot = await command(cluster.url, "CLUSTER", "KEYSLOT", "relaybox:dedup:probe")
    with three_nodes() as nodes:
        [other, *_] = [node for node in nodes if not node.slots[0] <= slot <= node.slots[1]]
        with pytest.raises(BrokerUnavailable, match="cluster=true"):
            await RedisHarness(other).sink().open()


# -- TLS ------------------------------------------------------------------------------------------------


async def test_tls() -> None:
    with RedisServer(durable=False, password=SECRET, tls=True) as server:
        url = f"rediss://:{SECRET}@127.0.0.1:{server.port}/0"
        async with opened(RedisStreamSink(f"{url}?ca_file={server.ca_file}")) as sink:
            assert await publish(sink, messages(sink, "orders", ["a"])) == [None]
        with pytest.raises(BrokerUnavailable, match=r"(?i)certificate"):
            await RedisStreamSink(url).open()
        with pytest.raises(BrokerUnavailable, match=r"(?i)certificate.*127\.1"):
            await RedisStreamSink(RedisConnection(url.replace("127.0.0.1", "127.1"), ca_file=server.ca_file)).open()
        with pytest.raises(BrokerUnavailable):
            await RedisStreamSink(url.replace("rediss:", "redis:")).open()


# -- options ----------------------------------------------------------------------------------------------


async def test_options_of_a_url(server: RedisServer) -> None:
    sink = RedisStreamSink.from_url(f"{server.url}?dedup_window=2m&connections=3", {"maxlen": "1000"})
    assert sink.features.dedup_window == timedelta(minutes=2)
    assert sink.features.sequences
    assert repr(sink) == f"RedisStreamSink('redis://127.0.0.1:{server.port}/0')"
    async with opened(sink):
        await sink.probe()


@pytest.mark.parametrize(
    ("url", "options", "text"),
    [
        ("http://localhost", {}, "expected redis://"),
        ("redis://", {}, "expected redis://"),
        (f"redis://:{SECRET}@localhost:many", {}, "expected redis://"),
        (f"redis://:{SECRET}@localhost/x", {}, "number of a database"),
        ("redis://localhost", {"dedup_windw": "1m"}, "unknown option 'dedup_windw'.*dedup_window"),
        ("redis://localhost", {"dedup_window": "-1"}, "dedup_window"),
        ("redis://localhost", {"connections": "0"}, "connections"),
        ("redis://localhost", {"maxlen": 0}, "maxlen"),
        ("redis://localhost", {"timeout": "0s"}, "timeout"),
        ("redis://localhost", {"namespace": "{a}"}, "namespace"),
        ("redis://localhost", {"ca_file": "/ca.pem"}, "rediss://"),
        ("rediss://localhost", {"ca_file": "/no/such/file"}, "TLS files /no/such/file"),
        ("redis://one,two", {}, "cluster=true"),
        ("redis://localhost", {"cluster": "true", "wait_replicas": "1"}, "wait_replicas"),
        ("redis://localhost/2", {"cluster": "true"}, "database"),
    ],
)
def test_wrong_options(url: str, options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text) as caught:
        RedisStreamSink.from_url(url, options)
    assert SECRET not in str(caught.value)


def test_without_dedup_no_sequences() -> None:
    features = RedisStreamSink(**NO_DEDUP).features
    assert (features.dedup, features.dedup_window, features.sequences) == (False, None, False)
