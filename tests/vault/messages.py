"""Inboxes with a vault, and messages with something secret in payload and headers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from ingest.scripted_source import ScriptedSource
from kit import QUICK
from relaybox import (
    AsyncInbox,
    AsyncIngest,
    Event,
    Inbox,
    Vault,
)
from relaybox.spi import Incoming

from .kit import SECRET, Home, told

PLAIN = SECRET.encode()
ONCE = QUICK.replaced({"delivery.retry.attempts": 1})


@dataclass
class Address:
    n: int
    address: str


def payload(n: int) -> dict[str, Any]:
    return {"n": n, "address": SECRET}


def sent(n: int = 1, *, sequence: int | None = None, **options: Any) -> Event:
    """With something secret in its headers too."""
    number = {} if sequence is None else {"sequence": str(sequence)}
    return told(n, headers={"origin": SECRET, **number}, **options)


def inbox_of(home: Home, vault: Vault | None, **options: Any) -> Inbox:
    inbox = Inbox(home.url, "orders", vault=vault, **{"settings": QUICK, **options})
    inbox.migrate()
    return inbox


def fail(event: Event) -> None:
    raise ValueError(f"cannot handle {event.payload['n']}")


def look(event: Event, seen: list[Any]) -> None:
    seen.append((event.payload, dict(event.headers), event.content_type, event.sender, event.is_json))


@asynccontextmanager
async def ingesting(inbox: AsyncInbox, messages: Sequence[Event | Incoming]) -> AsyncIterator[AsyncIngest]:
    source = ScriptedSource()
    source.put(*messages)
    async with AsyncIngest(source, inbox, sender="shop", settings=QUICK.replaced({"ingest.wait": "50ms"})) as ingest:
        yield ingest
