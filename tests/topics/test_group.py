"""Push groups on PostgreSQL: members, filters, failures, states, and several groups and topics in one process."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest

from relaybox import AsyncOutbox, Event, Retry, Settings
from relaybox.errors import BatchFailed, Closed, ConfigError, GroupError, Reject
from relaybox.topic import Topic
from relaybox.topics.group import Group
from relaybox.topics.start import StartFrom
from relaybox.types import DeliverySettings

from .kit import fresh_url
from .liveness_kit import until

QUICK = Settings(delivery=DeliverySettings(instance_ttl="1s", lease="3s", retry=Retry(base="5ms", max="20ms")))
EARLIEST = StartFrom.earliest()


class Process:
    """One process's outbox."""

    def __init__(self, url: str, settings: Settings = QUICK) -> None:
        self.url = url
        self.box = AsyncOutbox(url, settings=settings)

    def group(self, name: str = "g", topic: str = "orders", **options: Any) -> Group:
        return self.box.topics.group(name, topic, **options)

    async def write(self, *payloads: Any, key: str | Callable[[Any], str] | None = None, topic: str = "orders") -> None:
        async with self.box.transaction() as tx:
            for payload in payloads:
                named = key(payload) if callable(key) else key
                await self.box.write(tx, Event("Placed", payload, key=named, topic=topic))

    async def row(self, text: str) -> tuple[Any, ...]:
        import psycopg

        async with await psycopg.AsyncConnection.connect(self.url, autocommit=True) as look:
            found = await (await look.execute(text)).fetchone()
            assert found is not None
            return found


@asynccontextmanager
async def process(url: str | None = None, *topics: Topic, settings: Settings = QUICK) -> AsyncIterator[Process]:
    made = Process(url or fresh_url(), settings)
    try:
        await made.box.migrate()
        for topic in topics or (Topic.pub_sub("orders"),):
            await made.box.topics.configure(topic)
        yield made
    finally:
        await made.box.topics._home.close()
        await made.box.close()


class Seen(list[Any]):
    """A handler that notes payloads."""

    async def note(self, event: Event) -> None:
        self.append(event.payload)

    async def note_all(self, events: list[Event]) -> None:
        self.extend(event.payload for event in events)


# -- members ----------------------------------------------------------------------------------------------------------


async def test_a_group_without_members_does_not_start_and_says_what_to_do() -> None:
    async with process() as here:
        with pytest.raises(GroupError, match=r"add_consumer\(id, handler\) before start"):
            await here.group().start()
        assert await here.row("SELECT count(*) FROM outbox_event_group") == (0,)


async def test_an_id_twice_is_refused_and_so_is_removing_the_last_of_a_started_group() -> None:
    async with process() as here, here.group() as group:
        group.add_consumer("a", Seen().note)
        with pytest.raises(GroupError, match="'a' already"):
            group.add_consumer("a", Seen().note)
        group.add_consumer("b", Seen().note)
        await group.start()
        group.remove_consumer("b")
        with pytest.raises(GroupError, match="last consumer"):
            group.remove_consumer("a")
        with pytest.raises(GroupError, match="no consumer 'b'"):
            group.remove_consumer("b")
        assert group.consumers == ["a"]
        with pytest.raises(GroupError, match="started already"):
            await group.start()


async def test_a_member_that_is_added_later_works_at_once_and_keys_stay_together() -> None:
    async with process() as here, here.group() as group:
        first: defaultdict[str, set[str]] = defaultdict(set)

        def noting(name: str) -> Callable[[Event], Any]:
            async def handle(event: Event) -> None:
                first[event.key or ""].add(name)

            return handle

        group.add_consumer("b", noting("b"))
        await group.start(EARLIEST)
        await here.write(*range(40), key=lambda n: f"k{n % 20}")
        await until(lambda: group.counts.done == 40)
        assert {name for names in first.values() for name in names} == {"b"}
        group.add_consumer("a", noting("a"))
        group.add_consumer("c", noting("c"))
        first.clear()
        await here.write(*range(40), key=lambda n: f"k{n % 20}")
        await until(lambda: group.counts.done == 80)
        assert {name for names in first.values() for name in names} == {"a", "b", "c"}
        assert all(len(names) == 1 for names in first.values())


