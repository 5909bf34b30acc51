"""Ten million finished events do not slow the poll:  .venv/bin/python scripts/plan_10m.py [--events 10000000]

Fills a private PostgreSQL in steps, and prints after each what a claim, `oldest` and `next_due` cost; then the plan
of the last claim.
"""

# ruff: noqa: T201 - printing is what it is for

from __future__ import annotations

import argparse
import json
import sys
import time
from datetime import timedelta
from typing import Any

import psycopg

from relaybox import Outbox
from relaybox.drivers.psycopg import connect
from relaybox.ids import new_token
from relaybox.store.claims import Claim
from relaybox.store.outbox.postgres import PostgresStore
from relaybox.testing.servers import PostgresServer

PENDING = 20_000
LIMIT = 50
RUNS = 20
STEP = 1_000_000

FILL = """
INSERT INTO outbox_event (event_id, event_type, aggregate_id, payload, occurred_at, created_at)
SELECT 'done-' || n, 'Happened', 'k' || (n % 1000), convert_to(repeat('x', 200), 'UTF8'), now(), now()
FROM generate_series({}, {}) n
"""
WAITING = """
WITH e AS (
  INSERT INTO outbox_event (event_id, event_type, aggregate_id, payload, occurred_at, created_at)
  SELECT 'wait-' || n, 'Happened', 'k' || n, '\\x7b7d', now(), now() FROM generate_series(1, {}) n RETURNING seq)
INSERT INTO outbox_event_pending (seq, due, key_hash, attempts) SELECT seq, now(), seq << 32, 0 FROM e
"""


def explain(connection: psycopg.Connection[Any], op: Any, form: str = "JSON") -> list[Any]:
    text, params = next(op).positional("format")
    with connection.transaction(force_rollback=True):
        return connection.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT {form}) {text}", params).fetchall()  # type: ignore[arg-type]


def cost(connection: psycopg.Connection[Any], make: Any) -> tuple[float, int]:
    """Median milliseconds and pages touched."""
    plans = []
    for _ in range(RUNS):
        found = explain(connection, make())[0][0]
        plans.append((found if isinstance(found, list) else json.loads(found))[0])
    times = sorted(plan["Execution Time"] for plan in plans)
    last = plans[-1]["Plan"]
    return times[RUNS // 2], last["Shared Hit Blocks"] + last["Shared Read Blocks"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=10_000_000)
    events = parser.parse_args().events
    store = PostgresStore()
    claim = Claim(1, new_token(), timedelta(seconds=30))
    ops = {
        "claim": lambda: store.claim(claim, LIMIT, None),
        "claim_ordered": lambda: store.claim_ordered(claim, LIMIT, 16, None),
        "oldest": lambda: store.oldest(None),
        "next_due": lambda: store.next_due(None),
    }
    first: dict[str, int] = {}
    with PostgresServer.from_wheel(durable=False) as server:
        url = server.create_database()
        with Outbox(url) as box:
            box.migrate()
        with connect(url).raw as connection:  # with the settings of relaybox's own sessions
            shards = "INSERT INTO outbox_event_shard SELECT n, 1, 1, 'infinity' FROM generate_series(0, 15) n"
            connection.execute(shards)
            connection.execute(WAITING.format(PENDING))  # type: ignore[arg-type]
            print(f"{'finished':>12} {'fill s':>7}  " + "  ".join(f"{name + ' ms (pages)':>24}" for name in ops))
            done = 0
            for target in sorted({min(100_000, events), *range(STEP, events + 1, STEP), events}):
                started = time.monotonic()
                connection.execute(FILL.format(done + 1, target))  # type: ignore[arg-type]
                connection.execute("VACUUM ANALYZE outbox_event, outbox_event_pending")
                took, done = time.monotonic() - started, target
                found = {name: cost(connection, op) for name, op in ops.items()}
                first = first or {name: pages for name, (_, pages) in found.items()}
                cells = "  ".join(f"{ms:>15.3f} ({pages:>6})" for ms, pages in found.values())
                print(f"{done:>12,} {took:>7.1f}  {cells}", flush=True)
            print("\nplan of the last claim:")
            for (line,) in explain(connection, ops["claim"](), "TEXT"):
                print(f"  {line}")
    grown = {name: pages for name, (_, pages) in found.items() if pages > first[name] + 3 * LIMIT}
    print(f"\nverdict: {'FAIL, pages grew: ' + str(grown) if grown else 'PASS, finished events cost a poll nothing'}")
    return 1 if grown else 0


if __name__ == "__main__":
    sys.exit(main())
