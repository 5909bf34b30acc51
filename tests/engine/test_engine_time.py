"""The engine and time: leases, renewals, measurements, polls, and what stays bounded."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from scripted_source import MakeEngine, ScriptedSource

from relaybox.engine.rows.engine import Delivery
from relaybox.facts import Claimed, ClaimLost, Delivered, Depths, LoopFailed, Retried
from relaybox.testing import ManualClock, Probe, crash_at


async def nothing(delivery: Delivery) -> None:
    return None


async def test_leases_live_in_the_clock_they_were_given_in(start: MakeEngine, probe: Probe) -> None:
    """A manual clock starts at zero, far from the event loop's own time."""
    clock = ManualClock()
    source = ScriptedSource(clock=clock)
    source.add(3)
    start(source, nothing, clock=clock)
    await probe.wait(Delivered, 3)
    assert probe.of(ClaimLost) == []


async def test_a_lease_ends_when_the_clock_says_so(start: MakeEngine, probe: Probe) -> None:
    clock, gate, entered = ManualClock(), asyncio.Event(), asyncio.Event()
    source, seen = ScriptedSource(clock=clock), []

    async def handler(delivery: Delivery) -> None:
        seen.append(delivery.seq)
        entered.set()
        await gate.wait()

    source.add(2)
    source.down = {"renew"}
    start(source, handler, clock=clock, workers=1)
    await probe.wait(Claimed, 2)
    await entered.wait()
    clock.advance(31)  # the second one waited too long
    gate.set()
    await probe.wait(ClaimLost)
    await probe.wait(Delivered, 2)
    assert (seen, source.released) == ([1, 2], [2])  # not under the old lease: given back and claimed anew


async def test_what_is_still_here_is_renewed(start: MakeEngine, probe: Probe) -> None:
    clock, gate = ManualClock(), asyncio.Event()
    source = ScriptedSource(clock=clock)

    async def handler(delivery: Delivery) -> None:
        await gate.wait()

    source.add(2)
    engine = start(source, handler, clock=clock, workers=1, lease=timedelta(seconds=30))
    await probe.wait(Claimed, 2)
    for _ in range(5):
        await clock.wait_for_sleepers()
        before = len(source.renewed)
        clock.advance(10)
        while len(source.renewed) == before:
            await asyncio.sleep(0)
    gate.set()
    await probe.wait(Delivered, 2)  # fifty seconds under leases of thirty
    assert (probe.of(ClaimLost), list(engine.in_flight())) == ([], [])


async def test_a_claim_that_cannot_be_renewed_never_starts(start: MakeEngine, probe: Probe) -> None:
    clock, gate, entered = ManualClock(), asyncio.Event(), asyncio.Event()
    source, seen = ScriptedSource(clock=clock), []

    async def handler(delivery: Delivery) -> None:
        seen.append(delivery.seq)
        entered.set()
        await gate.wait()

    source.add(2)
    start(source, handler, clock=clock, workers=1)
    await probe.wait(Claimed, 2)
    await entered.wait()
    source.rows[2].token = 7  # taken over by another instance
    await clock.wait_for_sleepers()
    clock.advance(10)
    await probe.wait(ClaimLost)
    gate.set()
    await probe.wait(Delivered)
    await probe.wait(ClaimLost, 2)
    assert (seen, 2 in source.rows) == ([1], True)


async def test_depths_and_lag_are_measured_under_load(start: MakeEngine, probe: Probe) -> None:
    """The lag matters most when the poller never rests: queues full, listeners slow."""
    clock, gate = ManualClock(), asyncio.Event()
    source = ScriptedSource(clock=clock)

    async def handler(delivery: Delivery) -> None:
        await gate.wait()

    source.add(50)
    start(source, handler, clock=clock, workers=1, cold_queue=4)
    await probe.wait(Claimed, 4)
    for n in range(1, 4):
        await clock.wait_for_sleepers()
        await probe.wait(Depths, n)
        clock.advance(1)
    fact = probe.of(Depths)[-1]
    assert (fact.hot, fact.cold, fact.oldest) == (0, 3, timedelta(seconds=5))
    gate.set()


async def test_a_failed_measurement_is_missing_not_zero(start: MakeEngine, probe: Probe) -> None:
    source = ScriptedSource()
    source.down = {"oldest", "claim"}  # an outage: claims fail as well
    start(source, nothing)
    (fact, *_) = await probe.wait(Depths)
    assert fact.oldest is None


async def test_an_empty_outbox_has_no_lag(start: MakeEngine, probe: Probe) -> None:
    start(ScriptedSource(), nothing)
    (fact, *_) = await probe.wait(Depths)
    assert fact == Depths(0, 0, timedelta(0))


async def test_a_due_row_that_cannot_be_claimed_does_not_make_the_poller_spin(start: MakeEngine) -> None:
    """Behind a parked head, or in another instance's shard: due, and never ours."""
    source, polls = ScriptedSource(), 6
    source.next_due = lambda: asyncio.sleep(0, timedelta(seconds=-5))  # type: ignore[method-assign,assignment]
    engine = start(source, nothing)
    engine.poll_every(timedelta(seconds=0.4))
    while len(source.claimed_at) < polls:
        await asyncio.sleep(0.01)
    gaps = [b - a for a, b in zip(source.claimed_at, source.claimed_at[1:], strict=False)]
    assert max(gaps) > 0.3  # it has backed off towards the poll interval


async def test_a_row_that_became_due_while_resting_is_claimed_at_once(start: MakeEngine, probe: Probe) -> None:
    source = ScriptedSource()
    (seq,) = source.add()
    source.rows[seq].due = asyncio.get_running_loop().time() + 0.02
    engine = start(source, nothing)
    engine.poll_every(timedelta(hours=1))
    await probe.wait(Delivered, timeout=2)


async def test_timers_of_retries_do_not_pile_up(start: MakeEngine, probe: Probe) -> None:
    """A million events that fail must not leave a million timers: memory is bounded by the queues."""
    source = ScriptedSource()

    async def fail(delivery: Delivery) -> None:
        raise ValueError

    source.add(500)
    start(source, fail, pause=3600)
    await probe.wait(Retried, 500)
    scheduled = asyncio.get_running_loop()._scheduled  # type: ignore[attr-defined]
    assert sum(1 for timer in scheduled if not timer.cancelled()) < 50


@pytest.mark.parametrize("point", ["settle.before", "settle.after", "claim.before", "claim.after"])
async def test_an_error_at_a_fault_point_delays_and_loses_nothing(start: MakeEngine, probe: Probe, point: str) -> None:
    source = ScriptedSource(lease=0.2)
    with crash_at(point) as crash:
        source.add(1)
        start(source, nothing)
        while source.rows:
            await asyncio.sleep(0.005)
    assert crash.fired
    assert len(probe.of(LoopFailed)) == 1
