"""`relaybox demo` as a process of its own, and what it says when a promise is broken."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from relaybox.cli.demo import play, stage

from .conftest import Command

DEMO = [sys.executable, "-m", "relaybox", "demo"]
PROMISES = 11
BEGINNING = re.compile(r"$|  |[╭│╰✗]|[1-6]\. |A shop|What became|11 of 11")  # of a line that is not wrapped


def test_the_demo_checks_itself() -> None:
    done = subprocess.run(DEMO, capture_output=True, text=True, check=False, timeout=90)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{PROMISES} of {PROMISES} promises kept" in done.stdout
    assert done.stdout.count("killed by signal 9") == 3
    assert "4 bread   placed ✗ killed          │ ─2─► │ invoice, duplicate dropped" in done.stdout
    assert "\x1b" not in done.stdout
    assert done.stderr == ""


def test_the_demo_fits_into_a_terminal_of_80_columns() -> None:
    ours, its = pty.openpty()
    with subprocess.Popen(DEMO, stdout=its, stderr=its, env=os.environ | {"COLUMNS": "80", "TERM": "xterm"}) as process:
        os.close(its)
        printed = b""
        try:
            while part := os.read(ours, 65536):
                printed += part
        except OSError:  # its other end is closed
            os.close(ours)
    assert process.returncode == 0
    shown = re.sub(r"\x1b\[[0-9;]*m", "", printed.decode()).splitlines()
    assert "\x1b[" in printed.decode()  # colours
    assert '  @listeners.on("OrderPlaced")' in shown
    assert [line for line in shown if len(line) > 80 or "…" in line or not BEGINNING.match(line)] == []


def test_the_demo_for_programs(relaybox: Command) -> None:
    document: dict[str, Any] = relaybox.json("demo")
    assert document["ok"] is True
    assert len(document["checks"]) == PROMISES
    assert [(each["number"], each["sent"], each["dropped"]) for each in document["orders"]] == [
        *[(1, 1, 0), (2, 0, 0), (3, 1, 0), (4, 2, 1), (5, 3, 0), (6, 1, 0), (7, 1, 0)]
    ]
    assert document["orders"][4]["entries"] == ["invoice", "receipt", "note"]
    assert document["orders"][4]["retries"] >= 2
    assert document["orders"][6]["died"] == 1
    assert document["shop"]["due"] == document["billing"]["pending"] == document["billing"]["dead"] == 0


CHEATS = {
    # A listener that does not keep to its transaction.
    "billing": """
def twice(event, db):
    db.execute(program.ENTRY, [event.payload["number"], "invoice"])
    db.execute(program.ENTRY, [event.payload["number"], "invoice"])
program.listeners = program.Listeners(unmatched="ignore")
program.listeners.on("OrderPlaced")(twice)
""",
    # A shop that commits first and writes the event afterwards.
    "shop": """
def place(outbox, db, number, item):
    with db:
        db.execute("INSERT INTO orders VALUES (?, ?)", [number, item])
    event = program.Event("OrderPlaced", {"number": number, "item": item}, key=f"order-{number}", headers=program.FIRST)
    with outbox.transaction() as tx:
        outbox.write(tx, event)
program.place = place
""",
}


@pytest.mark.parametrize(
    ("name", "broken"),
    [("billing", "an order that commits is invoiced"), ("shop", "neither the order nor its event is there")],
)
def test_the_demo_tells_when_a_promise_is_broken(
    relaybox: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, broken: str
) -> None:
    """Its checks are real: with a program that does it wrong one fails, and the exit code is 1."""
    cheat = f"import sys; from pathlib import Path; import relaybox.cli.demo.{name} as program\n{CHEATS[name]}"
    (tmp_path / "cheat.py").write_text(cheat + "program.main(Path(sys.argv[1]))\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setitem(play.PROGRAMS, name, "cheat")
    monkeypatch.setattr(stage, "DEADLINE", 8.0)
    document = relaybox.json("demo", exit_code=1)
    assert document["ok"] is False
    assert broken in [check["promise"] for check in document["checks"] if not check["ok"]]


def test_the_demo_does_not_wait_for_a_program_that_fails(
    relaybox: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "cheat.py").write_text("raise SystemExit('no billing today')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setitem(play.PROGRAMS, "billing", "cheat")
    monkeypatch.setattr(stage, "DEADLINE", 1e9)
    told = relaybox("demo", exit_code=1)
    assert "✗ an order that commits is invoiced" in told.stdout
    assert "no billing today" in told.stderr
