"""The pages of the documentation, and the code in them.

    ```python                       run by the test, all blocks of a page in one namespace
    ```python no-run: reason        only shown; the tests cap how many there are
    <!-- run … -->                  run but not shown: checks, and set-up that would distract
    ```sh                           lines that call `relaybox` must parse

Blocks may use `await` at the top level, as in `python -m asyncio`.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")])

_BLOCK = re.compile(
    r"^```(?P<info>[a-z][^\n]*)\n(?P<code>.*?)^```$|^<!-- run\n(?P<hidden>.*?)^-->$", re.MULTILINE | re.DOTALL
)


class Block(NamedTuple):
    language: str
    note: str  # what follows the language on the opening line
    code: str
    line: int  # of the first line of code in the page


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    found = []
    for match in _BLOCK.finditer(text):
        line = text.count("\n", 0, match.start()) + 2
        if match["hidden"] is not None:
            found.append(Block("python", "", match["hidden"], line))
        else:
            language, _, note = match["info"].partition(" ")
            found.append(Block(language, note.strip(), match["code"], line))
    return found


def runnable(page: Path) -> list[Block]:
    return [block for block in blocks(page) if block.language == "python" and not block.note]


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


_URL = re.compile(r"(postgresql|mysql)(\+\w+)?://localhost(:6432)?/(\w+)")


def databases(code: str) -> set[tuple[str, str]]:
    """(kind, name) of every database the code names: postgresql, mysql, or pgbouncer for port 6432."""
    return {("pgbouncer" if m[3] else m[1], m[4]) for m in _URL.finditer(code)}


def with_urls(code: str, urls: dict[str, str]) -> str:
    """The code with its example URLs replaced by `urls["kind/name"]`; a +driver stays."""

    def real(match: re.Match[str]) -> str:
        url = urls[f"{'pgbouncer' if match[3] else match[1]}/{match[4]}"]
        return url.replace("://", f"{match[2] or ''}://", 1)

    return _URL.sub(real, code)


def run(page: Path, urls: dict[str, str]) -> None:
    """Run a page's blocks in order. Tracebacks name the page and its lines."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    with asyncio.Runner() as runner:
        for block in runnable(page):
            source = "\n" * (block.line - 1) + with_urls(block.code, urls)
            code = compile(source, str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            result = eval(code, namespace)  # noqa: S307 - the documentation's own code
            if inspect.iscoroutine(result):
                runner.run(result)
