"""The pre-release tests themselves: the rule that scales them, the load they make, the report they write."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from ga import writer
from ga.days import run as days
from ga.report import render
from ga.scale import Scale
from ga.verdicts import Verdict

from relaybox.testing.servers import require

HALF = Scale(inserts=25_000, disk=1e9)


def test_the_rule() -> None:
    assert (HALF.rate(10_000), HALF.count(5_000_000), HALF.seconds(3600)) == (5_000, 2_500_000, 60)
    assert Scale(1_000_000, 1e9).rate(10_000) == 10_000, "never more than the source asks for"
    assert Scale(25_000, 1e9, full=True).seconds(3600) == 3600


@pytest.mark.parametrize(
    ("at", "expected"), [(0, 0), (5, 50), (10, 50 + 275), (20, 50 + 275 + 1000), (5 + 2.5, 50 + 81.25)]
)
def test_the_load_warms_up_ramps_up_and_stays(at: float, expected: float) -> None:
    """A tenth for five seconds, rising for five, then a hundred a second."""
    ramp = writer.due(at, rate=100, warm=5, ramp=5)
    assert ramp == pytest.approx(expected, abs=1)


def test_the_report_says_which_blocker_failed() -> None:
    good, bad, other = Verdict("A", "a", True), Verdict("B", "b", True), Verdict("C", "c", False)
    good.check("x", "< 1", 0.5, True)
    bad.check("y", "< 1", 2, False)
    bad.check("z", "< 1", 0, True)
    page = render(HALF, [good, bad, other], {"Machine": "2 cores"})
    assert "| A | a | yes | pass |" in page
    assert "| B | b | yes | **FAIL** |" in page
    assert "| C | c | no | **FAIL** |" in page, "a test without a check has shown nothing"
    assert "Blockers that failed: B." in page
    assert "× 0.500" in page


def test_a_verdict_survives_the_file() -> None:
    verdict = Verdict("A", "a", True, notes=["n"], seconds=3.0)
    verdict.check("x", "< 1", 0.5, True)
    assert Verdict.from_json(verdict.as_json()) == verdict


def test_days_in_small() -> None:
    server = require("postgres-wheel", durable=False)
    verdict = days(server, Scale(inserts=1_000, disk=1e9))
    assert [check for check in verdict.checks if not check.passed] == []
