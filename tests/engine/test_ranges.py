"""The range engine: every event once, one at a time per key, failures leave their range alone, stops give back."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any

import pytest
import pytest_asyncio
from scripted_log import Parked, ScriptedLog, make_range_engine

from relaybox.engine.ranges.engine import RangeEngine
from relaybox.engine.ranges.workers import RangeBatch
from relaybox.errors import BatchFailed, BrokerUnavailable, Reject, RetryLater
from relaybox.event import Event
from relaybox.facts import ClaimLost, LoopFailed
from relaybox.testing import Probe

Start = Callable[..., RangeEngine]


@pytest_asyncio.fixture
async def start(probe: Probe) -> AsyncIterator[Start]:
    engines: list[RangeEngine] = []

    def started(log: ScriptedLog, handler: Any, **settings: Any) -> RangeEngine:
        engine = make_range_engine(log, handler, probe, **settings)
        engines.append(engine)
        engine.start()
        return engine

    yield started
    for engine in engines:
        await engine.stop()


class Batches:
    """A batch handler that notes what it was given."""

    def __init__(self, call: Callable[[list[Event]], None] = lambda events: None, size: int = 100) -> None:
        self.size = size
        self.calls: list[list[int]] = []
        self._call = call

    async def handle(self, batch: RangeBatch) -> None:
        self.calls.append([event.seq or 0 for event in batch.events])
        await asyncio.sleep(0)
        self._call(batch.events)


async def until_idle(engine: RangeEngine) -> None:
    async with asyncio.timeout(20):
        await engine.until_idle()


async def until_empty(log: ScriptedLog) -> None:
    """Until nothing is left, not even of what waits for its next attempt."""
    async with asyncio.timeout(30):
        while not log.empty:
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("ordered", [True, False])
async def test_every_event_is_handled_once_and_ranges_are_settled_whole(start: Start, ordered: bool) -> None:
    log, seen = ScriptedLog(ordered=ordered), []

    async def handle(event: Event) -> None:
        seen.append(event.seq)

    numbers = log.add(5000, keys=97)
    engine = start(log, handle, batch=400)
    await until_idle(engine)
    assert sorted(seen) == numbers
    assert log.empty
    assert log.settled_ranges < 500
    assert engine.counts.done == 5000


async def test_one_at_a_time_per_key_and_keys_at_the_same_time(start: Start) -> None:
    log, running, most = ScriptedLog(), Counter[str](), 0

    async def handle(event: Event) -> None:
        nonlocal most
        assert event.key is not None
        running[event.key] += 1
        assert running[event.key] == 1
        most = max(most, running.total())
        await asyncio.sleep(0.0005)
        running[event.key] -= 1

    log.add(300, keys=7)
    await until_idle(start(log, handle, workers=8))
    assert most > 3


async def test_a_failed_event_is_followed_by_the_later_ones_of_its_key(start: Start) -> None:
    log, done, failures = ScriptedLog(), defaultdict(list), Counter[int]()

    async def handle(event: Event) -> None:
        seq = event.seq or 0
        if event.key == "k3" and failures[seq] < 3 and len(done["k3"]) in (2, 5):
            failures[seq] += 1
            raise ValueError("not now")
        done[event.key].append(seq)

    log.add(200, keys=5)
    engine = start(log, handle, pause=0.01)
    await until_empty(log)
    assert all(seqs == sorted(seqs) and len(seqs) == 40 for seqs in done.values())
    assert engine.counts.failed >= 3


@pytest.mark.parametrize("ordered", [True, False])
async def test_order_and_completeness_under_random_failures(start: Start, ordered: bool) -> None:
    rng, log = random.Random(7), ScriptedLog(ordered=ordered, shards=3)
    done: defaultdict[str | None, list[int]] = defaultdict(list)

    async def handle(event: Event) -> None:
        if rng.random() < 0.3:
            await asyncio.sleep(rng.random() * 0.002)
        if rng.random() < 0.05:
            raise OSError("chance")
        done[event.key].append(event.seq or 0)

    engine = start(log, handle, pause=0.003, attempts=50, workers=6, engine={"range_events": 40})
    total = 0
    for _ in range(20):
        log.add(100, keys=11)
        log.add(5)
        total += 105
        engine.wake()
        await asyncio.sleep(0.01)
    await until_empty(log)
    assert sum(map(len, done.values())) == total
    if ordered:
        assert all(seqs == sorted(seqs) for key, seqs in done.items() if key is not None)


@pytest.mark.parametrize("batch", [False, True])
async def test_what_follows_is_not_parked_before_what_it_follows(start: Start, batch: bool) -> None:
    """A later range is through first: its part of the key must not be free while the failed head is not settled."""
    log, order, gate = ScriptedLog(shards=1), [], asyncio.Event()

    async def handle(event: Event) -> None:
        if event.key == "b":
            await gate.wait()
        if event.seq == 1 and 1 not in order:
            order.append(1)
            raise OSError("once")
        if event.key == "a":
            order.append(event.seq or 0)

    class One(Batches):
        async def handle(self, batch: RangeBatch) -> None:
            for event in batch.events:
                await handle(event)

    for key in "abac":
        log.add(1, key=key)
    engine = start(log, One(size=1) if batch else handle, batch=100, engine={"range_events": 2})
    await asyncio.sleep(0.1)
    assert [seq for seq in log.parked if seq == 3] == []
    gate.set()
    await until_empty(log)
    assert order == [1, 1, 3]
    assert engine.counts.failed == 1


async def test_many_that_must_follow_do_not_hide_what_may_run(start: Start) -> None:
    """A call's worth of followers in a row is no end of the work."""
    log, done, failed = ScriptedLog(shards=1), [], []

    def call(events: list[Event]) -> None:
        if events[0].seq == 1 and 1 not in failed:
            failed.append(len(events))  # until it has failed alone
            raise OSError("once")
        done.extend([event.seq for event in events])

    log.add(1, key="a")
    log.add(200, key="a")
    log.add(50, key="b")
    start(log, Batches(call, size=10), batch=1000, workers=1, pause=0.05, engine={"eager": True})
    await until_empty(log)
    assert [seq for seq in done if seq > 201] == list(range(202, 252))
    assert [seq for seq in done if seq <= 201] == list(range(1, 202))


