"""Feeds under fire: writers of every kind, two refreshers, DDL, kills, and a judge in each refresh.

    python -m chaos.feeds 20000      as many deltas

After every refresh the table must equal the query in that refresh's own snapshot (feed_refresher.py). At the end the
deltas, replayed in order, must be the tables, and the tables what the queries say. Meanwhile refreshers die of SIGKILL,
sessions of refreshers and writers are ended, the server dies and recovers, triggers are disabled and dropped, and
partitions come and go.
"""

from __future__ import annotations

import contextlib
import json
import random
import subprocess
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from relaybox import Outbox, StartFrom
from relaybox.testing.servers import PostgresServer

from .feed_refresher import refresh, watch
from .feed_shapes import FEEDS, TABLES
from .feed_writes import WRITES

ROOT = Path(__file__).parent.parent
DEAF = """
CREATE OR REPLACE FUNCTION outbox_event_feed_1_0_capture() RETURNS trigger LANGUAGE plpgsql
AS 'BEGIN RETURN NULL; END'
"""
TRIGGERS = """
SELECT t.tgrelid::regclass::text, quote_ident(t.tgname) FROM pg_trigger t
WHERE t.tgname LIKE 'relaybox\\_feed%' AND t.tgparentid = 0 ORDER BY 1, 2
"""


