"""The table in docs/reference/engines.md: what was run, in which version, with what result."""

from __future__ import annotations

from pathlib import Path

from .catalog import ENGINES, Engine
from .run import ROOT, Outcome, Results

PAGE = ROOT / "docs" / "reference" / "engines.md"
BEGIN, END = "<!-- written by make engines -->\n", "<!-- end -->\n"
KINDS = (
    ("Databases", ("stores", "outbox", "inbox", "guard", "topics", "drivers")),
    ("Brokers", ("sink", "source", "guard")),
    ("Python", ("core", "drivers")),
)


def render(results: Results) -> str:
    parts = []
    for what, suites in KINDS:
        engines = [engine for engine in ENGINES if set(engine.suites) <= set(suites)]
        shown = [engine for engine in engines if engine.name in results.all]
        if shown:
            head = f"| {what} | version | {' | '.join(suites)} |\n|---|---|{'---|' * len(suites)}\n"
            parts.append(head + "".join(_row(engine, results, suites) for engine in shown))
    return "\n".join(parts)


def _row(engine: Engine, results: Results, suites: tuple[str, ...]) -> str:
    entry = results.all[engine.name]
    name = f"{engine.name}, in `make test`" if engine.in_ci else engine.name
    if not entry["suites"]:
        why = entry.get("not_had", "not run").splitlines()[0].replace("|", "/")
        return f"| {name} | | {why} |{' |' * (len(suites) - 1)}\n"
    cells = [_cell(entry["suites"].get(suite)) if suite in engine.suites else "–" for suite in suites]
    return f"| {name} | {entry['version']} | {' | '.join(cells)} |\n"


def _cell(found: dict[str, object] | None) -> str:
    """How many tests passed."""
    if found is None:
        return "not run"
    outcome = Outcome(**found)  # type: ignore[arg-type]
    if outcome.good:
        return f"{outcome.passed:,}"
    return f"**{len(outcome.failed) or 'not ended'}** of {outcome.passed + len(outcome.failed):,} failed"


def write(results: Results, page: Path = PAGE) -> None:
    text = page.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    after = rest.split(END, 1)[1]
    page.write_text(f"{before}{BEGIN}\n{render(results)}\n{END}{after}", encoding="utf-8")
