"""What a receiver takes, refuses, and says."""

from __future__ import annotations

import asyncio
import json
import logging
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from inbox.kit import inbox_url
from relaybox import AsyncInbox, Event, Inbox, Reject
from relaybox.brokers.parse import Reading
from relaybox.brokers.webhook import WebhookReceiver
from relaybox.errors import ConfigError
from relaybox.facts import Ingested

from .webhook_kit import JSON, KEYS, SECRETS, events_of, post, receiving, serving, signed

BODY = b'{"type": "order.placed", "data": {"id": 7}}'
ATTRIBUTES = {"ce-specversion": "1.0", "ce-id": "own-id", "ce-source": "/shop", "ce-type": "OrderPlaced"}
ENVELOPE = {"specversion": "1.0", "source": "/shop", "type": "OrderPlaced"}


@pytest.fixture
def url(tmp_path: Path) -> str:
    return inbox_url("sqlite", tmp_path)


# -- what is taken ----------------------------------------------------------------------------------


async def test_plain_json_is_stored_as_it_came(url: str) -> None:
    async with receiving(url, sender="shop") as (inbox, client):
        assert await post(client, BODY, signed("msg_1", BODY)) == 200
        (event,) = await events_of(inbox)
        assert (event.id, event.type, event.body, event.content_type) == ("msg_1", "order.placed", BODY, JSON)


async def test_the_source_is_kept(url: str) -> None:
    async def refuse(event: Event, handle: Any) -> None:
        raise Reject("not today")

    async with receiving(url, sender="shop") as (inbox, client):
        await post(client, BODY, signed("msg_1", BODY))
        await inbox.process(refuse).once()
        (letter,) = await inbox.dead.list()
        assert letter.event.sender == "shop"


@pytest.mark.parametrize(
    ("body", "content_type", "reading", "expected"),
    [
        (b'{"id": 7}', JSON, None, "webhook"),
        (b'{"type": 7}', JSON, None, "webhook"),
        (b'{"type": "a"}', "application/vnd.shop+json; charset=utf-8", None, "a"),
        (b'{"type": "a"}', "text/plain", Reading(type="note"), "note"),
        (b'{"type": "a', JSON, Reading(type="note"), "note"),
        (b"<order/>", "application/xml", Reading(type_header="x-topic"), "orders/create"),
    ],
)
async def test_the_type(url: str, body: bytes, content_type: str, reading: Reading | None, expected: str) -> None:
    async with receiving(url, reading=reading) as (inbox, client):
        assert await post(client, body, signed("1", body, content_type) | {"x-topic": "orders/create"}) == 200
        (event,) = await events_of(inbox)
        assert (event.type, event.body, event.content_type) == (expected, body, content_type)


async def test_binary_cloudevents(url: str) -> None:
    async with receiving(url) as (inbox, client):
        more = {"ce-subject": "order%207", "ce-sequence": "3", "ce-time": "2030-01-01T00:00:00Z", "traceparent": "00-1"}
        assert await post(client, b"\x00\xff", signed("msg_1", b"\x00\xff", "image/png") | ATTRIBUTES | more) == 200
        (event,) = await events_of(inbox)
        assert (event.id, event.type, event.key, event.body) == ("msg_1", "OrderPlaced", "order 7", b"\x00\xff")
        assert event.occurred_at.year == 2030
        assert event.headers == {"ce-id": "own-id", "ce-source": "/shop", "sequence": "3", "traceparent": "00-1"}


async def test_structured_cloudevents_keep_the_bytes_of_their_data(url: str) -> None:
    body = b'{"id":"e1","source":"/shop","type":"OrderPlaced","specversion":"1.0","data":{"price" : 1.10}}'
    async with receiving(url) as (inbox, client):
        assert await post(client, body, signed("msg_1", body, "application/cloudevents+json; charset=utf-8")) == 200
        (event,) = await events_of(inbox)
        assert (event.id, event.type, event.body) == ("msg_1", "OrderPlaced", b'{"price" : 1.10}')
        assert event.headers["ce-id"] == "e1"


