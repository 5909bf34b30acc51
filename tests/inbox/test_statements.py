"""How few statements an inbox needs on PostgreSQL, and that what they save changes no answer."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from kit import rows
from relaybox import Event, Inbox
from relaybox.drivers import open_sync
from relaybox.drivers.spi import Connection
from relaybox.ids import new_token
from relaybox.op import Copy, Op, ParamStyle, Result, Statement, run
from relaybox.store.claims import Claim
from relaybox.store.event_rows import CHUNK_ROWS
from relaybox.store.inbox import InboxStore, InboxTables, open_inbox_store
from relaybox.store.inbox.claim import SUSPECT, Arrived, Share
from relaybox.types import Order, Priority

from .kit import agreed, arrived, inbox_url, message_ids


class Counted:
    """A store on its connection, and what it asked."""

    def __init__(self, store: InboxStore, connection: Connection) -> None:
        self.store = store
        self.asked: list[str] = []
        self._connection = connection

    def execute(self, statement: Statement | Copy) -> Result:
        assert isinstance(statement, Statement)
        self.asked.append(statement.query.name)
        return self._connection.execute(statement)

    def run(self, op: Op[Any]) -> Any:
        self.asked.clear()
        return run(op, self)

    def claim(self, limit: int = 10) -> list[Arrived]:
        claim = Claim(1, new_token(), timedelta(seconds=30))
        messages, more = self.run(self.store.claim_messages(claim, limit, None, share=Share()))
        assert more == bool(messages)
        return list(messages)


@pytest.fixture
def postgres(tmp_path: Path) -> str:
    return inbox_url("postgres", tmp_path)


@pytest.fixture
def counted(postgres: str) -> Iterator[Counted]:
    database = open_sync(postgres)
    store = open_inbox_store("postgres", InboxTables())
    with database.connection() as connection:
        run(store.know(), connection)
        yield Counted(store, connection)
    database.close()


def ids(messages: list[Arrived]) -> list[str]:
    return [message.row[1] for message in messages]


def test_one_message_is_one_statement(counted: Counted) -> None:
    event = arrived(1, key="a")
    assert counted.store.single
    assert counted.run(counted.store.accept_one(event, "shop", None)) == [True]
    assert counted.run(counted.store.accept_one(event, "shop", None)) == [False]
    assert counted.run(counted.store.accept([event], "shop", None)) == [False]
    assert counted.asked == ["inbox.accept.one"]


def test_many_messages_are_one_statement(counted: Counted) -> None:
    events = [arrived(n) for n in range(5)]
    assert counted.run(counted.store.accept(events, "shop", None)) == [True] * 5
    assert counted.asked == ["inbox.accept"]


def test_too_many_of_them_or_letters_need_a_transaction(postgres: str) -> None:
    event = arrived(1)
    with Inbox(postgres) as inbox:
        assert inbox._op([event], "", None)[1]  # whose table is it?
        inbox.accept(None, arrived(0))
        assert not inbox._op([event], "", None)[1]
        assert not inbox._op([event, arrived(2)], "", None)[1]
        assert inbox._op([event] * (CHUNK_ROWS + 1), "", None)[1]
        assert inbox._op([event], "", {event.id: "unreadable"})[1]


def test_the_values_of_a_message_are_those_of_the_statement(counted: Counted) -> None:
    statement = next(counted.store.accept_one(arrived(1), "shop", None))
    assert isinstance(statement, Statement)
    styles: list[ParamStyle] = ["format", "dollar"]
    for style in styles:
        names = statement.query.compiled(style)[1]
        assert len(set(names)) == len(names)
        assert set(names) == statement.params.keys()
    assert not open_inbox_store("sqlite", InboxTables()).single


def test_one_message_is_stored_as_it_is_among_many(postgres: str) -> None:
    headers = {"sequence": "7", "priority": "3", "trace": "x"}

    def events() -> list[Event]:
        full = Event("Placed", {"n": 1}, key="a", aggregate_type="order", tenant="t", headers=headers)
        return [full, Event("Placed", "text", content_type="text/plain"), Event("Gone", None)]

    with Inbox(postgres) as inbox:
        for event in events():
            assert inbox.accept(None, event, sender="shop")
        assert inbox.accept_all(None, events(), sender="shop") == [True, True, True]
    columns = "event_type, sender, aggregate_type, aggregate_id, tenant_id, content_type, payload, headers"
    stored = rows(
        postgres,
        f"SELECT {columns}, position, priority, attempts, held FROM inbox JOIN inbox_pending USING (seq) ORDER BY seq",
    )
    assert len(stored) == 6
    assert stored[:3] == stored[3:]
    assert rows(postgres, "SELECT event_type, pending FROM inbox_stats ORDER BY 1") == [("Gone", 2), ("Placed", 4)]


def test_a_claim_is_one_statement_where_nothing_decides_but_time(counted: Counted, postgres: str) -> None:
    counted.run(counted.store.accept([arrived(n) for n in range(5)], "", None))
    first = counted.claim(3)
    assert counted.asked == ["inbox.claim"]
    assert [message.attempts for message in first] == [1, 1, 1]
    assert ids(first) + ids(counted.claim()) == message_ids(postgres)
    assert counted.claim() == []
    assert not counted.store.claims_at_once(Order(), None)
    assert not counted.store.claims_at_once(None, Priority())


def test_a_suspect_is_claimed_alone_by_it_too(counted: Counted, postgres: str) -> None:
    counted.run(counted.store.accept([arrived(n) for n in range(4)], "", None))
    _, second, *others = message_ids(postgres)
    rows(postgres, f"UPDATE inbox_pending SET strikes = {SUSPECT} WHERE seq = 2 RETURNING seq")
    assert ids(counted.claim()) == [message_ids(postgres)[0], *others]  # not with its neighbours
    assert ids(counted.claim()) == [second]
    rows(postgres, "UPDATE inbox_pending SET due = due - interval '1 hour' WHERE seq = 2 RETURNING seq")
    rows(postgres, "UPDATE inbox_pending SET due = due - interval '1 minute' WHERE seq > 2 RETURNING seq")
    assert ids(counted.claim()) == [second]  # nor they with it


def test_a_message_that_somebody_deleted_is_claimed_all_the_same(counted: Counted, postgres: str) -> None:
    counted.run(counted.store.accept([arrived(1)], "", None))
    rows(postgres, "DELETE FROM inbox RETURNING seq")
    assert ids(counted.claim()) == [None]


async def test_numbers_that_came_twice_hide_no_gap(url: str) -> None:
    """Three numbers from 1 to 3, and yet one is missing."""
    with agreed(url, order=Order()) as inbox:
        for number in (1, 1, 3, 3, 6):
            inbox.accept(None, Event("E", {}, key="a", headers={"sequence": str(number)}))
        gaps = sorted((gap.first, gap.last) for gap in inbox.keys.list())
    assert gaps == [(2, 2), (4, 5)]
