"""Values are bound: none is in the text of a statement, which PostgreSQL writes into its log. Names are checked."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit import with_driver
from relaybox import ALL, AsyncInbox, AsyncOutbox, Event, Guard, Inbox, Outbox, Reject, Topic
from relaybox.errors import ConfigError
from relaybox.store.names import identifier
from relaybox.testing.servers import PostgresServer, require

CANARY = "c4n'); DROP TABLE outbox_event; --"
KEPT = CANARY[:3]


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    require("postgres-wheel", durable=False)
    settings = {"log_statement": "all", "log_parameter_max_length": "0", "log_error_verbosity": "terse"}
    with PostgresServer.from_wheel(durable=False, settings=settings) as running:
        yield running


def hostile(count: int = 1, *, topic: str | None = None) -> list[Event]:
    return [
        Event(
            CANARY if n else f"Bad {CANARY}",
            CANARY,
            id=f"{KEPT}'{n} {topic or 0}",
            key=CANARY,
            tenant=CANARY,
            aggregate_type=CANARY,
            headers={f"h{CANARY}": CANARY},
            topic=topic,
        )
        for n in range(count)
    ]


def refuse(event: Event) -> None:
    raise Reject(CANARY)


async def arefuse(event: Event) -> None:
    raise Reject(CANARY)


def test_nothing_of_an_event_is_in_a_statement(server: PostgresServer) -> None:
    """Written one by one, in batches and by COPY; delivered, buried, replayed, discarded with a reason, accepted."""
    url = server.create_database()
    with Outbox(url) as box, Inbox(url) as inbox, Guard.sql(url, consumer="billing", mode="setnx") as guard:
        box.migrate()
        inbox.migrate()
        guard.migrate()
        box.topics.configure(Topic.pub_sub("offset"))
        box.topics.configure(Topic.queue("jobs"))
        for topic in (None, "offset", "jobs"):
            with box.transaction() as tx:
                events = hostile(300, topic=topic)
                box.write(tx, events[0])
                box.write_all(tx, events[1:20])
                box.write_all(tx, events[20:])
        with box.deliver(refuse) as service:
            service.drain()
        with box.topics.group("offset", "mail").deliver(refuse) as group:
            group.drain()
        box.resolve([CANARY])
        assert box.dead.replay(hostile()[0].id, actor=CANARY, reason=CANARY) == 1
        assert box.dead.discard(ALL, actor=CANARY, reason=CANARY) == 299
        assert inbox.accept(None, hostile()[0], sender=CANARY)
        inbox.accept_all(None, hostile(50)[1:], sender=CANARY)
        with inbox.process(refuse) as processing:
            processing.drain()
        assert inbox.dead.discard(ALL, actor=CANARY, reason=CANARY)
        guard.try_mark(CANARY)
    quiet(server)


async def test_nor_by_the_other_driver(server: PostgresServer) -> None:
    url = with_driver(server.create_database(), "asyncpg")
    async with AsyncOutbox(url) as box, AsyncInbox(url) as inbox:
        await box.migrate()
        await inbox.migrate()
        async with box.transaction() as tx:
            await box.write_all(tx, hostile(300))
        async with box.transaction() as tx:
            await box.write(tx, hostile(302)[301])
        async with box.deliver(arefuse) as service:
            await service.drain()
        assert await box.dead.replay(ALL, actor=CANARY, reason=CANARY) == 301
        assert await inbox.accept(None, hostile()[0], sender=CANARY)
        async with inbox.process(arefuse) as processing:
            await processing.drain()
        assert [letter.event.payload for letter in await inbox.dead.list()] == [CANARY]
    await asyncio.to_thread(quiet, server)


def quiet(server: PostgresServer) -> None:
    log = server.log_path.read_text(errors="replace")
    assert log.count("outbox_event") > 50
    assert [line for line in log.splitlines() if KEPT in line] == []


@given(st.one_of(st.text(), st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{40,50}.?", fullmatch=True)))
def test_a_name_needs_no_quotes_or_is_refused(name: str) -> None:
    try:
        assert identifier("table name", name) == name
    except ConfigError:
        return
    assert name.isascii()
    assert name.replace("_", "a").isalnum()
    assert len(name) <= 48
