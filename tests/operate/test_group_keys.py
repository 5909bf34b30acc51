"""Keys of ordered groups that wait for an event that failed, for each way that a topic is tracked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from relaybox import ALL, AsyncOutbox, ConfigError, Event, Outbox, Reject, Retry, StartFrom, Topic
from relaybox.facts import Administered
from relaybox.types import BlockedKey

from .conftest import database

TOPICS = {
    "rows": Topic.queue("orders"),
    "log-queue": Topic.queue("orders", tracking="offset"),
    "offset": Topic.pub_sub("orders"),
    "bitmap": Topic.pub_sub("orders", tracking="bitmap"),
    "acks": Topic.pub_sub("orders", tracking="acks"),
}


class Shop:
    """An ordered group whose listener does what the payload says, and its operator."""

    def __init__(self, url: str, topic: Topic, is_async: bool) -> None:
        self.facts: list[Any] = []
        self.theirs = Outbox(url)
        self.theirs.topics.configure(topic)
        self.box = (AsyncOutbox if is_async else Outbox)(url, observers=[self.facts.append])
        self.is_async = is_async
        self.name = "default" if topic.semantics == "queue" else "mail"
        self.handled: list[str] = []
        self.broken = True

    def group(self, box: Any, **options: Any) -> Any:
        return box.topics.group("orders", self.name, start=StartFrom.earliest(), ordered=True, **options)

    def deliver(self, **options: Any) -> None:
        """All that may be tried."""

        def handle(event: Event) -> None:
            if event.payload == "bad" and self.broken:
                raise Reject("bad")
            if event.payload == "slow" and self.broken:
                raise ValueError("later")
            self.handled.append(event.id)

        retry = Retry(attempts=5, base="1h", max="1h")
        self.group(self.theirs, on_exhausted="park", retry=retry, **options).deliver(handle).once()

    def write(self, *payloads: str, key: str = "k") -> list[str]:
        events = [Event("A", payload, key=key, topic="orders") for payload in payloads]
        with self.theirs.transaction() as tx:
            self.theirs.write_all(tx, events)
        return [event.id for event in events]

    async def call(self, name: str, *args: Any, **options: Any) -> Any:
        noun, verb = name.split(".")
        method = getattr(getattr(self.group(self.box), noun), verb)
        return await method(*args, **options) if self.is_async else await asyncio.to_thread(method, *args, **options)


@pytest_asyncio.fixture(params=[(name, twin) for name in TOPICS for twin in ("sync", "async")], ids="-".join)
async def shop(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Shop]:
    name, twin = request.param
    made = Shop(database("postgres", tmp_path), TOPICS[name], twin == "async")
    yield made
    made.theirs.close()
    closed = made.box.close()
    if closed is not None:
        await closed


async def test_a_key_that_waits_for_a_dead_letter_goes_on_without_it(shop: Shop) -> None:
    bad, *others = shop.write("bad", "b", "c")
    (free,) = shop.write("d", key="other")
    shop.deliver()
    assert shop.handled == [free]
    (blocked,) = await shop.call("keys.list")
    assert isinstance(blocked, BlockedKey)
    assert (blocked.key, blocked.cause, blocked.event_id, blocked.attempts) == ("k", "dead", bad, 1)
    assert "bad" in (blocked.error or "")
    assert not await shop.call("keys.release", "other")
    assert await shop.call("keys.release", "k", reason="no answer", actor="ann") is True
    assert await shop.call("keys.release", "k") is False
    assert await shop.call("keys.list") == []
    (told,) = [fact for fact in shop.facts if isinstance(fact, Administered)]
    assert (told.verb, told.what, told.actor) == ("release", f"key k of group orders/{shop.name}", "ann")
    shop.deliver()
    assert shop.handled == [free, *others]
    assert [letter.event.id for letter in await shop.call("dead.list")] == [bad], "it stays a dead letter"
    shop.broken = False
    assert await shop.call("dead.replay", bad) == 1
    shop.deliver()
    assert shop.handled == [free, *others, bad]


async def test_a_key_that_waits_for_a_retry_goes_on_without_it(shop: Shop) -> None:
    slow, after = shop.write("slow", "b")
    shop.deliver()
    assert shop.handled == []
    (blocked,) = await shop.call("keys.list")
    assert (blocked.key, blocked.cause, blocked.event_id) == ("k", "retry", slow)
    assert await shop.call("keys.release", "k") is True
    shop.deliver()
    assert shop.handled == [after]
    (waiting,) = await shop.call("events.list", state="open")
    assert (waiting.event.id, waiting.state) == (slow, "retry"), "it is tried on by itself"
    assert await shop.call("keys.list") == []


async def test_a_key_goes_on_when_what_it_waits_for_is_discarded(shop: Shop) -> None:
    _, after = shop.write("bad", "b")
    shop.deliver()
    assert shop.handled == []
    assert await shop.call("dead.discard", ALL) == 1
    assert await shop.call("keys.list") == []
    shop.deliver()
    assert shop.handled == [after]


async def test_what_is_asked_for_must_be_a_key_and_no_number(shop: Shop) -> None:
    for key in ("", None):
        with pytest.raises(ConfigError, match="expected a key"):
            await shop.call("keys.release", key)
    with pytest.raises(ConfigError, match="only in an inbox"):
        await shop.call("keys.release", "k", to=3)