@dataclass
class Trial:
    """What a run has seen. `torn`: refreshes after which the table was not what the query said."""

    url: str
    wanted: int
    seed: int = 1
    server: PostgresServer | None = None  # is killed now and then, as refreshers and sessions are
    deaf: bool = False  # a bug the judge must find: one table's changes go unseen
    refreshes: Counter[str] = field(default_factory=Counter)
    writes: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    torn: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    deltas: int = 0
    replayed: int = 0
    claim_checks: int = 0
    _refreshers: list[subprocess.Popen[str]] = field(default_factory=list)
    _over: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self) -> None:
        with psycopg.connect(self.url, autocommit=True) as owner, Outbox(self.url) as box:
            owner.execute(TABLES.encode())
            for feed in FEEDS:
                box.feeds.create(feed)
                if feed.mode != "full":
                    watch(owner, feed)
            if self.deaf:
                owner.execute(DEAF)
            box.topics.group("deltas", "judge", start=StartFrom.earliest()).create()
        self._all_at_once()
        with psycopg.connect(self.url, autocommit=True) as owner, Outbox(self.url) as box:
            for feed in FEEDS:
                with box.transaction() as tx:
                    self._heard(refresh(box, tx, feed, full=False))
                drift = box.feeds.verify(feed.name)
                if drift.rows or not drift.captured:
                    self.torn.append(f"{feed.name}: {drift} at the end")
            self._replay(box, owner)

    def _all_at_once(self) -> None:
        jobs: list[Callable[[random.Random], None]] = [self._write] * 4 + [self._refresh] * 2
        if not self.deaf:  # a table whose triggers were made anew is evaluated whole: that would hide the bug
            jobs.append(self._define)
        if self.server is not None:
            jobs.append(self._kill)
        threads = [threading.Thread(target=self._job, args=(job, n)) for n, job in enumerate(jobs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _job(self, job: Callable[[random.Random], None], number: int) -> None:
        try:
            job(random.Random(self.seed * 100 + number))
        except BaseException as error:
            self.errors.append("".join(traceback.format_exception(error)))
        finally:
            self._over.set()

    # -- the judge --------------------------------------------------------------------------------

    def _refresh(self, chance: random.Random) -> None:
        """Reads what a refresher says, and starts another one where it was killed."""
        while not self._over.is_set():
            command = [sys.executable, "-m", "chaos.feed_refresher", self.url, str(chance.randrange(2**32))]
            process = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
            assert process.stdin is not None
            assert process.stdout is not None
            with process, _Among(self._refreshers, process):
                for line in process.stdout:
                    for said in json.loads(line) if line.endswith("\n") else []:
                        self._heard(said)
                    if self._over.is_set():
                        process.stdin.close()
                        process.stdout.read()
                        break

    def _heard(self, said: dict[str, Any]) -> None:
        with self._lock:
            if "error" in said:
                self.errors.append(said["error"])
                self._over.set()
                return
            self.refreshes[said["how"]] += 1
            self.deltas += said["written"]
            if said["torn"]:
                self.torn.append(said["torn"])
            if self.deltas >= self.wanted:
                self._over.set()

    def _replay(self, box: Outbox, owner: psycopg.Connection[Any]) -> None:
        """By a group, as others read them."""
        tables: dict[str, dict[tuple[Any, ...], Any]] = {feed.name: {} for feed in FEEDS}
        numbers = dict.fromkeys(tables, 0)
        keys = {feed.name: tuple(feed.key) for feed in FEEDS}
        with box.topics.group("deltas", "judge").consumer() as consumer:
            while batch := consumer.poll(500, wait=0):
                for event in batch:
                    name = event.headers["feed"]
                    numbers[name] += 1
                    assert int(event.headers["feed-n"]) == numbers[name], f"{name}: a gap before {event.headers}"
                    table, counts = tables[name], Counter[str]()
                    for op, row in consumer.rows(event):
                        key = tuple(row[column] for column in keys[name])
                        counts[op] += 1
                        if op == "deleted":
                            assert table.pop(key) == row, f"{name}: delta {numbers[name]} deletes what is not there"
                        else:
                            assert key not in table, f"{name}: delta {numbers[name]} inserts {key} again"
                            table[key] = row
                    assert counts["inserted"] == int(event.headers["feed-inserted"])
                    assert counts["deleted"] == int(event.headers["feed-deleted"])
                    self.replayed += 1
                    self.claim_checks += event.headers["feed-claim-check"] == "true"
                consumer.commit(batch)
        for feed in FEEDS:
            kept = owner.execute(
                sql.SQL("SELECT row_to_json(q)::text FROM {} q").format(sql.Identifier(f"feed_{feed.name}"))
            ).fetchall()
            there = sorted(_plain(text) for (text,) in kept)
            if there != sorted(_plain(row) for row in tables[feed.name].values()):
                self.torn.append(f"{feed.name}: the deltas do not make the table")

    # -- writers, and what happens to them ------------------------------------------------------------

    def _write(self, chance: random.Random) -> None:
        while not self._over.is_set():
            try:
                with psycopg.connect(self.url) as writer:
                    self._write_on(writer, chance)
            except psycopg.OperationalError as error:
                if self.server is None:
                    raise
                self.faults[f"a writer's {type(error).__name__}"] += 1
                self._over.wait(0.1)

    def _write_on(self, writer: psycopg.Connection[Any], chance: random.Random) -> None:
        while not self._over.is_set():
            names = [chance.choice(WRITES) for _ in range(chance.choice((1, 1, 2, 4)))]
            try:
                for name in names:
                    name(writer, chance)
                    if chance.random() < 0.1:
                        with writer.transaction(force_rollback=True):
                            chance.choice(WRITES)(writer, chance)
                if chance.random() < 0.3:  # commits late
                    writer.execute("SELECT pg_sleep(%s)", (chance.random() * 0.02,))
                (writer.rollback if chance.random() < 0.1 else writer.commit)()
                self.writes.update(name.__name__ for name in names)
            except (psycopg.errors.DeadlockDetected, psycopg.errors.IntegrityError):
                writer.rollback()
                self.writes["failed"] += 1

    def _define(self, chance: random.Random) -> None:
        """Direct DDL: triggers are disabled, enabled and dropped, partitions come and go."""
        while not self._over.wait(chance.random() * 0.4):
            try:
                with psycopg.connect(self.url) as other:
                    other.execute("SET lock_timeout = '1s'")
                    what = chance.choice((self._disable, self._drop_trigger, self._partition))
                    what(other, chance)
                    self.faults[what.__name__.strip("_")] += 1
            except (psycopg.OperationalError, psycopg.ProgrammingError, psycopg.InternalError):  # a refresh was quicker
                self.faults["DDL that gave up"] += 1

    def _disable(self, other: psycopg.Connection[Any], chance: random.Random) -> None:
        """Changes go unseen in between."""
        table, name = chance.choice(other.execute(TRIGGERS.encode()).fetchall())
        other.execute(f"ALTER TABLE {table} DISABLE TRIGGER {name}".encode())
        other.commit()
        self._over.wait(chance.random() * 0.05)
        if chance.random() < 0.5:
            other.execute(f"ALTER TABLE {table} ENABLE TRIGGER {name}".encode())

    def _drop_trigger(self, other: psycopg.Connection[Any], chance: random.Random) -> None:
        table, name = chance.choice(other.execute(TRIGGERS.encode()).fetchall())
        other.execute(f"DROP TRIGGER IF EXISTS {name} ON {table}".encode())

    def _partition(self, other: psycopg.Connection[Any], chance: random.Random) -> None:
        """With rows in it when it comes and when it goes."""
        other.execute("CREATE TABLE IF NOT EXISTS part_new (LIKE part INCLUDING ALL)")
        attached = other.execute("SELECT 1 FROM pg_inherits WHERE inhrelid = 'part_new'::regclass").fetchone()
        if attached:
            other.execute("ALTER TABLE part DETACH PARTITION part_new")
            if other.info.server_version < 150000:  # takes no table back that has our triggers
                other.execute("DROP TABLE part_new")
        else:
            other.execute("TRUNCATE part_new")
            other.execute("INSERT INTO part_new SELECT -g, g % 7, g FROM generate_series(1, 40) g")
            other.execute("ALTER TABLE part ATTACH PARTITION part_new FOR VALUES FROM (-100) TO (0)")

    def _kill(self, chance: random.Random) -> None:
        assert self.server is not None
        faults = ["session"] * 6 + ["refresher"] * 3 + ["server"]
        while not self._over.wait(0.2 + chance.random() * 2):
            fault = chance.choice(faults)
            if fault == "refresher" and self._refreshers:
                chance.choice(self._refreshers).kill()
            else:
                with contextlib.suppress(psycopg.OperationalError):  # it recovers from the last one
                    self._end_session(self.server, crash=fault == "server")
            self.faults[fault] += 1

    def _end_session(self, server: PostgresServer, *, crash: bool) -> None:
        with psycopg.connect(server.url(), autocommit=True) as admin:
            found = admin.execute(
                "SELECT pid FROM pg_stat_activity WHERE datname = %s AND state <> 'idle' ORDER BY random() LIMIT 1",
                (self.url.rpartition("/")[2],),
            ).fetchone()
        if found:
            server.kill_backend(found[0], crash=crash)


class _Among:
    """A refresher that may be killed while it is listed."""

    def __init__(self, listed: list[subprocess.Popen[str]], process: subprocess.Popen[str]) -> None:
        self._listed, self._process = listed, process

    def __enter__(self) -> None:
        self._listed.append(self._process)

    def __exit__(self, *error: object) -> None:
        self._listed.remove(self._process)
        if error[0] is not None:
            self._process.kill()


def _plain(row: Any) -> str:
    """A row of JSON in one form."""
    found = json.loads(row, parse_float=Decimal) if isinstance(row, str) else row
    return str(sorted((key, str(value)) for key, value in found.items()))


def main() -> int:
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else 2_000
    with PostgresServer.from_wheel() as server:
        url = server.create_database()
        with Outbox(url) as box:
            box.migrate()
        trial = Trial(url, wanted, server=server)
        trial.run()
    print(f"refreshes {dict(trial.refreshes)}; writes {dict(trial.writes)}; faults {dict(trial.faults)}")
    print(f"{trial.replayed} deltas replayed, {trial.claim_checks} by claim check; torn: {trial.torn[:5] or 'none'}")
    for error in trial.errors:
        print(f"error: {error}")
    return 1 if trial.torn or trial.errors else 0


if __name__ == "__main__":
    raise SystemExit(main())
