"""Hooks of mkdocs: what stands beside docs/ becomes part of the site, and links lead there.

A page may link to any page of the repository. In the site `docs/` is the root: `examples/` and the pages of the
project stand beside the folders in it. What only the tests of the pages read is left out.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
BESIDE = ("CHANGELOG.md", "SECURITY.md")
_HIDDEN = re.compile(r"^<!-- run\n.*?^-->\n", re.MULTILINE | re.DOTALL)
_NOTE = re.compile(r"^```python no-run: .*$", re.MULTILINE)
_LINK = re.compile(r"(\]\()((?:\.\./)*[^)\s:#]+)((?:#[^)\s]*)?\))")


def on_files(files: Files, config: Any, **_: Any) -> Files:
    examples = sorted(path for path in (ROOT / "examples").rglob("*") if _is_shown(path))
    for path in [*(ROOT / name for name in BESIDE), *examples]:
        name = path.relative_to(ROOT).as_posix()
        files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def _is_shown(path: Path) -> bool:
    made = {"__pycache__", "target", "logs", "dbt_packages"}
    return path.is_file() and not made & set(path.parts) and path.suffix != ".db" and not path.name.startswith(".")


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    text = _NOTE.sub("```python", _HIDDEN.sub("", markdown))
    source = page.file.src_uri
    here = posixpath.dirname(source if _beside(source) else f"docs/{source}")

    def lead(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(here, match[2]))
        in_site = target.removeprefix("docs/")
        return match[1] + posixpath.relpath(in_site, posixpath.dirname(source) or ".") + match[3]

    return _LINK.sub(lead, text)


def _beside(source: str) -> bool:
    return source in BESIDE or source.startswith("examples/")
