"""A receiver as a process: `python webhook_server.py FOLDER PORT SECRET`, with its inbox in the folder."""

from __future__ import annotations

import sys
from typing import Any

import uvicorn

from relaybox import AsyncInbox, Inbox
from relaybox.brokers.webhook import WebhookReceiver

folder, port, secret = sys.argv[1:]
url = f"sqlite:///{folder}/inbox.db"
with Inbox(url) as inbox:
    inbox.migrate()
receiver = WebhookReceiver(AsyncInbox(url), secrets=secret)


async def app(scope: Any, receive: Any, send: Any) -> None:
    """A GET says whose server this is."""
    if scope["type"] == "http" and scope["method"] == "GET":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": folder.encode()})
    else:
        await receiver(scope, receive, send)


uvicorn.run(app, host="127.0.0.1", port=int(port), log_level="warning")
