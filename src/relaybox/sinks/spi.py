"""Where a relay sends: what every sink does, and what it declares.

A sink publishes messages and says of each whether the broker has it for good. The answers mean the same for all:

    None                 the broker has it, durably, where somebody can read it
    SinkUnavailable      the broker is away or asks for a pause: nobody's fault, no attempt is counted
    Reject               this message can never be accepted (too large, refused by the broker's schema)
    RetryLater           not now, and not before the delay it names
    any other exception  failed this time: tried again with backoff, counted

A lost reply is SinkUnavailable: the same message is sent again with the same id. Unroutable is never success.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple, Protocol, TypeAlias

from ..event import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """What a sink and its broker can do; makes the table in docs/reference/sinks.md."""

    keyed_order: bool  # the broker keeps the order of messages that share a key
    dedup: bool  # the broker drops a message whose id it has seen within `dedup_window`
    dedup_window: timedelta | None = None  # None with dedup: for ever
    batch: int = 500  # most messages in one publish
    max_bytes: int | None = None  # of one message; larger ones are rejected before they are sent
    sequences: bool = False  # several messages of a key may share a publish: none is accepted behind one that failed
    by_destination: bool = False  # an outage concerns one destination, not the sink
    attribute_prefix: str = "ce_"  # of CloudEvents attributes in binary mode
    percent_encoded: bool = False  # attribute values travel as HTTP headers do
    separator: str | None = None  # the first of these in a destination splits it; with nothing before: the default


class Message(NamedTuple):
    """One event as it goes out: the same bytes, id, key and attributes at every try."""

    event: Event
    destination: str  # topic, exchange, subject, stream, queue, URL …
    key: str | None  # the ordering key
    body: bytes
    content_type: str
    attributes: Mapping[str, str]

    @property
    def id(self) -> str:
        return self.event.id

    def __repr__(self) -> str:
        return f"Message({self.event!r} to {self.destination!r})"


Answer: TypeAlias = BaseException | None


class Sink(Protocol):
    """One connection to one broker, used from one event loop. `publish` may run several times at once."""

    name: str
    features: Features

    async def open(self) -> None:
        """Connect. Wrong settings raise ConfigError; a broker that is away raises SinkUnavailable and may be
        opened again."""
        ...

    async def publish(self, messages: Sequence[Message]) -> Sequence[Answer]:
        """Send and wait for the broker's word: one answer per message, in their order. Raises only
        SinkUnavailable, which stands for every message of the call. Cancelling it is allowed."""
        ...

    async def probe(self) -> None:
        """Ask whether the broker takes messages again, within about a second; raises SinkUnavailable if not."""
        ...

    async def close(self) -> None:
        """Let go of every connection and thread. Unanswered publishes have failed."""
        ...
