"""The types of the public names: programs that are right pass mypy and pyright, both strict; wrong ones do not."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from source_tree import ROOT

import relaybox
import relaybox.types

PROGRAMS = ROOT / "tests" / "house" / "typed"
REFUSED = "refused.py"


def run(*command: str) -> str:
    """What a checker says. It fails where it finds something, so the status says nothing."""
    environment = {**os.environ, "MYPYPATH": str(ROOT / "src")}
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=110)
    assert ended.returncode in (0, 1), ended.stdout + ended.stderr
    return ended.stdout


@cache
def mypy() -> dict[str, dict[int, str]]:
    """The errors of mypy by file and line."""
    said = run(sys.executable, "-m", "mypy", "--strict", *map(str, sorted(PROGRAMS.glob("*.py"))))
    assert re.search(r"^(Found|Success)", said, re.MULTILINE), said
    found: dict[str, dict[int, str]] = {}
    for file, line, text in re.findall(r"^(\S+?):(\d+): error: (.*)$", said, re.MULTILINE):
        found.setdefault(Path(file).name, {})[int(line)] = text
    return found


@cache
def pyright() -> dict[str, dict[int, str]]:
    """The same of pyright."""
    program = shutil.which("pyright", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    if program is None:
        assert os.environ.get("CI") != "true", "pyright belongs to the dev extra: make venv"
        pytest.skip("pyright is not installed: make venv")
    said = json.loads(run(program, "--outputjson", "--pythonpath", sys.executable, "--project", str(PROGRAMS)))
    assert said["summary"]["filesAnalyzed"] == len(list(PROGRAMS.glob("*.py"))), said["summary"]
    found: dict[str, dict[int, str]] = {}
    for one in said["generalDiagnostics"]:
        line = one["range"]["start"]["line"] + 1
        found.setdefault(Path(one["file"]).name, {})[line] = one["message"]
    return found


def used(file: Path) -> set[str]:
    """Names that a program uses, besides importing them."""
    return {node.id for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Name)}


def test_the_program_uses_every_public_name() -> None:
    promised = {*relaybox.__all__, *relaybox.types.__all__}
    assert promised - used(PROGRAMS / "program.py") == set(), "use it in tests/house/typed/program.py"


@pytest.mark.parametrize("checker", [mypy, pyright])
def test_a_program_that_uses_every_public_name_is_clean(checker: object) -> None:
    assert callable(checker)
    assert {file: errors for file, errors in checker().items() if file != REFUSED} == {}


@pytest.mark.parametrize("checker", [mypy, pyright])
def test_mistakes_are_refused(checker: object) -> None:
    assert callable(checker)
    lines = (PROGRAMS / REFUSED).read_text().splitlines()
    expected = {number for number, line in enumerate(lines, 1) if line.endswith("# refused")}
    errors: dict[int, str] = checker().get(REFUSED, {})
    passed = [lines[number - 1] for number in sorted(expected - errors.keys())]
    assert (passed, {number: errors[number] for number in errors.keys() - expected}) == ([], {})
