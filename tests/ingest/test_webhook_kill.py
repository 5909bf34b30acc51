"""A receiver that is killed while a relay sends: every event is in the inbox once, each key in its order."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from relaybox import AsyncOutbox, AsyncRelay, Event
from relaybox.testing.servers.process import RestartableServer

from .test_webhook_relay import sink_to
from .webhook_kit import SECRETS

EVENTS, KEYS, KILLS = 200, 10, 2


class ReceiverServer(RestartableServer):
    kind = "webhook-inbox"

    def __init__(self) -> None:
        super().__init__(None)

    def _prepare(self) -> None:
        pass

    def _command(self) -> Sequence[str | Path]:
        script = Path(__file__).with_name("webhook_server.py")
        return [sys.executable, script, self.folder, str(self.port), SECRETS[0]]

    def _answering_folder(self) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/", timeout=5) as reply:
            return str(reply.read().decode())

    def stored(self) -> list[tuple[str, str]]:
        """Key and id, in the order of arrival."""
        database = sqlite3.connect(self.folder / "inbox.db", timeout=30)
        try:
            return database.execute("SELECT aggregate_id, event_id FROM inbox ORDER BY seq").fetchall()
        finally:
            database.close()


async def test_a_receiver_that_is_killed_loses_and_doubles_nothing(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    written = [Event("OrderPlaced", {"n": n}, key=f"order-{n % KEYS}") for n in range(EVENTS)]
    async with AsyncOutbox(url) as outbox:
        await outbox.migrate()
        async with outbox.transaction() as tx:
            await outbox.write_all(tx, written)
    with ReceiverServer().start() as server:
        async with (
            asyncio.timeout(100),
            AsyncRelay(url, sink_to(f"http://127.0.0.1:{server.port}/"), to="hooks") as relay,
        ):
            for kill in range(1, KILLS + 1):
                while len(await asyncio.to_thread(server.stored)) < kill * EVENTS // (KILLS + 1):
                    await asyncio.sleep(0.01)
                server.kill()
                await asyncio.to_thread(server.start)
            while len(await asyncio.to_thread(server.stored)) < EVENTS:
                await asyncio.sleep(0.05)
            await relay.drain()
        stored = server.stored()
    for key in {event.key for event in written}:
        assert [id for owner, id in stored if owner == key] == [event.id for event in written if event.key == key]
    assert len(stored) == EVENTS
