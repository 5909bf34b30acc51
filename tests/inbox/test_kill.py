"""kill -9 of a processor: before, in and after the transaction of a message."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from kit import Probe, one, rows, until_stored
from relaybox import Event, Inbox
from relaybox.types import Order

from .effects import QUICK, effects, rows_or_none, with_effects, writing
from .kit import agreed, arrived, pending_ids, serving

WORKER = Path(__file__).parent / "worker.py"


@pytest.fixture
def home(url: str) -> str:
    return with_effects(url)


async def killed(url: str, *arguments: str, crash: str = "") -> bool:
    environment = {**os.environ, "RELAYBOX_CRASH": crash} if crash else dict(os.environ)
    run = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, str(WORKER), url, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.returncode in (0, -signal.SIGKILL), run.stderr
    return run.returncode != 0


async def finish(url: str) -> None:
    """A processor that comes after: it takes over, and goes on until nothing waits."""
    probe = Probe()
    with Inbox(url) as inbox, serving(inbox, writing(False), settings=QUICK, observers=[probe]):
        await probe.until(lambda: pending_ids(url) == [])


@pytest.mark.parametrize("point", ["claim.after", "deliver.before", "settle.before", "settle.after"])
async def test_every_message_takes_effect_once(home: str, point: str) -> None:
    """settle.before: the handler has written and the commit has not begun; settle.after: it has just ended."""
    events = [arrived(n) for n in range(12)]
    with Inbox(home) as inbox:
        inbox.accept_all(None, events)
    assert await killed(home, crash=f"{point}:{1 if point == 'claim.after' else 4}:kill")
    if point == "settle.after":
        assert effects(home)
    assert len(effects(home)) == one(home, "SELECT count(*) FROM inbox_done")
    await finish(home)
    assert effects(home) == sorted(event.id for event in events)


async def test_a_message_that_kills_its_process_dies_and_the_others_live(home: str) -> None:
    """Every run but the last is killed; its neighbours in the claim are not blamed to death."""
    events = [arrived(n) for n in range(12)]
    with Inbox(home) as inbox:
        inbox.accept_all(None, events)
    runs = 0
    while one(home, "SELECT count(*) FROM inbox_dead") == 0:
        runs += 1
        assert runs < 40, "it loops"
        await killed(home, "5")
        rows_free(home)
    assert runs > 2
    await finish(home)
    letters = rows(home, "SELECT m.event_id, d.last_error FROM inbox_dead d JOIN inbox m ON m.seq = d.seq")
    assert [letter[0] for letter in letters] == [events[5].id]
    assert "does it kill its process" in letters[0][1]
    assert effects(home) == sorted(event.id for event in events if event is not events[5])


async def test_a_storm(home: str) -> None:
    """Two ordered processors at a time, all of them killed again and again: every effect once, every key in order."""
    chance = random.Random(5)
    events = [
        Event("Moved", {"n": n}, key=f"k{k}", id=f"k{k}-{n}", headers={"sequence": str(n)})
        for k in range(8)
        for n in range(1, 31)
    ]
    chance.shuffle(events)
    with agreed(home, order=Order()) as inbox:
        inbox.accept_all(None, events[:120])
        for done in (20, 60, 100, 140):
            workers = [subprocess.Popen([sys.executable, str(WORKER), home, "ordered"]) for _ in range(2)]
            inbox.accept_all(None, events[: done + 100])  # some again
            enough = min(done, reach(events[: done + 100]))
            try:
                await until_stored(partial(has_effects, home, enough))
            finally:
                for worker in workers:
                    worker.kill()
                    worker.wait()
            rows_free(home)
        inbox.accept_all(None, events)
        probe = Probe()
        with serving(inbox, writing(False), settings=QUICK, observers=[probe]):
            await until_stored(lambda: one(home, "SELECT count(*) FROM inbox_pending") == 0)
    assert effects(home) == sorted(event.id for event in events)
    ran = [row[0].split("-") for row in rows(home, "SELECT event_id FROM effect ORDER BY id")]
    for k in range(8):
        assert [int(n) for key, n in ran if key == f"k{k}"] == list(range(1, 31))


def has_effects(url: str, count: int) -> bool:
    return len(effects(url)) >= count


def reach(events: list[Event]) -> int:
    """How many can take effect of what has come."""
    come = {event.id for event in events}
    return sum(next(n for n in itertools.count(1) if f"k{k}-{n}" not in come) - 1 for k in range(8))


def rows_free(url: str) -> None:
    """As if the time had passed after which a silent process counts as dead."""
    past = {"postgresql": "'2000-01-01'", "mysql": "'2000-01-01'", "sqlite": "0"}[url.partition(":")[0]]
    rows_or_none(url, f"UPDATE inbox_instance SET expires_at = {past}")
