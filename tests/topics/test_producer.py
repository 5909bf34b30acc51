"""Producers: payloads of one type, numbers back, one logical topic over several."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from kit import rows
from relaybox import (
    AsyncOutbox,
    ConfigError,
    Event,
    InvalidEvent,
    NotFound,
    Outbox,
    Settings,
    StartFrom,
    Topic,
)
from relaybox.errors import InUse, StoreBusy
from relaybox.ids import shard_of
from relaybox.spi import WriterHook
from relaybox.types import OutboxSettings

from .writing import connected, in_outbox, in_topic, migrated, relation


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


def test_a_model_says_its_type_and_a_plain_payload_is_a_message(url: str) -> None:
    @dataclass
    class Shipped:
        event_type = "OrderShipped"
        id: int

    with Outbox(url) as box, connected(url) as connection:
        box.topics.producer("orders").send(connection, {"n": 1}, key="k", correlation_id="c")
        box.topics.producer("orders", Shipped).send(connection, Shipped(1))
        connection.commit()
    assert rows(url, "SELECT event_type, aggregate_id FROM outbox_event_log_1 ORDER BY seq") == [
        ("Message", "k"),
        ("OrderShipped", None),
    ]


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


def test_a_hot_topic_is_spread_over_several_tables_by_key(url: str) -> None:
    hot = Topic.pub_sub("hot", spread=4, retention="7d")
    with Outbox(url) as box, connected(url) as connection:
        made = box.topics.configure(hot)
        assert made.topic == hot
        assert hot.parts == ["hot.part-0", "hot.part-1", "hot.part-2", "hot.part-3"]
        assert box.topics.get("hot") == made
        assert [info.topic.name for info in box.topics.list()] == ["hot", "jobs", "orders"]
        producer = box.topics.producer("hot")
        for n in range(40):
            producer.send(connection, {"n": n}, key=f"k{n % 10}")
        producer.send(connection, {})
        box.write_all(connection, [Event("E", n, key=f"k{n}", topic=t) for n, t in enumerate(["hot", "orders", "hot"])])
        connection.commit()
        found = {
            (number, row[0])
            for number in range(4)
            for row in rows(url, f"SELECT aggregate_id FROM {relation(url, f'hot.part-{number}')}")
        }
        with pytest.raises(ConfigError, match="is spread over 4"):
            box.topics.configure(Topic.pub_sub("hot", spread=2))
        with pytest.raises(NotFound, match=r"spread over several, hot\.part-0"):
            box.topics.group("hot", "g").create()
        seen: list[object] = []
        for part in hot.parts:
            with box.topics.group(part, "g", start=StartFrom.earliest()).consumer().poll() as batch:
                seen += [event.payload for event in batch]
        assert len(seen) == 43
        for part in hot.parts:
            with pytest.raises(InUse):
                box.topics.drop("hot")
            box.topics.group(part, "g").cancel()
        assert box.topics.drop("hot")
        assert not box.topics.drop("hot")
        with pytest.raises((NotFound, StoreBusy)):
            box.write(connection, Event("E", 1, topic="hot"))
    keyed = {pair for pair in found if pair[1] is not None}
    assert keyed == {(shard_of(key, 4), key) for key in (f"k{n}" for n in range(10))}
    assert len(found) == 11


# -- topics that are not configured ----------------------------------------------------------------------------------


def test_a_topic_that_is_not_configured_is_refused_before_anything_is_written(url: str) -> None:
    with Outbox(url) as box, connected(url) as connection:
        good, bad = Event("E", 1, topic="orders"), Event("E", 2, topic="order")
        with pytest.raises(NotFound, match="topic 'order' is not configured; did you mean 'orders'") as refused:
            box.write_all(connection, [Event("E", 0), good, bad])
        assert (refused.value.kind, refused.value.name) == ("topic", "order")
        connection.commit()
        with pytest.raises(NotFound, match=r"topics\.configure\(Topic\.pub_sub\('zebra'\)\) makes it"):
            box.topics.producer("zebra").send(connection, {})
        box.topics.configure(Topic.pub_sub("zebra"))
        assert box.topics.producer("zebra").send(connection, {}) == 1
        connection.commit()
    assert in_outbox(url) == in_topic(url, "orders") == []


def test_a_setting_lets_it_pass_into_the_outbox(url: str) -> None:
    settings = Settings(outbox=OutboxSettings(unknown_topics="outbox"))
    with Outbox(url, settings=settings) as box, connected(url) as connection:
        number = box.topics.producer("nobody-configured").send(connection, {"n": 1})
        connection.commit()
        assert number == 1
        assert [Event.stored(row).topic for row in box._db.run(box.store.waiting(10, None))] == ["nobody-configured"]
    assert len(in_outbox(url)) == 1
