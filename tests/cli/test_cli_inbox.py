"""relaybox inbox: on a SQLite file with known contents, and once on each server."""

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


def ids(document: Any) -> list[str]:
    return [message["id"] for message in document["messages"]]


def test_list_filters_and_pages(ask: Callable[..., Any], relaybox: Command, url: str) -> None:
    assert ids(ask("list")) == ["w0"]
    assert ids(ask("list", "--state", "processed")) == ["m0", "m2"]
    assert ids(ask("list", "--state", "dead")) == ["m1", "m3"]
    assert ids(ask("list", "--state", "dead", "--limit", "1")) == ["m1"]
    assert ids(ask("list", "--state", "dead", "--limit", "1", "--all")) == ["m1", "m3"]
    soon = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    for options, found in (
        (("--type", "A"), ["m1", "m3"]),
        (("--type", "B"), []),
        (("--source", "shop"), ["m1", "m3"]),
        (("--key", "k3"), ["m3"]),
        (("--tenant", "t", "--key", "k1"), ["m1"]),
        (("--since", "1h"), ["m1", "m3"]),
        (("--since", soon), []),
        (("--until", soon), ["m1", "m3"]),
        (("--until", "2020-01-01"), []),
    ):
        assert ids(ask("list", "--state", "dead", *options)) == found, options
    shown = relaybox("inbox", "list", "--state", "dead", "--limit", "1", "--url", url).stdout
    assert "Reject: odd" in shown
    assert "the first 1" in shown
    assert "in detail" not in shown
    assert "no pending messages" in relaybox("inbox", "list", "--key", "x", "--url", url).stdout
    relaybox("inbox", "list", "--state", "odd", "--url", url, exit_code=2)
    relaybox("inbox", "list", "--since", "yesterday", "--url", url, exit_code=2)


def test_show_keeps_payload_and_headers_back_unless_asked(ask: Callable[..., Any], relaybox: Command, url: str) -> None:
    letter = ask("show", "m1")
    assert (letter["state"], letter["error"], letter["source"]) == ("dead", "Reject: odd\nin detail", "shop")
    assert datetime.fromisoformat(letter["dead_at"]).tzinfo is not None
    assert letter["processed_at"] is None
    assert ask("show", "m0")["processed_at"] is not None
    waiting = ask("show", "w0")
    assert (waiting["state"], waiting["attempts"]) == ("pending", 0)
    assert waiting["due"] is not None
    relaybox("inbox", "show", "w0", "--url", url)
    assert "4711" not in relaybox.printed
    assert ask("show", "m1", "--payload")["payload"]["card"] == "PAYLOAD-4711"
    assert ask("show", "w0", "--payload")["headers"] == {"auth": "HEADER-4711"}
    assert "keeps no message 'x'" in relaybox("inbox", "show", "x", "--url", url, exit_code=1).stderr


def test_health_is_the_exit_code(ask: Callable[..., Any], relaybox: Command, url: str) -> None:
    found = ask("health", exit_code=1)
    assert (found["status"], found["pending"], found["dead"], found["processors"]) == ("degraded", 1, 2, 0)
    assert "2 dead letters" in found["reasons"]
    assert ask("health", "--dead", "1,2", exit_code=2)["status"] == "critical"
    assert "because" in relaybox("inbox", "health", "--url", url, exit_code=1).stdout
    with Inbox(url) as inbox:
        inbox.process(no_odd_ones).once()
    assert ask("health", "--dead", "5,9")["reasons"] == []
    for wrong in ("1", "2,1", "a,b"):
        relaybox("inbox", "health", "--dead", wrong, "--url", url, exit_code=1 if wrong == "2,1" else 2)


def test_health_turns_within_a_look(ask: Callable[..., Any]) -> None:
    """It is asked live, so the first look after something changed tells it."""
    limits = ("--dead", "5,9", "--pending", "2,3")
    assert ask("health", *limits, "--oldest", "1h,2h", exit_code=1)["reasons"] == [
        "messages wait and no processor is running"
    ]
    assert ask("health", *limits, "--oldest", "1us,2h", exit_code=1)["reasons"][0].startswith(
        "the oldest message waits"
    )


def test_stats_and_status(ask: Callable[..., Any], relaybox: Command, url: str) -> None:
    rows = ask("stats")["types"]
    counts = [(row["event_type"], row["pending"], row["processed"], row["dead"]) for row in rows]
    assert counts == [("A", 0, 2, 2), ("B", 1, 0, 0)]
    assert rows[0]["average"] > 0
    assert rows[1]["average"] is None
    filled(url, "second")
    found = {row["name"]: (row["pending"], row["dead"]) for row in ask("status")["inboxes"]}
    assert found == {"inbox": (1, 2), "second": (1, 2)}
    assert "second" in relaybox("inbox", "status", "--url", url).stdout
    assert "second" not in relaybox("inbox", "stats", "--url", url).stdout


def test_replay_by_ids(ask: Callable[..., Any], relaybox: Command, url: str) -> None:
    assert ask("replay", "m1", "m0") == {"replayed": ["m0", "m1"], "not_found": []}
    assert ids(ask("list")) == ["m0", "m1", "w0"]
    assert ask("replay", "m3", "w0", exit_code=1) == {"replayed": ["m3"], "not_found": ["w0"]}
    assert "w0" in relaybox("inbox", "replay", "w0", "--url", url, exit_code=1).stderr


