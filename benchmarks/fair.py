"""What fair claims cost, and what they give: one tenant with a million waiting events beside 99 with ten each.

    python -m benchmarks.fair                                  # PostgreSQL; a private server
    python -m benchmarks.fair --engine sqlite --waiting 200000
    python -m benchmarks.fair --engine mariadb --waiting 200000

The events of the one are written a hundred at a time, so that each waits by itself; with --batches a thousand at a
time, which PostgreSQL keeps as batches. One process delivers to a handler that does nothing. While it works on them
the other 990 events are committed; told are the seconds from that commit until the last of them was handled, how many
events of the one were handled meanwhile, and the events per second of the whole. In turn with fair claims and without,
each time in a fresh database.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path
from statistics import median
from typing import NamedTuple, cast

from relaybox import AsyncOutbox, Event, Settings
from relaybox.settings import Fair
from relaybox.testing.servers import require
from relaybox.types import DeliverySettings

SERVERS = {"postgres": "postgres-wheel", "mariadb": "mariadb"}
OTHERS = [f"tenant-{n:02}" for n in range(99)] * 10


class Run(NamedTuple):
    waited: float  # seconds until the last of the others was handled
    meanwhile: int  # events of the one
    rate: float  # events a second, of all


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fair", description=__doc__)
    parser.add_argument("--engine", choices=("postgres", "sqlite", "mariadb"), default="postgres")
    parser.add_argument("--waiting", type=int, default=1_000_000, help="events of the one tenant")
    parser.add_argument("--batches", action="store_true", help="written a thousand at a time")
    parser.add_argument("--repeat", type=int, default=2)
    return parser.parse_args(argv)


async def written(box: AsyncOutbox, waiting: int, at_once: int) -> None:
    while waiting > 0:
        async with box.transaction() as tx:
            for _ in range(max(10_000 // at_once, 1)):
                count = min(at_once, waiting)
                await box.write_all(tx, [Event("Placed", {"n": n}, tenant="one") for n in range(count)])
                waiting -= count


async def measured(url: str, fair: Fair, waiting: int, at_once: int) -> Run:
    settings = Settings(delivery=DeliverySettings(batch=500, cold_queue=4000, fair=fair))
    async with (
        aclosing(Closing(AsyncOutbox(url, settings=settings))) as ours,
        aclosing(Closing(AsyncOutbox(url, settings=settings))) as theirs,
    ):
        await ours.box.migrate()
        await written(theirs.box, waiting, at_once)
        handled = others = meanwhile = 0
        first = last = done = 0.0
        started, all_of_them = asyncio.Event(), asyncio.Event()

        async def handle(event: Event) -> None:
            nonlocal handled, others, meanwhile, first, last, done
            done = time.perf_counter()
            first = first or done
            handled += 1
            if event.tenant != "one":
                others, last = others + 1, done
            elif committed and others < len(OTHERS):
                meanwhile += 1
            if handled == 1_000:
                started.set()
            if handled == waiting + len(OTHERS):
                all_of_them.set()

        committed = 0.0
        async with ours.box.deliver(handle):
            await started.wait()
            async with theirs.box.transaction() as tx:
                for start in range(0, len(OTHERS), 99):
                    await theirs.box.write_all(
                        tx, [Event("Placed", {}, tenant=one) for one in OTHERS[start : start + 99]]
                    )
            committed = time.perf_counter()
            await all_of_them.wait()
        return Run(last - committed, meanwhile, handled / (done - first))


class Closing:
    def __init__(self, box: AsyncOutbox) -> None:
        self.box = box

    async def aclose(self) -> None:
        await self.box.close()


def database(engine: str, folder: str) -> str:
    if engine == "sqlite":
        return f"sqlite:///{Path(folder) / 'bench.db'}"
    return str(require(SERVERS[engine]).create_database())  # type: ignore[attr-defined]


def main() -> None:
    options = arguments()
    runs: dict[str, list[Run]] = {"off": [], "tenant": []}
    print(f"{options.engine}, {options.waiting:,} events of one tenant, {len(OTHERS)} of 99 others")
    for repeat in range(options.repeat):
        for fair in list(runs) if repeat % 2 == 0 else list(runs)[::-1]:
            with tempfile.TemporaryDirectory() as folder:
                url = database(options.engine, folder)
                at_once = 1_000 if options.batches else 100
                run = asyncio.run(measured(url, cast(Fair, fair), options.waiting, at_once))
            runs[fair].append(run)
            print(
                f"fair={fair:<7} others served after {run.waited:7.2f} s, {run.meanwhile:>9,} events of the one "
                f"meanwhile, {run.rate:>8,.0f} events/s",
                flush=True,
            )
    ratio = median(run.rate for run in runs["tenant"]) / median(run.rate for run in runs["off"])
    print(f"throughput with fair claims: {ratio:.2f} of that without")


if __name__ == "__main__":
    main()