async def test_a_start_that_fails_can_be_repeated() -> None:
    async with process() as here, here.group(topic="later") as group:
        seen = Seen()
        group.add_consumer("a", seen.note)
        with pytest.raises(ConfigError, match="not configured"):
            await group.start()
        assert not group.running
        await here.box.topics.configure(Topic.pub_sub("later"))
        await group.start(EARLIEST)
        await here.write(1, topic="later")
        await until(lambda: seen == [1])


async def test_a_plain_function_runs_in_a_thread() -> None:
    async with process() as here, here.group() as group:
        names: list[str] = []

        def handle(event: Event) -> None:
            import threading

            names.append(threading.current_thread().name)

        group.add_consumer("a", handle)
        await group.start(EARLIEST)
        await here.write(1)
        await until(lambda: names)
        assert names[0].startswith("relaybox-listener")


# -- filters ----------------------------------------------------------------------------------------------------------


async def test_what_nobody_wants_is_done_and_counted() -> None:
    async with process() as here, here.group(filter=lambda event: event.payload < 50) as group:
        low, even = Seen(), Seen()
        group.add_consumer("low", low.note, lambda event: event.payload < 10)
        group.add_consumer("even", even.note, lambda event: event.payload % 2 == 0)
        await group.start(EARLIEST)
        await here.write(*range(100))
        await until(lambda: group.counts.done == 100)
        assert sorted({*low, *even}) == sorted({*range(10), *range(0, 50, 2)})
        assert len(low) + len(even) == 30
        assert group.counts.ignored == 70
        assert group.counts.failed == 0


async def test_a_filter_that_raises_is_a_failure() -> None:
    async with process() as here, here.group() as group:
        seen, raised = Seen(), []

        def wanted(event: Event) -> bool:
            if event.payload == 3 and len(raised) < 2:
                raised.append(1)
                raise ZeroDivisionError
            return True

        group.add_consumer("a", seen.note, wanted)
        await group.start(EARLIEST)
        await here.write(*range(5))
        await until(lambda: group.counts.done == 5)
        assert sorted(seen) == [0, 1, 2, 3, 4]
        assert group.counts.failed == 2
        assert group.counts.ignored == 0


# -- payloads ---------------------------------------------------------------------------------------------------------


@dataclass
class Order:
    id: int


async def test_handlers_of_a_typed_group_get_the_payload_and_the_event_if_they_ask() -> None:
    async with process() as here, here.group(payload_type=Order) as group, here.group("h", payload_type=Order) as both:
        orders: list[Any] = []
        pairs: list[Any] = []

        async def handle(order: Order) -> None:
            orders.append(order)

        async def handle_both(order: Order, event: Event) -> None:
            pairs.append((order, event.key))

        group.add_consumer("a", handle)
        both.add_consumer("a", handle_both)
        await group.start(EARLIEST)
        await both.start(EARLIEST)
        await here.write({"id": 7}, key="k")
        await here.write({"no": "order"})
        await until(lambda: orders and pairs and group.counts.dead and both.counts.dead)
        assert orders == [Order(7)]
        assert pairs == [(Order(7), "k")]
        assert await here.row("SELECT count(*) FROM outbox_event_parked WHERE state = 'dead'") == (2,)


async def test_a_typed_batch_leaves_out_what_cannot_be_read() -> None:
    async with process() as here, here.group(payload_type={"Placed": Order}, batch=10) as group:
        got: list[Order] = []

        async def handle(orders: list[Order]) -> None:
            got.extend(orders)

        group.add_consumer("a", handle)
        await group.start(EARLIEST)
        await here.write({"id": 1}, {"id": "x"}, {"id": 3})
        await until(lambda: len(got) == 2 and group.counts.dead == 1)
        assert sorted(order.id for order in got) == [1, 3]


# -- failures ---------------------------------------------------------------------------------------------------------


