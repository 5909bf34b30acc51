"""At least once: what is not acknowledged comes again, what is acknowledged does not."""

from __future__ import annotations

import asyncio
import json
import os
import sys

import pytest

from ...brokers.spi import Source
from ..sink_contract.harness import opened
from .harness import LEASE, PATIENCE, Fixtures, SourceHarness, check_order, collect, comes_no_more, id_of, send


class RedeliveryContract(Fixtures):
    async def test_what_is_not_acknowledged_comes_again(self, harness: SourceHarness, channel: str) -> None:
        sent = await send(harness, channel, ["a"] * 6)
        async with opened(harness.source(channel, lease=LEASE)) as first:
            early = list(await first.receive(1, PATIENCE))
            await first.acknowledge(early)
            late = await collect(
                first, [message for message in sent if message.id != id_of(early[0])], acknowledge=False
            )
            await first.acknowledge(late[:2])
        rest = [message for message in sent if message.id not in {id_of(m) for m in early + late[:2]}]
        async with opened(harness.source(channel, lease=LEASE)) as second:
            again = await collect(second, rest)
            if harness.ordered:
                check_order(sent, again)
            places = {id_of(message): message.place for message in late}
            assert all(message.place == places[id_of(message)] for message in again), "the same place every time"

    async def test_what_is_acknowledged_does_not(self, harness: SourceHarness, channel: str) -> None:
        """The last one stands for all before it."""
        async with opened(harness.source(channel)) as first:
            sent = await send(harness, channel, ["a", "b", "c", "d"])
            found = await collect(first, sent, acknowledge=False)
            await first.acknowledge(found[-1:])
        async with opened(harness.source(channel)) as second:
            await comes_no_more(second, sent)

    async def test_a_killed_reader(self, harness: SourceHarness, channel: str) -> None:
        """With -9, some acknowledged and some not."""
        sent = await send(harness, channel, [f"key-{n}" for n in range(6)])
        reader = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            f"{__package__}.reader",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        assert reader.stdin is not None
        assert reader.stdout is not None
        kind = harness.source(channel).__class__
        task = {"module": kind.__module__, "name": kind.__name__, "url": harness.url(channel, lease=LEASE), "count": 6}
        try:
            reader.stdin.write(json.dumps({**task, "acknowledge": 3}).encode() + b"\n")
            async with asyncio.timeout(2 * PATIENCE):
                acknowledged = json.loads(await reader.stdout.readline())
        finally:
            reader.kill()
            await reader.wait()
        assert len(acknowledged) == 3
        async with opened(harness.source(channel, lease=LEASE)) as source:
            again = await collect(source, [message for message in sent if message.id not in acknowledged])
            if harness.ordered:
                check_order(sent, again)

    @pytest.mark.parametrize("steps", [0, 3, 30])
    async def test_a_cancelled_receive_loses_nothing(
        self, harness: SourceHarness, source: Source, channel: str, steps: int
    ) -> None:
        sent = await send(harness, channel, ["a", "b"] * 3)
        task = asyncio.create_task(source.receive(10, 1.0))
        for _ in range(steps):
            await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.wait([task])
        got = [] if task.cancelled() else list(task.result())
        known = {id_of(message) for message in got}
        found = got + await collect(source, [message for message in sent if message.id not in known])
        if harness.ordered:
            check_order(sent, found)
