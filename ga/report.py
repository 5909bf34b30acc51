"""The report: what was measured, against which threshold, and whether a release may go out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .scale import SOURCE_INSERTS, Scale
from .verdicts import Verdict

PAGE = Path(__file__).parents[1] / "docs" / "operate" / "ga-report.md"


def word(passed: bool) -> str:
    return "pass" if passed else "**FAIL**"


def render(scale: Scale, verdicts: Sequence[Verdict], facts: dict[str, str]) -> str:
    lines = [
        "# Pre-release tests of topics",
        "",
        "Written by `make ga`. Tests and thresholds are the specification's; one rule scales them to the machine:",
        "",
        f"* rates and amounts × measured single-row inserts per second / {SOURCE_INSERTS:,}, at most 1. Measured here: "
        f"{scale.inserts:,.0f} /s, so × {scale.factor:.3f}.",
        "  The thresholds of autovacuum on our tables are amounts too.",
        f"* durations {'as they are' if scale.full else '/ 60: an hour is a minute, intervals and timeouts too'}.",
        "* latencies and percentages are not scaled.",
        "",
        *(f"{name}: {value}.  " for name, value in facts.items()),
        f"The disk took {scale.disk / 1e6:,.0f} MB/s.",
        "",
        "| test | | blocks a release | result |",
        "|---|---|---|---|",
    ]
    for verdict in verdicts:
        lines.append(
            f"| {verdict.test} | {verdict.about} | {'yes' if verdict.blocker else 'no'} | {word(verdict.passed)} |"
        )
    failed = [verdict.test for verdict in verdicts if verdict.blocker and not verdict.passed]
    lines += ["", f"Blockers that failed: {', '.join(failed)}." if failed else "All blockers pass.", ""]
    for verdict in verdicts:
        lines += [f"## {verdict.test}: {verdict.about}", "", "| | threshold | measured | |", "|---|---|---|---|"]
        lines += [f"| {c.name} | {c.threshold} | {c.measured} | {word(c.passed)} |" for c in verdict.checks]
        lines += ["", *(f"{note}.  " for note in verdict.notes), f"Took {verdict.seconds:.0f} s.", ""]
    lines += [
        "LT-4 is expected to fail by the specification, to show where counting ends; here it is a measurement.",
        "Dead rows are counted in tables over 10 MB: the small ones (cursors, ranges) turn over between two vacuums.",
        "p95 figures are the 95th percentile, over the sustained seconds, of each second's p95, taken in the clients.",
        "",
    ]
    return "\n".join(lines)
