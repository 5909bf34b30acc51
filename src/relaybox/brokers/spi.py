"""What an adapter for a broker consists of: a sink, where a relay sends, and a source, where an ingest reads.

A sink publishes messages and says of each whether the broker has it for good. The answers mean the same for all:

    None                 the broker has it, durably, where somebody can read it
    BrokerUnavailable    the broker is away or asks for a pause: nobody's fault, no attempt is counted
    Reject               this message can never be accepted (too large, refused by the broker's schema)
    RetryLater           not now, and not before the delay it names
    any other exception  failed this time: tried again with backoff, counted

A lost reply is BrokerUnavailable: the same message is sent again with the same id. Unroutable is never success.

A source gives messages and forgets none of them until it is told that they are stored: whatever was received and
not acknowledged comes again, after a crash, a stop or a lost connection. The inbox drops what comes twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, Protocol, TypeAlias

from ..event import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """What a sink and its broker can do. A relay goes by it; it also makes the table in docs/reference/sinks.md."""

    keyed_order: bool  # the broker keeps the order of messages that share a key
    dedup: bool  # the broker drops a message whose id it has seen within `dedup_window`
    dedup_window: timedelta | None = None  # None with dedup: for ever
    batch: int = 500  # most messages in one publish; with `by_destination` a relay of an outbox gives them one by one
    max_bytes: int | None = None  # of one message; larger ones are rejected before they are sent
    sequences: bool = False  # several messages of a key may share a publish: none is accepted behind one that failed
    by_destination: bool = False  # an outage concerns one destination, not the sink
    attribute_prefix: str = "ce_"  # of CloudEvents attributes in binary mode
    percent_encoded: bool = False  # attribute values travel as HTTP headers do
    separator: str | None = None  # the first of these in a destination splits it; with nothing before: the default
    tombstones: bool = False  # topics may keep the last message of each key, until one without a body ends it


class DestinationLimits(NamedTuple):
    """What a relay needs to know of a destination, to share its calls fairly."""

    name: str  # for people and metrics: nothing secret
    calls: int  # most publishes under way at the same time
    host: str = ""  # what it shares with other destinations, if anything …
    host_calls: int = 0  # … and most publishes under way to all of them


class Message(NamedTuple):
    """One event as it goes out: the same bytes, id, key and attributes at every try."""

    event: Event
    destination: str  # topic, exchange, subject, stream, queue, URL …
    key: str | None  # the ordering key
    body: bytes
    content_type: str
    attributes: Mapping[str, str]
    tombstone: bool = False  # there is no body, not an empty one; only for a sink that declares tombstones

    @property
    def id(self) -> str:
        """The event's id: the same at every try."""
        return self.event.id

    def __repr__(self) -> str:
        return f"Message({self.event!r} to {self.destination!r})"


Answer: TypeAlias = BaseException | None


class Sink(Protocol):
    """Where a relay sends: a broker, by one connection, used from one event loop. `publish` may run several times at
    once."""

    name: str
    features: Features

    async def open(self) -> None:
        """Connect. Wrong settings raise ConfigError; a broker that is away raises BrokerUnavailable and may be
        opened again."""
        ...

    async def publish(self, messages: Sequence[Message]) -> Sequence[Answer]:
        """Send and wait for the broker's word: one answer per message, in their order. Raises only
        BrokerUnavailable, which stands for every message of the call. Cancelling it is allowed."""
        ...

    async def probe(self) -> None:
        """Ask whether the broker takes messages again, within about a second; raises BrokerUnavailable if not."""
        ...

    async def close(self) -> None:
        """Let go of every connection and thread. Unanswered publishes have failed."""
        ...


class DestinationSink(Sink, Protocol):
    """A sink whose destinations are independent of one another (`Features.by_destination`)."""

    def limits(self, destination: str) -> DestinationLimits:
        """Does no I/O. Raises DeliveryError for what is no destination."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Incoming:
    """One message as a source hands it over."""

    channel: str  # topic, queue, subject, stream, subscription
    place: str  # where it was read, the same at every redelivery; not for its sender to choose. Its id, if it has none
    body: bytes = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)  # names as they came
    id: str | None = None  # that its sender gave it, where the broker has a field for it
    key: str | None = None  # the broker's own ordering key
    content_type: str | None = None
    sent_at: datetime | None = None  # by the broker's clock
    percent_encoded: bool = False  # headers came as HTTP has them
    receipt: Any = field(default=None, repr=False)  # what the source needs to acknowledge it
    unreadable: str | None = None  # why the source could not read it; body, place and receipt are good all the same


def moment(milliseconds: float) -> datetime | None:
    """A time since 1970; None for what no calendar has, such as a producer may have written."""
    try:
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return None


def take_content_type(headers: dict[str, str]) -> str | None:
    """Out of the headers, however it is spelled."""
    name = next((name for name in headers if name.lower() == "content-type"), None)
    return None if name is None else headers.pop(name)


class Source(Protocol):
    """Where an ingest reads: a broker, by one connection, used from one event loop, by one task at a time except for
    `close`."""

    name: str

    async def open(self) -> None:
        """Connect and subscribe. Wrong settings raise ConfigError; a broker that is away raises BrokerUnavailable,
        and may be opened again."""
        ...

    async def receive(self, limit: int, wait: float) -> Sequence[Incoming]:
        """Up to `limit` messages, in the broker's order; waits for the first one for `wait` seconds at most, and never
        for the last. Raises BrokerUnavailable: open it again, and what was not acknowledged comes again. Cancelling
        it loses nothing."""
        ...

    async def acknowledge(self, messages: Sequence[Incoming]) -> None:
        """These are stored for good, all that were received before them too. Raises BrokerUnavailable: they may come
        again."""
        ...

    async def close(self) -> None:
        """Give back what was not acknowledged, as far as the broker can, and let go of every connection."""
        ...
