"""`relaybox bench`: what this database does per second, in tables that are made for it and dropped."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from ..drivers import open_sync, parse
from ..errors import ConfigError
from ..event import Event
from ..outbox import Outbox
from ..store.names import Tables
from ..store.outbox import open_store
from . import options as o
from .connect import Target, target_of
from .output import console, emit, table

SCRATCH = "relaybox_bench"
BATCH = 1_000
BACKLOG = 20_000
COMMITS = 200
PAYLOAD = {"order": 7, "items": ["a", "b", "c"], "total": "19.90"}


def bench(
    context: typer.Context,
    seconds: Annotated[float, typer.Option(metavar="N", min=0.1, max=60, help="how long each kind of write")] = 3.0,
    json: o.Json = False,
) -> None:
    """Measure writing and delivering on this database, one process and one writer. In a schema of its own (on SQLite a
    file beside the database) that is dropped in the end; your own tables are not touched."""
    with _scratch(target_of(context)) as box:
        figures = {
            "write_transactions_per_second": round(_rate(lambda: _write(box, 1), seconds)),
            "batch_events_per_second": round(BATCH * _rate(lambda: _write(box, BATCH), seconds)),
            "delivered_per_second": round(_delivered(box)),
            **_latency(box),
        }
    if json:
        emit(figures, schema="bench/1")
        return
    rows = [
        ("one event in a transaction", f"{figures['write_transactions_per_second']:,} transactions/s"),
        (f"{BATCH:,} events in a transaction", f"{figures['batch_events_per_second']:,} events/s"),
        ("a backlog delivered", f"{figures['delivered_per_second']:,} events/s"),
        ("from commit to listener", f"{figures['latency_p50_ms']} ms median, {figures['latency_p99_ms']} ms p99"),
    ]
    console().print(table(None, ("", "one process, one writer"), rows))


@contextmanager
def _scratch(target: Target) -> Iterator[Outbox]:
    """An outbox of its own, gone in the end."""
    url = target.needed_url
    if parse(url).dialect == "sqlite":
        beside = Path(parse(url).bare).parent if not parse(url).in_memory else None
        with (
            TemporaryDirectory(prefix=SCRATCH, dir=beside) as folder,
            closing(Outbox(f"sqlite:///{folder}/bench.db", settings=target.settings)) as box,
        ):
            box.migrate()
            yield box
        return
    with closing(open_sync(url)) as database:
        store = open_store(database.dialect, Tables(schema=SCRATCH))
        if database.run(store.has_namespace()):
            raise ConfigError(
                f"expected no schema {SCRATCH!r}: another bench runs, or one was broken off; if so, drop the schema"
            )
        try:
            with closing(Outbox(url, schema=SCRATCH, settings=target.settings)) as box:
                box.migrate()
                yield box
        finally:
            database.run(store.drop_namespace())


def _write(box: Outbox, count: int) -> None:
    with box.transaction() as tx:
        box.write_all(tx, [Event("relaybox.bench", PAYLOAD) for _ in range(count)])


def _rate(call: Callable[[], None], seconds: float) -> float:
    call()  # connections are made, statements are prepared
    began, calls = time.perf_counter(), 0
    while (spent := time.perf_counter() - began) < seconds:
        call()
        calls += 1
    return calls / spent


def _delivered(box: Outbox) -> float:
    """Of a backlog, from the first event to the last."""
    while (waits := box.status().due) < BACKLOG:
        _write(box, BATCH)
    times: list[float] = []

    async def deliver(event: Event[Any]) -> None:
        times.append(time.perf_counter())

    with box.deliver(deliver) as service:
        service.drain()
    return waits / (times[-1] - times[0])


def _latency(box: Outbox) -> dict[str, float]:
    arrived: SimpleQueue[float] = SimpleQueue()
    took = []

    async def deliver(event: Event[Any]) -> None:
        arrived.put(time.perf_counter())

    with box.deliver(deliver):
        for _ in range(COMMITS):
            _write(box, 1)
            committed = time.perf_counter()
            took.append(max(0.0, arrived.get() - committed) * 1000)
    return {
        "latency_p50_ms": round(statistics.median(took), 2),
        "latency_p99_ms": round(statistics.quantiles(took, n=100)[98], 2),
    }
