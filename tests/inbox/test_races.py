"""Two transactions at once: the second waits or is told of a duplicate; never are both the first."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from kit import INNODB, one, rows, until
from relaybox import ALL, AsyncInbox, Event, Inbox, Reject
from relaybox.drivers import open_sync
from relaybox.drivers.spi import Connection
from relaybox.errors import StoreBusy
from relaybox.op import Op, Query, run
from relaybox.store.inbox.settle import InboxSettles, Settling

from .effects import QUICK
from .kit import (
    PATIENCE,
    WAITING,
    arrived,
    holds,
    inbox_url,
    message_ids,
    pending_ids,
    processed,
    replayed,
    seen_ids,
    serving,
)

SERVERS = ["postgres", "mariadb"]


@contextmanager
def two_connections(url: str) -> Iterator[tuple[Connection, Connection]]:
    database = open_sync(url)
    with database.connection() as one, database.connection() as other:
        yield one, other
    database.close()


@pytest.mark.parametrize("ending", ["commit", "rollback"])
@pytest.mark.parametrize("server", SERVERS)
async def test_the_second_waits_for_the_first(server: str, ending: str, tmp_path: Path) -> None:
    url = inbox_url(server, tmp_path)
    event, other = arrived(1), arrived(2)
    with Inbox(url) as inbox, two_connections(url) as (first, second), ThreadPoolExecutor(1) as thread:
        first.begin()
        second.begin()
        assert inbox.accept(first, event)
        answer = thread.submit(inbox.accept_all, second, [event, other])
        await until(lambda: one(url, WAITING[server]), "waiting transaction", pause=INNODB)
        assert not answer.done()
        getattr(first, ending)()
        assert answer.result(PATIENCE) == [ending == "rollback", True]
        second.commit()
    assert holds(url, [event.id, other.id])


@pytest.mark.parametrize("server", SERVERS)
async def test_no_order_of_a_batch_makes_a_deadlock(server: str, tmp_path: Path) -> None:
    """In list order each would have one id and wait for the other's as soon as the third transaction ends."""
    url = inbox_url(server, tmp_path)
    a, b, c, d = (arrived(n, id=f"id-{n}") for n in range(4))
    with Inbox(url) as inbox, two_connections(url) as (third, _), ThreadPoolExecutor(2) as threads:
        third.begin()
        assert inbox.accept_all(third, [c, d]) == [True, True]
        one_way = threads.submit(inbox.accept_all, None, [a, c, b])
        await until(lambda: one(url, WAITING[server]) == 1, "waiting transaction", pause=INNODB)
        other_way = threads.submit(inbox.accept_all, None, [b, d, a])
        await until(lambda: one(url, WAITING[server]) == 2, "second waiting transaction", pause=INNODB)
        third.commit()
        assert one_way.result(PATIENCE) == [True, False, True]
        assert other_way.result(PATIENCE) == [False, False, False]
    assert holds(url, [c.id, d.id, a.id, b.id])


@pytest.mark.parametrize("ending", ["commit", "rollback"])
@pytest.mark.parametrize("server", SERVERS)
async def test_an_id_is_known_while_its_message_is_purged(server: str, ending: str, tmp_path: Path) -> None:
    url = inbox_url(server, tmp_path)
    event, other = arrived(1), arrived(2)
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    with Inbox(url) as inbox, two_connections(url) as (drain, _), ThreadPoolExecutor(2) as threads:
        inbox.accept(None, event)
        processed(inbox, lambda event, connection: None)
        drain.begin()
        assert run(inbox.store.purge_done(timedelta(0), 10, tomorrow), drain) == 1
        answers = [threads.submit(inbox.accept_all, None, batch) for batch in ([event], [event, other])]
        if server == "postgres":
            await until(lambda: one(url, WAITING[server]) == 2, "two waiting transactions", pause=INNODB)
        getattr(drain, ending)()
        assert [answer.result(PATIENCE) for answer in answers] == [[False], [False, True]]
    assert message_ids(url) == ([other.id] if ending == "commit" else [event.id, other.id])
    assert sorted(seen_ids(url)) == sorted([event.id, other.id])


