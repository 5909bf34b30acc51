"""Pull consumers together: order per key, moving and looking at their group, and many at once."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kit import rows, until
from relaybox import ALL, AsyncOutbox, Event, Outbox, StartFrom, Topic
from relaybox.clock import SystemClock
from relaybox.drivers import open_async, open_sync
from relaybox.errors import (
    ConnectionLost,
    LeaseLost,
)
from relaybox.facts import Administered, Alert
from relaybox.topics.topics import AsyncTopics, Topics
from relaybox.types import Health

from .kit import World, fresh_url, happened
from .liveness_kit import async_group_at, context, group_at
from .pull_kit import SILENCE, Pulled, beat, drained, seqs


@pytest.fixture
def world() -> Iterator[World]:
    with World() as made:
        yield made


@pytest.fixture
def pulled() -> Iterator[Pulled]:
    made = Pulled()
    yield made
    made.world.db.close()


# -- order ---------------------------------------------------------------------------------------------


def test_a_key_waits_behind_its_failed_event(pulled: Pulled) -> None:
    pulled.group()
    pulled.world.write(*(happened(n, f"k{n % 2}") for n in range(8)))
    consumer = pulled.consumer()
    seen: dict[str | None, list[int]] = defaultdict(list)
    failed = False
    for _ in range(40):
        batch = consumer.poll(1)
        for event in batch:
            n = event.payload["n"]
            if n == 2 and not failed:
                failed = True
                consumer.commit(batch, failed={event: "not yet"})
                break
            seen[event.key].append(n)
            consumer.commit(batch)
        else:
            pulled.later(1)
    assert failed
    assert dict(seen) == {"k0": [0, 2, 4, 6], "k1": [1, 3, 5, 7]}


def test_a_key_that_waits_in_a_batch_waits_to_its_end(pulled: Pulled, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another consumer finishes the parked event while this one collects: what is held already is not overtaken."""
    pulled.group()
    pulled.world.write(*(happened(n, "k") for n in range(4)))
    first, second = pulled.consumer("first"), pulled.consumer("second")
    batch = first.poll(1)
    first.commit(batch, failed={batch[0]: "not yet"})
    pulled.later(1)
    retried = second.poll(1)
    assert [event.payload["n"] for event in retried] == [0]
    claim, claims = pulled.world.store.claim, 0

    def while_collecting(*args: Any, **options: Any) -> Any:
        nonlocal claims
        claims += 1
        if claims == 2:
            second.commit(retried)
        return (yield from claim(*args, **{**options, "events": 1}))

    monkeypatch.setattr(pulled.world.store, "claim", while_collecting)
    batch = first.poll(10)
    seen = [event.payload["n"] for event in batch]
    first.commit(batch)
    assert claims > 2
    monkeypatch.undo()
    while len(seen) < 3:
        batch = first.poll(1)
        seen += [event.payload["n"] for event in batch]
        first.commit(batch)
    assert seen == [1, 2, 3]


def test_a_poll_whose_reply_was_lost_is_not_overtaken(pulled: Pulled, monkeypatch: pytest.MonkeyPatch) -> None:
    """The consumer holds events it never saw; it must not be given those behind them first."""
    pulled.group()
    pulled.world.write(*(happened(n, "k") for n in range(6)))
    consumer = pulled.consumer()
    beat(consumer)
    pulled.world.tick()
    run = pulled.world.db.run

    def replies_are_lost(op: Any, *, tx: bool = True) -> None:
        run(op, tx=tx)
        raise ConnectionLost("no reply")

    with monkeypatch.context() as patch:
        patch.setattr(pulled.world.db, "run", replies_are_lost)
        with pytest.raises(ConnectionLost):
            consumer.poll(2)
    assert pulled.world.one("SELECT count(*) FROM outbox_event_range") == 1
    assert consumer.poll(6)[0].payload["n"] == 0