async def test_a_failure_is_this_groups_alone_and_keeps_the_order_of_its_key() -> None:
    """Groups have retries, attempts and dead letters of their own."""
    async with (
        process() as here,
        here.group(retry=replace(QUICK.delivery.retry, attempts=4)) as bad,
        here.group("fine") as fine,
    ):
        seen: defaultdict[str | None, list[int]] = defaultdict(list)
        others, tries = Seen(), []

        async def handle(event: Event) -> None:
            if event.payload == 4:
                tries.append(event.payload)
                if len(tries) < 3:
                    raise OSError("away")
            if event.payload == 9:
                raise Reject("never")
            seen[event.key].append(event.payload)

        bad.add_consumer("a", handle)
        fine.add_consumer("a", others.note)
        await bad.start(EARLIEST)
        await fine.start(EARLIEST)
        await here.write(*range(30), key=lambda n: f"k{n % 2}")
        await until(lambda: sum(map(len, seen.values())) == 29 and len(others) == 30)
        assert seen["k0"] == list(range(0, 30, 2))
        assert seen["k1"] == [n for n in range(1, 30, 2) if n != 9]
        assert len(tries) == 3
        assert fine.counts.failed == 0
        await until(lambda: bad.counts.failed + bad.counts.dead == 3)
        assert await here.row("SELECT state, attempts FROM outbox_event_parked") == ("dead", 1)


async def test_without_a_limit_of_attempts_nothing_dies_of_them() -> None:
    tries: list[int] = []

    async def handle(event: Event) -> None:
        tries.append(event.payload)
        if len(tries) < 15:
            raise OSError("away")

    retry = Retry(attempts=None, base="1ms", max="1ms")
    async with process() as here, here.group(on_exhausted="skip", retry=retry) as group:
        group.add_consumer("a", handle)
        await group.start(EARLIEST)
        await here.write(7, key=lambda n: "k")
        await until(lambda: len(tries) == 15)
        await group.until_idle()
        assert await here.row("SELECT count(*) FROM outbox_event_parked") == (0,)


@pytest.mark.parametrize("policy", ["block", "park"])
async def test_a_key_behind_a_failed_event_waits_and_others_do_not(policy: Any) -> None:
    async with (
        process() as here,
        here.group(on_exhausted=policy, retry=replace(QUICK.delivery.retry, attempts=2)) as group,
    ):
        seen, healed = Seen(), asyncio.Event()

        async def handle(event: Event) -> None:
            if event.payload == 0 and not healed.is_set():
                raise OSError("away")
            seen.append(event.payload)

        group.add_consumer("a", handle)
        await group.start(EARLIEST)
        await here.write(*range(20), key=lambda n: f"k{n % 2}")
        await until(lambda: len(seen) == 10 and group.counts.failed + group.counts.dead > 1)
        assert seen == list(range(1, 20, 2))
        await here.write(20, 21, key=lambda n: f"k{n % 2}")
        await until(lambda: 21 in seen)
        healed.set()
        if policy == "block":
            await until(lambda: len(seen) == 22)
            assert [n for n in seen if n % 2 == 0] == list(range(0, 21, 2))
        else:
            waiting = "SELECT count(*) FROM outbox_event_parked WHERE state = 'held'"
            await _until_row(here, waiting, lambda row: row == (10,))
            assert len(seen) == 11


async def test_a_batch_handler_gets_lists_and_names_the_failed() -> None:
    async with process() as here, here.group(batch=25) as group:
        sizes, seen, refused = [], Seen(), []

        async def handle(events: list[Event]) -> None:
            sizes.append(len(events))
            bad = [event for event in events if event.payload == 17 and not refused]
            seen.extend(event.payload for event in events if event not in bad)
            if bad:
                refused.append(17)
                raise BatchFailed({event: OSError("not this one") for event in bad})

        group.add_consumer("a", handle)
        await group.start(EARLIEST)
        await here.write(*range(100))
        await until(lambda: len(seen) == 100)
        assert sorted(seen) == list(range(100))
        assert max(sizes) <= 25
        assert len(sizes) < 60
        await until(lambda: group.counts.done == 100)
        assert group.counts.failed == 1


