"""The broker goes away and comes back: the source says so, is opened again, and nothing is lost."""

from __future__ import annotations

import asyncio

import pytest

from ...brokers.spi import Incoming, Source
from ...errors import BrokerUnavailable
from ..sink_contract.harness import away, check_discreet, opened
from .harness import (
    LEASE,
    PATIENCE,
    Fixtures,
    SourceHarness,
    check_order,
    collect,
    id_of,
    open_again,
    send,
)


class OutageContract(Fixtures):
    async def test_a_restart_in_the_middle(self, harness: SourceHarness, channel: str) -> None:
        sent = await send(harness, channel, ["a", "b"] * 5)
        async with opened(harness.source(channel, lease=LEASE)) as source:
            stored = list(await source.receive(4, PATIENCE))
            await source.acknowledge(stored)
            held = list(await source.receive(2, PATIENCE))
            assert stored
            assert held
            async with away(harness):
                await self._notices(source)
                with pytest.raises(BrokerUnavailable):
                    await source.open()
            await open_again(source)
            sent += await send(harness, channel, ["a", "b"], first=len(sent))
            known = {id_of(message) for message in stored}
            again = await self._all(source, {message.id for message in sent} - known)
            assert {id_of(message) for message in held} <= {id_of(message) for message in again}
            if harness.ordered:
                check_order(sent, stored + again)

    async def _all(self, source: Source, wanted: set[str]) -> list[Incoming]:
        """An acknowledgement whose answer got lost may have been none: more may come."""
        found: list[Incoming] = []
        async with asyncio.timeout(PATIENCE):
            while wanted - {id_of(message) for message in found}:
                batch = await source.receive(10, 1.0)
                found += batch
                await source.acknowledge(batch)
        return found

    async def _notices(self, source: Source) -> None:
        async with asyncio.timeout(PATIENCE):
            try:
                while True:
                    await source.receive(10, 0.5)
            except BrokerUnavailable as error:
                check_discreet(f"{error} {error!r}")

    async def test_an_acknowledgement_that_does_not_get_through(self, harness: SourceHarness, channel: str) -> None:
        sent = await send(harness, channel, ["a", "b"])
        async with opened(harness.source(channel, lease=LEASE)) as source:
            found = await collect(source, sent, acknowledge=False)
            async with away(harness):
                async with asyncio.timeout(PATIENCE):
                    with pytest.raises(BrokerUnavailable):
                        await source.acknowledge(found)
            await open_again(source)
            await collect(source, sent)

    async def test_opening_and_closing_while_it_is_away(self, harness: SourceHarness, channel: str) -> None:
        async with opened(harness.source(channel)) as source:
            other = harness.source(channel)
            async with away(harness):
                async with asyncio.timeout(PATIENCE):
                    with pytest.raises(BrokerUnavailable):
                        await other.open()
                    await other.close()
                    await source.close()
