"""Batch handlers: one call for many, each concluded by itself, keys still one after the other."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Callable
from datetime import timedelta

import pytest
from scripted_source import MakeEngine, ScriptedSource, make_engine

from relaybox.engine.protocols import Delivery, RowBatch
from relaybox.errors import BrokerUnavailable, Reject
from relaybox.facts import ClaimLost, Delivered, Died, Retried
from relaybox.testing import ManualClock, Probe


class Sender:
    """Accepts what `verdict` lets pass; stops a key at its first failure when it takes sequences."""

    def __init__(
        self,
        verdict: Callable[[Delivery], BaseException | None] = lambda delivery: None,
        *,
        size: int = 10,
        sequences: bool = False,
    ) -> None:
        self.verdict, self.size, self.sequences = verdict, size, sequences
        self.batches: list[list[int]] = []
        self.accepted: dict[str | None, list[int]] = defaultdict(list)
        self.busy: set[str] = set()

    async def handle(self, batch: RowBatch) -> None:
        due = await batch.waiting()
        self.batches.append([d.seq for d in due])
        keys = [d.event.key for d in due if d.event.key is not None]
        assert self.sequences or len(keys) == len(set(keys)), "a key twice in one call"
        assert not self.busy & set(keys), "a key in two calls at once"
        self.busy |= set(keys)
        await asyncio.sleep(0)
        self.busy -= set(keys)
        stopped = set()
        for delivery in due:
            key = delivery.event.key
            if key is not None and key in stopped:
                continue
            error = self.verdict(delivery)
            if error is None:
                self.accepted[key].append(delivery.seq)
                batch.done(delivery)
            else:
                stopped.add(key)
                batch.failed(delivery, error)


async def test_a_batch_is_filled_to_its_size_and_no_further(start: MakeEngine, probe: Probe) -> None:
    source, sender = ScriptedSource(), Sender(size=7)
    source.add(50)
    start(source, sender, workers=1)
    await probe.wait(Delivered, 50)
    assert max(map(len, sender.batches)) == 7
    assert sorted(seq for batch in sender.batches for seq in batch) == list(range(1, 51))


@pytest.mark.parametrize("sequences", [False, True])
async def test_keys_keep_their_order_under_random_failures(start: MakeEngine, probe: Probe, sequences: bool) -> None:
    rng = random.Random(7)
    source = ScriptedSource(ordered=True)
    for _ in range(300):
        source.add(key=rng.choice("abcdefgh"))
    sender = Sender(lambda d: ValueError("no") if rng.random() < 0.2 else None, sequences=sequences)
    start(source, sender, workers=3, attempts=9, on_exhausted="block")  # beyond them it would wait for seconds
    await probe.wait(Delivered, 300)
    assert all(seqs == sorted(seqs) for seqs in sender.accepted.values())
    assert sum(map(len, sender.accepted.values())) == 300
    assert source.rows == {}


async def test_a_sequence_shares_one_call(start: MakeEngine, probe: Probe) -> None:
    source, sender = ScriptedSource(ordered=True), Sender(sequences=True)
    source.add(5, key="a")
    start(source, sender, workers=4)
    await probe.wait(Delivered, 5)
    assert sender.batches == [[1, 2, 3, 4, 5]]


async def test_what_stands_behind_a_failed_head_is_held_back(start: MakeEngine, probe: Probe) -> None:
    source = ScriptedSource(ordered=True)
    failures = {2: 1}

    def verdict(delivery: Delivery) -> BaseException | None:
        failures[delivery.seq] = failures.get(delivery.seq, 0) - 1
        return ValueError("no") if failures[delivery.seq] >= 0 else None

    sender = Sender(verdict, sequences=True)
    source.add(4, key="a")
    start(source, sender, workers=2)
    await probe.wait(Delivered, 4)
    assert sender.accepted["a"] == [1, 2, 3, 4]
    assert sender.batches[0] == [1, 2, 3, 4]
    assert [batch[0] for batch in sender.batches[1:2]] == [2]


async def test_a_rejected_head_dies_and_its_key_goes_on(start: MakeEngine, probe: Probe) -> None:
    source = ScriptedSource(ordered=True)
    sender = Sender(lambda d: Reject("never") if d.seq == 1 else None, sequences=True)
    source.add(3, key="a")
    start(source, sender, workers=1)
    await probe.wait(Delivered, 2)
    assert (sender.accepted["a"], list(source.dead), probe.count(Died)) == ([2, 3], [1], 1)


async def test_an_unavailable_destination_counts_no_attempt(start: MakeEngine, probe: Probe) -> None:
    source = ScriptedSource()
    times = iter(range(10))
    sender = Sender(lambda d: BrokerUnavailable("away", destination="x") if next(times) < 3 else None)
    source.add()
    start(source, sender, attempts=2)
    await probe.wait(Delivered)
    assert probe.count(Retried) == 3
    uncounted = [o.counted for batch in source.settled for _, o in batch if hasattr(o, "counted")]
    assert uncounted == [False, False, False]


async def test_a_handler_that_raises_or_forgets_fails_the_rest(start: MakeEngine, probe: Probe) -> None:
    class Careless(Sender):
        async def handle(self, batch: RowBatch) -> None:
            for delivery in (await batch.waiting())[:1]:
                batch.done(delivery)
            if len(self.batches) == 0:
                self.batches.append([])
                raise OSError("broken")

    source = ScriptedSource()
    source.add(3)
    start(source, Careless(), workers=1)
    await probe.wait(Delivered, 3)
    errors = {fact.error.partition(":")[0] for fact in probe.of(Retried)}
    assert errors == {"OSError", "RuntimeError"}


async def test_the_often_claimed_go_alone(start: MakeEngine, probe: Probe) -> None:
    source, sender = ScriptedSource(), Sender(size=10)
    source.add(6)
    source.rows[3].attempts = 20
    start(source, sender, workers=1, attempts=25)
    await probe.wait(Delivered, 6)
    assert sender.batches == [[1, 2], [3], [4, 5, 6]]


async def test_nothing_is_sent_after_its_lease_ended(probe: Probe) -> None:
    clock = ManualClock()
    source = ScriptedSource(ordered=True, clock=clock)
    tried: list[list[int]] = []
    away, back = asyncio.Event(), asyncio.Event()

    class Waiting:
        size, sequences = 10, True

        async def handle(self, batch: RowBatch) -> None:
            tried.append([d.seq for d in await batch.waiting()])
            away.set()
            await back.wait()
            for delivery in await batch.waiting():
                batch.done(delivery)

    source.add(3, key="a")
    source.down.add("renew")
    engine = make_engine(source, Waiting(), probe, clock=clock)
    engine.start()
    await away.wait()
    clock.advance(31)
    source.expire(1, 2, 3)
    back.set()
    await probe.wait(ClaimLost)
    await probe.wait(Delivered, 3)
    assert tried[0] == [1, 2, 3]
    assert [seq for batch in tried[1:] for seq in batch] == [1, 2, 3]
    await engine.stop()


async def test_a_stop_gives_back_what_waits_for_the_broker(probe: Probe) -> None:
    source, entered = ScriptedSource(ordered=True), asyncio.Event()

    class Stuck:
        size, sequences = 10, False

        async def handle(self, batch: RowBatch) -> None:
            entered.set()
            await asyncio.Event().wait()

    source.add(3, key="a")
    source.add(2, key="b")
    engine = make_engine(source, Stuck(), probe, stop_timeout=timedelta(milliseconds=50))
    engine.start()
    await entered.wait()
    await engine.stop()
    assert sorted(source.released) == [1, 2, 3, 4, 5]
    assert all(row.attempts == 0 for row in source.rows.values())
