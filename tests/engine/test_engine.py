"""The delivery engine over a scripted source: fairness, outcomes, capacity, fencing, drain."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from datetime import timedelta

import pytest
from scripted_source import MakeEngine, ScriptedSource, make_engine

from relaybox.clock import SYSTEM_CLOCK
from relaybox.engine.rows.engine import Delivery
from relaybox.engine.threads import ListenerThreads
from relaybox.errors import Reject, RetryLater, Undecodable, Unroutable
from relaybox.event import Event
from relaybox.facts import Claimed, ClaimLost, Delivered, Died, HotDropped, HotEnqueued, LoopFailed, Released, Retried
from relaybox.outbox.hand_over import HandOvers
from relaybox.testing import Probe

SECOND = timedelta(seconds=1)


class Gate:
    """A handler that says when it was entered and goes on when told."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.entered = asyncio.Event()
        self.seen: list[Delivery] = []
        self.running = self.most = 0

    async def __call__(self, delivery: Delivery) -> None:
        self.seen.append(delivery)
        self.running += 1
        self.most = max(self.most, self.running)
        self.entered.set()
        try:
            await self.open.wait()
        finally:
            self.running -= 1

    @property
    def seqs(self) -> list[int]:
        return [delivery.seq for delivery in self.seen]


async def nothing(delivery: Delivery) -> None:
    return None


# -- claiming and delivering ------------------------------------------------------------------------


async def test_delivers_everything_once(start: MakeEngine, probe: Probe) -> None:
    source, seen = ScriptedSource(), Counter[int]()

    async def count(delivery: Delivery) -> None:
        seen[delivery.seq] += 1

    source.add(300)
    start(source, count)
    await probe.wait(Delivered, 300)
    assert seen == Counter(range(1, 301))
    assert source.rows == {}
    assert probe.count(Claimed) == 300


async def test_two_hot_for_one_cold_under_saturation(start: MakeEngine, probe: Probe) -> None:
    source, gate = ScriptedSource(), Gate()
    source.add(11)
    engine = start(source, gate, workers=1)
    await gate.entered.wait()
    await probe.wait(Claimed, 11)
    engine.offer(source.add_hot(20))
    assert engine.depths == (20, 10)
    gate.open.set()
    await probe.wait(Delivered, 31)
    assert "".join(delivery.source[0] for delivery in gate.seen) == "C" + "HHC" * 10


async def test_an_empty_queue_yields_to_the_other(start: MakeEngine, probe: Probe) -> None:
    source, gate = ScriptedSource(), Gate()
    source.add(2)
    engine = start(source, gate, workers=1)
    await probe.wait(Claimed, 2)
    engine.offer(source.add_hot(6))
    gate.open.set()
    await probe.wait(Delivered, 8)
    assert "".join(delivery.source[0] for delivery in gate.seen) == "CHHCHHHH"


async def test_capacity_is_never_exceeded(start: MakeEngine, probe: Probe) -> None:
    source, permits, running, most = ScriptedSource(), asyncio.Semaphore(0), 0, 0

    async def one_permit_each(delivery: Delivery) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await permits.acquire()
        running -= 1

    source.add(60)
    engine = start(source, one_permit_each, workers=3, cold_queue=10, batch=50)
    for done in range(0, 60, 4):  # part of the capacity becomes free, never all of it
        await probe.wait(Claimed, min(done + 10, 60))
        assert sum(1 for _ in engine.in_flight()) <= 10
        for _ in range(4):
            permits.release()
        await probe.wait(Delivered, done + 4)
    assert (max(source.limits), most) == (10, 3)  # workers is the hard limit of concurrent events
    assert source.rows == {}


async def test_claims_grow_while_listeners_keep_up(start: MakeEngine, probe: Probe) -> None:
    source = ScriptedSource()
    source.add(3_000)
    start(source, nothing, batch=10, cold_queue=500)
    await probe.wait(Delivered, 3_000)
    assert source.limits[0] == 10
    assert 100 < max(source.limits) <= 500


