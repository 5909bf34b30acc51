"""The stand-in for Pub/Sub, through Google's own clients."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from relaybox.testing.servers import PubSubServer, ServerFailed, require

pubsub = pytest.importorskip("google.pubsub_v1")
errors = pytest.importorskip("google.api_core.exceptions")


pytestmark = pytest.mark.filterwarnings("ignore:The return_immediately flag:DeprecationWarning")


@pytest.fixture
def server() -> PubSubServer:
    server = require("pubsub")
    if server.emulator:
        pytest.skip("the tests of the stand-in need the stand-in, not an emulator")
    return server


@pytest.fixture
def publisher(server: PubSubServer) -> Iterator[Any]:
    with server._client("Publisher") as client:
        yield client


@pytest.fixture
def subscriber(server: PubSubServer) -> Iterator[Any]:
    with server._client("Subscriber") as client:
        yield client


def publish(publisher: Any, topic: str, *values: str) -> list[str]:
    """The letter of a value is its ordering key."""
    messages = [{"data": value.encode(), "ordering_key": value[0]} for value in values]
    return list(publisher.publish(topic=topic, messages=messages, retry=None).message_ids)


def pull(subscriber: Any, subscription: str, limit: int = 100, wait: bool = True) -> dict[str, str]:
    request = {"subscription": subscription, "max_messages": limit, "return_immediately": not wait}
    received = subscriber.pull(request=request, retry=None, timeout=10).received_messages
    return {each.message.data.decode(): each.ack_id for each in received}


def test_what_was_acknowledged_survives_a_kill(server: PubSubServer, publisher: Any, subscriber: Any) -> None:
    topic = server.fresh_topic()
    subscription, host = server.fresh_subscription(topic), server.host
    ids = publish(publisher, topic, "a1", "b1", "a2")
    first = pull(subscriber, subscription, limit=1)
    subscriber.acknowledge(subscription=subscription, ack_ids=list(first.values()))
    with (server.folder / "journal.jsonl").open("ab") as journal:
        journal.write(b'["publish", "half a li')
    server.restart()
    assert server.host == host
    assert list(pull(subscriber, subscription)) == ["b1", "a2"]
    later = publish(publisher, topic, "a3")
    assert sorted(map(int, ids + later)) == list(map(int, ids + later))
    server.restart(kill=False)
    assert list(pull(subscriber, subscription)) == ["b1", "a2", "a3"]


def test_a_key_waits_for_its_outstanding_messages(server: PubSubServer, publisher: Any, subscriber: Any) -> None:
    topic = server.fresh_topic()
    subscription = server.fresh_subscription(topic, ack_seconds=60)
    publish(publisher, topic, "a1", "a2", "b1", "a3")
    first = pull(subscriber, subscription, limit=1)
    assert list(first) == ["a1"]
    assert list(pull(subscriber, subscription)) == ["b1"]
    assert pull(subscriber, subscription, wait=False) == {}
    subscriber.acknowledge(subscription=subscription, ack_ids=list(first.values()))
    assert list(pull(subscriber, subscription)) == ["a2", "a3"]


def test_redelivery_brings_what_follows_under_the_key(server: PubSubServer, publisher: Any, subscriber: Any) -> None:
    topic = server.fresh_topic()
    subscription = server.fresh_subscription(topic, ack_seconds=60)
    publish(publisher, topic, "a1", "b1", "a2")
    received = pull(subscriber, subscription)
    give_back = {"subscription": subscription, "ack_ids": [received["a1"]], "ack_deadline_seconds": 0}
    subscriber.modify_ack_deadline(request=give_back)
    again = pull(subscriber, subscription)
    assert list(again) == ["a1", "a2"]
    subscriber.acknowledge(subscription=subscription, ack_ids=[received["a2"]])  # too late: an old delivery's id
    subscriber.acknowledge(subscription=subscription, ack_ids=[again["a1"], received["b1"]])
    give_back["ack_ids"] = list(again.values())
    subscriber.modify_ack_deadline(request=give_back)
    assert list(pull(subscriber, subscription)) == ["a2"]


def test_an_expired_deadline_redelivers(server: PubSubServer, publisher: Any, subscriber: Any) -> None:
    topic = server.fresh_topic()
    subscription = server.fresh_subscription(topic, ack_seconds=1)
    publish(publisher, topic, "a1")
    assert list(pull(subscriber, subscription)) == ["a1"]
    assert list(pull(subscriber, subscription)) == ["a1"]


def test_without_ordering_nothing_waits(server: PubSubServer, publisher: Any, subscriber: Any) -> None:
    topic = server.fresh_topic()
    subscription = server.fresh_subscription(topic, ordered=False)
    publish(publisher, topic, "a1", "a2")
    assert list(pull(subscriber, subscription, limit=1)) == ["a1"]
    assert list(pull(subscriber, subscription, limit=1)) == ["a2"]


def test_streaming_pull_of_the_high_level_client(server: PubSubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    cloud = pytest.importorskip("google.cloud.pubsub_v1")
    monkeypatch.setenv("PUBSUB_EMULATOR_HOST", server.host)
    topic = server.fresh_topic()
    subscription = server.fresh_subscription(topic)
    ordered = cloud.types.PublisherOptions(enable_message_ordering=True)
    publisher = cloud.PublisherClient(publisher_options=ordered)
    for number in range(5):
        publisher.publish(topic, str(number).encode(), ordering_key="k").result(timeout=10)
    seen: list[bytes] = []
    complete = threading.Event()

    def receive(message: Any) -> None:
        seen.append(message.data)
        message.ack()
        if len(seen) == 5:
            complete.set()

    with cloud.SubscriberClient() as subscriber:
        stream = subscriber.subscribe(subscription, receive)
        assert complete.wait(20)
        stream.cancel()
        stream.result(timeout=20)
    assert seen == [b"0", b"1", b"2", b"3", b"4"]


def test_refusals(server: PubSubServer, publisher: Any, subscriber: Any) -> None:
    topic = server.fresh_topic()
    with pytest.raises(errors.NotFound):
        publish(publisher, topic + "x", "a1")
    with pytest.raises(errors.AlreadyExists):
        publisher.create_topic(name=topic)
    with pytest.raises(errors.InvalidArgument):
        publisher.create_topic(name="not-a-full-name")
    for bad in (
        [],
        [{}],
        [{"data": b"1"}] * 1001,
        [{"data": b"x" * 10_000_001}],
        [{"data": b"1", "ordering_key": "k" * 1025}],
    ):
        with pytest.raises(errors.InvalidArgument):
            publisher.publish(topic=topic, messages=bad, retry=None)
    with pytest.raises(errors.NotFound):
        pull(subscriber, "projects/relaybox/subscriptions/none")
    publisher.delete_topic(topic=topic)
    with pytest.raises(errors.NotFound):
        publisher.get_topic(topic=topic)


def test_scripted_failures_come_before_or_after_the_effect(
    server: PubSubServer, publisher: Any, subscriber: Any
) -> None:
    topic = server.fresh_topic()
    subscription = server.fresh_subscription(topic)
    server.fail("Publish", "UNAVAILABLE")
    server.fail("Publish", "RESOURCE_EXHAUSTED", done_first=True)
    with pytest.raises(errors.ServiceUnavailable):
        publish(publisher, topic, "a1")
    with pytest.raises(errors.ResourceExhausted):
        publish(publisher, topic, "a2")
    publish(publisher, topic, "a3")
    assert list(pull(subscriber, subscription)) == ["a2", "a3"]


def test_a_running_emulator_is_used_and_left_alone(server: PubSubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PUBSUB_EMULATOR_HOST", server.host)
    with PubSubServer() as emulator:
        assert (emulator.host, emulator.running) == (server.host, True)
        assert emulator.fresh_subscription(emulator.fresh_topic())
        for step in (emulator.kill, emulator.stop, emulator.restart, emulator.pause):
            with pytest.raises(ServerFailed, match="not ours"):
                step()
        with pytest.raises(ServerFailed, match="not ours"):
            emulator.fail("Publish", "ABORTED")
    assert server.running
