"""python -m benchmarks.poison: what a poison event at the head of a key does to the other keys.

A relay with a no-op sink delivers 200 events a second over 100 keys; commit to sink, p50 and p99. Then the same with
one key whose head fails again and again, with many events waiting behind it. Alternately, three times each.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import Sequence
from typing import Any

from relaybox import AsyncOutbox, AsyncRelay, Event, Settings
from relaybox.spi import Answer, Features, Message
from relaybox.testing.servers import PostgresServer


class Timed:
    name = "timed"
    features = Features(keyed_order=True, dedup=False)

    def __init__(self) -> None:
        self.latencies: list[float] = []

    async def open(self) -> None: ...
    async def probe(self) -> None: ...
    async def close(self) -> None: ...

    async def publish(self, messages: Sequence[Message]) -> Sequence[Answer]:
        now = time.perf_counter()
        self.latencies += [now - m.event.payload["at"] for m in messages if m.key != "bad"]
        return [OSError("indigestible") if m.key == "bad" else None for m in messages]


async def measure(url: str, *, followers: int, seconds: float, strategy: str) -> dict[str, float]:
    sink = Timed()
    settings = Settings().replaced({"order.strategy": strategy, "relay.retry.base": "100ms"})
    box = AsyncOutbox(url)
    await box.migrate()
    async with box, AsyncRelay(url, sink, to="x", settings=settings):
        if followers:
            for start in range(0, followers, 5000):
                async with box.transaction() as tx:
                    some = range(start, min(start + 5000, followers))
                    await box.write_all(tx, [Event("T", {"at": 0.0}, key="bad") for _ in some])
            while (await box.status()).retrying == 0:
                await asyncio.sleep(0.05)
            sink.latencies.clear()
        began = time.perf_counter()
        for number in range(int(seconds * 200)):
            await asyncio.sleep(max(0.0, began + number / 200 - time.perf_counter()))
            async with box.transaction() as tx:
                event = Event("T", {"at": time.perf_counter()}, key=f"good-{number % 100}")
                await box.write(tx, event)
        expected = int(seconds * 200)
        while len(sink.latencies) < expected:
            await asyncio.sleep(0.01)
    ordered = sorted(sink.latencies)
    return {"p50": ordered[len(ordered) // 2] * 1e3, "p99": ordered[int(len(ordered) * 0.99)] * 1e3}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--followers", type=int, default=20_000)
    parser.add_argument("--strategy", default="shards", choices=("shards", "advisory", "rows"))
    options = parser.parse_args()
    found: dict[str, list[dict[str, float]]] = {"healthy": [], "poisoned": []}
    with PostgresServer.from_wheel(durable=True) as server:
        for _ in range(3):
            for name, followers in (("healthy", 0), ("poisoned", options.followers)):
                run = measure(
                    server.create_database(), followers=followers, seconds=options.seconds, strategy=options.strategy
                )
                found[name].append(asyncio.run(run))
    report: dict[str, Any] = {"strategy": options.strategy, "followers": options.followers}
    for name, runs in found.items():
        report[name] = {key: round(statistics.median(run[key] for run in runs), 2) for key in ("p50", "p99")}
    report["p99 ratio"] = round(report["poisoned"]["p99"] / report["healthy"]["p99"], 2)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