async def test_a_batch_is_stored_whole(url: str) -> None:
    parts = [json.dumps({**ENVELOPE, "id": f"e{n}", "data": {"n": n}}) for n in (1, 2, 1)]
    body = f" [{' , '.join(parts)} ] ".encode()
    async with receiving(url) as (inbox, client):
        assert await post(client, body, signed("msg_1", body, "application/cloudevents-batch+json")) == 200
        assert await post(client, b"[]", signed("msg_2", b"[]", "application/cloudevents-batch+json")) == 200
        found = [(event.headers["ce-id"], event.payload) for event in await events_of(inbox)]
        assert found == [("e1", {"n": 1}), ("e2", {"n": 2})]


@pytest.mark.parametrize("body", [b"", b"{}", b"[", b"[{}", b"[{}] x", b"[{},]", b"[{}]", b"\xff", b"[1]", b"[" * 9999])
async def test_a_broken_batch_stores_nothing(url: str, body: bytes) -> None:
    async with receiving(url) as (inbox, client):
        good = json.dumps({**ENVELOPE, "id": "e1"}).encode()
        for sent in (body, b"[" + good + b"," + body[1:] if body[:1] == b"[" else body):
            assert await post(client, sent, signed("msg_1", sent, "application/cloudevents-batch+json")) == 400
        assert (await inbox.status()).seen == 0


async def test_only_headers_that_belong_to_the_message_are_kept(url: str) -> None:
    private = {"authorization": "Bearer secret", "cookie": "session=secret", "x-api-key": "secret", "x-shop": "tea"}
    async with receiving(url, headers=["X-Shop"]) as (inbox, client):
        await post(client, BODY, signed("1", BODY) | private | {"correlation-id": "c1", "priority": "2"})
        (event,) = await events_of(inbox)
        assert event.headers == {"x-shop": "tea", "correlation-id": "c1", "priority": "2"}


async def test_an_id_of_any_length(url: str) -> None:
    async with receiving(url) as (inbox, client):
        for id in ("m" * 200, "m" * 201, "m" * 200):
            assert await post(client, BODY, signed(id, BODY)) == 200
        assert [len(event.headers["webhook-id"]) for event in await events_of(inbox)] == [200, 201]


async def test_what_was_stored_and_what_came_again_is_counted(url: str) -> None:
    facts: list[Any] = []
    async with receiving(url, observers=[facts.append]) as (_, client):
        for _ in range(2):
            await post(client, BODY, signed("1", BODY))
    assert [(fact.accepted, fact.duplicates) for fact in facts if isinstance(fact, Ingested)] == [(1, 0), (0, 1)]


# -- what is genuine --------------------------------------------------------------------------------


@pytest.mark.parametrize("key", KEYS)
async def test_several_secrets_while_one_is_replaced(url: str, key: bytes) -> None:
    async with receiving(url, secrets=SECRETS) as (_, client):
        assert await post(client, BODY, signed("1", BODY, key=key)) == 200


@pytest.mark.parametrize(
    "change",
    [
        {"webhook-id": "2"},
        {"webhook-timestamp": "1"},
        {"webhook-signature": "v1,AAAA"},
        {"webhook-signature": "v2,AAAA"},
        {"webhook-id": ""},
        {"webhook-signature": "v1,\u00e4"},
    ],
    ids=str,
)
async def test_a_changed_header_is_refused(url: str, change: dict[str, str]) -> None:
    async with receiving(url) as (inbox, client):
        headers = {name.encode(): value.encode() for name, value in (signed("1", BODY) | change).items()}
        assert (await client.post("", content=BODY, headers=headers)).status_code == 401
        assert (await inbox.status()).seen == 0


