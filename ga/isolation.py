"""X-04: a topic with much traffic beside one with little, in one database: the small one must not feel it."""

from __future__ import annotations

import time

from relaybox import Outbox
from relaybox.testing.servers import PostgresServer
from relaybox.topic import Topic

from .database import Database
from .processes import Process, worst
from .scale import Scale
from .verdicts import Verdict


def run(server: PostgresServer, scale: Scale) -> Verdict:
    large, small, seconds = scale.rate(10_000), max(10.0, scale.rate(10)), scale.seconds(3600)
    verdict = Verdict("X-04", f"{large:,.0f} events/s to 10 groups beside {small:,.0f} events/s to 2", blocker=False)
    database = Database(server)
    for name in ("high", "low"):
        database.topic(Topic.pub_sub(name))
    readers = {
        "high": Process("reader", database.url, "high", "latest", *(f"group-{n}" for n in range(10))),
        "low": Process("reader", database.url, "low", "latest", "one", "two"),
    }
    for process in readers.values():
        process.ready()
    writers = [
        Process("writer", database.url, "high", large, 0, 0, seconds),
        Process("writer", database.url, "low", small, 0, 0, seconds),
    ]
    start = time.time()
    wrote = [writer.result(timeout=seconds + 60) for writer in writers]
    with Outbox(database.url) as outbox:
        lag = max((outbox.topics.group("low", name).lag().oldest for name in ("one", "two")), key=_number)
    lines = readers["low"].since(start)
    for process in readers.values():
        process.stop()
    verdict.check("large topic is written", "≥ 95 %", f"{wrote[0]['kept_pace']:.1%}", wrote[0]["kept_pace"] >= 0.95)
    fetch, delay = worst(lines, "fetch"), worst(lines, "delay")
    verdict.check("small topic, fetch p95", "< 50 ms", f"{fetch or 0:.1f} ms", fetch is not None and fetch < 50)
    verdict.check(
        "small topic, write to handler p95", "< 10 s", f"{delay or 0:.0f} ms", delay is not None and delay < 10_000
    )
    verdict.check("small topic, oldest unread at the end", "< 10 s", f"{_number(lag):.1f} s", _number(lag) < 10)
    return verdict


def _number(age: object) -> float:
    return age.total_seconds() if age is not None else 0.0  # type: ignore[attr-defined]
