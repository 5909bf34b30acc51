"""What one event has in it stops no other, whichever sink they share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from relay_kit import settings, write

from kit import make_postgres, rows
from relaybox import AsyncRelay, Event, Inbox, Outbox
from relaybox.brokers.redis import RedisStreamSink
from relaybox.relay.inbox_sink import InboxSink
from relaybox.spi import Sink
from relaybox.testing.servers import RedisServer, require

ONCE = settings({"relay.retry.attempts": 1, "order.on_exhausted": "skip"})


@pytest.fixture(scope="module")
def redis() -> Iterator[str]:
    require("redis", durable=False)
    with RedisServer(durable=False) as running:
        yield running.url


@pytest.fixture
def make_sink(request: pytest.FixtureRequest) -> Callable[[], Sink]:
    makers: dict[str, Callable[[], Sink]] = {
        "redis": lambda: RedisStreamSink(request.getfixturevalue("redis")),
        "postgres": _inbox,
    }
    return makers[request.param]


def _inbox() -> Sink:
    url = make_postgres(migrated=False)
    with Inbox(url) as inbox:
        inbox.migrate()
    return InboxSink(url, inbox="inbox")


async def relayed(url: str, sink: Sink, to: Any, honest: Sequence[Event]) -> list[str]:
    """The ids of the dead letters, after one attempt each."""
    write(url, honest)
    async with AsyncRelay(url, sink, to=to, settings=ONCE) as relay:
        await relay.drain(timeout=30)
        assert (await relay.status()).due == 0
    with Outbox(url) as box:
        return [letter.event.type for letter in box.dead.list()]


@pytest.mark.parametrize("make_sink", ["redis"], indirect=True)
async def test_a_destination_that_is_no_text(sqlite: str, make_sink: Callable[[], Sink]) -> None:
    """A route that reads the payload."""
    honest = [Event("Honest", {"region": "eu"}) for _ in range(5)]
    events = [*honest[:2], Event("Half", payload_json='{"region": "\\ud800"}'), *honest[2:]]
    assert await relayed(sqlite, make_sink(), lambda event: event.payload["region"], events) == ["Half"]


@pytest.mark.parametrize("make_sink", ["redis", "postgres"], indirect=True)
async def test_headers_that_are_no_text(sqlite: str, make_sink: Callable[[], Sink]) -> None:
    """In a row that another program wrote."""
    write(sqlite, [Event("Half", 1)])
    rows(sqlite, 'UPDATE outbox_event SET headers = \'{"a": "\\ud800"}\'')
    assert await relayed(sqlite, make_sink(), "eu", [Event("Honest", n) for n in range(5)]) == ["Half"]


@pytest.mark.parametrize("make_sink", ["postgres"], indirect=True)
async def test_text_that_the_other_database_does_not_take(sqlite: str, make_sink: Callable[[], Sink]) -> None:
    write(sqlite, [Event("Half", 1, tenant="t")])
    rows(sqlite, "UPDATE outbox_event SET tenant_id = 'a' || char(0)")
    assert await relayed(sqlite, make_sink(), "eu", [Event("Honest", n) for n in range(5)]) == ["Half"]
