"""Where an ingest reads: what every source does, and what it hands over.

A source gives messages and forgets none of them until it is told that they are stored: whatever was received and
not acknowledged comes again, after a crash, a stop or a lost connection. The inbox drops what comes twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Incoming:
    """One message as its broker hands it over."""

    channel: str  # topic, queue, subject, stream, subscription
    place: str  # where it was read, the same at every redelivery: the id of a message that brings none
    body: bytes = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)  # names as they came
    key: str | None = None  # the broker's own ordering key
    content_type: str | None = None
    sent_at: datetime | None = None  # by the broker's clock
    receipt: Any = field(default=None, repr=False)  # what the source needs to acknowledge it


class Source(Protocol):
    """One connection to one broker, used from one event loop, by one task at a time except for `close`."""

    name: str

    async def open(self) -> None:
        """Connect and subscribe. Wrong settings raise ConfigError; a broker that is away raises SourceUnavailable,
        and may be opened again."""
        ...

    async def receive(self, limit: int, wait: float) -> Sequence[Incoming]:
        """Up to `limit` messages, in the broker's order; waits for the first one for `wait` seconds at most, and never
        for the last. Raises SourceUnavailable: open it again, and what was not acknowledged comes again. Cancelling
        it loses nothing."""
        ...

    async def acknowledge(self, messages: Sequence[Incoming]) -> None:
        """These are stored for good, all that were received before them too. Raises SourceUnavailable: they may come
        again."""
        ...

    async def close(self) -> None:
        """Give back what was not acknowledged, as far as the broker can, and let go of every connection."""
        ...