@pytest.mark.parametrize("way", ["forget", "stop"])
async def test_what_follows_is_given_back_with_what_it_follows(start: Start, way: str) -> None:
    """The range of the failed head's successor is given up: what was to follow in a later range goes with it."""
    log, order, gate = ScriptedLog(shards=1), [], asyncio.Event()
    failing = {1}

    async def handle(event: Event) -> None:
        if event.key == "b" and not gate.is_set():
            await gate.wait()
        if event.seq in failing:
            failing.clear()
            raise OSError("once")
        order.append((event.key, event.seq))

    for key in "abbaba":
        log.add(1, key=key)
    settings = {"batch": 100, "stop_timeout": timedelta(milliseconds=30)}
    engine = start(log, handle, engine={"range_events": 2}, **settings)
    await asyncio.sleep(0.05)
    if way == "forget":
        engine.lost()
    else:
        await engine.stop()
        gate.set()
        start(log, handle, engine={"range_events": 2})
    gate.set()
    await until_empty(log)
    assert [seq for key, seq in order if key == "a"] == [1, 4, 6]
    assert list(dict.fromkeys(seq for key, seq in order if key == "b")) == [2, 3, 5]


async def test_a_dead_event_lets_its_key_go_on_or_holds_it(start: Start) -> None:
    for parks in (False, True):
        log, seen = ScriptedLog(parks=parks), []

        async def handle(event: Event, seen: list[Any] = seen) -> None:
            if event.seq == 3:
                raise Reject("never")
            seen.append(event.seq)

        log.add(10, key="a")
        log.add(5, key="b")
        await until_idle(start(log, handle))
        assert [n for n in seen if n > 10] == [11, 12, 13, 14, 15]
        assert [n for n in seen if n <= 10] == ([1, 2] if parks else [1, 2, 4, 5, 6, 7, 8, 9, 10])
        assert [seq for seq, parked in log.parked.items() if parked.state == "dead"] == [3]


