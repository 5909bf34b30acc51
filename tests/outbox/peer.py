"""A delivering process of its own, for tests that kill or pause one.

    python -m outbox.peer URL ROLE FILE TTL

Appends one line per delivery (`id attempt`) to FILE. An event whose payload says {"hold": true} is kept by the
listener for ever; FILE.go ends that. Says `ready` when it delivers.
"""

from __future__ import annotations

import asyncio
import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

from kit import WAYS, delivering
from relaybox import AsyncOutbox, Event, Listeners, Settings
from relaybox.facts import ClaimLost, Fact
from relaybox.types import DeliverySettings


async def main(url: str, role: str, file: str, ttl: str) -> None:
    settings = Settings(delivery=DeliverySettings(instance_ttl=timedelta(seconds=float(ttl)), lease="5m", workers=4))
    listeners = Listeners()
    log = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def observe(fact: Fact) -> None:
        if isinstance(fact, ClaimLost):
            os.write(log, f"lost {fact.count}\n".encode())

    async def listen(event: Event, delivery: Any) -> None:
        os.write(log, f"{event.id} {delivery.attempts}\n".encode())
        while event.payload.get("hold") and not Path(f"{file}.go").exists():
            await asyncio.sleep(0.02)

    listeners.on("Happened")(listen)
    async with delivering(AsyncOutbox, url, listeners, settings=settings, observers=[observe], **WAYS[role]):
        os.write(1, b"ready\n")
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:5]))
