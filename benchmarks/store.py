"""Finished measurements, one JSON line each, so that a broken run can be resumed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.spi import Sizes

Key = tuple[str, str, int]


@dataclass
class Journal:
    """The JSONL file beside the results."""

    path: Path

    def load(self, sizes: Sizes) -> dict[Key, dict[str, Any]]:
        """What earlier runs of the same sizes finished, failures excluded. A size that was not recorded had its
        default: the workload it belongs to is younger."""
        if not self.path.exists():
            return {}
        lines = [json.loads(line) for line in self.path.read_text().splitlines() if line.strip()]
        return {
            (line["workload"], line["system"], line["repeat"]): line
            for line in lines
            if Sizes(**line["sizes"]) == sizes and line.get("error") is None
        }

    def clear(self) -> None:
        """Start a new journal."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text("")

    def append(self, line: dict[str, Any]) -> None:
        """Keep one finished measurement."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")
