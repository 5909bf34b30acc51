"""Webhooks for the sink contract: a receiver that runs as a process, can be killed, and keeps what it got."""

from __future__ import annotations

import asyncio
import base64
import json
import sqlite3
import ssl
import sys
import urllib.request
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from uuid import uuid4

from relaybox.brokers.webhook.sink import WebhookSink
from relaybox.testing.servers.process import RestartableServer
from relaybox.testing.sink_contract import SECRET, Received, SinkHarness

KEY = f"{SECRET}-as-a-signing-key".encode()
WHSEC = "whsec_" + base64.b64encode(KEY).decode()
PLAIN = ("event_id", "event_type", "aggregate_type", "aggregate_id", "created_at")


class ReceiverServer(RestartableServer):
    kind = "webhook-receiver"

    def __init__(self) -> None:
        super().__init__(None)

    def _prepare(self) -> None:
        self._make_certificate()
        self._write("secret", base64.b64encode(KEY).decode())

    def _command(self) -> Sequence[str | Path]:
        return [sys.executable, Path(__file__).with_name("webhook_receiver.py"), self.folder, str(self.port)]

    def _answering_folder(self) -> str:
        trust = ssl.create_default_context(cafile=self.ca_file)
        with urllib.request.urlopen(f"https://127.0.0.1:{self.port}/", context=trust, timeout=5) as reply:
            return str(reply.read().decode())

    @property
    def ca_file(self) -> str:
        return str(self.folder / "cert.pem")


class WebhookHarness(SinkHarness):
    oversize = 400_000

    def __init__(self, server: ReceiverServer) -> None:
        self.server = server

    def sink(self, **options: Any) -> WebhookSink:
        given: dict[str, Any] = {
            "secrets": [WHSEC],
            "allow_networks": ["127.0.0.1/32"],
            "ports": [self.server.port],
            "ca_file": self.server.ca_file,
            "connect_timeout": timedelta(seconds=2),
        }
        return WebhookSink(**given | options)

    async def destination(self) -> str:
        return f"https://127.0.0.1:{self.server.port}/{uuid4()}"

    async def read(self, destination: str, count: int, timeout: float = 20) -> list[Received]:
        """The receiver keeps before it answers, so what was acknowledged is there."""
        async with asyncio.timeout(timeout):
            while len(rows := self.rows(destination)) < count:
                await asyncio.sleep(0.02)
        return [received(dict(json.loads(headers)), body) for headers, body in rows]

    def rows(self, destination: str) -> list[tuple[str, bytes]]:
        path = "/" + destination.rpartition("/")[2]
        database = sqlite3.connect(self.server.folder / "received.db")
        try:
            return database.execute(
                "SELECT headers, body FROM received WHERE path = ? ORDER BY rowid", [path]
            ).fetchall()
        finally:
            database.close()

    async def missing(self) -> str:
        return "nobody"

    async def outage(self) -> None:
        await asyncio.to_thread(self.server.kill)

    async def recovery(self) -> None:
        await asyncio.to_thread(self.server.start)


def received(headers: dict[str, str], body: bytes) -> Received:
    attributes = headers | {
        name: headers[name.replace("_", "-")] for name in PLAIN if name.replace("_", "-") in headers
    }
    key = attributes.get("aggregate_id")
    return Received(
        headers["webhook-id"], None if key is None else unquote(key), body, headers["content-type"], attributes
    )
