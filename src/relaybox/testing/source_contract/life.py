"""Opening, closing, and what a source says about itself."""

from __future__ import annotations

import asyncio
import traceback

import pytest

from ...brokers.spi import Source
from ...errors import BrokerUnavailable, ConfigError, RelayboxError
from ..sink_contract.harness import check_discreet, opened
from ..sink_contract.life import check_nothing_left
from .harness import PATIENCE, Fixtures, SourceHarness, collect, send


class LifeContract(Fixtures):
    async def test_closing_twice(self, harness: SourceHarness, channel: str) -> None:
        source = harness.source(channel)
        await source.close()  # never opened
        source = harness.source(channel)
        await source.open()
        await source.close()
        await source.close()

    async def test_a_source_that_is_not_open(self, harness: SourceHarness, channel: str) -> None:
        source = harness.source(channel)
        with pytest.raises(RelayboxError):
            await source.receive(10, 0.1)
        await source.open()
        await source.close()
        with pytest.raises(RelayboxError):
            await source.receive(10, 0.1)

    async def test_closing_ends_a_receive(self, harness: SourceHarness, channel: str) -> None:
        source = harness.source(channel)
        await source.open()
        waiting = asyncio.create_task(source.receive(10, PATIENCE))
        await asyncio.sleep(0)
        async with asyncio.timeout(PATIENCE / 2):
            await source.close()
            [result] = await asyncio.gather(waiting, return_exceptions=True)
        assert result == [] or isinstance(result, RelayboxError)

    async def test_opening_again(self, harness: SourceHarness, channel: str) -> None:
        """Without being told that anything is wrong: an ingest does so after any error."""
        async with opened(harness.source(channel)) as source:
            sent = await send(harness, channel, ["a", "b"])
            await collect(source, sent, acknowledge=False)
            await source.open()
            await collect(source, sent)

    async def test_nothing_is_left_after_closing(self, harness: SourceHarness, channel: str) -> None:
        async def use() -> None:
            async with opened(harness.source(channel)) as source:
                await collect(source, await send(harness, channel, ["a"]))

        await check_nothing_left(use)

    async def test_wrong_credentials(self, harness: SourceHarness, channel: str) -> None:
        url = harness.wrong_url(channel)
        if url is None:
            pytest.skip("there are no credentials here")
        source = harness.kind.from_url(url, {})
        check_discreet(repr(source))
        try:
            with pytest.raises((BrokerUnavailable, ConfigError)) as caught:
                await source.open()
            check_discreet("".join(traceback.format_exception(caught.value)))
        finally:
            await source.close()

    async def test_what_it_shows(self, harness: SourceHarness, source: Source, channel: str) -> None:
        sent = await send(harness, channel, ["a"])
        found = await collect(source, sent)
        check_discreet(repr(source) + str(source) + repr(found))
        assert source.name

    async def test_an_option_nobody_knows(self, harness: SourceHarness, channel: str) -> None:
        with pytest.raises(ConfigError, match="unknown option 'colour'"):
            harness.kind.from_url(harness.url(channel), {"colour": "red"})
