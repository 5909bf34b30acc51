"""From a feed by a relay, a broker and an inbox into a replica: with the messages that the relay really sends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from kafka_harness import KafkaHarness
from replica_kit import TARGETS, TOTALS, TYPES, changes, expected, kept, make_source

from kit import make_database, make_postgres, wait_until
from relaybox import Event, Inbox, Ingest, Listeners, Outbox, Relay, Replica, Settings, StartFrom
from relaybox.brokers.inbox import InboxSink
from relaybox.brokers.kafka import KafkaSink
from relaybox.settings import IngestSettings
from relaybox.spi import Answer, Message
from relaybox.testing.servers import require


@pytest.fixture
def source() -> Iterator[Outbox]:
    with make_source() as box:
        box.feeds.create(TOTALS)
        box.topics.group("totals", "broker", start=StartFrom.earliest()).create()
        yield box


def mirror(replica: Replica) -> Listeners[Any]:
    handlers: Listeners[Any] = Listeners()

    def apply(event: Event, tx: Any) -> None:
        replica.apply(tx, event)

    for kind in ("feed.row", "feed.delta"):
        handlers.on(kind)(apply)
    return handlers


@pytest.mark.parametrize("as_rows", [True, False])
@pytest.mark.parametrize("engine", TARGETS)
def test_by_a_relay_and_an_inbox(source: Outbox, tmp_path: Path, engine: str, as_rows: bool) -> None:
    target = make_database(engine, tmp_path, migrated=False)
    group = source.topics.group("totals", "broker")
    with (
        Inbox(target, "rows") as inbox,
        Replica(target, "totals", feed="totals", key="customer", columns={**TYPES}) as replica,
    ):
        inbox.migrate()
        replica.migrate()

        def move() -> None:
            sink = InboxSink(target, inbox="rows", sender="shop")
            Relay(group, sink, to="rows", feed="totals", rows=as_rows).once()
            with inbox.process(mirror(replica)) as processing:  # a delta that overtook another comes again
                wait_until(lambda: kept(target) == expected(source) and inbox.status().pending == 0)
                assert processing.counts.dead == 0
                assert processing.counts.failed == 0 or not as_rows

        source.feeds.refresh(None, "totals")
        move()
        changes(source, "UPDATE orders SET amount = 0.10 WHERE id = 7", "DELETE FROM orders WHERE customer = 8")
        changes(source, "INSERT INTO orders VALUES (1000, 8, 7.00)", "DELETE FROM orders WHERE customer = 9")
        move()
        source.feeds.snapshot(None, "totals")
        move()
        assert replica.status().n == 6


@pytest.fixture(scope="module")
def kafka() -> KafkaHarness:
    return KafkaHarness(require("kafka"))


async def test_of_a_deleted_row_only_the_tombstone_is_left(kafka: KafkaHarness, source: Outbox) -> None:
    """As in a compacted topic, for who was away."""
    target, topic = make_postgres(migrated=False), await kafka.topic(3, **{"cleanup.policy": "compact"})

    class Compacted(KafkaSink):
        async def publish(self, messages: Sequence[Message]) -> Sequence[Answer]:
            left = [m for m in messages if m.attributes["feed-op"] != "d" or m.tombstone]
            if left:
                assert not any(await super().publish(left))
            return [None] * len(messages)

    group = source.topics.group("totals", "broker")
    settings = Settings(ingest=IngestSettings(wait="5s"))
    with (
        Inbox(target, "rows") as inbox,
        Replica(target, "totals", feed="totals", key="customer", columns={**TYPES}) as replica,
    ):
        inbox.migrate()
        replica.migrate()
        source.feeds.refresh(None, "totals")
        changes(source, "DELETE FROM orders WHERE customer = 8")
        Relay(group, Compacted(kafka.url), to=topic, feed="totals", rows=True).once()
        ingest = Ingest(f"{kafka.url}/{topic}?group=crm", inbox, sender="shop", settings=settings)
        assert ingest.once().dead == 0
        counts = inbox.process(mirror(replica)).once()
        assert (counts.done, counts.failed, counts.dead) == (11, 0, 0)
        assert kept(target) == expected(source)


async def test_by_kafka(kafka: KafkaHarness, source: Outbox) -> None:
    """Compacted, in three partitions: in the end the table is the feed's."""
    target, topic = make_postgres(migrated=False), await kafka.topic(3, **{"cleanup.policy": "compact"})
    source.feeds.refresh(None, "totals")
    changes(source, "UPDATE orders SET amount = 0.10 WHERE id = 7", "DELETE FROM orders WHERE customer = 8")
    changes(source, "INSERT INTO orders VALUES (1000, 8, 7.00)", "DELETE FROM orders WHERE customer = 9")
    source.feeds.snapshot(None, "totals")
    changes(source, "UPDATE orders SET amount = 1 WHERE customer < 3")
    group = source.topics.group("totals", "broker")
    settings = Settings(ingest=IngestSettings(wait="5s"))
    with (
        Inbox(target, "rows") as inbox,
        Replica(target, "totals", feed="totals", key="customer", columns={**TYPES}) as replica,
    ):
        inbox.migrate()
        replica.migrate()
        Relay(group, kafka.sink(), to=topic, feed="totals", rows=True).once()
        for name in ("crm", "another"):  # which reads all of it again
            Ingest(f"{kafka.url}/{topic}?group={name}", inbox, sender="shop", settings=settings).once()
            counts = inbox.process(mirror(replica)).once()
            assert (counts.failed, counts.dead) == (0, 0)
            assert kept(target) == expected(source)
        assert replica.status().n == 6
