"""Snapshots: the whole table of a feed as one event between its deltas."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from kit import one, rows
from relaybox import AsyncOutbox, Event, Feed, Outbox, StartFrom
from relaybox.errors import FeedError, NotFound
from relaybox.topics.deltas import DeltaPlace

TOTALS = Feed(
    "totals",
    "SELECT customer, count(*) AS n, sum(amount) AS total FROM orders GROUP BY customer",
    key="customer",
    sources={"orders": "customer"},
    chunk_rows=4,
)
WRITTEN = (
    "SELECT (SELECT count(*) FROM outbox_event_feed_chunk), (SELECT count(*) FROM outbox_event_feed_delta), "
    "(SELECT count(*) FROM outbox_event_log_1), (SELECT max(n) FROM outbox_event_feed), "
    "(SELECT count(*) FROM outbox_event_audit)"
)


def made(box: Outbox, feed: Feed) -> None:
    """With a reader from the beginning on."""
    box.feeds.create(feed)
    box.topics.group("totals", "all", start=StartFrom.earliest()).create()


def events(box: Outbox) -> list[Event]:
    with box.topics.group("totals", "all").consumer() as consumer:
        found: list[Event] = []
        while batch := consumer.poll(100, wait=0):
            found += batch
            consumer.commit(batch)
        return found


def told(box: Outbox, event: Event) -> list[tuple[str, Any]]:
    return [(op, row["customer"]) for op, row in box.feeds.rows(event)]


@pytest.mark.parametrize(("limit", "claim_check"), [(10, False), (9, True)])
def test_the_threshold(url: str, box: Outbox, limit: int, claim_check: bool) -> None:
    made(box, replace(TOTALS, inline_rows=limit))
    box.feeds.refresh(None, "totals")
    rows(url, "UPDATE orders SET amount = 0 WHERE id = 7")
    done = box.feeds.snapshot(None, "totals")
    assert done[:4] == ("snapshot", 10, 0, 3)
    assert (done.claim_check, done.reasons) == (claim_check, ())
    first, delta, snapshot = events(box)
    assert [first.headers["feed-snapshot"], delta.headers["feed-snapshot"]] == ["false", "false"]
    assert told(box, delta) == [("deleted", 7), ("inserted", 7)]
    assert sorted(told(box, snapshot)) == [("inserted", n) for n in range(10)]
    assert (snapshot.type, snapshot.key, DeltaPlace.of(snapshot).n) == ("feed.delta", "totals", 3)
    assert DeltaPlace.of(snapshot)[3:] == (claim_check, True)
    assert {name: snapshot.headers[f"feed-{name}"] for name in ("snapshot", "full-refresh", "inserted", "deleted")} == {
        "snapshot": "true",
        "full-refresh": "false",
        "inserted": "10",
        "deleted": "0",
    }
    payload = snapshot.payload
    if claim_check:
        assert payload.pop("refresh_id") == snapshot.id
        assert payload == {"v": 1, "claim_check": True, "snapshot": True, "inserted_count": 10, "deleted_count": 0}
        assert one(url, "SELECT array_agg(rows) FROM outbox_event_feed_chunk WHERE n = 3") == [4, 4, 2]
    else:
        assert (payload["v"], payload["snapshot"], payload["deleted"]) == (1, True, [])
    info = box.feeds.get("totals")
    assert info is not None
    assert (info.deltas, info.how, info.inserted) == (3, "differential", 1)
    rows(url, "UPDATE orders SET amount = 1 WHERE id = 7")
    assert box.feeds.refresh(None, "totals").delta == 4


def test_a_snapshot_is_as_wide_as_an_event_may_be(url: str, box: Outbox) -> None:
    rows(url, "DELETE FROM orders WHERE id > 1")
    exact = len(b'{"v":1,"snapshot": true,"inserted":[{"customer":1,"n":1,"total":1}],"deleted":[]}')
    for name, limit, claim_check in (("fits", exact, False), ("not", exact - 1, True)):
        box.feeds.create(replace(TOTALS, name=name, inline_bytes=limit))
        assert box.feeds.snapshot(None, name).claim_check is claim_check


@pytest.mark.parametrize("limits", [{}, {"inline_bytes": 0}])
def test_of_nothing(url: str, box: Outbox, limits: Any) -> None:
    made(box, replace(TOTALS, **limits))
    rows(url, "DELETE FROM orders")
    done = box.feeds.snapshot(None, "totals")
    assert done[:4] == ("snapshot", 0, 0, 1)
    (event,) = events(box)
    assert DeltaPlace.of(event).snapshot
    assert told(box, event) == []
    assert done.claim_check is bool(limits)


def test_a_new_feed_is_evaluated_first(box: Outbox) -> None:
    made(box, TOTALS)
    done = box.feeds.snapshot(None, "totals")
    assert (done.delta, done.inserted, done.reasons) == (2, 10, ("first",))
    assert [DeltaPlace.of(event).snapshot for event in events(box)] == [False, True]


def test_a_rollback_leaves_nothing(url: str, box: Outbox) -> None:
    made(box, replace(TOTALS, inline_rows=0))
    box.feeds.refresh(None, "totals")
    rows(url, "UPDATE orders SET amount = 0")
    before = rows(url, WRITTEN)
    with psycopg.connect(url) as connection:
        assert box.feeds.snapshot(connection, "totals").delta == 3
        connection.rollback()
    assert rows(url, WRITTEN) == before
    assert box.feeds.status("totals").waiting == 10
    with box.transaction() as tx:
        tx.connection.execute("UPDATE orders SET amount = 1")
        assert box.feeds.snapshot(tx, "totals").delta == 3
        assert box.feeds.snapshot(tx, "totals").delta == 4
    assert [DeltaPlace.of(event)[2:] for event in events(box)] == [
        (1, True, False),
        (2, True, False),
        (3, True, True),
        (4, True, True),
    ]


async def test_the_async_twin(url: str) -> None:
    async with AsyncOutbox(url) as box:
        await box.feeds.create(TOTALS)
        assert (await box.feeds.snapshot(None, "totals", reason="a new mirror", actor="ann")).delta == 2
        async with box.transaction() as tx:
            assert (await box.feeds.snapshot(tx, "totals", reason="one more")).delta == 3
    found = rows(url, "SELECT verb, what, reason FROM outbox_event_audit WHERE verb = 'snapshot' ORDER BY id")
    assert found == [("snapshot", "feed totals", "a new mirror"), ("snapshot", "feed totals", "one more")]


def test_what_is_refused(url: str, box: Outbox) -> None:
    with pytest.raises(NotFound, match="no feed 'totals'"):
        box.feeds.snapshot(None, "totals")
    box.feeds.create(TOTALS)
    with psycopg.connect(url) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        with pytest.raises(FeedError, match="READ COMMITTED") as refused:
            box.feeds.snapshot(connection, "totals")
    assert refused.value.reason == "isolation"
    box.feeds.pause("totals")
    with pytest.raises(FeedError, match="paused") as refused:
        box.feeds.snapshot(None, "totals")
    assert refused.value.reason == "paused"
    assert one(url, "SELECT count(*) FROM outbox_event_audit WHERE verb = 'snapshot'") == 0


def test_from_sql(url: str, box: Outbox) -> None:
    made(box, TOTALS)
    assert one(url, "SELECT (outbox_event_feed_snapshot('totals')).n") == 2
    assert len(events(box)) == 2


def test_between_deltas_while_others_write(url: str, box: Outbox) -> None:
    """Each snapshot is what the deltas before it make, and what those after it change."""
    made(box, replace(TOTALS, inline_rows=6))
    over, errors = threading.Event(), list[BaseException]()

    def write(first: int) -> None:
        try:
            with psycopg.connect(url, autocommit=True) as writer:
                number = first
                while not over.is_set():
                    number += 2
                    writer.execute(b"UPDATE orders SET amount = amount + 1 WHERE id = %s", (number % 100,))
                    writer.execute(
                        b"UPDATE orders SET customer = (customer + 3) %% 12 WHERE id = %s", (number % 7 + first * 50,)
                    )
        except BaseException as error:
            errors.append(error)

    def tell(snapshots: bool) -> None:
        try:
            for _ in range(40):
                (box.feeds.snapshot if snapshots else box.feeds.refresh)(None, "totals")
        except BaseException as error:
            errors.append(error)

    writers = [threading.Thread(target=write, args=(n,)) for n in range(2)]
    tellers = [threading.Thread(target=tell, args=(kind,)) for kind in (True, False)]
    for thread in writers + tellers:
        thread.start()
    for thread in tellers:
        thread.join()
    over.set()
    for thread in writers:
        thread.join()
    assert errors == []

    table: dict[int, Any] = {}
    found = events(box)
    assert [DeltaPlace.of(event).n for event in found] == list(range(1, len(found) + 1))
    for event in found:
        if DeltaPlace.of(event).snapshot:
            assert table == {row["customer"]: row for _, row in box.feeds.rows(event)}
            continue
        for op, row in box.feeds.rows(event):
            if op == "deleted":
                assert table.pop(row["customer"]) == row
            else:
                table[row["customer"]] = row
    assert len(found) > 50
    box.feeds.refresh(None, "totals")
    assert box.feeds.verify("totals").rows == 0
