"""A member in a process of its own:  python -m topics.group_child URL FILE HOW

Notes every payload in FILE. HOW: `poison` ends the process without a word at the payload "poison"; `fork` forks while
the group runs, and the child writes an event with what it inherited.
"""

from __future__ import annotations

import asyncio
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from relaybox import AsyncOutbox, Event, Listeners, Retry, Settings, StartFrom
from relaybox.types import DeliverySettings

SETTINGS = Settings(
    delivery=DeliverySettings(instance_ttl="300ms", lease="600ms", retry=Retry(attempts=4, base="5ms", max="20ms"))
)


async def main(url: str, file: Path, how: str) -> None:
    log = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    async def handle(event: Event) -> None:
        if event.payload == "poison":
            os._exit(9)
        os.write(log, f"{event.payload}\n".encode())

    async def handle_all(events: Sequence[Event]) -> None:
        for event in events:
            await handle(event)

    batches: Listeners = Listeners()
    batches.on_batch("Placed", size=100)(handle_all)
    box = AsyncOutbox(url, settings=SETTINGS)
    group = box.topics.group("orders", "g", start=StartFrom.earliest(), on_exhausted="skip")
    async with group.deliver(batches if how == "poison-batch" else handle) as service:
        os.write(log, b"started\n")
        if how == "fork":
            await service.drain()
            if os.fork() == 0:
                write_from_child(box)
        while not file.with_suffix(".stop").exists():
            await asyncio.sleep(0.02)
    await box.close()


def write_from_child(box: AsyncOutbox) -> None:
    """In a loop of its own: the parent's is not ours to run."""

    async def write() -> None:
        async with box.transaction() as tx:
            await box.write(tx, Event("Placed", "from the child", topic="orders"))

    asyncio._set_running_loop(None)
    try:
        asyncio.new_event_loop().run_until_complete(write())
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        os._exit(0)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3]))
