"""The RabbitMQ sink: the contract, where messages go and what they carry."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pika.adapters.blocking_connection import BlockingChannel
from rabbitmq_harness import EXCHANGE, USER, RabbitMQHarness, shared_server

from kit import migrated
from relaybox import AsyncRelay, Event
from relaybox.brokers.formats import renderer
from relaybox.brokers.rabbitmq.connection import RabbitMQConnection
from relaybox.brokers.rabbitmq.sink import RabbitMQSink
from relaybox.errors import ConfigError, DeliveryError, Reject
from relaybox.testing.sink_contract import CANARY, SECRET, SinkContract, arrived, messages, opened, publish


@pytest.fixture
def harness() -> RabbitMQHarness:
    return RabbitMQHarness(shared_server())


class TestRabbitMQ(SinkContract):
    @pytest.fixture
    def harness(self, harness: RabbitMQHarness) -> RabbitMQHarness:
        return harness


async def first(harness: RabbitMQHarness, queue: str) -> tuple[Any, bytes]:
    _, properties, body = await harness.with_pika(lambda channel: channel.basic_get(queue))
    return properties, body


async def test_the_properties(harness: RabbitMQHarness) -> None:
    destination = await harness.destination()
    async with opened(harness.sink()) as sink:
        [message] = sent = messages(sink, destination, ["a"])
        assert await publish(sink, sent) == [None]
    properties, _ = await first(harness, destination.rpartition("/")[2])
    assert properties.delivery_mode == 2
    assert (properties.message_id, properties.type) == (message.id, "OrderPlaced")
    assert properties.timestamp == int(message.event.occurred_at.timestamp())


async def test_an_event_of_long_ago(harness: RabbitMQHarness) -> None:
    """AMQP has no such timestamp; the attributes do."""
    destination = await harness.destination()
    async with opened(harness.sink()) as sink:
        render = renderer("cloudevents", "https://shop.example", sink.features)
        event = Event("OrderPlaced", {}, occurred_at=datetime(1969, 7, 20, tzinfo=UTC))
        assert await publish(sink, [render(event, destination)]) == [None]
    properties, _ = await first(harness, destination.rpartition("/")[2])
    assert properties.timestamp is None
    assert properties.headers["cloudEvents_time"] == "1969-07-20T00:00:00Z"


async def test_cloud_events(harness: RabbitMQHarness) -> None:
    destination = await harness.destination()
    event = Event("OrderPlaced", {"n": 1}, key="order-7", aggregate_type="order")
    async with opened(harness.sink()) as sink:
        render = renderer("cloudevents", "https://shop.example", sink.features)
        assert await publish(sink, [render(event, destination)]) == [None]
    properties, body = await first(harness, destination.rpartition("/")[2])
    assert body == event.body
    assert properties.content_type == "application/json"
    assert properties.headers["cloudEvents_id"] == event.id
    assert properties.headers["cloudEvents_specversion"] == "1.0"
    assert properties.headers["cloudEvents_partitionkey"] == "order-7"


async def test_a_destination_without_a_slash_is_a_queue(harness: RabbitMQHarness) -> None:
    queue = (await harness.destination()).rpartition("/")[2]
    async with opened(harness.sink()) as sink:
        sent = messages(sink, queue, ["a"])
        assert await publish(sink, sent) == [None]
    await arrived(harness, queue, sent)


async def test_a_slash_in_a_key_does_not_name_an_exchange(harness: RabbitMQHarness, tmp_path: Path) -> None:
    """A whole relay: with `to="x.{key}"` the queue of the key gets its events, whatever is in the key."""
    key = f"{EXCHANGE}/{(await harness.destination()).rpartition('/')[2]}"
    queue = f"x.{key}"
    await harness.with_pika(lambda channel: channel.queue_declare(queue, durable=True))
    url = f"sqlite:///{tmp_path}/shop.db"
    event = Event("OrderPlaced", {"n": 1}, key=key)
    with migrated(url) as box, box.transaction() as tx:
        box.write(tx, event)
    async with AsyncRelay(url, harness.sink(), to="x.{key}") as relay:
        await relay.drain()
    properties, _ = await first(harness, queue)
    assert properties.message_id == event.id


async def test_with_an_exchange_the_destination_is_the_routing_key(harness: RabbitMQHarness) -> None:
    queue = (await harness.destination()).rpartition("/")[2]
    await harness.with_pika(lambda channel: channel.queue_bind(queue, EXCHANGE, "a/b/c"))
    async with opened(harness.sink(exchange=EXCHANGE)) as sink:
        sent = messages(sink, "a/b/c", ["a"])
        assert await publish(sink, sent) == [None]
    await arrived(harness, queue, sent)


async def test_a_whole_batch_for_a_missing_exchange(harness: RabbitMQHarness) -> None:
    """The channel suffers, the connection and the other exchanges do not."""
    destination = await harness.destination()
    async with opened(harness.sink()) as sink:
        for number in range(3):
            lost = messages(sink, "no-such-exchange/orders", [f"key-{n}" for n in range(400)])
            sent = messages(sink, destination, ["a"], first=number)
            *failed, accepted = await publish(sink, lost + sent)
            assert accepted is None
            assert {type(answer) for answer in failed} == {DeliveryError}
            assert "no-such-exchange" in str(failed[0])
        [answer] = await publish(sink, messages(sink, f"{'e' * 256}/orders", ["a"]))
        assert type(answer) is DeliveryError


async def test_an_exchange_that_is_deleted(harness: RabbitMQHarness) -> None:
    def make(channel: BlockingChannel) -> None:
        channel.exchange_declare("passing", "fanout", durable=True)
        channel.queue_declare("left-behind", durable=True)
        channel.queue_bind("left-behind", "passing")

    await harness.with_pika(make)
    async with opened(harness.sink()) as sink:
        sent = messages(sink, "passing/x", ["a"])
        assert await publish(sink, sent) == [None]
        await harness.with_pika(lambda channel: channel.exchange_delete("passing"))
        for _ in range(2):
            [answer] = await publish(sink, messages(sink, "passing/x", ["a"]))
            assert type(answer) is DeliveryError
        await harness.with_pika(make)
        again = messages(sink, "passing/x", ["a"], first=1)
        assert await publish(sink, again) == [None]
    await arrived(harness, "left-behind", sent + again)


@pytest.mark.parametrize("part", ["routing key", "header name", "type", "content type"])
async def test_what_amqp_cannot_carry_is_rejected_alone(harness: RabbitMQHarness, part: str) -> None:
    destination = await harness.destination()
    async with opened(harness.sink()) as sink:
        before, odd, after = messages(sink, destination, ["a", "b", "c"])
        if part == "routing key":
            odd = odd._replace(destination=f"{EXCHANGE}/{'é' * 200}")
        elif part == "header name":
            odd = odd._replace(attributes={"h" * 129: "value"})
        elif part == "type":
            odd = odd._replace(event=Event("✓" * 128, {}))
        else:
            odd = odd._replace(content_type="✓" * 128)
        answers = await publish(sink, [before, odd, after])
        assert [answers[0], answers[2]] == [None, None]
        assert isinstance(answers[1], Reject)
    await arrived(harness, destination, [before, after])


async def test_the_client_library_logs_no_payload(harness: RabbitMQHarness, caplog: pytest.LogCaptureFixture) -> None:
    """aiormq shows every frame at DEBUG, and a message that comes back when nobody waits for it as an error."""
    caplog.set_level(logging.DEBUG)
    destination = await harness.destination()
    async with opened(harness.sink()) as sink:
        await publish(sink, messages(sink, destination, ["a"]))
        await publish(sink, messages(sink, await harness.missing(), ["a"]))
    assert any(record.name == "aiormq.connection" for record in caplog.records)
    assert CANARY not in caplog.text
    assert SECRET not in caplog.text


async def test_the_second_host_when_the_first_is_down(harness: RabbitMQHarness) -> None:
    url = f"amqp://{USER}@127.0.0.1:1,127.0.0.1:{harness.server.port}/"
    async with opened(harness.sink(url=url)) as sink:
        await sink.probe()


async def test_a_virtual_host(harness: RabbitMQHarness) -> None:
    server = harness.server
    vhost = server.fresh_vhost().rpartition("/")[2]
    server.ctl("set_permissions", "--vhost", vhost, USER, "", ".*", "")
    async with opened(harness.sink(url=f"{harness.url}{vhost}")) as sink:
        [answer] = await publish(sink, messages(sink, "orders", ["a"]))  # there is no queue in it yet
        assert type(answer) is DeliveryError
    encoded = harness.sink(url=f"amqp://{USER}@127.0.0.1:{server.port}/%2F")
    async with opened(encoded):
        pass


# -- options ----------------------------------------------------------------------------------------


def test_options_of_the_standalone_relay() -> None:
    sink = RabbitMQSink.from_url(
        "amqps://relay:hush@rabbit-1,rabbit-2:5673/shop?exchange=orders", {"timeout": "3s", "max_bytes": "1000"}
    )
    assert repr(sink) == "RabbitMQSink('amqps://rabbit-1:5671,rabbit-2:5673/shop')"
    assert sink.features.max_bytes == 1000


@pytest.mark.parametrize(
    ("url", "options", "expected"),
    [
        ("amqp://h", {"colour": "red"}, "unknown option 'colour'"),
        ("http://h", {}, "expected amqp"),
        ("amqp://h:port/", {}, "cannot read the broker's URL"),
        ("amqp://", {}, "expected amqp"),
        ("amqp://h", {"auth": "kerberos"}, "expected auth to be one of plain, external"),
        ("amqp://h", {"auth": "external"}, "auth=external needs a URL that begins with amqps://"),
        ("amqp://h", {"ca_file": "ca.pem"}, "ca_file needs a URL that begins with amqps://"),
        ("amqps://h", {"ca_file": "/no/such/ca.pem"}, "cannot use the TLS files /no/such/ca.pem"),
        ("amqps://h", {"key_file": "key.pem"}, "key_file needs cert_file"),
        ("amqp://h", {"timeout": "0s"}, "expected timeout to be a positive duration"),
        ("amqp://h", {"max_bytes": "0"}, "expected max_bytes to be positive"),
        ("amqp://h", {"exchange": "e" * 256}, "expected exchange"),
    ],
)
def test_wrong_options(url: str, options: dict[str, str], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        RabbitMQSink.from_url(url, options)


def test_errors_do_not_tell_the_password() -> None:
    for url in (f"amqp://relay:{SECRET}@host:x/", f"http://relay:{SECRET}@host/", f"amqp://relay:{SECRET}@host/?a=b#c"):
        with pytest.raises(ConfigError) as caught:
            RabbitMQSink(RabbitMQConnection(url, ca_file=Path("x")), timeout=timedelta(seconds=1))
        assert SECRET not in str(caught.value)