# -- outcomes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [Unroutable("nobody"), Reject("no"), Undecodable("what")])
async def test_what_cannot_work_is_dead_at_once(start: MakeEngine, probe: Probe, error: Exception) -> None:
    source, calls = ScriptedSource(), 0

    async def fail(delivery: Delivery) -> None:
        nonlocal calls
        calls += 1
        raise error

    (seq,) = source.add()
    start(source, fail)
    (died,) = await probe.wait(Died)
    assert (calls, died.attempts, list(source.dead), source.rows) == (1, 1, [seq], {})
    assert died.undecodable == isinstance(error, Undecodable)
    assert source.dead[seq].error == f"{type(error).__name__}: {error}"


async def test_retried_until_max_attempts_then_dead(start: MakeEngine, probe: Probe) -> None:
    source, attempts = ScriptedSource(), []

    async def fail(delivery: Delivery) -> None:
        attempts.append(delivery.attempts)
        raise ValueError("no")

    source.add()
    start(source, fail, attempts=3)
    (died,) = await probe.wait(Died)
    assert attempts == [1, 2, 3]
    assert [fact.attempts for fact in probe.of(Retried)] == [1, 2]
    assert (died.attempts, died.error) == (3, "ValueError: no")


async def test_a_listener_chooses_its_own_delay(start: MakeEngine, probe: Probe) -> None:
    source = ScriptedSource()

    async def later(delivery: Delivery) -> None:
        raise RetryLater(timedelta(hours=1))

    source.add()
    start(source, later)
    (fact,) = await probe.wait(Retried)
    assert fact.delay == timedelta(hours=1)


async def test_a_retry_runs_when_it_is_due(start: MakeEngine, probe: Probe) -> None:
    source, calls = ScriptedSource(), []

    async def once(delivery: Delivery) -> None:
        calls.append(delivery.attempts)
        if len(calls) == 1:
            raise ValueError

    source.add()
    engine = start(source, once, pause=0.05)
    engine.poll_every(timedelta(hours=1))  # only the due time can wake it
    await probe.wait(Delivered)
    assert calls == [1, 2]


async def test_an_event_whose_row_is_gone_is_settled_without_a_call(start: MakeEngine, probe: Probe) -> None:
    source, gate = ScriptedSource(), Gate()
    (seq,) = source.add()
    source.rows[seq].event = Event.stored((seq, *[None] * 11))
    engine = start(source, gate)
    while source.rows:
        await asyncio.sleep(0)
    assert (gate.seen, list(engine.in_flight())) == ([], [])


# -- timeouts ---------------------------------------------------------------------------------------


async def test_an_async_listener_that_hangs_is_cancelled_and_retried(start: MakeEngine, probe: Probe) -> None:
    source, gate = ScriptedSource(), Gate()
    source.add(2)
    start(source, gate, timeout=timedelta(milliseconds=20), attempts=2, workers=1)
    facts = await probe.wait(Died, 2)
    assert gate.running == 0
    assert all(fact.error == "TimeoutError: the handler ran longer than 0.02 s" for fact in facts)


async def test_a_plain_listener_that_hangs_costs_its_thread_not_a_worker(start: MakeEngine, probe: Probe) -> None:
    source, threads, release = ScriptedSource(), ListenerThreads(1), threading.Event()
    hung = threading.Event()

    def hang(delivery: Delivery) -> None:
        if delivery.seq == 1 and not hung.is_set():
            hung.set()
            release.wait(30)

    async def handler(delivery: Delivery) -> None:
        await threads.call(hang, delivery)

    source.add(3)
    start(source, handler, timeout=timedelta(milliseconds=50), workers=1)
    await probe.wait(Delivered, 3)  # the hung one too, at its second attempt
    assert [fact.error.partition(":")[0] for fact in probe.of(Retried)] == ["TimeoutError"]
    release.set()
    threads.close()


