"""Replicas as processes: killed in the middle, and several for one table."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from replica_kit import TARGETS, TOTALS, at, changes, expected, kept, make_source
from typer.testing import CliRunner

from kit import make_database, make_postgres, one, rows, wait_until
from relaybox import Outbox, Replica
from relaybox.cli.app import app

WORKER = (sys.executable, str(Path(__file__).parents[1] / "ingest" / "worker.py"))  # `relaybox`, which may be killed


@pytest.fixture
def source() -> Iterator[Outbox]:
    with make_source() as box:
        yield box


@pytest.fixture(params=TARGETS)
def target(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return make_database(request.param, tmp_path, migrated=False)


def started(source: Outbox, target: str, *options: str, crash: str = "") -> subprocess.Popen[str]:
    given = {**os.environ, "RELAYBOX_URL": at(source), "RELAYBOX_REPLICA_INTO": target, "RELAYBOX_CRASH": crash}
    return subprocess.Popen(
        [*WORKER, "replica", "totals", *options],
        env={name: value for name, value in given.items() if value},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def once(source: Outbox, target: str, *options: str, crash: str = "") -> tuple[int, str, str]:
    process = started(source, target, "--once", *options, crash=crash)
    out, err = process.communicate(timeout=90)
    return process.returncode, out, err


@pytest.mark.parametrize("target", ["mysql"], indirect=True)
def test_the_command(source: Outbox, target: str) -> None:
    source.feeds.create(TOTALS)
    source.feeds.refresh(None, "totals")
    code, out, err = once(source, target, "--json")
    assert (code, out) == (1, "")
    assert "migrate" in err
    code, out, err = once(source, target, "--migrate", "--json")
    assert code == 0, err
    assert json.loads(out) == {"applied": 1, "failed_attempts": 0, "n": 1, "behind": 0}
    assert kept(target) == expected(source)
    changes(source, "DELETE FROM orders WHERE customer = 1")
    process = started(source, target, "--status", "--json")
    out, _ = process.communicate(timeout=90)
    found: dict[str, Any] = json.loads(out)
    assert (found["table"], found["feed"], found["n"], found["source_n"], found["behind"]) == ("totals",) * 2 + (
        1,
        2,
        1,
    )


def test_the_database_of_the_table_stands_in_a_file(
    source: Outbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, file = make_database("sqlite", tmp_path, migrated=False), tmp_path / "relaybox.toml"
    source.feeds.create(TOTALS)
    source.feeds.refresh(None, "totals")
    monkeypatch.setenv("RELAYBOX_URL", at(source))
    monkeypatch.delenv("RELAYBOX_REPLICA_INTO", raising=False)

    def run(into: str) -> Any:
        file.write_text(f"[relaybox.replica]\n{into}")
        return CliRunner().invoke(app, ["--config", str(file), "replica", "totals", "--migrate", "--once"])

    done = run(f'into = "{target}"')
    assert done.exit_code == 0, done.output
    assert kept(target) == expected(source)
    for into, told in [("", "no database given"), ("into = 7", "expected into to be text")]:
        refused = run(into)
        assert refused.exit_code == 1
        assert told in refused.output


@pytest.mark.parametrize("during", ["delta", "copy"])
def test_killed_in_the_middle(source: Outbox, target: str, during: str) -> None:
    """Nothing of what it was at is there, and the next one does all of it."""
    rows(at(source), "INSERT INTO orders SELECT g, g, g FROM generate_series(1000, 3000) g")
    source.feeds.create(replace(TOTALS, inline_rows=10, chunk_rows=200))
    source.feeds.refresh(None, "totals")
    with Replica(target, "totals", feed="totals", source=source) as replica:
        replica.migrate()
        replica.follow().once()
        before = kept(target)
        changes(source, "UPDATE orders SET amount = amount + 1", "DELETE FROM orders WHERE customer % 3 = 0")
        if during == "copy":
            rows(at(source), "DELETE FROM outbox_event_log_1")
        code, _, err = once(source, target, crash=f"deliver.after:{4 if during == 'delta' else 2}:kill")
        assert code == -signal.SIGKILL, err
        wait_until(lambda: kept(target) == before)  # the server notices the end of a connection by itself
        assert replica.status().n == 1
        code, _, err = once(source, target)
        assert code == 0, err
        assert kept(target) == expected(source)
        assert one(target, "SELECT count(*) FROM totals_replica") == 0
        assert replica.status().n == 3


def test_killed_again_and_again(source: Outbox, target: str) -> None:
    source.feeds.create(replace(TOTALS, inline_rows=2, chunk_rows=2))
    source.feeds.refresh(None, "totals")
    chance = random.Random(7)
    with Replica(target, "totals", feed="totals", source=source) as replica:
        replica.migrate()
    for number in range(5):
        changes(source, *(f"UPDATE orders SET amount = {number} WHERE customer = {n}" for n in range(4)))
        changes(source, f"DELETE FROM orders WHERE id % 10 = {number}")
        once(source, target, crash=f"deliver.after:{chance.randint(1, 9)}:kill")
    assert once(source, target)[0] == 0
    assert kept(target) == expected(source)


def test_two_for_one_table(source: Outbox, target: str) -> None:
    """One works; the other goes on when that one is gone."""
    source.feeds.create(TOTALS)
    source.feeds.refresh(None, "totals")
    with Replica(target, "totals", feed="totals", source=source) as replica:
        replica.migrate()
        both = [started(source, target, "--set", "replica.poll=10ms") for _ in range(2)]
        try:
            for number in range(20):
                changes(source, f"UPDATE orders SET amount = {number} WHERE customer = {number % 10}")
            wait_until(lambda: replica.status().behind == 0)
            assert kept(target) == expected(source)
            both[0].kill()
            both[0].wait(20)
            for number in range(20):
                changes(source, f"DELETE FROM orders WHERE id = {number}")
            wait_until(lambda: replica.status().behind == 0)
            assert kept(target) == expected(source)
            both[1].send_signal(signal.SIGTERM)
            _, err = both[1].communicate(timeout=30)
            assert both[1].returncode == 0, err
        finally:
            for process in both:
                process.kill()
                process.wait(20)
        assert one(target, "SELECT count(*) FROM totals_replica") == 0


DELTAS = """
INSERT INTO outbox_event_log_1 (seq, shard, event_id, event_type, aggregate_id, payload, headers, occurred_at)
SELECT nextval('outbox_event_log_1_seq'), shard, gen_random_uuid()::text, event_type, aggregate_id,
       '{"v":1,"inserted":[],"deleted":[]}', replace(replace(headers, '"feed-n" : "1"', '"feed-n" : "' || n || '"'),
                                                     '"feed-inserted" : "10"', '"feed-inserted" : "0"'), now()
