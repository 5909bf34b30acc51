"""Links between pages lead somewhere, and the reference pages say what the code says."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import doc_pages
import pytest

from relaybox.store.dialect import Capabilities
from relaybox.store.outbox import open_store
from relaybox.types import Status

ALL = sorted([*doc_pages.PAGES, *doc_pages.ROOT.glob("*.md")])
DIALECTS = ("postgres", "sqlite", "mysql")


def anchors(page: Path) -> set[str]:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", sorted(set(ALL)), ids=doc_pages.name)
def test_links(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in link:
            continue
        target, _, anchor = link.partition("#")
        file = (page.parent / target).resolve() if target else page
        assert file.exists(), f"{doc_pages.name(page)} links to {link}"
        if anchor:
            assert anchor in anchors(file), f"{doc_pages.name(page)} links to {link}"


def reference(name: str) -> str:
    return (doc_pages.ROOT / "docs" / "reference" / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("capability", [field.name for field in fields(Capabilities)])
def test_engines_table_is_what_the_stores_declare(capability: str) -> None:
    row = re.search(
        rf"^\| [^|]*\(`{capability}`\) \|([^|]*)\|([^|]*)\|([^|]*)\|$", reference("engines.md"), re.MULTILINE
    )
    assert row, f"engines.md has no row for {capability}"
    said = [cell.strip().startswith("yes") for cell in row.groups()]
    assert said == [getattr(open_store(dialect).capabilities, capability) for dialect in DIALECTS]


def test_status_fields_are_explained() -> None:
    page = (doc_pages.ROOT / "docs" / "operate" / "runbook.md").read_text(encoding="utf-8")
    assert [field.name for field in fields(Status) if f"`{field.name}`" not in page] == []


def test_every_test_that_the_threats_name_is_there() -> None:
    text = (doc_pages.ROOT / "docs" / "operate" / "threats.md").read_text(encoding="utf-8")
    tests, contracts = doc_pages.ROOT / "tests", doc_pages.ROOT / "src" / "relaybox" / "testing"
    named = re.findall(r"`([a-z_]+/test_\w+\.py)(?:::(test_\w+))?`", text)
    assert len(named) > 40
    for file, test in named:
        assert f"def {test}(" in (tests / file).read_text(encoding="utf-8") if test else (tests / file).exists(), file
    bare = re.findall(r"`(test_\w+)` of the (source|sink) contract", text)
    assert len(bare) == 2
    for test, of in bare:
        assert any(f"def {test}(" in page.read_text() for page in (contracts / f"{of}_contract").glob("*.py")), test