async def test_a_changed_body_another_secret_and_an_old_message_are_refused(url: str) -> None:
    async with receiving(url) as (inbox, client):
        assert await post(client, BODY + b" ", signed("1", BODY)) == 401
        assert await post(client, BODY, signed("1", BODY, key=KEYS[1])) == 401
        for minutes in (-6, 6):
            assert await post(client, BODY, signed("1", BODY, age=timedelta(minutes=minutes))) == 401
        assert await post(client, BODY, {}) == 401
        assert (await inbox.status()).seen == 0
        assert await post(client, BODY, signed("1", BODY, age=timedelta(minutes=4))) == 200


@pytest.mark.parametrize(
    "change",
    [
        {"ce-id": "another"},
        {"ce-id": "5f0c3c5e-0d2c-4b34-9a35-0d4c1b7a9f10"},
        {"ce-source": "/elsewhere"},
        {"ce-aggregatetype": "order"},
        {"event-id": "another", "event-type": "OrderPlaced"},
        {"content-type": "application/cloudevents+json"},
        {"content-type": "text/plain"},
    ],
    ids=str,
)
async def test_a_replay_with_other_headers_is_a_replay(url: str, change: dict[str, str]) -> None:
    """They are not signed: they cannot make a known message a new one."""
    body = json.dumps({**ENVELOPE, "id": "e1"}).encode()
    before = ATTRIBUTES if next(iter(change)).startswith("ce-") else {}
    async with receiving(url) as (inbox, client):
        headers = signed("msg_1", body) | before
        for sent in (headers, headers | change):
            assert await post(client, body, sent) == 200
        (event,) = await events_of(inbox)
        assert event.id == "msg_1"


async def test_unsigned_is_a_word_to_be_said(url: str) -> None:
    inbox = AsyncInbox(url)
    wrong: dict[str, Any]
    for wrong in ({}, {"secrets": SECRETS, "unsigned": True}):
        with pytest.raises(ConfigError, match="unsigned=True"):
            WebhookReceiver(inbox, **wrong)
    await inbox.close()
    async with receiving(url, unsigned=True) as (inbox, client):
        for more in ({}, {"event-type": "OrderPlaced"}, {"ce-specversion": "1.0"}):
            assert await post(client, BODY, {"content-type": JSON, **more}) == 400, "no id"
        assert await post(client, BODY, {"content-type": JSON, "webhook-id": "1"}) == 200
        assert await post(client, BODY, {"content-type": JSON, **ATTRIBUTES}) == 200
        own = ["1", "own-id"]
        assert [event.headers.get("ce-id", event.id) for event in await events_of(inbox)] == own


async def test_an_unsigned_stranger_may_name_its_id_elsewhere(url: str) -> None:
    async with receiving(url, unsigned=True, reading=Reading(id_header="X-Id", key_header="X-Key")) as (inbox, client):
        assert await post(client, BODY, {"content-type": JSON, "x-id": "7", "x-key": "order-7"}) == 200
        (event,) = await events_of(inbox)
        assert (event.id, event.key) == ("7", "order-7")


def test_wrong_options(url: str) -> None:
    inbox = AsyncInbox(url)
    wrong: list[dict[str, Any]] = [
        {"secrets": ["whsec_short"]},
        {"secrets": SECRETS, "max_body": 0},
        {"secrets": SECRETS, "rate": 0},
        {"secrets": SECRETS, "tolerance": timedelta(0)},
        {"secrets": SECRETS, "sender": "s\n"},
        {"secrets": SECRETS, "reading": Reading(id_header="x-id")},
    ]
    for options in wrong:
        with pytest.raises(ConfigError):
            WebhookReceiver(inbox, **options)
    with pytest.raises(ConfigError, match="AsyncInbox"), Inbox(url) as other:
        WebhookReceiver(other, secrets=SECRETS)  # type: ignore[arg-type]


