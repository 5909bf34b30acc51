"""The source as the rules see it: files, and their syntax trees."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "relaybox"
TREES = ("src", "tests", "scripts", "examples", "chaos", "benchmarks", "ga", "engines")


@cache
def modules() -> dict[str, ast.Module]:
    """Every module of the package by its path below src/relaybox."""
    return {
        str(path.relative_to(SOURCE)): ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted(SOURCE.rglob("*.py"))
    }


def python_files() -> Iterator[Path]:
    """Everything we maintain; `.cache` and the like are other people's."""
    for tree in TREES:
        for path in sorted((ROOT / tree).rglob("*.py")):
            if not any(part.startswith(".") for part in path.relative_to(ROOT).parts):
                yield path


def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")