# -- states -----------------------------------------------------------------------------------------------------------


async def test_a_paused_group_takes_nothing_keeps_its_heartbeat_and_its_events() -> None:
    async with process() as here, here.group() as group:
        seen = Seen()
        group.add_consumer("a", seen.note)
        await group.start(EARLIEST)
        await group.pause()
        await here.write(*range(5))
        seen_at = await here.row("SELECT seen_at FROM outbox_event_member")
        await _until_row(here, "SELECT seen_at FROM outbox_event_member", lambda row: row > seen_at)
        assert not seen
        await group.resume()
        await until(lambda: sorted(seen) == [0, 1, 2, 3, 4])


@pytest.mark.parametrize(
    "topic", [Topic.pub_sub("orders"), Topic.queue("orders", tracking="rows")], ids=["log", "rows"]
)
async def test_nobody_waits_for_a_paused_group_to_be_idle(topic: Topic) -> None:
    async with process(None, topic) as here:
        queue = topic.semantics == "queue"
        async with here.box.topics.queue("orders") if queue else here.group() as group, asyncio.timeout(20):
            seen = Seen()
            group.add_consumer("a", seen.note)
            await group.start(EARLIEST)
            await group.pause()
            await here.write(1)
            with pytest.raises(GroupError, match=r"in vain: group '\w+' of topic 'orders' is paused.*groups resume"):
                await group.until_idle()
            await group.resume()
            await until(lambda: seen == [1])
            await group.until_idle()
            at_it, go_on = asyncio.Event(), asyncio.Event()

            async def slow(event: Event) -> None:
                at_it.set()
                await go_on.wait()

            group.add_consumer("b", slow)
            group.remove_consumer("a")
            await here.write(2)
            waiting = asyncio.create_task(group.until_idle())
            await at_it.wait()
            await here.box.topics.groups.pause("orders", group.name)
            with pytest.raises(GroupError, match="is paused"):
                await waiting
            go_on.set()


async def test_pausing_elsewhere_stops_this_member_too() -> None:
    async with process() as here, process(here.url) as there, here.group() as group, there.group() as other:
        seen = Seen()
        group.add_consumer("a", seen.note)
        other.add_consumer("b", seen.note)
        await group.start(EARLIEST)
        await other.start(EARLIEST)
        await other.pause()
        await until(lambda: not group._delivering.engine._may_claim.is_set())  # type: ignore[union-attr]
        await here.write(1)
        await here.row("SELECT pg_sleep(0.2)")
        assert not seen
        await group.resume()
        await until(lambda: seen == [1])


async def test_a_cancelled_group_stops_everywhere_with_an_error(caplog: pytest.LogCaptureFixture) -> None:
    async with process() as here, process(here.url) as there, here.group() as group, there.group() as other:
        for each in (group, other):
            each.add_consumer("a", Seen().note)
            await each.start(EARLIEST)
        with caplog.at_level(logging.ERROR, "relaybox"):
            await group.cancel()
            await until(lambda: not other.running)
        assert not group.running
        assert "cancelled" in caplog.text
        assert await here.row("SELECT count(*) FROM outbox_event_group WHERE state = 'cancelled'") == (1,)


async def test_closing_leaves_the_group_subscribed() -> None:
    """A rolling restart must not unsubscribe."""
    async with process() as here:
        seen = Seen()
        async with here.group() as group:
            group.add_consumer("a", seen.note)
            await group.start()
            await here.write(1)
            await until(lambda: seen == [1])
        await group.close()
        with pytest.raises(Closed):
            await group.start()
        assert await here.row("SELECT state FROM outbox_event_group") == ("active",)
        assert await here.row("SELECT count(*) FROM outbox_event_member") == (0,)
        await here.write(2)
        async with here.group() as again:
            again.add_consumer("a", seen.note)
            await again.start()
            await until(lambda: seen == [1, 2])