@pytest.mark.parametrize("kind", ["processed", "dead"])
@pytest.mark.parametrize("ending", ["commit", "rollback"])
@pytest.mark.parametrize("server", SERVERS)
async def test_a_replay_waits_for_a_purge_and_tells_what_is_due(
    server: str, ending: str, kind: str, tmp_path: Path
) -> None:
    url = inbox_url(server, tmp_path)
    event = arrived(1)

    def handle(event: Event, connection: Any) -> None:
        if kind == "dead":
            raise Reject("no")

    with Inbox(url) as inbox, two_connections(url) as (drain, _), ThreadPoolExecutor(1) as threads:
        inbox.accept(None, event)
        processed(inbox, handle)
        drain.begin()
        op = inbox.store.purge_done if kind == "processed" else inbox.store.purge_dead
        assert run(op(timedelta(0), 10, None), drain) == 1
        replay = threads.submit(inbox.events.replay, event.id)
        await until(lambda: one(url, WAITING[server]) == 1, "waiting transaction", pause=INNODB)
        getattr(drain, ending)()
        due = [] if ending == "commit" else [event.id]
        assert replay.result(PATIENCE) == len(due)
        assert pending_ids(url) == due
        assert processed(inbox, lambda event, connection: event.payload).done == len(due)


@pytest.mark.parametrize("server", SERVERS)
async def test_of_two_replays_one_tells_that_a_message_is_due(server: str, tmp_path: Path) -> None:
    url = inbox_url(server, tmp_path)
    event = arrived(1)
    with Inbox(url) as inbox, two_connections(url) as (first, _), ThreadPoolExecutor(1) as threads:
        inbox.accept(None, event)
        processed(inbox, lambda event, connection: None)
        first.begin()
        assert run(replayed(inbox, "done", event.id), first) == 1
        second = threads.submit(inbox.events.replay, event.id)
        await until(lambda: one(url, WAITING[server]) == 1, "waiting transaction", pause=INNODB)
        first.commit()
        assert second.result(PATIENCE) == 0
        assert processed(inbox, lambda event, connection: None).done == 1


def test_every_message_that_is_replayed_beside_a_purge_has_its_payload(url: str) -> None:
    with Inbox(url) as inbox, ThreadPoolExecutor(1) as threads:
        inbox.accept_all(None, [arrived(n) for n in range(300)])
        processed(inbox, lambda event, connection: None)
        drain = threads.submit(inbox.purge, done=0)
        replayed = inbox.events.replay(ALL)
        drained = drain.result(PATIENCE)
        assert replayed == inbox.status().pending
        assert replayed + drained == 300
        seen: list[int] = []
        processed(inbox, lambda event, connection: seen.append(event.payload["n"]))
        assert len(set(seen)) == replayed


async def test_sqlite_lets_one_transaction_write_at_a_time(tmp_path: Path) -> None:
    import sqlite3

    url = inbox_url("sqlite", tmp_path)
    event = arrived(1)
    first, second = (sqlite3.connect(tmp_path / "inbox.db", isolation_level=None, timeout=0) for _ in range(2))
    with Inbox(url) as inbox:
        first.execute("BEGIN")
        second.execute("BEGIN")
        assert inbox.accept(first, event)
        with pytest.raises(StoreBusy):
            inbox.accept(second, event)
        first.commit()
        assert not inbox.accept(second, event)
    first.close()
    second.close()
    assert holds(url, [event.id])


@pytest.mark.parametrize("server", SERVERS)
async def test_different_messages_do_not_wait_for_each_other(server: str, tmp_path: Path) -> None:
    """Also under REPEATABLE READ, where careless reads would lock the gaps between ids."""
    url = inbox_url(server, tmp_path)
    before, one, between, other, after = (arrived(n, id=f"id-{n}") for n in range(5))
    with Inbox(url) as inbox, two_connections(url) as (first, second), ThreadPoolExecutor(1) as thread:
        inbox.accept_all(None, [before, after])
        for connection in (first, second):
            repeatable(connection)
        assert inbox.accept_all(first, [before, one]) == [False, True]
        waiting = thread.submit(inbox.accept_all, second, [between, after])
        assert waiting.result(PATIENCE) == [True, False]
        assert inbox.accept(first, other)
        second.commit()
        first.commit()
    assert set(seen_ids(url)) == {event.id for event in (before, one, between, other, after)}