def test_order_per_key_with_three_consumers_crashes_and_failures() -> None:
    """Real time, three threads; one forgets its batches now and then, one fails now and then."""
    with World(options={"shards": 8}) as world:
        group_at(context(world), start=StartFrom.earliest()).create()
        total, keys = 1500, 30
        for start in range(0, total, 100):
            world.write(*(happened(n, f"k{n % keys}") for n in range(start, start + 100)))
        done: dict[str | None, list[int]] = defaultdict(list)
        lock = threading.Lock()
        count = Counter[str]()

        def work(name: str, nth: int) -> None:
            lives = 0
            consumer = group_at(context(world)).consumer(f"{name} {lives}")
            polls = 0
            while sum(count.values()) < total:
                batch = consumer.poll(40, lease=1)
                polls += 1
                if not batch:
                    continue
                if nth and polls % nth == 0:  # crash: what it had comes again to somebody
                    lives += 1
                    world.rows(
                        f"UPDATE outbox_event_member SET expires_at = '-infinity' WHERE name = '{name} {lives - 1}'"
                    )
                    consumer = group_at(context(world)).consumer(f"{name} {lives}")
                    continue
                failed = {batch[-1]: "flaky"} if nth and polls % nth == 1 and batch.attempts(batch[-1]) == 1 else {}
                with lock:
                    consumer.commit(batch, failed=failed)
                    for event in batch:
                        if event not in failed:
                            done[event.key].append(event.payload["n"])
                            count[name] += 1
            consumer.close()

        threads = [threading.Thread(target=work, args=(f"c{n}", nth)) for n, nth in enumerate((0, 5, 7))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(90)
        assert sum(count.values()) == total
        for key, numbers in done.items():
            assert numbers == sorted(set(numbers)), f"{key} out of order or twice"


# -- moving and looking --------------------------------------------------------------------------------


def test_seeking_back_replays_and_refuses_old_batches(pulled: Pulled) -> None:
    pulled.group()
    written = pulled.world.write_many(10)
    consumer = pulled.consumer()
    assert sorted(drained(consumer)) == written
    pulled.world.write_many(1)
    old = consumer.poll()
    pulled.at().seek(StartFrom.event(written[5]))
    assert [fact.name for fact in pulled.of(Alert)] == ["group_moved"]
    with pytest.raises(LeaseLost):
        consumer.commit(old)
    assert sorted(drained(consumer)) == [*written[5:], written[-1] + 1]
    pulled.at().seek(StartFrom.earliest())
    assert sorted(drained(consumer))[:10] == written
    pulled.world.write_many(5)
    pulled.at().seek(StartFrom.latest())
    assert drained(consumer) == []


def test_lag_and_health_and_figures(pulled: Pulled) -> None:
    group = pulled.group(ordered=False)
    pulled.world.write_many(30)
    assert pulled.at().health().level == "critical", "nobody is there to do the work"
    consumer = pulled.consumer()
    assert group.lag().events == 30
    batch = consumer.poll(10)
    lag = group.lag()
    assert (lag.events, lag.taken) == (30, len(batch))
    consumer.commit(batch, failed={batch[0]: "no"})
    pulled.later(2)
    beat(consumer)
    info = group.info()
    assert [member.name for member in info.members] == ["c"]
    assert (info.state, info.members[0].alive, group.health()) == ("active", True, Health())
    assert (info.pending, info.in_flight, info.parked) == (31 - len(batch), 0, 1)
    assert (info.processed, info.failed) == (len(batch) - 1, 1)
    assert info.per_second > 0
    assert info.oldest is not None
    assert (info.attempts, info.silence, info.start, info.backfill) == (10, SILENCE, "earliest", None)
    pulled.later(400)
    assert group.health() == Health("critical", ("no member is there to do the work",))
    group.pause(reason="a look")
    assert group.health().level == "degraded"
    assert "a look" in group.health().reasons[0]
    group.cancel()
    assert group.health().level == "critical"


def test_views_for_people() -> None:
    with World() as world:
        group_at(context(world), start=StartFrom.earliest()).create()
        world.write_many(5)
        consumer = group_at(context(world)).consumer("c1")
        consumer.poll(3)
        assert world.rows("SELECT state, members, healthy, taken FROM outbox_event_group_status") == [
            ("active", 1, True, world.one("SELECT sum(events) FROM outbox_event_range"))
        ]
        assert world.one("SELECT unread_at_most FROM outbox_event_group_lag") <= 5
        assert {row[0] for row in world.rows("SELECT member FROM outbox_event_active_range")} == {"c1"}
        assert world.rows("SELECT name, healthy, alive FROM outbox_event_member_status") == [("c1", True, True)]
        consumer.close()


def test_what_an_operator_does_is_logged_with_who_and_why(pulled: Pulled, caplog: pytest.LogCaptureFixture) -> None:
    pulled.group()
    caplog.set_level("INFO", "relaybox")
    for _ in range(2):
        pulled.at().pause(reason="a look", actor="ann")
    assert pulled.of(Administered) == [Administered("pause", "group t/g", None, "ann", "a look")], "the second is none"
    assert "pause 'group t/g' by 'ann', reason 'a look'" in caplog.text
    assert pulled.world.rows("SELECT actor, verb, what, reason FROM outbox_event_audit") == [
        ("ann", "pause", "group t/g", "a look")
    ]
    assert pulled.world.one("SELECT reason FROM outbox_event_group") == "ann: a look"
    assert [fact.name for fact in pulled.of(Alert)] == ["group_paused"]


def test_events_of_dead_groups_can_be_completed_by_force() -> None:
    made = Pulled(tracking="bitmap")
    made.group()
    made.world.write_many(5)
    made.later(3600)
    topics = Topics(made.context, None, None)  # type: ignore[arg-type]
    assert topics.force_complete("t", "2h") == 0
    assert topics.force_complete("t", "30m") == 5
    assert "although groups wait" in made.of(Alert)[0].text
    made.world.db.close()


@pytest.mark.parametrize("tracking", ["bitmap", "acks"])
def test_open_events_wait_for_a_group_that_a_poll_brings_back(tracking: str) -> None:
    made = Pulled(tracking=tracking)
    made.group("a")
    made.group("b")
    consumer, other = made.consumer(group="a"), made.consumer(group="b")
    beat(consumer)
    group = made.world.run(made.world.store.group("t", "a"))
    made.world.run(made.world.store.set_state(group, "dead", "test", made.world.now))
    made.world.write_many(10)
    made.later(2)
    consumer.commit(consumer.poll(1))
    drained(other)
    open_marks = "SELECT count(*) FROM outbox_event_mark_1 WHERE completed_at IS NULL"
    assert made.world.one(open_marks) == 9
    drained(consumer)
    assert made.world.one(open_marks) == 0
    made.world.db.close()


@pytest.mark.parametrize("tracking", ["bitmap", "acks"])
def test_commits_complete_events_when_all_groups_are_done(tracking: str) -> None:
    made = Pulled(tracking=tracking)
    made.group("a", attempts=1)
    made.group("b")
    made.world.write_many(20)

    def unfinished() -> int:
        return int(made.world.one("SELECT count(*) FROM outbox_event_mark_1 WHERE completed_at IS NULL"))

    drained(made.consumer(group="b"))
    assert unfinished() == 20
    consumer = made.consumer(group="a")
    batch = consumer.poll(20)
    consumer.commit(batch, done=list(batch)[:3], failed={batch[3]: "given up"})
    assert unfinished() == 16, "what was given up is finished for this group"
    drained(consumer)
    assert unfinished() == 0
    made.world.db.close()


# -- the async twin, and many --------------------------------------------------------------------------


async def test_the_async_twin(pulled: Pulled) -> None:
    pulled.group()
    written = pulled.world.write_many(20)
    db = open_async(pulled.world.url)
    group = async_group_at(context(pulled.world, pulled.facts, pulled.clock, db))
    async with group.consumer("c") as consumer:
        batch = await consumer.poll(100)
        assert sorted(event.seq or 0 for event in batch) == written
        await consumer.extend(batch)
        await consumer.commit(batch, done=[batch[0]], failed={batch[1]: "no"})
        assert (await group.lag()).events == 19
        with pytest.raises(ZeroDivisionError):
            async with await consumer.poll():
                raise ZeroDivisionError
        assert (await group.lag()).events == 19
        async with await consumer.poll() as again:
            assert len(again)
        assert (await group.lag()).events == 19 - len(again)
        await consumer.release(await consumer.poll())
        await group.seek(StartFrom.latest())
        assert not await consumer.poll()
    await db.close()


async def test_an_operator_in_an_event_loop(pulled: Pulled) -> None:
    db = open_async(pulled.world.url)
    place = context(pulled.world, pulled.facts, pulled.clock, db)
    group = async_group_at(place, start=StartFrom.earliest())
    assert (await group.create()).state == "active"
    pulled.world.write_many(3)
    topics = AsyncTopics(place, None, None)  # type: ignore[arg-type]
    assert [info.pending for info in await topics.groups("t")] == [3]
    assert (await group.lag()).events == (await group.info()).pending == 3
    await group.pause()
    assert (await group.info()).state == "paused"
    await group.resume()
    assert (await group.info()).state == "active"
    await group.seek(StartFrom.latest())
    assert (await group.info()).pending == 0
    row = pulled.world.run(pulled.world.store.group("t", "g"))
    pulled.world.run(pulled.world.store.set_state(row, "dead", "test", None))
    assert (await group.health()).level == "critical"
    await group.resume(reason="it was dead")
    assert (await group.info()).state == "active"
    assert not (await group.info()).members
    assert not await group.dead.list()
    assert await group.dead.replay(ALL) == await group.events.discard(ALL) == 0
    assert await topics.force_complete("t", 0) == 0, "nothing waits for acks here"
    await group.cancel(wait=1)
    assert (await group.info()).state == "cancelled"
    await group.cancel()
    assert [fact.name for fact in pulled.of(Alert)] == [
        "group_paused",
        "group_resumed",
        "group_moved",
        "group_resumed",
        "group_paused",
        "group_cancelled",
    ]
    await db.close()


@pytest.mark.parametrize("ordered", [True, False])
def test_ten_consumers_get_each_event_once_with_crashes_few_twice(ordered: bool) -> None:
    """10 consumers, 100,000 events, one dies with a batch of 50; duplicates only by that, below 0.1 %."""
    with World(options={"shards": 16}) as world:
        group_at(context(world), start=StartFrom.earliest(), ordered=ordered).create()
        total = 0
        for _ in range(20):
            total += len(world.write_many(5000, keys=500))
        seen: list[Counter[int]] = []
        doubled = [0]
        finished = threading.Event()

        def work(n: int) -> None:
            db = open_sync(world.url, size=1)
            mine: Counter[int] = Counter()
            seen.append(mine)
            consumer = group_at(context(world, db=db)).consumer(f"c{n}")
            polls = 0
            while not finished.is_set():
                polls += 1
                dies = n == 0 and polls == 3
                batch = consumer.poll(50, lease=2) if dies else consumer.poll(500)
                mine.update(seqs(batch))
                if dies:  # it dies with what it has; its row expires with the lease
                    doubled[0] += len(batch)
                    world.rows("UPDATE outbox_event_member SET expires_at = '-infinity' WHERE name = 'c0'")
                    consumer = group_at(context(world, db=db)).consumer("c0 again")
                    continue
                consumer.commit(batch)
                if not batch and group_at(context(world, db=db)).lag().events == 0:
                    finished.set()
            consumer.close()
            db.close()

        threads = [threading.Thread(target=work, args=(n,)) for n in range(10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(100)
        everything = sum(seen, Counter[int]())
        assert len(everything) == total
        twice = sum(count - 1 for count in everything.values())
        assert twice <= doubled[0], "only what was in flight in a crash"
        assert twice / total < 0.001


def test_from_an_outbox_to_a_consumer() -> None:
    """All of it by public names."""
    url = fresh_url()
    with Outbox(url) as outbox:
        outbox.migrate()
        outbox.topics.configure(Topic.pub_sub("orders"))
        billing = outbox.topics.group("orders", "billing")
        billing.create()
        with outbox.transaction() as transaction:
            outbox.write(transaction, Event("OrderPlaced", {"id": 7}, key="order-7", topic="orders"))
        with billing.consumer() as consumer:
            batch = consumer.poll()
            assert [(event.type, event.payload, event.topic) for event in batch] == [
                ("OrderPlaced", {"id": 7}, "orders")
            ]
            consumer.commit(batch)
            assert not consumer.poll()
        assert billing.info().processed == 1
        billing.cancel(wait=30)
        assert [(info.group, info.state) for info in outbox.topics.groups()] == [("billing", "cancelled")]


def test_extending_answers_with_the_time_of_the_database() -> None:
    class Wrong(SystemClock):
        def now(self) -> datetime:
            return super().now() + timedelta(minutes=10)

    url = fresh_url()
    with Outbox(url, clock=Wrong()) as outbox:
        outbox.migrate()
        outbox.topics.configure(Topic.pub_sub("orders"))
        billing = outbox.topics.group("orders", "billing")
        billing.create()
        with outbox.transaction() as transaction:
            outbox.write(transaction, Event("OrderPlaced", {}, topic="orders"))
        with billing.consumer() as consumer:
            batch = consumer.poll()
            until = consumer.extend(batch, timedelta(minutes=1))
            [(written,)] = rows(url, "SELECT max(until) FROM outbox_event_range")
            assert until == written
            assert consumer.extend(batch) <= datetime.now(UTC) + timedelta(seconds=40), (
                "of the database, by the default"
            )


async def test_from_an_async_outbox_to_a_consumer() -> None:
    url = fresh_url()
    async with AsyncOutbox(url) as outbox:
        await outbox.migrate()
        await outbox.topics.configure(Topic.pub_sub("orders"))
        billing = outbox.topics.group("orders", "billing")
        await billing.create()
        async with outbox.transaction() as transaction:
            await outbox.write(transaction, Event("OrderPlaced", {"id": 7}, key="order-7", topic="orders"))
        async with billing.consumer() as consumer:
            batch = await consumer.poll()
            assert [event.payload for event in batch] == [{"id": 7}]
            await consumer.commit(batch)


KILLED = """
import sys, time
from relaybox import Outbox
with Outbox(sys.argv[1]) as outbox:
    consumer = outbox.topics.group("t", "g").consumer("victim")
    consumer.commit(consumer.poll(10))
    batch = consumer.poll(10, lease=1)
    print(*(event.seq for event in batch), flush=True)
    time.sleep(60)
"""


def test_what_a_killed_process_held_goes_to_another(world: World) -> None:
    """After the lease, before anything newer, and nothing else comes twice."""
    group_at(context(world), start=StartFrom.earliest()).create()
    written = world.write_many(100)
    process = subprocess.Popen([sys.executable, "-c", KILLED, world.url], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    held = [int(seq) for seq in process.stdout.readline().split()]
    process.kill()
    process.communicate()
    assert held
    consumer = group_at(context(world)).consumer("heir")
    group = group_at(context(world))
    done = world.one("SELECT count(*) FROM outbox_event_log_1") - group.lag().events
    seen: Counter[int] = Counter()
    while group.lag().events:
        batch = consumer.poll(1000)
        seen.update(seqs(batch))
        consumer.commit(batch)
    assert set(held) <= set(seen)
    assert max(seen.values()) == 1
    assert len(seen) == len(written) - done


# -- waiting -------------------------------------------------------------------------------------------


def test_a_poll_waits_until_something_is_there() -> None:
    url = fresh_url()
    with Outbox(url) as outbox:
        outbox.migrate()
        outbox.topics.configure(Topic.pub_sub("orders"))
        group = outbox.topics.group("orders", "billing")
        group.create()
        got: list[int] = []

        def work() -> None:
            with group.consumer() as consumer, consumer.poll(wait=20) as batch:
                got.extend(event.payload for event in batch)

        waiting = threading.Thread(target=work)
        waiting.start()
        while not group.info().members:
            waiting.join(0.01)
        with outbox.transaction() as transaction:
            outbox.write(transaction, Event("Placed", 7, topic="orders"))
        waiting.join(20)
        assert got == [7]
        with group.consumer() as consumer:
            assert not consumer.poll(wait="50ms")


async def test_a_poll_in_an_event_loop_is_woken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relaybox.topics.consumer.FIRST_PAUSE", 600.0)  # nothing else wakes it in time
    url = fresh_url()
    async with AsyncOutbox(url) as outbox, asyncio.timeout(30):
        await outbox.migrate()
        await outbox.topics.configure(Topic.pub_sub("orders"))
        async with outbox.topics.group("orders", "billing").consumer() as consumer:
            assert not await consumer.poll(wait="50ms")
            await until(lambda: consumer._ears is not None and consumer._ears._mode == "listen")
            waiting = asyncio.create_task(consumer.poll(wait=600))
            await until(lambda: consumer._naps.news._waiters)  # type: ignore[attr-defined]
            async with outbox.transaction() as transaction:
                await outbox.write(transaction, Event("Placed", 7, topic="orders"))
            assert [event.payload for event in await waiting] == [7]
