"""Producers: payloads of one type, numbers back, one logical topic over several."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from kit import rows
from relaybox import (
    AsyncOutbox,
    Event,
    InvalidEvent,
    NotFound,
    Outbox,
    Settings,
    Topic,
)
from relaybox.spi import WriterHook
from relaybox.types import OutboxSettings

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
