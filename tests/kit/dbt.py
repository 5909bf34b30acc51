"""dbt in an environment of its own, which `scripts/bootstrap servers` makes: its dependencies are not the project's."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
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
    """What a command came to: of each node its status and what dbt says of it."""

    success: bool
    error: str
    nodes: dict[str, tuple[str, str]]

    def said(self, node: str) -> str:
        return self.nodes[node][1]


@dataclass
class Dbt:
    """A process that runs commands of dbt in a copy of a project, against a database."""

    project: Path
    url: str
    environment: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.log = self.project.parent / f"{self.project.name}.log"
        self._process: subprocess.Popen[str] | None = None

    @classmethod
    def of_example(cls, folder: Path, url: str) -> Dbt:
        project = folder / "project"
        shutil.copytree(ROOT / "examples" / "dbt", project)
        package = ROOT / "integrations" / "dbt"
        (project / "packages.yml").write_text(f"packages:\n  - local: {package}\n")
        return cls(project, url)

    def start(self) -> subprocess.Popen[str]:
        at = urlsplit(self.url)
        own = {"DBT_PROJECT_DIR": str(self.project), "DBT_PROFILES_DIR": str(self.project), "DO_NOT_TRACK": "1"}
        own |= {"SHOP_HOST": at.hostname or "", "SHOP_PORT": str(at.port), "SHOP_USER": at.username or ""}
        own |= {"SHOP_DB": at.path[1:], "SHOP_PASSWORD": at.password or "", "PYTHONPATH": ""}
        child = ROOT / "tests" / "kit" / "children" / "dbt_commands.py"
        with self.log.open("a") as log:
            self._process = subprocess.Popen(
                [python_of_dbt(), child],
                env={**os.environ, "DBT_SEND_ANONYMOUS_USAGE_STATS": "false", **own, **self.environment},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self._answer()
        return self._process

    def send(self, *command: str) -> None:
        process = self._process or self.start()
        assert process.stdin is not None
        process.stdin.write(json.dumps(command) + "\n")
        process.stdin.flush()

    def answer(self) -> Ran:
        found = self._answer()
        return Ran(found["success"], found["error"], {name: tuple(said) for name, said in found["nodes"].items()})

    def run(self, *command: str) -> Ran:
        self.send(*command)
        return self.answer()

    def _answer(self) -> Any:
        assert self._process is not None
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"dbt has ended: {self.log.read_text()[-2000:]}")
        return json.loads(line)

    def kill(self) -> None:
        """As a machine that fails: nothing is rolled back by dbt itself."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for stream in (self._process.stdin, self._process.stdout):
                if stream is not None:
                    stream.close()
            self._process = None

    def write(self, path: str, text: str) -> None:
        (self.project / path).write_text(text)

    def __enter__(self) -> Dbt:
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()
        if error[0] is not None and self.log.exists():
            sys.stderr.write(self.log.read_text()[-20_000:])
