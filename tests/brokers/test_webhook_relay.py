"""A relay in front of good and bad endpoints: the good ones get everything, the bad ones are left alone."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

from scripted_endpoint import Request, answer, endpoint, hang
from test_webhook_faults import SECRET

from relaybox import AsyncOutbox, AsyncRelay, Event
from relaybox.brokers.webhook.signature import verify
from relaybox.brokers.webhook.sink import Endpoint, WebhookSink

EVENTS = 40
BAD = {"busy": answer(429, retry_after="0"), "down": answer(503), "stuck": hang, "broken": answer(500)}


async def test_bad_endpoints_neither_stop_the_others_nor_are_hammered(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    arrived = asyncio.Semaphore(0)

    async def accept(request: Request, writer: Any) -> None:
        verify(request.headers, request.body, [SECRET])
        await answer(204)(request, writer)
        arrived.release()

    async with AsyncExitStack() as stack:
        servers = {name: await stack.enter_async_context(endpoint(does)) for name, does in BAD.items()}
        good = servers["good"] = await stack.enter_async_context(endpoint(accept))
        outbox = await stack.enter_async_context(AsyncOutbox(url))
        await outbox.migrate()
        async with outbox.transaction() as tx:
            events = [
                Event("OrderPlaced", {"n": number}, key=f"{name}-{number % 10}", tenant=name)
                for number in range(EVENTS)
                for name in servers
            ]
            await outbox.write_all(tx, events)
        sink = WebhookSink(
            endpoints={name: Endpoint(url=server.url(), secrets=[SECRET]) for name, server in servers.items()},
            allow_networks=["127.0.0.0/8"],
            ports=[server.port for server in servers.values()],
            insecure_http=True,
            read_timeout=timedelta(seconds=1),
        )
        async with asyncio.timeout(60), AsyncRelay(url, sink, to="{tenant}"):
            for _ in range(EVENTS):
                await arrived.acquire()
        by_key: dict[str, list[bytes]] = {}
        for request in good.requests:
            by_key.setdefault(request.headers["aggregate-id"], []).append(request.body)
        expected = [[event.body for event in events if event.key == key] for key in by_key]
        assert list(by_key.values()) == expected, "in order, once"
        for name in ("busy", "down", "stuck"):
            assert len(servers[name].requests) <= 2 * 8, f"{name} was hammered"
        assert len(servers["broken"].requests) < EVENTS
