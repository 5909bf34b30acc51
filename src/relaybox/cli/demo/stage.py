"""What every act needs: programs to start and to lose, waiting for what they say, and words on the terminal."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType
from rich.syntax import Syntax
from rich.text import Text

from ...clock import SYSTEM_CLOCK
from ..output import visible

DEADLINE = 55.0  # seconds for all of it, on the slowest machine
COLOURS = {"shop": "cyan", "billing": "yellow", "you": "bold"}


class Program:
    """A service, as a process of its own."""

    def __init__(self, name: str, module: str, folder: Path, tell: Callable[[], None]) -> None:
        self.doomed = False  # its end is part of the play
        self.said: list[dict[str, Any]] = []
        self._tell = tell
        with folder.joinpath(f"{name}.log").open("a", encoding="utf-8") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, str(folder)],
                cwd=folder,  # where nothing has the name of a module
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self.said.append(json.loads(line))
                self._tell()
        self._process.wait()
        self._tell()

    @property
    def code(self) -> int | None:
        """The exit code: -9 after SIGKILL, None while it runs."""
        return self._process.returncode

    @property
    def lost(self) -> bool:
        return self.code is not None and not self.doomed

    def heard(self, word: str) -> list[dict[str, Any]]:
        return [each for each in self.said if each["word"] == word]

    def do(self, what: str, **about: Any) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # of a program that is gone nobody hears an answer
            self._process.stdin.write(json.dumps({"do": what, **about}) + "\n")
            self._process.stdin.flush()

    def end(self) -> None:
        """It stops when nobody speaks to it any more."""
        assert self._process.stdin is not None
        self.doomed = True
        with suppress(BrokenPipeError):
            self._process.stdin.close()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


class Stage:
    def __init__(self, folder: Path, out: Console | None) -> None:
        """Without `out` all of it happens, and nothing is printed."""
        self.folder = folder
        self.checks: list[dict[str, Any]] = []
        self._out = out
        self._programs: list[Program] = []
        self._begun = SYSTEM_CLOCK.monotonic()
        self._news = threading.Condition()

    @property
    def kept(self) -> bool:
        return bool(self.checks) and all(check["ok"] for check in self.checks)

    @property
    def seconds(self) -> float:
        return SYSTEM_CLOCK.monotonic() - self._begun

    # -- programs -------------------------------------------------------------------------------------

    def start(self, name: str, module: str) -> Program:
        self._programs.append(Program(name, module, self.folder, self._tell))
        return self._programs[-1]

    def close(self) -> None:
        for program in self._programs:
            program.kill()

    def heard(self, word: str) -> list[dict[str, Any]]:
        """From any program, also from those that were killed since."""
        return [each for program in self._programs for each in program.heard(word)]

    def _tell(self) -> None:
        with self._news:
            self._news.notify_all()

    def until(self, happened: Callable[[], bool]) -> bool:
        """Looks again at each word of a program, and a few times a second in case one came too early."""
        while not happened():
            left = DEADLINE - self.seconds
            if left <= 0 or any(program.lost for program in self._programs):
                return happened()
            with self._news:
                self._news.wait(min(left, 0.1))
        return True

    # -- words ----------------------------------------------------------------------------------------

    def title(self, text: str) -> None:
        self.show(Text(f"\n{text}", style="bold"))

    def code(self, *functions: Callable[..., Any]) -> None:
        """As they are in the file, and run."""
        python = Syntax("", "python", background_color="default")
        for number, function in enumerate(functions):
            if number:
                self.show("")
            text = python.highlight("".join(f"  {line}" for line in inspect.getsourcelines(function)[0]))
            text.rstrip()
            self.show(text)
        self.show("")

    def line(self, who: str, text: str) -> None:
        self.show(Text.assemble("  ", (f"{who:<8}", COLOURS[who]), visible(text)))

    def check(self, promise: str, ok: bool) -> None:
        self.checks.append({"promise": promise, "ok": ok})
        self.show(Text(f"  ✓ {promise}", style="green") if ok else Text(f"  ✗ {promise}", style="bold red"))

    def show(self, what: RenderableType) -> None:
        if self._out is not None:
            self._out.print(what)
