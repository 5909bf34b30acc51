"""The benchmarks hang together: every workload has a system that can be asked for it, every goal says kept or not."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

from benchmarks import goals
from benchmarks.registry import systems
from benchmarks.spi import WORKLOADS


def test_every_workload_has_a_system_and_a_method() -> None:
    offered = [(system, workload) for system in systems() for workload in system.workloads]
    assert {workload for _, workload in offered} == set(WORKLOADS)
    for system, workload in offered:
        assert callable(getattr(system, workload)), f"{system.name} has no {workload}"


def row(workload: str, system: str, median: float | None, **extra: float) -> dict[str, Any]:
    return {"workload": workload, "system": system, "median": median, "extra": [extra]}


def test_goals_are_kept_or_missed_and_what_was_not_measured_is_left_out() -> None:
    rows = [
        row("drain_1", goals.QUEUE, 300_000),
        row("drain_1", goals.OURS, 900_000),
        row("drain_1", "bare", 900_000),
        row("drain_1", "pgmq", 90_000),
        row("drain_1", "pgq", 150_000),
        row("drain_1", "broken", None),
        row("latency_2", goals.QUEUE, 5.1),
        row("fanout_16", goals.OURS, 1_000_000, wal_per_delivery=1.5),
    ]
    found = {line["goal"]: (line["figure"], line["kept"]) for line in goals.lines(rows)}
    assert found == {
        "queue topic by offset, one process: events/s": (300_000, True),
        "… times the best peer": (2, False),
        "… times the best that processes can share": (pytest.approx(3.333), True),
        "commit to another process's handler: ms p50": (5.1, False),
        "16 groups at one place: deliveries/s": (1_000_000, True),
        "16 groups: WAL beyond the log, bytes/delivery": (1.5, True),
    }
    assert "MISSED" in goals.table(rows)
    assert "best peer of drain_1: pgq, 150,000 events/s" in goals.table(rows)
