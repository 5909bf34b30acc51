"""The ways of a message under the roles that are meant for them: quickstart, topics, relays, inboxes, upkeep."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from kit import wait_until
from relaybox import (
    ALL,
    AsyncOutbox,
    Event,
    Inbox,
    Listeners,
    Maintainer,
    Outbox,
    Reject,
    Relay,
    Retry,
    Settings,
    StartFrom,
    Topic,
)
from relaybox.errors import StoreError
from relaybox.store.grants import ROLES, DatabaseRole
from relaybox.types import DeliverySettings, OutboxSettings

from .kit import CALLING, Estate, run

SERVER = ("fsync", "full_page_writes", "synchronous_commit")  # of a server for tests


def write(estate: Estate, *events: Event) -> None:
    with Outbox(estate.at("writer"), settings=CALLING) as box, psycopg.connect(estate.at("writer")) as session:
        box.write_all(session, list(events))
        session.commit()


def sent(folder: Path) -> list[str]:
    return [json.loads(line)["id"] for line in (folder / "out").read_text().splitlines()]


# -- the outbox -----------------------------------------------------------------------------------------


def test_quickstart(estate: Estate) -> None:
    """A writer's transaction with a table of its own, rolled back and committed; a worker that retries and purges."""
    with psycopg.connect(estate.url, autocommit=True) as owner:
        owner.execute("CREATE TABLE IF NOT EXISTS orders (id integer)")
        owner.execute(f"GRANT INSERT ON orders TO {estate.names['writer']}".encode())
    seen: list[str] = []
    listeners = Listeners()

    @listeners.on("OrderPlaced")
    def handle(event: Event) -> None:
        seen.append(event.id)
        if len(seen) == 1:
            raise RuntimeError("once")

    with Outbox(estate.at("writer"), settings=CALLING) as box, psycopg.connect(estate.at("writer")) as session:
        for id in ("rolled-back", "committed"):
            session.execute("INSERT INTO orders VALUES (1)")
            box.write(session, Event("OrderPlaced", {"id": 7}, id=id))
            session.commit() if id == "committed" else session.rollback()
    settings = Settings(
        delivery=DeliverySettings(retry=Retry(base=timedelta(milliseconds=10))),
        outbox=OutboxSettings(retention=timedelta(microseconds=1), purge_interval=timedelta(milliseconds=50)),
    )
    with Outbox(estate.at("worker"), settings=settings) as box, box.deliver(listeners) as service:
        wait_until(lambda: seen.count("committed") == 2)
        service.drain()
        with psycopg.connect(estate.url, autocommit=True) as owner:  # purged by the service itself
            stored = "SELECT 1 FROM outbox_event WHERE event_id = 'committed'"
            wait_until(lambda: owner.execute(stored).fetchone() is None)
    assert "rolled-back" not in seen


def test_dead_letters(estate: Estate) -> None:
    write(estate, Event("Bad", 1, id="dead-1"), Event("Bad", 1, id="dead-2"))

    def refuse(event: Event) -> None:
        raise Reject("no")

    with Outbox(estate.at("worker")) as box, box.deliver(refuse) as service:
        wait_until(lambda: service.counts.dead >= 2)
    with Outbox(estate.at("reader")) as reader:
        assert {letter.event.id for letter in reader.dead.list()} >= {"dead-1", "dead-2"}
        with pytest.raises(StoreError, match="permission denied"):
            reader.dead.replay("dead-1", reason="no")
    for role in ("writer", "receiver", "dashboard"):
        with Outbox(estate.at(role)) as other, pytest.raises(StoreError, match="permission denied"):
            other.dead.list()
    with Outbox(estate.at("worker")) as worker, pytest.raises(StoreError, match="permission denied"):
        worker.dead.replay(ALL, reason="no right to leave a trace")
    with Outbox(estate.at("operator")) as operator:
        assert operator.dead.replay("dead-1", reason="again") == 1
        assert operator.dead.discard("dead-2", reason="never") == 1
        assert [entry.verb for entry in operator.audit(limit=2)] == ["discard", "replay"]
        operator.events.discard("dead-1")


# -- relays ------------------------------------------------------------------------------------------------


