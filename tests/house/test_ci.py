"""`.ci/run`: a failed test is run once more, alone, and the last line is pytest's and says how it ended."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from source_tree import ROOT

MAKEFILE = """
check:
\t@{check}
test:
\t@{python} -m pytest -n 2 $(PYTEST_ARGS)
"""

INI = "[pytest]\naddopts = -p xdist.plugin\n"

# The first two never fail; of what is added, most fails the first time it runs.
SUITE = """
import os, pathlib, pytest

def first(name):
    mark = pathlib.Path(__file__).with_name(name)
    seen = mark.exists()
    mark.touch()
    return not seen

def test_good():
    pass

def test_skipped():
    pytest.skip("not here")
"""
CALL = """
@pytest.mark.parametrize("value", ["a b"])
def test_call(value):
    assert not first("call"), "beside others"
"""
SETUP = """
@pytest.fixture
def prepared():
    assert not first("setup")

def test_setup(prepared):
    pass
"""
TEARDOWN = """
@pytest.fixture
def cleared():
    yield
    assert not first("teardown")

def test_teardown(cleared):
    pass
"""
CRASH = """
def test_crash():
    if first("crash"):
        os._exit(3)
"""
BOTH = """
@pytest.fixture
def cleared():
    yield
    assert not first("both teardown")

def test_both(cleared):
    assert not first("both call")
"""
ALWAYS = """
def test_always():
    assert False, "as ever"
"""
SKIPS = """
def test_skips():
    if not first("skips"):
        pytest.skip("says nothing")
    assert False
"""
MANY = """
@pytest.mark.parametrize("value", range(11))
def test_many(value):
    assert not first(f"many{value}")
"""


def surroundings() -> dict[str, str]:
    """The environment, without that of the run this test is part of."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "MAKE", "MFLAGS"))}
    return kept | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


def run(place: Path, *suite: str, check: str = "true") -> tuple[int, list[str]]:
    """The status of `.ci/run` over this suite, and what it printed."""
    shutil.copytree(ROOT / ".ci", place / ".ci", ignore=shutil.ignore_patterns("__pycache__"))
    (place / "Makefile").write_text(MAKEFILE.format(check=check, python=sys.executable))
    (place / "pytest.ini").write_text(INI)
    (place / "test_suite.py").write_text("".join((SUITE, *suite)))
    ended = subprocess.run(
        [place / ".ci/run"], env=surroundings(), capture_output=True, text=True, timeout=100, check=False
    )
    return ended.returncode, ended.stdout.splitlines()


def counts(line: str) -> dict[str, int]:
    assert re.search(r" in [0-9.]+s", line), line
    return {word: int(number) for number, word in re.findall(r"(\d+) ([a-z]+)", line.split(" in ")[0])}


def test_a_good_suite_passes(tmp_path: Path) -> None:
    status, lines = run(tmp_path)
    assert (status, counts(lines[-1])) == (0, {"passed": 1, "skipped": 1})


def test_tests_that_pass_alone_are_named_and_counted_as_passed(tmp_path: Path) -> None:
    """Failures of the test, of its setup and of its teardown, and workers that die; the first failure is shown."""
    status, lines = run(tmp_path, CALL, SETUP, TEARDOWN, CRASH, BOTH)
    assert (status, counts(lines[-1])) == (0, {"passed": 6, "skipped": 1})
    assert [line for line in lines if line.startswith("unsteady: ")] == [
        f"unsteady: test_suite.py::{name}"
        for name in ("test_both", "test_call[a b]", "test_crash", "test_setup", "test_teardown")
    ]
    assert any("AssertionError: beside others" in line for line in lines)


def test_tests_that_do_not_pass_alone_fail_the_run(tmp_path: Path) -> None:
    status, lines = run(tmp_path, CALL, ALWAYS, SKIPS)
    assert status != 0
    assert counts(lines[-1]) == {"failed": 2, "passed": 2, "skipped": 1}
    assert "unsteady: test_suite.py::test_call[a b]" in lines
    assert "failed again: test_suite.py::test_always" in lines
    assert "failed again: test_suite.py::test_skips" in lines


def test_many_failures_are_no_coincidence(tmp_path: Path) -> None:
    status, lines = run(tmp_path, MANY)
    assert (status != 0, counts(lines[-1])) == (True, {"failed": 11, "passed": 1, "skipped": 1})
    assert not [line for line in lines if line.startswith("unsteady: ")]


def test_a_suite_that_cannot_be_collected_fails(tmp_path: Path) -> None:
    status, lines = run(tmp_path, "\nimport nowhere\n")
    assert status != 0
    assert "error" in lines[-1]


def test_failed_static_checks_fail_the_run_before_any_test(tmp_path: Path) -> None:
    status, lines = run(tmp_path, check="false")
    assert (status != 0, lines[-1:]) == (True, ["make: *** [Makefile:3: check] Error 1"])


def test_a_run_in_the_background_can_be_interrupted(tmp_path: Path) -> None:
    """A shell starts background jobs with both signals ignored; programs under test must not inherit that."""
    (tmp_path / "conftest.py").write_text((ROOT / "conftest.py").read_text())
    (tmp_path / "pytest.ini").write_text(INI)
    (tmp_path / "test_signals.py").write_text(
        "import signal, subprocess, sys\n"
        "import pytest\n"
        "@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGQUIT])\n"
        "def test_ends(number):\n"
        "    code = f'import os, time; os.kill(os.getpid(), {number.value}); time.sleep(60)'\n"
        "    ended = subprocess.run([sys.executable, '-c', code], timeout=30, stderr=subprocess.DEVNULL)\n"
        "    assert ended.returncode == -number\n"
    )
    command = "trap '' INT QUIT; exec \"$0\" -m pytest -n 2 -q"
    ended = subprocess.run(
        ["sh", "-c", command, sys.executable],
        cwd=tmp_path,
        env=surroundings(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout
