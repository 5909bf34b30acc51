"""Groups in a process of its own:  python -m ga.reader URL TOPIC START GROUP…

Every second a line of JSON: events delivered so far to each group, and since the last line the p95 of the queries that
fetch, of whole claims, and of the time from write to handler, in milliseconds. Ends with a signal.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
import time
from collections.abc import Sequence
from typing import Any

from relaybox import AsyncOutbox, Event, Listeners, Settings, StartFrom
from relaybox.drivers.asyncpg import AsyncpgConnection
from relaybox.facts import Claimed, Fact
from relaybox.op import Copy, Result, Statement
from relaybox.types import DeliverySettings

SETTINGS = Settings(delivery=DeliverySettings(instance_ttl="2s", lease="10s", stop_timeout="5s"))


def p95(values: list[float]) -> float | None:
    return sorted(values)[int(len(values) * 0.95)] if values else None


class Readers:
    def __init__(self) -> None:
        self.fetches: list[float] = []
        self.claims: list[float] = []
        self.delays: list[float] = []
        self.counts: dict[str, int] = {}

    def saw(self, fact: Fact) -> None:
        if isinstance(fact, Claimed):
            self.claims.append(fact.took * 1000)

    def watch_queries(self) -> None:
        """How long each query of a claim takes on its connection: the wait for a free one is not the query's."""
        execute = AsyncpgConnection.execute

        async def timed(connection: AsyncpgConnection, statement: Statement | Copy) -> Result:
            start = time.perf_counter()
            result = await execute(connection, statement)
            if isinstance(statement, Statement) and statement.query.name.startswith("topic.range."):
                self.fetches.append((time.perf_counter() - start) * 1000)
            return result

        AsyncpgConnection.execute = timed  # type: ignore[method-assign]

    def handler(self, group: str) -> Any:
        self.counts[group] = 0

        async def handle(events: Sequence[Event]) -> None:
            self.counts[group] += len(events)
            self.delays.append((time.time() - events[0].occurred_at.timestamp()) * 1000)

        return handle

    def line(self) -> str:
        fetches, self.fetches = self.fetches, []
        claims, self.claims = self.claims, []
        delays, self.delays = self.delays, []
        seen = {"at": time.time(), "counts": self.counts, "fetch": p95(fetches), "fetches": len(fetches)}
        return json.dumps(seen | {"claim": p95(claims), "delay": p95(delays)})


async def read(url: str, topic: str, start: str, names: list[str]) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    readers = Readers()
    readers.watch_queries()
    async with (
        AsyncOutbox(url, settings=SETTINGS, observers=[readers.saw]) as outbox,
        contextlib.AsyncExitStack() as open_,
    ):
        for name in names:
            listeners: Listeners = Listeners()
            listeners.on_batch("Placed", size=500)(readers.handler(name))
            begin = StartFrom.earliest() if start == "earliest" else StartFrom.latest()
            await open_.enter_async_context(outbox.topics.group(topic, name, start=begin).deliver(listeners))
        print("ready", flush=True)
        while not stop.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), 1.0)
            print(readers.line(), flush=True)


if __name__ == "__main__":
    asyncio.run(read(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:]))
