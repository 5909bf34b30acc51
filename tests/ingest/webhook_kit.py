"""A receiver behind a real HTTP server, and senders that sign by hand."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import httpx
import uvicorn

from relaybox import AsyncInbox, Event
from relaybox.brokers.webhook import WebhookReceiver
from relaybox.clock import SYSTEM_CLOCK

KEYS = [b"the first secret, of 32 bytes...", b"the other secret, of 32 bytes..."]
SECRETS = ["whsec_" + base64.b64encode(key).decode() for key in KEYS]
JSON = "application/json"


def signed(
    id: str, body: bytes, content_type: str = JSON, *, key: bytes = KEYS[0], age: timedelta = timedelta(0)
) -> dict[str, str]:
    """As Standard Webhooks says it, without our code."""
    stamp = str(int((SYSTEM_CLOCK.now() - age).timestamp()))
    mac = hmac.new(key, f"{id}.{stamp}.".encode() + body, hashlib.sha256).digest()
    signature = "v1," + base64.b64encode(mac).decode()
    return {
        "webhook-id": id,
        "webhook-timestamp": stamp,
        "webhook-signature": signature,
        "content-type": content_type,
    }


@asynccontextmanager
async def serving(app: Any, *, lifespan: str = "auto") -> AsyncIterator[str]:
    """Its URL, while it is served."""
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="critical", lifespan=lifespan)  # type: ignore[arg-type]
    server = uvicorn.Server(config)
    socket = config.bind_socket()
    task = asyncio.create_task(server.serve([socket]))
    try:
        while not server.started and not task.done():
            await asyncio.sleep(0.01)
        yield f"http://127.0.0.1:{socket.getsockname()[1]}/hooks"
    finally:
        server.should_exit = True
        await task
        socket.close()


@asynccontextmanager
async def receiving(url: str, **options: Any) -> AsyncIterator[tuple[AsyncInbox, httpx.AsyncClient]]:
    """An inbox, and a client whose requests go to its receiver. The server closes the inbox at its end."""
    inbox = AsyncInbox(url)
    given = {} if "unsigned" in options else {"secrets": SECRETS[:1]}
    async with serving(WebhookReceiver(inbox, **given | options)) as at:
        async with httpx.AsyncClient(base_url=at, timeout=30) as client:
            yield inbox, client


async def post(client: httpx.AsyncClient, body: Any, headers: Mapping[str, str]) -> int:
    return (await client.post("", content=body, headers=dict(headers))).status_code


async def events_of(inbox: AsyncInbox) -> list[Event]:
    """All that waits, in the order of arrival."""
    found: list[Event] = []

    async def take(event: Event, handle: Any) -> None:
        found.append(event)

    await inbox.process(take).once()
    return sorted(found, key=lambda event: event.seq or 0)
