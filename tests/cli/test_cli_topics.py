"""`relaybox topics` and `relaybox groups` on a real server."""

from __future__ import annotations

from contextlib import closing
from datetime import timedelta

import pytest

from relaybox import Event, Outbox
from relaybox.testing.servers import require

from .conftest import Command


@pytest.fixture
def env() -> dict[str, str]:
    url = require("postgres-wheel", durable=False).create_database()
    with closing(Outbox(url)) as box:
        box.migrate()
    return {"RELAYBOX_URL": url}


def write(env: dict[str, str], topic: str, count: int) -> None:
    with closing(Outbox(env["RELAYBOX_URL"])) as box, box.transaction() as tx:
        box.write_all(tx, [Event("Placed", n, key=f"k{n % 3}", topic=topic) for n in range(count)])


def fail(env: dict[str, str], topic: str, group: str) -> None:
    """Every event that waits becomes a dead letter of the group."""
    with (
        closing(Outbox(env["RELAYBOX_URL"])) as box,
        box.topics.group(topic, group).consumer("worker") as consumer,
    ):
        while batch := consumer.poll():
            consumer.commit(batch, failed={event: ValueError("no such customer") for event in batch})


def test_a_topic_is_made_shown_changed_and_dropped(relaybox: Command, env: dict[str, str]) -> None:
    assert "no topics" in relaybox("topics", "list", **env).stdout
    made = relaybox.json("topics", "create", "orders", "--semantics", "pub_sub", "--retention", "7d", **env)
    assert (made["tracking"], made["retention"]) == ("offset", 7 * 86400)
    assert "already" in relaybox("topics", "create", "orders", exit_code=1, **env).output
    changed = relaybox.json("topics", "configure", "orders", "--preset", "critical", "--fetch-batch", "50", **env)
    assert (changed["block_writes"], changed["fetch_batch"], changed["semantics"]) == (True, 50, "pub_sub")
    assert [topic["name"] for topic in relaybox.json("topics", "list", **env)["topics"]] == ["orders"]
    assert relaybox.json("topics", "show", "orders", **env)["groups"] == []
    assert "pub_sub" in relaybox("topics", "show", "orders", **env).stdout
    relaybox("topics", "drop", "orders", exit_code=1, answer="n\n", **env)
    assert relaybox.json("topics", "drop", "orders", "--yes", **env) == {"dropped": True}
    assert relaybox.json("topics", "drop", "orders", "--yes", **env) == {"dropped": False}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--tracking", "bitmap"), "topics move orders --tracking bitmap"),
        (("--semantics", "queue"), "topics move orders --semantics queue"),
        (("--retention", "soon"), "expected --retention to be a duration"),
        (("--shards", "4"), "shards"),
    ],
)
def test_what_cannot_be_changed_is_refused(
    relaybox: Command, env: dict[str, str], options: tuple[str, ...], words: str
) -> None:
    relaybox("topics", "configure", "orders", "--semantics", "pub_sub", **env)
    assert words in relaybox("topics", "configure", "orders", *options, exit_code=1, **env).output


@pytest.mark.parametrize("spread", ["1", "4"])
def test_a_group_is_watched_stopped_and_moved(relaybox: Command, env: dict[str, str], spread: str) -> None:
    made = relaybox.json("topics", "configure", "orders", "--semantics", "pub_sub", "--spread", spread, **env)
    assert made["spread"] == int(spread)
    assert relaybox.json("groups", "create", "orders", "mail", "--from", "earliest", **env)["state"] == "active"
    assert "mail" in relaybox("groups", "create", "orders", "mail", exit_code=1, **env).output
    relaybox("groups", "create", "orders", "mail", "--if-not-exists", **env)
    write(env, "orders", 30)
    assert relaybox.json("groups", "lag", "orders", "mail", **env)["events"] == 30
    assert "30 events behind" in relaybox("groups", "lag", "orders", "mail", **env).stdout
    relaybox("groups", "lag", "orders", "mail", "--max", "29", exit_code=1, **env)
    relaybox("groups", "pause", "orders", "mail", "--reason", "mailer is being moved", RELAYBOX_ACTOR="ann", **env)
    newest = relaybox.json("audit", **env)["entries"][0]
    assert (newest["actor"], newest["reason"]) == ("ann", "mailer is being moved")
    assert relaybox.json("groups", "show", "orders", "mail", **env)["state"] == "paused"
    relaybox("groups", "resume", "orders", "mail", **env)
    assert relaybox.json("groups", "seek", "orders", "mail", "--to", "latest", "--yes", **env)["events"] == 0
    assert relaybox.json("groups", "seek", "orders", "mail", "--to", "21", "--yes", **env)["events"] == 10
    assert "2026" in relaybox("groups", "seek", "orders", "mail", "--to", "soon", "--yes", exit_code=1, **env).output
    [group] = relaybox.json("groups", "list", "--topic", "orders", **env)["groups"]
    assert (group["group"], group["state"], group["pending"]) == ("mail", "active", 10)
    assert "mail" in relaybox("groups", "list", **env).stdout
    assert "members" in relaybox("groups", "show", "orders", "mail", **env).stdout
    assert relaybox.json("groups", "cancel", "orders", "mail", "--yes", **env)["state"] == "cancelled"
    relaybox("groups", "resume", "orders", "mail", exit_code=1, **env)
    assert "no group 'other'" in relaybox("groups", "cancel", "orders", "other", "--yes", exit_code=1, **env).output


