"""The site builds without a warning, and takes nothing from another host."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import doc_pages
import pytest

# What a browser fetches by itself; a link that somebody follows is none.
FETCHED = re.compile(
    r"""<(?:script|img|iframe|source|video|audio|embed)\b[^>]*?\bsrc\s*=\s*["'](?P<src>(?:https?:)?//[^"']*)"""
    r"""|<link\b(?=[^>]*\brel\s*=\s*["'](?:stylesheet|preload|icon|preconnect|modulepreload))[^>]*?\bhref\s*=\s*["']"""
    r"""(?P<href>(?:https?:)?//[^"']*)"""
    r"""|(?:@import\s*(?:url\()?|url\()\s*["']?(?P<url>(?:https?:)?//[^"')\s]*)""",
    re.IGNORECASE,
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=doc_pages.ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert built.returncode == 0, built.stderr
    return folder


def test_every_page_is_in_the_site(site: Path) -> None:
    pages = {page.relative_to(site).with_suffix("").as_posix() for page in site.rglob("*.html")}
    for page in doc_pages.PAGES[1:]:
        name = page.relative_to(doc_pages.ROOT).with_suffix("").as_posix().removeprefix("docs/")
        assert name.replace("/README", "/index") in pages, f"{name} is not in the site"


def test_nothing_comes_from_another_host(site: Path) -> None:
    fetched = {
        f"{file.relative_to(site)}: {match[match.lastgroup or 0]}"
        for file in site.rglob("*")
        if file.suffix in (".html", ".css", ".svg")
        for match in FETCHED.finditer(file.read_text(encoding="utf-8"))
    }
    assert fetched == set()


def test_what_only_tests_read_is_not_in_the_site(site: Path) -> None:
    assert [page for page in site.rglob("*.html") if "<!-- run" in page.read_text(encoding="utf-8")] == []


@pytest.mark.parametrize(
    "text",
    [
        '<script src="https://cdn.example/x.js">',
        "<link rel='stylesheet' href='//fonts.example/css'>",
        '<link href="https://fonts.example" rel="preconnect">',
        "@import 'https://fonts.example/css';",
        "src: url(https://fonts.example/a.woff2)",
    ],
)
def test_the_search_finds_what_a_browser_would_fetch(text: str) -> None:
    assert FETCHED.search(text)


def test_a_link_is_not_fetched() -> None:
    assert FETCHED.search('<a href="https://example.org">') is None
    assert FETCHED.search('<link rel="canonical" href="https://example.org">') is None
