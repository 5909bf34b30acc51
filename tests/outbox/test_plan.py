"""Finished events cost a poll nothing: the plans touch the pending table's index and a bounded number of pages."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from relaybox.drivers.postgres_sessions import OUR_SESSIONS
from relaybox.ids import new_token
from relaybox.store.claims import Claim
from relaybox.store.outbox.postgres import PostgresStore

FEW, FINISHED = 30_000, 300_000
PENDING = 20_000
LIMIT = 50

FILL = """
INSERT INTO outbox_event (event_id, event_type, aggregate_id, payload, occurred_at, created_at)
SELECT 'done-' || n, 'Happened', 'k' || (n % 1000), '\\x7b7d', now(), now() FROM generate_series(1, {}) n
"""
WAITING = """
WITH e AS (
  INSERT INTO outbox_event (event_id, event_type, aggregate_id, payload, occurred_at, created_at)
  SELECT 'wait-' || n, 'Happened', 'k' || n, '\\x7b7d', now(), now() FROM generate_series(1, {}) n RETURNING seq)
INSERT INTO outbox_event_pending (seq, due, key_hash, attempts) SELECT seq, now(), seq << 32, 0 FROM e
"""


def explain(connection: psycopg.Connection[Any], op: Any) -> dict[str, Any]:
    """The plan of an op's one statement, as it is run; what it changed is rolled back."""
    text, params = next(op).positional("format")
    with connection.transaction(force_rollback=True):
        cursor = connection.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {text}", params)  # type: ignore[arg-type]
        row = cursor.fetchone()
    assert row is not None
    plan = row[0] if isinstance(row[0], list) else json.loads(row[0])
    return dict(plan[0])


def nodes(plan: dict[str, Any]) -> list[dict[str, Any]]:
    found = [plan]
    for child in plan.get("Plans", ()):
        found += nodes(child)
    return found


def buffers(plan: dict[str, Any]) -> int:
    return int(plan["Plan"]["Shared Hit Blocks"]) + int(plan["Plan"]["Shared Read Blocks"])


def ops(store: PostgresStore) -> dict[str, Any]:
    claim = Claim(1, new_token(), timedelta(seconds=30))
    return {
        "claim": lambda: store.claim(claim, LIMIT, None),
        "claim_ordered": lambda: store.claim_ordered(claim, LIMIT, 16, None),
        "oldest": lambda: store.oldest(None),
        "next_due": lambda: store.next_due(None),
        "numbers_of": lambda: store.numbers_of(["wait-1", "nobody"], None),
    }


@pytest.fixture(scope="module")
def pages() -> dict[str, list[int]]:
    """Pages touched by each op, with few and with many finished events."""
    from kit import make_postgres

    url = make_postgres()
    store = PostgresStore()
    found: dict[str, list[int]] = {name: [] for name in ops(store)}
    with psycopg.connect(url, autocommit=True) as connection:
        for setting, value in OUR_SESSIONS.items():
            connection.execute(f"SET {setting} = '{value}'")
        connection.execute("INSERT INTO outbox_event_shard SELECT n, 1, 1, 'infinity' FROM generate_series(0, 15) n")
        connection.execute(WAITING.format(PENDING))
        for finished in (FEW, FINISHED):
            connection.execute(FILL.format(finished).replace("'done-'", f"'done-{finished}-'"))
            connection.execute("VACUUM ANALYZE outbox_event, outbox_event_pending")
            for name, op in ops(store).items():
                explain(connection, op())
                plan = explain(connection, op())
                check(name, plan)
                found[name].append(buffers(plan))
    return found


def check(name: str, plan: dict[str, Any]) -> None:
    for node in nodes(plan["Plan"]):
        kind, table = node["Node Type"], node.get("Relation Name")
        if table == "outbox_event" and name != "numbers_of":
            assert kind == "Index Scan", f"{name} reads events by {kind}"
            assert node["Index Name"] == "outbox_event_pkey"
            assert node["Actual Loops"] <= LIMIT, f"{name} looked at more events than it claimed"


@pytest.mark.parametrize("name", ["claim", "claim_ordered", "oldest", "next_due", "numbers_of"])
def test_finished_events_do_not_matter(pages: dict[str, list[int]], name: str) -> None:
    few, many = pages[name]
    # At most one page more for each row that is claimed: the index of events may be one level deeper.
    assert many <= few + LIMIT + 10, f"{name}: {few} pages with {FEW} finished events, {many} with {FINISHED}"
    assert many <= 12 * LIMIT  # a handful of index and heap pages for each row that is claimed
    if name in ("oldest", "next_due", "numbers_of"):
        assert many <= 10


def test_the_claim_keeps_its_limit_under_any_plan(pg: str) -> None:
    store = PostgresStore()
    with psycopg.connect(pg, autocommit=True) as connection:
        connection.execute(WAITING.format(200))
        for off in ("hashjoin", "mergejoin", "nestloop", "sort", "material", "hashagg", "indexscan", "bitmapscan"):
            connection.execute(f"SET enable_{off} = off")
            with connection.transaction(force_rollback=True):
                text, params = next(store.claim(Claim(1, 1, timedelta(seconds=9)), 7, None)).positional("format")
                *found, last = connection.execute(text, params).fetchall()  # type: ignore[call-overload]
                assert len(found) == last[0] == 7
                cursor = connection.execute("SELECT sum(cardinality(items)) FROM outbox_event_claim WHERE owner = 1")
                assert cursor.fetchone() == (7,)
                assert connection.execute("SELECT count(*) FROM outbox_event_pending").fetchone() == (193,)
