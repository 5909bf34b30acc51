"""The tasks of both engines: they survive outages, are replaced when they end, and begin nothing after a stop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
import pytest_asyncio
from scripted_log import ScriptedLog, make_range_engine
from scripted_source import ScriptedSource, make_engine

from relaybox.clock import SYSTEM_CLOCK
from relaybox.event import Event
from relaybox.lifecycle import CutOff, Delivered, LoopFailed, Retried, Stuck, TaskEnded
from relaybox.runtime.delivery import Delivery, DeliveryEngine
from relaybox.runtime.range_workers import RangeBatch
from relaybox.runtime.ranges import RangeEngine
from relaybox.runtime.work import Batch
from relaybox.testing import ManualClock, Probe

Engine = DeliveryEngine | RangeEngine
Handle = Callable[[Event], Awaitable[Any]]


class Rows:
    """An engine of rows, over a scripted source."""

    def __init__(self, probe: Probe, *, ordered: bool = False, clock: Any = SYSTEM_CLOCK, lease: float = 30.0) -> None:
        self.source = ScriptedSource(ordered=ordered, clock=clock, lease=lease)
        self.probe, self.clock = probe, clock

    def add(self, count: int, **options: Any) -> None:
        self.source.add(count, **options)

    def silence(self, silent: bool) -> None:
        self.source.silent = silent

    def make(self, handle: Handle, **settings: Any) -> Engine:
        async def one(delivery: Delivery) -> None:
            await handle(delivery.event)

        return make_engine(self.source, one, self.probe, clock=self.clock, **settings)

    def make_batches(self, handle: Callable[[list[Event]], Awaitable[Any]], **settings: Any) -> Engine:
        class Batches:
            size, sequences = 10, False

            async def handle(self, batch: Batch) -> None:
                deliveries = await batch.waiting()
                await handle([delivery.event for delivery in deliveries])
                batch.done_all(deliveries)

        return make_engine(self.source, Batches(), self.probe, **settings)


class Ranges(Rows):
    """An engine of ranges, over a scripted log."""

    def __init__(self, probe: Probe, *, ordered: bool = False, clock: Any = SYSTEM_CLOCK, lease: float = 30.0) -> None:
        self.source: Any = ScriptedLog(ordered=ordered, clock=clock, lease=lease)
        self.probe, self.clock = probe, clock

    def silence(self, silent: bool) -> None:
        self.source.alive_until = -1.0 if silent else float("inf")

    def make(self, handle: Handle, **settings: Any) -> Engine:
        return make_range_engine(self.source, handle, self.probe, **settings)

    def make_batches(self, handle: Callable[[list[Event]], Awaitable[Any]], **settings: Any) -> Engine:
        class Batches:
            size = 10

            async def handle(self, batch: RangeBatch) -> None:
                await handle(batch.events)

        return make_range_engine(self.source, Batches(), self.probe, **settings)


both = pytest.mark.parametrize("kind", [Rows, Ranges])


@pytest_asyncio.fixture
async def started() -> AsyncIterator[Callable[[Engine], Engine]]:
    engines: list[Engine] = []

    def start(engine: Engine) -> Engine:
        engines.append(engine)
        engine.start()
        return engine

    yield start
    for engine in engines:
        await engine.stop()


Start = Callable[[Engine], Engine]


@both
@pytest.mark.parametrize("batches", [False, True])
async def test_a_silence_longer_than_the_handler_timeout_costs_no_worker(
    started: Start, probe: Probe, kind: type[Rows], batches: bool
) -> None:
    """The workers wait with an event in hand. That is not a handler that hangs."""
    world, first, go_on = kind(probe), asyncio.Event(), asyncio.Event()
    seen: list[str] = []

    async def handle(event: Event | list[Event]) -> None:
        seen.extend([event.id] if isinstance(event, Event) else [each.id for each in event])
        first.set()
        await go_on.wait()

    world.add(400)
    make = world.make_batches if batches else world.make
    engine = started(make(handle, worker_count=3, handler_timeout=timedelta(milliseconds=50)))
    async with asyncio.timeout(10):
        await first.wait()
    world.silence(True)
    go_on.set()
    before = len(probe.of(CutOff))
    for _ in range(30):  # six times the timeout, for the watchdog to look
        await asyncio.sleep(0.01)
    world.silence(False)
    await probe.wait(Delivered, 400, timeout=20)
    assert len(set(seen)) == 400
    assert len(probe.of(CutOff)) - before <= 3  # those that waited for `go_on` before the silence
    assert not probe.of(TaskEnded)
    assert engine.missing == 0


@both
@pytest.mark.parametrize("batches", [False, True])
async def test_a_worker_that_ends_is_told_replaced_and_its_event_delivered(
    started: Start, probe: Probe, kind: type[Rows], batches: bool, caplog: pytest.LogCaptureFixture
) -> None:
    world, cancelled = kind(probe), False

    async def handle(event: object) -> None:
        nonlocal cancelled
        if not cancelled:  # somebody cancels a task that is not his: "cancel all tasks of this loop"
            cancelled = True
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(60)

    world.add(20)
    make = world.make_batches if batches else world.make
    engine = started(make(handle, worker_count=1))
    ended = await probe.wait(TaskEnded)
    assert ended[0].task == "worker"
    await probe.wait(Delivered, 20, timeout=20)
    assert engine.missing == 0
    assert "the task relaybox-worker ended unexpectedly and will be replaced" in caplog.text


@both
async def test_a_loop_that_ends_is_replaced_and_missed_until_then(
    started: Start, probe: Probe, kind: type[Rows]
) -> None:
    world = kind(probe)

    async def handle(event: Event) -> None:
        return None

    engine = started(world.make(handle))
    claim = next(task for task in asyncio.all_tasks() if task.get_name() == "relaybox-claim")
    claim.cancel()
    await probe.wait(TaskEnded, where=lambda fact: fact.task == "claim")
    assert engine.missing == 1
    world.add(3)
    await probe.wait(Delivered, 3)
    assert engine.missing == 0


@both
async def test_nothing_begins_after_stop_and_what_is_cut_off_is_named(
    probe: Probe, kind: type[Rows], caplog: pytest.LogCaptureFixture
) -> None:
    world, two = kind(probe), asyncio.Semaphore(0)
    begun: list[str] = []

    async def handle(event: Event) -> None:
        begun.append(event.id)
        two.release()
        await asyncio.sleep(60)

    world.add(100)
    engine = world.make(handle, worker_count=2, drain_timeout=timedelta(milliseconds=50))
    engine.start()
    async with asyncio.timeout(10):
        await two.acquire()
        await two.acquire()
    await engine.stop()
    assert len(begun) == 2
    assert probe.count(CutOff) == 2
    line = next(r.getMessage() for r in caplog.records if "cut off" in r.getMessage())
    assert all(f"{event_id} (T)" in line for event_id in begun)


@both
async def test_a_failing_handler_leaves_its_stack_and_no_payload_once_a_minute(
    started: Start, probe: Probe, kind: type[Rows], caplog: pytest.LogCaptureFixture
) -> None:
    world = kind(probe)

    def charge(secret: str) -> None:
        raise ValueError(f"the card {secret} was refused")

    async def handle(event: Event) -> None:
        card = "-".join(["4111", "1111"])
        try:
            charge(card)
        except ValueError as error:
            raise RuntimeError(f"{card} again") from error

    world.add(20)
    started(world.make(handle, max_attempts=2, pause=0.0))
    with caplog.at_level(logging.WARNING, logger="relaybox"):
        await probe.wait(Retried, 20, timeout=20)
    warnings = [r for r in caplog.records if r.levelno == logging.WARNING and "failed at attempt" in r.getMessage()]
    assert len(warnings) == 1
    text = warnings[0].getMessage()
    assert "in charge" in text
    assert "in handle" in text
    assert text.index("builtins.ValueError") < text.index("builtins.RuntimeError")
    assert "4111-1111" not in caplog.text
    assert "/relaybox/runtime/" not in text


@both
async def test_an_event_beyond_its_limit_under_block_is_told_and_slows_down(
    started: Start, probe: Probe, kind: type[Rows], caplog: pytest.LogCaptureFixture
) -> None:
    world = kind(probe, ordered=True)

    async def handle(event: Event) -> None:
        raise RuntimeError("for ever")

    world.add(1, key="a")
    started(world.make(handle, max_attempts=3, on_exhausted="block", pause=0.0))
    stuck = await probe.wait(Stuck, 3, timeout=20)
    assert [(fact.attempts, fact.delay.total_seconds()) for fact in stuck] == [(3, 0.0), (4, 1.0), (5, 2.0)]
    assert "failed at attempt 4, beyond its limit" in caplog.text


@both
async def test_a_failed_renewal_is_tried_again_at_once(started: Start, kind: type[Rows]) -> None:
    """Not a third of a lease later: two failures in a row would lose the claims."""
    probe, clock = Probe(), ManualClock()
    world, running, finish = kind(probe, clock=clock, lease=30.0), asyncio.Event(), asyncio.Event()

    async def handle(event: Event) -> None:
        running.set()
        await finish.wait()

    world.add(1)
    started(world.make(handle, handler_timeout=None))
    async with asyncio.timeout(10):
        await running.wait()
    world.source.down.add("renew")
    clock.advance(10.0)
    await probe.wait(LoopFailed, where=lambda fact: fact.loop == "renew")
    world.source.down.clear()
    async with asyncio.timeout(10):
        while not world.source.renewed:
            clock.advance(0.01)
            await asyncio.sleep(0)
    assert clock.monotonic() < 11
    finish.set()
    await probe.wait(Delivered, 1)


async def test_a_new_event_under_a_number_that_is_here_is_delivered(started: Start, probe: Probe) -> None:
    """After a fail-over that lost the latest commits, a sequence gives the same numbers again."""
    source, seen, go_on = ScriptedSource(), [], asyncio.Event()

    async def handle(delivery: Delivery) -> None:
        seen.append(delivery.event.id)
        await go_on.wait()

    old = [source.rows[seq].event.id for seq in source.add(6)]
    engine = make_engine(source, handle, probe, worker_count=2)
    started(engine)
    async with asyncio.timeout(10):
        while len(seen) < 2:
            await asyncio.sleep(0)
    lost, source.rows = source.rows, {}  # the new primary has none of them
    source._numbers = iter(lost)  # type: ignore[assignment]
    new = [source.rows[seq].event.id for seq in source.add(4)]
    hot = source.add_hot(2)
    engine.wake()
    async with asyncio.timeout(10):
        while set(new) - {delivery.event.id for delivery in engine.in_flight()}:
            await asyncio.sleep(0)
    assert engine.offer(hot) == []
    go_on.set()
    async with asyncio.timeout(10):
        while source.rows:
            await asyncio.sleep(0.001)
    assert set(seen) == {*old[:2], *new, *(delivery.event.id for delivery in hot)}


async def test_what_a_worker_puts_back_after_a_halt_does_not_begin(probe: Probe) -> None:
    source = ScriptedSource()

    async def handle(delivery: Delivery) -> None:
        raise AssertionError

    engine = make_engine(source, handle, probe)
    engine.halt()
    engine.defer(source.add_hot(2))
    assert engine.take() is None
