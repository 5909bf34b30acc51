"""Which tracking fits a topic, from what is measured.

    print(outbox.topics.advise("orders"))

The limits are those of the mode guide. `audit`: it must be known of every event that every group has acknowledged it,
which only marks can say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from math import ceil
from typing import Any

from ..drivers.script import Script, commit, look
from ..store.topics import TopicRow
from ..store.topics.completion import Counters
from ..topic import Tracking
from .context import TopicContext

WINDOW = timedelta(seconds=1)
PROBES = 20

FEW_GROUPS, MANY_GROUPS, BITS = 8, 16, 64
QUIET, BUSY = 1_000, 10_000  # events per second
BLOAT = 0.20
FEW_MARKS = 10_000  # of fewer the share says nothing
WAL_SHARE = 0.50
FETCH = 0.010
ACK_ROWS = 1_000_000_000
COMPLETION_LAG = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Measures:
    """None: it could not be measured."""

    events_per_second: float
    groups: int
    acks_per_second: float | None
    bloat: float | None  # share of dead rows among the marks
    wal_share: float | None  # of all bytes the server wrote and read
    cleanup_behind: bool | None  # deletes fewer than are written
    fetch_p95: float  # seconds
    oldest_open: timedelta | None
    ack_rows: int | None


@dataclass(frozen=True, slots=True)
class Advice:
    """Which tracking fits a topic. Printed, it is a text for people."""

    topic: str
    tracking: Tracking  # that it has
    fits: Tracking  # that it should have
    why: Sequence[str]
    warnings: Sequence[str]
    measures: Measures

    @property
    def move(self) -> bool:
        """Whether another tracking fits better."""
        return self.fits != self.tracking

    def __str__(self) -> str:
        verdict = f"move it to {self.fits!r}" if self.move else f"{self.tracking!r} fits"
        lines = [f"topic {self.topic!r}: {verdict}", *(f"  because {reason}" for reason in self.why)]
        return "\n".join([*lines, *(f"  watch: {warning}" for warning in self.warnings)])


def decide(topic: str, tracking: Tracking, measures: Measures, *, audit: bool = False) -> Advice:
    """Pure, so that it can be asked what if."""
    fits, why = _queue(measures) if tracking == "rows" else _log(tracking, measures, audit)
    return Advice(topic, tracking, fits, why, _warnings(tracking, measures), measures)


def _queue(measures: Measures) -> tuple[Tracking, list[str]]:
    if measures.events_per_second > QUIET:
        return "offset", [f"{measures.events_per_second:,.0f} events/s: a log writes nothing per event that is done"]
    return "rows", [f"{measures.events_per_second:,.0f} events/s is little; rows show the state of each event"]


def _log(tracking: Tracking, measures: Measures, audit: bool) -> tuple[Tracking, list[str]]:
    groups, rate = measures.groups, measures.events_per_second
    marks: Tracking = "bitmap" if groups <= BITS else "acks"
    if audit:
        return marks, [
            f"every ack must be known; {groups} groups {'fit' if marks == 'bitmap' else 'do not fit'} a bitmap"
        ]
    if groups > MANY_GROUPS:
        return "offset", [f"{groups} groups: each event would be marked {groups} times (limit {MANY_GROUPS})"]
    if rate > BUSY:
        return "offset", [f"{rate:,.0f} events/s (limit {BUSY:,}): marks would be {rate * groups:,.0f} updates/s"]
    if tracking == "offset":
        return "offset", ["it costs least, and nobody asked for each ack to be known"]
    broken = _broken(measures)
    if broken:
        return "offset", broken
    return marks, [f"{groups} groups and {rate:,.0f} events/s are within what marks can bear"]


def _broken(measures: Measures) -> list[str]:
    found = []
    if measures.bloat is not None and measures.bloat >= BLOAT:
        found.append(f"{measures.bloat:.0%} of the marks are dead rows (limit {BLOAT:.0%})")
    if measures.wal_share is not None and measures.wal_share >= WAL_SHARE and (measures.acks_per_second or 0) >= QUIET:
        found.append(f"WAL is {measures.wal_share:.0%} of the I/O (limit {WAL_SHARE:.0%})")
    if measures.cleanup_behind:
        found.append("cleanup deletes fewer events than are written")
    if measures.fetch_p95 >= FETCH:
        found.append(f"a page takes {measures.fetch_p95 * 1000:.1f} ms to read, p95 (limit {FETCH * 1000:.0f} ms)")
    return found


def _warnings(tracking: Tracking, measures: Measures) -> list[str]:
    found = []
    if tracking in ("bitmap", "acks"):
        if FEW_GROUPS < measures.groups <= MANY_GROUPS:
            found.append(f"{measures.groups} groups: acceptable with marks, from {MANY_GROUPS + 1} on use 'offset'")
        if QUIET <= measures.events_per_second <= BUSY:
            found.append(f"{measures.events_per_second:,.0f} events/s: above {BUSY:,} use 'offset'")
        if measures.oldest_open is not None and measures.oldest_open > COMPLETION_LAG:
            found.append(f"the oldest open event is {measures.oldest_open} old")
        if measures.ack_rows is not None and measures.ack_rows > ACK_ROWS:
            found.append(f"{measures.ack_rows:,} acks of open events are kept")
        missing = [name for name in ("bloat", "wal_share", "cleanup_behind") if getattr(measures, name) is None]
        if missing:
            found.append(f"not measured: {', '.join(missing)}")
    return found


def advise(context: TopicContext[Any], topic: str, *, audit: bool = False) -> Script[Advice]:
    row = yield from commit(context.known(topic))
    if row.topic.tracking == "rows":
        rate = yield from _rows_rate(context, row)
        return decide(topic, "rows", Measures(rate, 1, None, None, None, None, 0.0, None, None), audit=audit)
    now = context.clock.database_now()
    first = yield from commit(context.store.counters(row, now))
    io = yield from look(context.store.io_bytes())
    took = []
    for shard in range(PROBES):
        before = context.clock.monotonic()
        yield from look(context.store.fetch_probe(row, shard))
        took.append(context.clock.monotonic() - before)
    yield WINDOW.total_seconds()
    last = yield from commit(context.store.counters(row, now))
    io_after = yield from look(context.store.io_bytes())
    measures = between(first, last, io, io_after, sorted(took)[ceil(0.95 * len(took)) - 1])
    return decide(topic, row.topic.tracking, measures, audit=audit)


def between(
    first: Counters, last: Counters, io: tuple[int, int] | None, io_after: tuple[int, int] | None, fetch_p95: float
) -> Measures:
    seconds = max((last.at - first.at).total_seconds(), 1e-6)
    rate = max((last.numbers - first.numbers) / seconds, last.tick_rate or 0.0)
    acks = None if first.acks is None or last.acks is None else (last.acks - first.acks) / seconds
    rows = (last.dead_marks or 0) + (last.live_marks or 0)
    wal = pages = 0
    if io is not None and io_after is not None:
        wal, pages = io_after[0] - io[0], io_after[1] - io[1]
    inserted, deleted = last.inserted - first.inserted, last.deleted - first.deleted
    return Measures(
        events_per_second=rate,
        groups=last.groups,
        acks_per_second=acks,
        bloat=(last.dead_marks or 0) / rows if rows >= FEW_MARKS else None,
        wal_share=wal / (wal + pages) if wal + pages > 0 else None,
        cleanup_behind=deleted < inserted if deleted else None,  # between two sweeps nothing can be said
        fetch_p95=fetch_p95,
        oldest_open=last.oldest_open,
        ack_rows=last.ack_rows,
    )


def _rows_rate(context: TopicContext[Any], row: TopicRow) -> Script[float]:
    first = yield from commit(context.store.queue_numbers(row))
    began = context.clock.monotonic()
    yield WINDOW.total_seconds()
    last = yield from commit(context.store.queue_numbers(row))
    return float((last - first) / max(context.clock.monotonic() - began, 1e-6))
