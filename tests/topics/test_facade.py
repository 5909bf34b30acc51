"""The public path, from configure to delivery, through `outbox.topics` alone."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from relaybox import AsyncOutbox, ConfigError, Event, Outbox, StartFrom, Topic
from relaybox.errors import Closed, InUse, NotFound, StoreBusy
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
            await box.topics.group("orders", name, start=StartFrom.latest()).deliver(queue.put).start()
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
        await box.topics.group("orders", "mailer").deliver(print).start()


@pytest.mark.parametrize("tracking", ["rows", "offset"])
async def test_a_queue_from_end_to_end(tracking: str) -> None:
    url = migrated(Topic(name="jobs", tracking=tracking))  # type: ignore[arg-type]
    async with AsyncOutbox(url) as box:
        queue: asyncio.Queue[Event] = asyncio.Queue()
        async with box.transaction() as tx:
            written_events = [Event("Do", {"n": n}, topic="jobs") for n in range(5)]
            await box.write_all(tx, written_events)
            sent = [written.id for written in written_events]
        async with box.topics.queue("jobs").deliver(queue.put):
            assert sorted(event.id for event in await heard(queue, 5)) == sorted(sent)


def test_pulling() -> None:
    url = migrated(Topic.pub_sub("orders", tracking="bitmap"))
    with Outbox(url) as box, connected(url) as connection:
        written_event = Event("Placed", {}, key="k", topic="orders")
        box.write(connection, written_event)
        before = written_event.id
        connection.commit()
        billing = box.topics.group("orders", "billing", start=StartFrom.earliest(backfill=False))
        billing.create()
        written_event = Event("Placed", {}, key="k", topic="orders")
        box.write(connection, written_event)
        after = written_event.id
        connection.commit()
        with billing.consumer("one") as consumer:
            batch = consumer.poll()
            assert [event.id for event in batch] == [before, after]
            assert [event.topic for event in batch] == ["orders", "orders"]
            consumer.commit(batch)
        assert billing.backfill(pace="fast").what == "backfill completed"
        assert billing.info().backfill == billing.backfill()
        assert not billing.cancel_backfill()
        with pytest.raises(ConfigError, match="gentle, normal or fast"):
            billing.backfill(pace="hasty")  # type: ignore[arg-type]
        with pytest.raises(NotFound, match="'nobody'"):
            box.topics.group("orders", "nobody").backfill()
        with pytest.raises(NotFound, match="not configured"):
            box.topics.group("nothing", "billing").backfill()


async def test_moving_while_a_group_reads() -> None:
    url = migrated(Topic.pub_sub("orders"))
    async with AsyncOutbox(url) as box:
        queue: asyncio.Queue[Event] = asyncio.Queue()
        await box.topics.group("orders", "g").deliver(queue.put).start()

        async def send() -> str:
            async with box.transaction() as tx:
                written_event = Event("Placed", {}, topic="orders")
                await box.write(tx, written_event)
                sent = written_event.id
                assert sent is not None
                return sent

        ids = [await send()]
        assert (await box.topics.advise("orders")).topic == "orders"
        assert (await box.topics.move("orders", tracking="bitmap", dry_run=True)).steps
        assert not await box.topics.cancel_move("orders")
        await box.topics.move("orders", tracking="bitmap")
        ids.append(await send())
        await box.topics.move("orders", tracking="offset")
        ids.append(await send())
        assert [event.id for event in await heard(queue, 3)] == ids
        row = await box.topics.get("orders")
        assert row is not None
        assert (row.topic.tracking, row.version) == ("offset", 3)


async def test_from_a_queue_to_pub_sub_and_back_while_it_is_read() -> None:
    url = migrated(Topic.queue("jobs"))
    async with AsyncOutbox(url) as box:
        written: list[str] = []

        async def send(count: int) -> None:
            events = [Event("Do", n, key=str(n), topic="jobs") for n in range(count)]
            for last in (False, True):  # the table that it knew is gone: the transaction is repeated once
                try:
                    async with box.transaction() as tx:
                        await box.write_all(tx, events)
                    break
                except StoreBusy:
                    assert not last
            written.extend(event.id for event in events)

        await send(5)
        plan = await box.topics.move("jobs", semantics="pub_sub", dry_run=True)
        assert (plan.semantics, plan.tracking, plan.to) == ("pub_sub", "rows", "offset")
        assert any("call it pub_sub" in step for step in plan.steps)
        await box.topics.move("jobs", semantics="pub_sub")
        made = await box.topics.get("jobs")
        assert made is not None
        assert (made.topic.semantics, made.topic.tracking) == ("pub_sub", "offset")
        await box.topics.group("jobs", "second", start=StartFrom.earliest()).create()
        await send(5)
        queue: asyncio.Queue[Event] = asyncio.Queue()
        await box.topics.group("jobs", "default").deliver(queue.put).start()
        assert sorted(event.id for event in await heard(queue, 10)) == sorted(written)
        assert (await box.topics.group("jobs", "second").lag()).events == 10, "it came before the second half"
        with pytest.raises(InUse, match="second"):
            await box.topics.move("jobs", semantics="queue")
        await box.topics.group("jobs", "second").cancel()
        await box.topics.move("jobs", semantics="queue")
        await send(1)
        assert [event.id for event in await heard(queue, 1)] == written[-1:]
