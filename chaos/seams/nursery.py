"""Starts processes that have imported everything already: a process that forks on demand, one for each lane.

Importing is most of what a short trial computes. What is forked is a process like any other, with connections, threads
and signals of its own; a trial that changes a process's environment starts it the ordinary way.
"""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent


class Child:
    """As `subprocess.Popen`, for a child of the nursery."""

    def __init__(self, nursery: Nursery, pid: int) -> None:
        self._nursery = nursery
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._nursery.ask({"poll": self.pid})
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("child", timeout or 0.0)
            time.sleep(0.02)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Nursery:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "chaos.seams.nursery"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={name: value for name, value in os.environ.items() if not name.startswith("RELAYBOX_")},
        )

    def start(self, module: str, arguments: list[str], log: Path) -> Child:
        return Child(self, self.ask({"module": module, "arguments": arguments, "log": str(log)}))

    def ask(self, question: dict[str, Any]) -> Any:
        with self._lock:
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._process.stdin.write(json.dumps(question).encode() + b"\n")
            self._process.stdin.flush()
            return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(20)


def serve() -> None:
    from relaybox.cli import app  # noqa: F401 - so that children have it

    from . import receiver, writer  # noqa: F401

    for name in ("asyncpg", "psycopg", "pymysql", "asyncmy", "aiosqlite", "redis", "redis.asyncio"):
        with contextlib.suppress(ImportError):
            __import__(name)
    codes: dict[int, int | None] = {}
    for line in sys.stdin.buffer:
        question = json.loads(line)
        _reap(codes)
        if "poll" in question:
            answer = codes.get(question["poll"], -1)
        else:
            answer = os.fork()
            if answer == 0:
                _become(question)
            codes[answer] = None
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    for pid, code in codes.items():
        if code is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _reap(codes: dict[int, int | None]) -> None:
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            codes[pid] = os.waitstatus_to_exitcode(status)


def _become(question: dict[str, Any]) -> None:
    """Never returns."""
    code = 1
    try:
        log = os.open(question["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        sys.argv = [question["module"], *question["arguments"]]
        sys.modules.pop(question["module"], None)  # it is run anew
        runpy.run_module(question["module"], run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    serve()
