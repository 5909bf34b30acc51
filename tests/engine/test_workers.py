"""The tasks of both engines: they survive outages, are replaced when they end, and begin nothing after a stop."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
import pytest_asyncio
from scripted_log import ScriptedLog, make_range_engine
from scripted_source import ScriptedSource, make_engine

from relaybox.clock import SYSTEM_CLOCK
from relaybox.engine.protocols import RowBatch
from relaybox.engine.ranges.engine import RangeEngine
from relaybox.engine.ranges.workers import RangeBatch
from relaybox.engine.rows.engine import Delivery, RowEngine
from relaybox.event import Event
from relaybox.facts import Claimed, CutOff, Delivered, LoopFailed, Retried, Stuck, TaskEnded
from relaybox.ids import shard_of
from relaybox.testing import ManualClock, Probe

Engine = RowEngine | RangeEngine
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

            async def handle(self, batch: RowBatch) -> None:
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
    engine = started(make(handle, workers=3, timeout=timedelta(milliseconds=50)))
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
        if not cancelled:  # other code cancels our task: "cancel all tasks of this loop"
            cancelled = True
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(60)

    world.add(20)
    make = world.make_batches if batches else world.make
    engine = started(make(handle, workers=1))
    ended = await probe.wait(TaskEnded)
    assert ended[0].task == "worker"
    await probe.wait(Delivered, 20, timeout=20)
    assert engine.missing == 0
    assert "the task relaybox-worker ended unexpectedly and is replaced" in caplog.text


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
def test_a_program_that_ends_without_stopping_logs_no_lost_task(
    kind: type[Rows], caplog: pytest.LogCaptureFixture
) -> None:
    async def handle(event: Event) -> None:
        return None

    async def main() -> None:
        kind(Probe()).make(handle).start()
        await asyncio.sleep(0)

    asyncio.run(main())
    assert "ended unexpectedly" not in caplog.text


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
    engine = world.make(handle, workers=2, stop_timeout=timedelta(milliseconds=50))
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
    started(world.make(handle, attempts=2, pause=0.0))
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
    started(world.make(handle, attempts=3, on_exhausted="block", pause=0.0))
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
    started(world.make(handle, timeout=None))
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
    engine = make_engine(source, handle, probe, workers=2)
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


async def test_an_event_that_waits_for_a_heartbeat_survives_its_worker(
    started: Start, probe: Probe, caplog: pytest.LogCaptureFixture
) -> None:
    """It was taken and has not begun: the worker that replaces the other gives it back."""
    world, seen = Rows(probe), []

    async def handle(event: Event) -> None:
        seen.append(event.id)

    world.silence(True)
    world.add(3)
    started(world.make(handle, workers=1))
    await probe.wait(Claimed, 3)
    worker = next(task for task in asyncio.all_tasks() if task.get_name() == "relaybox-worker")
    worker.cancel()
    await probe.wait(TaskEnded)
    world.silence(False)
    await probe.wait(Delivered, 3)
    assert len(set(seen)) == 3


async def test_a_batch_worker_that_ends_gives_back_only_what_is_open(started: Start, probe: Probe) -> None:
    """What it had concluded is done, and the next of that key runs already."""
    source, running, together = ScriptedSource(ordered=True), set(), []
    seen: list[int] = []
    ended = asyncio.Event()

    class Batches:
        size, sequences = 2, False

        async def handle(self, batch: RowBatch) -> None:
            deliveries = await batch.waiting()
            keys = {delivery.lane for delivery in deliveries}
            together.extend(keys & running)
            running.update(keys)
            try:
                if {delivery.seq for delivery in deliveries} == {1, 2} and not ended.is_set():
                    batch.done(deliveries[0])
                    seen.append(1)
                    running.discard("a")
                    ended.set()
                    task = asyncio.current_task()
                    assert task is not None
                    task.cancel()
                await asyncio.sleep(0.01)
                for delivery in deliveries:
                    seen.append(delivery.seq)
                    batch.done(delivery)
            finally:
                running.difference_update(keys)

    source.add(1, key="a")
    source.add(1, key="b")
    source.add(5, key="a")
    started(make_engine(source, Batches(), probe, workers=2))
    await probe.wait(Delivered, 7, timeout=20)
    assert together == []
    assert sorted(seen) == [1, 2, 3, 4, 5, 6, 7]


async def test_a_range_worker_that_ends_amid_a_split_batch_leaves_no_shard_busy(started: Start, probe: Probe) -> None:
    log, cancelled = ScriptedLog(shards=2), False

    class Batches:
        size = 4

        async def handle(self, batch: RangeBatch) -> None:
            nonlocal cancelled
            shards = {shard_of(str(event.key), 2) for event in batch.events}
            if not cancelled and len(shards) > 1:
                raise RuntimeError("halves, please")
            if not cancelled and len(log.parked) == 0 and probe.count(TaskEnded) == 0 and batch.events[-1].seq == 4:
                cancelled = True
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
                await asyncio.sleep(60)

    one, two = (next(f"k{n}" for n in range(99) if shard_of(f"k{n}", 2) == shard) for shard in (0, 1))
    for key in (one, one, two, two):
        log.add(1, key=key)
    started(make_range_engine(log, Batches(), probe, workers=1))
    await probe.wait(TaskEnded, timeout=10)
    log.add(3, key=one)
    log.add(3, key=two)
    async with asyncio.timeout(20):
        while not log.empty:
            await asyncio.sleep(0.005)


def test_a_follower_that_is_not_ours_any_more_shares_no_batch(probe: Probe) -> None:
    """Its number may be another event's by now, in the same batch."""

    async def law() -> None:
        source, seen = ScriptedSource(ordered=True), []

        class Batches:
            size, sequences = 10, True

            async def handle(self, batch: RowBatch) -> None:
                deliveries = await batch.waiting()
                seen.append([delivery.seq for delivery in deliveries])
                batch.done_all(deliveries)

        source.add(3, key="a")
        engine = make_engine(source, Batches(), probe, workers=1)
        source.silent = True  # nothing begins before the lease of the second has ended
        engine.start()
        await probe.wait(Claimed, 3)
        next(delivery for delivery in engine.in_flight() if delivery.seq == 2).lease_end = 0.0
        source.silent = False
        await probe.wait(Delivered, 1)
        assert seen[0] == [1]
        await probe.wait(Delivered, 3)
        await engine.stop()

    asyncio.run(law())


@both
@pytest.mark.parametrize("freeze", [True, False])
async def test_the_garbage_collector_is_kept_away_only_if_asked(
    freeze: bool, kind: type[Rows], probe: Probe, started: Callable[[Engine], Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[object] = []
    monkeypatch.setattr(gc, "get_threshold", lambda: (700, 10, 10))  # a relay of another test may have been here
    for name in ("collect", "freeze", "set_threshold"):
        monkeypatch.setattr(gc, name, lambda *given, name=name: calls.append(name))

    async def handle(event: Event) -> None: ...

    started(kind(probe).make(handle, freeze_gc=freeze))
    assert calls == (["collect", "freeze", "set_threshold"] if freeze else [])