async def test_no_timeout_when_there_is_none(start: MakeEngine, probe: Probe) -> None:
    source = ScriptedSource()
    source.add()
    start(source, nothing, timeout=None)
    await probe.wait(Delivered)
    assert probe.of(Retried) == []


async def test_a_listener_that_raises_cancelled_error_fails_and_the_worker_lives(
    start: MakeEngine, probe: Probe
) -> None:
    """An awaited task that was cancelled looks like this. It must not take the worker with it."""
    source, calls = ScriptedSource(), []

    async def listener(delivery: Delivery) -> None:
        calls.append(delivery.seq)
        if len(calls) <= 3:
            raise asyncio.CancelledError

    source.add(3)
    start(source, listener, workers=1)
    await probe.wait(Delivered, 3)
    assert [fact.error for fact in probe.of(Retried)] == ["CancelledError"] * 3


async def test_a_listener_that_swallows_its_timeout_does_not_spoil_the_stop(probe: Probe) -> None:
    source, entered = ScriptedSource(), asyncio.Event()

    async def stubborn(delivery: Delivery) -> None:
        if delivery.seq == 1:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                return
        entered.set()
        await asyncio.sleep(60)

    source.add(2)
    limits = {"timeout": timedelta(milliseconds=400), "stop_timeout": timedelta(milliseconds=10)}
    engine = make_engine(source, stubborn, probe, workers=1, **limits)
    engine.start()
    await entered.wait()
    await engine.stop()
    assert (source.released, probe.of(Retried)) == ([2], [])  # cancelled by the stop, not by a timeout


# -- the hot queue ----------------------------------------------------------------------------------


async def test_hot_queue_refuses_what_it_has_no_room_for(start: MakeEngine, probe: Probe) -> None:
    source, gate = ScriptedSource(), Gate()
    engine = start(source, gate, workers=1, hot_queue=3)
    hot = source.add_hot(5)
    assert engine.offer(hot) == hot[3:]
    await gate.entered.wait()
    assert engine.offer(source.add_hot(1)) != []  # running counts until it is settled
    assert (probe.count(HotEnqueued), probe.count(HotDropped)) == (3, 3)
    gate.open.set()
    await probe.wait(Delivered, 3)
    assert engine.offer(source.add_hot(3)) == []


async def test_a_vanished_row_is_not_delivered(start: MakeEngine, probe: Probe) -> None:
    """A rolled-back savepoint took the row away after the hand-over was prepared."""
    source, gate = ScriptedSource(), Gate()
    gate.open.set()
    engine = start(source, gate)
    hot = source.add_hot(3)
    del source.rows[hot[1].seq]
    HandOvers(engine, source, SYSTEM_CLOCK, lambda: None).take(hot)  # type: ignore[arg-type]
    await probe.wait(Delivered, 2)
    assert gate.seqs == [hot[0].seq, hot[2].seq]


async def test_offered_twice_runs_once(start: MakeEngine, probe: Probe) -> None:
    source, gate = ScriptedSource(), Gate()
    engine = start(source, gate)
    hot = source.add_hot(1)
    engine.offer(hot)
    engine.offer(hot)
    gate.open.set()
    await probe.wait(Delivered)
    assert gate.seqs == [hot[0].seq]


# -- stopping ---------------------------------------------------------------------------------------


async def test_stop_lets_running_events_finish_and_gives_queued_ones_back(probe: Probe) -> None:
    source, gate = ScriptedSource(), Gate()
    source.add(5)
    engine = make_engine(source, gate, probe, workers=2)
    engine.start()
    await probe.wait(Claimed, 5)
    stopping = asyncio.create_task(engine.stop())
    await asyncio.sleep(0)
    hot = source.add_hot(1)
    assert engine.offer(hot) == hot  # nothing new
    gate.open.set()
    await stopping
    assert (probe.count(Delivered), source.released, list(engine.in_flight())) == (2, [3, 4, 5], [])
    assert [row.attempts for row in source.rows.values() if row.token is None] == [0, 0, 0]
    await engine.stop()  # again is harmless


