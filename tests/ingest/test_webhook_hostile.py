"""Requests that want to stop the receiver or fill its memory."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from relaybox import AsyncInbox
from relaybox.brokers.webhook import WebhookReceiver
from relaybox.errors import ConfigError
from relaybox.ingest.webhook import MAX_BODY, MEMORY
from relaybox.ingest.webhook_events import MAX_BATCH

from .ingest_kit import inbox_url
from .webhook_kit import JSON, SECRETS, events_of, post, receiving, signed

CLOUDEVENT = "application/cloudevents+json"


@pytest.fixture
def url(tmp_path: Path) -> str:
    return inbox_url("sqlite", tmp_path)


def cloudevent(**attributes: Any) -> dict[str, Any]:
    return {"specversion": "1.0", "id": "1", "source": "s", "type": "T", "data": 1, **attributes}


HOSTILE = {
    "before the calendar": (CLOUDEVENT, json.dumps(cloudevent(time="0001-01-01T00:00:00+14:00")).encode()),
    "beyond the calendar": (CLOUDEVENT, json.dumps(cloudevent(time="9999-12-31T23:59:59-14:00")).encode()),
    "deep": (JSON, b"[" * 5000),
    "deep data": (CLOUDEVENT, json.dumps(cloudevent()).encode()[:-2] + b"[" * 5000),
    "long number": (JSON, b"9" * 5000),
    "control characters": (CLOUDEVENT, json.dumps(cloudevent(type="T\n2026-01-01 ERROR forged")).encode()),
    "escapes": (JSON, b'{"type": "\\u001b[2J"}'),
    "surrogate": (CLOUDEVENT, b'{"specversion":"1.0","id":"\\ud800","source":"s","type":"T"}'),
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_hostile_request_is_refused_and_the_next_is_stored(url: str, name: str) -> None:
    content_type, body = HOSTILE[name]
    async with receiving(url) as (inbox, client):
        assert await post(client, body, signed("hostile", body, content_type)) == 400
        assert await post(client, b"{}", signed("honest", b"{}")) == 200
        assert [event.id for event in await events_of(inbox)] == ["honest"]


async def test_a_batch_has_a_limit_of_events(url: str) -> None:
    async with receiving(url) as (inbox, client):
        for count, status in ((MAX_BATCH + 1, 413), (MAX_BATCH, 200)):
            body = json.dumps([cloudevent(id=str(n)) for n in range(count)]).encode()
            assert await post(client, body, signed(f"m{count}", body, "application/cloudevents-batch+json")) == status
        assert len(await events_of(inbox)) == MAX_BATCH


class Sender:
    """One request by hand: it counts the parts of its body that were asked for."""

    def __init__(self, headers: dict[str, str], part: bytes, parts: int) -> None:
        self.headers = [(name.encode(), value.encode()) for name, value in headers.items()]
        self.part, self.left, self.asked = part, parts, 0
        self.answered: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.stalled = asyncio.Event()

    async def receive(self) -> dict[str, Any]:
        self.asked += 1
        self.left -= 1
        if self.left < 0:  # the last part never comes
            self.stalled.set()
            await asyncio.Event().wait()
        return {"type": "http.request", "body": self.part, "more_body": True}

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.answered.set_result(message["status"])

    async def call(self, receiver: WebhookReceiver) -> None:
        scope = {"type": "http", "method": "POST", "http_version": "1.1", "headers": self.headers}
        await receiver(scope, self.receive, self.send)


@pytest.mark.parametrize(
    "change",
    [{"webhook-signature": ""}, {"webhook-timestamp": "7"}, {"webhook-id": "a.b"}, {"webhook-signature": "v1,x " * 99}],
)
async def test_nothing_of_a_body_is_read_that_cannot_be_genuine(url: str, change: dict[str, str]) -> None:
    sender = Sender({**signed("m", b""), **change}, b"x", 3)
    async with AsyncInbox(url) as inbox:
        await sender.call(WebhookReceiver(inbox, secrets=SECRETS))
    assert (sender.asked, await sender.answered) == (0, 401)


async def test_the_memory_of_500_requests_is_bounded(url: str) -> None:
    """Each sends two megabytes but for the last byte. Those beyond the bound are told to come again; the room of those
    that are cut off is given back."""
    part = bytes(64 * 1024)
    async with AsyncInbox(url) as inbox:
        receiver = WebhookReceiver(inbox, secrets=SECRETS)
        senders = [Sender(signed(f"m{n}", b""), part, MAX_BODY // len(part)) for n in range(500)]
        calls = [asyncio.create_task(sender.call(receiver)) for sender in senders]
        over = [asyncio.create_task(sender.stalled.wait()) for sender in senders]
        for stall, sender in zip(over, senders, strict=True):
            await asyncio.wait([stall, sender.answered], return_when=asyncio.FIRST_COMPLETED)
        stalled = [sender for sender in senders if sender.stalled.is_set()]
        refused = [sender.answered.result() for sender in senders if sender.answered.done()]
        assert len(stalled) <= MEMORY // MAX_BODY
        assert set(refused) == {503}
        assert len(refused) + len(stalled) == 500
        for call in (*calls, *over):
            call.cancel()
        await asyncio.gather(*calls, *over, return_exceptions=True)
        assert receiver._room._left == MEMORY
    with pytest.raises(ConfigError, match="room for one body"):
        WebhookReceiver(inbox, secrets=SECRETS, memory=10)
