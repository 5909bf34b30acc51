"""python -m benchmarks.ordered_claims: what ordered claims cost, op by op, on each engine and by each strategy.

10,000 waiting rows over 3,000 keys are claimed until none is left; p50 and p95 of a claim. Then the same while one more
key is parked with 100,000 rows behind its head. And what the index from key to key costs a writer.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from typing import Any, Literal, cast

from benchmarks.postgres import FreshDatabase
from relaybox import Event
from relaybox.drivers import Database, open_sync
from relaybox.ids import key_hash, new_token
from relaybox.op import Op, Query
from relaybox.store.claims import Claim, HeldRow
from relaybox.store.outbox import OutboxStore, open_store
from relaybox.store.outbox.values import ClaimedRow, KeyChoice, KeyLease, KeyRound, Settlement
from relaybox.testing.servers import MariaDBServer, PostgresServer, ServerUnavailable

ROWS, KEYS, LIMIT, SHARDS = 10_000, 3_000, 500, 16
FOLLOWERS = 100_000
WRITES = 4_000
LEASE = timedelta(seconds=60)
INDEX = "outbox_event_pending_key"


class Bench:
    def __init__(self, url: str, dialect: str) -> None:
        self.url = url
        self.db: Database = open_sync(url)
        self.store: OutboxStore = open_store(dialect)
        self.db.run(self.store.migrate())

    def sql(self, *texts: str) -> Sequence[Any]:
        def op() -> Op[Sequence[Any]]:
            answer: Sequence[Any] = ()
            for text in texts:
                kind: Literal["rows", "count"] = "rows" if text.startswith("SELECT") else "count"
                answer = (yield Query("bench", text, kind).bind()).rows
            return answer

        return self.db.run(op())

    def fill(self, strategy: str, *, followers: int) -> None:
        lease = () if self.store.dialect == "sqlite" else ("lease",)
        parts = ("event", *(f"event_{part}" for part in ("pending", "hold", "dead", "shard", *lease)))
        self.sql(*(f"DELETE FROM outbox_{part}" for part in parts))
        if followers:
            for start in range(0, followers, 10_000):
                self.write(["poison"] * min(10_000, followers - start))
            parked = "true" if self.store.dialect != "sqlite" else "1"
            since = "0" if self.store.dialect == "sqlite" else "CURRENT_TIMESTAMP"
            head = f"SELECT {key_hash('poison')}, min(seq), {parked}, {since} FROM outbox_event_pending"
            self.sql(f"INSERT INTO outbox_event_hold {head}")
        self.write([f"k{n % KEYS}" for n in range(ROWS)])
        if strategy == "shards":
            self.db.run(self.store.acquire_shards(1, SHARDS, SHARDS, timedelta(hours=1), None))
        if self.store.dialect == "postgres":
            with self.db.connection() as connection:
                connection.execute(Query("bench", "VACUUM ANALYZE outbox_event_pending", "count").bind())

    def write(self, keys: Sequence[str]) -> None:
        self.db.run(self.store.write([Event("Happened", {"n": n}, key=key) for n, key in enumerate(keys)], None, None))

    def claims(self, strategy: str) -> list[float]:
        """Milliseconds of each claim that brought something, with all of it settled in between."""
        took: list[float] = []
        turn, total = KeyRound(), 0
        tx = strategy != "shards" or not self.store.capabilities.single_statement
        while True:
            claim = Claim(1, new_token(), LEASE)
            started = time.perf_counter()
            rows = self.db.run(self._claim(strategy, claim, turn), tx=tx)
            ended = time.perf_counter()
            if not rows:
                assert total == ROWS, f"{total} of {ROWS}"
                return took
            took.append((ended - started) * 1000)
            total += len(rows)
            done = [HeldRow(row.row[0], claim.token) for row in rows]
            free = sorted({KeyLease(row.key_hash, claim.token) for row in rows if row.key_hash is not None})
            free = [] if strategy == "shards" else free
            assert self.db.run(self.store.settle(Settlement(done, ordered=True, free=free), None)) == 0

    def _claim(self, strategy: str, claim: Claim, turn: KeyRound) -> Op[list[ClaimedRow]]:
        if strategy == "shards":
            return self.store.claim_ordered(claim, LIMIT, SHARDS, None, turn)
        by = cast(Literal["advisory", "rows"], strategy)
        return self.store.claim_keys(claim, LIMIT, KeyChoice(by), turn, None)

    def single_writes(self) -> tuple[float, float]:
        """Microseconds and WAL bytes per event written alone. Many in one transaction, and once before: neither commits
        nor the full pages that follow a checkpoint are in the figures."""
        position = FreshDatabase(self.url).wal_position
        self.db.run(self._writes())
        before, started = position(), time.perf_counter()
        self.db.run(self._writes())
        return (time.perf_counter() - started) / WRITES * 1e6, (position() - before) / WRITES

    def _writes(self) -> Op[None]:
        for n in range(WRITES):
            yield from self.store.write([Event("Happened", {"n": n}, key=f"k{n % KEYS}")], None, None)


@contextmanager
def benches(names: Sequence[str]) -> Iterator[list[tuple[str, Bench]]]:
    with ExitStack() as stack:
        found = []
        for name in names:
            try:
                if name == "postgres":
                    server = stack.enter_context(PostgresServer.from_wheel(settings={"shared_buffers": "256MB"}))
                    found.append((name, Bench(server.create_database(), "postgres")))
                elif name == "mariadb":
                    found.append(
                        (name, Bench(stack.enter_context(MariaDBServer.from_system()).create_database(), "mysql"))
                    )
                else:
                    folder = stack.enter_context(tempfile.TemporaryDirectory())
                    found.append((name, Bench(f"sqlite:///{folder}/bench.db", "sqlite")))
            except ServerUnavailable as missing:
                print(f"{name}: {missing}")
        yield found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[2] if __doc__ else None)
    parser.add_argument("--engines", default="postgres,mariadb,sqlite")
    parser.add_argument("--rounds", type=int, default=3, help="backlogs per figure; the best counts")
    options = parser.parse_args()
    with benches(options.engines.split(",")) as found:
        print(f"{'engine':9} {'strategy':9} {'behind a parked head':>20} {'claims':>7} {'p50 ms':>7} {'p95 ms':>7}")
        for name, bench in found:
            for strategy in bench.store.capabilities.order_strategies:
                for followers in (0, FOLLOWERS):
                    runs = []
                    for _ in range(options.rounds):
                        bench.fill(strategy, followers=followers)
                        runs.append(bench.claims(strategy))
                    best = min(runs, key=lambda took: statistics.quantiles(took, n=20)[18])
                    p50, p95 = statistics.median(best), statistics.quantiles(best, n=20)[18]
                    print(f"{name:9} {strategy:9} {followers:>20,} {len(best):>7} {p50:>7.2f} {p95:>7.2f}", flush=True)
        for name, bench in found:
            if name == "postgres":
                show_writes(bench, options.rounds)


def show_writes(bench: Bench, rounds: int) -> None:
    """With and without the index, alternately; the best of each."""
    figures: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    for _ in range(rounds):
        for indexed in (True, False):
            bench.sql(f"DROP INDEX IF EXISTS {INDEX}")
            if indexed:
                bench.sql(f"CREATE INDEX {INDEX} ON outbox_event_pending (key_hash, seq)")
            bench.fill("none", followers=0)
            figures[indexed].append(bench.single_writes())
    for indexed, label in ((True, "with"), (False, "without")):
        micros, wal = min(figures[indexed])[0], min(figure[1] for figure in figures[indexed])
        print(f"a single-event write {label} the index on (key_hash, seq): {micros:.0f} us, {wal:.0f} bytes of WAL")


if __name__ == "__main__":
    main()
