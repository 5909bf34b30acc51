"""All the way into an inbox: each message once and every key in order, whatever the broker and the database do."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from ...brokers.parse import MALFORMED
from ...brokers.spi import Message
from ...event import Event
from ...inbox.inbox import AsyncInbox
from ...ingest import AsyncIngest
from ...settings import IngestSettings, Settings
from ..sink_contract.harness import away, deliver, messages, opened
from .harness import LEASE, PATIENCE, Fixtures, SourceHarness, send, sending

SETTINGS = Settings(ingest=IngestSettings(batch=7, wait="500ms"))


# Attributes and a body that no event can have, of a message in our own form.
HOSTILE: Sequence[tuple[Mapping[str, str], bytes]] = (
    ({"created_at": "9999-12-31T23:59:59-14:00"}, b""),
    ({"created_at": "0001-01-01T00:00:00+14:00"}, b""),
    (
        {
            "ce_specversion": "1.0",
            "ce_id": "1",
            "ce_source": "s",
            "ce_type": "T",
            "ce_time": "0001-01-01T00:00:00+14:00",
        },
        b"",
    ),
    ({}, b"[" * 5000),
    ({}, b"[" + b"9" * 5000 + b"]"),
    ({"event_type": "T" * 500}, b""),
)


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

    async def test_a_hostile_message_is_buried_alone(
        self, harness: SourceHarness, channel: str, tmp_path: Path
    ) -> None:
        """Also by an ingest that starts anew, and the messages behind it are stored."""
        for life in range(2):
            async with sending(harness) as sink:
                sent = messages(sink, harness.destination(channel), ["a"] * (len(HOSTILE) + 1), first=100 * life)
                for message, (attributes, body) in zip(sent, HOSTILE, strict=False):
                    given = {**message.attributes, **attributes}
                    await deliver(sink, [message._replace(attributes=given, body=body or message.body)])
                await deliver(sink, sent[-1:])
            async with AsyncInbox(database(tmp_path)) as inbox, ingesting(harness, channel, inbox) as ingest:
                await stored(ingest, len(sent))
                assert ingest.counts.dead == len(HOSTILE)
            with closing(sqlite3.connect(tmp_path / "inbox.db")) as found:
                buried = found.execute("SELECT payload FROM inbox WHERE event_type = ?", (MALFORMED,)).fetchall()
                waiting = {row[0] for row in found.execute("SELECT event_id FROM inbox")}
            assert len(buried) == (life + 1) * len(HOSTILE)
            assert {bytes(row[0]) for row in buried} >= {
                body or m.body for m, (_, body) in zip(sent, HOSTILE, strict=False)
            }
            assert sent[-1].id in waiting


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
