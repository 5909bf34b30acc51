"""Push groups on PostgreSQL: members, filters, failures, states, and several groups and topics in one process."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from kit import until
from relaybox import AsyncOutbox, Event, Listeners, Retry, Settings, StartFrom, Topic
from relaybox.errors import BatchFailed, Closed, ConfigError, GroupError, NotFound, Reject
from relaybox.topics.group import AsyncGroup
from relaybox.types import AsyncService, DeliverySettings

from .kit import fresh_url

QUICK = Settings(delivery=DeliverySettings(instance_ttl="1s", lease="3s", retry=Retry(base="5ms", max="20ms")))
EARLIEST = StartFrom.earliest()


class Process:
    """One process's outbox."""

    def __init__(self, url: str, settings: Settings = QUICK) -> None:
        self.url = url
        self.box = AsyncOutbox(url, settings=settings)

    def group(self, name: str = "g", topic: str = "orders", **options: Any) -> AsyncGroup:
        return self.box.topics.group(topic, name, **{"start": EARLIEST, **options})

    def deliver(self, listeners: Any, name: str = "g", topic: str = "orders", **options: Any) -> AsyncService:
        return self.group(name, topic, **options).deliver(listeners)

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
        await made.box.close()


class Seen(list[Any]):
    """A handler that notes payloads."""

    async def note(self, event: Event) -> None:
        self.append(event.payload)

    async def note_all(self, events: Sequence[Event]) -> None:
        self.extend(event.payload for event in events)


def named(**calls: Any) -> Listeners:
    """Members of a group: several listeners of one type."""
    made: Listeners = Listeners()
    for name, call in calls.items():
        made.on("Placed", name=name)(call)
    return made


def in_batches(size: int, call: Any) -> Listeners:
    made: Listeners = Listeners()
    made.on_batch("Placed", size=size)(call)
    return made


# -- members ----------------------------------------------------------------------------------------------------------


async def test_a_group_without_listeners_does_not_start_and_says_what_to_do() -> None:
    async with process() as here:
        with pytest.raises(GroupError, match="no listener is registered"):
            here.deliver(Listeners())
        assert await here.row("SELECT count(*) FROM outbox_event_group") == (0,)


async def test_named_listeners_of_a_type_share_its_events_by_key() -> None:
    async with process() as here:
        seen: defaultdict[str, set[str]] = defaultdict(set)

        def noting(name: str) -> Callable[[Event], Any]:
            async def handle(event: Event) -> None:
                seen[event.key or ""].add(name)

            return handle

        async with here.deliver(named(a=noting("a"), b=noting("b"), c=noting("c"))) as service:
            await here.write(*range(80), key=lambda n: f"k{n % 20}")
            await until(lambda: service.counts.done == 80)
        assert {name for names in seen.values() for name in names} == {"a", "b", "c"}
        assert all(len(names) == 1 for names in seen.values())


async def test_a_group_of_a_topic_that_is_not_configured_names_it() -> None:
    async with process() as here:
        with pytest.raises(NotFound, match="'oders' is not configured; did you mean 'orders'"):
            await here.deliver(Seen().note, topic="oders").start()


async def test_a_plain_function_runs_in_a_thread() -> None:
    async with process() as here:
        names: list[str] = []

        def handle(event: Event) -> None:
            import threading

            names.append(threading.current_thread().name)

        async with here.deliver(handle):
            await here.write(1)
            await until(lambda: names)
        assert names[0].startswith("relaybox-listener")


# -- failures ---------------------------------------------------------------------------------------------------------


async def test_a_failure_is_this_groups_alone_and_keeps_the_order_of_its_key() -> None:
    """Groups have retries, attempts and dead letters of their own."""
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

    async with (
        process() as here,
        here.deliver(handle, retry=replace(QUICK.delivery.retry, attempts=4)) as bad,
        here.deliver(others.note, "fine") as fine,
    ):
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
    async with process() as here, here.deliver(handle, on_exhausted="skip", retry=retry) as service:
        await here.write(7, key=lambda n: "k")
        await until(lambda: len(tries) == 15)
        await service.drain()
        assert await here.row("SELECT count(*) FROM outbox_event_parked") == (0,)


