"""What the ingest tests stand on: an inbox, events to send, and a look at what has arrived."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from inbox.kit import PATIENCE, fresh_url, inbox_url, migrated
from kit import rows
from relaybox import AsyncInbox, AsyncIngest, Event
from relaybox.brokers.formats import renderer
from relaybox.facts import Fact
from relaybox.spi import Features, Message, Source

__all__ = [
    "PATIENCE",
    "arrivals",
    "command",
    "events",
    "fresh_url",
    "in_order",
    "inbox_url",
    "ingesting",
    "migrated",
    "plain",
    "totals",
]

FEATURES = Features(keyed_order=True, dedup=False)
WORKER = (sys.executable, str(Path(__file__).parent / "worker.py"))


def events(count: int, keys: int = 3) -> list[Event]:
    """Numbered within their keys."""
    return [
        Event("OrderPlaced", {"n": n}, key=f"order-{n % keys}", headers={"sequence": str(n // keys + 1)})
        for n in range(count)
    ]


def plain(event: Event, channel: str = "orders") -> Message:
    return renderer("plain", "", FEATURES)(event, channel)


def arrivals(url: str, name: str = "inbox") -> list[tuple[str, str]]:
    """Key and id of every message, in the order of arrival."""
    return [(row[0], row[1]) for row in rows(url, f"SELECT aggregate_id, event_id FROM {name} ORDER BY seq")]


def in_order(sent: Sequence[Event], found: Sequence[tuple[str, str]]) -> bool:
    """Each once, and each key's in the order they were sent in."""
    if sorted(event.id for event in sent) != sorted(event_id for _, event_id in found):
        return False
    return all(
        [event.id for event in sent if event.key == key] == [event_id for k, event_id in found if k == key]
        for key in {event.key for event in sent}
    )


@asynccontextmanager
async def ingesting(broker: Source, url: str, **options: Any) -> AsyncIterator[tuple[AsyncIngest, list[Fact]]]:
    facts: list[Fact] = []
    async with AsyncInbox(url) as inbox, AsyncIngest(broker, inbox, observers=[facts.append], **options) as ingest:
        yield ingest, facts


class Totals(NamedTuple):
    accepted: int
    duplicates: int
    malformed: int


def totals(ingest: AsyncIngest) -> Totals:
    counts = ingest.counts
    return Totals(counts.done - counts.ignored, counts.ignored, counts.dead)


async def command(*arguments: str, url: str, crash: str = "", **environment: str) -> tuple[int, str, str]:
    """`relaybox …` in a process of its own: exit code, standard output, standard error."""
    given = {**os.environ, "RELAYBOX_URL": url, "RELAYBOX_CRASH": crash, **environment}
    process = await asyncio.create_subprocess_exec(
        *WORKER,
        *arguments,
        env={name: value for name, value in given.items() if value},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(3 * PATIENCE):
        out, err = await process.communicate()
    return process.returncode or 0, out.decode(), err.decode()
