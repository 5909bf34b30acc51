"""A process that may have been declared dead starts nothing until the database has heard of it again."""

from __future__ import annotations

import asyncio

import pytest
from scripted_source import MakeEngine, ScriptedSource

from relaybox.engine.protocols import Delivery, RowBatch
from relaybox.facts import Claimed, ClaimLost, Delivered
from relaybox.testing import Probe


class OneByOne:
    def __init__(self) -> None:
        self.ran: list[int] = []

    async def __call__(self, delivery: Delivery) -> None:
        self.ran.append(delivery.seq)


class Batches:
    size, sequences = 10, False

    def __init__(self) -> None:
        self.ran: list[int] = []

    async def handle(self, batch: RowBatch) -> None:
        for delivery in await batch.waiting():
            self.ran.append(delivery.seq)
            batch.done(delivery)


@pytest.mark.parametrize("kind", [OneByOne, Batches])
async def test_nothing_starts_during_a_silence(start: MakeEngine, probe: Probe, kind: type[OneByOne]) -> None:
    source, handler = ScriptedSource(ordered=True), kind()
    source.silent = True
    source.add(3, key="a")
    start(source, handler)
    await probe.wait(Claimed, 3)
    for _ in range(50):
        await asyncio.sleep(0)
    assert handler.ran == []
    source.silent = False
    await probe.wait(Delivered, 3)
    assert handler.ran == [1, 2, 3]


@pytest.mark.parametrize("kind", [OneByOne, Batches])
async def test_what_was_taken_during_a_silence_is_not_started(
    start: MakeEngine, probe: Probe, kind: type[OneByOne]
) -> None:
    source, handler = ScriptedSource(ordered=True), kind()
    source.silent = True
    source.add(3, key="a")
    engine = start(source, handler)
    await probe.wait(Claimed, 3)
    for delivery in engine.in_flight():  # as a registration does when it learns that it was declared dead
        delivery.lease_end = 0.0
    source.down.add("claim")
    source.silent = False
    await probe.wait(ClaimLost, 3)
    assert handler.ran == []
