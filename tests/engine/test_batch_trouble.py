"""Batches in trouble: clients that cancel themselves, keys concluded out of order, suspects, a database that hangs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from datetime import timedelta

import pytest
from scripted_source import MakeEngine, ScriptedSource, make_engine

from relaybox.engine.protocols import Delivery, RowBatch
from relaybox.engine.wakeups import Ears
from relaybox.errors import ConnectionLost
from relaybox.facts import Claimed, ClaimLost, Delivered, Died, Observers, Retried
from relaybox.tasks import cancelled
from relaybox.testing import ManualClock, Probe


class Handler:
    """One round per call: `rounds` says what to do in each, the last of them again and again."""

    size, sequences = 10, True

    def __init__(self, *rounds: object) -> None:
        self.rounds = list(rounds)
        self.seen: list[list[int]] = []
        self.done: list[int] = []

    async def handle(self, batch: RowBatch) -> None:
        due = await batch.waiting()
        self.seen.append([d.seq for d in due])
        act = self.rounds.pop(0) if self.rounds else self.accept
        await act(batch, due)  # type: ignore[operator]

    async def accept(self, batch: RowBatch, due: Sequence[Delivery]) -> None:
        for delivery in due:
            self.done.append(delivery.seq)
            batch.done(delivery)


async def test_a_client_that_cancels_its_own_futures_costs_no_worker(start: MakeEngine, probe: Probe) -> None:
    async def cancelled_inside(batch: RowBatch, due: Sequence[Delivery]) -> None:
        lost = asyncio.get_running_loop().create_future()
        lost.cancel()  # as client libraries do with everything that waits for a lost connection
        await lost

    source, handler = ScriptedSource(), Handler(cancelled_inside)
    source.add(3)
    start(source, handler, workers=1)
    await probe.wait(Delivered, 3)
    assert probe.count(Retried) == 3


@pytest.mark.parametrize("policy", ["block", "park", "skip"])
async def test_what_fails_before_its_predecessor_waits_for_it(start: MakeEngine, probe: Probe, policy: str) -> None:
    """The second of a key fails at once, the first is still on its way: nothing of the key may pass it."""
    source, handler = ScriptedSource(ordered=True), Handler()

    async def second_first(batch: RowBatch, due: Sequence[Delivery]) -> None:
        first, second, _ = due
        batch.failed(second, ValueError("no"))
        for delivered in (1, 2):  # what comes with the second of these was claimed after the failure was settled
            source.add(key="b")
            await probe.wait(Delivered, delivered)
        await handler.accept(batch, [first])

    handler.rounds = [second_first]
    source.add(3, key="a")
    start(source, handler, workers=2, attempts=1, on_exhausted=policy)
    await probe.wait(Delivered, 5)
    assert [seq for seq in handler.done if seq < 4] == [1, 2, 3]
    assert probe.count(Died) == 0


async def test_a_suspect_gets_no_company_from_its_key_either(start: MakeEngine, probe: Probe) -> None:
    source, handler = ScriptedSource(ordered=True), Handler()
    source.add(5, key="a")
    source.rows[3].attempts = 20
    start(source, handler, workers=1, attempts=25)
    await probe.wait(Delivered, 5)
    assert handler.seen == [[1, 2], [3], [4, 5]]


async def test_a_follower_that_was_claimed_too_often_is_not_sent(start: MakeEngine, probe: Probe) -> None:
    source, handler = ScriptedSource(ordered=True), Handler()
    source.add(3, key="a")
    source.rows[2].attempts = 5
    start(source, handler, workers=1, attempts=5, on_exhausted="skip")
    await probe.wait(Delivered, 2)
    assert (handler.done, list(source.dead)) == ([1, 3], [2])


class SlowClaims(ScriptedSource):
    """A claim whose reply takes as long as the test wants."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(ordered=True, clock=clock)
        self.replies = asyncio.Event()
        self.replies.set()

    async def claim(self, limit: int, past: Collection[str] = ()) -> list[Delivery]:
        claimed = await super().claim(limit, past)
        await self.replies.wait()
        return claimed


async def test_what_was_given_up_during_a_claim_is_not_overtaken_by_what_it_brings(probe: Probe) -> None:
    """1 is given up while a claim that brings 2 is under way; by the database's clock it is still ours."""
    clock = ManualClock()
    source = SlowClaims(clock)
    away, back = asyncio.Event(), asyncio.Event()

    async def outage(batch: RowBatch, due: Sequence[Delivery]) -> None:
        away.set()
        await back.wait()
        assert await batch.waiting() == []

    handler = Handler(outage)
    source.add(key="a")
    source.down.add("renew")
    engine = make_engine(source, handler, probe, clock=clock)
    engine.start()
    await away.wait()
    clock.advance(29)
    source.replies.clear()
    source.add(key="a")
    engine.wake()
    while source.rows[2].token is None:
        await asyncio.sleep(0)
    clock.advance(2)
    back.set()
    await probe.wait(ClaimLost)
    source.replies.set()
    await probe.wait(Delivered, 2)
    await engine.stop()
    assert handler.done == [1, 2]


async def test_a_stop_ends_although_the_database_answers_nothing(probe: Probe) -> None:
    source, entered = ScriptedSource(ordered=True), asyncio.Event()

    async def outage(batch: RowBatch, due: Sequence[Delivery]) -> None:
        entered.set()
        await asyncio.Event().wait()

    source.add(3, key="a")
    source.release_gate = asyncio.Event()
    engine = make_engine(source, Handler(outage), probe, stop_timeout=timedelta(milliseconds=50))
    engine.start()
    await entered.wait()
    async with asyncio.timeout(5):
        await engine.stop()


async def test_a_silent_engine_is_not_idle(probe: Probe) -> None:
    """During a silence a source claims nothing: that says nothing about what there is."""

    class Silent(ScriptedSource):
        async def claim(self, limit: int, past: Collection[str] = ()) -> list[Delivery]:
            self.claimed_at.append(0.0)
            return [] if self.silent else await super().claim(limit, past)

    source, handler = Silent(), Handler()
    source.silent = True
    source.add(3)
    engine = make_engine(source, handler, probe)
    engine.start()
    idle = asyncio.create_task(engine.until_idle())
    while len(source.claimed_at) < 3:
        await asyncio.sleep(0.001)
    assert not idle.done()
    source.silent = False
    await idle
    await engine.stop()
    assert handler.done == [1, 2, 3]
    assert probe.count(Claimed) == 3


async def test_ears_stop_although_their_connection_cannot_be_closed(start: MakeEngine, probe: Probe) -> None:
    """As asyncpg's does when the database is a black hole: the time-out of close() hides the cancellation."""
    listening = asyncio.Event()

    async def listen(ready: Callable[[], None], wake: Callable[[], None]) -> None:
        try:
            listening.set()
            await asyncio.Event().wait()
        finally:
            raise ConnectionLost("no answer to the end of the connection")

    engine = start(ScriptedSource(), Handler())
    ears = Ears(engine, listen, None, Observers([probe]), ManualClock())
    ears.start()
    await listening.wait()
    stopping = asyncio.create_task(ears.stop())
    ended, _ = await asyncio.wait([stopping], timeout=2)
    await cancelled(ears._task, stopping)
    assert ended
