"""What only a broker's own protocol can carry: the client library or the source fails at it, not the parser.

The attacks that every broker can carry are in the source contract.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pika
import pytest

from kit import rows, until
from relaybox import AsyncInbox, AsyncIngest, Event
from relaybox.brokers.nats.source import NatsSource
from relaybox.brokers.rabbitmq.source import RabbitMQSource
from relaybox.brokers.redis.source import RedisStreamSource
from relaybox.spi import MALFORMED, Incoming, Source
from relaybox.testing.servers import NatsServer, RabbitMQServer, RedisServer, require
from relaybox.testing.servers.redis import connect

from .ingest_kit import inbox_url, ingesting, plain, totals
from .scripted_source import ScriptedSource


@pytest.fixture
def url(tmp_path: Path) -> str:
    return inbox_url("sqlite", tmp_path)


async def only_the_hostile_are_buried(url: str, source: Source, buried: int, stored: int = 1) -> list[bytes]:
    """The bodies of the buried, after an ingest has read all there is."""
    async with ingesting(source, url) as (ingest, _):
        await until(lambda: totals(ingest).accepted == buried + stored)
        assert totals(ingest).malformed == buried
    return [bytes(row[0]) for row in rows(url, f"SELECT payload FROM inbox WHERE event_type = '{MALFORMED}'")]


async def test_rabbitmq(url: str) -> None:
    server: RabbitMQServer = require("rabbitmq")

    def publish(life: int) -> None:
        with pika.BlockingConnection(pika.URLParameters(server.url)) as connection:
            channel = connection.channel()
            channel.queue_declare("hostile", durable=True)
            channel.exchange_declare("hostile", "fanout")
            channel.queue_bind("hostile", "hostile")
            far = pika.BasicProperties(message_id=f"far-{life}", timestamp=2**63 - 1)
            channel.basic_publish("", "hostile", b"far", far)
            deep = pika.BasicProperties(headers={"when": {"nested": b"\xff"}}, content_type="application/cloudevents")
            channel.basic_publish("", "hostile", b"deep", deep)
            channel.basic_publish("hostile", "\udcff\udcfe", b"routed")
            honest = plain(Event("OrderPlaced", {"n": life}))
            channel.basic_publish("", "hostile", honest.body, pika.BasicProperties(headers=dict(honest.attributes)))

    for life in range(2):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(pika.data, "encode_short_string", surrogates(pika.data.encode_short_string))
            patched.setattr(pika.spec.data, "encode_short_string", pika.data.encode_short_string)
            await asyncio.to_thread(publish, life)
        found = await only_the_hostile_are_buried(url, RabbitMQSource(server.url, queue="hostile"), 2, 2)
        assert sorted(found) == sorted([b"far", b"deep"] * (life + 1))


def surrogates(encode: Any) -> Any:
    """A publisher that is not made for text."""

    def any_bytes(pieces: list[bytes], value: Any) -> int:
        if not isinstance(value, str) or "\udcff" not in value:
            return int(encode(pieces, value))
        raw = value.encode(errors="surrogateescape")
        pieces.extend([bytes([len(raw)]), raw])
        return len(raw) + 1

    return any_bytes


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    require("redis", durable=False)
    with RedisServer(durable=False) as running:
        yield running


async def test_redis(url: str, redis: RedisServer) -> None:
    hostile = [
        b"[" * 5000,
        b'{"event_id": "\\ud800", "event_type": "T"}',
        b'{"event_id": "a\\u001b[2Jb", "event_type": "T"}',
    ]
    with connect(redis.url) as client:
        for life in range(2):
            for attributes in hostile:
                client.execute_command("XADD", "s", "*", "data", b"body", "content_type", "", "attributes", attributes)
            honest = plain(Event("OrderPlaced", {"n": life}))
            client.execute_command(
                "XADD", "s", "*", "data", honest.body, *(x for a in honest.attributes.items() for x in a)
            )
            found = await only_the_hostile_are_buried(url, RedisStreamSource(redis.url, stream="s"), len(hostile))
            assert found == [b"body"] * len(hostile) * (life + 1)


@pytest.fixture
def nats() -> Iterator[NatsServer]:
    require("nats", durable=False)
    with NatsServer(durable=False) as running:
        yield running


async def test_nats(url: str, nats: NatsServer) -> None:
    """Headers that are not text, or not by name: nats-py would leave them all out."""
    from nats.aio.client import Client

    client = Client()
    await client.connect(nats.url)
    await client.jetstream().add_stream(name="hostile", subjects=["hostile"])
    where = urlsplit(nats.url)
    for life in range(2):
        with socket.create_connection((where.hostname or "", where.port or 0)) as raw:
            raw.sendall(b'CONNECT {"verbose":true,"headers":true}\r\n')
            for headers in (b"NATS/1.0\r\n\xff: \xfe\r\n\r\n", b"NATS/1.0\r\nno name\r\n\r\n"):
                raw.sendall(b"HPUB hostile %d %d\r\n%sbody\r\n" % (len(headers), len(headers) + 4, headers))
            raw.sendall(b"PING\r\n")
            answer = b""
            while b"PONG" not in answer:
                answer += raw.recv(4096)
        honest = plain(Event("OrderPlaced", {"n": life}))
        await client.jetstream().publish("hostile", honest.body, headers=dict(honest.attributes))
        found = await only_the_hostile_are_buried(url, NatsSource(nats.url, stream="hostile"), 2)
        assert found == [b"body"] * 2 * (life + 1)
    await client.close()


async def test_whatever_a_reader_raises(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors that nobody has thought of."""
    failures = iter([RecursionError("deep"), MemoryError(), ZeroDivisionError("secret"), KeyError("x")])

    def broken(*args: Any) -> Event:
        raise next(failures)

    source = ScriptedSource()
    source.put(*(Incoming(channel="c", place=f"c/{n}", body=b"%d" % n, headers={}) for n in range(4)))
    with monkeypatch.context() as patched:
        patched.setattr("relaybox.brokers.door.parse", broken)
        await only_the_hostile_are_buried(url, source, 4, 0)
    source.put(Event("OrderPlaced", {"n": 1}))
    async with AsyncInbox(url) as inbox, AsyncIngest(source, inbox) as ingest:
        await ingest.drain()
        letters = [letter async for letter in dead_letters(inbox)]
    assert any("reading it failed with ZeroDivisionError (read at c/2)" in letter for letter in letters)
    assert not any("secret" in letter for letter in letters)


async def dead_letters(inbox: AsyncInbox) -> Any:
    for letter in await inbox.dead.list():
        yield letter.error or ""