# -- what is refused --------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "OPTIONS"])
async def test_other_methods(url: str, method: str) -> None:
    async with receiving(url) as (_, client):
        answer = await client.request(method, "")
        assert (answer.status_code, answer.headers["allow"]) == (405, "POST")


@pytest.mark.parametrize("name", ["content-encoding", "content-type"])
async def test_what_cannot_be_read(url: str, name: str) -> None:
    async with receiving(url) as (_, client):
        value = "gzip" if name == "content-encoding" else "application/cloudevents+xml"
        assert await post(client, BODY, signed("1", BODY) | {name: value}) == 415


@pytest.mark.parametrize(
    "headers",
    [{**ATTRIBUTES, "ce-specversion": "0.3"}, {**ATTRIBUTES, "ce-time": "soon"}, {**ATTRIBUTES, "ce-type": "%ff"}],
)
async def test_signed_and_no_event(url: str, headers: dict[str, str]) -> None:
    async with receiving(url) as (_, client):
        assert await post(client, BODY, signed("1", BODY) | headers) == 400


async def test_a_body_that_is_too_long(url: str) -> None:
    async with receiving(url, max_body=100_000) as (inbox, client):
        for size, expected in ((100_000, 200), (100_001, 413)):
            body = b" " * size
            assert await post(client, body, signed(str(size), body)) == expected
        assert (await inbox.status()).seen == 1