@pytest.mark.parametrize("policy", ["block", "park", None])
async def test_a_key_behind_a_failed_event_waits_and_others_do_not(policy: Any) -> None:
    """It blocks unless something else is said."""
    seen, healed = Seen(), asyncio.Event()

    async def handle(event: Event) -> None:
        if event.payload == 0 and not healed.is_set():
            raise OSError("away")
        seen.append(event.payload)

    async with (
        process() as here,
        here.deliver(handle, on_exhausted=policy, retry=replace(QUICK.delivery.retry, attempts=2)) as group,
    ):
        await here.write(*range(20), key=lambda n: f"k{n % 2}")
        await until(lambda: len(seen) == 10 and group.counts.failed + group.counts.dead > 1)
        assert seen == list(range(1, 20, 2))
        await here.write(20, 21, key=lambda n: f"k{n % 2}")
        await until(lambda: 21 in seen)
        healed.set()
        if policy != "park":
            await until(lambda: len(seen) == 22)
            assert [n for n in seen if n % 2 == 0] == list(range(0, 21, 2))
        else:
            waiting = "SELECT count(*) FROM outbox_event_parked WHERE state = 'held'"
            await _until_row(here, waiting, lambda row: row == (10,))
            assert len(seen) == 11


@pytest.mark.parametrize("topic", [Topic.pub_sub("orders"), Topic.queue("orders")], ids=["log", "rows"])
async def test_a_batch_listener_gets_lists_and_names_the_failed(topic: Topic) -> None:
    sizes, seen, refused = [], Seen(), []

    async def handle(events: Sequence[Event]) -> None:
        sizes.append(len(events))
        bad = [event for event in events if event.payload == 17 and not refused]
        seen.extend(event.payload for event in events if event not in bad)
        if bad:
            refused.append(17)
            raise BatchFailed({event: OSError("not this one") for event in bad})

    async with process(None, topic) as here:
        async with here.deliver(in_batches(25, handle), "g" if topic.semantics == "pub_sub" else "default") as group:
            await here.write(*range(100))
            await until(lambda: len(seen) == 100)
            assert sorted(seen) == list(range(100))
            assert max(sizes) <= 25
            assert len(sizes) < 60
            await until(lambda: group.counts.done == 100)
            assert group.counts.failed == 1


# -- states -----------------------------------------------------------------------------------------------------------


async def test_a_paused_group_takes_nothing_keeps_its_heartbeat_and_its_events() -> None:
    seen = Seen()
    async with process() as here, here.deliver(seen.note) as service:
        await here.group().pause(reason="a look")
        assert service.health().level == "critical"
        assert "is paused" in service.health().reasons[0]
        await here.write(*range(5))
        seen_at = await here.row("SELECT seen_at FROM outbox_event_member")
        await _until_row(here, "SELECT seen_at FROM outbox_event_member", lambda row: row > seen_at)
        assert not seen
        await here.group().resume()
        await until(lambda: sorted(seen) == [0, 1, 2, 3, 4])
        assert service.health().level == "ok"


@pytest.mark.parametrize(
    "topic", [Topic.pub_sub("orders"), Topic.queue("orders", tracking="rows")], ids=["log", "rows"]
)
async def test_nobody_waits_for_a_paused_group_to_be_idle(topic: Topic) -> None:
    seen, at_it, go_on = Seen(), asyncio.Event(), asyncio.Event()

    async def handle(event: Event) -> None:
        if event.payload == 2:
            at_it.set()
            await go_on.wait()
        seen.append(event.payload)

    async with process(None, topic) as here:
        group = here.box.topics.queue("orders") if topic.semantics == "queue" else here.group()
        async with group.deliver(handle) as service, asyncio.timeout(20):
            await group.pause()
            await here.write(1)
            with pytest.raises(GroupError, match=r"in vain: group '\w+' of topic 'orders' is paused.*groups resume"):
                await service.drain()
            await group.resume()
            await until(lambda: seen == [1])
            await service.drain()
            await here.write(2)
            waiting = asyncio.create_task(service.drain())
            await at_it.wait()
            await group.pause()
            with pytest.raises(GroupError, match="is paused"):
                await waiting
            go_on.set()


async def test_pausing_elsewhere_stops_this_member_too() -> None:
    seen = Seen()
    async with (
        process() as here,
        process(here.url) as there,
        here.deliver(seen.note) as service,
        there.deliver(seen.note),
    ):
        await there.group().pause()
        await until(lambda: not service._member.engine._may_claim.is_set())  # type: ignore[attr-defined]
        await here.write(1)
        await here.row("SELECT pg_sleep(0.2)")
        assert not seen
        await here.group().resume()
        await until(lambda: seen == [1])


async def test_a_cancelled_group_stops_everywhere_with_an_error(caplog: pytest.LogCaptureFixture) -> None:
    seen = Seen()
    async with (
        process() as here,
        process(here.url) as there,
        here.deliver(seen.note) as service,
        there.deliver(seen.note) as other,
    ):
        with caplog.at_level(logging.ERROR, "relaybox"):
            await here.group().cancel()
            await until(lambda: "is cancelled" in str(other.health().reasons))
        assert [each.health().level for each in (service, other)] == ["critical", "critical"]
        with pytest.raises(GroupError, match="is cancelled"):
            await service.drain()
        await here.write(1)
        await until(lambda: "cancelled" in caplog.text)
        assert await here.row("SELECT count(*) FROM outbox_event_group WHERE state = 'cancelled'") == (1,)
        assert not seen


