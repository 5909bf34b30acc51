"""A producer in a process of its own:  python -m ga.writer URL TOPIC RATE WARM RAMP SUSTAIN

A tenth of the rate, then rising to it, then all of it; a transaction every 20 ms. At the end a line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

from relaybox import AsyncOutbox, Event, Settings
from relaybox.types import DeliverySettings

SLOT = 0.02
PAYLOAD = {"order": "4711", "lines": ["a" * 40, "b" * 40, "c" * 40], "total": 129.95}


def due(at: float, rate: float, warm: float, ramp: float) -> float:
    """Events that should be written after `at` seconds."""
    total = 0.1 * rate * min(at, warm)
    rising = min(max(at - warm, 0.0), ramp)
    if ramp:
        total += rising * rate * (0.1 + 0.9 * rising / ramp / 2)
    return total + rate * max(at - warm - ramp, 0.0)


async def produce(url: str, topic: str, rate: float, warm: float, ramp: float, sustain: float) -> dict[str, float]:
    written, late, start = 0, 0.0, time.monotonic()
    async with AsyncOutbox(url, settings=Settings(delivery=DeliverySettings(notify=True))) as outbox:
        while (at := time.monotonic() - start) < warm + ramp + sustain:
            count = int(due(at, rate, warm, ramp)) - written
            if count > 0:
                events = [
                    Event("Placed", PAYLOAD, key=f"order-{(written + n) % 5000}", topic=topic) for n in range(count)
                ]
                async with outbox.transaction() as tx:
                    await outbox.write_all(tx, events)
                written += count
            late = max(late, time.monotonic() - start - at - SLOT)
            await asyncio.sleep(max(0.0, SLOT - (time.monotonic() - start - at)))
    seconds = time.monotonic() - start
    wanted = due(warm + ramp + sustain, rate, warm, ramp)
    return {"written": written, "seconds": seconds, "kept_pace": written / wanted, "late": late}


if __name__ == "__main__":
    url, topic, *numbers = sys.argv[1:]
    print(json.dumps(asyncio.run(produce(url, topic, *map(float, numbers)))))
