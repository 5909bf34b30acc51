"""What listeners of a group may ask for, and groups in synchronous programs."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from kit import until
from relaybox import Delivery, Event, Listeners, Outbox, Retry, Topic
from relaybox.clock import SYSTEM_CLOCK
from relaybox.errors import Closed
from relaybox.types import Health

from .kit import fresh_url
from .test_group import EARLIEST, QUICK, Seen, process

# -- filters ----------------------------------------------------------------------------------------------------------


async def test_what_nobody_wants_is_done_and_counted() -> None:
    low, even = Seen(), Seen()
    listeners: Listeners = Listeners(where=lambda event: event.payload < 50)
    listeners.on("Placed", name="low", where=lambda event: event.payload < 10)(low.note)
    listeners.on("Placed", name="even", where=lambda event: event.payload % 2 == 0)(even.note)
    async with process() as here, here.deliver(listeners) as service:
        await here.write(*range(100))
        await until(lambda: service.counts.done == 100)
        assert sorted({*low, *even}) == sorted({*range(10), *range(0, 50, 2)})
        assert len(low) + len(even) == 30
        assert (service.counts.ignored, service.counts.failed) == (70, 0)


async def test_a_filter_that_raises_is_a_failure() -> None:
    seen, raised = Seen(), []

    def wanted(event: Event) -> bool:
        if event.payload == 3 and len(raised) < 2:
            raised.append(1)
            raise ZeroDivisionError
        return True

    listeners: Listeners = Listeners()
    listeners.on("Placed", where=wanted)(seen.note)
    async with process() as here, here.deliver(listeners) as service:
        await here.write(*range(5))
        await until(lambda: service.counts.done == 5)
        assert sorted(seen) == [0, 1, 2, 3, 4]
        assert (service.counts.failed, service.counts.ignored) == (2, 0)


@pytest.mark.parametrize("tracking", ["offset", "rows"])
async def test_what_no_listener_is_for_is_ignored_by_a_group_and_dead_in_a_queue(tracking: Any) -> None:
    listeners: Listeners = Listeners()
    listeners.on("Shipped")(Seen().note)
    if tracking == "offset":
        async with process() as here, here.deliver(listeners) as service:
            await here.write(1, 2)
            await until(lambda: service.counts.ignored == 2)
            assert service.counts.dead == 0
    async with process(None, Topic.queue("orders", tracking=tracking)) as here:
        async with here.box.topics.queue("orders").deliver(listeners) as service:
            await here.write(1, 2)
            await until(lambda: service.counts.dead == 2)
            assert service.counts.ignored == 0


# -- payloads ---------------------------------------------------------------------------------------------------------


@dataclass
class Order:
    id: int


async def test_listeners_get_the_model_and_the_delivery_if_they_ask() -> None:
    orders: list[Any] = []
    pairs: list[Any] = []
    one: Listeners = Listeners()
    both: Listeners = Listeners()

    @one.on("Placed", model=Order)
    async def handle(event: Event[Order]) -> None:
        orders.append(event.payload)

    @both.on("Placed", model=Order)
    async def handle_both(event: Event[Order], delivery: Delivery) -> None:
        pairs.append((event.payload, event.key, delivery.attempts))

    async with process() as here, here.deliver(one) as first, here.deliver(both, "h") as second:
        await here.write({"id": 7}, key="k")
        await here.write({"no": "order"})
        await until(lambda: orders and pairs and first.counts.dead and second.counts.dead)
        assert orders == [Order(7)]
        assert pairs == [(Order(7), "k", 1)]
        assert await here.row("SELECT count(*) FROM outbox_event_parked WHERE state = 'dead'") == (2,)


@pytest.mark.parametrize("topic", [Topic.pub_sub("orders"), Topic.queue("orders")], ids=["log", "rows"])
async def test_what_a_listener_asks_for_goes_before_what_the_group_has(topic: Topic) -> None:
    """Its retry and its timeout; also more attempts than the group has."""
    tries: list[str] = []
    listeners: Listeners = Listeners()

    @listeners.on("Placed", retry=Retry(attempts=4, base="1ms", max="1ms"), timeout="20ms")
    async def slow(event: Event) -> None:
        tries.append("Placed")
        await asyncio.sleep(10)

    async with process(None, topic) as here:
        name = "g" if topic.semantics == "pub_sub" else "default"
        retry = Retry(attempts=2, base="1ms", max="1ms")
        async with here.deliver(listeners, name, on_exhausted="skip", retry=retry) as service:
            await here.write(1)
            await until(lambda: service.counts.dead == 1)
        assert len(tries) == 4


# -- synchronous programs ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("topic", [Topic.pub_sub("orders"), Topic.queue("orders")], ids=["log", "rows"])
def test_a_synchronous_program_delivers_polls_and_operates(topic: Topic) -> None:
    with Outbox(fresh_url(), settings=QUICK) as box:
        box.migrate()
        box.topics.configure(topic)
        queue = topic.semantics == "queue"
        group = box.topics.queue("orders") if queue else box.topics.group("orders", "g", start=EARLIEST)

        def write(*numbers: int) -> None:
            with box.transaction() as tx:
                box.write_all(tx, [Event("Placed", n, key=str(n), topic="orders") for n in numbers])

        write(*range(20))
        seen: list[int] = []
        listeners: Listeners = Listeners()

        @listeners.on("Placed")
        def note(event: Event) -> None:
            seen.append(event.payload)

        with group.deliver(listeners) as service:
            service.drain(timeout=20)
            assert service.health().level == "ok"
            assert group.health() == Health()
            assert sorted(seen) == list(range(20))
            assert service.counts.done == 20
            group.pause(reason="a look")
            write(20)
            deadline = SYSTEM_CLOCK.monotonic() + 20
            while service.health().level != "critical":
                assert SYSTEM_CLOCK.monotonic() < deadline
            group.resume()
            while 20 not in seen:
                assert SYSTEM_CLOCK.monotonic() < deadline
        write(21)
        with group.consumer() as consumer, consumer.poll(wait=5) as batch:
            assert [event.payload for event in batch] == [21]
        assert group.info().processed == 22
        with group.deliver(listeners), box.topics.group("orders", group.name).deliver(listeners):
            write(22)
        box.close()
        with pytest.raises(Closed):
            group.deliver(listeners).start()