def test_a_relay(estate: Estate, tmp_path: Path) -> None:
    write(estate, *(Event("Happened", n, id=f"relay-{n}", key="k") for n in range(5)))
    with Relay(estate.at("relay"), f"jsonl:{tmp_path}/out", to="out") as relay:
        wait_until(lambda: relay.counts.done >= 5)
        relay.status()
        assert relay.health().ready
    assert [id for id in sent(tmp_path) if id.startswith("relay-")] == [f"relay-{n}" for n in range(5)]


def test_a_relay_of_a_group(estate: Estate, tmp_path: Path) -> None:
    with Outbox(estate.at("relay")) as box:
        group = box.topics.group("offset", "relay", start=StartFrom.earliest())
        with Relay(group, f"jsonl:{tmp_path}/out", to="out") as relay:
            write(estate, *(Event("Happened", n, id=f"group-{n}", topic="offset") for n in range(5)))
            wait_until(lambda: relay.counts.done >= 5)
            relay.status()
    assert [id for id in sorted(sent(tmp_path)) if id.startswith("group-")] == [f"group-{n}" for n in range(5)]


# -- topics ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("topic", ["offset", "bitmap"])
def test_pull(estate: Estate, topic: str) -> None:
    with Outbox(estate.at("worker")) as box:
        group = box.topics.group(topic, "pull", start=StartFrom.latest())
        with group.consumer() as consumer:
            consumer.poll()
            write(estate, *(Event("Happened", n, id=f"{topic}-{n}", topic=topic) for n in range(3)))
            found: list[str] = []
            while len(found) < 3:
                with consumer.poll(wait=5) as batch:
                    found += [event.id for event in batch]
        assert sorted(found) == [f"{topic}-{n}" for n in range(3)]
    for role in ("writer", "reader", "dashboard", "receiver"):
        with Outbox(estate.at(role)) as other, pytest.raises(StoreError, match="permission denied"):
            other.topics.group(topic, "others").consumer().poll()


async def test_parked_events_of_a_group_and_of_a_queue(estate: Estate) -> None:
    async def refuse(event: Event) -> None:
        if event.type == "Bad":
            raise Reject("no")

    async with AsyncOutbox(estate.at("worker")) as worker, AsyncOutbox(estate.at("operator")) as operator:
        for topic, name in (("offset", "parks"), ("jobs", "default")):
            group, seen = worker.topics.group(topic, name), operator.topics.group(topic, name)
            async with group.deliver(refuse):
                write(estate, Event("Bad", 1, id=f"bad-{topic}-1", topic=topic))
                write(estate, Event("Bad", 1, id=f"bad-{topic}-2", topic=topic))

                while len(await seen.dead.list()) < 2:
                    await asyncio.sleep(0.01)
            assert await seen.dead.replay(f"bad-{topic}-1", reason="again") == 1
            assert await seen.dead.discard(f"bad-{topic}-2", reason="never") == 1
            assert await seen.events.discard(f"bad-{topic}-1", reason="never") == 1


def test_maintenance(estate: Estate) -> None:
    """All jobs, what is old included: ticks, cleanup of logs and queues, groups, alerts."""
    write(estate, *(Event("Old", n, topic=topic) for n in range(3) for topic in ("offset", "bitmap", "jobs")))
    with psycopg.connect(estate.url, autocommit=True) as owner:
        owner.execute("UPDATE outbox_event_topic SET retention = '1us', zero_retention = '1us', max_retention = '1us'")
        before = owner.execute("SELECT count(*) FROM outbox_event_log_1").fetchone()
        Maintainer(estate.at("maintainer")).once()
        after = owner.execute("SELECT count(*) FROM outbox_event_log_1").fetchone()
        failures = owner.execute("SELECT name FROM outbox_event_alert WHERE name LIKE '%fail%'").fetchall()
    assert before != (0,)
    assert (after, failures) == ((0,), [])
    with pytest.raises(StoreError, match="permission denied"):
        Maintainer(estate.at("reader")).once()