async def test_a_batch_says_which_of_its_events_failed(start: Start) -> None:
    log = ScriptedLog(ordered=False, shards=1)
    attempts: Counter[int] = Counter()

    def call(events: list[Event]) -> None:
        attempts.update([event.seq or 0 for event in events])
        if attempts[5] == 1:
            raise BatchFailed({event: ValueError("no") for event in events if event.seq == 5})

    batches = Batches(call)
    log.add(20)
    engine = start(log, batches)
    await until_empty(log)
    assert attempts == Counter(range(1, 21)) + Counter([5])
    assert engine.counts.failed == 1


async def test_who_spoils_a_batch_is_found_in_few_calls_and_the_others_are_done(start: Start) -> None:
    log, done = ScriptedLog(shards=1), []

    def call(events: list[Event]) -> None:
        if any(event.seq == 700 for event in events):
            raise ValueError("poison")
        done.extend([event.seq for event in events])

    batches = Batches(call, size=1000)
    log.add(1000, keys=10)
    engine = start(log, batches, attempts=2, engine={"eager": True})
    await until_idle(engine)
    while [p for p in log.parked.values() if p.state != "dead"]:
        await asyncio.sleep(0.005)
    assert sorted(done) == [n for n in range(1, 1001) if n != 700]
    assert len(batches.calls) < 300
    behind = [n for n in done if n % 10 == 0]
    assert behind == sorted(behind)


async def test_a_batch_waits_for_a_destination_that_is_away_and_counts_nothing(start: Start) -> None:
    log, tries = ScriptedLog(shards=1), Counter[str]()

    def call(events: list[Event]) -> None:
        tries["n"] += 1
        if tries["n"] < 4:
            raise BrokerUnavailable("away") if tries["n"] % 2 else RetryLater(timedelta(milliseconds=1))

    batches = Batches(call)
    log.add(10, key="a")
    engine = start(log, batches, pause=0.001, engine={"eager": True})
    await until_idle(engine)
    assert batches.calls == [list(range(1, 11))] * 4
    assert engine.counts.failed == 0
    assert log.empty


async def test_batches_of_a_shard_come_one_after_the_other(start: Start) -> None:
    log, running = ScriptedLog(shards=2), set()
    order: defaultdict[str | None, list[int]] = defaultdict(list)

    class Slow(Batches):
        async def handle(self, batch: RangeBatch) -> None:
            keys = {event.key for event in batch.events}
            assert not keys & running
            running.update(keys)
            await asyncio.sleep(0.001)
            for event in batch.events:
                order[event.key].append(event.seq or 0)
            running.difference_update(keys)

    log.add(500, keys=9)
    await until_idle(start(log, Slow(size=7), workers=5))
    assert all(seqs == sorted(seqs) for seqs in order.values())
    assert sum(map(len, order.values())) == 500


async def test_a_stop_gives_back_what_has_not_run_and_nothing_comes_twice(start: Start) -> None:
    log, seen = ScriptedLog(), []
    enough = asyncio.Event()

    async def handle(event: Event) -> None:
        await asyncio.sleep(0.0002)
        seen.append(event.seq)
        if len(seen) == 500:
            enough.set()

    numbers = log.add(2000, keys=50)
    first = start(log, handle, batch=2000)
    await enough.wait()
    await first.stop()
    assert len(seen) < 2000
    assert all(held.token is None and held.attempts == 0 for held in log.ranges)
    await until_idle(start(log, handle, batch=2000))
    assert sorted(seen) == numbers


