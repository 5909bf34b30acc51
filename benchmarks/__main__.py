"""`python -m benchmarks`: relaybox and its peers side by side on one PostgreSQL."""

from __future__ import annotations

import argparse
import os
import platform
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from benchmarks import chart, goals, postgres, report
from benchmarks.registry import systems as all_systems
from benchmarks.spi import UNITS, WORKLOADS, PeerFailed, Sample, Sizes, System, Unsupported
from benchmarks.store import Journal, Key
from benchmarks.systems.relaybox_system import NAME

DEFAULT_OUT = Path(__file__).parent / "results" / "latest.json"


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the work, one repeat")
    parser.add_argument("--only", default="", metavar="W[,W]", help=f"or patterns, out of {', '.join(WORKLOADS)}")
    parser.add_argument("--systems", default="", metavar="S[,S]", help="systems by name")
    parser.add_argument("--repeat", type=int, default=None, help="repeats (default 3, with --quick 1)")
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT)
    parser.add_argument("--resume", action="store_true", help="re-use what an earlier run finished")
    parser.add_argument("--url", default=None, help="use this PostgreSQL instead of a private one")
    parser.add_argument("--own", action="store_true", help="a private server of the machine's own PostgreSQL version")
    parser.add_argument(
        "--held-seconds", type=float, default=None, help="how long held_snapshot holds it (default 180)"
    )
    parser.add_argument(
        "--inbox-processed", type=int, default=None, help="messages processed before inbox_next (default 1,000,000)"
    )
    parser.add_argument("--date", default=None, help="date recorded in the header (default: today)")
    return parser.parse_args(argv)


def chosen(wanted: str, known: Sequence[str], what: str) -> list[str]:
    """Those that a name or pattern fits, in their usual order, or all."""
    patterns = [pattern.strip() for pattern in wanted.split(",") if pattern.strip()]
    unknown = [pattern for pattern in patterns if not any(fnmatchcase(name, pattern) for name in known)]
    if unknown:
        raise SystemExit(f"unknown {what}: {', '.join(unknown)}; known: {', '.join(known)}")
    return [name for name in known if not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)]


def measure(server: postgres.Server, system: System, workload: str, sizes: Sizes) -> Sample:
    """One measurement in a fresh database."""
    name = re.sub(r"\W+", "_", f"bench_{system.name}_{workload}".lower())
    with server.fresh_database(name) as database:
        database.checkpoint()
        sample: Sample = getattr(system, workload)(database, sizes)
        return sample


def attempt(server: postgres.Server, system: System, workload: str, sizes: Sizes) -> dict[str, Any]:
    """One journal line: the sample, or why there is none."""
    line: dict[str, Any] = {
        "workload": workload,
        "system": system.name,
        "language": system.language,
        "sizes": asdict(sizes),
    }
    nothing: dict[str, Any] = {"value": None, "extra": {}, "settings": {}, "version": system.version}
    try:
        system.install()
        sample = measure(server, system, workload, sizes)
    except Unsupported as reason:
        return {**line, **nothing, "error": f"unsupported: {reason}", "final": True}
    except PeerFailed as reason:
        return {**line, **nothing, "error": str(reason)}
    return {**line, **asdict(sample), "error": None}


def run(
    server: postgres.Server,
    journal: Journal,
    done: dict[Key, dict[str, Any]],
    workloads: Sequence[str],
    systems: Sequence[System],
    sizes: Sizes,
    repeats: int,
) -> list[dict[str, Any]]:
    """All systems once, then again in the opposite order, for every workload."""
    lines: list[dict[str, Any]] = []
    for workload in workloads:
        given_up: set[str] = set()
        able = [system for system in systems if workload in system.workloads]
        for repeat in range(repeats):
            for system in able if repeat % 2 == 0 else able[::-1]:
                if system.name in given_up:
                    continue
                line = done.get((workload, system.name, repeat))
                if line is None:
                    began = time.monotonic()
                    line = {**attempt(server, system, workload, sizes), "repeat": repeat}
                    journal.append(line)
                    if line.get("final"):
                        given_up.add(system.name)
                    shown = line["error"] or f"{line['value']:,.2f} {UNITS[workload]}"
                    took = time.monotonic() - began
                    print(f"{workload} #{repeat + 1} {system.name}: {shown[:150]} [{took:.1f} s]", flush=True)
                lines.append(line)
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, draw, write."""
    options = arguments(argv)
    known = all_systems()
    workloads = chosen(options.only, WORKLOADS, "workload")
    names = chosen(options.systems, list(dict.fromkeys(system.name for system in known)), "system")
    sizes = Sizes.quick() if options.quick else Sizes()
    if options.held_seconds is not None:
        sizes = replace(sizes, held_seconds=options.held_seconds)
    if options.inbox_processed is not None:
        sizes = replace(sizes, inbox_processed=options.inbox_processed)
    repeats = options.repeat or (1 if options.quick else 3)
    journal = Journal(options.out.with_suffix(".jsonl"))
    done = journal.load(sizes) if options.resume else {}
    if not options.resume:
        journal.clear()
    with postgres.server(options.url, own=options.own) as server:
        header: dict[str, Any] = {
            "date": options.date or datetime.now(UTC).date().isoformat(),
            "cores": os.cpu_count(),
            "machine": platform.machine(),
            "python": platform.python_version(),
            "postgres": server.facts(),
            "sizes": asdict(sizes),
            "repeats": repeats,
        }
        wanted = [system for system in known if system.name in names]
        lines = run(server, journal, done, workloads, wanted, sizes, repeats)
    rows = report.rows_of(lines, workloads, names)
    header["goals"] = goals.lines(rows)
    report.write_json(options.out, header, rows)
    facts = header["postgres"]
    title = f"PostgreSQL {facts['server_version']}, {header['cores']} cores, median of {repeats}"
    chart.draw(options.out.with_suffix(".png"), rows, NAME, title)
    print(report.table(rows, NAME))
    print(goals.table(rows))
    print(f"\nwritten: {options.out} and {options.out.with_suffix('.png').name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
