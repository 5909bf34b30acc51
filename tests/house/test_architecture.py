"""ARCHITECTURE.md: the storeys are those of the source, and every file and function that it names exists."""

from __future__ import annotations

import ast
import re

import pytest
from source_tree import ROOT, SOURCE, modules, page

TEXT = page("ARCHITECTURE.md")
HOPS = re.findall(r"`([\w/]+\.py): ([\w.]+)`", TEXT)
PATHS = re.findall(r"`([\w/.]+/|[\w/]+\.py|(?:store|testing|engine|brokers)/\w+)`", TEXT)


def defined(file: str) -> set[str]:
    """Functions and classes of a module, methods as Class.method."""
    found = set()
    for node in modules()[file].body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            methods = (inner for inner in node.body if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef))
            found |= {f"{node.name}.{method.name}" for method in methods}
    return found


def test_the_page_names_functions() -> None:
    assert len(HOPS) > 40
    assert len(PATHS) > 20


@pytest.mark.parametrize(("file", "name"), sorted(set(HOPS)))
def test_every_function_of_the_walks_exists(file: str, name: str) -> None:
    assert file in modules(), f"src/relaybox/{file} does not exist"
    assert name in defined(file), f"{file} has no {name}"


@pytest.mark.parametrize("path", sorted(set(PATHS)))
def test_every_path_exists(path: str) -> None:
    assert (SOURCE / path).exists() or (ROOT / path).exists()


def test_the_walks_are_as_long_as_they_say() -> None:
    """`### from → to: 22 functions in 10 files`; a walk that only names what comes between says `7 more`."""
    walk = r"^### [^\n]* → [^\n:]*: (\d+)(?: functions)? (?:in (\d+) files|more)\n(.*?)(?=^##)"
    walks = re.findall(walk, TEXT, re.MULTILINE | re.DOTALL)
    assert len(walks) == 4
    for functions, files, rows in walks:
        named = re.findall(r"^\|[^|]*\| `([\w/]+\.py): [\w.]+` \|", rows, re.MULTILINE)
        assert (len(named), len(set(named))) == (int(functions), int(files or len(set(named)))), rows


def test_the_picture_shows_every_part_of_the_source() -> None:
    picture = TEXT.partition("```\n")[2].partition("```")[0]
    shown = set(re.findall(r"[a-z]+", picture))
    parts = {
        path.stem for path in SOURCE.iterdir() if path.suffix == ".py" or (path.is_dir() and "__" not in path.name)
    }
    assert parts - shown - {"__init__", "__main__"} == set()