async def test_closing_leaves_the_group_subscribed() -> None:
    """A rolling restart must not unsubscribe."""
    async with process() as here:
        seen = Seen()
        async with here.deliver(seen.note) as service:
            await here.write(1)
            await until(lambda: seen == [1])
        await service.stop()
        with pytest.raises(Closed):
            await service.start()
        assert await here.row("SELECT state FROM outbox_event_group") == ("active",)
        assert await here.row("SELECT count(*) FROM outbox_event_member") == (0,)
        await here.write(2)
        async with here.deliver(seen.note):
            await until(lambda: seen == [1, 2])


async def test_a_stop_amid_work_delivers_nothing_twice() -> None:
    async with process() as here:
        seen: list[int] = []

        async def slow(event: Event) -> None:
            await asyncio.sleep(0.001)
            seen.append(event.payload)

        await here.write(*range(400), key=lambda n: f"k{n % 30}")
        for _ in range(4):
            async with here.deliver(slow):
                before = len(seen)
                await until(lambda before=before: len(seen) > min(before + 60, 399))
        await here.deliver(slow).once()
        assert sorted(seen) == list(range(400))


async def test_a_stalled_group_is_not_delivered_until_it_is_resumed() -> None:
    async with process() as here:
        await here.group().create()
        context = here.box.topics._context
        row = await context.db.run(context.store.group("orders", "g"), tx=False)
        assert row is not None
        await context.db.run(context.store.apply(row, "stall", "restarts without progress", None))
        await here.write(1)
        seen = Seen()
        with pytest.raises(GroupError, match=r"is stalled .*restarts without progress.*groups resume orders g"):
            await here.deliver(seen.note).start()
        assert not seen
        assert (await here.group().info()).stalled
        await here.group().resume(reason="mended")
        assert (await here.group().info()).state == "active"
        await here.deliver(seen.note).once()
        assert seen == [1]


# -- queues -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tracking", ["offset", "rows"])
async def test_processes_of_a_queue_compete(tracking: Any) -> None:
    queue = Topic.queue("orders", tracking=tracking)
    async with process(None, queue) as here, process(here.url, queue) as there:
        await here.write(*range(50))
        first, second = Seen(), Seen()
        async with (
            here.box.topics.queue("orders").deliver(first.note) as service,
            there.box.topics.queue("orders").deliver(second.note) as other,
        ):
            await here.write(*range(50, 300))
            await until(lambda: len(first) + len(second) >= 300)
            await service.drain()
            await other.drain()
        assert sorted([*first, *second]) == list(range(300))


async def test_a_queue_has_one_group() -> None:
    async with process(None, Topic.queue("orders", tracking="offset")) as here:
        with pytest.raises(ConfigError, match="its one group is 'default'"):
            await here.deliver(Seen().note, "mine").start()


# -- company ----------------------------------------------------------------------------------------------------------


async def test_groups_at_the_same_place_share_one_read() -> None:
    async with process() as here:
        await here.write(*range(500))
        seen = [Seen() for _ in range(5)]
        events: list[dict[str, Event]] = [{} for _ in seen]
        services = []
        reads = here.box.topics._context.reads
        asked: list[bool] = []
        get = reads.get

        def counting(*place: Any) -> Any:
            found = get(*place)
            asked.append(found is not None)
            return found

        reads.get = counting  # type: ignore[method-assign]
        for n, (notes, kept) in enumerate(zip(seen, events, strict=True)):

            async def handle(batch: Sequence[Event], *, notes: Seen = notes, kept: dict[str, Event] = kept) -> None:
                await notes.note_all(batch)
                kept |= {event.id: event for event in batch}

            await here.group(f"g{n}").create()
            services.append(here.deliver(in_batches(100, handle), f"g{n}"))
        context = here.box.topics._context
        topic = await context.db.run(context.known("orders"), tx=False)
        async with reads._turns[topic.id].lock:  # nobody claims before all are there
            await asyncio.gather(*(service.start() for service in services))
        await until(lambda: all(len(notes) == 500 for notes in seen))
        for service in services:
            await service.stop()
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

        async with here.deliver(slow), here.deliver(seen.note, topic="quiet"):
            await until(lambda: loud)
            for n in range(5):
                await here.write(n, topic="quiet")
                await until(lambda n=n: n in seen)
            assert len(loud) < len(backlog)


async def _until_row(here: Process, text: str, condition: Callable[[tuple[Any, ...]], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition(await here.row(text)):
            await asyncio.sleep(0.02)