def test_a_group_made_by_the_command_lives_as_long_as_one_made_by_the_api(
    relaybox: Command, env: dict[str, str]
) -> None:
    """Pull consumers may come and go."""
    relaybox("topics", "configure", "orders", "--semantics", "pub_sub", **env)
    made = relaybox.json("groups", "create", "orders", "mail", **env)
    with closing(Outbox(env["RELAYBOX_URL"])) as outbox:
        same = outbox.topics.group("orders", "other").create()
    assert same.silence == timedelta(hours=24)
    assert made["silence"] == same.silence.total_seconds()
    given = relaybox.json("groups", "create", "orders", "third", "--silence", "2h", "--attempts", "3", **env)
    assert (given["silence"], given["attempts"], given["on_exhausted"]) == (7200, 3, "block")


@pytest.mark.parametrize("spread", ["1", "4"])
def test_dead_letters_of_a_group_are_listed_replayed_and_discarded(
    relaybox: Command, env: dict[str, str], spread: str
) -> None:
    relaybox("topics", "configure", "orders", "--semantics", "pub_sub", "--spread", spread, **env)
    relaybox("groups", "create", "orders", "mail", "--attempts", "1", "--on-exhausted", "skip", **env)
    write(env, "orders", 6)
    fail(env, "orders", "mail")
    of = ("--of", "group/orders/mail")
    dead = relaybox.json("dead", "list", *of, **env)["dead"]
    assert len(dead) == 6
    assert all("no such customer" in one["error"] for one in dead)
    assert "no such customer" in relaybox("dead", "show", dead[0]["event"]["id"], *of, **env).stdout
    first, second = (one["event"]["id"] for one in dead[:2])
    assert relaybox.json("dead", "discard", first, *of, **env)["discarded"] == 1
    assert relaybox.json("dead", "replay", second, *of, "--reason", "the customer is back", **env)["replayed"] == 1
    assert relaybox.json("dead", "replay", "--all", *of, "--dry-run", **env)["replayed"] == 4
    relaybox("dead", "replay", "--all", *of, exit_code=1, answer="n\n", **env)
    assert relaybox.json("dead", "replay", "--all", *of, "--yes", **env)["replayed"] == 4
    assert relaybox.json("dead", "count", *of, **env)["count"] == 0
    states = [one["state"] for one in relaybox.json("events", "list", *of, **env)["events"]]
    assert sorted(states) == ["done"] + ["held"] * 2 + ["retry"] * 3
    with closing(Outbox(env["RELAYBOX_URL"])) as box:
        entry = box.audit()[1]
    assert (entry.verb, entry.what, entry.reason) == (
        "replay",
        "dead letters of group orders/mail",
        "the customer is back",
    )
    for wrong in ("group/orders", "group", "orders/mail"):
        assert "group/TOPIC/GROUP" in relaybox("dead", "list", "--of", wrong, exit_code=1, **env).output
    assert "no group 'other'" in relaybox("dead", "list", "--of", "group/orders/other", exit_code=1, **env).output


def test_a_key_of_a_group_is_released(relaybox: Command, env: dict[str, str]) -> None:
    relaybox("topics", "configure", "shop/orders", "--semantics", "pub_sub", **env)
    relaybox("groups", "create", "shop/orders", "mail", "--attempts", "1", "--on-exhausted", "park", **env)
    write(env, "shop/orders", 2)
    fail(env, "shop/orders", "mail")
    of = ("--of", "group/shop/orders/mail")
    blocked = relaybox.json("keys", "list", *of, **env)["keys"]
    assert [(one["key"], one["cause"]) for one in blocked] == [("k0", "dead"), ("k1", "dead")]
    assert relaybox.json("keys", "release", "k0", *of, **env)["released"] == "k0"
    assert "no key 'k0' is blocked" in relaybox("keys", "release", "k0", *of, exit_code=1, **env).output
    assert [one["key"] for one in relaybox.json("keys", "list", *of, **env)["keys"]] == ["k1"]
    assert relaybox.json("dead", "count", *of, **env)["count"] == 2


