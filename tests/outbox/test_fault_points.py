"""Kill -9 at every fault point, then start again: everything committed is delivered, nothing else is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from kit import delivering, rows, wait_until
from relaybox import ALL, Outbox
from relaybox.faults import POINTS
from relaybox.testing.servers import require

from .fault_child import BUSINESS, SETTINGS, lines, listeners

ENGINES = ("postgres", "sqlite", "mariadb")
TESTS = Path(__file__).parent.parent
IN_FLIGHT = 26  # all events of the scenario: delivered and not settled when the process dies


@dataclass
class Outcome:
    status: int
    output: str
    restarted: float  # seconds from the restart until nothing was left
    delivered: Counter[str]
    committed: set[str]
    stored: set[str]
    ghosts: set[str]
    leftovers: dict[str, int]


def database(engine: str, folder: Path) -> str:
    if engine == "sqlite":
        return f"sqlite:///{folder / 'faults.db'}"
    return str(require("postgres-wheel" if engine == "postgres" else "mariadb", durable=False).create_database())


def trial(url: str, folder: Path, point: str, action: str) -> Outcome:
    file = folder / "delivered"
    rows(url, BUSINESS)
    child = subprocess.run(
        [sys.executable, "-m", "outbox.fault_child", url, str(file)],
        cwd=TESTS,
        env={**os.environ, "RELAYBOX_CRASH": f"{point}:1:{action}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=60,
        check=False,
    )
    started = time.monotonic()
    finish(url, file)
    took = time.monotonic() - started
    with Outbox(url) as box, box.transaction() as tx:
        cursor = tx.connection.cursor()

        def column(text: str) -> list[str]:
            cursor.execute(text)
            return [row[0] for row in cursor.fetchall()]

        tables = ["pending", "dead", "hold", "instance"] + (["claim"] if url.startswith("postgres") else [])
        return Outcome(
            child.returncode,
            child.stdout.decode()[-2_000:],
            took,
            Counter(lines(file)),
            set(column("SELECT id FROM business")),
            set(column("SELECT event_id FROM outbox_event")),
            set(lines(Path(f"{file}.ghosts"))),
            {name: int(column(f"SELECT count(*) FROM outbox_event_{name}")[0]) for name in tables},
        )


def finish(url: str, file: Path) -> None:
    """The process comes back, without the fault."""
    with Outbox(url) as plain:
        plain.migrate()
    with delivering(Outbox, url, listeners(file, finishing=True), settings=SETTINGS) as box:

        def nothing_left() -> bool:
            box.dead.replay(ALL)
            status = box.status()
            return not (status.due or status.delayed or status.claimed or status.dead or strangers(box))

        wait_until(nothing_left, "peace")


def strangers(box: Outbox) -> int:
    """Instances that died and have not been removed yet."""
    with box.transaction() as tx:
        cursor = tx.connection.cursor()
        cursor.execute("SELECT count(*) FROM outbox_event_instance")
        return int(cursor.fetchone()[0]) - 1


# A kill is survived by what the engine has stored, so every point meets every engine; an error that is raised is
# survived by the code above it, which is the same for all: the engines take turns.
CASES = [(engine, point, "kill") for engine in ENGINES for point in POINTS] + [
    (ENGINES[n % len(ENGINES)], point, "raise") for n, point in enumerate(POINTS)
]


@pytest.mark.parametrize(("engine", "point", "action"), CASES)
def test_point(tmp_path: Path, engine: str, point: str, action: str) -> None:
    """A point that nothing reaches would survive its kill: the child would end with 0."""
    outcome = trial(database(engine, tmp_path), tmp_path, point, action)
    expected = -signal.SIGKILL if action == "kill" else 0
    assert outcome.status == expected, f"the child ended with {outcome.status}:\n{outcome.output}"
    assert outcome.committed <= set(outcome.delivered), "lost"
    assert set(outcome.delivered) <= outcome.committed, "delivered, but never committed"
    assert not outcome.ghosts & (outcome.stored | outcome.committed)
    assert outcome.stored == outcome.committed, "event rows and business rows differ"
    assert outcome.leftovers == dict.fromkeys(outcome.leftovers, 0)
    assert outcome.restarted < 8
    extra = sum(outcome.delivered.values()) - len(outcome.delivered)
    assert extra <= (IN_FLIGHT if action == "kill" else 1), f"{extra} duplicates around one fault"
