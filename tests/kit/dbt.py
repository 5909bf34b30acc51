"""dbt in an environment of its own, which `scripts/bootstrap servers` makes: its dependencies are not the project's."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "relaybox" / "dbt-1.11"


def python_of_dbt() -> Path:
    """Skips the test where dbt is not installed; under CI=true that is a failure, as for servers."""
    if (FOLDER / ".whole").exists():
        return FOLDER / "bin" / "python"
    missing = f"dbt is not installed in {FOLDER}; to get it: scripts/bootstrap servers"
    if os.environ.get("CI", "").lower() == "true":
        pytest.fail(f"required under CI=true: {missing}", pytrace=False)
    pytest.skip(missing)


@dataclass
class Ran:
    """What a command came to: of each node its status and what dbt says of it, and all that it printed."""

    success: bool
    printed: str
    nodes: dict[str, tuple[str, str]]

    def said(self, node: str) -> str:
        return self.nodes[node][1]


class DbtProcess:
    """Runs commands of dbt: one process for many, because loading dbt takes longer than most of them."""

    def __init__(self, log: Path) -> None:
        self.log = log
        child = ROOT / "tests" / "kit" / "children" / "dbt_commands.py"
        quiet = {"DBT_SEND_ANONYMOUS_USAGE_STATS": "false", "DO_NOT_TRACK": "1", "PYTHONPATH": ""}
        with log.open("a") as said:
            self._process = subprocess.Popen(
                [python_of_dbt(), child],
                env={**os.environ, **quiet},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
            )
        self.answer()

    def ask(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"command": command, "environment": environment}) + "\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"dbt has ended: {self.log.read_text()[-5000:]}")
        return json.loads(line)

    def kill(self) -> None:
        """As a machine that fails: dbt itself rolls nothing back."""
        self._process.kill()
        self._process.communicate()


@dataclass
class Dbt:
    """A copy of the example project, against a database."""

    project: Path
    url: str
    process: DbtProcess
    _printed: int = 0

    @classmethod
    def of_example(cls, folder: Path, url: str, process: DbtProcess) -> Dbt:
        project = folder / "project"
        ignored = shutil.ignore_patterns("dbt_packages", "target", "logs", "package-lock.yml")
        shutil.copytree(ROOT / "examples" / "dbt", project, ignore=ignored)
        (project / "packages.yml").write_text(f"packages:\n  - local: {ROOT / 'integrations' / 'dbt'}\n")
        dbt = cls(project, url, process)
        assert dbt.run("deps").success
        return dbt

    def send(self, *command: str) -> None:
        self._printed = len(self.process.log.read_text())
        at = urlsplit(self.url)
        own = {"DBT_PROJECT_DIR": str(self.project), "DBT_PROFILES_DIR": str(self.project)}
        own |= {"SHOP_HOST": at.hostname or "", "SHOP_PORT": str(at.port), "SHOP_USER": at.username or ""}
        self.process.ask(command, own | {"SHOP_DB": at.path[1:], "SHOP_PASSWORD": at.password or ""})

    def answer(self) -> Ran:
        found = self.process.answer()
        nodes = {name: (status, message or "") for name, (status, message) in found["nodes"].items()}
        printed = self.process.log.read_text()[self._printed :] + found["error"]
        return Ran(found["success"], printed, nodes)

    def run(self, *command: str) -> Ran:
        self.send(*command)
        return self.answer()

    def write(self, path: str, text: str) -> None:
        (self.project / path).write_text(text)