async def test_a_stop_cancels_who_takes_too_long_and_gives_that_back(start: Start) -> None:
    log, seen = ScriptedLog(shards=1), []

    async def handle(event: Event) -> None:
        seen.append(event.seq)
        if event.seq == 3 and seen.count(3) == 1:
            await asyncio.sleep(60)

    log.add(6, key="a")
    engine = start(log, handle, stop_timeout=timedelta(milliseconds=50))
    while 3 not in seen:
        await asyncio.sleep(0.001)
    await engine.stop()
    await until_idle(start(log, handle))
    assert seen == [1, 2, 3, 3, 4, 5, 6]


async def test_what_another_has_is_not_begun(start: Start, probe: Probe) -> None:
    log, seen, gate = ScriptedLog(shards=1, lease=0.2), [], asyncio.Event()

    async def handle(event: Event) -> None:
        seen.append(event.seq)
        if event.seq == 1:
            await gate.wait()

    log.add(50, key="a")
    engine = start(log, handle, lease=timedelta(milliseconds=200), instance_ttl=timedelta(milliseconds=50))
    while not seen:
        await asyncio.sleep(0.001)
    log.take_away()
    await probe.wait(ClaimLost)
    gate.set()
    await engine.stop()
    assert seen == [1]


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("seed", range(4))
async def test_nothing_is_lost_and_nothing_overtakes_when_leases_end_at_any_time(
    start: Start, seed: int, batch: bool
) -> None:
    """A worker may have an event that it has not begun when its range is given up."""
    rng, log = random.Random(seed), ScriptedLog(shards=2)
    ended: set[int] = set()
    previous: dict[int, int] = {}
    overtaken = []

    async def handle(event: Event) -> None:
        seq = event.seq or 0
        if previous.get(seq) not in (None, *ended):
            overtaken.append(seq)
        if rng.random() < 0.2:
            await asyncio.sleep(rng.random() * 0.002)
        if rng.random() < 0.02:
            raise OSError("chance")
        ended.add(seq)

    class All(Batches):
        async def handle(self, batch: RangeBatch) -> None:
            for event in batch.events:
                await handle(event)

    log.add(1500, keys=7)
    for events in log.unread.values():
        last: dict[str, int] = {}
        for event in events:
            assert event.key is not None
            assert event.seq is not None
            if event.key in last:
                previous[event.seq] = last[event.key]
            last[event.key] = event.seq
    handler = All(size=30) if batch else handle
    engine = start(log, handler, pause=0.002, attempts=1000, batch=300, engine={"range_events": 60})
    async with asyncio.timeout(60):
        while not log.empty:
            await asyncio.sleep(rng.random() * 0.02)
            if rng.random() < 0.5:
                engine.lost()
            elif rng.random() < 0.3:
                log.alive_until = 0.0
                await asyncio.sleep(0.03)
                engine.lost()
                log.alive_until = log.clock.monotonic() + 60
            elif rng.random() < 0.2:
                engine.pause()
                await asyncio.sleep(0.002)
                engine.resume()
    assert ended == set(range(1, 1501))
    assert overtaken == []


async def test_nothing_starts_during_a_silence(start: Start) -> None:
    log, seen = ScriptedLog(), []

    async def handle(event: Event) -> None:
        seen.append(event.seq)
        log.alive_until = 0.0

    log.add(3, key="a")
    engine = start(log, handle)
    while not seen:
        await asyncio.sleep(0.001)
    await asyncio.sleep(0.06)
    assert seen == [1]
    log.alive_until = log.clock.monotonic() + 60
    while len(seen) < 2:
        await asyncio.sleep(0.001)
    await engine.stop()