async def test_stop_releases_what_did_not_finish(probe: Probe) -> None:
    source, gate = ScriptedSource(), Gate()
    seqs = source.add(4)
    engine = make_engine(source, gate, probe, workers=2, stop_timeout=timedelta(milliseconds=20))
    engine.start()
    await probe.wait(Claimed, 4)
    await gate.entered.wait()
    await engine.stop()
    assert sorted(source.released) == seqs
    assert (gate.running, [row.attempts for row in source.rows.values()]) == (0, [0] * 4)
    assert probe.of(Released) == [Released(4)]


async def test_stop_survives_a_database_that_is_away(probe: Probe) -> None:
    source, gate = ScriptedSource(), Gate()
    source.add(1)
    engine = make_engine(source, gate, probe, stop_timeout=timedelta(milliseconds=20))
    engine.start()
    await gate.entered.wait()
    source.down = {"claim", "settle", "release", "renew"}
    await engine.stop()
    assert list(engine.in_flight()) == []


async def test_stop_before_start(probe: Probe) -> None:
    await make_engine(ScriptedSource(), nothing, probe).stop()
    assert probe.facts == []


# -- a database that goes away ----------------------------------------------------------------------


async def test_settling_is_tried_again_and_memory_stays_bounded(start: MakeEngine, probe: Probe) -> None:
    source, seen = ScriptedSource(), Counter[int]()

    async def count(delivery: Delivery) -> None:
        seen[delivery.seq] += 1

    source.add(50)
    source.down = {"settle"}
    engine = start(source, count, cold_queue=8, hot_queue=4)
    refused = engine.offer(source.add_hot(10))
    assert len(refused) == 6
    await probe.wait(LoopFailed, 3, where=lambda fact: fact.loop == "settle")
    assert sum(1 for _ in engine.in_flight()) == 12
    assert sum(seen.values()) == 12
    assert engine.offer(refused) == refused
    source.down = set()
    await probe.wait(Delivered, 54)
    assert set(seen.values()) == {1}  # nobody ran twice because of the outage


async def test_claiming_goes_on_after_an_outage(start: MakeEngine, probe: Probe) -> None:
    source = ScriptedSource()
    source.down = {"claim"}
    source.add(3)
    start(source, nothing)
    await probe.wait(LoopFailed, 2)
    source.down = set()
    await probe.wait(Delivered, 3)


# -- claims that are lost, or renewed ---------------------------------------------------------------


async def test_a_lost_claim_is_counted_and_not_called_delivered(start: MakeEngine, probe: Probe) -> None:
    source, gate = ScriptedSource(), Gate()
    (seq,) = source.add()
    start(source, gate, workers=1)
    await gate.entered.wait()
    source.rows[seq].token = 1  # another instance has it now
    gate.open.set()
    await probe.wait(ClaimLost)
    assert probe.of(Delivered) == []
    assert seq in source.rows


async def test_a_fresh_claim_of_what_is_here_is_adopted(start: MakeEngine, probe: Probe) -> None:
    """Our lease ran out and our own poller claimed the row again: run once, settle under the new token."""
    source, gate = ScriptedSource(), Gate()
    (seq,) = source.add()
    engine = start(source, gate)
    await gate.entered.wait()
    first = source.rows[seq].token
    source.expire(seq)
    engine.wake()
    await probe.wait(Claimed, 2)
    assert source.rows[seq].token != first
    gate.open.set()
    await probe.wait(Delivered)
    assert (gate.seqs, source.rows, probe.of(ClaimLost)) == ([seq], {}, [])


async def test_nothing_starts_after_its_lease_ended(start: MakeEngine, probe: Probe) -> None:
    source, gate = ScriptedSource(), Gate()
    gate.open.set()
    engine = start(source, gate)
    engine.offer(source.add_hot(1, lease=-1.0))
    await probe.wait(ClaimLost)
    assert (gate.seen, list(engine.in_flight())) == ([], [])
