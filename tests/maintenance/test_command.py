"""`relaybox maintain` and `relaybox doctor --repair`, as people call them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from contextlib import suppress
from datetime import timedelta
from typing import Any
from urllib.error import HTTPError

import pytest
from typer.testing import CliRunner

from relaybox import Outbox
from relaybox.cli.app import app
from relaybox.testing.servers.process import free_port

from .kit import World


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("RELAYBOX_")]:
        monkeypatch.delenv(name)


def called(*arguments: str, exit_code: int = 0) -> Any:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == exit_code, result.output
    return result


def test_once(world: World) -> None:
    topic = world.topic(partitions="day", retention=timedelta(microseconds=1), zero_retention=timedelta(microseconds=1))
    world.clock.at = world.sql("SELECT now() - interval '1 day'")[0][0]
    world.write(topic, 10)
    report = json.loads(called("maintain", "--once", "--json", "--url", world.url).stdout)
    assert report["leading"]
    assert report["ticks"] == 1
    assert called("maintain", "--once", "--job", "watch", "--url", world.url).stdout == "nothing to do\n"


def test_standing_by(world: World) -> None:
    world.sql("INSERT INTO outbox_event_term VALUES ('maintenance', 'other', 1, now() + interval '10 seconds')")
    assert "another maintainer" in called("maintain", "--once", "--url", world.url).stdout


def test_wrong_usage(world: World) -> None:
    called("maintain", "--json", "--url", world.url, exit_code=2)
    called("maintain", "--preset", "sometimes", "--once", "--url", world.url, exit_code=2)
    called("maintain", "--job", "dust", "--once", "--url", world.url, exit_code=1)


def test_survey(world: World) -> None:
    topic = world.topic(tracking="bitmap")
    world.group(topic, "quiet")
    dead = world.group(topic, "gone")
    world.write(topic, 3)
    world.state(dead, "dead")
    world.sql("UPDATE outbox_event_group SET heartbeat_at = now() - interval '8 days'")
    world.sql("UPDATE outbox_event_group SET state_at = now() - interval '31 days' WHERE name = 'gone'")
    found = json.loads(called("maintain", "--survey", "--json", "--url", world.url).stdout)
    assert [(row["group"], row["state"]) for row in found["orphans"]] == [("gone", "dead"), ("quiet", "active")]
    assert [row["name"] for row in found["old_groups"]] == ["gone"]
    assert found["mismatched"] == {"orders": 3}
    shown = called("maintain", "--survey", "--url", world.url).stdout
    assert "orphan" in shown
    assert "old group" in shown


def test_repair(world: World) -> None:
    with Outbox(world.url) as outbox:
        outbox.migrate()
    topic = world.topic()
    world.write(topic, 10)
    world.sql("UPDATE outbox_event_incarnation SET system_identifier = 1")
    broken = json.loads(called("doctor", "--json", "--url", world.url, exit_code=1).stdout)
    assert [f["level"] for f in broken["findings"] if f["check"] == "incarnation"] == ["critical"]
    mended = called("doctor", "--repair", "--json", "--url", world.url, exit_code=1)  # the server's fsync is off
    assert "stamped 10 event(s)" in mended.stderr
    assert [f["level"] for f in json.loads(mended.stdout)["findings"] if f["check"] == "incarnation"] == ["ok"]
    assert "nothing to repair" in called("doctor", "--repair", "--url", world.url, exit_code=1).stderr


def test_serves_readiness_until_a_signal(world: World) -> None:
    world.topic()
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "relaybox", "maintain", "--listen", f"127.0.0.1:{port}", "--url", world.url],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert "maintenance of the topics" in process.stdout.readline()
        for _ in range(200):
            with suppress(HTTPError), urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=5) as answer:
                assert json.load(answer)["live"]
                break
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0
    finally:
        process.kill()
        process.wait()
    assert world.sql("SELECT until <= now() FROM outbox_event_term") == [(True,)], "the term is given up"