async def test_a_stop_amid_work_delivers_nothing_twice() -> None:
    async with process() as here:
        seen: list[int] = []

        async def slow(event: Event) -> None:
            await asyncio.sleep(0.001)
            seen.append(event.payload)

        await here.write(*range(400), key=lambda n: f"k{n % 30}")
        for _ in range(4):
            async with here.group() as group:
                group.add_consumer("a", slow)
                await group.start(EARLIEST)
                before = len(seen)
                await until(lambda before=before: len(seen) > min(before + 60, 399))
        async with here.group() as group:
            group.add_consumer("a", slow)
            await group.start()
            await until(lambda: len(seen) >= 400)
            await group.until_idle()
        assert sorted(seen) == list(range(400))


# -- queues -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tracking", ["offset", "rows"])
async def test_consumers_of_a_queue_compete(tracking: Any) -> None:
    queue = Topic.queue("orders", tracking=tracking)
    async with process(None, queue) as here, process(here.url, queue) as there:
        await here.write(*range(50))
        first, second = Seen(), Seen()
        async with here.group("default") as group, there.group("default") as other:
            group.add_consumer("a", first.note)
            other.add_consumer("a", second.note)
            await group.start()
            await other.start()
            await here.write(*range(50, 300))
            await until(lambda: len(first) + len(second) >= 300)
            await group.until_idle()
            await other.until_idle()
        assert sorted([*first, *second]) == list(range(300))


async def test_a_queue_has_one_group() -> None:
    async with process(None, Topic.queue("orders", tracking="offset")) as here, here.group("mine") as group:
        group.add_consumer("a", Seen().note)
        with pytest.raises(ConfigError, match="its one group is 'default'"):
            await group.start()


# -- company ----------------------------------------------------------------------------------------------------------


async def test_groups_at_the_same_place_share_one_read() -> None:
    async with process() as here:
        await here.write(*range(500))
        groups = [here.group(f"g{n}", batch=100) for n in range(5)]
        seen = [Seen() for _ in groups]
        events: list[dict[str, Event]] = [{} for _ in groups]
        reads = here.box.topics._home.reads
        asked: list[bool] = []
        get = reads.get

        def counting(*place: Any) -> Any:
            found = get(*place)
            asked.append(found is not None)
            return found

        reads.get = counting  # type: ignore[method-assign]
        for group, notes, kept in zip(groups, seen, events, strict=True):

            async def handle(batch: list[Event], notes: Seen = notes, kept: dict[str, Event] = kept) -> None:
                await notes.note_all(batch)
                kept |= {event.id: event for event in batch}

            group.add_consumer("a", handle)
        home = here.box.topics._home
        topic = await home.db.run(home.known("orders"), tx=False)
        for group in groups:
            await home.db.run(home.store.subscribe(topic, group.name, EARLIEST.start, None, None))
        async with reads._turns[topic.id].lock:  # nobody claims before all are there
            await asyncio.gather(*(group.start() for group in groups))
        await until(lambda: all(len(notes) == 500 for notes in seen))
        for group in groups:
            await group.close()
        assert sum(asked) >= len(asked) // 2
        shared = [event for id, event in events[0].items() if all(other[id] is event for other in events[1:])]
        assert len(shared) > 250
        assert reads.weight == 0


async def test_a_busy_topic_does_not_starve_another_on_the_same_pool() -> None:
    async with process(None, Topic.pub_sub("orders"), Topic.pub_sub("quiet")) as here:
        backlog = [Event("Placed", n, topic="orders") for n in range(5000)]
        async with here.box.transaction() as tx:
            await here.box.write_all(tx, backlog)
        loud, seen = Seen(), Seen()

        async def slow(event: Event) -> None:
            await asyncio.sleep(0.005)
            loud.append(event.payload)

        async with here.group() as busy, here.group(topic="quiet") as quiet:
            busy.add_consumer("a", slow)
            quiet.add_consumer("a", seen.note)
            await busy.start(EARLIEST)
            await quiet.start(EARLIEST)
            await until(lambda: loud)
            for n in range(5):
                await here.write(n, topic="quiet")
                await until(lambda n=n: n in seen)
            assert len(loud) < len(backlog)


async def _until_row(here: Process, text: str, condition: Callable[[tuple[Any, ...]], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition(await here.row(text)):
            await asyncio.sleep(0.02)
