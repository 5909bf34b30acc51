"""A process to be killed: reads some messages, acknowledges a part of them, says which, and waits for its end.

It gets its task as one line of JSON, because a URL may have a password in it.
"""

from __future__ import annotations

import asyncio
import json
import sys
from importlib import import_module
from typing import Any

from ...brokers.spi import Incoming, Source


async def read(task: dict[str, Any]) -> None:
    source: Source = getattr(import_module(task["module"]), task["name"]).from_url(task["url"], {})
    await source.open()
    found: list[Incoming] = []
    while len(found) < task["count"]:
        found += await source.receive(1, 1.0)
        if len(found) == task["acknowledge"]:
            await source.acknowledge(found)
    acknowledged = [message.headers["event_id"] for message in found[: task["acknowledge"]]]
    print(json.dumps(acknowledged), flush=True)  # noqa: T201
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(read(json.loads(sys.stdin.readline())))
