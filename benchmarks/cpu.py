"""Processor time by process tree, from /proc: which side of a measurement the two cores went to."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import psycopg

TICKS = os.sysconf("SC_CLK_TCK")


class Sides:
    """Named groups of processes, with their children."""

    def __init__(self, roots: Mapping[str, Sequence[int]]) -> None:
        self._roots = roots
        self._before = self._used()

    def per_event(self, events: int) -> dict[str, float]:
        """Microseconds that each side has used since the beginning: what the cores leave room for."""
        return {side: round((now - self._before[side]) / events * 1e6, 1) for side, now in self._used().items()}

    def _used(self) -> dict[str, float]:
        children: dict[int, list[int]] = {}
        times: dict[int, tuple[int, int]] = {}  # own, and of children that have ended
        for pid, fields in _processes():
            children.setdefault(int(fields[1]), []).append(pid)
            times[pid] = int(fields[11]) + int(fields[12]), int(fields[13]) + int(fields[14])

        def tree(pid: int) -> int:
            return sum(times.get(pid, (0, 0))) + sum(tree(child) for child in children.get(pid, ()))

        return {side: sum(map(tree, pids)) / TICKS for side, pids in self._roots.items()}


def postmaster(url: str) -> int:
    """The process all backends of a local server come from; -1, which uses nothing, for a server elsewhere."""
    with psycopg.connect(url) as connection:
        backend = connection.info.backend_pid
        return next((int(fields[1]) for pid, fields in _processes() if pid == backend), -1)


def _processes() -> list[tuple[int, list[str]]]:
    """Each process with the fields of its stat file behind its name."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            found.append((int(folder.name), (folder / "stat").read_text().rpartition(") ")[2].split()))
        except OSError:
            continue  # it has just ended
    return found
