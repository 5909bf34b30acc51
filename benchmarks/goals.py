"""What relaybox promises of its relays, topics and inboxes, and whether a run kept it: one line for each figure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks.ordered import ONE_WORKER
from benchmarks.report import Row
from benchmarks.systems import relaybox_system, relaybox_topic

OURS, QUEUE = relaybox_system.NAME, relaybox_topic.NAME


class Run:
    """The rows of a run, by workload and system."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows: Mapping[tuple[str, str], Row] = {(row["workload"], row["system"]): row for row in rows}

    def median(self, workload: str, system: str = OURS) -> float | None:
        row = self._rows.get((workload, system))
        return row["median"] if row else None

    def extra(self, workload: str, name: str, system: str = OURS) -> float | None:
        row = self._rows.get((workload, system))
        return median(extra[name] for extra in row["extra"]) if row and row["extra"] else None

    def best_peer(self, workload: str, *, shared: bool = True) -> tuple[str, float] | None:
        """Its name and figure; what is written by hand here is no peer. Two processes can share a queue of most."""
        peers = {
            system: float(row["median"])
            for (of, system), row in self._rows.items()
            if of == workload and row["median"] and not system.startswith((OURS, "bare"))
        }
        if shared:
            peers.pop("pgq", None)
        return max(peers.items(), key=lambda peer: peer[1]) if peers else None

    def times_the_best_peer(self, workload: str, system: str = QUEUE, *, shared: bool = True) -> float | None:
        ours, best = self.median(workload, system), self.best_peer(workload, shared=shared)
        return ours / best[1] if ours and best else None

    def ratio(self, figure: tuple[str, str], to: tuple[str, str]) -> float | None:
        """Of two figures, each named by workload and system."""
        above, below = self.median(*figure), self.median(*to)
        return above / below if above and below else None


@dataclass(frozen=True)
class Goal:
    what: str
    figure: Callable[[Run], float | None]
    at_least: float | None = None
    at_most: float | None = None

    def line(self, run: Run) -> dict[str, Any] | None:
        """None where the run did not measure it."""
        figure = self.figure(run)
        if figure is None:
            return None
        line: dict[str, Any] = {"goal": self.what, "figure": round(figure, 3)}
        if self.at_least is not None:
            return {**line, "bound": f"≥ {self.at_least:,}", "kept": figure >= self.at_least}
        assert self.at_most is not None
        return {**line, "bound": f"≤ {self.at_most:,}", "kept": figure <= self.at_most}


def _of(what: str, workload: str, system: str = OURS, **bound: float) -> Goal:
    return Goal(what, lambda run: run.median(workload, system), **bound)


def _of_bare(what: str, workload: str, system: str = OURS) -> Goal:
    return Goal(f"{what}: of a bare INSERT", lambda run: run.extra(workload, "of_bare", system), at_least=0.9)


def _ratio(what: str, figure: tuple[str, str], to: tuple[str, str], at_least: float) -> Goal:
    return Goal(what, lambda run: run.ratio(figure, to), at_least=at_least)


ORDERED, ORDERED_4 = ("ordered_drain_1", OURS), ("ordered_drain_4", OURS)

