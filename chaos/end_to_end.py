"""python -m chaos.end_to_end --broker kafka --messages 100000: from the transaction of one service to that of another.

    A: rows, events ─► outbox ─► relays ─► broker ─► ingest ─► inbox ─► B: effect, reply ─► outbox ─► relay ─► file

A and B have a PostgreSQL server each. Every process is killed (-9) at random and started again, some are frozen for
longer than their leases, the broker is killed and both databases are stopped at once, again and again. Faults are
spread over the progress of B and not over time: a slow machine sees as many of them as a fast one, and none of them
comes too late. Then end_to_end_judge reads both databases: each effect exactly once, none missing, accounts in order.

`--broker none` leaves broker and ingest out: A's relays write into B's inbox.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeAlias

import psycopg

from relaybox import Inbox, Outbox
from relaybox.testing.servers import PostgresServer

from .brokers import Broker, broker
from .end_to_end_judge import count, judge, read, waiting
from .end_to_end_services import KINDS, TABLES_A, TABLES_B, TTL
from .relay import toml_table

Strike: TypeAlias = Callable[[], None]
Fault: TypeAlias = tuple[float, Strike]  # with the share of the work that B has done when it strikes

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "chaos" / "results" / "end_to_end.jsonl"
BROKERS = ("kafka", "rabbitmq", "nats")
PATIENCE = 120.0  # seconds without any progress
LEAD = 0.05  # of the messages A may be ahead of B: so its writers live through everything too


@dataclass(frozen=True)
class Options:
    broker: str = "kafka"
    messages: int = 100_000
    accounts: int = 500
    order: str = "ordered"
    writers: int = 2
    relays: int = 2
    ingests: int = 2
    processors: int = 3
    kills: int = 200
    pauses: int = 10
    broker_kills: int = 4
    database_stops: int = 4  # of each of the two
    outage_seconds: float = 2.0
    seed: int = 0


class Member:
    """One process under one name through all its lives."""

    def __init__(self, name: str, command: list[str], ready: str, folder: Path) -> None:
        self.name = name
        self.wakes_at: float | None = None
        self._command = command
        self._ready = ready.encode()
        self._log = folder / f"{name}.log"
        self.start()

    @property
    def role(self) -> str:
        return self.name.rpartition("-")[0]

    def start(self) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("RELAYBOX_")}
        self.started = time.monotonic()
        with self._log.open("ab") as log:
            self._begins = log.tell()
            self.process = subprocess.Popen(self._command, cwd=ROOT, env=environment, stdout=log, stderr=log)

    @property
    def ready(self) -> bool:
        return self._ready in self._log.read_bytes()[self._begins :]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.wakes_at = None

    def freeze(self, seconds: float) -> None:
        self.process.send_signal(signal.SIGSTOP)
        self.wakes_at = time.monotonic() + seconds

    def thaw(self, *, at_once: bool = False) -> None:
        if self.wakes_at is not None and (at_once or time.monotonic() >= self.wakes_at):
            self.process.send_signal(signal.SIGCONT)
            self.wakes_at = None

    def stop(self) -> int:
        """Once it runs: before that a signal just ends it."""
        while self.process.poll() is None and not self.ready:
            time.sleep(0.05)
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


class Trial:
    def __init__(self, options: Options, folder: Path) -> None:
        self.options = options
        self.folder = folder
        self._random = random.Random(options.seed)
        self._problems: list[str] = []
        self._struck: Counter[str] = Counter()
        self._members: list[Member] = []
        self._broker: Broker | None = None
        self._known = (0, 0)
        self._effects = 0
        self._outage = False  # under way
        self._over = threading.Event()

    def run(self) -> dict[str, Any]:
        with ExitStack() as stack:
            self._server_a, self._server_b = (
                stack.enter_context(PostgresServer.from_wheel(durable=True)) for _ in range(2)
            )
            if self.options.broker != "none":
                self._broker = stack.enter_context(broker(self.options.broker, self.folder))
            self._prepare()
            try:
                self._members += [Member(*given, self.folder) for given in self._cast()]
                self._storm()
                self._calm()
            finally:
                for member in self._members:
                    member.kill()
            report = judge(read(self._a, self._b, self._sent), ordered=self.options.order == "ordered")
        report |= {"faults": dict(sorted(self._struck.items())), "problems": self._problems}
        if self._problems:
            report["verdict"] = "FAIL"
        return report

    def _prepare(self) -> None:
        self._sent = self.folder / "sent.jsonl"
        self._a, self._b = self._server_a.create_database(), self._server_b.create_database()
        for url, tables in ((self._a, TABLES_A), (self._b, TABLES_B)):
            with Outbox(url) as box, psycopg.connect(url) as connection:
                box.migrate()
                connection.execute(tables)
        with Inbox(self._b) as inbox, psycopg.connect(self._a) as connection:
            inbox.migrate()
            connection.execute("INSERT INTO account SELECT n, 0 FROM generate_series(0, %s) n", [self.options.accounts])

    # -- who takes part -----------------------------------------------------------------------------

    def _cast(self) -> Iterator[tuple[str, list[str], str]]:
        """Name, command, and what it says when it runs."""
        options, python = self.options, [sys.executable, "-m"]
        services, relay = [*python, "chaos.end_to_end_services"], [*python, "relaybox", "relay", "--config"]
        for n in range(options.writers):
            seed, accounts = str(options.seed * 100 + n), str(options.accounts)
            yield f"writer-{n}", [*services, "writer", self._a, str(self.folder), seed, accounts], "service A writes"
        out = self._relay_config("out", self._a, *self._first_way())
        for n in range(options.relays):
            yield f"relay-{n}", [*relay, out], "relaybox runs relay"
        if self._broker is not None:
            ingest = [*python, "relaybox", "ingest", "--config", self._ingest_config()]
            for n in range(options.ingests):
                yield f"ingest-{n}", ingest, "relaybox runs ingest"
        for n in range(options.processors):
            seed, kind = str(options.seed * 100 + 50 + n), KINDS[n % len(KINDS)]
            command = [*services, "processor", self._b, seed, options.order, kind]
            yield f"processor-{n}", command, "service B processes"
        back = self._relay_config("back", self._b, "replies", {"url": f"jsonl://{self._sent}"})
        yield "reply-relay-0", [*relay, back], "relaybox runs relay"

    def _first_way(self) -> tuple[str, dict[str, Any]]:
        """Destination and sink of A's relays."""
        if self._broker is None:
            return "inbox", {"url": f"inbox+{self._b}"}
        self._channel: str = asyncio.run(self._broker.harness.destination())
        return self._channel, {"url": self._broker.url, **self._broker.options}

    def _relay_config(self, name: str, url: str, to: str, sink: dict[str, Any]) -> str:
        relaybox = {"url": url, "delivery.instance_ttl": f"{TTL}s", "delivery.lease": f"{TTL * 3}s"}
        relay = {"to": to, "retry.max": "1s", "batch": 100}
        return self._config(name, {"relaybox": relaybox, "relaybox.relay": relay, "relaybox.sink": sink})

    def _ingest_config(self) -> str:
        assert self._broker is not None
        source = {
            "kafka": {"topics": self._channel, "group": "b", "session_timeout": f"{TTL * 3}s"},
            "rabbitmq": {"queue": self._channel.rpartition("/")[2]},
            "nats": {"stream": self._channel, "consumer": "b", "ack_wait": f"{TTL * 3}s"},
        }[self.options.broker]
        tables = {"relaybox": {"url": self._b}, "relaybox.source": {"url": self._broker.url, **source}}
        return self._config("ingest", tables)

    def _config(self, name: str, tables: dict[str, dict[str, Any]]) -> str:
        file = self.folder / f"{name}.toml"
        file.write_text("".join(toml_table(table, values) for table, values in tables.items()))
        return str(file)

    # -- breaking things ----------------------------------------------------------------------------

    def _storm(self) -> None:
        """Until B has done all that A has committed, and nothing is left to break."""
        kills, plan = self._faults(self._kills()), self._faults(self._outages())
        outages = threading.Thread(target=self._break_servers, args=(plan,))
        outages.start()
        try:
            moved = time.monotonic()
            while time.monotonic() - moved < PATIENCE:
                before, (committed, self._effects) = self._effects, self._progress()
                if self._effects > before or self._outage:
                    moved = time.monotonic()
                if committed >= self.options.messages:
                    (self.folder / "stop").touch()
                    writing = any(m.process.poll() is None for m in self._members if m.role == "writer")
                    if not (kills or outages.is_alive() or writing) and self._effects >= committed:
                        return
                self._hold(committed - self._effects > LEAD * self.options.messages)
                while kills and self._is_due(kills[0][0]):
                    kills.pop(0)[1]()
                self._look_after()
                time.sleep(0.1)
            self._problems.append(f"no progress for {PATIENCE:g} s: {self._stages()}")
        finally:
            self._over.set()
            outages.join()

    def _break_servers(self, plan: list[Fault]) -> None:
        """In a thread: meanwhile A writes, and processes are killed."""
        try:
            for share, strike in plan:
                while not self._is_due(share):
                    if self._over.wait(0.05):
                        return
                self._outage = True
                strike()
                self._outage = False
        except Exception as error:
            self._problems.append(repr(error))

    def _faults(self, kinds: Iterable[tuple[int, Strike]]) -> list[Fault]:
        shares = [
            (0.98 * (n + self._random.random()) / number, strike) for number, strike in kinds for n in range(number)
        ]
        return sorted(shares, key=lambda fault: fault[0])

    def _kills(self) -> Iterator[tuple[int, Strike]]:
        yield self.options.kills, self._kill
        yield self.options.pauses, self._freeze

    def _outages(self) -> Iterator[tuple[int, Strike]]:
        if self._broker is not None:
            yield self.options.broker_kills, self._kill_broker
        yield self.options.database_stops, lambda: self._stop_database("database A", self._server_a)
        yield self.options.database_stops, lambda: self._stop_database("database B", self._server_b)

    def _is_due(self, share: float) -> bool:
        return self._effects >= share * self.options.messages

    def _progress(self) -> tuple[int, int]:
        """What A has committed and B has done; as far as we know, while a database is away."""
        with suppress(psycopg.OperationalError):
            self._known = self._count(self._a, "movement"), self._count(self._b, "ledger")
        return self._known

    def _kill(self) -> None:
        member = self._random.choice([m for m in self._members if m.process.returncode != 0])
        member.kill()
        member.start()
        self._struck[f"killed {member.role}"] += 1

    def _freeze(self) -> None:
        """For longer than its leases: it wakes up with work that another has by now. Not A's writers: what they lock,
        nobody takes over."""
        awake = [m for m in self._members if m.role != "writer" and m.wakes_at is None and m.process.poll() is None]
        member = self._random.choice(awake)
        member.freeze(TTL * self._random.uniform(1.5, 4.5))
        self._struck[f"froze {member.role}"] += 1

    def _kill_broker(self) -> None:
        assert self._broker is not None
        asyncio.run(self._broker.harness.outage())
        time.sleep(self._random.uniform(0, self.options.outage_seconds))
        asyncio.run(self._broker.harness.recovery())
        self._struck["killed broker"] += 1

    def _stop_database(self, name: str, server: PostgresServer) -> None:
        server.stop("immediate")
        time.sleep(self._random.uniform(0, self.options.outage_seconds))
        server.start()
        self._struck[f"stopped {name}"] += 1

    def _hold(self, ahead: bool) -> None:
        file = self.folder / "wait"
        if ahead:
            file.touch()
        else:
            file.unlink(missing_ok=True)

    def _look_after(self) -> None:
        """A process that cannot start while something is away is started again; one that runs never ends by itself."""
        for member in self._members:
            member.thaw()
            over = member.process.poll() is not None and not (member.role == "writer" and not member.process.returncode)
            if over and time.monotonic() - member.started > 1:
                if member.ready:
                    self._problems.append(f"{member.name} ended by itself with {member.process.returncode}")
                else:
                    self._struck[f"{member.role} could not start"] += 1
                member.start()

    # -- and then peace -----------------------------------------------------------------------------

    def _calm(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while self._waiting():
            if time.monotonic() > deadline:
                self._problems.append(f"not drained after {PATIENCE:g} s of calm")
                break
            self._look_after()
            time.sleep(0.1)
        for member in self._members:
            member.thaw(at_once=True)
            if member.role != "writer" and (status := member.stop()):
                self._problems.append(f"{member.name} ended with {status}")

    def _waiting(self) -> int:
        with psycopg.connect(self._a) as a, psycopg.connect(self._b) as b:
            return waiting(a, b)

    def _stages(self) -> dict[str, int]:
        """Where everything is."""
        a = {f"A {table}": self._count(self._a, table) for table in ("movement", "outbox_event_pending")}
        tables = ("inbox", "inbox_pending", "inbox_dead", "ledger", "outbox_event_pending")
        return a | {f"B {table}": self._count(self._b, table) for table in tables}

    def _count(self, url: str, table: str) -> int:
        with psycopg.connect(url, autocommit=True) as connection:
            return count(connection, table)


def parse(arguments: list[str] | None = None) -> tuple[Options, argparse.Namespace]:
    parser = argparse.ArgumentParser(
        prog="chaos.end_to_end", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    choices = {"broker": [*BROKERS, "none", "all"], "order": ["ordered", "plain"]}
    for option in fields(Options):
        default = secrets.randbelow(1_000_000) if option.name == "seed" else option.default
        name = "--" + option.name.replace("_", "-")
        parser.add_argument(name, type=type(option.default), default=default, choices=choices.get(option.name))
    parser.add_argument("--control", action="store_true", help="nothing is broken")
    parser.add_argument("--keep", action="store_true", help="keep the logs of a trial that passed")
    parser.add_argument("--resume", action="store_true", help="of all brokers only those that have not passed yet")
    given = parser.parse_args(arguments)
    options = Options(**{option.name: getattr(given, option.name) for option in fields(Options)})
    if given.control:
        options = replace(options, kills=0, pauses=0, broker_kills=0, database_stops=0)
    return options, given


def every_broker(arguments: list[str], options: Options, *, resume: bool) -> int:
    """One process each. To resume leaves out those that have passed with the same options."""
    names = [name for name in BROKERS if not (resume and _has_passed(replace(options, broker=name)))]
    given = [a for a in arguments if a not in ("--broker", "all", "--broker=all", "--resume")]
    command = [sys.executable, "-m", "chaos.end_to_end", *given, "--broker"]
    return max((subprocess.run([*command, name], cwd=ROOT, check=False).returncode for name in names), default=0)


def _has_passed(options: Options) -> bool:
    wanted = {name: value for name, value in asdict(options).items() if name != "seed"}
    lines = RESULTS.read_text().splitlines() if RESULTS.exists() else []
    results = [json.loads(line) for line in lines]
    return any(result["verdict"] == "PASS" and wanted.items() <= result.items() for result in results)


def main() -> int:
    options, given = parse()
    if options.broker == "all":
        return every_broker(sys.argv[1:], options, resume=given.resume)
    folder = Path(tempfile.mkdtemp(prefix="relaybox-end-to-end-"))
    print(f"chaos.end_to_end: {options}\n  logs in {folder}", flush=True)
    started = time.time()
    report = Trial(options, folder).run()
    print(json.dumps(report, indent=2))
    RESULTS.parent.mkdir(exist_ok=True)
    line = {"at": time.strftime("%FT%TZ", time.gmtime(started)), "took": round(time.time() - started, 1)}
    with RESULTS.open("a") as file:
        file.write(json.dumps({**line, **asdict(options), **report}) + "\n")
    passed = report["verdict"] == "PASS"
    print(
        f"{report['effects']} effects, {sum(report['faults'].values())} faults, {line['took']} s: {report['verdict']}"
    )
    if passed and not given.keep:
        shutil.rmtree(folder, ignore_errors=True)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
