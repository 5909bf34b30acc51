"""Ordered claims under any plan: never more than asked for, whole keys, no reading past what waits behind a head."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from relaybox.drivers import open_sync
from relaybox.drivers.postgres_sessions import OUR_SESSIONS
from relaybox.drivers.psycopg import PsycopgConnection
from relaybox.ids import new_token
from relaybox.op import Op, Statement, run
from relaybox.store.claims import Claim
from relaybox.store.outbox.postgres import PostgresStore
from relaybox.store.outbox.values import ClaimedRow, KeyChoice, KeyRound
from relaybox.testing.servers import require

STORE = PostgresStore()
LEASE = timedelta(seconds=30)
STRATEGIES = ("shards", "held shards", "advisory", "rows")
KEYS, ROWS = 40, 120
FOLLOWERS = 20_000

FILL = """
WITH e AS (
  INSERT INTO outbox_event (event_id, event_type, aggregate_id, payload, occurred_at, created_at)
  SELECT '{prefix}-' || n, 'Happened', '{prefix}' || (n % {keys}), '\\x7b7d', now(), now()
  FROM generate_series(1, {rows}) n
  RETURNING seq, aggregate_id)
INSERT INTO outbox_event_pending (seq, due, key_hash, attempts)
SELECT seq, now(), outbox_event_hash(aggregate_id), 0 FROM e
"""
OWN = "INSERT INTO outbox_event_shard SELECT n, 1, 1, 'infinity' FROM generate_series(0, 15) n"
HOLD = """
INSERT INTO outbox_event_hold
SELECT key_hash, min(seq), {parked}, now() FROM outbox_event_pending
WHERE key_hash = outbox_event_hash('{key}') GROUP BY 1
"""


@pytest.fixture
def url() -> Iterator[str]:
    server = require("postgres-wheel", durable=False)
    url = server.create_database()
    db = open_sync(url)
    db.run(STORE.migrate())
    db.close()
    yield url
    server.drop_database(url)


def claiming(strategy: str, limit: int, turn: KeyRound | None = None) -> Op[list[ClaimedRow]]:
    claim = Claim(1, new_token(), LEASE)
    if strategy.endswith("shards"):
        return STORE.claim_ordered(claim, limit, 16, None, turn)
    return STORE.claim_keys(claim, limit, KeyChoice(strategy, keys=5), turn or KeyRound(), None)  # type: ignore[arg-type]


class Watched:
    """Runs ops as the drivers do, and adds up the pages that their statements touch."""

    def __init__(self, raw: psycopg.Connection[Any]) -> None:
        self.raw = raw
        self.pages = 0

    def run(self, op: Op[list[ClaimedRow]]) -> list[ClaimedRow]:
        with self.raw.transaction():
            return run(op, PsycopgConnection(self.raw))

    def explain(self, op: Op[list[ClaimedRow]]) -> list[ClaimedRow]:
        """The same, each statement once more under EXPLAIN before it counts."""
        connection = PsycopgConnection(self.raw)
        try:
            statement = next(op)
            while True:
                assert isinstance(statement, Statement)
                text, params = statement.positional("format")
                with self.raw.transaction(force_rollback=True):
                    text = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {text}"
                    [[plan]] = self.raw.execute(text, params).fetchall()  # type: ignore[call-overload]
                self.pages += plan[0]["Plan"]["Shared Hit Blocks"] + plan[0]["Plan"]["Shared Read Blocks"]
                statement = op.send(connection.execute(statement))  # type: ignore[assignment]
        except StopIteration as end:
            return list(end.value)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_never_more_than_asked_for_and_every_key_from_its_first(url: str, strategy: str) -> None:
    off = ("hashjoin", "mergejoin", "nestloop", "sort", "material", "hashagg", "indexscan", "bitmapscan", "memoize")
    with psycopg.connect(url, autocommit=True) as raw:
        watched = Watched(raw)
        raw.execute(FILL.format(prefix="k", keys=KEYS, rows=ROWS))
        if strategy.endswith("shards"):
            raw.execute(OWN)
        if strategy == "held shards":
            raw.execute(HOLD.format(key="k7", parked=True))
        for switch in off:
            raw.execute(f"SET enable_{switch} = off")
            with raw.transaction(force_rollback=True):
                turn, rest = KeyRound(), dict(raw.execute("SELECT seq, key_hash FROM outbox_event_pending").fetchall())
                for _ in range(3):
                    taken = [row.row[0] for row in watched.run(claiming(strategy, 7, turn))]
                    assert len(taken) == 7, f"without {switch}"
                    for seq in taken:
                        key = rest[seq]
                        earlier = [s for s, k in rest.items() if k == key and s < seq and s not in taken]
                        assert earlier == [], f"without {switch}: {seq} before {earlier}"
                    for seq in taken:
                        del rest[seq]


@pytest.mark.parametrize("strategy", ["shards", "advisory", "rows"])
@pytest.mark.parametrize("parked", [True, False])
def test_a_long_queue_behind_a_held_head_costs_others_nothing(url: str, strategy: str, parked: bool) -> None:
    pages = []
    with psycopg.connect(url, autocommit=True) as raw:
        for setting, value in OUR_SESSIONS.items():
            raw.execute(f"SET {setting} = '{value}'")  # type: ignore[call-overload]
        if strategy == "shards":
            raw.execute(OWN)
        for followers in (1, FOLLOWERS):
            for table in ("event", "event_pending", "event_claim", "event_hold", "event_lease"):
                raw.execute(f"TRUNCATE outbox_{table}")
            raw.execute(FILL.format(prefix="poison", keys=1, rows=followers))
            raw.execute(HOLD.format(key="poison0", parked=parked))
            raw.execute(
                "UPDATE outbox_event_pending SET due = '3000-01-01' WHERE seq IN (SELECT seq FROM outbox_event_hold)"
            )
            raw.execute(FILL.format(prefix="k", keys=KEYS, rows=ROWS))
            raw.execute("VACUUM ANALYZE outbox_event, outbox_event_pending")
            watched, turn, got = Watched(raw), KeyRound(), 0
            while taken := watched.explain(claiming(strategy, 50, turn)):
                got += len(taken)
            assert got == ROWS
            pages.append(watched.pages)
    few, many = pages
    assert many < few * 1.5, f"{few} pages with one follower, {many} with {FOLLOWERS}"


@pytest.mark.parametrize(("query", "lookups"), [("claim.ordered", 1), ("claim.estranged", 3), ("keys.recent", 2)])
def test_what_is_here_is_looked_up_by_hash(url: str, query: str, lookups: int) -> None:
    """Thousands of events in hand, and keys to pass over: compared with one another they would be millions."""
    numbers = list(range(3000))
    values = {**STORE._claim(Claim(1, new_token(), LEASE), 10, None), "owner": 1, "shards": 16, "leaving": []}
    values |= {"known": [], "kept": numbers, "full": numbers, "after": 0, "share": 10}
    with psycopg.connect(url, autocommit=True) as raw:
        raw.execute(FILL.format(prefix="k", keys=KEYS, rows=ROWS))
        raw.execute("SET plan_cache_mode = force_generic_plan")
        bound = STORE.sql[f"outbox.{query}"]
        names = set(bound.compiled("format")[1])
        text, params = bound.bind(**{name: value for name, value in values.items() if name in names}).positional(
            "format"
        )
        plan = raw.execute(f"EXPLAIN {text}", params, prepare=True).fetchall()  # type: ignore[call-overload]
    assert sum(line.count("hashed SubPlan") for [line] in plan) == lookups