def test_a_late_group_is_backfilled(relaybox: Command, env: dict[str, str]) -> None:
    relaybox("topics", "configure", "orders", "--semantics", "pub_sub", "--tracking", "bitmap", **env)
    relaybox("groups", "create", "orders", "early", **env)
    write(env, "orders", 12)
    relaybox("groups", "create", "orders", "late", "--from", "earliest", **env)
    result = relaybox.json("groups", "backfill", "orders", "late", "--pace", "fast", **env)
    assert result == {"done": 12, "total": 12, "what": "backfill completed"}
    assert "completed: 12 of 12" in relaybox("groups", "backfill", "orders", "late", **env).stdout
    assert relaybox.json("groups", "show", "orders", "late", **env)["backfill"] == result
    assert relaybox.json("groups", "backfill", "orders", "late", "--cancel", **env) == {"cancelled": False}


def test_a_topic_is_advised_and_moved(relaybox: Command, env: dict[str, str]) -> None:
    relaybox("topics", "configure", "orders", "--semantics", "pub_sub", **env)
    relaybox("groups", "create", "orders", "mail", **env)
    write(env, "orders", 5)
    assert relaybox.json("topics", "advise", "orders", **env)["tracking"] == "offset"
    assert "bitmap" in relaybox("topics", "advise", "orders", "--audit", **env).stdout
    assert relaybox("topics", "move", "orders", "--tracking", "bitmap", "--dry-run", **env).stdout
    assert relaybox.json("topics", "move", "orders", "--cancel", **env) == {"cancelled": False}
    relaybox("topics", "move", "orders", "--tracking", "bitmap", "--yes", **env)
    assert relaybox.json("topics", "show", "orders", **env)["tracking"] == "bitmap"
    assert relaybox.json("groups", "lag", "orders", "mail", **env)["events"] == 5


def test_an_engine_without_topics_says_so(relaybox: Command, url: str) -> None:
    assert "PostgreSQL" in relaybox("topics", "list", exit_code=1, RELAYBOX_URL=url).output


def test_which_groups_have_an_event(relaybox: Command, env: dict[str, str]) -> None:
    relaybox("topics", "configure", "orders", "--semantics", "pub_sub", "--tracking", "bitmap", **env)
    for group in ("mail", "search"):
        relaybox("groups", "create", "orders", group, **env)
    write(env, "orders", 1)
    with closing(Outbox(env["RELAYBOX_URL"])) as box, box.topics.group("orders", "mail").consumer() as consumer:
        consumer.commit(consumer.poll())
    shown = relaybox("topics", "completion", "orders", "1", "4711", **env).stdout
    assert shown.splitlines() == ["1: mail done; search still to have it", "4711: not kept (any more)"]
    (event,) = relaybox.json("topics", "completion", "orders", "1", **env)["events"]
    assert event == {"number": 1, "groups": {"mail": "done", "search": "waiting"}}
    assert "not configured" in relaybox("topics", "completion", "nothing", "1", exit_code=1, **env).output


def test_a_queue_is_seen_and_operated_like_any_group(relaybox: Command, env: dict[str, str]) -> None:
    """Tracked by rows, as a queue is by default."""
    relaybox("topics", "configure", "jobs", "--semantics", "queue", **env)
    relaybox("groups", "create", "jobs", "default", "--unordered", "--attempts", "1", **env)
    write(env, "jobs", 4)
    [group] = relaybox.json("status", **env)["groups"]
    assert (group["topic"], group["group"], group["pending"], group["dead"]) == ("jobs", "default", 4, 0)
    fail(env, "jobs", "default")
    assert "jobs" in relaybox("status", **env).stdout
    assert [group["dead"] for group in relaybox.json("groups", "list", **env)["groups"]] == [4]
    of = ("--of", "group/jobs/default")
    dead = relaybox.json("dead", "list", *of, **env)["dead"]
    assert relaybox.json("dead", "discard", dead[0]["event"]["id"], *of, **env)["discarded"] == 1
    assert relaybox.json("groups", "pause", "jobs", "default", **env)["state"] == "paused"
    assert relaybox.json("dead", "replay", "--all", "--yes", *of, **env)["replayed"] == 3
    assert relaybox.json("groups", "lag", "jobs", "default", **env)["events"] == 3
    assert relaybox.json("groups", "resume", "jobs", "default", **env)["state"] == "active"
    assert "no place" in relaybox("groups", "seek", "jobs", "default", "--to", "1", "--yes", exit_code=1, **env).output
    assert relaybox.json("groups", "cancel", "jobs", "default", "--yes", **env)["state"] == "cancelled"
