"""What a process of a trial did: JSON lines, appended with one write each, complete up to a kill -9.

Imports nothing but the standard library: the checker and the processes under trial share only this.

    acked      a writer's transaction was committed (or the broker has the message)
    begin      a handler was called          done       it returned
    failed     it raised on purpose          stopping   from here on nothing may begin in this process
    forked     a child begins                left       it has done what it wanted
    ready      the process receives          stall      the process got no processor for `seconds`
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Note:
    op: str
    at: int  # monotonic nanoseconds: one clock for all processes of a machine
    who: str = ""
    id: str = ""
    key: str = ""
    n: int = 0
    stream: str = ""  # the group, where there are several
    seconds: float = 0.0


class Notes:
    """The file of one process; one write per call, so nothing is buffered when the process is killed."""

    def __init__(self, path: Path) -> None:
        self.who = path.stem
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def note(self, op: str, *, at: int | None = None, **values: Any) -> None:
        line = {"op": op, "at": time.monotonic_ns() if at is None else at, "who": self.who, **values}
        os.write(self._fd, json.dumps(line).encode() + b"\n")


class Reader:
    """Reads on in files that grow."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._places: dict[Path, int] = {}
        self.notes: list[Note] = []

    def more(self) -> list[Note]:
        """All notes so far."""
        for path in sorted(self._folder.glob("*.notes")):
            self.notes.extend(self._lines(path))
        return self.notes

    def _lines(self, path: Path) -> Iterator[Note]:
        with path.open("rb") as file:
            file.seek(self._places.get(path, 0))
            data = file.read()
        whole = data.rfind(b"\n") + 1
        self._places[path] = self._places.get(path, 0) + whole
        for line in data[:whole].splitlines():
            yield Note(**json.loads(line))
