"""status, dead, blocked, purge: on a SQLite file with known contents."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta

from relaybox import Event

from .conftest import Command, block, finish, kill, write


def test_status(relaybox: Command, url: str) -> None:
    write(url, Event("A", 1), Event("A", 2, deliver_at=datetime.now(UTC) + timedelta(hours=1)))
    document = relaybox.json("status", "--url", url)
    assert {name: document[name] for name in ("due", "delayed", "claimed", "retrying", "dead", "events")} == {
        "due": 1,
        "delayed": 1,
        "claimed": 0,
        "retrying": 0,
        "dead": 0,
        "events": 2,
    }
    assert document["oldest_due_seconds"] >= 0
    assert document["instances"] == document["blocked_keys"] == []
    assert "no process delivers" in relaybox("status", "--url", url).stdout


def test_watch_refreshes_until_interrupted(url: str) -> None:
    """On a terminal, as people use it: the view appears, Ctrl-C ends it with exit 0."""
    control, terminal = pty.openpty()
    watching = subprocess.Popen(
        [sys.executable, "-m", "relaybox.cli", "status", "--watch", "--interval", "50ms", "--url", url],
        stdout=terminal,
        stderr=terminal,
        env={**os.environ, "TERM": "xterm"},
    )
    os.close(terminal)
    try:
        seen = b""
        while seen.count(b"oldest due") < 3:
            seen += os.read(control, 4096)
        watching.send_signal(signal.SIGINT)
        assert watching.wait(20) == 0
    finally:
        watching.kill()
        watching.wait()
        os.close(control)


def test_dead_list_filters_and_pages(relaybox: Command, url: str) -> None:
    assert "no dead letters" in relaybox("dead", "list", "--url", url).stdout
    assert relaybox.json("dead", "list", "--url", url) == {"dead": []}
    kill(url, *[Event("A", n, key=f"k{n}", tenant="t", aggregate_type="Order") for n in range(7)], Event("B", 0))
    assert len(relaybox.json("dead", "list", "--limit", "3", "--url", url)["dead"]) == 3
    assert len(relaybox.json("dead", "list", "--all", "--limit", "3", "--url", url)["dead"]) == 8
    assert "3 of 8" in relaybox("dead", "list", "--limit", "3", "--url", url).stdout
    for option, value, count in (
        ("--type", "A", 7),
        ("--aggregate-type", "Order", 7),
        ("--key", "k3", 1),
        ("--tenant", "t", 7),
    ):
        assert len(relaybox.json("dead", "list", option, value, "--url", url)["dead"]) == count
    letter = relaybox.json("dead", "list", "--key", "k3", "--url", url)["dead"][0]
    assert letter["error"] == "ValueError: no"
    assert letter["attempts"] == 1
    assert datetime.fromisoformat(letter["dead_at"]).tzinfo is not None
    relaybox("dead", "list", "--limit", "0", "--url", url, exit_code=2)


def test_show_keeps_payload_and_headers_back_unless_asked(relaybox: Command, url: str) -> None:
    event = Event("A", {"card": "PAYLOAD-4711"}, headers={"auth": "HEADER-4711"})
    kill(url, event)
    relaybox("dead", "show", event.id, "--url", url)
    relaybox("dead", "show", event.id, "--url", url, "--json")
    relaybox("dead", "list", "--url", url, "--json")
    assert "4711" not in relaybox.printed
    assert "PAYLOAD-4711" in relaybox("dead", "show", event.id, "--payload", "--url", url).stdout
    document = relaybox.json("dead", "show", event.id, "--payload", "--url", url)
    assert document["payload"] == {"card": "PAYLOAD-4711"}
    assert document["headers"] == {"auth": "HEADER-4711"}
    assert "no dead letter 'nobody'" in relaybox("dead", "show", "nobody", "--url", url, exit_code=1).stderr


def test_show_prints_what_is_not_json(relaybox: Command, url: str) -> None:
    events = [Event("A", payload_bytes=b"plain"), Event("A", payload_bytes=b"\xff\x00"), Event("A", payload_json="{")]
    kill(url, *events)
    shown = [relaybox.json("dead", "show", e.id, "--payload", "--url", url) for e in events]
    assert shown[0]["payload_text"] == "plain"
    assert shown[1]["payload_base64"] == "/wA="
    assert shown[2]["payload_text"] == "{"


def test_stored_text_cannot_play_with_the_terminal(relaybox: Command, url: str) -> None:
    kill(url, Event("[red]A[/red]", 1, key="\x1b]0;owned\x07"), error="\x1b[2Jgone [bold]x[/bold]")
    shown = relaybox("dead", "list", "--url", url).stdout
    assert "\x1b" not in shown
    assert "[red]A[/red]" in shown
    assert "\\x1b[2Jgone [bold]x[/bold]" in shown


def test_replay(relaybox: Command, url: str) -> None:
    event = Event("A", 1)
    kill(url, event)
    document = relaybox.json("dead", "replay", event.id, "nobody", "--url", url, exit_code=1)
    assert document == {"replayed": [event.id], "not_found": ["nobody"]}
    assert relaybox.json("status", "--url", url)["due"] == 1
    kill(url, other := Event("A", 2))
    assert f"replayed {other.id}" in relaybox("dead", "replay", other.id, "--url", url).stdout


def test_replay_all_asks_first(relaybox: Command, url: str) -> None:
    kill(url, *[Event("A", n) for n in range(5)], Event("B", 0))
    assert "nothing was changed" in relaybox("dead", "replay-all", "--url", url, answer="n\n", exit_code=1).stderr
    assert "add --yes" in relaybox("dead", "replay-all", "--url", url, exit_code=1).stderr
    assert relaybox.json("status", "--url", url)["dead"] == 6
    assert relaybox.json("dead", "replay-all", "--type", "A", "--yes", "--url", url) == {"replayed": 5}
    assert "replayed 1" in relaybox("dead", "replay-all", "--url", url, answer="y\n").stdout
    assert "replayed 0" in relaybox("dead", "replay-all", "--url", url).stdout


def test_blocked(relaybox: Command, url: str) -> None:
    assert "no key is blocked" in relaybox("blocked", "list", "--url", url).stdout
    event = Event("A", 1, key="order-1")
    block(url, event)
    (key,) = relaybox.json("blocked", "list", "--url", url)["blocked_keys"]
    assert (key["key"], key["event_id"], key["parked"], key["error"]) == ("order-1", event.id, False, "held up")
    assert relaybox.json("status", "--url", url)["blocked_keys"] == [key]
    assert "order-1" in relaybox("status", "--url", url).stdout
    assert relaybox.json("blocked", "release", "order-1", "--url", url) == {"released": "order-1"}
    assert "no key 'order-1' is blocked" in relaybox("blocked", "release", "order-1", "--url", url, exit_code=1).stderr


def test_purge_deletes_finished_events_and_dead_ones_only_when_asked(relaybox: Command, url: str) -> None:
    finish(url, *[Event("A", n) for n in range(3)])
    kill(url, Event("B", 1))
    assert relaybox.json("purge", "--yes", "--url", url) == {"purged": 0}  # nothing is a week old
    refused = relaybox("purge", "--older-than", "0s", "--url", url, answer="n\n", exit_code=1)
    assert "Delete finished events older than" in refused.stderr
    assert relaybox.json("purge", "--older-than", "0s", "--yes", "--url", url) == {"purged": 3}
    assert relaybox.json("status", "--url", url)["dead"] == 1
    done = relaybox("purge", "--older-than", "none", "--dead-older-than", "0s", "--url", url, answer="y\n")
    assert "purged 1 event(s)" in done.stdout
    assert "duration" in relaybox("purge", "--older-than", "soon", "--url", url, exit_code=1).stderr
