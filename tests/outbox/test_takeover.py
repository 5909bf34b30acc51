"""A process that dies or sleeps: others take its events within seconds, and it cannot harm them afterwards."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kit import PATIENCE, Probe, claimed, happened, make_box, one, rows, waiting
from relaybox.facts import TakenOver
from relaybox.types import DeliverySettings

TESTS = Path(__file__).parent.parent


class Peer:
    def __init__(self, url: str, role: str, file: Path, ttl: float) -> None:
        self.file = file
        self.process = subprocess.Popen(
            [sys.executable, "-m", "outbox.peer", url, role, str(file), str(ttl)],
            cwd=TESTS,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"ready\n"

    def lines(self) -> list[str]:
        return self.file.read_text().splitlines() if self.file.exists() else []

    def wait(self, count: int, prefix: str = "") -> None:
        """The file is the peer's history: look at it until the lines are there."""
        deadline = time.monotonic() + 20
        while sum(line.startswith(prefix) for line in self.lines()) < count:
            assert time.monotonic() < deadline, f"the peer wrote {self.lines()[-5:]}"
            time.sleep(0.01)

    def go_on(self) -> None:
        Path(f"{self.file}.go").touch()

    def send(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)


@pytest.fixture
def peers(tmp_path: Path) -> Iterator[Any]:
    made: list[Peer] = []

    def make(url: str, role: str, ttl: float = 1.0) -> Peer:
        made.append(Peer(url, role, tmp_path / f"peer{len(made)}", ttl))
        return made[-1]

    yield make
    for peer in made:
        peer.process.kill()
        peer.process.wait()
        assert peer.process.stdout is not None
        peer.process.stdout.close()


async def write(url: str, count: int, **payload: Any) -> list[str]:
    from relaybox import AsyncOutbox, Event

    box = AsyncOutbox(url)
    async with box.transaction() as tx:
        written_events = [Event("Happened", {"n": n, **payload}, key=f"k{n}") for n in range(count)]
        await box.write_all(tx, written_events)
        ids = [written.id for written in written_events]
    await box.close()
    return ids


@pytest.mark.parametrize("role", ["delivery", "ordered"])
async def test_a_killed_process_is_taken_over_within_seconds(url: str, probe: Probe, peers: Any, role: str) -> None:
    peer = peers(url, role)
    ids = await write(url, 10, hold=True)
    await asyncio.to_thread(peer.wait, 4)
    assert claimed(url) >= 4
    async with make_box(role, url, probe):
        peer.send(signal.SIGKILL)
        killed = time.monotonic()
        await probe.until(probe.has(*ids))
        assert time.monotonic() - killed < 5
    assert sum(fact.events for fact in probe.of(TakenOver)) >= (4 if role == "delivery" else 0)
    assert {seen.attempts for seen in probe.seen} <= {1, 2}
    assert max(seen.attempts for seen in probe.seen) == 2, "attempts are counted at the claim, the dead one's too"
    assert waiting(url) == 0


async def test_a_paused_process_is_fenced(url: str, probe: Probe, peers: Any) -> None:
    if url.startswith("sqlite"):
        pytest.skip("a process paused while it writes keeps SQLite's only write lock: nobody can take over")
    peer = peers(url, "delivery")
    ids = await write(url, 3, hold=True)
    await asyncio.to_thread(peer.wait, 3)
    async with make_box("delivery", url, probe):
        peer.send(signal.SIGSTOP)
        await probe.until(probe.has(*ids))
        await probe.until(lambda: waiting(url) == 0)
        rows(url, TRAP[url.partition(":")[0]].format(ids[0]))
        peer.go_on()
        peer.send(signal.SIGCONT)
        await asyncio.to_thread(peer.wait, 1, "lost")
    assert claimed(url) == 1, "the late settle touched what another holds"
    assert sorted(probe.ids) == sorted(ids), "each was taken over exactly once"


# The same event held by another for the next hour: what a late settle would hit without a fence.
PLAIN = (
    "INSERT INTO outbox_event_pending (seq, due, key_hash, token, owner, attempts) "
    "SELECT seq, {}, 1, 42, 999, 1 FROM outbox_event WHERE event_id = '{{}}'"
)
TRAP = {
    "postgresql": "WITH other AS (INSERT INTO outbox_event_instance (name, role, started_at, expires_at) "
    "VALUES ('other', 'multi', now(), now() + interval '1 hour') RETURNING id) "
    "INSERT INTO outbox_event_claim (token, owner, until, items) "
    "SELECT 42, id, now() + interval '1 hour', ARRAY[seq * 65536 + 1] FROM other, outbox_event WHERE event_id = '{}'",
    "mysql": PLAIN.format("utc_timestamp(6) + INTERVAL 1 HOUR"),
    "sqlite": PLAIN.format("9e15"),
}


async def test_one_that_is_alone_takes_everything_over_at_its_start(url: str, probe: Probe, peers: Any) -> None:
    """Without waiting for the dead one's heartbeat to expire, which is longer than the test's patience."""
    peer = peers(url, "alone", ttl=3 * PATIENCE)
    ids = await write(url, 4, hold=True)
    await asyncio.to_thread(peer.wait, 4)
    peer.send(signal.SIGKILL)
    peer.process.wait()
    async with make_box("alone", url, probe):
        await probe.until(probe.has(*ids))
    assert waiting(url) == 0


async def test_a_clean_stop_leaves_nothing_to_wait_for(url: str, probe: Probe) -> None:
    """A listener that outlives the drain is cut off; its event is released and free at once."""

    from relaybox import Event, Listeners, Settings

    started, cut_off = asyncio.Event(), []
    listeners = Listeners()

    async def hang(event: Event) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cut_off.append(event.id)
            raise

    listeners.on("Happened")(hang)
    slow = Settings(delivery=DeliverySettings(stop_timeout="50ms", workers=1))
    async with make_box("delivery", url, Probe(), listeners=listeners, settings=slow) as box:
        async with box.raw.transaction() as tx:
            written_events = [happened(n) for n in range(5)]
            await box.raw.write_all(tx, written_events)
            ids = [written.id for written in written_events]
        await started.wait()
    assert len(cut_off) == 1
    assert claimed(url) == 0
    assert one(url, "SELECT count(*) FROM outbox_event_pending WHERE attempts = 0") == 5
    assert one(url, "SELECT count(*) FROM outbox_event_instance") == 0
    async with make_box("delivery", url, probe):
        await probe.until(probe.has(*ids))
    assert [seen.attempts for seen in probe.seen] == [1] * 5
