"""The compliance example: licensing, the relay as a process, Pub/Sub, the consumer, with everything that goes wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from relaybox import Event, Outbox
from relaybox.errors import ContractViolation
from relaybox.testing.servers import PubSubServer, require

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "compliance_notifications"
PENDING = ("admin", "compliance", "License L-7 of store green-leaf waits for review", "/licenses/L-7", None)
REJECTED = ("green-leaf", "license", "Your license L-7 was rejected", "/licenses/L-7", "the scan cannot be read")
VERIFIED = ("green-leaf", "license", "Your license L-7 was verified", "/licenses/L-7", None)


class World:
    """Two databases, a Redis, a Pub/Sub project, and the example's own code between them."""

    def __init__(self, pubsub: PubSubServer) -> None:
        import licensing  # from the example's folder
        import notifications
        from google.cloud.pubsub_v1 import PublisherClient, SubscriberClient

        self.project = f"test-{uuid.uuid4().hex[:12]}"
        self.subscription = f"projects/{self.project}/subscriptions/compliance"
        topic = f"projects/{self.project}/topics/domain-events"
        PublisherClient().create_topic(name=topic)
        self.subscriber = SubscriberClient()
        wanted = {"name": self.subscription, "topic": topic, "enable_message_ordering": True}
        self.subscriber.create_subscription(request=wanted)
        postgres = require("postgres-wheel", durable=False)
        self.url, self.consumer_url = postgres.create_database(), postgres.create_database()
        self.licensing = licensing.Licensing(self.url)
        self.licensing.migrate()
        self.consumer = notifications.Notifications(self.consumer_url, require("redis", durable=False).fresh_url())
        self._consume = notifications.consume
        self.came = 0

    def relay(self) -> dict[str, int]:
        """`relaybox relay` with the example's file, until nothing is left to send."""
        environment = {**os.environ, "RELAYBOX_URL": self.url, "RELAYBOX_SINK": f"pubsub://{self.project}"}
        command = [sys.executable, "-m", "relaybox", "relay", "--config", "relay.toml", "--once", "--json"]
        done = subprocess.run(command, cwd=EXAMPLE, env=environment, capture_output=True, text=True, timeout=60)
        assert done.stdout, done.stderr
        said: dict[str, int] = json.loads(done.stdout)
        assert done.returncode == (4 if said["died"] else 0), done.stderr
        return said

    def pull(self) -> int:
        came: int = self._consume(self.subscriber, self.subscription, self.consumer.handle, seconds=2)
        self.came += came
        return came

    def drain(self) -> list[tuple[Any, ...]]:
        """Pull until nothing comes any more."""
        while self.pull():
            pass
        return self.notifications()

    def notifications(self) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.consumer_url) as db:
            return db.execute("SELECT recipient, type, body, link, reason FROM notifications ORDER BY id").fetchall()

    def close(self) -> None:
        self.licensing.close()
        self.consumer.close()
        self.subscriber.close()


@pytest.fixture
def pubsub(monkeypatch: pytest.MonkeyPatch) -> Iterator[PubSubServer]:
    server = require("pubsub")
    monkeypatch.setenv("PUBSUB_EMULATOR_HOST", server.host)
    monkeypatch.syspath_prepend(str(EXAMPLE))
    yield server
    for name in ("events", "licensing", "notifications"):
        sys.modules.pop(name, None)


@pytest.fixture
def world(pubsub: PubSubServer) -> Iterator[World]:
    with closing(World(pubsub)) as made:
        yield made


def test_admins_and_stores_are_notified(world: World) -> None:
    world.licensing.upload("L-7", "green-leaf")
    world.licensing.decide("L-7", "rejected", "the scan cannot be read")
    world.licensing.decide("L-7", "verified")
    assert world.relay() == {"sent": 3, "died": 0, "failed_attempts": 0, "left": 0, "waiting_for_retry": 0, "why": None}
    assert world.drain() == [PENDING, REJECTED, VERIFIED]


def test_what_is_rolled_back_was_never_told(world: World) -> None:
    world.licensing.upload("L-7", "green-leaf")
    with pytest.raises(ContractViolation):
        world.licensing.decide("L-7", "revoked")  # not a status of the contract
    with pytest.raises(psycopg.errors.UniqueViolation):
        world.licensing.upload("L-7", "green-leaf")
    assert world.licensing.db.execute("SELECT status FROM licenses").fetchall() == [("pending",)]
    assert world.relay()["sent"] == 1


def test_a_message_that_comes_twice_notifies_once(world: World, pubsub: PubSubServer) -> None:
    if pubsub.emulator:
        pytest.skip("only the stand-in can be told to lose an answer")
    world.licensing.upload("L-7", "green-leaf")
    pubsub.fail("Publish", "UNAVAILABLE", done_first=True)  # Pub/Sub has it, and the relay does not know
    assert world.relay()["sent"] == 1
    assert world.drain() == [PENDING]
    assert world.came == 2


def test_a_failure_is_made_up_for(world: World) -> None:
    """The consumer's database fails after the mark was set: no acknowledgement, no mark, no overtaking."""
    world.licensing.upload("L-7", "green-leaf")
    world.licensing.decide("L-7", "verified")
    world.relay()
    with psycopg.connect(world.consumer_url, autocommit=True) as admin:
        admin.execute("ALTER TABLE notifications RENAME TO away")
        assert world.pull() > 0
        assert world.pull() > 0  # again at once
        admin.execute("ALTER TABLE away RENAME TO notifications")
    assert world.notifications() == []
    assert world.drain() == [PENDING, VERIFIED]


def test_an_event_that_breaks_its_contract_becomes_a_dead_letter(world: World) -> None:
    """Written by a program that checks nothing; the relay does."""
    strange = {"licenseId": "L-8", "storeId": "green-leaf", "status": "revoked"}
    with closing(Outbox(world.url)) as careless, careless.transaction() as tx:
        unknown = Event("license_status_changed", strange, key="L-8", aggregate_type="license")
        empty = Event("license_status_changed", None, key="L-7", aggregate_type="license")
        careless.write_all(tx, [unknown, empty])
    world.licensing.upload("L-7", "green-leaf")  # behind the empty one, same key
    assert world.relay() == {"sent": 1, "died": 2, "failed_attempts": 0, "left": 0, "waiting_for_retry": 0, "why": None}
    assert world.drain() == [PENDING]
    reasons = {letter.event.id: letter.error for letter in world.licensing.outbox.dead.list()}
    assert set(reasons) == {unknown.id, empty.id}
    assert "payload.status" in reasons[unknown.id]
    assert "null" in reasons[empty.id]
    assert all("revoked" not in reason and "green-leaf" not in reason for reason in reasons.values())


def test_other_events_of_the_domain_are_passed_over(world: World) -> None:
    from google.cloud.pubsub_v1 import PublisherClient

    topic = f"projects/{world.project}/topics/domain-events"
    PublisherClient().publish(topic, b"{}", event_id="1", event_type="order_placed").result(timeout=20)
    assert world.pull() == 1
    assert world.drain() == []


def test_the_command_of_the_readme(world: World) -> None:
    environment = {**os.environ, "LICENSING_URL": world.url}

    def licensing(*arguments: str) -> int:
        command = [sys.executable, "licensing.py", *arguments]
        return subprocess.run(command, cwd=EXAMPLE, env=environment, capture_output=True, timeout=60).returncode

    assert licensing("upload", "L-7", "green-leaf") == 0
    assert licensing("reject", "L-7", "the scan cannot be read") == 0
    assert licensing("revoke", "L-7") == 1
    world.relay()
    assert world.drain() == [PENDING, REJECTED]
