"""The public path, from configure to delivery, through `outbox.topics` alone."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from relaybox import AsyncOutbox, Backfill, ConfigError, Event, Outbox, StartFrom, Topic
from relaybox.errors import Closed, NotFound
from relaybox.event import TOPIC_HEADER

from .writing import connected, migrated


@dataclass
class Placed:
    id: int


async def heard(queue: asyncio.Queue[Event], count: int) -> list[Event]:
    return [await asyncio.wait_for(queue.get(), 20) for _ in range(count)]


async def test_pub_sub_from_end_to_end() -> None:
    url = migrated(Topic.pub_sub("orders"))
    async with AsyncOutbox(url) as box:
        boxes: dict[str, asyncio.Queue[Event]] = {name: asyncio.Queue() for name in ("mailer", "billing")}
        for name, queue in boxes.items():
            group = box.topics.group(name, "orders")
            group.add_consumer("one", queue.put)
            await group.start(StartFrom.latest())
        orders = box.topics.producer("orders", Placed)
        async with box.transaction() as tx:
            numbers = [await orders.send(tx, Placed(n), key="k", correlation_id="c") for n in range(3)]
        for queue in boxes.values():
            events = await heard(queue, 3)
            assert [event.seq for event in events] == numbers
            assert [event.payload for event in events] == [{"id": n} for n in range(3)]
            assert {(e.topic, e.type, e.key, e.correlation_id) for e in events} == {("orders", "Placed", "k", "c")}
            assert TOPIC_HEADER not in events[0].headers
    with pytest.raises(Closed):
        group.add_consumer("two", print)


@pytest.mark.parametrize("tracking", ["rows", "offset"])
async def test_a_queue_from_end_to_end(tracking: str) -> None:
    url = migrated(Topic(name="jobs", tracking=tracking))  # type: ignore[arg-type]
    async with AsyncOutbox(url) as box:
        queue: asyncio.Queue[Event] = asyncio.Queue()
        workers = box.topics.queue("jobs")
        workers.add_consumer("one", queue.put)
        async with box.transaction() as tx:
            written_events = [Event("Do", {"n": n}, topic="jobs") for n in range(5)]
            await box.write_all(tx, written_events)
            sent = [written.id for written in written_events]
        await workers.start()
        assert sorted(event.id for event in await heard(queue, 5)) == sorted(sent)


def test_pulling() -> None:
    url = migrated(Topic.pub_sub("orders", tracking="bitmap"))
    with Outbox(url) as box, connected(url) as connection:
        written_event = Event("Placed", {}, key="k", topic="orders")
        box.write(connection, written_event)
        before = written_event.id
        connection.commit()
        box.topics.groups.create("orders", "billing", StartFrom.earliest(backfill=False))
        written_event = Event("Placed", {}, key="k", topic="orders")
        box.write(connection, written_event)
        after = written_event.id
        connection.commit()
        with box.topics.consumer("orders", group="billing", name="one") as consumer:
            batch = consumer.poll()
            assert [event.id for event in batch] == [before, after]
            assert [event.topic for event in batch] == ["orders", "orders"]
            consumer.commit(batch)
        assert box.topics.backfill("orders", "billing", Backfill()).outcome == "completed"
        assert box.topics.backfill_progress("orders", "billing").state == "completed"
        assert not box.topics.cancel_backfill("orders", "billing")
        with pytest.raises(NotFound, match="'nobody'"):
            box.topics.backfill("orders", "nobody")
        with pytest.raises(ConfigError, match="not configured"):
            box.topics.backfill("nothing", "billing")


async def test_moving_while_a_group_reads() -> None:
    url = migrated(Topic.pub_sub("orders"))
    async with AsyncOutbox(url) as box:
        queue: asyncio.Queue[Event] = asyncio.Queue()
        group = box.topics.group("g", "orders")
        group.add_consumer("one", queue.put)
        await group.start()

        async def send() -> str:
            async with box.transaction() as tx:
                written_event = Event("Placed", {}, topic="orders")
                await box.write(tx, written_event)
                sent = written_event.id
                assert sent is not None
                return sent

        ids = [await send()]
        assert (await box.topics.advise("orders")).topic == "orders"
        assert (await box.topics.plan_move("orders", "bitmap")).steps
        assert not await box.topics.cancel_move("orders")
        await box.topics.move("orders", "bitmap")
        ids.append(await send())
        await box.topics.move("orders", "offset")
        ids.append(await send())
        assert [event.id for event in await heard(queue, 3)] == ids
        row = await box.topics.get("orders")
        assert row is not None
        assert (row.topic.tracking, row.version) == ("offset", 3)
