"""Errors and delays that must not stop the engine, nor let it deliver twice or out of order."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta

from scripted_source import MakeEngine, ScriptedSource

from relaybox.engine.rows.engine import Delivery, Settled
from relaybox.errors import RetryLater
from relaybox.facts import ClaimLost, Delivered, Retried
from relaybox.testing import Probe


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("cannot even say what went wrong")


class Rude(BaseException):
    """Not an Exception: what trio, pytest and sys.exit() raise."""


class Poisoned:
    """Fails the first attempt of event 1 with `error`, delivers everything else."""

    def __init__(self, error: BaseException) -> None:
        self.error: BaseException | None = error
        self.done: list[int] = []

    async def __call__(self, delivery: Delivery) -> None:
        error, self.error = self.error, None
        if error is not None:
            raise error
        self.done.append(delivery.seq)


async def test_an_error_that_cannot_be_described_costs_no_worker(start: MakeEngine, probe: Probe) -> None:
    source, handler = ScriptedSource(), Poisoned(Mute())
    source.add(3)
    start(source, handler, workers=1)
    await probe.wait(Delivered, 3)
    assert sorted(handler.done) == [1, 2, 3]
    assert probe.of(Retried)[0].error == "Mute"


async def test_an_error_beside_exception_costs_no_worker(start: MakeEngine, probe: Probe) -> None:
    source, handler = ScriptedSource(), Poisoned(Rude("out"))
    source.add(3)
    start(source, handler, workers=1)
    await probe.wait(Delivered, 3)
    assert sorted(handler.done) == [1, 2, 3]


async def test_a_delay_that_fails_costs_no_worker(start: MakeEngine, probe: Probe) -> None:
    def broken(attempts: int) -> float:
        raise ZeroDivisionError

    source, handler = ScriptedSource(), Poisoned(ValueError("no"))
    source.add(3)
    start(source, handler, workers=1, pause=broken)
    await probe.wait(Delivered, 3)
    assert sorted(handler.done) == [1, 2, 3]


async def test_an_absurd_delay_is_cut(start: MakeEngine, probe: Probe) -> None:
    """No database can store that time: the settle of everything else would fail with it, for ever."""
    source, handler = ScriptedSource(), Poisoned(RetryLater(timedelta.max))
    source.add(2)
    start(source, handler, workers=1)
    await probe.wait(Retried)
    assert timedelta(days=1) < probe.of(Retried)[0].delay <= timedelta(days=3660)


class AsTheDatabase(ScriptedSource):
    """Reads the titles when the statement is sent, as a real source does."""

    async def settle(self, outcomes: Sequence[Settled]) -> int:
        sent = [(Delivery(d.event, d.seq, d.token, d.attempts, d.lease_end, hot=d.hot), o) for d, o in outcomes]
        return await super().settle(sent)


async def test_a_title_that_changed_under_a_settle_is_settled_again(start: MakeEngine, probe: Probe) -> None:
    """Our own lease ran out and we claimed the event anew while its first settle was under way."""
    source, handler = AsTheDatabase(), Poisoned(ValueError())
    handler.error = None
    source.settle_gate = asyncio.Event()
    source.add()
    engine = start(source, handler)
    while not handler.done:
        await asyncio.sleep(0)
    first = source.rows[1].token
    source.expire(1)
    engine.wake()
    while source.rows[1].token == first:
        await asyncio.sleep(0.001)
    await asyncio.sleep(0.01)
    source.settle_gate.set()
    await probe.wait(Delivered)
    assert (source.rows, handler.done) == ({}, [1])


async def test_followers_that_could_not_be_released_go_before_later_events(start: MakeEngine, probe: Probe) -> None:
    source, handler = ScriptedSource(ordered=True), Poisoned(ValueError("no"))
    source.add(3, key="a")
    source.down.add("release")
    engine = start(source, handler, workers=2)
    while not source.failures:
        await asyncio.sleep(0.001)
    source.add(2, key="a")
    await asyncio.sleep(0.1)
    source.down.clear()
    engine.wake()
    await probe.wait(Delivered, 5)
    assert handler.done == [1, 2, 3, 4, 5]


async def test_what_was_forgotten_is_given_back(start: MakeEngine, probe: Probe) -> None:
    """Its lease ended by our clock only: in the database the claim goes on, and nobody else would get it."""
    source, handler = ScriptedSource(), Poisoned(ValueError())
    handler.error = None
    engine = start(source, handler)
    engine.offer(source.add_hot(1, lease=0.0))
    await probe.wait(ClaimLost)
    engine.wake()
    await probe.wait(Delivered)
    assert (source.released, handler.done) == ([1], [1])
