"""What the trials from one database to another have in common: a cast of processes, a storm over it, then calm.

Every process is killed (-9) at random and started again, some are frozen for longer than their leases, servers are
killed and stopped. Faults are spread over the progress of the receiver and not over time: a slow machine sees as many
of them as a fast one, and none of them comes too late.
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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar

from relaybox.testing.servers import PostgresServer
from relaybox.testing.servers.process import PrivateServer

from .leases import TTL
from .relay import toml_table

Strike: TypeAlias = Callable[[], None]
Fault: TypeAlias = tuple[float, Strike]  # with the share of the work that B has done when it strikes

ROOT = Path(__file__).parent.parent
START = 60.0  # seconds that a process may take


@dataclass(frozen=True, kw_only=True)
class StormOptions:
    kills: int = 200
    pauses: int = 10
    broker_kills: int = 4
    database_stops: int = 4  # of each of the two
    outage_seconds: float = 2.0
    seed: int = 0


Options = TypeVar("Options", bound=StormOptions)


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
        """Once it runs: before that a signal just ends it. One that could not start is started again."""
        deadline = time.monotonic() + START
        while not self.ready and time.monotonic() < deadline:
            if self.process.poll() is not None:
                self.start()
            time.sleep(0.05)
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


class Storm(Generic[Options]):
    """`work`: how much A has to commit, in the unit of `_progress`. The processes of A that write are called writer-n:
    they end by themselves once there is a file `stop`, and wait while there is a file `wait`."""

    never_frozen: tuple[str, ...] = ("writer",)  # what they lock, nobody takes over
    patience = 120.0  # seconds without any progress
    lead = 0.05  # of the work A may be ahead of B: so its writers live through everything too

    def __init__(self, options: Options, folder: Path, work: int) -> None:
        self.options = options
        self.folder = folder
        self._work = work
        self._random = random.Random(options.seed)
        self._problems: list[str] = []
        self._struck: Counter[str] = Counter()
        self._members: list[Member] = []
        self._effects = 0
        self._outage = False  # under way
        self._over = threading.Event()

    # -- what a trial says ----------------------------------------------------------------------------

    def run(self) -> dict[str, Any]:
        raise NotImplementedError

    def _cast(self) -> Iterator[tuple[str, list[str], str]]:
        """Name, command, and what it says when it runs."""
        raise NotImplementedError

    def _kills(self) -> Iterator[tuple[int, Strike]]:
        yield self.options.kills, self._kill
        yield self.options.pauses, self._freeze

    def _outages(self) -> Iterator[tuple[int, Strike]]:
        raise NotImplementedError

    def _progress(self) -> tuple[int, int]:
        """What A has committed and B has done; as far as we know, while a database is away."""
        raise NotImplementedError

    def _waiting(self) -> int:
        """What B has still to do, and everybody on the way."""
        raise NotImplementedError

    def _stages(self) -> Mapping[str, Any]:
        """Where everything is."""
        raise NotImplementedError

    def _watch(self) -> None:
        """While everything runs, again and again."""

    # -- what it has ------------------------------------------------------------------------------------

    def _play(self) -> None:
        self._hold(True)
        try:
            self._members += [Member(*given, self.folder) for given in self._cast()]
            deadline = time.monotonic() + START
            while not all(member.ready for member in self._members) and time.monotonic() < deadline:
                time.sleep(0.05)
            self._storm()
            self._calm()
        finally:
            for member in self._members:
                member.kill()

    def _told(self, report: dict[str, Any]) -> dict[str, Any]:
        """With what the trial itself has seen."""
        report |= {"faults": dict(sorted(self._struck.items())), "problems": self._problems}
        if self._problems:
            report["verdict"] = "FAIL"
        return report

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
            while time.monotonic() - moved < self.patience:
                before, (committed, self._effects) = self._effects, self._progress()
                if self._effects > before or self._outage:
                    moved = time.monotonic()
                if committed >= self._work:
                    (self.folder / "stop").touch()
                    if not (kills or outages.is_alive() or self._writing) and self._effects >= committed:
                        return
                self._hold(committed - self._effects > self.lead * self._work)
                while kills and self._is_due(kills[0][0]):
                    kills.pop(0)[1]()
                self._look_after()
                self._watch()
                time.sleep(0.1)
            self._problems.append(f"no progress for {self.patience:g} s: {self._stages()}")
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

    def _is_due(self, share: float) -> bool:
        return self._effects >= share * self._work

    @property
    def _writing(self) -> bool:
        return any(m.process.poll() is None for m in self._members if m.role == "writer")

    def _kill(self) -> None:
        member = self._random.choice([m for m in self._members if m.process.returncode != 0])
        member.kill()
        member.start()
        self._struck[f"killed {member.role}"] += 1

    def _freeze(self) -> None:
        """For longer than its leases: it wakes up with work that another has by now."""
        others = [m for m in self._members if m.role not in self.never_frozen]
        member = self._random.choice([m for m in others if m.wakes_at is None and m.process.poll() is None])
        member.freeze(TTL * self._random.uniform(1.5, 4.5))
        self._struck[f"froze {member.role}"] += 1

    def _kill_broker(self, harness: Any) -> None:
        asyncio.run(harness.outage())
        time.sleep(self._random.uniform(0, self.options.outage_seconds))
        asyncio.run(harness.recovery())
        self._struck["killed broker"] += 1

    def _stop_server(self, name: str, server: PrivateServer) -> None:
        server.stop("immediate") if isinstance(server, PostgresServer) else server.kill()
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
        deadline = time.monotonic() + (0 if self._problems else self.patience)
        while self._waiting():
            if time.monotonic() > deadline:
                self._problems.append(f"not drained after {self.patience:g} s of calm: {self._stages()}")
                break
            self._look_after()
            time.sleep(0.1)
        for member in self._members:
            member.thaw(at_once=True)
            if member.role != "writer" and (status := member.stop()):
                self._problems.append(f"{member.name} ended with {status}")


# -- as a command -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Command(Generic[Options]):
    """`python -m chaos.NAME`. `every`: an option that also takes "all", then one process each; to resume leaves out
    those that have passed with the same options."""

    name: str
    about: str | None
    trial: Callable[[Options, Path], Storm[Options]]
    options: type[Options]
    choices: Mapping[str, Sequence[str]]
    every: str
    each: Sequence[str]
    said: Callable[[Mapping[str, Any]], str]  # of a report, in some words
    calm: ClassVar[dict[str, Any]] = {"kills": 0, "pauses": 0, "broker_kills": 0, "database_stops": 0}

    @property
    def results(self) -> Path:
        return ROOT / "chaos" / "results" / f"{self.name}.jsonl"

    def parse(self, arguments: list[str] | None = None) -> tuple[Options, argparse.Namespace]:
        parser = argparse.ArgumentParser(
            prog=f"chaos.{self.name}", description=self.about, formatter_class=argparse.RawTextHelpFormatter
        )
        choices = {**self.choices, self.every: [*self.choices.get(self.every, self.each), "all"]}
        for option in fields(self.options):
            default = secrets.randbelow(1_000_000) if option.name == "seed" else option.default
            name = "--" + option.name.replace("_", "-")
            parser.add_argument(name, type=type(option.default), default=default, choices=choices.get(option.name))
        parser.add_argument("--control", action="store_true", help="nothing is broken")
        parser.add_argument("--keep", action="store_true", help="keep the logs of a trial that passed")
        parser.add_argument("--resume", action="store_true", help=f"of every {self.every} only what has not passed yet")
        given = parser.parse_args(arguments)
        options = self.options(**{option.name: getattr(given, option.name) for option in fields(self.options)})
        return replace(options, **self.calm) if given.control else options, given

    def main(self) -> int:
        options, given = self.parse()
        if getattr(options, self.every) == "all":
            return self._every(sys.argv[1:], options, resume=given.resume)
        folder = Path(tempfile.mkdtemp(prefix=f"relaybox-{self.name.replace('_', '-')}-"))
        print(f"chaos.{self.name}: {options}\n  logs in {folder}", flush=True)
        started = time.time()
        report = self.trial(options, folder).run()
        print(json.dumps(report, indent=2))
        self.results.parent.mkdir(exist_ok=True)
        line = {"at": time.strftime("%FT%TZ", time.gmtime(started)), "took": round(time.time() - started, 1)}
        with self.results.open("a") as file:
            file.write(json.dumps({**line, **asdict(options), **report}) + "\n")
        passed = report["verdict"] == "PASS"
        faults = sum(report["faults"].values())
        print(f"{self.said(report)}, {faults} faults, {line['took']} s: {report['verdict']}")
        if passed and not given.keep:
            shutil.rmtree(folder, ignore_errors=True)
        return 0 if passed else 1

    def _every(self, arguments: list[str], options: Options, *, resume: bool) -> int:
        option = f"--{self.every}"
        names = [
            name for name in self.each if not (resume and self._has_passed(replace(options, **{self.every: name})))
        ]
        given = [a for a in arguments if a not in (option, "all", f"{option}=all", "--resume")]
        command = [sys.executable, "-m", f"chaos.{self.name}", *given, option]
        return max((subprocess.run([*command, name], cwd=ROOT, check=False).returncode for name in names), default=0)

    def _has_passed(self, options: Options) -> bool:
        wanted = {name: value for name, value in asdict(options).items() if name != "seed"}
        lines = self.results.read_text().splitlines() if self.results.exists() else []
        results = [json.loads(line) for line in lines]
        return any(result["verdict"] == "PASS" and wanted.items() <= result.items() for result in results)
