"""`relaybox bench` measures a database and leaves nothing in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from kit import make_database, rows
from relaybox.cli import bench

from .conftest import Command

SCHEMAS = "SELECT schema_name FROM information_schema.schemata WHERE schema_name LIKE 'relaybox\\_bench%'"
EVENTS = "SELECT count(*) FROM outbox_event"


@pytest.fixture(params=["postgres", "mariadb", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(bench, "BACKLOG", 2_000)
    return make_database(request.param, tmp_path)


def test_it_measures_and_leaves_nothing(relaybox: Command, url: str, tmp_path: Path) -> None:
    files = set(tmp_path.iterdir())
    figures = relaybox.json("bench", "--seconds", "0.1", RELAYBOX_URL=url)
    assert figures.pop("schema") == "bench/1"
    assert set(figures) == {
        "write_transactions_per_second",
        "batch_events_per_second",
        "delivered_per_second",
        "latency_p50_ms",
        "latency_p99_ms",
    }
    assert all(figure > 0 for name, figure in figures.items() if name.endswith("second"))
    assert figures["latency_p99_ms"] >= figures["latency_p50_ms"] >= 0
    assert rows(url, EVENTS) == [(0,)]  # the outbox that is there was not used
    if url.startswith("sqlite"):
        assert {file.name.removesuffix("-wal").removesuffix("-shm") for file in set(tmp_path.iterdir()) - files} <= {
            "flow.db"
        }
    else:
        assert rows(url, SCHEMAS) == []


def test_a_table_for_people_names_what_was_measured(relaybox: Command, url: str) -> None:
    shown = relaybox("bench", "--seconds", "0.1", RELAYBOX_URL=url).stdout
    assert "one event in a transaction" in shown
    assert "from commit to listener" in shown


def test_a_schema_that_is_there_already_is_left_alone(relaybox: Command, url: str) -> None:
    if url.startswith("sqlite"):
        pytest.skip("SQLite has no schemas")
    rows(url, "CREATE SCHEMA relaybox_bench")
    try:
        refused = relaybox("bench", "--seconds", "0.1", exit_code=1, RELAYBOX_URL=url)
        assert "another bench runs, or one was broken off" in refused.stderr
        assert len(rows(url, SCHEMAS)) == 1
    finally:
        rows(url, "DROP SCHEMA relaybox_bench")
