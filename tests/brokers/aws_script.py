"""An SQS endpoint that says what a test tells it to: partial failures, refusals and nonsense that moto never says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from ssl import SSLContext
from typing import Any

from aiohttp import web

Entries = list[dict[str, Any]]
Reply = Callable[[Entries], tuple[int, Any]]


def accepted(entries: Entries) -> tuple[int, Any]:
    return 200, {"Successful": [{"Id": entry["Id"], "MessageId": "m", "MD5OfMessageBody": ""} for entry in entries]}


def refused(status: int, code: str, text: str = "as the test wants it") -> Reply:
    return lambda entries: (status, {"__type": f"com.amazonaws.sqs#{code}", "message": text})


def raw(status: int, text: str) -> Reply:
    return lambda entries: (status, text)


class ScriptedSqs:
    """`reply` answers SendMessageBatch. Queues exist, whatever their name."""

    def __init__(self) -> None:
        self.reply: Reply = accepted
        self.requests: list[Entries] = []
        self.url = ""
        self.hanging = asyncio.Event()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        asked = json.loads(await request.read())
        if request.headers["X-Amz-Target"] == "AmazonSQS.GetQueueUrl":
            return web.json_response({"QueueUrl": f"{self.url}/1/{asked['QueueName']}"})
        self.requests.append(asked["Entries"])
        status, answer = self.reply(asked["Entries"])
        if status == 0:
            self.hanging.set()
            await asyncio.Event().wait()
        if isinstance(answer, str):
            return web.Response(status=status, text=answer)
        return web.json_response(answer, status=status)


@asynccontextmanager
async def scripted_sqs(tls: SSLContext | None = None) -> AsyncIterator[ScriptedSqs]:
    service = ScriptedSqs()
    app = web.Application(client_max_size=2**24)
    app.router.add_post("/", service._handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    port = runner.addresses[0][1]
    service.url = f"{'https' if tls else 'http'}://127.0.0.1:{port}"
    try:
        yield service
    finally:
        await runner.cleanup()
