"""All the way into an inbox: each message once and every key in order, whatever the broker and the database do."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from ...brokers.spi import Message
from ...event import Event
from ...inbox.inbox import AsyncInbox
from ...ingest import AsyncIngest
from ...settings import IngestSettings, Settings
from ..sink_contract.harness import away, opened
from .harness import LEASE, PATIENCE, Fixtures, SourceHarness, send

SETTINGS = Settings(ingest=IngestSettings(batch=7, wait="500ms"))


class SlowIngest(AsyncIngest):
    """Takes longer to store the first batch than a broker lends it."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.storing = asyncio.Event()

    async def _accept(self, events: Sequence[Event], letters: dict[str, str]) -> list[bool]:
        if not self.storing.is_set():
            self.storing.set()
            await asyncio.sleep(1.5 * LEASE)
        return await super()._accept(events, letters)


class IngestContract(Fixtures):
    async def test_a_broker_that_restarts(self, harness: SourceHarness, channel: str, tmp_path: Path) -> None:
        sent = await send(harness, channel, ["a", "b", "c"] * 10)
        async with AsyncInbox(database(tmp_path)) as inbox, ingesting(harness, channel, inbox) as ingest:
            await stored(ingest, SETTINGS.ingest.batch)
            async with away(harness):
                while not ingest.health().reasons:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            sent += await send(harness, channel, ["a", "b", "c"] * 2, first=len(sent))
            await stored(ingest, len(sent))
        check_arrivals(sent, tmp_path, ordered=harness.ordered and harness.ordered_after_outage)

    async def test_a_commit_that_makes_nothing_come_twice(
        self, harness: SourceHarness, channel: str, tmp_path: Path
    ) -> None:
        if not harness.leases:
            pytest.skip("messages are not lent for a time")
        async with opened(harness.source(channel, lease=LEASE)) as other:
            sent = await send(harness, channel, ["a", "b", "c"])
            async with (
                AsyncInbox(database(tmp_path)) as inbox,
                ingesting(harness, channel, inbox, SlowIngest) as ingest,
            ):
                assert isinstance(ingest, SlowIngest)
                await ingest.storing.wait()
                assert list(await other.receive(10, 1.25 * LEASE)) == [], "it came again while it was being stored"
                await stored(ingest, len(sent))
                await ingest.drain()
                assert ingest.counts.ignored == 0
        check_arrivals(sent, tmp_path, ordered=harness.ordered)


def database(folder: Path) -> str:
    return f"sqlite:///{folder / 'inbox.db'}"


@asynccontextmanager
async def ingesting(
    harness: SourceHarness, channel: str, inbox: AsyncInbox, kind: type[AsyncIngest] = AsyncIngest
) -> AsyncIterator[AsyncIngest]:
    await inbox.migrate()
    async with kind(harness.source(channel, lease=LEASE), inbox, settings=SETTINGS) as ingest:
        yield ingest


async def stored(ingest: AsyncIngest, count: int) -> None:
    async with asyncio.timeout(PATIENCE):
        while ingest.counts.done - ingest.counts.ignored < count:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def check_arrivals(sent: Sequence[Message], folder: Path, *, ordered: bool) -> None:
    with closing(sqlite3.connect(folder / "inbox.db")) as database:
        found = [row[0] for row in database.execute("SELECT event_id FROM inbox ORDER BY seq")]
    assert sorted(found) == sorted(message.id for message in sent)
    if ordered:
        keys = {message.id: message.key for message in sent}
        for key in set(keys.values()):
            assert [each for each in found if keys[each] == key] == [m.id for m in sent if m.key == key]