GOALS: Sequence[Goal] = (
    _of("relay to Kafka in order, one process: events/s", "relay_kafka_1", at_least=20_000),
    _ratio("ordered drain, one process: times one plain worker", ORDERED, ("ordered_drain_1", "per_key_worker"), 4),
    _ratio(
        "ordered drain, four processes: times four plain workers", ORDERED_4, ("ordered_drain_4", "per_key_worker"), 4
    ),
    _ratio("ordered drain, one process: four workers, times one", ORDERED, ("ordered_drain_1", ONE_WORKER), 1),
    _ratio("ordered drain, four processes: times one", ORDERED_4, ORDERED, 1),
    _of("ordered claims at 10,000 rows of 3,000 keys: ms p95", "ordered_claim_p95", at_most=10),
    _of("queue topic by offset, one process: events/s", "drain_1", QUEUE, at_least=100_000),
    _ratio("queue topic by offset, two processes: times one", ("drain_2", QUEUE), ("drain_1", QUEUE), 1),
    Goal("… times the best peer", lambda run: run.times_the_best_peer("drain_1", shared=False), at_least=3),
    Goal("… times the best that processes can share", lambda run: run.times_the_best_peer("drain_1"), at_least=3),
    Goal("… in two processes", lambda run: run.times_the_best_peer("drain_2"), at_least=3),
    _of("queue topic by offset: WAL in and out, bytes/event", "wal", QUEUE, at_most=650),
    _of("commit to another process's handler: ms p50", "latency_2", QUEUE, at_most=5),
    _of("16 groups at one place: deliveries/s", "fanout_16", at_least=1_000_000),
    _of("16 groups apart: deliveries/s", "fanout_apart_16", at_least=200_000),
    Goal(
        "16 groups: WAL beyond the log, bytes/delivery", lambda run: run.extra("fanout_16", "wal_per_delivery"), None, 2
    ),
    _of("bitmap, 1 group: acks/s", "acks_1", at_least=100_000),
    _of("bitmap, 4 groups: acks/s", "acks_4", at_least=100_000),
    _of("bitmap, 16 groups: acks/s", "acks_16", at_least=100_000),
    _of("bitmap, 64 groups: acks/s", "acks_64", at_least=100_000),
    _of("bitmap, 16 groups with handlers: acks/s", "fanout_bitmap_16", at_least=100_000),
    _of("ten relays, ten backlogs: % that the broker got twice", "relay_twice_10", at_most=0.1),
    _of("throughput beside an open snapshot: % of without", "held_snapshot", at_least=95),
    _of("poll at 10,000 rows: ms p95", "poll_p95", at_most=5),
    _of("commit with 10 consumers: ms p95", "commit_10_p95", at_most=10),
    _of("lag at 100,000 rows: ms p95", "lag_p95", at_most=50),
    _of_bare("inbox: accept, asyncpg", "inbox_accept"),
    _of_bare("inbox: accept, psycopg", "inbox_accept", f"{OURS} psycopg"),
    _of_bare("inbox: accept, asyncpg and its pool", "inbox_accept_pooled"),
    _of_bare("inbox: accept, psycopg and its pool", "inbox_accept_pooled", f"{OURS} psycopg"),
    _of_bare("inbox: accept in a transaction, asyncpg", "inbox_accept_tx"),
    _of_bare("inbox: accept in a transaction, psycopg", "inbox_accept_tx", f"{OURS} psycopg"),
    _of_bare("inbox: accept, 16 callers at once, asyncpg", "inbox_accept_crowd"),
    _of_bare("inbox: accept, 16 threads at once, psycopg", "inbox_accept_crowd", f"{OURS} psycopg"),
    _of("inbox: accept, asyncpg: times its own statement by hand", "inbox_overhead", at_most=1.11),
    _of("inbox: accept, psycopg: times its own statement by hand", "inbox_overhead", f"{OURS} psycopg", at_most=1.11),
    Goal(
        "inbox: accept and process, times the best peer", lambda run: run.times_the_best_peer("inbox_process", OURS), 1
    ),
    _of("inbox: count of a million pending, ms p95", "inbox_pending", at_most=5),
    _of("inbox: health at a million pending, ms p95", "inbox_health", at_most=5),
    _of("inbox: next in order, times with 100,000 processed", "inbox_next_flat", at_most=1.5),
    _of("inbox: gaps at a million pending, ms p50", "inbox_gaps", at_most=1000),
    _of("inbox: gaps, times with 100,000 processed", "inbox_gaps_flat", at_most=1.5),
)


def lines(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """A line for each goal that the run measured."""
    run = Run(rows)
    return [line for goal in GOALS if (line := goal.line(run)) is not None]


def table(rows: Sequence[Row]) -> str:
    """The goals and whether they were kept, and who the best peers were."""
    run = Run(rows)
    shown = [
        f"  {line['goal']:<58}{line['figure']:>14,.2f}{line['bound']:>14}   {'kept' if line['kept'] else 'MISSED'}"
        for line in lines(rows)
    ]
    best = [
        f"  best peer of {workload}: {peer[0]}, {peer[1]:,.0f} events/s"
        for workload in ("drain_1", "drain_2")
        if (peer := run.best_peer(workload, shared=False)) is not None
    ]
    return "\n".join(["", "goals", *shown, *best]) if shown or best else ""
