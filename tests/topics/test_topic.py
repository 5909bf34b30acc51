"""What a topic may be, and what it is unless said otherwise."""

from __future__ import annotations

import pickle
from datetime import timedelta
from typing import Any

import pytest

from relaybox import ConfigError, Event, InvalidEvent
from relaybox.event import TOPIC_HEADER, topics_of
from relaybox.topic import Topic

DAY = timedelta(days=1)
HOUR = timedelta(hours=1)


def test_defaults() -> None:
    topic = Topic.queue("jobs")
    assert (topic.semantics, topic.tracking, topic.partitions) == ("queue", "rows", "none")
    assert (topic.retention, topic.zero_retention, topic.max_retention) == (DAY, DAY, 30 * DAY)
    assert topic.zombie_ttl == 7 * DAY
    assert (topic.heartbeat_interval, topic.heartbeat_timeout) == (timedelta(seconds=60), timedelta(seconds=300))
    assert not topic.block_writes
    assert Topic.pub_sub("orders").tracking == "offset"
    assert Topic.pub_sub("orders", retention="2d").retention == 2 * DAY


def test_presets_for_rates() -> None:
    fast = Topic.pub_sub("t").high_throughput()
    assert (fast.heartbeat_interval, fast.heartbeat_timeout) == (timedelta(seconds=30), timedelta(minutes=2))
    assert (fast.fetch_batch, fast.cleanup_batch, fast.partitions) == (100, 10_000, "month")
    slow = fast.low_rate()
    assert (slow.heartbeat_interval, slow.heartbeat_timeout) == (timedelta(seconds=60), timedelta(minutes=5))
    assert (slow.fetch_batch, slow.partitions) == (10, "none")


@pytest.mark.parametrize(
    ("topic", "kept", "blocks"),
    [
        (Topic.pub_sub("t").critical(), 7 * DAY, True),
        (Topic.pub_sub("t").critical(30 * DAY), 30 * DAY, True),
        (Topic.pub_sub("t").audit(), 365 * DAY, True),
        (Topic.pub_sub("t").audit(90 * DAY), 90 * DAY, True),
        (Topic.pub_sub("t").standard(), DAY, False),
        (Topic.pub_sub("t").ephemeral(), HOUR, False),
        (Topic.queue("t").critical(), 7 * DAY, False),
    ],
)
def test_presets_for_worth(topic: Topic, kept: timedelta, blocks: bool) -> None:
    assert (topic.retention, topic.zero_retention, topic.block_writes) == (kept, kept, blocks)
    assert topic.max_retention >= kept


def test_presets_chain_and_keep_the_rest() -> None:
    topic = Topic.pub_sub("t", tracking="bitmap", shards=4).critical().high_throughput().with_options(retention=HOUR)
    assert (topic.tracking, topic.shards, topic.block_writes) == ("bitmap", 4, True)
    assert (topic.retention, topic.partitions) == (HOUR, "month")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"name": ""}, "topic"),
        ({"name": "x" * 256}, "255"),
        ({"name": "a\nb"}, "control characters"),
        ({"name": " a"}, "blanks"),
        ({"name": "a\x00"}, "NUL"),
        ({"name": 7}, "string"),
        ({"semantics": "stream"}, "semantics"),
        ({"tracking": "magic"}, "tracking"),
        ({"semantics": "pub_sub", "tracking": "rows"}, "offset, bitmap, acks"),
        ({"semantics": "queue", "tracking": "bitmap"}, "rows, offset"),
        ({"partitions": "week"}, "partitions"),
        ({"shards": 0}, "shards"),
        ({"shards": 1025}, "1024"),
        ({"shards": True}, "shards"),
        ({"fetch_batch": 0}, "fetch_batch"),
        ({"cleanup_batch": "many"}, "cleanup_batch"),
        ({"retention": timedelta(0)}, "retention"),
        ({"retention": "soon"}, "retention"),
        ({"spread": 0}, "spread"),
        ({"semantics": "pub_sub", "tracking": "offset", "spread": 17}, r"at most shards \(16\), got 17.*Raise shards"),
        ({"spread": 2}, "spread to be 1 for a queue tracked by rows, got 2.*tracking='offset'"),
        ({"retention": timedelta(days=40_000)}, "100 years"),
        ({"retention": timedelta(days=31)}, "max_retention"),
        ({"zero_retention": timedelta(days=31)}, "max_retention"),
        ({"zombie_ttl": -DAY}, "zombie_ttl"),
        ({"block_writes": 1}, "block_writes"),
        ({"heartbeat_interval": None}, "heartbeat_interval"),
        ({"heartbeat_timeout": timedelta(seconds=60)}, "missed heartbeat"),
    ],
)
def test_what_cannot_be_is_refused_with_its_name(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Topic(**{"name": "t", **options})


def test_an_unknown_option_is_named() -> None:
    with pytest.raises(ConfigError, match="'color'"):
        Topic.queue("t").with_options(color="red")  # type: ignore[call-arg]


# -- events ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "x" * 256, "a\tb", "a\x00b", "a ", "\ud800"])
def test_an_event_refuses_what_is_no_topic(name: str) -> None:
    with pytest.raises(InvalidEvent, match="topic"):
        Event("X", {}, topic=name)


def test_an_event_keeps_its_topic() -> None:
    event = Event("X", {"a": 1}, topic="bestellungen.über", headers={"a": "b"})
    for copy in (event, event.with_headers({"c": "d"}), pickle.loads(pickle.dumps(event))):  # noqa: S301
        assert copy.topic == "bestellungen.über"
        assert topics_of([copy]) == ["bestellungen.über"]
        assert copy.headers["a"] == "b"
    assert Event("X", {}).topic is None


def test_a_stored_event_of_a_log_has_its_topic() -> None:
    at = Event("X", {}).occurred_at
    row = (1, "id", "X", None, None, None, None, b"{}", None, at, None, at)
    assert Event.stored(row, topic="orders").topic == "orders"
    assert Event.stored(row).topic is None


def test_a_header_names_the_topic_of_an_event_but_never_routes_it() -> None:
    """It may have come from another system: a program that forwards an event chooses the topic anew."""
    event = Event("X", {}, headers={TOPIC_HEADER: "orders"})
    assert event.topic == "orders"
    assert topics_of([event]) == [None]
