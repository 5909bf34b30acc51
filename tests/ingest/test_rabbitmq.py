"""RabbitMQ into an inbox: filled with pika, read with aiormq."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import socket
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from kit import rows, until, until_stored
from relaybox import Event, Inbox
from relaybox.brokers import source_from_url
from relaybox.brokers.parse import place_id
from relaybox.brokers.rabbitmq.source import RabbitMQSource
from relaybox.errors import ConfigError
from relaybox.facts import CircuitChanged
from relaybox.settings import IngestSettings, Settings
from relaybox.testing.servers import RabbitMQServer, TcpGate, require
from relaybox.types import Health, Reading

from .ingest_kit import (
    WORKER,
    arrivals,
    command,
    events,
    fresh_url,
    in_order,
    inbox_url,
    ingesting,
    plain,
    totals,
)

_names = itertools.count()


@pytest.fixture(scope="module")
def server() -> RabbitMQServer:
    return require("rabbitmq")


@pytest.fixture
def url(tmp_path: Path) -> str:
    return inbox_url("sqlite", tmp_path)


@pytest.fixture
async def queue(server: RabbitMQServer) -> str:
    name = f"ingest-{next(_names)}"
    await with_pika(server, lambda channel: channel.queue_declare(name, durable=True))
    return name


async def with_pika(server: RabbitMQServer, work: Callable[[BlockingChannel], Any]) -> Any:
    def run() -> Any:
        with pika.BlockingConnection(pika.URLParameters(server.url)) as connection:
            return work(connection.channel())

    return await asyncio.to_thread(run)


async def publish(server: RabbitMQServer, queue: str, sent: Sequence[Event]) -> None:
    def work(channel: BlockingChannel) -> None:
        channel.confirm_delivery()
        for event in sent:
            message = plain(event)
            properties = pika.BasicProperties(
                delivery_mode=2, content_type=message.content_type, headers=dict(message.attributes)
            )
            channel.basic_publish("", queue, message.body, properties)

    await with_pika(server, work)


async def left(server: RabbitMQServer, queue: str) -> int:
    """Messages that nobody has acknowledged, once no consumer holds any."""
    frame = await with_pika(server, lambda channel: channel.queue_declare(queue, passive=True))
    return int(frame.method.message_count)


@pytest.mark.parametrize("declare", ["no", "quorum", "classic"])
async def test_messages_arrive_once_in_order_and_are_acknowledged(
    server: RabbitMQServer, url: str, queue: str, declare: Any
) -> None:
    if declare != "no":
        queue += declare
    async with ingesting(RabbitMQSource(server.url, queue=queue, declare=declare, prefetch=50), url) as (ingest, _):
        sent = events(200)
        await publish(server, queue, [*sent, *sent[:20]])
        await until(lambda: sum(totals(ingest)) == 220)
    assert in_order(sent, arrivals(url))
    assert totals(ingest) == (200, 20, 0)
    assert await left(server, queue) == 0


@pytest.mark.parametrize("point", ["write.before", "write.committed"])
async def test_a_process_that_is_killed_loses_and_doubles_nothing(
    server: RabbitMQServer, url: str, queue: str, point: str
) -> None:
    sent = events(30)
    await publish(server, queue, sent)
    once = ("ingest", "--from", server.url, "--source-option", f"queue={queue}", "--batch", "10", "--once", "--json")
    code, _, _ = await command(*once, url=url, crash=f"{point}:2:kill")
    assert code == -signal.SIGKILL
    known = len(arrivals(url))
    assert 0 < known < 30
    code, out, err = await command(*once, url=url)
    assert code == 0, err
    again = json.loads(out)
    assert again["accepted"] == 30 - known
    assert (again["duplicates"] > 0) == (point == "write.committed")
    assert in_order(sent, arrivals(url))
    assert await left(server, queue) == 0


async def test_several_ingests_of_a_queue_keep_its_order(server: RabbitMQServer, url: str, queue: str) -> None:
    """One is active; when it stops the other goes on, with what the first had and not stored."""
    queue += "-single"
    sent = events(100)
    options: Any = {"queue": queue, "declare": "quorum", "prefetch": 20}
    async with ingesting(
        RabbitMQSource(server.url, **options), url, settings=Settings(ingest=IngestSettings(batch=5))
    ) as (second, _):
        await publish(server, queue, sent[:50])
        await until(lambda: totals(second).accepted >= 20)
        async with ingesting(
            RabbitMQSource(server.url, **options), url, settings=Settings(ingest=IngestSettings(batch=5))
        ) as (third, _):
            await second.stop()
            await publish(server, queue, sent[50:])
            await until_stored(lambda: len(arrivals(url)) == 100)
    assert totals(third).accepted > 0
    assert in_order(sent, arrivals(url))
    assert await left(server, queue) == 0


async def test_a_broker_that_is_away(server: RabbitMQServer, url: str, queue: str) -> None:
    sent = events(40)
    with closing(TcpGate(server.port)) as gate:
        source = RabbitMQSource(gate.through(server.url), queue=queue)
        async with ingesting(source, url, settings=Settings(ingest=IngestSettings(batch=5))) as (ingest, facts):
            await publish(server, queue, sent[:20])
            await until(lambda: totals(ingest).accepted == 20)
            gate.refuse()
            await until(lambda: ingest.health() == Health("critical", ("rabbitmq is unavailable",)))
            await publish(server, queue, sent[20:])
            gate.open()
            await until(lambda: totals(ingest).accepted == 40)
            assert ingest.health() == Health()
    assert [fact.open for fact in facts if isinstance(fact, CircuitChanged)] == [True, False]
    assert in_order(sent, arrivals(url))


async def test_a_broker_that_is_killed_and_starts_again(server: RabbitMQServer, url: str, queue: str) -> None:
    sent = events(60)
    await publish(server, queue, sent[:40])
    async with ingesting(
        RabbitMQSource(server.url, queue=queue), url, settings=Settings(ingest=IngestSettings(batch=4))
    ) as (ingest, _):
        await until(lambda: totals(ingest).accepted >= 8)
        await asyncio.to_thread(server.kill)
        await until(lambda: ingest.health() == Health("critical", ("rabbitmq is unavailable",)))
        await asyncio.to_thread(server.start)
        await publish(server, queue, sent[40:])
        await until(lambda: totals(ingest).accepted == 60)
    assert in_order(sent, arrivals(url))
    assert await left(server, queue) == 0


async def test_messages_of_other_systems(server: RabbitMQServer, url: str, queue: str) -> None:
    moment = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)

    def work(channel: BlockingChannel) -> None:
        for body, given in (
            (b"\xff", {"message_id": "m-1", "timestamp": int(moment.timestamp()), "headers": {"order": 7, "b": b"x"}}),
            (b"\xff", {"message_id": "m-1"}),
            (b"same", {}),
            (b"same", {"headers": {"nested": {"a": [1]}, "flag": True, "none": None, "at": moment}}),
            (b"{", {"message_id": "m-2", "content_type": "application/cloudevents+json"}),
        ):
            channel.basic_publish("", queue, body, pika.BasicProperties(**given))

    await with_pika(server, work)
    reading = Reading(type="thing", key_header="order")
    async with ingesting(RabbitMQSource(server.url, queue=queue), url, reading=reading) as (ingest, _):
        await until(lambda: totals(ingest).accepted + totals(ingest).duplicates == 5)
    assert totals(ingest) == (4, 1, 1)
    with Inbox(url) as inbox:
        assert [letter.event.id for letter in inbox.dead.list()] == [place_id(f"{queue}#m-2")]
        seen: list[Event] = []
        inbox.process(lambda event, _: seen.append(event)).once()
    assert [(event.id, event.type, event.key, event.body) for event in seen[:1]] == [("m-1", "thing", "7", b"\xff")]
    assert seen[0].occurred_at == moment
    assert dict(seen[0].headers) == {"order": "7", "b": "x"}
    assert [event.body for event in seen[1:]] == [b"same", b"same"]
    assert seen[1].id != seen[2].id
    assert {n: v for n, v in seen[2].headers.items() if n != "at"} == {"nested": '{"a": [1]}', "flag": "true"}


async def test_a_queue_that_is_not_there_yet_and_one_that_goes(server: RabbitMQServer, url: str, queue: str) -> None:
    late = f"{queue}-late"
    async with ingesting(RabbitMQSource(server.url, queue=late), url) as (ingest, facts):
        assert ingest.health() == Health("critical", ("rabbitmq is unavailable",))
        await with_pika(server, lambda channel: channel.queue_declare(late, durable=True))
        await publish(server, late, events(1))
        await until(lambda: totals(ingest).accepted == 1)
        await with_pika(server, lambda channel: channel.queue_delete(late))
        await until(lambda: ingest.health() == Health("critical", ("rabbitmq is unavailable",)))
    assert late in next(fact.reason for fact in facts if isinstance(fact, CircuitChanged))


async def test_a_queue_that_is_another_than_declared(server: RabbitMQServer, queue: str) -> None:
    source = RabbitMQSource(server.url, queue=queue, declare="quorum")
    with pytest.raises(ConfigError, match=queue):
        await source.open()
    await source.close()


@pytest.mark.parametrize(
    ("url", "options", "reason"),
    [
        ("amqp://localhost", {}, "queue"),
        ("amqp://localhost", {"queue": "x" * 256}, "queue"),
        ("amqp://localhost", {"queue": "q", "declare": "perhaps"}, "declare"),
        ("amqp://localhost", {"queue": "q", "prefetch": "0"}, "prefetch"),
        ("amqp://localhost", {"queue": "q", "ca_file": "/ca.pem"}, "amqps"),
        ("amqp://me:secret@localhost", {"queue": "q", "connect_timeout": "0s"}, "connect_timeout"),
    ],
)
def test_wrong_settings(url: str, options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        source_from_url(url, options)
    assert "secret" not in str(caught.value)


async def test_the_command_runs_until_a_signal_and_says_how_it_is(
    server: RabbitMQServer, tmp_path: Path, queue: str
) -> None:
    url = fresh_url("sqlite", tmp_path)
    await publish(server, queue, events(3))
    with closing(socket.create_server(("127.0.0.1", 0))) as probe:
        port = probe.getsockname()[1]
    with closing(TcpGate(server.port)) as gate:
        gate.refuse()
        process = await asyncio.create_subprocess_exec(
            *WORKER,
            *("ingest", "--migrate", "--listen", f"127.0.0.1:{port}", "--sender", "shop", "--inbox", "orders_inbox"),
            env={
                **os.environ,
                "RELAYBOX_URL": url,
                "RELAYBOX_SOURCE": gate.through(server.url),
                "RELAYBOX_SOURCE_QUEUE": queue,
            },
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            await until_stored(lambda: "rabbitmq is unavailable" in page(port, "ready")[1])
            assert page(port, "ready")[0] == 503
            assert page(port, "live")[0] == 200
            gate.open()
            await until_stored(lambda: page(port, "ready")[0] == 200)
            await until_stored(
                lambda: 'relaybox_ingest_accepted_total{source="rabbitmq"} 3.0' in page(port, "metrics")[1]
            )
        finally:
            process.terminate()
            out, err = await process.communicate()
    assert process.returncode == 0, err
    assert b"relaybox runs ingest of rabbitmq into orders_inbox" in out
    assert b"relaybox:relaybox" not in out + err
    assert {row[0] for row in rows(url, "SELECT sender FROM orders_inbox")} == {"shop"}


def page(port: int, name: str) -> tuple[int, str]:
    """Status and text; 0 while nobody answers."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/{name}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return 0, ""


async def test_an_ingest_that_is_turned_off_reads_nothing(server: RabbitMQServer, url: str, queue: str) -> None:
    await publish(server, queue, events(1))
    code, _, err = await command(
        *("ingest", "--once", "--from", f"{server.url}?queue={queue}"), url=url, RELAYBOX_INBOX_ENABLED="false"
    )
    assert (code, await left(server, queue)) == (0, 1)
    assert "inbox.enabled is off" in err


async def test_the_command_without_a_source(url: str) -> None:
    code, _, err = await command("ingest", url=url)
    assert code == 1
    assert "RELAYBOX_SOURCE" in err
