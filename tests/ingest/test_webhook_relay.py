"""From a relay's webhooks into an inbox: every event once, with every byte, through an outage of the database."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inbox.kit import inbox_url
from relaybox import AsyncInbox, AsyncOutbox, AsyncRelay, Event
from relaybox.brokers.formats import MessageFormat, renderer
from relaybox.brokers.webhook import WebhookReceiver
from relaybox.brokers.webhook.sink import Endpoint, WebhookSink
from relaybox.testing.servers.gate import TcpGate

from .webhook_kit import SECRETS, events_of, post, receiving, serving, signed

STORABLE = st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"])  # what an Event takes as a name
FORMATS: list[MessageFormat] = ["plain", "cloudevents", "cloudevents-structured"]


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return inbox_url(request.param, tmp_path)


def sink_to(at: str, **options: Any) -> WebhookSink:
    return WebhookSink(
        endpoints={"hooks": Endpoint(url=at, secrets=SECRETS)},
        allow_networks=["127.0.0.0/8"],
        ports=[urlsplit(at).port or 0],
        insecure_http=True,
        **options,
    )


@pytest.mark.parametrize("form", FORMATS)
async def test_what_was_written_is_what_is_handled(url: str, form: MessageFormat, tmp_path: Path) -> None:
    outbox_url = f"sqlite:///{tmp_path}/shop.db"
    headers = {"traceparent": "00-ab-cd-01", "correlation-id": "größe 1", "sequence": "5", "x-shop": "100 %"}
    written = [
        Event("OrderPlaced", {"n": 1}, key="order 1/ä", aggregate_type="order", tenant="tea & co", headers=headers),
        Event("Scanned", payload_bytes=bytes(range(256)), content_type="image/png"),
        Event("Noted", payload_json='{ "price": 1.10, "big": 12345678901234567890123 }'),
    ]
    async with AsyncOutbox(outbox_url) as outbox:
        await outbox.migrate()
        async with outbox.transaction() as tx:
            await outbox.write_all(tx, written)
    inbox = AsyncInbox(url)
    async with serving(WebhookReceiver(inbox, secrets=SECRETS[1], headers=["x-shop"])) as at:
        sink = sink_to(at, event_headers=["x-shop"])
        async with AsyncRelay(outbox_url, sink, to="hooks", format=form, ce_source="/shop") as relay:
            await relay.drain()
        received = {event.id: event for event in await events_of(inbox)}
    for event in written:
        got = received.pop(event.id)
        assert (got.type, got.key, got.body, got.tenant) == (event.type, event.key, event.body, event.tenant)
        assert (got.content_type, got.aggregate_type) == (event.content_type, event.aggregate_type)
        assert event.headers.items() <= got.headers.items()
    assert received == {}


async def test_a_database_that_is_silent_at_the_start_does_not_keep_the_server_from_starting(
    gate: tuple[TcpGate, str],
) -> None:
    door, url = gate
    door.blackhole()
    async with receiving(url, timeout=timedelta(seconds=1)) as (_, client):
        assert await post(client, b"{}", signed("1", b"{}")) == 503
        door.open()


async def test_of_fifty_that_come_at_once_one_is_stored(url: str) -> None:
    body = b'{"type": "order.placed"}'
    async with receiving(url) as (inbox, client):
        answers = await asyncio.gather(*(post(client, body, signed("msg_1", body)) for _ in range(50)))
        assert answers == [200] * 50
        assert (await inbox.status()).pending == 1
        assert len(await events_of(inbox)) == 1
        assert await post(client, body, signed("msg_1", body)) == 200, "also when it was processed"
        assert (await inbox.status()).pending == 0


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[tuple[TcpGate, str]]:
    url = inbox_url("postgres", tmp_path)
    with TcpGate(urlsplit(url).port or 0) as made:
        yield made, made.through(url)


async def test_a_database_that_is_away_is_a_pause_for_the_sender(gate: tuple[TcpGate, str], tmp_path: Path) -> None:
    door, url = gate
    outbox_url = f"sqlite:///{tmp_path}/shop.db"
    async with AsyncOutbox(outbox_url) as outbox:
        await outbox.migrate()
        async with outbox.transaction() as tx:
            await outbox.write_all(tx, [Event("OrderPlaced", {"n": n}, key="order-1") for n in range(5)])
        door.refuse()
        inbox = AsyncInbox(url)
        refused = asyncio.Event()
        receiver = WebhookReceiver(inbox, secrets=SECRETS, retry_after=timedelta(seconds=1))

        async def watched(scope: Any, receive: Any, send: Any) -> None:
            async def told(message: Any) -> None:
                if message.get("status") == 503:
                    assert (b"retry-after", b"1") in message["headers"]
                    refused.set()
                await send(message)

            await receiver(scope, receive, told)

        async with serving(watched) as at, AsyncRelay(outbox_url, sink_to(at), to="hooks") as relay:
            await asyncio.wait_for(refused.wait(), 30)
            door.open()
            await asyncio.wait_for(relay.drain(), 60)
            assert [event.payload["n"] for event in await events_of(inbox)] == [0, 1, 2, 3, 4]
            assert await outbox.dead.count() == 0


async def test_a_database_that_does_not_answer(gate: tuple[TcpGate, str]) -> None:
    door, url = gate
    async with receiving(url, timeout=timedelta(seconds=1)) as (inbox, client):
        door.blackhole()
        answer = await client.post("", content=b"{}", headers=signed("1", b"{}"))
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
        door.open()
        async with asyncio.timeout(30):
            while await post(client, b"{}", signed("1", b"{}")) != 200:
                pass
        assert (await inbox.status()).seen == 1


# -- any bytes --------------------------------------------------------------------------------------


class Bench:
    """The app without a server: many requests in one event loop."""

    def __init__(self, url: str) -> None:
        self.inbox = AsyncInbox(url)
        transport = httpx.ASGITransport(WebhookReceiver(self.inbox, secrets=SECRETS))
        self.client = httpx.AsyncClient(transport=transport, base_url="http://hooks")


@asynccontextmanager
async def bench(url: str) -> Any:
    made = Bench(url)
    yield made
    await made.client.aclose()
    await made.inbox.close()


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    body=st.binary(max_size=300),
    key=st.none() | st.text(STORABLE, min_size=1, max_size=40),
    form=st.sampled_from(FORMATS),
)
def test_any_bytes_survive(tmp_path: Path, body: bytes, key: str | None, form: MessageFormat) -> None:
    asyncio.run(sent_and_received(tmp_path, body, key, form))


async def sent_and_received(folder: Path, body: bytes, key: str | None, form: MessageFormat) -> None:
    url = f"sqlite:///{folder}/inbox.db"
    async with bench(url) as made:
        await made.inbox.migrate()
        event = Event("Scanned", payload_bytes=body, key=key)
        message = renderer(form, "/shop", WebhookSink.features)(event, "hooks")
        attributes = {name.replace("_", "-"): value for name, value in message.attributes.items()}
        headers = signed(event.id, message.body, message.content_type) | attributes
        assert await post(made.client, message.body, headers) == 200
        (got,) = await events_of(made.inbox)
        assert (got.id, got.body, got.key) == (event.id, body, key)
