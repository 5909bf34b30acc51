"""Groups whose processes are killed, frozen, poisoned and forked."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from kit import rows, wait_until
from relaybox import Event, Outbox
from relaybox.topic import Topic

from .kit import fresh_url

TESTS = Path(__file__).parent.parent
sys.path.insert(0, str(TESTS.parent))

from chaos.groups import Options, Storm  # noqa: E402


class Children:
    def __init__(self, folder: Path) -> None:
        self.url = fresh_url()
        self.file = folder / "seen.txt"
        self._running: list[subprocess.Popen[bytes]] = []
        with Outbox(self.url) as box:
            box.migrate()
            box.topics.configure(Topic.pub_sub("orders", shards=2))

    def write(self, *payloads: object, key: str | None = None) -> None:
        with Outbox(self.url) as box, box.transaction() as tx:
            box.write_all(tx, [Event("Placed", payload, key=key, topic="orders") for payload in payloads])

    def start(self, how: str = "plain") -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "topics.group_child", self.url, str(self.file), how]
        process = subprocess.Popen(command, cwd=TESTS)
        self._running.append(process)
        return process

    def seen(self) -> list[str]:
        return self.file.read_text().split("\n")[:-1] if self.file.exists() else []

    def stop(self) -> None:
        self.file.with_suffix(".stop").touch()
        for process in self._running:
            try:
                process.wait(20)
            finally:
                process.kill()


@pytest.mark.parametrize("batch", [0, 20])
def test_order_per_key_survives_kills_freezes_and_rebalances(tmp_path: Path, batch: int) -> None:
    options = Options(events=3000, keys=20, kills=3, freezes=2, seed=3 + batch, batch=batch)
    report = Storm(options, tmp_path).run()
    assert report.lost == []
    assert report.inversions == []
    assert report.kills + report.freezes == 5


def test_without_faults_nothing_comes_twice(tmp_path: Path) -> None:
    report = Storm(Options(events=2000, kills=0, freezes=0, failures=0.0, seed=9), tmp_path).run()
    assert (report.lost, report.inversions, report.twice) == ([], [], 0)


@pytest.mark.parametrize("how", ["poison", "poison-batch"])
def test_an_event_that_kills_its_process_ends_alone_in_the_dead_letters(tmp_path: Path, how: str) -> None:
    children = Children(tmp_path)
    try:
        member = children.start(how)
        wait_until(lambda: "started" in children.seen())
        children.write(*range(20), "poison", *range(20, 40))
        deaths = 0
        dead = "SELECT convert_from(payload, 'utf8'), attempts FROM outbox_event_parked WHERE state = 'dead'"
        while not rows(children.url, dead):
            if member.poll() is not None:
                deaths += 1
                assert deaths < 12
                member = children.start(how)
            time.sleep(0.02)
        wait_until(lambda: {str(n) for n in range(40)} <= set(children.seen()))
        assert [payload for payload, _ in rows(children.url, dead)] == ['"poison"']
        assert 3 <= deaths <= 6
    finally:
        children.stop()


def test_a_fork_disturbs_nobody(tmp_path: Path) -> None:
    """No connection is used by two processes."""
    children = Children(tmp_path)
    try:
        children.start("fork")
        wait_until(lambda: "from the child" in children.seen())
        children.write(*range(10))
        wait_until(lambda: {str(n) for n in range(10)} <= set(children.seen()))
    finally:
        children.stop()
