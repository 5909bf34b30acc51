"""LT-1…LT-7: does one write for many groups stay cheap?  Warm up, ramp up, sustain, sample, drain, analyse."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from datetime import timedelta

from relaybox import AsyncMaintainer
from relaybox.settings import Settings, TopicSettings
from relaybox.testing.servers import PostgresServer
from relaybox.topic import Topic

from .database import Database
from .processes import Process, worst
from .scale import Scale
from .verdicts import Verdict


@dataclass(frozen=True, slots=True)
class Load:
    name: str
    tracking: str
    groups: int
    rate: float


LOADS = (
    Load("LT-1", "bitmap", 4, 10_000),
    Load("LT-2", "bitmap", 8, 10_000),
    Load("LT-3", "bitmap", 16, 10_000),
    Load("LT-4", "bitmap", 32, 10_000),
    Load("LT-5", "offset", 16, 10_000),
    Load("LT-6", "offset", 64, 10_000),
    Load("LT-7", "offset", 100, 30_000),
)
FETCH_MS = 10.0
BLOAT = 20.0
WARM = RAMP = 300.0
HOUR = 3600.0


def run(load: Load, server: PostgresServer, scale: Scale) -> Verdict:
    rate = scale.rate(load.rate)
    about = f"{load.groups} groups, tracked by {load.tracking}, {rate:,.0f} events/s"
    verdict = Verdict(load.name, about, blocker=load.name != "LT-4")
    database = Database(server)
    # Cleanup is measured afterwards, by itself: what is written stays until then.
    topic = Topic.pub_sub("orders", tracking=load.tracking, retention=timedelta(days=1))  # type: ignore[arg-type]
    topic_id = database.topic(topic)
    database.scale_vacuum(scale.factor)
    readers = Process("reader", database.url, "orders", "latest", *(f"group-{n}" for n in range(load.groups)))
    readers.ready(120)
    phases = [scale.seconds(seconds) for seconds in (WARM, RAMP, HOUR)]
    writer = Process("writer", database.url, "orders", rate, *phases)
    bloat: dict[str, float] = {}
    time.sleep(phases[0] + phases[1])
    sustained, wal = time.time(), database.wal()
    sample = max(5.0, scale.seconds(60))
    while time.time() < sustained + phases[2] - sample:
        time.sleep(sample)
        for name, dead in database.bloat().items():
            bloat[name] = max(bloat.get(name, 0.0), dead)
    wrote = writer.result(timeout=phases[2] + 120)
    ended, wal = time.time(), database.wal() - wal
    lines = readers.since(sustained)
    behind = wrote["written"] * load.groups - sum(readers.delivered.values())
    drained = _drain(readers, int(wrote["written"]), patience=60)
    readers.stop()

    verdict.check("writer keeps the rate", "≥ 95 %", f"{wrote['kept_pace']:.1%}", wrote["kept_pace"] >= 0.95)
    fetch = worst(lines, "fetch")
    verdict.check("fetch query p95", f"< {FETCH_MS:g} ms", _ms(fetch), fetch is not None and fetch < FETCH_MS)
    dead = max(bloat.values(), default=0.0)
    verdict.check("dead rows in any table over 10 MB", f"< {BLOAT:g} %", f"{dead:.1f} %", dead < BLOAT)
    per_second = wal / (ended - sustained)
    share = per_second / scale.disk
    verdict.check("WAL of what the disk takes", "< 50 %", f"{share:.1%} ({per_second / 1e6:.1f} MB/s)", share < 0.5)
    verdict.check("all delivered after the writer stopped", "≤ 60 s", _seconds(drained), drained is not None)
    deleted, took = asyncio.run(_clean(database.url, topic))
    speed = deleted / took if took else 0.0
    verdict.check("cleanup is faster than production", f"> {rate:,.0f} /s", f"{speed:,.0f} /s", speed > rate)
    delay = worst(lines, "delay")
    verdict.notes += [
        f"{wrote['written']:,.0f} events, {wrote['written'] * load.groups:,.0f} deliveries; {behind:,.0f} deliveries "
        f"behind when the writer stopped; whole claims p95 {_ms(worst(lines, 'claim'))}, "
        f"write to handler p95 {_ms(delay)}",
        f"{wal / max(1, wrote['written'] * phases[2] / sum(phases)) / 1000:.2f} kB of WAL per event while sustained",
    ]
    assert deleted == wrote["written"] or not verdict.passed, (deleted, wrote, topic_id)
    return verdict


def _drain(readers: Process, written: int, patience: float) -> float | None:
    start = time.time()
    while time.time() < start + patience:
        if readers.delivered and all(count >= written for count in readers.delivered.values()):
            return time.time() - start
        time.sleep(0.2)
    return None


async def _clean(url: str, topic: Topic) -> tuple[int, float]:
    """Everything is past its retention now."""
    settings = Settings(topics=TopicSettings(cleanup_budget="2m", cleanup_batch=50_000))
    maintainer = AsyncMaintainer(url, jobs=("cleanup",), settings=settings)
    await maintainer._db.run(maintainer.store.configure(topic.with_options(retention=timedelta(microseconds=1)), None))
    start = time.monotonic()
    done = await maintainer.once()
    return done.done, time.monotonic() - start


def _ms(value: float | None) -> str:
    return "not measured" if value is None else f"{value:.1f} ms"


def _seconds(value: float | None) -> str:
    return "no" if value is None else f"{value:.1f} s"
