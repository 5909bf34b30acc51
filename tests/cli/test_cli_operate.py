"""status, events, dead, keys, purge, audit: on a SQLite file with known contents."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest

from kit import rows, wait_until
from relaybox import Event, Inbox, Relay
from relaybox.brokers.inbox import InboxSink

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
    assert document["oldest_due"] >= 0
    assert document["instances"] == document["blocked_keys"] == []
    assert "no process delivers" in relaybox("status", "--url", url).stdout


def test_status_shows_inboxes_and_where_relays_send(relaybox: Command, url: str) -> None:
    with Inbox(url, "orders_inbox") as inbox, Relay(url, InboxSink(url, sender="shop"), to="orders_inbox"):
        assert inbox.migrate()
        inbox.accept(None, Event("A", 1))
        assert relaybox.json("status", "--url", url)["inboxes"] == [
            {"name": "orders_inbox", "schema": None, "pending": 1, "dead": 0, "processors": 0}
        ]
        wait_until(lambda: "sends to inbox" in relaybox("status", "--url", url).stdout)
        shown = relaybox("status", "--url", url).stdout.splitlines()
    assert ["orders_inbox", "1", "0", "0"] in [line.split() for line in shown]


def test_counts_that_are_estimates_say_so(relaybox: Command, url: str) -> None:
    def stored() -> str:
        lines = relaybox("status", "--url", url).stdout.splitlines()
        return next(line.split()[-1] for line in lines if line.startswith("events stored"))

    write(url, *[Event("A", None) for _ in range(10_000)])
    assert stored() == "10,000"
    write(url, Event("A", None))
    assert stored() == "~10,001"


def test_watch_into_a_pipe_writes_one_view_after_the_other(url: str) -> None:
    command = [sys.executable, "-m", "relaybox", "status", "--watch", "--interval", "50ms", "--url", url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as watching:
        assert watching.stdout is not None
        assert watching.stderr is not None
        try:
            seen = b""
            while seen.count(b"oldest due") < 3:
                part = os.read(watching.stdout.fileno(), 4096)
                assert part, watching.stderr.read().decode()
                seen += part
            watching.send_signal(signal.SIGINT)
            assert watching.wait(20) == 0
        finally:
            watching.kill()
    assert b"\x1b" not in seen


def test_watch_refreshes_until_interrupted(url: str) -> None:
    """On a terminal, as people use it: the view appears, Ctrl-C ends it with exit 0."""
    control, terminal = pty.openpty()
    watching = subprocess.Popen(
        [sys.executable, "-m", "relaybox", "status", "--watch", "--interval", "50ms", "--url", url],
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


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (("dead", "replay", "--all"), b"replay"),
        (("events", "discard", "--all"), b"discard"),
        (("purge", "--done", "0s"), b"purge"),
        (("inbox", "purge", "--done", "0s", "--inbox", "orders_inbox"), b"purge"),
    ],
)
def test_long_jobs_show_a_bar_on_a_terminal_only(url: str, command: tuple[str, ...], says: bytes) -> None:
    program = [sys.executable, "-m", "relaybox", *command, "--yes", "--json", "--url", url]
    with Inbox(url, "orders_inbox") as inbox:
        inbox.migrate()

        def fill() -> None:
            kill(url, Event("A", 1))
            finish(url, Event("A", 2))
            inbox.accept(None, Event("A", 1))
            assert inbox.process(lambda event: None).once().done == 1

        fill()
        control, terminal = pty.openpty()
        done = subprocess.run(program, stdout=subprocess.PIPE, stderr=terminal, check=True, timeout=60)
        os.close(terminal)
        shown = os.read(control, 65536)
        os.close(control)
        assert says in shown
        assert b"0:00:0" in shown  # how long it has taken
        assert next(value for value in json.loads(done.stdout).values() if value in (1, 2))
        fill()
        assert subprocess.run(program, capture_output=True, check=True, timeout=60).stderr == b""


def test_dead_list_filters_and_pages(relaybox: Command, url: str) -> None:
    assert "no dead letters" in relaybox("dead", "list", "--url", url).stdout
    assert relaybox.json("dead", "list", "--url", url) == {"schema": "dead.list/1", "dead": []}
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
    assert document["event"]["payload"] == {"card": "PAYLOAD-4711"}
    assert document["event"]["headers"] == {"auth": "HEADER-4711"}
    assert "no dead letter 'nobody'" in relaybox("dead", "show", "nobody", "--url", url, exit_code=1).stderr


def test_show_prints_what_is_not_json(relaybox: Command, url: str) -> None:
    events = [Event("A", payload_bytes=b"plain"), Event("A", payload_bytes=b"\xff\x00"), Event("A", payload_json="{")]
    kill(url, *events)
    shown = [relaybox.json("dead", "show", e.id, "--payload", "--url", url)["event"] for e in events]
    assert shown[0]["payload_text"] == "plain"
    assert shown[1]["payload_base64"] == "/wA="
    assert shown[2]["payload_text"] == "{"


def test_stored_text_cannot_play_with_the_terminal(relaybox: Command, url: str) -> None:
    kill(url, Event("[red]A[/red]", 1, key="k"), error="\x1b[2Jgone [bold]x[/bold]")
    rows(url, "UPDATE outbox_event SET aggregate_id = '\x1b]0;owned\x07'")  # an Event would have none of it
    shown = relaybox("dead", "list", "--url", url).stdout
    assert "\x1b" not in shown
    assert "[red]A[/red]" in shown
    assert "\\x1b]0;owned\\x07" in shown
    assert "\\x1b[2Jgone [bold]x[/bold]" in shown


def test_replay(relaybox: Command, url: str) -> None:
    event = Event("A", 1)
    kill(url, event)
    document = relaybox.json("dead", "replay", event.id, "nobody", "--url", url, exit_code=1)
    assert document == {"schema": "dead.replay/1", "replayed": 1, "dry_run": False}
    assert relaybox.json("status", "--url", url)["due"] == 1
    kill(url, other := Event("A", 2))
    assert "1 dead letter(s) replayed" in relaybox("dead", "replay", other.id, "--url", url).stdout


def test_replaying_many_asks_first(relaybox: Command, url: str) -> None:
    kill(url, *[Event("A", n) for n in range(5)], Event("B", 0))
    everything = ("dead", "replay", "--all", "--url", url)
    assert "nothing was changed" in relaybox(*everything, answer="n\n", exit_code=1).stderr
    assert "add --yes" in relaybox(*everything, exit_code=1).stderr
    assert "6 dead letter(s) would be replayed" in relaybox(*everything, "--dry-run").stdout
    assert relaybox.json("status", "--url", url)["dead"] == 6
    assert relaybox.json("dead", "replay", "--type", "A", "--since", "1h", "--yes", "--url", url)["replayed"] == 5
    assert "1 dead letter(s) replayed" in relaybox(*everything, answer="y\n").stdout
    assert "0 dead letter(s) replayed" in relaybox(*everything).stdout


def test_what_to_change_must_be_said(relaybox: Command, url: str) -> None:
    kill(url, event := Event("A", 1))
    for verb in ("replay", "discard"):
        relaybox("dead", verb, "--yes", "--url", url, exit_code=2)
        relaybox("dead", verb, event.id, "--all", "--url", url, exit_code=2)
        relaybox("dead", verb, "--type", "A", "--all", "--url", url, exit_code=2)
    assert relaybox.json("dead", "count", "--url", url) == {"schema": "dead.count/1", "count": 1}
    assert "have no sender" in relaybox("dead", "list", "--sender", "x", "--url", url, exit_code=1).stderr
    assert "a time such as" in relaybox("dead", "list", "--since", "soon", "--url", url, exit_code=1).stderr


def test_finished_events_are_found_and_delivered_again(relaybox: Command, url: str) -> None:
    finish(url, event := Event("A", 1))
    write(url, waiting := Event("A", 2))
    found = relaybox.json("events", "list", "--url", url)["events"]
    assert {one["event"]["id"]: one["state"] for one in found} == {event.id: "done", waiting.id: "waiting"}
    assert len(relaybox.json("events", "list", "--state", "done", "--url", url)["events"]) == 1
    relaybox("events", "list", "--state", "new", "--url", url, exit_code=2)
    assert "done" in relaybox("events", "show", event.id, "--url", url).stdout
    assert relaybox.json("events", "replay", event.id, "--url", url)["replayed"] == 1
    assert relaybox.json("events", "discard", "--all", "--yes", "--url", url)["discarded"] == 2
    assert relaybox.json("events", "count", "--url", url)["count"] == 0


def test_changes_are_in_the_audit_log(relaybox: Command, url: str) -> None:
    assert "nothing was changed yet" in relaybox("audit", "--url", url).stdout
    kill(url, a := Event("A", 1), b := Event("B", 1))
    relaybox("dead", "replay", a.id, "--reason", "repaired", "--actor", "ann", "--url", url)
    relaybox("dead", "discard", b.id, "--url", url, RELAYBOX_ACTOR="bob")
    document = relaybox.json("audit", "--url", url)
    assert document["schema"] == "audit/1"
    assert [(e["actor"], e["verb"], e["changed"], e["reason"]) for e in document["entries"]] == [
        ("bob", "discard", 1, ""),
        ("ann", "replay", 1, "repaired"),
    ]
    assert "repaired" in relaybox("audit", "--url", url).stdout
    refused = relaybox("dead", "replay", "--all", "--yes", "--url", url, RELAYBOX_ADMIN_REQUIRE_REASON="true")
    assert "0 dead letter(s) replayed" in refused.stdout
    kill(url, c := Event("C", 1))
    strict = relaybox("dead", "replay", c.id, "--url", url, exit_code=1, RELAYBOX_ADMIN_REQUIRE_REASON="true")
    assert "give a reason to replay dead letters" in strict.stderr


def test_blocked_keys(relaybox: Command, url: str) -> None:
    assert "no key is blocked" in relaybox("keys", "list", "--url", url).stdout
    event = Event("A", 1, key="order-1")
    block(url, event)
    (key,) = relaybox.json("keys", "list", "--url", url)["keys"]
    assert (key["key"], key["event_id"], key["cause"], key["error"]) == ("order-1", event.id, "retry", "held up")
    assert relaybox.json("status", "--url", url)["blocked_keys"] == [key]
    assert "order-1" in relaybox("status", "--url", url).stdout
    assert relaybox.json("keys", "release", "order-1", "--url", url)["released"] == "order-1"
    assert "no key 'order-1' is blocked" in relaybox("keys", "release", "order-1", "--url", url, exit_code=1).stderr


def test_status_tells_monitoring_by_its_exit_code(relaybox: Command, url: str) -> None:
    assert relaybox.json("status", "--check", "--url", url)["health"] == {"level": "ok", "reasons": [], "live": True}
    kill(url, Event("A", 1))
    document = relaybox.json("status", "--check", "--url", url, exit_code=3)
    assert document["health"]["reasons"] == ["1 dead letter"]
    kill(url, *(Event("A", n) for n in range(100)))
    assert "101 dead letters" in relaybox("status", "--check", "--url", url, exit_code=4).stdout


def test_purge_deletes_finished_events_and_dead_ones_only_when_asked(relaybox: Command, url: str) -> None:
    finish(url, *[Event("A", n) for n in range(3)])
    kill(url, Event("B", 1))
    assert relaybox.json("purge", "--yes", "--url", url)["purged"] == 0  # nothing is a week old
    refused = relaybox("purge", "--done", "0s", "--url", url, answer="n\n", exit_code=1)
    assert "Delete 3 events" in refused.stderr
    assert relaybox.json("purge", "--done", "0s", "--yes", "--url", url)["purged"] == 3
    assert relaybox.json("status", "--url", url)["dead"] == 1
    done = relaybox("purge", "--done", "none", "--dead", "0s", "--url", url, answer="y\n")
    assert "1 event(s) purged" in done.stdout
    assert "duration" in relaybox("purge", "--done", "soon", "--url", url, exit_code=1).stderr