@pytest.mark.parametrize("server", SERVERS)
async def test_what_the_snapshot_does_not_show_is_seen_or_refused(server: str, tmp_path: Path) -> None:
    """REPEATABLE READ: MySQL looks past the snapshot, PostgreSQL asks for the transaction to be run again."""
    url = inbox_url(server, tmp_path)
    event, other = arrived(1), arrived(2)
    with Inbox(url) as inbox, two_connections(url) as (old, new):
        repeatable(old)
        new.begin()
        assert inbox.accept(new, event)
        new.commit()
        if server == "postgres":
            with pytest.raises(StoreBusy):
                inbox.accept_all(old, [event, other])
            old.rollback()
        else:
            assert inbox.accept_all(old, [event, other]) == [False, True]
            old.commit()
    assert holds(url, [event.id] if server == "postgres" else [event.id, other.id])


def repeatable(connection: Connection) -> None:
    cursor = connection.raw.cursor()
    if connection.dialect == "postgres":
        cursor.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    else:
        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
    cursor.execute("SELECT count(*) FROM inbox")
    cursor.fetchall()


async def test_many_at_once(engine: str, url: str) -> None:
    """Batches that overlap, each in an order of its own: no deadlock, and every id is new exactly once."""
    chance = random.Random(7)
    events = [arrived(n) for n in range(300)]
    batches = [chance.sample(events, 40) for _ in range(40)]

    with Inbox(url) as inbox, ThreadPoolExecutor(4) as threads:

        def accept(batch: list[Event]) -> list[str]:
            answers = inbox.accept_all(None, batch)
            return [event.id for event, new in zip(batch, answers, strict=True) if new]

        first = Counter(event_id for accepted in threads.map(accept, batches) for event_id in accepted)
    given = {event.id for batch in batches for event in batch}
    assert first == Counter(given)
    assert set(message_ids(url)) == set(pending_ids(url)) == set(seen_ids(url)) == given
    assert len(message_ids(url)) == len(given)


@pytest.mark.parametrize("server", SERVERS)
def test_a_message_that_a_handler_is_at_is_not_discarded(server: str, tmp_path: Path) -> None:
    """It is neither waited for nor cut off; one that is only claimed goes."""
    url = inbox_url(server, tmp_path)
    at_it, enough = threading.Event(), threading.Event()

    def handle(event: Event, connection: Any) -> None:
        at_it.set()
        assert enough.wait(PATIENCE)

    with Inbox(url) as inbox:
        inbox.accept_all(None, [arrived(n, id=f"m{n}") for n in range(3)])
        with serving(inbox, handle, settings=QUICK.replaced({"delivery.workers": 1})) as processing:
            assert at_it.wait(PATIENCE)
            states = {found.state for found in inbox.events.list()}
            assert states == {"claimed"}
            assert inbox.events.discard(ALL) == 2
            enough.set()
            processing.drain()
        assert [(found.event.id, found.state) for found in inbox.events.list()] == [("m0", "done")]


@pytest.mark.parametrize("server", SERVERS)
async def test_a_message_that_its_last_transaction_still_holds_is_settled_when_that_lets_go(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a connection that was given up: the server is not done with its transaction."""
    url = inbox_url(server, tmp_path)
    looked, tried = threading.Event(), 0
    settle = InboxSettles.settle_messages

    def spied(self: InboxSettles, settling: Settling, now: datetime | None) -> Op[Any]:
        late = yield from settle(self, settling, now)
        looked.set()
        return late

    monkeypatch.setattr(InboxSettles, "settle_messages", spied)

    def hold(connection: Connection) -> None:
        connection.begin()
        connection.execute(Query("hold", "SELECT seq FROM inbox_pending FOR UPDATE", "rows").bind())
        assert looked.wait(PATIENCE)
        connection.commit()

    with two_connections(url) as (other, _), ThreadPoolExecutor(1) as thread:

        async def fail(event: Event) -> None:
            nonlocal tried
            tried += 1
            held.append(thread.submit(hold, other))
            await until(lambda: one(url, WAITING[server]), "waiting transaction", pause=INNODB)
            raise Reject("no")

        held: list[Any] = []
        async with AsyncInbox(url, settings=QUICK) as inbox:
            await inbox.accept(None, arrived(1))
            async with inbox.process(fail):
                await until(lambda: rows(url, "SELECT 1 FROM inbox_dead"), "dead letter")
        held[0].result(PATIENCE)
    assert (tried, pending_ids(url)) == (1, [])