async def test_a_handler_that_runs_too_long_has_failed(start: Start) -> None:
    log, seen = ScriptedLog(), Counter[int]()

    async def handle(event: Event) -> None:
        seen[event.seq or 0] += 1
        if event.seq == 2 and seen[2] == 1:
            await asyncio.sleep(60)

    log.add(4)
    engine = start(log, handle, timeout=timedelta(milliseconds=40))
    await until_empty(log)
    assert seen == Counter([1, 2, 2, 3, 4])
    assert engine.counts.failed == 1


async def test_the_database_may_be_away_for_a_while(start: Start, probe: Probe) -> None:
    log, seen = ScriptedLog(), []

    async def handle(event: Event) -> None:
        seen.append(event.seq)
        if len(seen) == 20:
            log.down = {"settle", "claim", "renew"}

    numbers = log.add(100, keys=3)
    engine = start(log, handle, batch=40)
    while len(seen) < 20:
        await asyncio.sleep(0.001)
    await probe.wait(LoopFailed, 3)
    log.down = set()
    await until_idle(engine)
    assert sorted(seen) == numbers
    assert log.empty


async def test_a_pause_gives_back_what_has_not_begun(start: Start) -> None:
    log, seen = ScriptedLog(shards=8), []

    async def handle(event: Event) -> None:
        await asyncio.sleep(0.0002)
        seen.append(event.seq)

    numbers = log.add(800, keys=100)
    engine = start(log, handle, batch=800, workers=1)
    while len(seen) < 20:
        await asyncio.sleep(0.001)
    engine.pause()
    async with asyncio.timeout(5):
        while engine.in_flight:
            await asyncio.sleep(0.002)
    assert len(seen) < 400
    engine.resume()
    await until_idle(engine)
    assert sorted(seen) == numbers


async def test_what_may_kill_its_process_runs_alone(start: Start) -> None:
    log, running, alone = ScriptedLog(ordered=False), set(), []

    async def handle(event: Event) -> None:
        seq = event.seq or 0
        running.add(seq)
        await asyncio.sleep(0.001)
        if seq <= 3:
            alone.append(len(running) == 1)
        running.discard(seq)

    log.add(3)
    for events in log.unread.values():
        for event in events:
            log.parked[event.seq or 0] = Parked(event, "retry", 8, 0.0)
        events.clear()
    log.add(300)
    start(log, handle, attempts=10)
    await until_empty(log)
    assert alone == [True, True, True]


async def test_memory_is_bounded_by_events_and_by_bytes(start: Start) -> None:
    log, gate, held = ScriptedLog(), asyncio.Event(), list[int]()

    async def handle(event: Event) -> None:
        await gate.wait()
        held.append(engine.in_flight)

    log.add(5000)
    engine = start(log, handle, batch=5000, engine={"capacity": 1000})
    while not engine.in_flight:
        await asyncio.sleep(0.001)
    gate.set()
    await until_idle(engine)
    assert len(held) == 5000
    assert max(held) <= 1000


async def test_who_shares_the_log_with_others_asks_for_longer_ranges_and_for_no_more_in_all(start: Start) -> None:
    log, gate = ScriptedLog(shards=8), asyncio.Event()
    log.share = 2

    async def handle(event: Event) -> None:
        await gate.wait()

    log.add(5000)
    engine = start(log, handle, batch=1000, engine={"capacity": 1000})
    while not engine.in_flight:
        await asyncio.sleep(0.001)
    assert log.asked[0] == (500, 2)
    assert engine.in_flight <= 1000
    gate.set()
    await until_idle(engine)
    assert log.empty


async def test_what_may_be_shared_is_cut_at_the_same_places(start: Start) -> None:
    """Whatever room there is: who asks for shorter ranges reads alone from then on."""
    log = ScriptedLog(ordered=False, shards=4)
    log.add(3000, keys=200)
    engine = start(log, Batches(size=70), workers=2, engine={"eager": True, "range_events": 100, "capacity": 400})
    await until_idle(engine)
    assert log.empty
    assert {events for events, _ in log.asked} == {100}
    assert min(ranges for _, ranges in log.asked) < 4