async def raw(client: httpx.AsyncClient, head: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A request that has begun, with headers that may be genuine."""
    begun = "".join(f"{name}: {value}\r\n" for name, value in signed("m", b"").items()).encode()
    reader, writer = await asyncio.open_connection(client.base_url.host, client.base_url.port)
    writer.write(b"POST /hooks HTTP/1.1\r\nhost: x\r\n" + begun + head)
    await writer.drain()
    return reader, writer


async def test_a_stream_without_end_is_cut(url: str) -> None:
    async with receiving(url, max_body=100_000) as (_, client):
        reader, writer = await raw(client, b"transfer-encoding: chunked\r\n\r\n")
        for _ in range(101):
            writer.write(b"3e8\r\n" + b" " * 1000 + b"\r\n")
        assert b" 413 " in await reader.readline()
        writer.close()


async def test_a_length_that_is_too_long_is_not_waited_for(url: str) -> None:
    async with receiving(url, max_body=100_000) as (_, client):
        for length in (b"100001", b"9" * 18):
            reader, writer = await raw(client, b"content-length: " + length + b"\r\n\r\n")
            assert b" 413 " in await reader.readline()
            writer.close()


async def test_a_slow_body_is_not_waited_for(url: str) -> None:
    async with receiving(url, read_timeout=timedelta(milliseconds=50)) as (_, client):
        reader, writer = await raw(client, b"content-length: 10\r\n\r\n{")
        assert b" 408 " in await reader.readline()
        writer.close()


async def test_a_sender_that_hangs_up_leaves_nothing(url: str) -> None:
    async with receiving(url) as (inbox, client):
        _, writer = await raw(client, b"content-length: 10\r\n\r\n{")
        writer.close()
        assert await post(client, BODY, signed("1", BODY)) == 200
        assert (await inbox.status()).seen == 1


async def test_nothing_is_told_and_nothing_private_is_logged(url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="relaybox")
    async with receiving(url, sender="shop") as (_, client):
        answer = await client.post("", content=b'{"pin": 4711}', headers=signed("1", BODY))
        assert (answer.status_code, answer.content) == (401, b"")
        await post(client, b'{"pin": 4711}', signed("1", b'{"pin": 4711}') | {**ATTRIBUTES, "ce-time": "soon"})
    assert "webhook of shop answered with 401" in caplog.text
    assert "webhook of shop answered with 400" in caplog.text
    assert "4711" not in caplog.text
    assert not any(secret in caplog.text for secret in SECRETS)
    assert not any(secret in repr(WebhookReceiver(AsyncInbox(url), secrets=SECRETS)) for secret in SECRETS)


# -- permission, and life ---------------------------------------------------------------------------


async def test_the_handshake_of_cloudevents(url: str) -> None:
    ask = {"webhook-request-origin": "events.example", "webhook-request-rate": "1000"}
    async with receiving(url, origins=["events.example"], rate=120) as (_, client):
        granted = await client.options("", headers=ask)
        assert granted.status_code == 200
        assert granted.headers["webhook-allowed-origin"] == "events.example"
        assert granted.headers["webhook-allowed-rate"] == "120"
        assert granted.headers["allow"] == "POST, OPTIONS"
        for other in ({"webhook-request-origin": "evil.example"}, {}):
            assert "webhook-allowed-origin" not in (await client.options("", headers=other)).headers
    async with receiving(url, origins="*") as (_, client):
        answer = await client.options("", headers=ask)
        assert answer.headers["webhook-allowed-origin"] == "events.example"
        assert answer.headers["webhook-allowed-rate"] == "*"


async def test_tables_that_are_missing_are_found_at_the_start(tmp_path: Path) -> None:
    receiver = WebhookReceiver(AsyncInbox(f"sqlite:///{tmp_path}/new.db"), secrets=SECRETS)
    said: list[Any] = []

    async def receive() -> dict[str, str]:
        return {"type": "lifespan.startup"}

    async def send(message: Any) -> None:
        said.append(message)

    await receiver({"type": "lifespan"}, receive, send)
    assert said[0]["type"] == "lifespan.startup.failed"
    assert "migrate" in said[0]["message"]


async def test_mounted_in_fastapi_the_inbox_stays_open(url: str) -> None:
    from fastapi import FastAPI
    from starlette.routing import Route

    app, inbox = FastAPI(), AsyncInbox(url)
    receiver = WebhookReceiver(inbox, secrets=SECRETS)
    app.router.routes.append(Route("/hooks/shop", receiver))
    app.mount("/hooks/bank", receiver)
    async with serving(app) as at, httpx.AsyncClient() as client:
        for path, expected in (("/shop", 200), ("/bank/", 200), ("", 404)):
            answer = await client.post(at + path, content=BODY, headers=signed(f"1{path[:5]}", BODY))
            assert answer.status_code == expected
    assert (await inbox.status()).seen == 2
    await inbox.close()


async def test_a_websocket_is_turned_away(url: str) -> None:
    inbox = AsyncInbox(url)
    said: list[Any] = []

    async def receive() -> dict[str, str]:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        said.append(message["type"])

    await WebhookReceiver(inbox, secrets=SECRETS)({"type": "websocket"}, receive, send)
    assert said == ["websocket.close"]
    await inbox.close()


async def test_one_sender_does_not_take_the_ids_of_another(url: str) -> None:
    """Two receivers of one inbox, each with secrets of its own. Neither a header nor a body says who sends."""
    forged, honest = b'{"type": "forged", "sender": "shop"}', b'{"type": "honest"}'
    async with (
        receiving(url, secrets=SECRETS[1:], sender="mallory") as (_, mallory),
        receiving(url, secrets=SECRETS[:1], sender="shop") as (inbox, shop),
    ):
        claims = {"sender": "shop", "source": "shop", "ce-source": "shop", "relaybox-sender": "shop"}
        for _ in range(2):
            assert await post(mallory, forged, signed("msg_1", forged, key=KEYS[1]) | claims) == 200
            assert await post(shop, honest, signed("msg_1", honest)) == 200
        found = [(event.sender, event.type, event.id) for event in await events_of(inbox)]
    assert sorted(found) == [("mallory", "forged", "msg_1"), ("shop", "honest", "msg_1")]


async def test_the_id_of_a_place_is_refused(url: str) -> None:
    async with receiving(url) as (inbox, client):
        assert await post(client, b"{}", signed("at:ORDERS:3", b"{}")) == 400
        assert await events_of(inbox) == []
