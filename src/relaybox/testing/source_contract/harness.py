"""What the contract's tests stand on: a broker behind a harness, messages that can be recognised, patient readers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol
from urllib.parse import unquote

import pytest_asyncio

from ...brokers.spi import Incoming, Message, Sink, Source
from ...errors import BrokerUnavailable
from ..sink_contract.harness import BrokerHarness, Discreet, check_discreet, check_keys, deliver, messages, opened

PATIENCE = 30.0
LEASE = 2.0  # seconds, of sources that are made for waiting it out


class SourceKind(Protocol):
    def from_url(self, url: str, options: Mapping[str, Any]) -> Source: ...


class SourceHarness(BrokerHarness):
    """One private broker. Use SECRET of the sink contract as its password where it has passwords."""

    kind: SourceKind
    ordered = True  # the broker keeps the order of a key
    ordered_after_outage = True  # also then; a stand-in may forget what it lent to a client that is gone
    leases = True  # it lends messages for a time, not for as long as a connection lasts
    has_key = False  # it knows the key, which is not only an attribute
    filler: Sink | None = None  # open while a test runs

    def sink(self) -> Sink:
        """A new sink, not opened, that sends to the channels."""
        raise NotImplementedError

    def url(self, channel: str, *, lease: float | None = None) -> str:
        """Of a source for this channel, with every option it needs. `lease`: seconds until messages come again."""
        raise NotImplementedError

    async def channel(self) -> str:
        """A fresh one: what is sent to it from now on is kept until it is read."""
        raise NotImplementedError

    def destination(self, channel: str) -> str:
        """Where the sink sends for this channel."""
        return channel

    def wrong_url(self, channel: str) -> str | None:
        """With a wrong password that contains SECRET; None: there are no passwords here."""
        return None

    def source(self, channel: str, *, lease: float | None = None) -> Source:
        """A new source of this channel, not opened. `lease`: seconds after which it may give a message again."""
        return self.kind.from_url(self.url(channel, lease=lease), {})


class Fixtures(Discreet):
    """`harness` comes from the test class; the others are made of it."""

    @pytest_asyncio.fixture(autouse=True)
    async def _filler(self, harness: SourceHarness) -> AsyncIterator[None]:
        async with opened(harness.sink()) as harness.filler:
            yield

    @pytest_asyncio.fixture
    async def channel(self, harness: SourceHarness) -> str:
        """A fixture: a channel that exists."""
        return await harness.channel()

    @pytest_asyncio.fixture
    async def source(self, harness: SourceHarness, channel: str) -> AsyncIterator[Source]:
        """A fixture: an opened source of that channel."""
        async with opened(harness.source(channel)) as made:
            yield made


async def send(
    harness: SourceHarness, channel: str, keys: Iterable[str | None], body: bytes | None = None, first: int = 0
) -> list[Message]:
    """Sends a message for each key; returns them."""
    async with sending(harness) as sink:
        sent = messages(sink, harness.destination(channel), keys, body, first)
        size = 1 if harness.ordered else len(sent)  # one of a key at a time, as a relay does
        for start in range(0, len(sent), size):
            await deliver(sink, sent[start : start + size])
    return sent


@asynccontextmanager
async def sending(harness: SourceHarness) -> AsyncIterator[Sink]:
    """The sink of this test, or one for now."""
    if harness.filler is not None:
        yield harness.filler
    else:
        async with opened(harness.sink()) as sink:
            yield sink


def id_of(message: Incoming) -> str:
    return message.headers["event_id"]


def headers_of(message: Incoming) -> dict[str, str]:
    """As text: some brokers carry headers as HTTP does."""
    return {name: unquote(value) if message.percent_encoded else value for name, value in message.headers.items()}


async def collect(
    source: Source, sent: Sequence[Message], limit: int = 100, acknowledge: bool = True
) -> list[Incoming]:
    """Receive until all of `sent` were there, each as often as it came. Nothing else may come."""
    wanted = {message.id for message in sent}
    found: list[Incoming] = []
    async with asyncio.timeout(PATIENCE):
        while wanted - {id_of(message) for message in found}:
            batch = await source.receive(limit, 1.0)
            assert len(batch) <= limit
            found += batch
            if batch and acknowledge:
                await source.acknowledge(batch)
    assert {id_of(message) for message in found} == wanted
    return found


def check_order(sent: Sequence[Message], found: Iterable[Incoming]) -> None:
    """The order of every key, of what came first: whatever comes again is dropped by an inbox."""
    numbers = {message.id: number for number, message in enumerate(sent)}
    keys = {message.id: message.key for message in sent}
    check_keys((keys[each], numbers[each]) for each in dict.fromkeys(map(id_of, found)))


async def comes_no_more(source: Source, gone: Iterable[Message], wait: float = 0.5) -> None:
    """These messages were acknowledged: the source does not give them again."""
    ids = {message.id for message in gone}
    assert not ids & {id_of(message) for message in await source.receive(100, wait)}, "it was acknowledged"


async def open_again(source: Source) -> None:
    """As an ingest does: until the broker is back."""
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                return await source.open()
            except BrokerUnavailable as error:
                check_discreet(f"{error} {error!r}")
                await asyncio.sleep(0.1)
