"""X-03: a backfill beside an application's own work: it takes what is left, and can be cancelled and resumed."""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import psycopg

from relaybox import Event, Outbox, StartFrom, Topic
from relaybox.testing.servers import PostgresServer

from .database import Database
from .processes import Process
from .scale import Scale
from .verdicts import Verdict

BASELINE_MS = 50.0
LIMIT_MS = 100.0
CHUNK = 10_000


class Application:
    """Orders that are placed, changed and looked at, at a steady rate."""

    def __init__(self, url: str, rate: float, threads: int = 2) -> None:
        self.took: list[tuple[float, float]] = []
        self._stop = threading.Event()
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(
                "CREATE TABLE shop (id bigserial PRIMARY KEY, state text, total numeric, at timestamptz)"
            )
        self._threads = [threading.Thread(target=self._work, args=(url, rate / threads)) for _ in range(threads)]
        for thread in self._threads:
            thread.start()

    def _work(self, url: str, rate: float) -> None:
        chance = random.Random(7)
        with psycopg.connect(url, autocommit=True) as connection:
            due = time.monotonic()
            while not self._stop.is_set():
                due += 1 / rate
                time.sleep(max(0.0, due - time.monotonic()))
                start = time.monotonic()
                with connection.transaction():
                    row = connection.execute(
                        "INSERT INTO shop (state, total, at) VALUES ('new', 7, now()) RETURNING id"
                    )
                    found = row.fetchone()
                    assert found is not None
                    connection.execute("UPDATE shop SET state = 'paid' WHERE id = %s", (chance.randint(1, found[0]),))
                    connection.execute("SELECT * FROM shop WHERE id = %s", (chance.randint(1, found[0]),)).fetchone()
                self.took.append((time.time(), (time.monotonic() - start) * 1000))

    def p95(self, since: float, until: float | None = None) -> float:
        values = sorted(ms for at, ms in self.took if at >= since and (until is None or at < until))
        return values[int(len(values) * 0.95)] if values else float("inf")

    def bad_seconds(self, since: float) -> float:
        """How long the p95 of a five-second window was above the limit."""
        end, bad, at = time.time(), 0.0, since
        while at < end:
            bad += 5.0 if self.p95(at, at + 5) > LIMIT_MS else 0.0
            at += 5
        return bad

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


def run(server: PostgresServer, scale: Scale) -> Verdict:
    pending, rate, tps = scale.count(5_000_000), scale.rate(1_000), scale.rate(500)
    verdict = Verdict(
        "X-03",
        f"backfill of {pending:,} events beside {tps:,.0f} transactions/s and 2 groups at {rate:,.0f} events/s",
        True,
    )
    database = Database(server)
    topic_id = database.topic(Topic.pub_sub("orders", tracking="bitmap"))
    with Outbox(database.url) as outbox:
        for name in ("email", "resting"):
            outbox.topics.group("orders", name).create()
        outbox.topics.group("orders", "resting").pause()  # for it all of them stay pending
        _fill(outbox, pending)
        readers = Process("reader", database.url, "orders", "latest", "email", "analytics")
        readers.ready()
        half_hour = scale.seconds(1800)
        writer = Process("writer", database.url, "orders", rate, 0, 0, half_hour * 2 + 60)
        application = Application(database.url, tps)
        try:
            _story(verdict, database, outbox, application, topic_id, pending, max(half_hour, 30.0))
        finally:
            application.stop()
            writer.kill()
            readers.stop()
    return verdict


def _fill(outbox: Outbox, count: int) -> None:
    for start in range(0, count, CHUNK):
        events = [
            Event("Placed", {"n": n}, key=str(n % 5000), topic="orders") for n in range(min(CHUNK, count - start))
        ]
        with outbox.transaction() as tx:
            outbox.write_all(tx, events)


def _story(
    verdict: Verdict,
    database: Database,
    outbox: Outbox,
    application: Application,
    topic_id: int,
    pending: int,
    patience: float,
) -> None:
    time.sleep(2)
    begin = time.time()
    time.sleep(8)
    baseline = application.p95(begin)
    verdict.check("application p95 before", f"< {BASELINE_MS:g} ms", f"{baseline:.1f} ms", baseline < BASELINE_MS)
    group = outbox.topics.group("orders", "inventory", start=StartFrom.earliest(backfill=False))
    group.create()
    start = time.time()
    with ThreadPoolExecutor(1) as beside:
        running = beside.submit(group.backfill, pace="fast")
        while (found := group.info().backfill) is None or found.done < pending * 0.2:
            if running.done() or time.time() > start + patience:
                break
            time.sleep(0.05)
        cancelled = group.cancel_backfill()
        first = running.result(timeout=60)
    verdict.check("cancelled from elsewhere", "cancelled", first.what, cancelled and "cancelled" in first.what)
    resumed = group.backfill(pace="fast")
    took = time.time() - start
    verdict.check("resumed to the end", "completed", resumed.what, "completed" in resumed.what)
    during = application.p95(start)
    bearable = took <= patience or during < LIMIT_MS
    verdict.check("done in time, or throttled", f"≤ {patience:.0f} s or p95 kept", f"{took:.1f} s", bearable)
    verdict.check("application p95 meanwhile", f"< {LIMIT_MS:g} ms", f"{during:.1f} ms", during < LIMIT_MS)
    bad = application.bad_seconds(start)
    verdict.check("above that", f"≤ {patience / 6:.0f} s", f"{bad:.0f} s", bad <= patience / 6)
    bit = database.one("SELECT bit FROM outbox_event_group WHERE name = 'inventory'")
    missing = database.one(
        f"SELECT count(*) FROM outbox_event_mark_{topic_id} WHERE seq <= %s AND completed_at IS NULL "
        f"AND (required | done) & (1::bigint << {bit}) = 0",
        pending,
    )
    verdict.check("no open event was passed over", "0", missing, missing == 0)
    verdict.notes.append(f"{resumed.done:,} of {resumed.total:,} events, {resumed.done / took:,.0f} /s over all")
