"""The engine in ordered mode: per key one at a time and in order, retries included; other keys never wait."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from datetime import timedelta

from scripted_source import MakeEngine, ScriptedSource, make_engine

from relaybox.engine.rows.engine import Delivery
from relaybox.facts import Claimed, ClaimLost, Delivered, Died, Retried
from relaybox.testing import Probe


class Recorder:
    """Notes the order per key and that no two of a key overlap; fails where told."""

    def __init__(self, failures: dict[int, int] | None = None) -> None:
        self.failures = dict(failures or {})
        self.done: dict[str | None, list[int]] = defaultdict(list)
        self.tried: list[int] = []
        self.busy: set[str] = set()
        self.overlaps = 0

    async def __call__(self, delivery: Delivery) -> None:
        key = delivery.event.key
        self.tried.append(delivery.seq)
        if key is not None:
            self.overlaps += key in self.busy
            self.busy.add(key)
        await asyncio.sleep(0)
        if key is not None:
            self.busy.discard(key)
        if self.failures.get(delivery.seq, 0) > 0:
            self.failures[delivery.seq] -= 1
            raise ValueError("no")
        self.done[key].append(delivery.seq)


async def test_order_per_key_under_retries(start: MakeEngine, probe: Probe) -> None:
    source = ScriptedSource(ordered=True)
    for _ in range(40):
        for key in ("a", "b", "c", "d"):
            source.add(key=key)
    recorder = Recorder({1: 2, 5: 1, 50: 3, 51: 1, 120: 2})
    start(source, recorder, workers=8, attempts=2, on_exhausted="block")
    await probe.wait(Delivered, 160)
    assert all(done == sorted(done) and len(done) == 40 for done in recorder.done.values())
    assert (recorder.overlaps, probe.count(Retried), probe.of(Died)) == (0, 9, [])


async def test_a_failed_head_holds_its_key_and_no_other(start: MakeEngine, probe: Probe) -> None:
    source, recorder = ScriptedSource(ordered=True), Recorder({1: 1})
    held = source.add(4, key="a")
    free = source.add(4, key="b")
    start(source, recorder, workers=2, pause=3600)
    await probe.wait(Delivered, 4)
    await probe.wait(Retried)
    assert (recorder.done["a"], recorder.done["b"], recorder.tried.count(held[0])) == ([], free, 1)
    assert source.released == held[1:]  # in order
    assert [source.rows[seq].attempts for seq in held] == [1, 0, 0, 0]  # a release takes the attempt back


async def test_a_head_that_dies_lets_the_key_go_on(start: MakeEngine, probe: Probe) -> None:
    source, recorder = ScriptedSource(ordered=True), Recorder({1: 9})
    source.add(3, key="a")
    start(source, recorder, attempts=2, on_exhausted="skip")
    await probe.wait(Delivered, 2)
    assert (list(source.dead), recorder.done["a"]) == ([1], [2, 3])


async def test_a_parked_head_keeps_the_key(start: MakeEngine, probe: Probe) -> None:
    source, recorder = ScriptedSource(ordered=True), Recorder({1: 9})
    source.add(3, key="a")
    start(source, recorder, attempts=1, on_exhausted="park")
    await probe.wait(Died)
    while len(source.released) < 2:
        await asyncio.sleep(0)
    assert (recorder.tried[:1], source.released[:2]) == ([1], [2, 3])


async def test_events_without_a_key_are_not_ordered_with_anything(start: MakeEngine, probe: Probe) -> None:
    source, recorder = ScriptedSource(ordered=True), Recorder({1: 1})
    source.add(5)
    start(source, recorder, pause=3600)
    await probe.wait(Delivered, 4)
    assert source.released == []


async def test_no_claim_slips_between_a_failure_and_its_settling(start: MakeEngine, probe: Probe) -> None:
    """While the failed head is being settled, followers claimed meanwhile must not run."""
    source, recorder = ScriptedSource(ordered=True), Recorder({1: 1})
    source.settle_gate = asyncio.Event()
    source.add(1, key="a")
    engine = start(source, recorder, pause=3600)
    while recorder.tried != [1]:
        await asyncio.sleep(0)
    later = source.add(3, key="a")
    for _ in range(20):
        engine.wake()
        await asyncio.sleep(0.001)
    source.settle_gate.set()
    await probe.wait(Retried)
    source.add(1, key="b")
    engine.wake()
    await probe.wait(Delivered)
    assert (recorder.tried, recorder.done["a"]) == ([1, later[-1] + 1], [])


async def test_a_lane_whose_head_lost_its_lease_is_emptied(start: MakeEngine, probe: Probe) -> None:
    source, recorder = ScriptedSource(ordered=True, lease=-1.0), Recorder()
    source.add(3, key="a")
    engine = start(source, recorder)
    await probe.wait(ClaimLost, 3)
    assert recorder.tried == []
    source.lease = 30.0
    engine.wake()
    await probe.wait(Delivered, 3)
    assert recorder.done["a"] == [1, 2, 3]


async def test_stop_releases_followers_in_lanes(probe: Probe) -> None:
    source, entered = ScriptedSource(ordered=True), asyncio.Event()

    async def hang(delivery: Delivery) -> None:
        entered.set()
        await asyncio.sleep(3600)

    seqs = source.add(4, key="a")
    engine = make_engine(source, hang, probe, stop_timeout=timedelta(milliseconds=10))
    engine.start()
    await probe.wait(Claimed, 4)
    await entered.wait()
    await engine.stop()
    assert sorted(source.released) == seqs


async def test_stop_waits_for_the_release_of_followers(probe: Probe) -> None:
    """Their head has failed and is settled; they are no longer in flight, but still ours in the database."""
    source, recorder = ScriptedSource(ordered=True), Recorder({1: 1})
    source.release_gate = asyncio.Event()
    source.add(3, key="a")
    engine = make_engine(source, recorder, probe, pause=3600)
    engine.start()
    while source.settled == []:
        await asyncio.sleep(0)
    stopping = asyncio.create_task(engine.stop())
    for _ in range(50):
        await asyncio.sleep(0.001)
    source.release_gate.set()
    await stopping
    assert (source.released, probe.count(Retried)) == ([2, 3], 1)
