"""What sources of lent messages do alike, with a broker that does as it is told."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta

import pytest

from relaybox.brokers.leased import LeasedSource
from relaybox.errors import BrokerUnavailable, Closed
from relaybox.spi import Incoming
from relaybox.testing.source_contract import opened


def message(number: int, receipt: str = "first") -> Incoming:
    return Incoming(channel="orders", place=f"orders:{number}", body=b"", headers={}, receipt=receipt)


class Scripted(LeasedSource):
    name = "scripted"

    def __init__(self, lease: float = 60) -> None:
        super().__init__(timedelta(seconds=lease))
        self.answers: asyncio.Queue[list[Incoming] | Exception] = asyncio.Queue()
        self.settled: list[Incoming] = []
        self.returned: list[Incoming] = []
        self.extended: asyncio.Queue[list[Incoming]] = asyncio.Queue()
        self.away = False
        self.connections = 0

    async def _connect(self) -> None:
        self._check()
        self.connections += 1

    async def _disconnect(self) -> None:
        pass

    async def _fetch(self, limit: int, wait: float) -> Sequence[Incoming]:
        answer = await self.answers.get()
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def _settle(self, messages: Sequence[Incoming]) -> None:
        self._check()
        self.settled += messages

    async def _extend(self, messages: Sequence[Incoming]) -> None:
        self.extended.put_nowait(list(messages))
        self._check()

    async def _give_back(self, messages: Sequence[Incoming]) -> None:
        self._check()
        self.returned += messages

    def _check(self) -> None:
        if self.away:
            raise BrokerUnavailable("away")


async def test_a_fetch_outlives_a_receive_that_is_cancelled_or_impatient() -> None:
    async with opened(source := Scripted()):
        cancelled = asyncio.create_task(source.receive(10, 60))
        await asyncio.sleep(0)
        cancelled.cancel()
        assert list(await source.receive(10, 0)) == []
        source.answers.put_nowait([message(1), message(2), message(3)])
        assert list(await source.receive(2, 60)) == [message(1), message(2)]
        assert list(await source.receive(2, 60)) == [message(3)]


async def test_acknowledging_takes_what_was_handed_out_before_and_nothing_behind() -> None:
    async with opened(source := Scripted()):
        source.answers.put_nowait([message(n) for n in range(1, 6)])
        await source.receive(4, 60)
        await source.acknowledge([message(2)])
        assert source.settled == [message(1), message(2)]
        await source.acknowledge([message(9)])  # of a former connection
        assert source.settled == [message(1), message(2)]
    assert source.returned == [message(3), message(4), message(5)]


async def test_an_acknowledgement_that_fails_is_not_forgotten() -> None:
    async with opened(source := Scripted()):
        source.answers.put_nowait([message(1)])
        await source.receive(1, 60)
        source.away = True
        with pytest.raises(BrokerUnavailable):
            await source.acknowledge([message(1)])
        with pytest.raises(BrokerUnavailable):
            await source.open()
        source.away = False
        await source.open()
        assert source.returned == [message(1)]


async def test_the_newest_receipt_counts() -> None:
    async with opened(source := Scripted()):
        source.answers.put_nowait([message(1)])
        source.answers.put_nowait([message(2), message(1, "second")])
        await source.receive(1, 60)
        await source.receive(2, 60)
        await source.acknowledge([message(2), message(1, "second")])
        assert [each.receipt for each in source.settled] == ["first", "second"]
        assert source.settled == [message(2), message(1, "second")]


class Slow(Scripted):
    """Its broker takes its time for an extension, and hears of it although nobody waits any more."""

    def __init__(self, lease: float) -> None:
        super().__init__(lease)
        self.heard: list[str] = []
        self.asked, self.answer = asyncio.Event(), asyncio.Event()

    async def _extend(self, messages: Sequence[Incoming]) -> None:
        self.asked.set()
        try:
            await self.answer.wait()
        finally:
            self.heard.append("extend")

    async def _give_back(self, messages: Sequence[Incoming]) -> None:
        self.heard.append("give back")


async def test_nothing_is_given_back_before_an_extension_under_way_is_through() -> None:
    source = Slow(lease=0.01)
    await source.open()
    source.answers.put_nowait([message(1)])
    await source.receive(1, 60)
    await source.asked.wait()
    closing = asyncio.create_task(source.close())
    for _ in range(10):
        await asyncio.sleep(0)
    assert source.heard == []
    source.answer.set()
    await closing
    assert source.heard == ["extend", "give back"]


async def test_leases_are_extended_until_the_acknowledgement() -> None:
    """Also of what was fetched and not handed out yet, and whatever a failed extension says."""
    async with opened(source := Scripted(lease=0.03)):
        source.answers.put_nowait([message(1), message(2)])
        await source.receive(1, 60)
        source.away = True
        for _ in range(3):
            assert await source.extended.get() == [message(1), message(2)]
        source.away = False
        await source.acknowledge([message(1)])
        while await source.extended.get() != [message(2)]:
            pass


async def test_what_a_fetch_brings_while_it_is_closed_is_given_back() -> None:
    source = Scripted()
    await source.open()
    assert list(await source.receive(1, 0)) == []
    source.answers.put_nowait([message(1)])
    for _ in range(3):
        await asyncio.sleep(0)  # the fetch ends, and nobody asked
    await source.close()
    assert source.returned == [message(1)]
    with pytest.raises(Closed):
        await source.receive(1, 0)


async def test_a_failed_fetch_is_told_once() -> None:
    async with opened(source := Scripted()):
        source.answers.put_nowait(BrokerUnavailable("away"))
        with pytest.raises(BrokerUnavailable):
            await source.receive(1, 60)
        await source.open()
        source.answers.put_nowait([message(1)])
        assert list(await source.receive(1, 60)) == [message(1)]
        assert source.connections == 2
