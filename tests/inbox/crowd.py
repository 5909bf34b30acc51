"""One of many workers on an inbox, as a process of its own:

    python crowd.py URL sync|async|batch JSON

JSON: {"attempts": 4} for retries, {"order": "skip"} for an ordered inbox that goes on past dead letters,
{"killers": {"7": "exit"}} for what a message's number does to the process (exit, kill), {"notes": FILE} for where it
says so first.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from inbox.effects import QUICK, asay, say, text_of
from inbox.kit import agreed, serving
from relaybox import AsyncInbox, Event
from relaybox.types import Order

# Small claims, so that everybody gets some; leases that end before a slow handler does.
SETTINGS = QUICK.replaced(
    {"delivery.batch": 4, "delivery.instance_ttl": timedelta(seconds=0.6), "delivery.lease": timedelta(seconds=1.2)}
)


class Crowd:
    def __init__(self, url: str, kind: str, given: dict[str, Any]) -> None:
        self._url = url
        self._kind = kind
        self._settings = SETTINGS.replaced({"delivery.retry.attempts": given["attempts"]})
        self._killers = given.get("killers", {})
        self._notes = given.get("notes")
        self._order = Order(dead="skip") if given.get("order") else None

    def run(self) -> None:
        if self._kind == "sync":
            stop = threading.Event()
            signal.signal(signal.SIGTERM, lambda *_: stop.set())
            with agreed(self._url, order=self._order) as inbox, serving(inbox, self._handle, settings=self._settings):
                print("ready", flush=True)
                stop.wait()
        else:
            asyncio.run(self._arun())

    async def _arun(self) -> None:
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        agreed(self._url, order=self._order).close()
        inbox = AsyncInbox(self._url)
        batch = 5 if self._kind == "batch" else 1
        async with serving(inbox, self._ahandle, settings=self._settings, batch=batch):
            print("ready", flush=True)
            await stop.wait()
        await inbox.close()

    def _handle(self, event: Event, handle: Any) -> None:
        say(handle, text_of(event, os.getpid()))
        self._perhaps_die(event)

    async def _ahandle(self, event: Event, handle: Any) -> None:
        await asay(handle, text_of(event, os.getpid()))
        if event.payload.get("slow"):
            await asyncio.sleep(1.5 * SETTINGS.delivery.lease.total_seconds())
        self._perhaps_die(event)

    def _perhaps_die(self, event: Event) -> None:
        number = str(event.payload["n"])
        how = self._killers.get(number)
        if how is None:
            return
        with Path(self._notes).open("a") as notes:
            notes.write(f"{number}\n")
        if how == "exit":
            os._exit(7)
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    Crowd(sys.argv[1], sys.argv[2], json.loads(sys.argv[3])).run()
