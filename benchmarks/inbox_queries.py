"""What an inbox is asked while it runs, however much waits in it and was processed by it.

    pending, health   with a million messages waiting
    next              an ordered claim of 100 messages: of each key the one whose turn it is
    gaps              every run of missing numbers, among a million messages of 10,000 keys

All with 100,000 processed messages, and again with many more: the figures are those of the second time, beside them how
many times the first they are (by the best call of each, which a busy machine changes least). The rows are made by the
database itself; ten million take minutes and 5 GB.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from statistics import median, quantiles
from typing import Any

import psycopg

import relaybox
from benchmarks.spi import Database, Sample, Sizes
from relaybox import Inbox
from relaybox.drivers import open_sync
from relaybox.ids import new_token
from relaybox.store.claims import Claim, HeldRow
from relaybox.store.inbox.claim import Share
from relaybox.types import Order

KEYS = 10_000
BASE = 100_000  # processed messages at first
CHUNK = 1_000_000  # rows per statement of the load
LEASE = timedelta(minutes=5)
HASH = """CREATE FUNCTION key_hash(key text) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN ('x' || substr(md5(key), 1, 16))::bit(64)::bigint & 9223372036854775807"""
MESSAGES = """INSERT INTO inbox (seq, event_id, event_type, sender, aggregate_id, payload, occurred_at, received_at)
SELECT n, 'message-' || n, 'order.placed', 'shop', 'order-' || mod(n, %(keys)s), convert_to(repeat('x', 128), 'UTF8'),
       now() - interval '1 day', now() - interval '1 day' FROM generate_series(%(first)s, %(last)s) n"""
DONE = """INSERT INTO inbox_done (seq, processed_at, attempts, waited)
SELECT n, now() - interval '1 day', 1, 0.1 FROM generate_series(%(first)s, %(last)s) n"""
# Every hundredth key waits for a number that is missing before its first, every fiftieth has a gap further on.
STATE = """INSERT INTO inbox_state (key_hash, aggregate_id, next, moved_at)
SELECT key_hash('order-' || k), 'order-' || k, CASE WHEN mod(k, 100) = 0 THEN 1 ELSE 2 END, now()
FROM generate_series(0, %(keys)s - 1) k"""
PENDING = """INSERT INTO inbox_pending (seq, due, key_hash, position, priority, attempts)
SELECT n, now() - interval '1 hour', key_hash('order-' || mod(n, %(keys)s)), 2 + (n - %(base)s - 1) / %(keys)s, 0, 0
FROM generate_series(%(first)s, %(last)s) n
WHERE NOT (mod(mod(n, %(keys)s), 50) = 7 AND (n - %(base)s - 1) / %(keys)s = 5)"""


class InboxQueries:
    """All of them are measured together, once per repeat, and told apart."""

    name = "relaybox"
    language = "Python"
    version = relaybox.__version__
    workloads = ("inbox_pending", "inbox_health", "inbox_next", "inbox_next_flat", "inbox_gaps", "inbox_gaps_flat")

    def __init__(self) -> None:
        self._measured: list[tuple[dict[str, float], dict[str, float]]] = []
        self._asked: Counter[str] = Counter()

    def install(self) -> None: ...

    def inbox_pending(self, database: Database, sizes: Sizes) -> Sample:
        return self._one("inbox_pending", database, sizes)

    def inbox_health(self, database: Database, sizes: Sizes) -> Sample:
        return self._one("inbox_health", database, sizes)

    def inbox_next(self, database: Database, sizes: Sizes) -> Sample:
        return self._one("inbox_next", database, sizes)

    def inbox_next_flat(self, database: Database, sizes: Sizes) -> Sample:
        return self._one("inbox_next_flat", database, sizes)

    def inbox_gaps(self, database: Database, sizes: Sizes) -> Sample:
        return self._one("inbox_gaps", database, sizes)

    def inbox_gaps_flat(self, database: Database, sizes: Sizes) -> Sample:
        return self._one("inbox_gaps_flat", database, sizes)

    def _one(self, workload: str, database: Database, sizes: Sizes) -> Sample:
        repeat = self._asked[workload]
        self._asked[workload] += 1
        if repeat == len(self._measured):
            self._measured.append(measure(database, sizes))
        figures, best = self._measured[repeat]
        facts = {"pending": sizes.inbox_pending, "processed": sizes.inbox_processed, "keys": KEYS, "best_ms": best}
        return Sample(figures[workload], facts, {"driver": "psycopg"}, self.version)


def measure(database: Database, sizes: Sizes) -> tuple[dict[str, float], dict[str, float]]:
    """The figures, and the best call of each query."""
    with Inbox(database.url) as inbox:
        inbox.migrate()
        inbox.configure(order=Order())
        with psycopg.connect(database.url, autocommit=True) as connection:
            connection.execute(HASH)
            _run(connection, STATE, 1, 1)
            base = BASE + 10  # numbers of processed messages that come later are behind those that wait
            last = base + sizes.inbox_pending
            _processed(connection, 1, BASE)
            for text in (MESSAGES, PENDING):
                _run(connection, text, base + 1, last, base)
            before = _ask(connection, inbox, database)
            _processed(connection, last + 1, last + sizes.inbox_processed - BASE)
            after = _ask(connection, inbox, database)
    p95 = {name: quantiles(after[name], n=20)[18] for name in ("inbox_pending", "inbox_health")}
    p50 = {name: median(after[name]) for name in ("inbox_next", "inbox_gaps")}
    flat = {f"{name}_flat": min(after[name]) / min(before[name]) for name in ("inbox_next", "inbox_gaps")}
    return {**p95, **p50, **flat}, {name: round(min(took), 3) for name, took in after.items()}


def _processed(connection: psycopg.Connection[Any], first: int, last: int) -> None:
    for text in (MESSAGES, DONE):
        _run(connection, text, first, last)


def _run(connection: psycopg.Connection[Any], text: str, first: int, last: int, base: int = 0) -> None:
    for start in range(first, last + 1, CHUNK):
        values = {"keys": KEYS, "base": base, "first": start, "last": min(start + CHUNK - 1, last)}
        connection.execute(text, values)


def _ask(connection: psycopg.Connection[Any], inbox: Inbox, database: Database) -> dict[str, list[float]]:
    """As after autovacuum: with statistics, and pages that are known to be visible."""
    connection.execute("VACUUM ANALYZE")
    database.checkpoint()
    db = open_sync(database.url)
    store = inbox.store

    def claim() -> None:
        claim = Claim(1, new_token(), LEASE)
        arrived, _ = db.run(store.claim_messages(claim, 100, None, share=Share(), order=Order()))
        assert len(arrived) == 100, f"claimed {len(arrived)} of 100 messages"
        held.extend(HeldRow(message.row[0], claim.token) for message in arrived)

    def release() -> None:
        db.run(store.release_messages(held, None))
        held.clear()

    held: list[HeldRow] = []
    try:
        took = {
            "inbox_pending": _times(inbox.status, 40),
            "inbox_health": _times(inbox.health, 40),
            "inbox_next": _times(claim, 20, release),
            "inbox_gaps": _times(lambda: _found(inbox.keys.list()), 5),
        }
    finally:
        db.close()
    return took


def _found(gaps: list[Any]) -> None:
    assert len(gaps) == 100, f"found {len(gaps)} gaps"


def _times(ask: Callable[[], Any], calls: int, after: Callable[[], None] = lambda: None) -> list[float]:
    """Milliseconds of each call; the first three, which prepare statements and read pages, do not count."""
    took = []
    for _ in range(calls + 3):
        began = time.perf_counter()
        ask()
        took.append((time.perf_counter() - began) * 1000)
        after()
    return took[3:]
