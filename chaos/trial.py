"""Runs one trial: starts PostgreSQL, writers and dispatchers, breaks them, and hands the histories to the checker."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from relaybox import Outbox, Settings
from relaybox.testing.servers import PostgresServer

from .checker import TRUTH as TRUTH_FORMAT
from .load import TRUTH
from .records import Fault, History, Op

ROOT = Path(__file__).parent.parent
FIRST_DISPATCHER = 101
DRAIN_SECONDS = 60.0


@dataclass(frozen=True)
class Options:
    seconds: float = 60.0
    seed: int = 0
    writers: int = 3
    dispatchers: int = 2
    kills_per_minute: float = 60.0
    pg_restarts: int = 5
    terminations_per_minute: float = 10.0
    pauses_per_minute: float = 3.0
    ttl: float = Settings().delivery.instance_ttl.total_seconds()
    pause: float = 0.008  # of a writer between two transactions
    plant: str = "none"

    @property
    def faultless(self) -> bool:
        rates = (self.kills_per_minute, self.pg_restarts, self.terminations_per_minute, self.pauses_per_minute)
        return not any(rates)


class Member:
    """One process of the trial, under the same number through all its incarnations."""

    def __init__(self, trial: Trial, worker: int) -> None:
        self.trial = trial
        self.worker = worker
        self.incarnation = 0
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def is_dispatcher(self) -> bool:
        return self.worker >= FIRST_DISPATCHER

    def start(self) -> None:
        self.incarnation += 1
        trial, options = self.trial, self.trial.options
        seed = options.seed * 1_000_003 + self.worker * 1_009 + self.incarnation
        common = [trial.url, str(trial.folder), str(self.worker), str(self.incarnation), str(seed)]
        if self.is_dispatcher:
            command = ["chaos.dispatcher", *common, str(options.ttl), options.plant]
        else:
            command = ["chaos.writer", *common, str(options.pause)]
        with (trial.folder / f"log-{self.worker}.txt").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *command], cwd=ROOT, stdout=log, stderr=log, start_new_session=True
            )

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        os.kill(self.process.pid, number)

    @property
    def ended(self) -> bool:
        return self.process is not None and self.process.poll() is not None


class Trial:
    def __init__(self, options: Options, folder: Path) -> None:
        self.options = options
        self.folder = folder
        self.url = ""
        self._random = random.Random(options.seed)
        self._server = PostgresServer.from_wheel(durable=True)
        self._writers = [Member(self, n) for n in range(options.writers)]
        self._dispatchers = [Member(self, FIRST_DISPATCHER + n) for n in range(options.dispatchers)]
        self._history = History(folder / "orchestrator-0.bin", 0, 0)
        self._wake_at: list[tuple[float, Member, int]] = []
        self._harness: list[str] = []

    def run(self) -> dict[str, Any]:
        """The checker's report. Children never outlive this call."""
        members = [*self._writers, *self._dispatchers]
        with self._server:
            self._prepare()
            try:
                for member in members:
                    member.start()
                self._storm()
                self._calm()
                self._dump()
            finally:
                for member in members:
                    if member.process is not None:
                        with contextlib.suppress(ProcessLookupError):
                            member.process.kill()
                        member.process.wait()
        settings = Settings()
        meta = {
            "ttl": self.options.ttl,
            "in_flight": settings.delivery.hot_queue + settings.delivery.cold_queue,
            "harness": self._harness,
        }
        (self.folder / "meta.json").write_text(json.dumps(meta))
        done = subprocess.run([sys.executable, "-m", "chaos.checker", str(self.folder)], cwd=ROOT, check=False)
        if done.returncode not in (0, 1):
            raise RuntimeError(f"the checker itself failed; histories in {self.folder}")
        report: dict[str, Any] = json.loads((self.folder / "report.json").read_text())
        return report

    def _prepare(self) -> None:
        self.url = self._server.create_database()
        with Outbox(self.url) as box:
            box.migrate()
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(TRUTH)

    # -- breaking things ----------------------------------------------------------------------------------

    def _storm(self) -> None:
        options, started = self.options, time.monotonic()
        ends = started + options.seconds
        schedule = sorted(self._schedule(started), key=lambda item: item[0])
        for at, strike in [*schedule, (ends, lambda: None)]:
            while (left := at - time.monotonic()) > 0:
                self._wake_sleepers()
                self._look_after()
                time.sleep(min(left, 0.05))
            strike()
        while self._wake_at:
            self._wake_sleepers()
            time.sleep(0.05)

    def _schedule(self, started: float) -> Iterator[tuple[float, Callable[[], None]]]:
        """Faults at random times, none in the first second: processes need one to start."""
        options = self.options
        kinds: list[tuple[float, Callable[[], None]]] = [
            (options.kills_per_minute * options.seconds / 60, self._kill_one),
            (options.pg_restarts, self._restart_postgres),
            (options.terminations_per_minute * options.seconds / 60, self._terminate),
            (options.pauses_per_minute * options.seconds / 60, self._pause_one),
        ]
        for count, strike in kinds:
            for _ in range(round(count)):
                yield started + self._random.uniform(1.5, max(2.0, options.seconds - 0.5)), strike

    def _kill_one(self) -> None:
        sleeping = [member for _, member, _ in self._wake_at]
        awake = [m for m in (*self._writers, *self._dispatchers) if m not in sleeping]
        weights = [2 if m.is_dispatcher else 1 for m in awake]
        member = self._random.choices(awake, weights)[0]
        kind = Fault.KILL_DISPATCHER if member.is_dispatcher else Fault.KILL_WRITER
        at = time.monotonic_ns()
        member.kill()
        self._note(kind, member, at)
        member.start()

    def _restart_postgres(self) -> None:
        at = time.monotonic_ns()
        self._server.restart("immediate")
        self._note(Fault.PG_RESTART, None, at)

    def _terminate(self) -> None:
        at = time.monotonic_ns()
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
                " AND pid <> pg_backend_pid() AND random() < 0.6"
            )
        self._note(Fault.TERMINATE, None, at)

    def _pause_one(self) -> None:
        """Longer than its heartbeat may be silent: it wakes up with claims that are not its own any more."""
        sleeping = [member for _, member, _ in self._wake_at]
        awake = [m for m in self._dispatchers if m not in sleeping]
        if len(awake) < 2:
            return
        member = self._random.choice(awake)
        at = time.monotonic_ns()
        member.signal(signal.SIGSTOP)
        self._wake_at.append((time.monotonic() + self.options.ttl * 1.6, member, at))

    def _wake_sleepers(self) -> None:
        for entry in list(self._wake_at):
            due, member, at = entry
            if time.monotonic() >= due:
                self._wake_at.remove(entry)
                member.signal(signal.SIGCONT)
                self._note(Fault.PAUSE, member, at)

    def _note(self, kind: Fault, member: Member | None, at: int) -> None:
        took = (time.monotonic_ns() - at) // 1_000_000 + 1
        self._history.note(
            Op.FAULT,
            kind,
            aux=took,
            worker=member.worker if member else 0,
            incarnation=member.incarnation if member else 0,
            at=at,
        )

    def _look_after(self) -> None:
        """No process may end by itself: loops never die of an error."""
        for member in (*self._writers, *self._dispatchers):
            if member.ended:
                assert member.process is not None
                self._harness.append(
                    f"process {member.worker} ended by itself with status {member.process.returncode}; see its log"
                )
                member.start()

    # -- and then peace -------------------------------------------------------------------------------------

    def _calm(self) -> None:
        (self.folder / "stop").touch()
        for member in self._writers:
            assert member.process is not None
            try:
                member.process.wait(10)
            except subprocess.TimeoutExpired:
                self._harness.append(f"writer {member.worker} did not stop")
                member.kill()
        self._await_quiet()
        deadline = time.monotonic() + DRAIN_SECONDS
        with psycopg.connect(self.url, autocommit=True) as connection:
            while (left := self._left(connection)) and time.monotonic() < deadline:
                time.sleep(0.1)
        if left:
            self._harness.append(f"{left} events still undelivered after {DRAIN_SECONDS:.0f} s of calm")
        (self.folder / "done").touch()
        for member in self._dispatchers:
            assert member.process is not None
            try:
                if member.process.wait(20) != 0:
                    self._harness.append(f"dispatcher {member.worker} ended with {member.process.returncode}")
            except subprocess.TimeoutExpired:
                self._harness.append(f"dispatcher {member.worker} did not stop")

    def _await_quiet(self) -> None:
        """Dispatchers write too: each says so with a file when it has seen `stop` and written its last."""
        deadline = time.monotonic() + 15
        while time.monotonic() < deadline:
            if all((self.folder / f"quiet-{m.worker}-{m.incarnation}").exists() for m in self._dispatchers):
                return
            time.sleep(0.02)
        self._harness.append("a dispatcher did not stop writing")

    def _left(self, connection: psycopg.Connection[Any]) -> int:
        row = connection.execute(
            "SELECT (SELECT count(*) FROM outbox_event_pending)"
            " + (SELECT coalesce(sum(cardinality(items)), 0) FROM outbox_event_claim)"
        ).fetchone()
        assert row is not None
        return int(row[0])

    def _dump(self) -> None:
        with psycopg.connect(self.url) as connection:
            rows = connection.execute("SELECT event_no, key FROM truth").fetchall()
            (self.folder / "truth.bin").write_bytes(b"".join(TRUTH_FORMAT.pack(*row) for row in rows))
            left = self._left(connection)
            dead = connection.execute("SELECT seq, attempts, last_error FROM outbox_event_dead").fetchall()
        if left:
            self._harness.append(f"{left} events undelivered at the end")
        self._harness += [f"event with seq {seq} died after {tries} attempts: {why}" for seq, tries, why in dead]
