"""The one group of a queue tracked by rows, which is what a queue is by default: consumed by pulling and by handlers,
stopped and looked at like any other group."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from typing import Any

import pytest

from kit import until
from relaybox import ALL, Event, Outbox, Retry, StartFrom, Topic
from relaybox.errors import ConfigError, GroupError, LeaseLost, NotFound
from relaybox.types import AsyncService

from .kit import fresh_url
from .pull_kit import beat
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
    with box.topics.queue("jobs").consumer() as consumer:
        while batch := consumer.poll(10):
            assert len(batch) <= 10
            done += [event.payload for event in batch]
            consumer.commit(batch)
        assert sorted(done) == list(range(25))
    assert box.topics.queue("jobs").lag().events == 0


def test_what_is_not_committed_comes_again(box: Outbox) -> None:
    write(box, 4)
    queue = box.topics.queue("jobs")
    first, second = queue.consumer("first"), box.topics.group("jobs", "default").consumer("second")
    batch = first.poll(4)
    assert not second.poll(4)
    first.commit(batch, done=[batch[0]], failed={batch[1]: "no"})  # the others are given back
    again = second.poll(4)
    assert {event.id for event in again} >= {batch[2].id, batch[3].id}
    assert batch[0].id not in {event.id for event in again}
    assert {again.attempts(event) for event in again if event.id in (batch[2].id, batch[3].id)} == {1}
    second.close()  # leaves: what it had is free
    with queue.consumer("third") as third:
        assert {event.id for event in third.poll(4)} >= {batch[2].id, batch[3].id}
    first.close()


def test_a_batch_is_extended_and_a_lost_one_refused(box: Outbox) -> None:
    write(box, 2)
    queue = box.topics.queue("jobs")
    with queue.consumer("first") as first, queue.consumer("second") as second:
        batch = first.poll(2, lease="200ms")
        until = first.extend(batch, "5m")
        assert until > until.now(until.tzinfo) + timedelta(minutes=4)
        first.commit(batch)
        write(box, 1)
        lost = first.poll(1, lease="50ms")
        taken = second.poll(1, wait=20)
        assert [event.id for event in taken] == [event.id for event in lost]
        with pytest.raises(LeaseLost):
            first.commit(lost)
        second.commit(taken)


async def test_a_program_in_an_event_loop_consumes_it() -> None:
    async with process(None, JOBS) as here:
        await here.write(*range(5), topic="jobs")
        queue = here.box.topics.queue("jobs")
        async with queue.consumer() as consumer, await consumer.poll(wait=20) as batch:
            assert sorted(event.payload for event in batch) == list(range(5))
        assert (await queue.lag()).events == 0


# -- operating -----------------------------------------------------------------------------------------


def fail(box: Outbox, payloads: set[int]) -> None:
    with box.topics.queue("jobs").consumer() as consumer:
        while batch := consumer.poll(100):
            failed = {event: ValueError("no such customer") for event in batch if event.payload in payloads}
            consumer.commit(batch, failed=failed)


def test_its_backlog_and_dead_letters_are_seen_replayed_and_discarded(box: Outbox) -> None:
    box.topics.queue("jobs", retry=Retry(attempts=1)).create()
    queue = box.topics.queue("jobs")
    write(box, 6)
    [info] = box.topics.groups("jobs")
    assert (info.group, info.state, info.pending, info.dead) == ("default", "active", 6, 0)
    fail(box, {1, 3, 5})
    [info] = box.topics.groups()
    assert (info.pending, info.dead, info.processed) == (0, 3, 3)
    dead = queue.dead.list()
    assert [(one.event.payload, one.attempts) for one in dead] == [(n, 1) for n in (1, 3, 5)]
    assert "no such customer" in (dead[0].error or "")
    assert queue.dead.discard(dead[0].event.id) == 1
    assert queue.dead.replay(dead[1].event.id) == 1
    assert queue.dead.replay(ALL) == 1
    assert queue.lag().events == 2
    fail(box, set())
    assert queue.dead.list() == queue.events.list(state="open") == []
    assert queue.lag().events == 0
    with pytest.raises(ConfigError, match="no place to go to"):
        queue.seek(StartFrom.earliest())
    with pytest.raises(ConfigError, match="its one group is 'default'"):
        box.topics.group("jobs", "another").create()


def test_polls_of_a_paused_queue_get_nothing_and_of_a_cancelled_one_an_error(box: Outbox) -> None:
    queue = box.topics.queue("jobs")
    write(box, 2)
    with queue.consumer() as consumer:
        assert not box.topics.groups("jobs")
        beat(consumer)
        queue.pause(reason="the printer is broken")
        assert not consumer.poll(2)
        queue.resume()
        assert len(consumer.poll(1)) == 1
        queue.cancel()
        consumer._beaten = 0.0  # the next sign of life is due
        with pytest.raises(NotFound):
            beat(consumer)
    with queue.consumer() as consumer:
        assert len(consumer.poll(2)) == 2


# -- push ----------------------------------------------------------------------------------------------


def queued(here: Process, handler: Any, **options: Any) -> AsyncService:
    return here.box.topics.queue("jobs", **options).deliver(handler)


async def test_listeners_are_paused_and_resumed_from_anywhere() -> None:
    mine, theirs = Seen(), Seen()
    async with (
        process(None, JOBS) as here,
        process(here.url, JOBS) as there,
        queued(here, mine.note) as service,
        queued(there, theirs.note) as other,
    ):
        queue = here.box.topics.queue("jobs")
        assert len((await queue.info()).members) == 2
        await here.write(*range(10), topic="jobs")
        await until(lambda: len(mine) + len(theirs) == 10)
        await queue.pause()
        await until(lambda: "is paused" in str(other.health().reasons))
        await there.write(*range(10, 20), topic="jobs")
        assert ((await queue.lag()).events, len(mine) + len(theirs)) == (10, 10)
        await there.box.topics.queue("jobs").resume(reason="all is well")
        await until(lambda: len(mine) + len(theirs) == 20)
        assert sorted(mine + theirs) == list(range(20))
        await there.box.topics.queue("jobs").cancel()
        await until(lambda: "is cancelled" in str(service.health().reasons))


async def test_a_pause_gives_back_what_has_not_begun() -> None:
    begun, go_on, seen = asyncio.Event(), asyncio.Event(), Seen()

    async def handle(event: Event) -> None:
        begun.set()
        await go_on.wait()
        await seen.note(event)

    async with process(None, JOBS) as here, queued(here, handle):
        queue = here.box.topics.queue("jobs")
        await here.write(*range(200), topic="jobs")
        await begun.wait()
        await queue.pause()
        go_on.set()
        async with asyncio.timeout(20):
            while (await queue.lag()).taken:
                await asyncio.sleep(0.01)
        assert len(seen) <= QUICK.delivery.workers
        await queue.resume()
        await until(lambda: len(seen) == 200)
        assert sorted(seen) == list(range(200))


async def test_a_paused_queue_stays_paused_over_a_restart() -> None:
    async with process(None, JOBS) as here:
        seen, queue = Seen(), here.box.topics.queue("jobs")
        async with queued(here, seen.note):
            await queue.pause()
        await here.write(*range(3), topic="jobs")
        async with queued(here, seen.note) as again:
            assert "groups resume jobs default" in str(again.health().reasons)
            with pytest.raises(GroupError, match="groups resume jobs default"):
                await again.drain()
            assert not seen
            await queue.resume()
            await until(lambda: len(seen) == 3)


def test_a_topic_of_pub_sub_has_no_queue(box: Outbox) -> None:
    """A misspelt name would leave a group behind that no program reads."""
    box.topics.configure(Topic.pub_sub("orders"))
    for use in (box.topics.queue("orders").create, box.topics.queue("orders").consumer().poll):
        with pytest.raises(ConfigError, match=r"'orders' is pub/sub.*topics\.group\('orders', NAME\)"):
            use()
    assert box.topics.groups("orders") == []
