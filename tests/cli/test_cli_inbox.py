"""relaybox inbox, and events, dead letters and keys of one: on a SQLite file, and once on each server."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from relaybox import Event, Inbox, Reject, Retry
from relaybox.testing.clock import ManualClock
from relaybox.testing.servers import require
from relaybox.types import Order, Priority, Retention

from .conftest import Command


def no_odd_ones(event: Event, _: Any) -> None:
    if event.payload["n"] % 2:
        raise Reject("odd\nin detail")


def numbered(n: int, key: str = "k") -> Event:
    return Event("N", {"n": 0}, key=key, id=f"{key}-{n}", headers={"sequence": str(n)})


def filled(url: str, name: str = "inbox") -> None:
    """m0, m2: processed; m1, m3: dead; w0: waits."""
    with Inbox(url, name) as inbox:
        inbox.migrate()
        events = [Event("A", {"n": n, "card": "PAYLOAD-4711"}, id=f"m{n}", key=f"k{n}", tenant="t") for n in range(4)]
        inbox.accept_all(None, events, sender="shop")
        inbox.process(no_odd_ones).once()
        inbox.accept(None, Event("B", {"n": 0}, id="w0", headers={"auth": "HEADER-4711"}), sender="bank")


@pytest.fixture
def url(tmp_path: Path) -> str:
    address = f"sqlite:///{tmp_path}/shop.db"
    filled(address)
    return address


@pytest.fixture
def ask(relaybox: Command, url: str) -> Callable[..., Any]:
    """`relaybox inbox … --json`."""
    return lambda *args, **options: relaybox.json("inbox", *args, "--url", url, **options)


@pytest.fixture
def of(relaybox: Command, url: str) -> Callable[..., Any]:
    """`relaybox … --of inbox/inbox --json`."""
    return lambda *args, **options: relaybox.json(*args, "--of", "inbox/inbox", "--url", url, **options)


def ids(document: Any) -> list[str]:
    found = document["events"] if "events" in document else document["dead"]
    return [one["event"]["id"] for one in found]


def test_lists_filter_and_page(of: Callable[..., Any], relaybox: Command, url: str) -> None:
    assert ids(of("events", "list")) == ["m0", "m1", "m2", "m3", "w0"]
    assert ids(of("events", "list", "--state", "open")) == ["w0"]
    assert ids(of("events", "list", "--state", "done")) == ["m0", "m2"]
    assert ids(of("dead", "list")) == ["m1", "m3"]
    assert ids(of("dead", "list", "--limit", "1")) == ["m1"]
    assert ids(of("dead", "list", "--limit", "1", "--all")) == ["m1", "m3"]
    assert of("dead", "count", "--key", "k3")["count"] == 1
    soon = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    for options, found in (
        (("--type", "A"), ["m1", "m3"]),
        (("--type", "B"), []),
        (("--sender", "shop"), ["m1", "m3"]),
        (("--sender", "bank"), []),
        (("--error", "odd"), ["m1", "m3"]),
        (("--key", "k3"), ["m3"]),
        (("--tenant", "t", "--key", "k1"), ["m1"]),
        (("--since", "1h"), ["m1", "m3"]),
        (("--since", soon), []),
        (("--until", soon), ["m1", "m3"]),
        (("--until", "2020-01-01"), []),
    ):
        assert ids(of("dead", "list", *options)) == found, options
    shown = relaybox("dead", "list", "--limit", "1", "--of", "inbox/inbox", "--url", url).stdout
    assert "Reject: odd" in shown
    assert "1 of 2" in shown
    assert "in detail" not in shown
    for wrong in ("inbox", "inbox/", "box"):
        refused = relaybox("dead", "list", "--of", wrong, "--url", url, exit_code=1).stderr
        assert "expected --of to be outbox" in refused
        assert "inbox/NAME" in refused


def test_show_keeps_payload_and_headers_back_unless_asked(of: Callable[..., Any], relaybox: Command, url: str) -> None:
    letter = of("dead", "show", "m1", "--sender", "shop")
    assert (letter["error"], letter["event"]["sender"]) == ("Reject: odd\nin detail", "shop")
    assert datetime.fromisoformat(letter["dead_at"]).tzinfo is not None
    assert of("events", "show", "m0")["ended_at"] is not None
    waiting = of("events", "show", "w0")
    assert (waiting["state"], waiting["attempts"]) == ("waiting", 0)
    assert waiting["due"] is not None
    relaybox("events", "show", "w0", "--of", "inbox/inbox", "--url", url)
    assert "4711" not in relaybox.printed
    assert of("events", "show", "m1", "--payload")["event"]["payload"]["card"] == "PAYLOAD-4711"
    assert of("events", "show", "w0", "--payload")["event"]["headers"] == {"auth": "HEADER-4711"}
    assert (
        "no dead letter 'x'" in relaybox("dead", "show", "x", "--of", "inbox/inbox", "--url", url, exit_code=1).stderr
    )


def test_show_tells_how_an_inbox_is(ask: Callable[..., Any], relaybox: Command, url: str) -> None:
    found = ask("show")
    assert (found["health"]["level"], found["pending"], found["dead"], found["processors"]) == ("degraded", 1, 2, 0)
    assert "2 dead letters" in found["health"]["reasons"]
    assert ask("show", "--check", exit_code=3)["health"]["level"] == "degraded"
    assert ask("show", "--check", "--dead", "1,2", exit_code=4)["health"]["level"] == "critical"
    assert "because" in relaybox("inbox", "show", "--url", url).stdout
    with Inbox(url) as inbox:
        inbox.process(no_odd_ones).once()
    assert ask("show", "--check", "--dead", "5,9")["health"]["reasons"] == []
    for wrong in ("1", "2,1", "a,b"):
        relaybox("inbox", "show", "--dead", wrong, "--url", url, exit_code=1 if wrong == "2,1" else 2)


def test_health_turns_within_a_look(ask: Callable[..., Any]) -> None:
    """It is asked live, so the first look after something changed tells it."""
    limits = ("--check", "--dead", "5,9", "--waiting", "2,3")
    assert ask("show", *limits, "--oldest", "1h,2h", exit_code=3)["health"]["reasons"] == [
        "1 wait and no process works on them"
    ]
    assert ask("show", *limits, "--oldest", "1us,2h", exit_code=3)["health"]["reasons"][0].startswith(
        "the oldest waits"
    )


def test_stats_and_list(ask: Callable[..., Any], relaybox: Command, url: str) -> None:
    rows = ask("stats")["types"]
    counts = [(row["event_type"], row["pending"], row["processed"], row["dead"]) for row in rows]
    assert counts == [("A", 0, 2, 2), ("B", 1, 0, 0)]
    assert rows[0]["average"] > 0
    assert rows[1]["average"] is None
    filled(url, "second")
    found = {row["name"]: (row["pending"], row["dead"]) for row in ask("list")["inboxes"]}
    assert found == {"inbox": (1, 2), "second": (1, 2)}
    assert "second" in relaybox("inbox", "list", "--url", url).stdout
    assert "second" not in relaybox("inbox", "stats", "--url", url).stdout


def test_replay_by_ids(of: Callable[..., Any], relaybox: Command, url: str) -> None:
    assert of("events", "replay", "m1", "m0", "--reason", "repaired", "--actor", "ann")["replayed"] == 2
    assert ids(of("events", "list", "--state", "open")) == ["m0", "m1", "w0"]
    assert of("events", "replay", "m3", "w0", exit_code=1)["replayed"] == 1
    entries = of("audit")["entries"]
    assert [(e["verb"], e["what"], e["changed"], e["actor"], e["reason"]) for e in entries][1:] == [
        ("replay", "events of inbox inbox", 2, "ann", "repaired")
    ]
    assert "repaired" in relaybox("audit", "--of", "inbox/inbox", "--url", url).stdout


def test_replay_by_conditions(of: Callable[..., Any], relaybox: Command, url: str) -> None:
    here = ("--of", "inbox/inbox", "--url", url)
    for wrong in ((), ("m1", "--all"), ("m1", "--key", "k1")):
        relaybox("dead", "replay", *wrong, *here, exit_code=2)
    refused = relaybox("dead", "replay", "--all", *here, exit_code=1, answer="n\n").stderr
    assert "Replay 2 dead letter(s) of inbox/inbox in" in refused
    assert "nothing was changed" in refused
    assert of("dead", "replay", "--all", "--dry-run") == {"schema": "dead.replay/1", "replayed": 2, "dry_run": True}
    assert of("dead", "replay", "--key", "k1", "--yes")["replayed"] == 1
    assert of("events", "replay", "--type", "A", "--yes")["replayed"] == 3
    assert ids(of("events", "list", "--state", "open")) == ["m0", "m1", "m2", "m3", "w0"]


def test_discard(of: Callable[..., Any], relaybox: Command, url: str) -> None:
    relaybox("dead", "discard", "--all", "--of", "inbox/inbox", "--url", url, exit_code=1, answer="n\n")
    assert of("dead", "discard", "m1", "m0", "--yes", exit_code=1)["discarded"] == 1
    assert ids(of("dead", "list")) == ["m3"]


def test_keys(relaybox: Command, url: str) -> None:
    here = ("--of", "inbox/ordered", "--url", url)
    with Inbox(url, "ordered") as inbox:
        inbox.migrate()
        inbox.configure(order=Order())
        inbox.accept_all(None, [numbered(1), numbered(4)])
        inbox.process(no_odd_ones).once()
    (gap,) = relaybox.json("keys", "list", *here)["keys"]
    assert (gap["key"], gap["cause"], gap["first"], gap["last"]) == ("k", "gap", 2, 3)
    assert "numbers 2 to 3" in relaybox("keys", "list", *here).stdout
    assert relaybox.json("keys", "release", "k", *here)["released"] == "k"
    assert "no key 'other' is blocked" in relaybox("keys", "release", "other", *here, exit_code=1).stderr
    assert relaybox.json("keys", "release", "other", "--to", "9", *here)["released"] == "other"
    assert relaybox.json("keys", "list", *here)["keys"] == []
    assert "no key is blocked" in relaybox("keys", "list", "--of", "inbox/inbox", "--url", url).stdout


def test_purge_by_options_and_settings(ask: Callable[..., Any], relaybox: Command, tmp_path: Path, url: str) -> None:
    """What an option does not say is as agreed on, or as the environment or the file say."""
    clock = ManualClock(datetime.now(UTC) - timedelta(days=4))
    with Inbox(url, "old", clock=clock) as inbox:
        inbox.migrate()
        inbox.accept_all(None, [Event("A", {"n": n}) for n in range(10)])
        inbox.process(no_odd_ones).once()
    name = ("--inbox", "old")
    asked = relaybox("inbox", "purge", *name, "--url", url, exit_code=1, answer="n\n").stderr
    assert "Delete 5 messages" in asked
    assert ask("purge", *name, "--dry-run") == {"schema": "inbox.purge/1", "purged": 5, "dry_run": True}
    assert ask("purge", *name, "--yes", RELAYBOX_INBOX_RETENTION="5d")["purged"] == 0
    assert ask("purge", *name, "--yes", "--done", "none")["purged"] == 0
    assert ask("configure", *name, "--done", "30d")["retention"]["done"] == 30 * 86400
    assert ask("purge", *name, "--yes")["purged"] == 0
    assert ask("purge", *name, "--yes", "--done", "3d")["purged"] == 5
    settings = tmp_path / "relaybox.toml"
    settings.write_text('inbox.dead_retention = "3d"\ninbox.purge_batch = 2\n')
    assert ask("purge", *name, "--yes", "--config", str(settings))["purged"] == 0, "it is agreed to keep them"
    assert ask("purge", *name, "--yes", "--dead", "3d", "--config", str(settings))["purged"] == 5
    with Inbox(url, "old") as inbox:
        assert inbox.status().seen == 10
        assert ask("purge", *name, "--yes", "--done", "1h", "--seen", "1d")["purged"] == 0
        assert inbox.status().seen == 0
    assert "0 message(s) purged" in relaybox("inbox", "purge", *name, "-y", "--url", url).stdout
    relaybox("inbox", "purge", "--done", "soon", "-y", "--url", url, exit_code=1)
    relaybox("inbox", "purge", "--seen", "1h", "-y", "--url", url, exit_code=1)


def test_alerts(ask: Callable[..., Any], relaybox: Command, url: str) -> None:
    told = ask("alerts", RELAYBOX_INBOX_ALERTS_PER_LOOK="1")["alerts"]
    assert [(alert["event"], alert["inbox"], alert["over"]) for alert in told] == [
        ("inbox_dlq_message", "inbox", False)
    ] * 2
    assert told[1]["text"] == "1 more messages died"
    assert "nothing new" in relaybox("inbox", "alerts", "--url", url).stdout


def test_what_is_agreed_on_can_be_changed(ask: Callable[..., Any], relaybox: Command, url: str) -> None:
    name = ("--inbox", "tried")
    relaybox("inbox", "create", *name, "--attempts", "5", "--ordered", "--url", url)
    with Inbox(url, "tried") as inbox:
        assert inbox.info().order == Order()
        assert inbox.info().retry == Retry(attempts=5)
        shown = relaybox("inbox", "show", *name, "--url", url).stdout
        assert "attempts 5, base 0.2 s, max 1.0 min" in shown
        assert "start 1, missing block, dead block" in shown
        told = ("--reason", "urgent ones first", "--actor", "ann")
        changed = ask("configure", *name, "--attempts", "2", "--unordered", "--priorities", "--dead", "7d", *told)
        assert (inbox.audit()[0].reason, inbox.audit()[0].actor) == ("urgent ones first", "ann")
        assert (changed["order"], changed["retry"]["attempts"]) == (None, 2)
        assert inbox.info().priority == Priority()
        assert inbox.info().retention == Retention(dead="7d")
    assert "already" in relaybox("inbox", "create", *name, "--url", url, exit_code=1).stderr
    relaybox("inbox", "create", *name, "--if-not-exists", "--attempts", "3", "--url", url)
    with Inbox(url, "tried") as inbox:
        assert inbox.info().retry == Retry(attempts=3)
    assert "not both" in relaybox("inbox", "configure", *name, "--ordered", "--url", url, exit_code=1).stderr
    relaybox("inbox", "configure", *name, "--attempts", "0", "--url", url, exit_code=2)
    relaybox("inbox", "configure", *name, "--url", url, exit_code=2)
    relaybox("inbox", "configure", "--inbox", "gone", "--attempts", "2", "--url", url, exit_code=1)


def test_advice_is_about_the_inbox(relaybox: Command, url: str) -> None:
    """The outbox is what commands are about by default; a database with an inbox alone has none."""
    told = relaybox("dead", "list", "--url", url, exit_code=1).stderr
    assert told.endswith("; or say of what it is, by --of inbox/NAME\n")
    told = relaybox("dead", "list", "--of", "inbox/ordres", "--url", url, exit_code=1).stderr
    assert told.startswith("error: the tables of inbox ('ordres') are not in this database; run `relaybox inbox create")
    assert told.endswith("; `relaybox inbox list` shows which there are\n")
    for command in (["show"], ["replay"]):
        told = relaybox("dead", *command, "x", "--of", "inbox/inbox", "--url", url, exit_code=1).stderr
        assert told.endswith("; see `relaybox dead list --of inbox/inbox`\n")


def test_an_inbox_that_is_not_there(relaybox: Command, url: str, tmp_path: Path) -> None:
    for command in ("show", "stats", "alerts", "purge"):
        relaybox("inbox", command, "--inbox", "gone", "--url", url, exit_code=1)
    for command in (("events", "list"), ("dead", "replay", "--all"), ("keys", "list"), ("audit",)):
        relaybox(*command, "--of", "inbox/gone", "--url", url, exit_code=1)
    relaybox("inbox", "list", "--url", f"sqlite:///{tmp_path}/gone.db", exit_code=1)
    assert not (tmp_path / "gone.db").exists()
    assert relaybox.json("inbox", "list", "--url", url)["inboxes"][0]["name"] == "inbox"


@pytest.mark.parametrize("server", ["postgres-wheel", "mariadb"])
def test_on_servers(relaybox: Command, server: str) -> None:
    url = require(server, durable=False).create_database()
    filled(url)

    def ask(*args: str, exit_code: int = 0) -> Any:
        return relaybox.json("inbox", *args, "--url", url, exit_code=exit_code)

    def of(*args: str) -> Any:
        return relaybox.json(*args, "--of", "inbox/inbox", "--url", url)

    assert ids(of("events", "list", "--state", "open")) == ["w0"]
    assert ids(of("dead", "list", "--since", "1h")) == ["m1", "m3"]
    assert ids(of("events", "list", "--state", "done")) == ["m0", "m2"]
    assert of("events", "show", "m1")["state"] == "dead"
    assert ask("show", "--check", exit_code=3)["dead"] == 2
    assert [row["dead"] for row in ask("stats")["types"]] == [2, 0]
    assert len(ask("alerts")["alerts"]) == 2
    assert of("dead", "replay", "--all", "--yes")["replayed"] == 2
    assert ask("purge", "--yes")["purged"] == 0
    assert of("keys", "list")["keys"] == []
    assert [row["pending"] for row in ask("list")["inboxes"]] == [3]
    assert json.dumps(of("events", "show", "w0", "--payload")["event"]["payload"]) == '{"n": 0}'
    assert [entry["verb"] for entry in of("audit")["entries"]] == ["replay"]
