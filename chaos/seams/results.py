"""Results of trials: JSON lines in a file, the last of a name counts; the table that docs/operate/seams.md shows."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .faults import FAULTS
from .life import LIVES
from .plan import not_tried, plans
from .products import PRODUCTS

ROOT = Path(__file__).parent.parent.parent
RESULTS = ROOT / "chaos" / "results" / "seams.jsonl"
PAGE = ROOT / "docs" / "operate" / "seams.md"
BEGIN, END = "<!-- made by python -m chaos.seams -->", "<!-- end -->"
SHORT = {"postgresql": "P", "mariadb": "M", "sqlite": "S"}

Result = Mapping[str, Any]


def latest(path: Path = RESULTS) -> dict[str, Result]:
    if not path.exists():
        return {}
    found = (json.loads(line) for line in path.read_text().splitlines() if line.strip())
    return {result["trial"]: result for result in found}


def table(results: Mapping[str, Result]) -> str:
    """Counts of what was done."""
    verdicts = Counter(result["verdict"].split(":")[0] for result in results.values())
    messages = sum(result.get("messages", 0) for result in results.values())
    deliveries = sum(result.get("deliveries", 0) for result in results.values())
    duplicates = sum(result.get("duplicates", 0) for result in results.values())
    faults = sum(bool(result.get("fault")) for result in results.values())
    lives = sum(bool(result.get("life")) for result in results.values())
    lines = [
        "| trials | passed | failed | skipped | faults | life events | messages | deliveries | of them repeated |",
        "|---|---|---|---|---|---|---|---|---|",
        f"| {len(results):,} | {verdicts['PASS']:,} | {verdicts['FAIL']:,} | {verdicts['SKIP']:,} | {faults:,} "
        f"| {lives:,} | {messages:,} | {deliveries:,} | {duplicates:,} |",
    ]
    return "\n".join(lines)


def _cells(results: Mapping[str, Result], names: list[str], field: str, other: str) -> list[str]:
    """A row per product, a column per fault or life event; a letter per engine that passed."""
    where: dict[tuple[str, str], list[str]] = defaultdict(list)
    for plan in plans():
        if getattr(plan, other) or not getattr(plan, field):
            continue
        verdict = results.get(plan.name, {}).get("verdict", "")
        letter = SHORT[plan.engine]
        shown = letter if verdict == "PASS" else f"**{letter} failed**" if verdict.startswith("FAIL") else f"({letter})"
        where[plan.product, getattr(plan, field)].append(shown)
    lines = ["| | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for product in PRODUCTS:
        cells = [" ".join(where[product, name]) or "–" for name in names]
        lines.append(f"| {product} | " + " | ".join(cells) + " |")
    return lines


def _pairs(results: Mapping[str, Result]) -> list[str]:
    lines = ["| | " + " | ".join(LIVES) + " |", "|---" * (len(LIVES) + 1) + "|"]
    found = {(plan.fault, plan.life): plan for plan in plans() if plan.fault and plan.life}
    for fault in FAULTS:
        cells = []
        for life in LIVES:
            verdict = results.get(found[fault, life].name, {}).get("verdict", "")
            cells.append("yes" if verdict == "PASS" else "**failed**" if verdict.startswith("FAIL") else "(not run)")
        lines.append(f"| {fault} | " + " | ".join(cells) + " |")
    return lines


def generated(results: Mapping[str, Result]) -> str:
    why = Counter(reason for reason in not_tried().values())
    parts = [
        [table(results)],
        ["### Faults", "", *_cells(results, list(FAULTS), "fault", "life")],
        ["### Life events", "", *_cells(results, list(LIVES), "life", "fault")],
        ["### A fault while something else happens, for topics", "", *_pairs(results)],
        ["Pairs that do not exist: " + "; ".join(f"{reason} ({count})" for reason, count in sorted(why.items())) + "."],
    ]
    return "\n\n".join("\n".join(part) for part in parts)


def write_page(results: Mapping[str, Result]) -> None:
    text = PAGE.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n\n{generated(results)}\n\n{END}{after}")
