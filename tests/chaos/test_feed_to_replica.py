"""The trial from a feed to its replicas in short; its judge on histories made by hand, and on a bug that is planted."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from relaybox.testing.servers import require

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

from chaos.feed_to_replica import PLANTS, Options, Trial
from chaos.feed_to_replica_judge import Change, History, Key, Record, Truth, Version, Was, judge

SHORT = Options(
    ways="rows,straight",
    changes=400,
    items=60,
    writers=1,
    maintainers=1,
    relays=1,
    ingests=1,
    processors=2,
    replicas=1,
    kills=5,
    pauses=1,
    broker_kills=1,
    database_stops=1,
    outage_seconds=0.5,
    snapshots=1,
    absences=0,
    seed=3,
)


@pytest.mark.timeout(300)
def test_everything_is_killed_and_the_tables_are_as_the_query_says(tmp_path: Path) -> None:
    require("postgres-wheel", durable=False)
    require("kafka")
    report = Trial(SHORT, tmp_path).run()
    assert report["verdict"] == "PASS", report
    assert report["versions"] > 200
    assert min(report["records"], *report["applied"].values()) > SHORT.items


@pytest.mark.timeout(300)
def test_it_finds_a_bug(tmp_path: Path) -> None:
    require("postgres-wheel", durable=False)
    require("kafka")
    quiet = {"kills": 0, "pauses": 0, "broker_kills": 0, "database_stops": 0, "snapshots": 0}
    report = Trial(replace(SHORT, ways="rows", plant="any-version", changes=150, **quiet), tmp_path).run()
    assert PLANTS["any-version"] in report["violations"], report


A: Key = (1, "a")
OLD, NEW, NEWEST = (Version(n, 1, 7, "shop", Decimal(n), 5) for n in (1, 3, 5))
TRUTH = Truth(
    items={(A, row.version): Was(7, row.price, 5) for row in (OLD, NEW, NEWEST)},
    shops={(7, 1): "shop"},
    deleted={A: [4]},
    rows={A: NEWEST},
)
LIFE = [OLD, NEW, None, NEWEST]
TOPIC = [
    Record(A, 1, "1", OLD),
    Record(A, 2, "2", NEW),
    Record(A, 2, "2", NEW),
    Record(A, 3, "3", None),
    Record(A, 3, "3", None, tombstone=True),
    Record(A, 4, "4", NEWEST),
    Record(A, 5, "5", NEWEST),
]


def violations(life: Sequence[Version | None] = LIFE, **changes: Any) -> set[str]:
    sound: dict[str, Any] = {
        "truth": TRUTH,
        "tables": {"t": {A: NEWEST}},
        "changes": {"t": [Change(A, row) for row in life]},
        "topic": TOPIC,
        "compacted": {A: NEWEST},
    }
    report = judge(History(**{**sound, **changes}))
    assert (report["verdict"] == "PASS") == (not report["violations"])
    return set(report["violations"])


def test_the_judge_of_tables() -> None:
    assert violations() == set()
    assert violations([OLD, OLD, NEW, NEW, None, NEWEST]) == set()  # copied anew
    assert violations([NEWEST]) == set()  # of what was there for a moment nothing need be seen
    assert violations(tables={"t": {}}) == violations(tables={"t": {A: NEW}}) == {"unequal"}
    assert violations(tables={"t": {A: NEWEST, (1, "b"): NEW}}) == {"unequal"}
    assert violations([NEW, OLD, None, NEWEST]) == {"inversions"}
    assert violations([OLD, NEWEST, NEW, NEWEST]) == {"inversions"}
    assert violations([OLD._replace(stock=6), NEWEST]) == {"ghosts"}  # nobody has committed that
    assert violations([OLD._replace(name="other"), NEWEST]) == {"ghosts"}
    assert violations([OLD._replace(version=2), NEWEST]) == {"ghosts"}
    assert violations([NEW, None, NEW, None, NEWEST]) == {"ghosts"}  # it was not there twice
    assert violations([NEWEST, None]) == {"ghosts"}  # nobody has deleted it


def test_the_judge_of_the_topic() -> None:
    assert violations(compacted={A: NEW}) == {"compacted"}
    assert violations(topic=[*TOPIC, *TOPIC]) == set()  # all of it sent again
    assert violations(topic=[TOPIC[1], TOPIC[0], *TOPIC[2:]]) == {"disorder"}
    assert violations(topic=[*TOPIC[:5], Record(A, 4, "9", OLD)]) == {"disorder"}
    assert violations(topic=[*TOPIC, Record(A, 6, "6", NEWEST._replace(price=Decimal(0)))]) == {"ghosts"}
    assert violations(torn=["t: 7"]) == {"torn"}
    assert violations(died={"inbox": 1}) == {"died"}
