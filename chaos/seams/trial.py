"""One trial: servers, writer and receivers; something is broken, something happens; then peace, and the judgement."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from relaybox import AsyncMaintainer
from relaybox.settings import Settings, TopicSettings
from relaybox.testing.servers import PostgresStandby, TcpGate
from relaybox.testing.servers.postgres import connect as connect_admin

from . import faults, life
from .checker import SECOND, Message, Report, Window, judge, missing, tally
from .notes import Note, Notes, Reader
from .nursery import Child
from .products import GROUP, INBOX, PRODUCTS, SQLITE, TIMES, Product, connect, execute, known, prepare
from .world import Disk, Machine, World, end

ROOT = Path(__file__).parent.parent.parent
PACE = 0.025  # seconds between two transactions
WARM, AFTERWARDS = 60, 40  # messages before and after
CALM = 30.0
READY = 40.0
STOP = 15.0
RESTARTS = 40
STREAM = "out"


@dataclass(frozen=True, slots=True)
class Plan:
    product: str
    engine: str
    fault: str = ""
    life: str = ""

    @property
    def name(self) -> str:
        on = "" if self.engine == "postgresql" else f" on {self.engine}"
        return " × ".join(part for part in (self.fault, self.life, self.product + on) if part)

    @property
    def seed(self) -> int:
        return zlib.crc32(self.name.encode())


class Process:
    """A receiver, under the same number through all its incarnations."""

    def __init__(self, trial: Trial, number: int, group: str = "", kind: str = "") -> None:
        self.trial, self.number, self.group, self.kind = trial, number, group, kind
        self.incarnation = 0
        self.process: subprocess.Popen[bytes] | Child | None = None
        self.restarts = 0
        self.stopped = False

    @property
    def log_path(self) -> Path:
        return self.trial.folder / f"log-{self.number}.txt"

    def start(self) -> None:
        self.incarnation += 1
        self.stopped = False  # by us
        trial = self.trial
        clock = faults.environment(trial.fault, self.number)
        module, arguments = self._command()
        self._begins = self.log_path.stat().st_size if self.log_path.exists() else 0
        if not clock and trial.machine is None:
            self.process = trial.world.nursery().start(module, arguments, self.log_path)
            return
        environment = {name: value for name, value in os.environ.items() if not name.startswith("RELAYBOX_")}
        command = [sys.executable, "-m", module, *arguments]
        if trial.machine is not None:
            command = trial.machine.command(command)
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(command, cwd=ROOT, env=environment | clock, stdout=log, stderr=log)

    def _command(self) -> tuple[str, list[str]]:
        trial = self.trial
        if self.kind in ("relay", "ingest"):
            config = trial.folder / f"{self.kind}-{self.number}.toml"
            config.write_text(trial.toml(self.kind, self.number))
            notes = trial.folder / f"c{self.number}-{self.incarnation}.notes"
            return "chaos.seams.command", [str(notes), self.kind, "--config", str(config)]
        spec = trial.spec() | {"number": self.number, "incarnation": self.incarnation, "group": self.group}
        path = trial.folder / f"receiver-{self.number}.json"
        path.write_text(json.dumps(spec))
        return "chaos.seams.receiver", [str(path)]

    def ready(self) -> bool:
        if self.kind:
            said = self.log_path.read_bytes()[self._begins :] if self.log_path.exists() else b""
            return b"relaybox runs" in said or b"stores" in said
        mine = f"r{self.number}-{self.incarnation}"
        return any(note.op == "ready" and note.who == mine for note in self.trial._notes())

    def wait_ready(self) -> None:
        deadline = time.monotonic() + READY
        while not self.ready():
            self.supervise()
            if time.monotonic() > deadline:
                raise RuntimeError(f"receiver {self.number} was not ready within {READY:.0f} s; see {self.log_path}")
            time.sleep(0.03)

    def supervise(self) -> None:
        """A process that cannot start, say because the database is away, is started again, as anybody does."""
        if self.process is not None and self.process.poll() is not None and not self.ready() and not self.stopped:
            self.restarts += 1
            time.sleep(0.2)
            if self.restarts > RESTARTS:
                raise RuntimeError(f"receiver {self.number} ended at its start; see {self.log_path}")
            self.start()

    def kill(self) -> None:
        assert self.process is not None
        self.stopped = True
        self.process.kill()
        self.process.wait()

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def stop(self) -> None:
        assert self.process is not None
        with suppress(RuntimeError):
            self.wait_ready()  # before that a signal just ends it
        self.stopped = True
        if self.process.poll() is None and not end(self.process, STOP):
            self.trial.harness.append(f"receiver {self.number} did not stop within {STOP:.0f} s")
            return
        if self.process.returncode != 0:
            self.trial.harness.append(f"receiver {self.number} ended with {self.process.returncode}")


class Trial:
    def __init__(self, plan: Plan, world: World, *, keep: bool = False) -> None:
        self.plan, self.world, self._keep = plan, world, keep
        self.product: Product = PRODUCTS[plan.product]
        self.engine = plan.engine
        self.fault = faults.FAULTS[plan.fault] if plan.fault else None
        self.life = life.LIVES[plan.life] if plan.life else None
        self.folder = Path(tempfile.mkdtemp(prefix="relaybox-seam-"))
        self.folder.chmod(0o755)
        self.reader = Reader(self.folder)
        self.receivers: list[Process] = []
        self.windows: list[Window] = []
        self.harness: list[str] = []
        self.undo: list[Callable[[], object]] = []
        self.server: Any = None
        self.standby: PostgresStandby | None = None
        self.gate: TcpGate | None = None
        self.machine: Machine | None = None
        self.disk: Disk | None = None
        self.direct = ""  # the database's URL, for writers and operators
        self.url = ""  # for receivers
        self.broker_url = ""
        self._stack = ExitStack()
        self.writer: Child | None = None
        self._broker_at = "-"
        self._behind = time.monotonic_ns() - time.time_ns()
        self._lock = threading.Lock()

    # -- for faults and life events ---------------------------------------------------------------------------

    def flag(self, name: str, value: float) -> None:
        fresh = self.folder / f"{name}.new"
        fresh.write_text(str(value))
        fresh.rename(self.folder / name)

    def unflag(self, name: str) -> None:
        (self.folder / name).unlink(missing_ok=True)

    def log(self, text: str) -> None:
        with (self.folder / "trial.log").open("a") as file:
            file.write(f"{time.monotonic():.2f} {text}\n")

    def move_to(self, server: Any) -> None:
        """Writers ask a file; receivers stay with their gate."""
        assert self.gate is not None
        self.direct = server.url(urlsplit(self.direct).path[1:])
        self.gate.target_port = server.port
        self._tell_writers()

    def add_receiver(self) -> Process:
        kind = "relay" if self.product.kind == "relay" else ""
        receiver = Process(self, max(one.number for one in self.receivers) + 1, kind=kind)
        self.receivers.append(receiver)
        receiver.start()
        return receiver

    def receive_as(self, group: str) -> None:
        receiver = Process(self, max(one.number for one in self.receivers) + 1, group=group)
        self.receivers.append(receiver)
        receiver.start()

    def load(self, messages: int, patience: float = 10.0) -> None:
        """Until so many more are written, or for so long: a fault may keep writers from it."""
        self._await("acked", messages, patience)

    def begun(self, handlers: int, patience: float = 6.0) -> None:
        self._await("begin", handlers, patience)

    def _await(self, op: str, count: int, patience: float) -> None:
        enough = sum(note.op == op for note in self._notes()) + count
        deadline = time.monotonic() + patience
        while sum(note.op == op for note in self._notes()) < enough and time.monotonic() < deadline:
            time.sleep(0.03)

    def _notes(self) -> list[Note]:
        with self._lock:
            return list(self.reader.more())

    # -- the trial ----------------------------------------------------------------------------------------------

    def run(self) -> dict[str, Any]:
        began = time.monotonic()
        report = Report()
        try:
            with self._stack:
                try:
                    report = self._run()
                except Exception as error:  # of the trial, not of the product: told as such
                    self.log(f"harness: {type(error).__name__}: {error}")
                    self.harness.append(f"{type(error).__name__}: {error}"[:500])
        finally:
            self._stack.close()
        for text in self.harness:
            report.blame("harness", text)
        result = {
            "trial": self.plan.name,
            "product": self.plan.product,
            "engine": self.engine,
            "fault": self.plan.fault,
            "life": self.plan.life,
            "verdict": report.verdict,
            "seconds": round(time.monotonic() - began, 1),
            **report.figures,
        }
        if not report.passed:
            result |= {"examples": report.examples(), "folder": str(self.folder)}
        elif not self._keep:
            import shutil

            shutil.rmtree(self.folder, ignore_errors=True)
        return result

    def _run(self) -> Report:
        self._open()
        options = dict(self.life.topic) if self.life else {}
        if self.life and self.fault is None:
            options |= self.life.alone
        prepare(self.product, self.engine, self.direct, options)
        if self.fault is not None and self.fault.forgets:
            self.standby = self._stack.enter_context(PostgresStandby(self.server))
        if self.product.topic and self.life is not None:
            self._maintain()
        self._start()
        self.load(WARM)
        self._break()
        self.load(AFTERWARDS)
        self.unflag("slow")
        truth = self._calm()
        for receiver in self.receivers:
            receiver.stop()
        self._read_broker()
        promise = self.product.promise(*(self.life.streams if self.life else ()))
        return judge(truth, self._notes(), self.windows, promise, self._effects())

    def _open(self) -> None:
        """Servers, database, gate, machine, disk."""
        if self.fault is not None and self.fault.disk:
            self.disk = Disk()
            self._stack.callback(self.disk.close)
        if self.product.broker:
            self.broker_url = self.world.broker().fresh_url()
        if self.engine == SQLITE:
            folder = self.disk.folder if self.disk else self.folder
            self.direct = self.url = f"sqlite:///{folder}/seam.db"
        else:
            self._open_server()
        self._tell_writers()

    def _open_server(self) -> None:
        kind = self.fault.server if self.fault else "plain"
        self.server = self.world.server(self.engine, kind)
        if kind == "primary":
            self._stack.callback(self.server.close)
        if kind == "clocked":
            self.server.set_clock(0)
        self.direct = self._on_small_disk() if self.disk else self.server.create_database()
        if kind != "primary":
            database, server = self.direct, self.server
            self._stack.callback(lambda: server.start().drop_database(database))
        host = "127.0.0.1"
        if self.fault is not None and self.fault.machine:
            self.machine = Machine(self.world.lane + 1)
            self._stack.callback(self.machine.close)
            host = self.machine.host
            if self.product.broker:
                broker = self._stack.enter_context(self.world.gate(self.world.broker().port, host))
                self._there = broker.through(self.broker_url)
        self.gate = self._stack.enter_context(self.world.gate(self.server.port, host))
        self.url = self.gate.through(self.direct)

    def _on_small_disk(self) -> str:
        assert self.disk is not None
        space = self.disk.folder / "space"
        space.mkdir()
        space.chmod(0o777)
        self.server._give(space)
        name = f"seam_{os.getpid()}_{time.monotonic_ns()}"
        with closing(connect_admin(self.server.url())) as admin:
            admin.execute(f"CREATE TABLESPACE {name} LOCATION '{space}'")
            admin.execute(f"CREATE DATABASE {name} TABLESPACE {name}")

        def drop() -> None:
            with closing(connect_admin(self.server.start().url())) as admin:
                admin.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
                admin.execute(f"DROP TABLESPACE IF EXISTS {name}")

        self._stack.callback(drop)
        return str(self.server.url(name))

    def _tell_writers(self) -> None:
        fresh = self.folder / "database.new"
        fresh.write_text(self.direct)
        fresh.rename(self.folder / "database")

    def spec(self) -> dict[str, Any]:
        return {
            "folder": str(self.folder),
            "product": self.plan.product,
            "engine": self.engine,
            "url": self.url,
            "settings": self.settings,
            "silent": self.fault is not None and self.fault.silent,
        }

    @property
    def settings(self) -> dict[str, Any]:
        of_fault = self.fault.settings if self.fault else {}
        return {**of_fault, **(self.life.settings if self.life else {})}

    def toml(self, kind: str, number: int) -> str:
        from ..relay import toml_table

        at_hand = getattr(self, "_there", self.broker_url)
        values = {
            name: f"{value}s" if isinstance(value, float) else value
            for name, value in known({**TIMES, **self.settings}).items()
        }
        if kind == "relay":
            retry = {
                path.removeprefix("delivery."): v for path, v in values.items() if path.startswith("delivery.retry")
            }
            kept = {"retention": values["outbox.retention"]} if "outbox.retention" in values else {}
            tables: dict[str, dict[str, Any]] = {
                "relaybox": {"url": self.url, **values},
                "relaybox.relay": {"to": STREAM, **retry, **kept},
                "relaybox.sink": {"url": at_hand, "dedup_window": "0s"},
            }
        else:
            source = {"url": at_hand, "stream": GROUP, "consumer": f"c{number}", "claim_idle": "2s"}
            tables = {
                "relaybox": {"url": self.url, **values},
                "relaybox.ingest": {"inbox": INBOX, "wait": "200ms"},
                "relaybox.source": source,
            }
        return "".join(toml_table(name, table) for name, table in tables.items())

    def _maintain(self) -> None:
        """A maintainer near the database, as there should be one."""
        loop = asyncio.new_event_loop()
        stop = asyncio.Event()
        often = timedelta(milliseconds=400)
        upkeep = TopicSettings(
            tick_interval=often,
            detect_interval=often / 8,
            cleanup_interval=often,
            thin_interval=often,
            partition_interval=often,
            watch_interval=often,
            term_ttl=timedelta(seconds=2),
            stop_timeout=timedelta(seconds=2),
        )

        async def work() -> None:
            while not stop.is_set():
                with suppress(Exception):
                    async with AsyncMaintainer(self.direct, settings=Settings(topics=upkeep)):
                        here = self.direct
                        while not stop.is_set() and here == self.direct:
                            with suppress(TimeoutError):
                                await asyncio.wait_for(stop.wait(), 0.2)
                await asyncio.sleep(0.2)

        thread = threading.Thread(target=lambda: loop.run_until_complete(work()), daemon=True)
        thread.start()

        def over() -> None:
            loop.call_soon_threadsafe(stop.set)
            thread.join(20)

        self._stack.callback(over)

    def _start(self) -> None:
        self._start_writer()
        self._start_receivers()
        self.unflag("wait")
        deadline = time.monotonic() + READY
        while not any(note.op == "acked" for note in self._notes()):
            assert self.writer is not None
            if self.writer.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the writer writes nothing; see {self.folder}/log-writer.txt")
            time.sleep(0.03)

    def _start_receivers(self) -> None:
        kind = "relay" if self.product.kind == "relay" else ""
        self.receivers = [Process(self, number + 1, kind=kind) for number in range(self.product.receivers)]
        if self.product.kind == "ingest":
            self.receivers.append(Process(self, 3, kind="ingest"))
        self._stack.callback(self._end_all)
        for receiver in self.receivers:
            receiver.start()
        for receiver in self.receivers:
            receiver.wait_ready()

    def _start_writer(self) -> None:
        self._stack.callback(self._end_all)
        poison = self.life is not None and self.life.poison
        spec = self.spec() | {"number": 1, "pace": PACE, "seed": self.plan.seed, "poison": poison}
        path = self.folder / "writer.json"
        path.write_text(json.dumps(spec | {"broker": self.broker_url}))
        self.flag("wait", 1)
        self.writer = self.world.nursery().start("chaos.seams.writer", [str(path)], self.folder / "log-writer.txt")

    def _end_all(self) -> None:
        for process in (self.writer, *(receiver.process for receiver in self.receivers)):
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()

    def _break(self) -> None:
        """The fault; or the life event; or the one in the midst of the other."""
        if self.fault is None:
            self._live()
            return
        self.flag("slow", self.fault.in_hand)
        self.begun(4, 2.0)
        begin = time.monotonic_ns()
        self.fault.begin(self)
        until = time.monotonic() + self.fault.seconds
        living = None
        if self.life is not None:
            living = threading.Thread(target=self._live)
            living.start()
        time.sleep(max(0.0, until - time.monotonic()))
        self.fault.end(self)
        self.windows.append(self.window(begin))
        if living is not None:
            living.join()

    def window(self, begin: int) -> Window:
        fault = self.fault
        assert fault is not None
        end = time.monotonic_ns()
        return Window(fault.name, begin, end, duplicates=fault.duplicates, forgets=fault.forgets)

    def _live(self) -> None:
        assert self.life is not None
        begin = time.monotonic_ns()
        try:
            self.life.act(self)
        except Exception as error:
            self.log(f"life: {type(error).__name__}: {error}")
            self.harness.append(f"{self.life.name}: {type(error).__name__}: {error}"[:500])
        begin -= int((self.fault.held if self.fault else 0.0) * SECOND)
        self.windows.append(
            Window(
                self.life.name,
                begin,
                time.monotonic_ns(),
                duplicates=self.life.duplicates,
                again=self.life.again,
            )
        )

    # -- peace --------------------------------------------------------------------------------------------------

    def _calm(self) -> dict[str, Message]:
        self.flag("stop", 1)
        assert self.writer is not None
        try:
            self.writer.wait(20)
        except subprocess.TimeoutExpired:
            self.harness.append("the writer did not stop")
            self.writer.kill()
        self._await_writing_receivers()
        deadline = time.monotonic() + (self.fault.calm if self.fault and self.product.inbox else CALM)
        truth = self._truth()
        while (self._left(truth) or self._children_out()) and time.monotonic() < deadline:
            if self.life is not None and self.life.settle is not None:
                self.life.settle(self)
            time.sleep(0.1)
            for receiver in self.receivers:
                receiver.supervise()
            truth = self._truth()
        if out := self._children_out():
            self.harness.append(f"{out} forked children did not do what they should")
        for receiver in self.receivers:
            if receiver.process is not None and receiver.process.poll() is not None and receiver.ready():
                self.harness.append(f"receiver {receiver.number} ended by itself: {receiver.process.returncode}")
        return truth

    def _children_out(self) -> int:
        children = tally(self._notes())
        return children["forked"] - children["left"]

    def _await_writing_receivers(self) -> None:
        """Some receivers write as well, and what they write may commit late: a link was cut, say. One that hangs in a
        black hole is not waited for: what it has not committed by now can commit no more."""
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            noted = {(note.op, note.who) for note in self._notes()}
            here = [
                f"r{one.number}-{one.incarnation}"
                for one in self.receivers
                if one.process and one.process.poll() is None
            ]
            if not any(("writes", who) in noted and ("written", who) not in noted for who in here):
                return
            time.sleep(0.03)

    def _left(self, truth: dict[str, Message]) -> int:
        if self.product.effects:
            return len(truth.keys() - self._effects().keys())
        self._read_broker()
        promise = self.product.promise(*(self.life.streams if self.life else ()))
        return len(missing(truth, self._notes(), promise))

    def _truth(self) -> dict[str, Message]:
        if self.product.kind == "ingest":
            acked = [note for note in self._notes() if note.op == "acked"]
            forgotten = max((w.end for w in self.windows if w.forgets), default=0)
            # What the inbox had and forgot in a fail-over was acknowledged to the broker: it is gone.
            known_effects = self._effects() if forgotten else {}
            return {
                note.id: Message(note.key, note.n) for note in acked if note.at > forgotten or note.id in known_effects
            }
        with closing(connect(self.direct)) as connection:
            rows = execute(connection, "SELECT id, k, n FROM seam_truth")
        return {id: Message(key, n) for id, key, n in rows}

    def _effects(self) -> dict[str, int]:
        if not self.product.effects:
            return {}
        with closing(connect(self.direct)) as connection:
            return dict(Counter(id for (id,) in execute(connection, "SELECT id FROM seam_effect")))

    def _read_broker(self) -> None:
        """What has arrived since, with another client library, in the order of the stream."""
        if self.product.kind != "relay":
            return
        import redis

        notes = Notes(self.folder / "broker.notes")
        with redis.Redis.from_url(self.broker_url) as client:
            entries: Any = client.xrange(STREAM, min=self._broker_at)
        for place, fields in entries:
            self._broker_at = f"({place.decode()}"
            milliseconds, index = (int(part) for part in place.split(b"-"))
            at = milliseconds * 1_000_000 + index + self._behind
            n = json.loads(fields[b"data"])["n"]
            for op in ("begin", "done"):
                notes.note(op, at=at, id=fields[b"id"].decode(), key=fields[b"key"].decode(), n=n)
