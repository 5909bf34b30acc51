"""Repairs taken back, one at a time, to see that a seam trial catches each:

    python -m chaos.seams.planted            all of them
    python -m chaos.seams.planted --list
    python -m chaos.seams.planted --only deadline

The source is copied and a few lines of the copy are what they were; the trial's processes run the copy. A trial that
depends on chance may be tried again.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
SOURCE = ROOT / "src"
TIMES = 6  # most are caught at once, the one about ticks in every third run or so


@dataclass(frozen=True, slots=True)
class Edit:
    file: str  # below src/relaybox
    now: str
    was: str


@dataclass(frozen=True, slots=True)
class Plant:
    name: str
    about: str
    trial: str
    blames: tuple[str, ...]  # any of these
    edits: tuple[Edit, ...]


_UNHELD = """
      AND p.seq <= coalesce((SELECT h.seq - h.parked::integer FROM {hold} h WHERE h.key_hash = w.key_hash),
                            9223372036854775807)
    ORDER BY p.seq LIMIT :share"""

PLANTS = (
    Plant(
        "deadline",
        "statements of background loops wait for ever",
        "black hole × plain",
        ("lost",),
        (
            Edit(
                "drivers/pool.py",
                "limited = self._limits.enter(seconds) if seconds is not None else None",
                "limited = None",
            ),
        ),
    ),
    Plant(
        "clock",
        "ordered claims compare what waits for no time with the clock",
        "clock set back × ordered by shards",
        ("order",),
        (
            Edit(
                "store/outbox/postgres/sql/claim.sql",
                "  WHERE (p.due <= (SELECT now FROM clock) OR p.since IS NOT NULL)\n    AND (p.key_hash",
                "  WHERE p.due <= (SELECT now FROM clock)\n    AND (p.key_hash",
            ),
            Edit(
                "store/outbox/postgres/sql/slots.sql",
                "(p.due <= (SELECT now FROM clock) OR p.since IS NOT NULL)" + _UNHELD,
                "p.due <= (SELECT now FROM clock)" + _UNHELD,
            ),
        ),
    ),
    Plant(
        "ticks",
        "a forgotten tick's number is given again",
        "fail-over × pause and resume × push group, bitmap",
        ("lost", "ghost", "duplicate"),
        (
            Edit(
                "store/topics/postgres/sql/tick.sql",
                "((n.tick >> 24) + 1 << 24) + floor(random() * (1 << 24)::float8)::bigint",
                "((n.tick >> 24) + 1 << 24)",
            ),
        ),
    ),
    Plant(
        "promise",
        "what a dead group was to have goes after zero_retention",
        "die and return × push group, ordered",
        ("lost",),
        (
            Edit(
                "store/topics/postgres/sql/slots.sql",
                "THEN t.retention ELSE t.zero_retention END",
                "THEN t.zero_retention ELSE t.zero_retention END",
            ),
        ),
    ),
    Plant(
        "resume",
        "a group that was paused for long is put forward when it is resumed",
        "pause and resume × push group, ordered",
        ("lost",),
        (Edit("store/topics/postgres/sql/cleanup.sql", "  AND g.alive_since < n.at - t.zombie_ttl\n", ""),),
    ),
    Plant(
        "connections",
        "groups claim, renew and settle on the connections that handlers take",
        "pool exhausted × push group, ordered",
        ("duplicate", "lost"),
        (
            Edit(
                "topics/context.py",
                "return self.db if self.services is None else self.services",
                "return self.db",
            ),
        ),
    ),
    Plant(
        "moved",
        "a group whose room is full does not learn that its topic was moved",
        "fork × move × push group, acks",
        ("lost",),
        (
            Edit(
                "topics/source.py",
                "        await self._refresh()  # also if nothing is claimed meanwhile",
                "        # also if nothing is claimed meanwhile",
            ),
        ),
    ),
    Plant(
        "stop",
        "what was claimed before a stop still begins after it",
        "SIGTERM × ordered by shards",
        ("late",),
        (
            Edit(
                "engine/rows/engine.py",
                "        self._hot.clear()\n        self._cold.clear()\n        self._workers.halt()",
                "        self._workers.halt()",
            ),
        ),
    ),
    Plant(
        "identity",
        "events are known by their number alone",
        "fail-over × plain",
        ("lost",),
        (Edit("engine/rows/engine.py", "if known.event.id == fresh.event.id:", "if known.seq == fresh.seq:"),),
    ),
    Plant(
        "watch",
        "workers that wait for a heartbeat are cancelled, and nobody replaces them",
        "database away × push group, ordered",
        ("lost",),
        (
            Edit("engine/workers.py", "if not worker.calls % 2 or calls != worker.calls:", "if calls != worker.calls:"),
            Edit(
                "engine/loops.py",
                "        if self._stopping:\n            return\n        error =",
                "        if self._stopping or name == 'worker':\n            return\n        error =",
            ),
        ),
    ),
)


def planted(plant: Plant, folder: Path) -> Path:
    """A copy of the source with the repair taken back; raises if the source is not as the plant expects."""
    copy = folder / "src"
    shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for edit in plant.edits:
        path = copy / "relaybox" / edit.file
        text = path.read_text()
        if text.count(edit.now) != 1:
            raise LookupError(f"{plant.name}: {edit.file} has {text.count(edit.now)} times: {edit.now!r}")
        path.write_text(text.replace(edit.now, edit.was))
    return copy


def fits(plant: Plant) -> bool:
    return all((SOURCE / "relaybox" / edit.file).read_text().count(edit.now) == 1 for edit in plant.edits)


def caught(plant: Plant) -> str:
    """The verdict that caught it, or an empty string."""
    with tempfile.TemporaryDirectory(prefix="relaybox-planted-") as name:
        folder = Path(name)
        copy = planted(plant, folder)
        for number in range(TIMES):
            results = folder / f"results-{number}.jsonl"
            subprocess.run(
                [sys.executable, "-m", "chaos.seams", "--only", plant.trial, "--lanes", "1", "--results", str(results)],
                cwd=ROOT,
                env=os.environ | {"PYTHONPATH": str(copy)},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                check=False,
            )
            verdict = str(json.loads(results.read_text().splitlines()[-1])["verdict"])
            if any(f"{kind} " in verdict for kind in plant.blames):
                return verdict
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="chaos.seams.planted", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", action="append", default=[], choices=[plant.name for plant in PLANTS])
    parser.add_argument("--list", action="store_true")
    given = parser.parse_args()
    missed = []
    for plant in PLANTS:
        if given.only and plant.name not in given.only:
            continue
        if given.list:
            print(f"{plant.name}: {plant.about}; caught by {plant.trial}")
            continue
        verdict = caught(plant)
        print(f"{plant.name}: {plant.about}: {verdict or 'NOT CAUGHT'} ({plant.trial})", flush=True)
        if not verdict:
            missed.append(plant.name)
    print("PASS" if not missed else f"FAIL: not caught: {', '.join(missed)}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
