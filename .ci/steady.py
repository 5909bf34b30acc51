"""A pytest plugin: what failed beside others runs once more, alone, after everything else has ended.

A test that passes then does not fail the run. It is named as `unsteady`, with the traceback of its first try, and is
counted among the passed. A test that fails again, is skipped, or cannot be run fails the run as before; more failures
than `MOST` are no coincidence and are not tried again. A run that was cut short stays failed.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Generator
from typing import Any

import pytest

MOST = 10
SECONDS = 600


class Steady:
    """What became of the failures of this run."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.lines: list[str] = []
        self.unsteady: list[Any] = []

    @pytest.hookimpl(wrapper=True, trylast=True)  # inside the summary of pytest, outside the end of the workers
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, None, None]:
        yield
        reporter: Any = self.config.pluginmanager.get_plugin("terminalreporter")
        stats = reporter.stats
        failures = [*stats.get("failed", ()), *stats.get("error", ())]
        names = sorted({report.nodeid for report in failures})
        if session.exitstatus != pytest.ExitCode.TESTS_FAILED or session.shouldfail or session.shouldstop or not names:
            return
        if len(names) > MOST:
            self.lines.append(f"{len(names)} tests failed: more than {MOST} are not run once more")
            return
        passed = {name for name in names if self._passes(name)}
        known = {report.nodeid for report in stats.get("passed", ())}
        for kind in ("failed", "error"):
            stats[kind] = [report for report in stats.get(kind, ()) if report.nodeid not in passed]
            if not stats[kind]:
                del stats[kind]
        self.unsteady = [report for report in failures if report.nodeid in passed]
        first = {report.nodeid: report for report in self.unsteady if report.nodeid not in known}
        stats.setdefault("passed", []).extend(first.values())
        if len(passed) == len(names):
            session.exitstatus = pytest.ExitCode.OK

    def _passes(self, name: str) -> bool:
        command = [sys.executable, "-m", "pytest", "-p", "no:xdist", "-p", "no:cacheprovider", name]
        try:
            again = subprocess.run(
                command, cwd=self.config.rootpath, capture_output=True, text=True, timeout=SECONDS, check=False
            )
            steady = again.returncode == 0 and re.search(r"\b1 passed\b.* in [0-9.]+s", again.stdout) is not None
        except subprocess.TimeoutExpired:
            steady = False
        self.lines.append(f"{'unsteady' if steady else 'failed again'}: {name}")
        return steady

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.lines:
            terminalreporter.section("run once more, alone")
        for report in self.unsteady:
            terminalreporter.write_sep("_", f"the first try of {report.nodeid}")
            report.toterminal(terminalreporter._tw)
        for line in self.lines:
            terminalreporter.write_line(line)


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # the workers of a parallel run only report
        config.pluginmanager.register(Steady(config))
