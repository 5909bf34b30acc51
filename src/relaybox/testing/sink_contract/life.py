"""Opening, closing, and what a sink says about itself."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path

import pytest

from ...brokers.spi import Sink
from ...errors import RelayboxError
from .harness import Fixtures, SinkHarness, arrived, check_discreet, messages, opened, publish

OPEN_FILES = Path("/proc/self/fd")


class LifeContract(Fixtures):
    async def test_closing_twice(self, harness: SinkHarness) -> None:
        sink = harness.sink()
        await sink.close()  # never opened
        sink = harness.sink()
        await sink.open()
        await sink.close()
        await sink.close()

    async def test_publishing_on_a_closed_sink(self, harness: SinkHarness, destination: str) -> None:
        sink = harness.sink()
        await sink.open()
        await sink.close()
        with pytest.raises(RelayboxError):
            await sink.publish(messages(sink, destination, ["a"]))

    async def test_nothing_is_left_after_closing(self, harness: SinkHarness, destination: str) -> None:
        async def use() -> None:
            async with opened(harness.sink()) as sink:
                assert await publish(sink, messages(sink, destination, ["a"])) == [None]

        await check_nothing_left(use)

    async def test_two_sinks_at_once(self, harness: SinkHarness, sink: Sink, destination: str) -> None:
        async with opened(harness.sink()) as other:
            one, two = messages(sink, destination, ["a"]), messages(other, destination, ["b"])
            answers = await asyncio.gather(publish(sink, one), publish(other, two))
            assert list(answers) == [[None], [None]]
        await arrived(harness, destination, one + two)

    async def test_what_it_declares(self, sink: Sink) -> None:
        features = sink.features
        assert sink.name
        assert features.batch >= 1
        assert features.max_bytes is None or features.max_bytes >= 1000
        assert features.dedup or features.dedup_window is None
        assert features.dedup_window is None or features.dedup_window > timedelta(0)

    async def test_what_it_shows(self, sink: Sink, destination: str) -> None:
        check_discreet(repr(sink) + str(sink) + repr(messages(sink, destination, ["a"])))


async def check_nothing_left(use: Callable[[], Awaitable[None]]) -> None:
    """No task and no socket. The first use warms up what a library keeps for the whole process."""
    await use()
    tasks, sockets = asyncio.all_tasks(), open_sockets()
    for _ in range(3):
        await use()
    async with asyncio.timeout(30):
        while asyncio.all_tasks() - tasks or open_sockets() > sockets:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def open_sockets() -> int:
    """Sockets of this process; 0 where the system has no /proc."""
    count = 0
    for file in OPEN_FILES.iterdir() if OPEN_FILES.is_dir() else ():
        try:
            count += os.readlink(file).startswith("socket:")
        except FileNotFoundError:
            continue
    return count
