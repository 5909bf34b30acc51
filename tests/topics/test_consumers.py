"""Pull consumers together: order per key, moving and looking at their group, and many at once."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from flow.kit import rows
from relaybox import AsyncOutbox, Event, Outbox, Topic
from relaybox.clock import SystemClock
from relaybox.drivers import open_async, open_sync
from relaybox.errors import (
    ConnectionLost,
    LeaseLost,
)
from relaybox.facts import Alert
from relaybox.store.topics import GroupOptions
from relaybox.topics.admin import AsyncGroupAdmin, GroupAdmin
from relaybox.topics.consumer import AsyncConsumer, Consumer
from relaybox.topics.start import StartFrom

from .kit import World, fresh_url, happened
from .liveness_kit import home
from .pull_kit import Pulled, drained, seqs


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
    consumer.heartbeat()
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
        GroupAdmin(home(world)).create("t", "g", StartFrom.earliest())
        total, keys = 1500, 30
        for start in range(0, total, 100):
            world.write(*(happened(n, f"k{n % keys}") for n in range(start, start + 100)))
        done: dict[str | None, list[int]] = defaultdict(list)
        lock = threading.Lock()
        count = Counter[str]()

        def work(name: str, nth: int) -> None:
            lives = 0
            consumer = Consumer(home(world), "t", "g", f"{name} {lives}")
            polls = 0
            while sum(count.values()) < total:
                batch = consumer.poll(40, timedelta(seconds=1))
                polls += 1
                if not batch:
                    continue
                if nth and polls % nth == 0:  # crash: what it had comes again to somebody
                    lives += 1
                    world.rows(
                        f"UPDATE outbox_event_member SET expires_at = '-infinity' WHERE name = '{name} {lives - 1}'"
                    )
                    consumer = Consumer(home(world), "t", "g", f"{name} {lives}")
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
    consumer.seek(StartFrom.event(written[5]))
    assert [fact.name for fact in pulled.of(Alert)] == ["consumer_seeked"]
    with pytest.raises(LeaseLost):
        consumer.commit(old)
    assert sorted(drained(consumer)) == [*written[5:], written[-1] + 1]
    pulled.admin.seek("t", "g", StartFrom.earliest_unlimited())
    assert sorted(drained(consumer))[:10] == written, "another's seek is seen too"
    pulled.world.write_many(5)
    consumer.seek(StartFrom.latest())
    assert drained(consumer) == []


def test_lag_and_health_and_metrics(pulled: Pulled) -> None:
    pulled.group(ordered=False)
    pulled.world.write_many(30)
    consumer = pulled.consumer()
    assert consumer.lag().events == 30
    batch = consumer.poll(10)
    lag = consumer.lag()
    assert (lag.events, lag.taken) == (30, len(batch))
    consumer.commit(batch, failed={batch[0]: "no"})
    pulled.later(2)
    consumer.heartbeat()
    health = pulled.admin.health("t", "g")
    assert health == pulled.admin.list("t")[0]
    assert (health.state, health.members, health.healthy) == ("active", 1, True)
    assert (health.pending, health.in_flight, health.parked) == (31 - len(batch), 0, 1)
    metrics = pulled.admin.metrics("t", "g")
    assert (metrics.processed, metrics.failed, metrics.lag) == (len(batch) - 1, 1, 31 - len(batch))
    assert metrics.per_second > 0
    assert metrics.oldest_pending is not None
    pulled.later(400)
    assert not pulled.admin.health("t", "g").healthy


def test_views_for_people() -> None:
    with World() as world:
        GroupAdmin(home(world)).create("t", "g", StartFrom.earliest())
        world.write_many(5)
        consumer = Consumer(home(world), "t", "g", "c1")
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
        pulled.admin.pause("t", "g", reason="a look")
    lines = [record.message for record in caplog.records if "group_paused by" in record.message]
    assert len(lines) == 1, "the second changes nothing"
    assert lines[0].endswith("group g of topic t: a look")
    reason = pulled.world.one("SELECT reason FROM outbox_event_group")
    assert reason.endswith(": a look")
    assert len(reason) > len(": a look")
    assert [fact.name for fact in pulled.of(Alert)] == ["group_paused"]


def test_events_of_dead_groups_can_be_completed_by_force() -> None:
    made = Pulled(tracking="bitmap")
    made.group()
    made.world.write_many(5)
    made.later(3600)
    assert made.admin.force_complete("t", timedelta(hours=2)) == 0
    assert made.admin.force_complete("t", timedelta(minutes=30)) == 5
    assert "although groups wait" in made.of(Alert)[0].text
    made.world.db.close()


@pytest.mark.parametrize("tracking", ["bitmap", "acks"])
def test_open_events_wait_for_a_group_that_a_poll_brings_back(tracking: str) -> None:
    made = Pulled(tracking=tracking)
    made.group("a")
    made.group("b")
    consumer, other = made.consumer(group="a"), made.consumer(group="b")
    consumer.heartbeat()
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
    made.group("a", max_attempts=1)
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
    async with AsyncConsumer(home(pulled.world, pulled.facts, pulled.clock, db), "t", "g", "c") as consumer:
        batch = await consumer.poll(100)
        assert seqs(batch) == written
        await consumer.extend(batch)
        await consumer.heartbeat()
        await consumer.commit(batch, done=[batch[0]], failed={batch[1]: "no"})
        assert (await consumer.lag()).events == 19
        await consumer.release(await consumer.poll())
        await consumer.seek(StartFrom.latest())
        assert not await consumer.poll()
    await db.close()


async def test_the_async_admin(pulled: Pulled) -> None:
    db = open_async(pulled.world.url)
    admin = AsyncGroupAdmin(home(pulled.world, pulled.facts, pulled.clock, db))
    await admin.create("t", "g", StartFrom.earliest())
    pulled.world.write_many(3)
    assert [health.pending for health in await admin.list("t")] == [3]
    assert (await admin.lag("t", "g")).events == (await admin.metrics("t", "g")).lag == 3
    assert (await admin.pause("t", "g")).state == "paused"
    assert (await admin.resume("t", "g")).state == "active"
    await admin.seek("t", "g", StartFrom.latest())
    assert (await admin.health("t", "g")).pending == 0
    pulled.world.run(
        pulled.world.store.set_state(await admin.create("t", "g", if_not_exists=True), "dead", "test", None)
    )
    assert (await admin.resume("t", "g", reason="it was dead")).state == "active"
    assert not await admin.members("t", "g")
    assert not await admin.parked("t", "g")
    assert not await admin.reap()
    assert await admin.replay("t", "g") == await admin.skip("t", "g", [1]) == 0
    assert await admin.force_complete("t", timedelta(0)) == 0, "nothing waits for acks here"
    assert (await admin.cancel("t", "g")).state == "cancelled"
    assert await admin.remove("t", "g") is False
    assert [fact.name for fact in pulled.of(Alert)] == [
        "group_paused",
        "group_resumed",
        "consumer_seeked",
        "group_resurrected",
        "group_cancelled",
    ]
    await db.close()


@pytest.mark.parametrize("ordered", [True, False])
def test_ten_consumers_get_each_event_once_with_crashes_few_twice(ordered: bool) -> None:
    """10 consumers, 100,000 events, one dies with a batch of 50; duplicates only by that, below 0.1 %."""
    with World(options={"shards": 16}) as world:
        GroupAdmin(home(world)).create("t", "g", StartFrom.earliest(), options=GroupOptions(ordered=ordered))
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
            consumer = Consumer(home(world, db=db), "t", "g", f"c{n}")
            polls = 0
            while not finished.is_set():
                polls += 1
                dies = n == 0 and polls == 3
                batch = consumer.poll(50, timedelta(seconds=2)) if dies else consumer.poll(500)
                mine.update(seqs(batch))
                if dies:  # it dies with what it has; its row expires with the lease
                    doubled[0] += len(batch)
                    world.rows("UPDATE outbox_event_member SET expires_at = '-infinity' WHERE name = 'c0'")
                    consumer = Consumer(home(world, db=db), "t", "g", "c0 again")
                    continue
                consumer.commit(batch)
                if not batch and consumer.lag().events == 0:
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
        outbox.topics.groups.create("orders", "billing")
        with outbox.transaction() as transaction:
            outbox.write(transaction, Event("OrderPlaced", {"id": 7}, key="order-7", topic="orders"))
        with outbox.topics.consumer("orders", group="billing") as consumer:
            batch = consumer.poll()
            assert [(event.type, event.payload, event.topic) for event in batch] == [
                ("OrderPlaced", {"id": 7}, "orders")
            ]
            consumer.commit(batch)
            assert not consumer.poll()
        assert outbox.topics.groups.health("orders", "billing").processed == 1
        assert outbox.topics.groups.remove("orders", "billing")
        assert outbox.topics.groups.list() == []


def test_extending_answers_with_the_time_of_the_database() -> None:
    class Wrong(SystemClock):
        def now(self) -> datetime:
            return super().now() + timedelta(minutes=10)

    url = fresh_url()
    with Outbox(url, clock=Wrong()) as outbox:
        outbox.migrate()
        outbox.topics.configure(Topic.pub_sub("orders"))
        outbox.topics.groups.create("orders", "billing")
        with outbox.transaction() as transaction:
            outbox.write(transaction, Event("OrderPlaced", {}, topic="orders"))
        with outbox.topics.consumer("orders", group="billing") as consumer:
            batch = consumer.poll()
            until = consumer.extend(batch, timedelta(minutes=1))
            [(written,)] = rows(url, "SELECT max(until) FROM outbox_event_range")
            assert until == written
            assert consumer.extend() <= datetime.now(UTC) + timedelta(seconds=40), "of the database, by the default"


async def test_from_an_async_outbox_to_a_consumer() -> None:
    url = fresh_url()
    async with AsyncOutbox(url) as outbox:
        await outbox.migrate()
        await outbox.topics.configure(Topic.pub_sub("orders"))
        await outbox.topics.groups.create("orders", "billing")
        async with outbox.transaction() as transaction:
            await outbox.write(transaction, Event("OrderPlaced", {"id": 7}, key="order-7", topic="orders"))
        async with outbox.topics.consumer("orders", group="billing") as consumer:
            batch = await consumer.poll()
            assert [event.payload for event in batch] == [{"id": 7}]
            await consumer.commit(batch)


KILLED = """
import sys, time
from datetime import timedelta
from relaybox import Outbox
with Outbox(sys.argv[1]) as outbox:
    consumer = outbox.topics.consumer("t", group="g", name="victim")
    consumer.commit(consumer.poll(10))
    batch = consumer.poll(10, visibility=timedelta(seconds=1))
    print(*(event.seq for event in batch), flush=True)
    time.sleep(60)
"""


def test_what_a_killed_process_held_goes_to_another(world: World) -> None:
    """After the visibility time, before anything newer, and nothing else comes twice."""
    GroupAdmin(home(world)).create("t", "g", StartFrom.earliest())
    written = world.write_many(100)
    process = subprocess.Popen([sys.executable, "-c", KILLED, world.url], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    held = [int(seq) for seq in process.stdout.readline().split()]
    process.kill()
    process.communicate()
    assert held
    consumer = Consumer(home(world), "t", "g", "heir")
    done = world.one("SELECT count(*) FROM outbox_event_log_1") - consumer.lag().events
    seen: Counter[int] = Counter()
    while consumer.lag().events:
        batch = consumer.poll(1000)
        seen.update(seqs(batch))
        consumer.commit(batch)
    assert set(held) <= set(seen)
    assert max(seen.values()) == 1
    assert len(seen) == len(written) - done
