"""Probe: records facts and lets tests wait for them, across threads."""

from __future__ import annotations

import asyncio
import threading

import pytest

from relaybox.facts import Claimed, Delivered, Died
from relaybox.testing import Probe


def dead(event_id: str) -> Died:
    return Died(event_id, "T", 1, "ValueError: x")


async def test_what_happened_before_counts_and_counts_add_up() -> None:
    probe = Probe()
    probe(Delivered(2))
    probe(Claimed(7, 0.1))
    probe(Delivered(1))
    assert await probe.wait(Delivered, count=3) == [Delivered(2), Delivered(1)]
    assert probe.count(Claimed) == 7


async def test_wakes_when_the_fact_arrives_from_another_thread() -> None:
    probe = Probe()
    waiting = asyncio.create_task(probe.wait(Died, count=2))
    await asyncio.to_thread(lambda: [probe(dead(n)) for n in ("a", "b")])
    assert [fact.event_id for fact in await waiting] == ["a", "b"]


async def test_filter() -> None:
    probe = Probe()
    waiting = asyncio.create_task(probe.wait(Died, where=lambda fact: fact.event_id == "b"))
    probe(dead("a"))
    await asyncio.sleep(0)
    assert not waiting.done()
    probe(dead("b"))
    assert await waiting == [dead("b")]


async def test_timeout_says_what_there_was() -> None:
    probe = Probe()
    probe(Delivered(2))
    with pytest.raises(TimeoutError, match=r"expected 3 Delivered .*there were: Delivered 2"):
        await probe.wait(Delivered, count=3, timeout=0.01)
    probe.clear()
    with pytest.raises(TimeoutError, match="nothing"):
        probe.wait_sync(Delivered, timeout=0.01)


def test_wait_sync_wakes() -> None:
    probe = Probe()
    thread = threading.Thread(target=lambda: probe(Delivered(1)))
    thread.start()
    assert probe.wait_sync(Delivered) == [Delivered(1)]
    thread.join()
