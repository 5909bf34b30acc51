"""Producers: payloads of one type, numbers back, one logical topic over several."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from flow.kit import rows
from relaybox import AsyncOutbox, ConfigError, InvalidEvent, Outbox
from relaybox.event import Event
from relaybox.ids import shard_of
from relaybox.spi import WriterHook
from relaybox.topic import Topic

from .writing import connected, in_outbox, in_topic, migrated


@dataclass
class OrderPlaced:
    id: int


@pytest.fixture
def url() -> str:
    return migrated(Topic.pub_sub("orders"), Topic.queue("jobs"))


def test_send_returns_the_number_and_says_everything(url: str) -> None:
    with Outbox(url) as box, connected(url) as connection:
        orders = box.topics.producer("orders", OrderPlaced)
        first = orders.send(connection, OrderPlaced(7), key="order-7", headers={"a": "b"}, correlation_id="c-1")
        second = orders.send(connection, OrderPlaced(8), key="order-8", type="Placed", tenant="t", id="mine")
        connection.commit()
    assert (first, second) == (1, 2)
    stored = rows(
        url, "SELECT seq, event_type, aggregate_id, tenant_id, headers, event_id, payload FROM outbox_event_log_1"
    )
    assert stored[0][:5] == (1, "OrderPlaced", "order-7", None, '{"a":"b","correlation-id":"c-1"}')
    assert stored[1][:4] == (2, "Placed", "order-8", "t")
    assert stored[1][5:] == ("mine", b'{"id":8}')


def test_an_event_says_what_a_message_has(url: str) -> None:
    with Outbox(url) as box:
        event = box.topics.producer("orders").event({"n": 1}, key="k", correlation_id="c")
    assert (event.topic, event.correlation_id, event.key, event.type) == ("orders", "c", "k", "Message")


async def test_the_async_twin(url: str) -> None:
    async with AsyncOutbox(url) as box:
        jobs = box.topics.producer("jobs")
        async with box.transaction() as tx:
            assert await jobs.send(tx, {"n": 1}) == 1
            assert await jobs.send(tx, {"n": 2}) == 2
    assert len(in_topic(url, "jobs")) == 2


def test_rolled_back_with_the_callers_work(url: str) -> None:
    with Outbox(url) as box, connected(url) as connection:
        box.topics.producer("orders").send(connection, {"n": 1})
        connection.rollback()
    assert in_topic(url, "orders") == []


def test_another_payload_is_refused(url: str) -> None:
    with Outbox(url) as box, connected(url) as connection:
        with pytest.raises(InvalidEvent, match="takes OrderPlaced, got dict"):
            box.topics.producer("orders", OrderPlaced).send(connection, {"id": 7})  # type: ignore[arg-type]
        with pytest.raises(InvalidEvent, match="topic"):
            box.topics.producer("x" * 256)


def test_a_suppressed_message_has_no_number(url: str) -> None:
    class Nothing(WriterHook):
        def before_write(self, events: object) -> None:
            return None

    with Outbox(url, hooks=[Nothing()]) as box, connected(url) as connection:
        assert box.topics.producer("orders").send(connection, {}) is None


def test_one_logical_producer_over_several_topics(url: str) -> None:
    with Outbox(url) as box, connected(url) as connection:
        made = box.topics.configure_sharded(Topic.pub_sub("hot"), 4)
        assert [row.topic.name for row in made] == [f"hot.shard-{n}" for n in range(4)]
        producer = box.topics.producer("hot", shards=4)
        for n in range(40):
            producer.send(connection, {"n": n}, key=f"k{n % 10}")
        producer.send(connection, {})
        connection.commit()
        with pytest.raises(ConfigError, match="shards"):
            box.topics.producer("hot", shards=0)
    found = {(shard, row[0]) for shard in range(4) for row in rows(url, f"SELECT aggregate_id FROM {log(made[shard])}")}
    keyed = {pair for pair in found if pair[1] is not None}
    assert keyed == {(shard_of(key, 4), key) for key in (f"k{n}" for n in range(10))}
    assert len(found) == 11


def log(row: object) -> str:
    return f"outbox_event_log_{row.id}"  # type: ignore[attr-defined]


def test_an_unconfigured_topic_takes_messages_as_a_queue(url: str) -> None:
    with Outbox(url) as box, connected(url) as connection:
        number = box.topics.producer("nobody-configured").send(connection, {"n": 1})
        connection.commit()
        assert number == 1
        assert [Event.stored(row).topic for row in box._db.run(box.store.waiting(10, None))] == ["nobody-configured"]
    assert len(in_outbox(url)) == 1


def test_push_groups_need_an_event_loop(url: str) -> None:
    with Outbox(url) as box:
        with pytest.raises(ConfigError, match="AsyncOutbox"):
            box.topics.group("g", "orders")
