"""What the contract's tests stand on: a broker behind a harness, messages that can be recognised, a small relay."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, TypeVar

import pytest
import pytest_asyncio

from ...brokers.formats import renderer
from ...brokers.spi import Answer, Message, Sink, Source
from ...errors import BrokerUnavailable
from ...event import MAX_PAYLOAD, Event

CANARY = "canary-payload-8c1f"  # in every body; must be in no error, log or repr
SECRET = "canary-secret-5e07"  # noqa: S105 - for harnesses: the password, token or key that must not be seen either
PUBLISH_SECONDS = 10.0  # the relay's bound on one publish
PROBE_SECONDS = 5.0
OPEN_SECONDS = 30.0
RESUME_SECONDS = 2.0  # from the broker's return to a probe that succeeds


Opened = TypeVar("Opened", bound=Sink | Source)


class Received(NamedTuple):
    """A message as a consumer sees it. `key` is the attribute aggregate_id where the broker has no keys."""

    id: str
    key: str | None
    body: bytes
    content_type: str
    attributes: dict[str, str]

    def __repr__(self) -> str:
        return f"Received({self.id!r}, key={self.key!r}, <{len(self.body)} bytes>)"


class BrokerHarness:
    """One private broker that can be taken away."""

    async def outage(self) -> None:
        """Take the broker away: kill it, or cut its connections and refuse new ones."""
        raise NotImplementedError

    async def recovery(self) -> None:
        """Bring it back with what it had acknowledged; returns when it takes messages."""
        raise NotImplementedError


class SinkHarness(BrokerHarness):
    """One private broker. Override what your broker can; None means that it cannot happen there."""

    oversize: int | None = None  # size of a body that the broker refuses

    def sink(self, **options: Any) -> Sink:
        """A new sink, not opened. Use SECRET as its password where the broker has passwords."""
        raise NotImplementedError

    async def destination(self) -> str:
        """A fresh destination that exists."""
        raise NotImplementedError

    async def read(self, destination: str, count: int, timeout: float = 20) -> list[Received]:
        """At least `count` messages, and any more that are there, in the broker's order. Read from the start by another
        client library than the sink's."""
        raise NotImplementedError

    async def missing(self) -> str | None:
        """A destination that does not exist or has no route."""
        return None

    def wrong_credentials(self) -> Sink | None:
        """A sink whose password is wrong and contains SECRET."""
        return None


@asynccontextmanager
async def opened(one: Opened) -> AsyncIterator[Opened]:
    """A sink or a source, closed whatever happens."""
    async with asyncio.timeout(OPEN_SECONDS):
        await one.open()
    try:
        yield one
    finally:
        await one.close()


@asynccontextmanager
async def away(harness: BrokerHarness) -> AsyncIterator[None]:
    """The broker comes back whatever happens: later tests need it."""
    await harness.outage()
    try:
        yield
    finally:
        await harness.recovery()


class Discreet:
    @pytest.fixture(autouse=True)
    def _discreet_logs(self, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
        """No test may leave the canaries in a log record; ours are looked at down to DEBUG."""
        caplog.set_level(logging.INFO)
        caplog.set_level(logging.DEBUG, logger="relaybox")
        yield
        formatter = logging.Formatter()
        for record in caplog.get_records("setup") + caplog.get_records("call"):
            check_discreet(formatter.format(record))


class Fixtures(Discreet):
    """`harness` comes from the test class; the others are made of it."""

    @pytest_asyncio.fixture
    async def sink(self, harness: SinkHarness) -> AsyncIterator[Sink]:
        """A fixture: an opened sink."""
        async with opened(harness.sink()) as made:
            yield made

    @pytest_asyncio.fixture
    async def destination(self, harness: SinkHarness) -> str:
        """A fixture: a destination that exists."""
        return await harness.destination()


def messages(
    sink: Sink, destination: str, keys: Iterable[str | None], body: bytes | None = None, first: int = 0
) -> list[Message]:
    """One message per key, rendered as the relay does. Bodies carry a number and the canary unless one is given."""
    render = renderer("plain", "", sink.features)
    made = []
    for number, key in enumerate(keys, first):
        content = b'{"n": %d, "note": "%s"}' % (number, CANARY.encode()) if body is None else body
        event = Event(
            "OrderPlaced",
            payload_bytes=content[:MAX_PAYLOAD],
            content_type="application/json",
            key=key,
            aggregate_type="order",
            headers={"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"},
        )
        made.append(render(event, destination)._replace(body=content))
    return made


async def publish(sink: Sink, batch: Sequence[Message]) -> list[Answer]:
    """One publish with the relay's bound. An exception of the whole call stands for every message."""
    try:
        async with asyncio.timeout(PUBLISH_SECONDS):
            answers = list(await sink.publish(batch))
    except BrokerUnavailable as error:
        answers = [error] * len(batch)
    assert len(answers) == len(batch), "one answer per message"
    for answer in answers:
        if answer is not None:
            check_discreet("".join(traceback.format_exception(answer)) + repr(answer))
    return answers


async def probe(sink: Sink) -> Answer:
    try:
        async with asyncio.timeout(PROBE_SECONDS):
            await sink.probe()
    except BrokerUnavailable as error:
        check_discreet("".join(traceback.format_exception(error)) + repr(error))
        return error
    return None


async def until_back(sink: Sink, seconds: float) -> None:
    """Probe as the relay does, until the broker takes messages again."""
    async with asyncio.timeout(seconds):
        while await probe(sink) is not None:  # noqa: ASYNC110 - a broker tells nobody that it is back
            await asyncio.sleep(0.2)


async def deliver(sink: Sink, batch: Sequence[Message], patience: float = 60) -> None:
    """Publish until every message is accepted, as the relay does: what failed goes again, with the same id."""
    rest = list(batch)
    while True:
        answers = await publish(sink, rest)
        failed = [answer for answer in answers if answer is not None]
        rest = [message for message, answer in zip(rest, answers, strict=True) if answer is not None]
        if not rest:
            return
        assert all(isinstance(answer, BrokerUnavailable) for answer in failed), failed
        await until_back(sink, patience)


async def arrived(
    harness: SinkHarness, destination: str, sent: Sequence[Message], *, repeated: bool = False
) -> list[Received]:
    """Read and check: nothing lost, nothing strange, the order of every key. `repeated` allows a message to come
    again at once (a lost reply), never behind its successor."""
    found = await harness.read(destination, len(sent))
    numbers = {message.id: number for number, message in enumerate(sent)}
    assert set(numbers) == {received.id for received in found}
    if not repeated:
        assert len(found) == len(sent), "something came twice"
    check_keys((received.key, numbers[received.id]) for received in found)
    return found


def check_keys(found: Iterable[tuple[str | None, int]]) -> None:
    """From keys and numbers as they came: those of each key grow."""
    by_key: dict[str | None, list[int]] = {}
    for key, number in found:
        by_key.setdefault(key, []).append(number)
    for key, order in by_key.items():
        assert key is None or order == sorted(order), f"order of {key}: {order}"


def check_discreet(text: str) -> None:
    assert CANARY not in text, "a payload is visible"
    assert SECRET not in text, "a secret is visible"
