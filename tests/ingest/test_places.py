"""A message that brings no id is known by the place where it was read, which is an id that no sender can write."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from kit import rows
from relaybox import AsyncInbox, AsyncIngest, Event, Inbox
from relaybox.brokers.door import event_of
from relaybox.brokers.nats import NatsSource
from relaybox.brokers.parse import malformed, parse, place_id
from relaybox.errors import InvalidEvent, Reject
from relaybox.event import LIMITS
from relaybox.relay.inbox_sink import InboxSink
from relaybox.spi import MALFORMED, Incoming, Message
from relaybox.testing.servers import NatsServer, require
from relaybox.types import Reading

from .ingest_kit import inbox_url

PLACES = {
    "kafka": "orders/0/17@1767323045000",
    "nats": "ORDERS:3",
    "redis": "orders:1767323045000-0",
    "pubsub": "orders-billing:11223344556677",
    "sqs": "059f36b4-87a3-44ab-83d2-661975830a7d",
    "rabbitmq": "orders#m-1",
    "long": "orders" * 20,
}


@pytest.fixture(params=PLACES.values(), ids=PLACES.keys())
def place(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def incoming(place: str, *, body: bytes = b"{}", content_type: str | None = None, **given: Any) -> Incoming:
    return Incoming(channel="orders", place=place, body=body, content_type=content_type, **{"headers": {}, **given})


def forgeries(id: str) -> Iterator[tuple[Incoming, Reading | None]]:
    """Every way in which a message can say its id."""
    yield incoming("elsewhere", headers={"event_id": id, "event_type": "Placed"}), None
    attributes = {"specversion": "1.0", "id": id, "source": "/shop", "type": "Placed", "aggregatetype": "order"}
    yield incoming("elsewhere", headers={f"ce-{name}": value for name, value in attributes.items()}), None
    body = json.dumps(attributes).encode()
    yield incoming("elsewhere", body=body, content_type="application/cloudevents+json"), None
    yield incoming("elsewhere", headers={"uid": id}), Reading(id_header="uid")
    yield incoming("elsewhere", id=id), None


def test_nobody_can_write_the_id_of_a_place(place: str) -> None:
    honest = parse(incoming(place))
    assert honest.id == malformed(incoming(place)).id == place_id(place) == parse(incoming(place)).id
    assert honest.id.startswith("at:")
    assert len(honest.id) <= LIMITS["id"]
    with pytest.raises(InvalidEvent, match="at:"):
        Event("Placed", None, id=honest.id)
    for message, reading in forgeries(honest.id):
        letter, reason = event_of(message, reading)
        assert (letter.type, letter.id, letter.body) == (MALFORMED, "at:elsewhere", message.body)
        assert reason is not None
        assert "begins with 'at:'" in reason
        assert reason.endswith("(read at elsewhere)")


def test_an_id_may_look_like_a_place_otherwise(place: str) -> None:
    if len(place) <= LIMITS["id"]:
        for message, reading in forgeries(place):
            event, reason = event_of(message, reading)
            assert (event.id, reason) == (place, None)
            assert event.id != place_id(place)


@pytest.fixture
def nats() -> Iterator[NatsServer]:
    require("nats", durable=False)
    with NatsServer(durable=False) as running:
        yield running


async def test_what_a_stranger_writes_takes_no_place(tmp_path: Any, nats: NatsServer) -> None:
    """It writes the ids of the messages to come, in every form; these bring no id, and one of them cannot be read."""
    from nats.aio.client import Client

    url = inbox_url("sqlite", tmp_path)
    client = Client()
    await client.connect(nats.url)
    stream = client.jetstream()
    await stream.add_stream(name="ORDERS", subjects=["orders"])
    for id in ("at:ORDERS:5", "ORDERS:5", "at:ORDERS:6", "ORDERS:6"):
        await stream.publish("orders", b"forged", headers={"event_id": id, "event_type": "Placed"})
    await stream.publish("orders", b"honest")
    await stream.publish("orders", b"{", headers={"Content-Type": "application/cloudevents+json"})
    async with AsyncInbox(url) as inbox, AsyncIngest(NatsSource(nats.url, stream="ORDERS"), inbox) as ingest:
        await ingest.drain()
        assert (ingest.counts.done, ingest.counts.ignored, ingest.counts.dead) == (6, 0, 3)
    await client.close()
    found = {row[0]: bytes(row[1]) for row in rows(url, "SELECT event_id, payload FROM inbox")}
    assert found == {
        "at:ORDERS:1": b"forged",
        "ORDERS:5": b"forged",
        "at:ORDERS:3": b"forged",
        "ORDERS:6": b"forged",
        "at:ORDERS:5": b"honest",
        "at:ORDERS:6": b"{",
    }
    with Inbox(url) as box:
        assert {letter.event.id for letter in box.dead.list()} == {"at:ORDERS:1", "at:ORDERS:3", "at:ORDERS:6"}
        seen: list[bytes] = []
        box.process(lambda event, _: seen.append(event.body)).once()
    assert sorted(seen) == [b"forged", b"forged", b"honest"]


async def test_a_relay_takes_none_either(tmp_path: Any) -> None:
    """A row that was written past relaybox, into an outbox whose relay sends to an inbox."""
    url = inbox_url("sqlite", tmp_path)
    row = (1, "at:ORDERS:3", "Placed", None, None, None, None, b"{}", None, None, None, None)
    forged, honest = Event.stored(row), Event("Placed", {})
    sink = InboxSink(url)
    answers = await sink.publish(
        [Message(event, "inbox", None, event.body, event.content_type, {}) for event in (forged, honest)]
    )
    await sink.close()
    assert isinstance(answers[0], Reject)
    assert "begins with 'at:'" in str(answers[0])
    assert answers[1] is None
    assert rows(url, "SELECT event_id FROM inbox") == [(honest.id,)]
