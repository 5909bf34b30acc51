"""Every Python block of the documentation runs, and every relaybox command in it parses."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import doc_pages
import pytest

from relaybox.testing.servers import require

MAX_NOT_RUN = 4
KINDS = {"postgresql": "postgres-wheel", "mysql": "mariadb", "pgbouncer": "pgbouncer"}


def fresh_url(kind: str) -> str:
    if kind != "pgbouncer":
        return require(KINDS[kind], durable=False).create_database()
    pooler = require("pgbouncer", durable=False)
    database = urlsplit(require("postgres-wheel", durable=False).create_database()).path.lstrip("/")
    return pooler.url(database)


@pytest.mark.parametrize("page", [p for p in doc_pages.PAGES if doc_pages.runnable(p)], ids=doc_pages.name)
def test_page_runs(page: Path, tmp_path: Path) -> None:
    named = {pair for block in doc_pages.runnable(page) for pair in doc_pages.databases(block.code)}
    urls = {f"{kind}/{name}": fresh_url(kind) for kind, name in named}
    runner = Path(__file__).with_name("run_page.py")
    done = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", str(runner), str(page), json.dumps(urls)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, f"{doc_pages.name(page)}\n{done.stdout}{done.stderr}"
    assert "Task exception was never retrieved" not in done.stderr, done.stderr


def test_few_blocks_are_only_shown() -> None:
    shown = {
        f"{doc_pages.name(page)}:{block.line}": block.note
        for page in doc_pages.PAGES
        for block in doc_pages.blocks(page)
        if block.language == "python" and block.note
    }
    for place, note in shown.items():
        assert re.match(r"no-run: \w+", note), f"{place}: write `python no-run: reason`, not {note!r}"
    assert len(shown) <= MAX_NOT_RUN, shown


def commands() -> list[tuple[str, str]]:
    """(place, command line) of each relaybox call in a shell block; continued lines are joined."""
    found = []
    for page in doc_pages.PAGES:
        for block in doc_pages.blocks(page):
            if block.language in ("sh", "console"):
                for line in block.code.replace("\\\n", " ").splitlines():
                    if match := re.match(r"^(?:\$ )?(?:[A-Z_]+=\S+ )*(relaybox .*)$", line):
                        found.append((f"{doc_pages.name(page)}:{block.line}", match[1]))
    return found


@pytest.mark.parametrize(("place", "line"), commands())
def test_command_parses(place: str, line: str) -> None:
    from typer.main import get_command

    from relaybox.cli import app

    command, context = get_command(app), None
    arguments = shlex.split(line, comments=True)[1:]
    while True:
        context = command.make_context(command.name or "relaybox", arguments, parent=context)
        if not hasattr(command, "resolve_command"):
            return
        rest = [*context.protected_args, *context.args] if hasattr(context, "protected_args") else context.args
        _, command, arguments = command.resolve_command(context, rest)