FROM outbox_event_log_1, generate_series(2, 10000) n
"""


def test_a_look_is_quick_among_ten_thousand_deltas(source: Outbox) -> None:
    source.feeds.create(TOTALS)
    source.feeds.refresh(None, "totals")
    rows(at(source), DELTAS)
    rows(at(source), "UPDATE outbox_event_feed SET n = 10000")
    with Replica(at(source), "mirrored", feed="totals", source=source) as replica:
        replica.migrate()
        assert replica.follow().once().done == 1  # a new table is copied
        (seq,) = rows(at(source), "SELECT max(seq) - 2 FROM outbox_event_log_1")[0]
        reading, ask, found = replica._reading, replica._source_db, list[float]()
        assert reading is not None
        assert ask is not None
        for _ in range(20):
            begun = time.perf_counter()
            ask.run(reading.head(), tx=False)
            place = ask.run(reading.place(), tx=False)
            assert len(ask.run(reading.after(place, seq, 16), tx=False)) == 2
            found.append(time.perf_counter() - begun)
        assert min(found) < 0.005, found
        rows(at(source), f"UPDATE relaybox_replica SET n = 9998, seq = {seq}")
        assert replica.follow().once().done == 2


def test_the_roles_of_the_guide_are_enough(source: Outbox) -> None:
    """A reader of the source that may read the feed's table; in the target what the guide says."""
    target = make_postgres(migrated=False)
    source.feeds.create(replace(TOTALS, inline_rows=5))
    source.feeds.refresh(None, "totals")
    with Replica(target, "totals", feed="totals", source=source) as owner:
        owner.migrate()
    reader, worker = (f"rb_{name}_{uuid4().hex[:8]}" for name in ("reader", "worker"))
    for role in (reader, worker):
        rows(at(source), f"CREATE ROLE {role}")
    for line in (*source.grants("reader", to=reader), f"GRANT SELECT ON feed_totals TO {reader}"):
        rows(at(source), line)
    for line in (
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON totals, totals_replica TO {worker}",
        f"GRANT SELECT, UPDATE ON relaybox_replica TO {worker}",
        f"GRANT SELECT ON relaybox_replica_migration TO {worker}",
    ):
        rows(target, line)
    try:
        with (
            Outbox(f"{at(source)}?options=-c%20role%3D{reader}") as seen,
            Replica(f"{target}?options=-c%20role%3D{worker}", "totals", feed="totals", source=seen) as replica,
        ):
            replica.verify()
            assert replica.follow().once().failed == 0
            changes(source, "UPDATE orders SET amount = 7", "DELETE FROM orders WHERE customer = 2")
            assert replica.follow().once().failed == 0
            assert kept(target) == expected(source)
    finally:
        for url in (at(source), target):
            rows(url, f"DROP OWNED BY {reader}, {worker}")
        rows(target, f"DROP ROLE {reader}, {worker}")
