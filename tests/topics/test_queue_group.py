"""The one group of a queue tracked by rows, which is what a queue is by default: consumed by pulling and by handlers,
stopped and looked at like any other group."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from typing import Any

import pytest

from relaybox import Event, Outbox
from relaybox.errors import ConfigError, GroupError, LeaseLost, NotFound
from relaybox.store.topics import GroupOptions
from relaybox.topic import Topic
from relaybox.topics.start import StartFrom

from .kit import fresh_url
from .liveness_kit import until
from .test_group import QUICK, Process, Seen, process

JOBS = Topic.queue("jobs")


@pytest.fixture
def box() -> Iterator[Outbox]:
    with closing(Outbox(fresh_url())) as made:
        made.migrate()
        made.topics.configure(JOBS)
        yield made


def write(box: Outbox, count: int) -> None:
    with box.transaction() as tx:
        box.write_all(tx, [Event("Job", n, key=f"k{n % 3}", topic="jobs") for n in range(count)])


# -- pull ----------------------------------------------------------------------------------------------


def test_a_synchronous_program_consumes_it(box: Outbox) -> None:
    """Nothing has to be made before: a queue has its group by itself."""
    write(box, 25)
    done: list[int] = []
    with box.topics.queue("jobs") as consumer:
        while batch := consumer.poll(10):
            assert len(batch) <= 10
            done += [event.payload for event in batch]
            consumer.commit(batch)
        assert sorted(done) == list(range(25))
        assert consumer.lag().events == 0


def test_what_is_not_committed_comes_again(box: Outbox) -> None:
    write(box, 4)
    first, second = box.topics.queue("jobs", name="first"), box.topics.consumer("jobs", group="default", name="second")
    batch = first.poll(4)
    assert not second.poll(4)
    first.commit(batch, done=[batch[0]], failed={batch[1]: "no"})  # the others are given back
    again = second.poll(4)
    assert {event.id for event in again} >= {batch[2].id, batch[3].id}
    assert batch[0].id not in {event.id for event in again}
    assert {again.attempts(event) for event in again if event.id in (batch[2].id, batch[3].id)} == {1}
    second.close()  # leaves: what it had is free
    with box.topics.queue("jobs", name="third") as third:
        assert {event.id for event in third.poll(4)} >= {batch[2].id, batch[3].id}
    first.close()


def test_a_batch_is_extended_and_a_lost_one_refused(box: Outbox) -> None:
    write(box, 2)
    with box.topics.queue("jobs", name="first") as first, box.topics.queue("jobs", name="second") as second:
        batch = first.poll(2, visibility=timedelta(milliseconds=200))
        until = first.extend(batch, timedelta(minutes=5))
        assert until > until.now(until.tzinfo) + timedelta(minutes=4)
        first.commit(batch)
        write(box, 1)
        lost = first.poll(1, visibility=timedelta(milliseconds=50))
        taken = second.poll(1)
        while not taken:
            taken = second.poll(1)
        assert [event.id for event in taken] == [event.id for event in lost]
        with pytest.raises(LeaseLost):
            first.commit(lost)
        second.commit(taken)


# -- operating -----------------------------------------------------------------------------------------


def fail(box: Outbox, payloads: set[int]) -> None:
    with box.topics.queue("jobs") as consumer:
        while batch := consumer.poll(100):
            failed = {event: ValueError("no such customer") for event in batch if event.payload in payloads}
            consumer.commit(batch, failed=failed)


def test_its_backlog_and_dead_letters_are_seen_replayed_and_skipped(box: Outbox) -> None:
    admin = box.topics.groups
    admin.create("jobs", "default", options=GroupOptions(ordered=False, max_attempts=1))
    write(box, 6)
    [health] = admin.list("jobs")
    assert (health.group, health.state, health.pending, health.dead) == ("default", "active", 6, 0)
    fail(box, {1, 3, 5})
    [health] = admin.list()
    assert (health.pending, health.dead, health.processed) == (0, 3, 3)
    dead = admin.parked("jobs", "default", state="dead")
    assert [(one.event.payload, one.state, one.attempts) for one in dead] == [(n, "dead", 1) for n in (1, 3, 5)]
    assert "no such customer" in (dead[0].error or "")
    numbers = [one.event.seq or 0 for one in dead]
    assert admin.skip("jobs", "default", numbers[:1]) == 1
    assert admin.replay("jobs", "default", numbers[1:2]) == 1
    assert admin.replay("jobs", "default") == 1
    assert admin.lag("jobs", "default").events == 2
    fail(box, set())
    assert admin.parked("jobs", "default") == []
    assert admin.lag("jobs", "default").events == 0
    with pytest.raises(ConfigError, match="no place to go to"):
        admin.seek("jobs", "default", StartFrom.earliest())
    with pytest.raises(ConfigError, match="its one group is 'default'"):
        admin.create("jobs", "another")


def test_polls_of_a_paused_queue_get_nothing_and_of_a_cancelled_one_an_error(box: Outbox) -> None:
    admin = box.topics.groups
    write(box, 2)
    with box.topics.queue("jobs") as consumer:
        assert not admin.list("jobs")
        consumer.heartbeat()
        admin.pause("jobs", "default", reason="the printer is broken")
        assert not consumer.poll(2)
        admin.resume("jobs", "default")
        assert len(consumer.poll(1)) == 1
        admin.cancel("jobs", "default")
        with pytest.raises(NotFound):
            consumer.heartbeat()
    admin.create("jobs", "default")
    with box.topics.queue("jobs") as consumer:
        assert len(consumer.poll(2)) == 2


# -- push ----------------------------------------------------------------------------------------------


async def queued(here: Process, handler: Any, **options: Any) -> Any:
    group = here.box.topics.queue("jobs", **options)
    group.add_consumer("c", handler)
    return await group.start()


async def test_handlers_are_paused_and_resumed_from_anywhere() -> None:
    async with process(None, JOBS) as here, process(here.url, JOBS) as there:
        mine, theirs = Seen(), Seen()
        group = await queued(here, mine.note)
        other = await queued(there, theirs.note)
        assert len(await here.box.topics.groups.members("jobs", "default")) == 2
        await here.write(*range(10), topic="jobs")
        await until(lambda: len(mine) + len(theirs) == 10)
        await group.pause()
        await until(lambda: other.state == "paused")
        await there.write(*range(10, 20), topic="jobs")
        lag = await here.box.topics.groups.lag("jobs", "default")
        assert (lag.events, len(mine) + len(theirs)) == (10, 10)
        await there.box.topics.groups.resume("jobs", "default", reason="all is well")
        await until(lambda: len(mine) + len(theirs) == 20)
        assert sorted(mine + theirs) == list(range(20))
        await other.cancel()
        await until(lambda: not group.running)


async def test_a_pause_gives_back_what_has_not_begun() -> None:
    async with process(None, JOBS) as here:
        begun, go_on, seen = asyncio.Event(), asyncio.Event(), Seen()

        async def handle(event: Event) -> None:
            begun.set()
            await go_on.wait()
            await seen.note(event)

        group = await queued(here, handle)
        await here.write(*range(200), topic="jobs")
        await begun.wait()
        await group.pause()
        go_on.set()
        async with asyncio.timeout(20):
            while (await here.box.topics.groups.lag("jobs", "default")).taken:
                await asyncio.sleep(0.01)
        assert len(seen) <= QUICK.delivery.workers
        await group.resume()
        await until(lambda: len(seen) == 200)
        assert sorted(seen) == list(range(200))


async def test_a_paused_queue_stays_paused_over_a_restart() -> None:
    async with process(None, JOBS) as here:
        seen = Seen()
        group = await queued(here, seen.note)
        await group.pause()
        await group.close()
        await here.write(*range(3), topic="jobs")
        again = await queued(here, seen.note)
        assert again.state == "paused"
        assert "groups resume jobs default" in (again.standstill or "")
        with pytest.raises(GroupError, match="groups resume jobs default"):
            await again.until_idle()
        assert not seen
        await again.resume()
        await until(lambda: len(seen) == 3)