@pytest.mark.parametrize("role", ["operator", "reader"])
def test_advice(estate: Estate, role: DatabaseRole) -> None:
    """A log is measured by the numbers that were drawn, and so is a queue that is rows."""
    with Outbox(estate.at(role)) as box:
        for topic in ("offset", "bitmap", "jobs"):
            assert box.topics.advise(topic).fits
    assert estate.refused("dashboard", "SELECT last_value FROM outbox_event_queue_3_seq")


def test_what_makes_tables_is_for_their_owner(estate: Estate) -> None:
    for role in ROLES:
        with Outbox(estate.at(role)) as box:
            with pytest.raises(StoreError, match=r"permission denied|must be owner"):
                box.topics.configure(Topic.pub_sub("another"))
            with pytest.raises(StoreError, match=r"permission denied|must be owner"):
                box.topics.move("offset", tracking="bitmap", reason="no")


# -- inboxes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["inbox", "adopted"])
def test_inboxes(estate: Estate, name: str) -> None:
    """Accepted, processed, dead, replayed, purged: an inbox of our own, and one in somebody else's table."""
    seen: list[str] = []

    def handle(event: Event) -> None:
        seen.append(event.id)
        if event.type == "Bad":
            raise Reject("no")

    with Inbox(estate.at("receiver"), name) as receiver:
        assert receiver.accept(None, Event("Paid", 1, id="i1"), sender="shop")
        assert not receiver.accept(None, Event("Paid", 1, id="i1"), sender="shop")
        assert receiver.accept_all(None, [Event("Bad", 2, id="i2"), Event("Paid", 3, id="i3")]) == [True, True]
        with pytest.raises(StoreError, match="permission denied"):
            receiver.process(handle).start()
    if name == "adopted":
        with psycopg.connect(estate.url, autocommit=True) as theirs:
            theirs.execute("INSERT INTO theirs (event_id, event_type, payload) VALUES ('i4', 'Paid', '4')")
    expected = {"i1", "i2", "i3", "i4"} if name == "adopted" else {"i1", "i2", "i3"}
    with Inbox(estate.at("worker"), name) as worker, worker.process(handle) as service:
        wait_until(lambda: set(seen) == expected)
        service.drain()
        with pytest.raises(StoreError, match="permission denied"):
            worker.dead.replay(ALL, reason="no right to leave a trace")
    with Inbox(estate.at("operator"), name) as operator:
        assert [letter.event.id for letter in operator.dead.list()] == ["i2"]
        assert operator.dead.replay("i2", reason="again") == 1
        assert operator.events.discard("i2", reason="never") == 1
        operator.purge(reason="old")
    for role in ("reader", "dashboard"):
        with Inbox(estate.at(role), name) as looking:
            looking.status()
            looking.stats()
            looking.health()
            with pytest.raises(StoreError, match="permission denied"):
                looking.purge(reason="no")


# -- looking ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["worker", "operator", "reader", "dashboard"])
def test_what_metrics_and_pages_are_fed_with(estate: Estate, role: DatabaseRole) -> None:
    with Outbox(estate.at("worker")) as worker:
        worker.topics.group("offset", "fed").create(if_not_exists=True)
    feeds: list[Callable[[Any], object]] = [
        lambda box: box.status(),
        lambda box: box.health(),
        lambda box: box.instances(),
        lambda box: box.topics.list(),
        lambda box: box.topics.groups(),
        lambda box: box.topics.group("offset", "fed").lag(),
        lambda box: box.topics.group("offset", "fed").info(),
    ]
    with Outbox(estate.at(role)) as box, Inbox(estate.at(role)) as inbox:
        for feed in feeds:
            feed(box)
        assert inbox.status().pending == 0
        inbox.health()
        inbox.stats()


@pytest.mark.parametrize("role", [role for role in ROLES if role not in ("relay", "tenant")])
def test_the_doctor_works_in_every_role_and_finds_nothing_critical(estate: Estate, role: DatabaseRole) -> None:
    said = run("--url", estate.at(role), "doctor", "--role", role, "--json")
    assert said.stdout, said.stderr
    found = json.loads(said.stdout)["findings"]
    assert [one for one in found if one["level"] == "critical" and one["check"] not in SERVER] == []
    assert [one for one in found if one["check"] == f"role {role}" and one["level"] != "ok"] == []
