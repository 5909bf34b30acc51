"""Rules of the house that a reader would otherwise have to remember."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from source_tree import ROOT, SOURCE, modules, page, python_files

import relaybox
from relaybox import Settings, facts, faults
from relaybox.facts import Fact
from relaybox.observe.measures import MEASURES
from relaybox.settings import leaves

LONGEST = 600


def test_no_drawers() -> None:
    """Two places that need a function have a subject in common: name the module after it."""
    drawers = {"util", "utils", "common", "helper", "helpers", "misc", "base"}
    assert [str(path) for path in python_files() if path.stem in drawers or path.parent.name in drawers] == []


def test_no_file_is_too_long() -> None:
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in python_files()}
    assert {name: length for name, length in lengths.items() if length > LONGEST} == {}


def test_every_module_says_what_it_is_for() -> None:
    assert [name for name, tree in modules().items() if not ast.get_docstring(tree)] == []


@pytest.mark.parametrize("name", sorted(modules()))
def test_only_the_clock_asks_for_the_time(name: str) -> None:
    if name in ("clock.py", "testing/servers/moto_main.py"):  # the second: a clock of another program
        return
    asked = [
        f"{node.value.id}.{node.attr}"
        for node in ast.walk(modules()[name])
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and (node.value.id, node.attr)
        in {
            ("datetime", "now"),
            ("datetime", "utcnow"),
            ("datetime", "today"),
            ("date", "today"),
            ("time", "time"),
            ("time", "time_ns"),
        }
    ]
    assert asked == []


def silent(handler: ast.ExceptHandler) -> bool:
    """`except:`, and `except Exception: pass`: an error of any kind that nobody will ever hear of."""
    only_pass = all(
        isinstance(line, ast.Pass) or (isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant))
        for line in handler.body
    )
    anything = {"Exception", "BaseException"}
    named = {node.id for node in ast.walk(handler.type) if isinstance(node, ast.Name)} if handler.type else anything
    return handler.type is None or (only_pass and bool(named & anything))


def suppresses_anything(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node) in ("suppress(Exception)", "suppress(BaseException)")


def test_no_error_is_swallowed() -> None:
    offenders = {
        f"{name}:{getattr(node, 'lineno', 0)}"
        for name, tree in modules().items()
        for node in ast.walk(tree)
        if (isinstance(node, ast.ExceptHandler) and silent(node)) or suppresses_anything(node)
    }
    assert offenders == set(), "handle it, log it, or name the one error that may be ignored"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("try: x\nexcept: y", True),
        ("try: x\nexcept Exception: pass", True),
        ("try: x\nexcept (OSError, Exception): ...", True),
        ("try: x\nexcept Exception: y", False),
        ("try: x\nexcept KeyError: pass", False),
    ],
)
def test_the_check_for_swallowed_errors(code: str, expected: bool) -> None:
    handlers = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.ExceptHandler)]
    assert [silent(handler) for handler in handlers] == [expected]


MOST_SILENCED = 14


def test_few_lines_silence_the_type_checker() -> None:
    """Each names the error that it silences."""
    silenced = {
        f"{path.relative_to(ROOT)}:{number}": line.partition("# type: ignore")[2]
        for path in sorted(SOURCE.rglob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if "# type: ignore" in line
    }
    assert len(silenced) <= MOST_SILENCED, silenced
    assert [place for place, named in silenced.items() if not named.startswith("[")] == []


# -- words --------------------------------------------------------------------------------------------

RIDDLES = re.compile(
    r"\b(who(m)?(so)?ever|he|his|him|himself|she|her|hers|herself|go(es)? home|somebody's evening)\b", re.IGNORECASE
)


def test_the_subject_is_named_and_a_process_is_it() -> None:
    """A reader should not have to ask who is meant."""
    texts = [*python_files(), *SOURCE.rglob("*.sql")]
    texts += [ROOT / "README.md", ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:80]}"
        for path in texts
        if path != Path(__file__)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if RIDDLES.search(line)
    ]
    assert found == []


# -- what the documentation promises ----------------------------------------------------------------


def fact_names() -> set[str]:
    found = (kind for kind in vars(facts).values() if isinstance(kind, type) and issubclass(kind, Fact))
    return {kind.__name__ for kind in found if not kind.__name__.startswith("_")} - {"Fact"}


def rows(text: str) -> list[list[str]]:
    """The table rows of a page, cell by cell."""
    lines = [line for line in text.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_every_fact_has_a_metric() -> None:
    assert {measure.fact.__name__ for measure in MEASURES} == fact_names()


def test_every_fact_and_metric_has_a_row_in_the_docs() -> None:
    table = [row for row in rows(page("docs/reference/metrics.md")) if len(row) == 5]
    documented = {(row[0].strip("`"), row[1].strip("`"), row[2]) for row in table}
    expected = {
        (f"relaybox.{m.name}", prometheus_name(m.name, m.kind), f"{m.kind}, `{m.fact.__name__}`") for m in MEASURES
    }
    missing, stale = expected - documented, documented - expected
    assert (missing, stale) == (set(), set())


def prometheus_name(name: str, kind: str) -> str:
    return f"relaybox_{name.replace('.', '_')}" + ("_total" if kind == "counter" else "")


def test_metric_names_are_unique() -> None:
    made = [prometheus_name(measure.name, measure.kind) for measure in MEASURES]
    assert len(made) == len(set(made))


def test_every_setting_is_on_its_page() -> None:
    documented = {row[0].strip("`") for row in rows(page("docs/reference/settings.md"))}
    assert documented == {leaf.path for leaf in leaves(Settings)}
    assert all(leaf.about for leaf in leaves(Settings))


def test_the_version_is_the_newest_in_the_changelog() -> None:
    versions = re.findall(r"^## \[?(\d+\.\d+\.\d+)", page("CHANGELOG.md"), re.MULTILINE)
    assert versions, "CHANGELOG.md names no version"
    assert versions[0] == relaybox.__version__


def test_every_fault_point_is_hit_somewhere() -> None:
    """A closed list, so that "every fault point killed once" can be a loop over it."""
    hit = set()
    for tree in modules().values():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("faults.hit", "hit"):
                hit |= {arg.value for arg in node.args if isinstance(arg, ast.Constant)}
    assert hit == set(faults.POINTS)


def test_the_package_is_typed() -> None:
    assert (SOURCE / "py.typed").exists()
