"""Writers, readers and keepers as processes, with what they say."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


class Process:
    def __init__(self, module: str, *arguments: object) -> None:
        command = [sys.executable, "-m", f"ga.{module}", *map(str, arguments)]
        self._process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.lines: list[dict[str, Any]] = []
        self._errors: list[str] = []
        self._ready = threading.Event()
        self._threads = [threading.Thread(target=f, daemon=True) for f in (self._listen, self._complaints)]
        for thread in self._threads:
            thread.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                self.lines.append(json.loads(line))
            self._ready.set()
        self._ready.set()

    def _complaints(self) -> None:
        assert self._process.stderr is not None
        self._errors += [line for line in self._process.stderr if "WARNING" not in line][-20:]

    def ready(self, timeout: float = 60) -> None:
        if not self._ready.wait(timeout) or self._process.poll() not in (None, 0):
            raise RuntimeError(f"a process did not start: {''.join(self._errors[-5:])}")

    def result(self, timeout: float) -> dict[str, Any]:
        self._process.wait(timeout)
        for thread in self._threads:
            thread.join(5)
        if self._process.returncode != 0:
            raise RuntimeError(f"a process ended with {self._process.returncode}: {''.join(self._errors[-5:])}")
        return self.lines[-1]

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def stop(self, timeout: float = 30) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(timeout)
            except subprocess.TimeoutExpired:
                self.kill()

    @property
    def delivered(self) -> dict[str, int]:
        return self.lines[-1]["counts"] if self.lines else {}

    def since(self, moment: float) -> list[dict[str, Any]]:
        return [line for line in self.lines if line["at"] >= moment]


def worst(lines: list[dict[str, Any]], name: str) -> float | None:
    """The p95 over the lines of what is a p95 per second: neither the mean of them nor the one worst second."""
    values = sorted(line[name] for line in lines if line[name] is not None)
    return values[min(len(values) - 1, int(len(values) * 0.95))] if values else None