def test_replay_by_filters(ask: Callable[..., Any], relaybox: Command, url: str) -> None:
    for wrong in ((), ("m1", "--all"), ("m1", "--key", "k1"), ("--all", "--state", "pending")):
        relaybox("inbox", "replay", *wrong, "--url", url, exit_code=2)
    assert "nothing was changed" in relaybox("inbox", "replay", "--all", "--url", url, exit_code=1, answer="n\n").stderr
    assert ask("replay", "--all", "--key", "k1", "--yes") == {"replayed": 1}
    assert ask("replay", "--all", "--state", "processed", "--type", "A", "--yes") == {"replayed": 2}
    assert ids(ask("list")) == ["m0", "m1", "m2", "w0"]
    assert "replayed 1" in relaybox("inbox", "replay", "--all", "-y", "--url", url).stdout


def test_discard(ask: Callable[..., Any], relaybox: Command, url: str) -> None:
    relaybox("inbox", "discard", "m1", "--url", url, exit_code=1, answer="n\n")
    assert ask("discard", "m1", "m0", "--yes", exit_code=1) == {"discarded": ["m1"], "not_found": ["m0"]}
    assert ids(ask("list", "--state", "dead")) == ["m3"]


def test_gaps_and_skip(ask: Callable[..., Any], relaybox: Command, url: str) -> None:
    name = ("--inbox", "ordered")
    with Inbox(url, "ordered") as inbox:
        inbox.migrate()
        inbox.configure(order=Order())
        inbox.accept_all(None, [numbered(1), numbered(4)])
        inbox.process(no_odd_ones).once()
    (gap,) = ask("gaps", *name)["gaps"]
    assert (gap["key"], gap["first"], gap["last"], gap["dead"]) == ("k", 2, 3, False)
    assert "missed for" in relaybox("inbox", "gaps", *name, "--url", url).stdout
    relaybox("inbox", "skip", "k", *name, "--url", url, exit_code=1, answer="n\n")
    assert ask("skip", "k", "--yes", *name) == {"key": "k", "next": 4}
    assert ask("skip", "other", "--yes", *name) == {"key": "other", "next": None}
    assert ask("skip", "other", "--to", "9", "--yes", *name)["next"] == 9
    assert ask("gaps", RELAYBOX_INBOX="ordered") == {"gaps": []}
    assert "not ordered" in relaybox("inbox", "gaps", "--url", url, exit_code=1).stderr


def test_purge_by_options_and_settings(ask: Callable[..., Any], relaybox: Command, tmp_path: Path, url: str) -> None:
    """What an option does not say is as agreed on, or as the environment or the file say."""
    clock = ManualClock(datetime.now(UTC) - timedelta(days=4))
    with Inbox(url, "old", clock=clock) as inbox:
        inbox.migrate()
        inbox.accept_all(None, [Event("A", {"n": n}) for n in range(10)])
        inbox.process(no_odd_ones).once()
    name = ("--inbox", "old")
    relaybox("inbox", "purge", *name, "--url", url, exit_code=1, answer="n\n")
    assert ask("purge", *name, "--yes", RELAYBOX_INBOX_RETENTION="5d") == {"purged": 0}
    assert ask("purge", *name, "--yes", "--done", "none") == {"purged": 0}
    assert ask("configure", *name, "--done", "30d")["retention"]["done"] == 30 * 86400
    assert ask("purge", *name, "--yes") == {"purged": 0}
    assert ask("purge", *name, "--yes", "--done", "3d") == {"purged": 5}
    settings = tmp_path / "relaybox.toml"
    settings.write_text('inbox.dead_retention = "3d"\ninbox.purge_batch = 2\n')
    assert ask("purge", *name, "--yes", "--config", str(settings)) == {"purged": 0}, "it is agreed to keep them"
    assert ask("purge", *name, "--yes", "--dead", "3d", "--config", str(settings)) == {"purged": 5}
    with Inbox(url, "old") as inbox:
        assert inbox.status().seen == 10
        assert ask("purge", *name, "--yes", "--done", "1h", "--seen", "1d") == {"purged": 0}
        assert inbox.status().seen == 0
    assert "purged 0" in relaybox("inbox", "purge", *name, "-y", "--url", url).stdout
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
        changed = ask("configure", *name, "--attempts", "2", "--unordered", "--priorities", "--dead", "7d")
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


def test_an_inbox_that_is_not_there(relaybox: Command, url: str, tmp_path: Path) -> None:
    for command in ("list", "health", "stats", "gaps", "alerts"):
        relaybox("inbox", command, "--inbox", "gone", "--url", url, exit_code=1)
    relaybox("inbox", "list", "--url", f"sqlite:///{tmp_path}/gone.db", exit_code=1)
    assert not (tmp_path / "gone.db").exists()
    assert relaybox.json("inbox", "status", "--url", url)["inboxes"][0]["name"] == "inbox"


@pytest.mark.parametrize("server", ["postgres-wheel", "mariadb"])
def test_on_servers(relaybox: Command, server: str) -> None:
    url = require(server, durable=False).create_database()
    filled(url)

    def ask(*args: str, exit_code: int = 0) -> Any:
        return relaybox.json("inbox", *args, "--url", url, exit_code=exit_code)

    assert ids(ask("list")) == ["w0"]
    assert ids(ask("list", "--state", "dead", "--since", "1h")) == ["m1", "m3"]
    assert ids(ask("list", "--state", "processed")) == ["m0", "m2"]
    assert ask("show", "m1")["state"] == "dead"
    assert ask("show", "w0")["position"] is None
    assert ask("health", exit_code=1)["dead"] == 2
    assert [row["dead"] for row in ask("stats")["types"]] == [2, 0]
    assert len(ask("alerts")["alerts"]) == 2
    assert ask("replay", "--all", "--yes") == {"replayed": 2}
    assert ask("purge", "--yes") == {"purged": 0}
    assert [row["pending"] for row in ask("status")["inboxes"]] == [3]
    assert json.dumps(ask("show", "w0", "--payload")["payload"]) == '{"n": 0}'
