"""One peer as a subprocess: JSON lines in on stdin, marked JSON lines out on stdout."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmarks.spi import PeerFailed, Unsupported

MARK = "@@"


class PeerProcess:
    """Starts the program, sends commands and waits for their replies."""

    def __init__(
        self, command: Sequence[str], cwd: Path, env: Mapping[str, str], log: Path, fresh_log: bool = True
    ) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self._log = log
        self._stderr = log.open("wb" if fresh_log else "ab")
        self._process = subprocess.Popen(
            list(command),
            cwd=cwd,
            env={**os.environ, **env},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
            bufsize=1,
        )
        self._replies: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self.handled = 0
        threading.Thread(target=self._read, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def call(self, command: str, timeout: float = 300.0, **arguments: Any) -> dict[str, Any]:
        """Send one command and wait for its reply."""
        self.send(command, **arguments)
        return self.reply(timeout)

    def send(self, command: str, **arguments: Any) -> None:
        """Send one command; `reply` takes the answer later."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"command": command, **arguments}) + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise PeerFailed(self.words(f"{command}: the process is gone")) from error

    def reply(self, timeout: float = 300.0) -> dict[str, Any]:
        """The next reply, or the peer's own error."""
        try:
            message = self._replies.get(timeout=timeout)
        except queue.Empty:
            raise PeerFailed(self.words(f"no reply within {timeout:.0f} s")) from None
        if message is None:
            raise PeerFailed(self.words(f"exited with code {self._process.wait()}"))
        if "unsupported" in message:
            raise Unsupported(message["unsupported"])
        if "error" in message:
            raise PeerFailed(message["error"])
        return message

    def close(self) -> None:
        """Ask the program to end, then end it."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
            self._process.wait(timeout=3)
        except (OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        self._stderr.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if not line.startswith(MARK):
                continue
            message = json.loads(line[len(MARK) :])
            if "handled" in message:
                self.handled = message["handled"]
            else:
                self._replies.put(message)
        self._replies.put(None)

    def words(self, what: str) -> str:
        """`what` and the last error the program wrote to its log."""
        lines = [line.strip() for line in self._log.read_text(errors="replace").splitlines()]
        errors = [line for line in lines if "rror" in line and not line.startswith("at ")]
        return " | ".join([what, *(errors or lines)[-1:]])


def wait_handled(processes: Sequence[PeerProcess], total: int, stall: float = 30.0) -> None:
    """Wait until the processes together have handled `total`; `stall` seconds without progress fail."""
    seen, since = -1, time.monotonic()
    while True:
        handled = sum(process.handled for process in processes)
        if handled >= total:
            return
        if handled != seen:
            seen, since = handled, time.monotonic()
        elif time.monotonic() - since > stall:
            raise PeerFailed(processes[0].words(f"stalled at {handled} of {total}"))
        time.sleep(0.01)
