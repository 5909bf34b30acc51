"""Many worker processes on one inbox: every message takes effect once. And messages that kill
the process that works on them: they become dead letters, and their neighbours do not."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kit import one, rows, until_stored
from relaybox import Event, Inbox
from relaybox.types import Order

from .effects import effects, with_effects
from .kit import agreed, arrived, inbox_url

KINDS = ("sync", "async", "batch")
PATIENCE = 90
MAX_ATTEMPTS = 4


class Crowd:
    """Worker processes; one that ends is replaced when somebody looks."""

    def __init__(self, size: int, url: str, **given: Any) -> None:
        kinds = [KINDS[n % len(KINDS)] for n in range(size)]
        script = [sys.executable, str(Path(__file__).with_name("crowd.py")), url]
        self._commands = [[*script, kind, json.dumps(given)] for kind in kinds]
        self._workers = [self._start(command) for command in self._commands]
        self.ended: set[int] = set()  # how

    def _start(self, command: list[str]) -> subprocess.Popen[str]:
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def ready(self) -> None:
        for worker in self._workers:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "ready\n"

    def look_after(self) -> None:
        for n, worker in enumerate(self._workers):
            if worker.poll() is not None:
                self.ended.add(worker.returncode)
                worker.communicate()
                self._workers[n] = self._start(self._commands[n])

    def end(self) -> None:
        for worker in self._workers:
            worker.kill()
            worker.communicate()


@contextmanager
def crowd(size: int, url: str, **given: Any) -> Iterator[Crowd]:
    made = Crowd(size, url, **given)
    try:
        yield made
    finally:
        made.end()


@pytest.mark.timeout(180)
@pytest.mark.parametrize(("engine", "size"), [("postgres", 10), ("mariadb", 3), ("sqlite", 3)])
async def test_no_message_takes_effect_twice(engine: str, size: int, tmp_path: Path) -> None:
    """Some handlers run for longer than their leases."""
    url = with_effects(inbox_url(engine, tmp_path))
    slow = {3, 50} if engine == "postgres" else set()
    events = [Event("OrderPlaced", {"n": n, "slow": n in slow}, key=f"k{n % 20}") for n in range(400)]
    with crowd(size, url, attempts=1000) as workers, Inbox(url) as inbox:
        workers.ready()
        for at in range(0, len(events), 20):
            inbox.accept_all(None, events[at : at + 20])
        await until_stored(lambda: one(url, "SELECT count(*) FROM inbox_pending") == 0)
        while one(url, "SELECT count(DISTINCT note) FROM effect") == 1:  # it was faster than the others could begin
            events += (more := [Event("OrderPlaced", {"n": n, "slow": False}, key=f"k{n}") for n in range(20)])
            inbox.accept_all(None, more)
            await until_stored(lambda: one(url, "SELECT count(*) FROM inbox_pending") == 0)
    assert effects(url) == sorted(event.id for event in events)
    assert one(url, "SELECT count(*) FROM inbox_done") == len(events)
    assert one(url, "SELECT count(DISTINCT note) FROM effect") > 1, "one worker has done it all"


@pytest.mark.timeout(180)
@pytest.mark.parametrize(("engine", "order"), [("postgres", ""), ("postgres", "skip"), ("sqlite", "")])
async def test_what_kills_its_worker_ends_in_the_dead_letters(engine: str, order: str, tmp_path: Path) -> None:
    url = with_effects(inbox_url(engine, tmp_path))
    killers, notes = {"5": "kill", "6": "exit"}, tmp_path / "notes"
    events = [arrived(n, key=f"k{n % 4}", headers={"sequence": str(n // 4 + 1)}) for n in range(40)]
    with agreed(url, order=Order(dead="skip") if order else None) as inbox:
        inbox.accept_all(None, events)
    with crowd(2, url, attempts=MAX_ATTEMPTS, killers=killers, notes=str(notes), order=order) as workers:

        def finished() -> bool:
            workers.look_after()
            return bool(one(url, "SELECT count(*) FROM inbox_pending") == 0)

        await until_stored(finished)
    letters = rows(url, "SELECT m.event_id, d.attempts, d.last_error FROM inbox_dead d JOIN inbox m ON m.seq = d.seq")
    assert {letter[0] for letter in letters} == {events[5].id, events[6].id}
    assert all("does it kill its process" in letter[2] for letter in letters)
    assert effects(url) == sorted(event.id for n, event in enumerate(events) if n not in (5, 6))
    tries = Counter(notes.read_text().split())
    assert tries.keys() == killers.keys()
    assert max(tries.values()) <= MAX_ATTEMPTS
    assert workers.ended == {-signal.SIGKILL, 7}
