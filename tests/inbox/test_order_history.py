"""Order over a history: keys whose messages were processed without one go on where the history ends."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from flow.kit import Probe, one
from relaybox import Event, Reject
from relaybox.inbox import AsyncInbox, Columns, Inbox, Order, Retention

from .effects import QUICK
from .kit import Twin, fresh_url, migrated
from .test_adopt import adopted, now


def numbered(number: int, key: str = "k") -> Event:
    return Event("Booked", {"n": number}, key=key, id=f"{key}-{number}", headers={"sequence": str(number)})


class Ran(list[tuple[str, int]]):
    """A handler that remembers what it was given."""

    def __init__(self, refused: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.refused = refused

    def __call__(self, event: Event, _: Any) -> None:
        if event.payload["n"] in self.refused:
            raise Reject("no")
        self.append((event.key or "", event.payload["n"]))


def of(ran: Ran, key: str = "k") -> list[int]:
    return [number for found, number in ran if found == key]


@pytest.mark.parametrize("drained", [False, True], ids=["kept", "drained"])
async def test_turning_order_on(url: str, is_async: bool, drained: bool) -> None:
    with Inbox(url) as inbox:
        inbox.accept_all(None, [numbered(n, key) for n in range(1, 6) for key in ("a", "b")])
        inbox.process(Ran(), settings=QUICK)
        if drained:
            assert inbox.drain(Retention(processed=timedelta(0))).processed == 10
    ran = Ran()
    async with Twin(url, is_async=is_async) as twin:
        await twin.call("enable_ordering", Order())
        await twin.call("accept_all", None, [numbered(7, "a"), numbered(6, "a"), numbered(6, "b"), numbered(2, "new")])
        if isinstance(twin.raw, AsyncInbox):

            async def handle(event: Event, connection: Any) -> None:
                ran(event, connection)

            await twin.raw.process(handle, settings=QUICK)
        else:
            twin.raw.process(ran, settings=QUICK)
        assert (of(ran, "a"), of(ran, "b"), of(ran, "new")) == ([6, 7], [6], [])
        assert await twin.call("expected", "a") == 8
        assert [gap.key for gap in await twin.call("gaps")] == ["new"], "a key without a history begins with 1"


def test_a_history_with_gaps(url: str) -> None:
    """4 waits while 5 and 6 were processed, 8 is dead: nothing that waits is given up, and nothing runs twice."""
    with Inbox(url) as inbox:
        inbox.accept_all(None, [numbered(n) for n in (1, 2, 3, 5, 6, 8)])
        inbox.process(Ran(refused=(8,)), settings=QUICK)
        inbox.accept_all(None, [numbered(4), numbered(7), numbered(9)])
    ran = Ran()
    with Inbox(url, order=Order()) as inbox:
        inbox.process(ran, settings=QUICK)
        inbox.process(ran, settings=QUICK)
        assert of(ran) == [4, 7]
        assert [(gap.first, gap.last, gap.dead) for gap in inbox.gaps()] == [(8, 8, True)], (
            "as Order(dead='block') says"
        )
        inbox.replay(["k-8"])
        inbox.process(ran, settings=QUICK)
        assert of(ran) == [4, 7, 8, 9]
        inbox.accept(None, Event("Booked", {"n": 3}, key="k", headers={"sequence": "3"}))
        inbox.process(ran, settings=QUICK)
        assert "came after its turn" in (inbox.dead()[0].error or "")


def test_order_off_and_on_again(url: str) -> None:
    ran = Ran()
    for order, numbers in ((Order(), (1, 2)), (None, (3, 4)), (Order(), (5,))):
        with Inbox(url, order=order) as inbox:
            if order is None:
                inbox.disable_ordering()
            inbox.accept_all(None, [numbered(n) for n in numbers])
            inbox.process(ran, settings=QUICK)
            inbox.process(ran, settings=QUICK)
    assert sorted(of(ran)) == [1, 2, 3, 4, 5], "in no order while there was none"


def test_a_processor_that_began_before_the_order(url: str) -> None:
    ran, probe = Ran(), Probe()
    with Inbox(url) as old, Inbox(url) as new:
        old.accept(None, numbered(1))
        with old.processor(ran, settings=QUICK, observers=[probe]):
            probe.wait(lambda: len(ran) == 1)
            new.enable_ordering()
            new.accept_all(None, [numbered(n) for n in (2, 3)])
            probe.wait(lambda: len(ran) == 3)
        new.accept(None, numbered(4))
        new.process(ran, settings=QUICK)
        new.process(ran, settings=QUICK)
    assert sorted(of(ran)) == [1, 2, 3, 4]


def test_an_adopted_table_with_a_history(engine: str, tmp_path: Path) -> None:
    """Rows that were processed before, and by the old code beside us, some of which we never saw waiting."""
    theirs = adopted(fresh_url(engine, tmp_path), Columns(sequence="nr"))
    for nr in (1, 2, 3):
        theirs.insert(f"m{nr}", nr, aggregate_id="'k'", sequence=nr)
        theirs.set(f"m{nr}", processed_at=now(theirs))
    theirs.insert("m4", 4, aggregate_id="'k'", sequence=4)
    ran = Ran()
    with Inbox(theirs.url, order=Order()) as inbox:
        inbox.process(ran, settings=QUICK)
        assert of(ran) == [4]
        theirs.insert("m5", 5, aggregate_id="'k'", sequence=5)
        theirs.set("m5", processed_at=now(theirs))
        theirs.insert("m6", 6, aggregate_id="'k'", sequence=6)
        inbox.process(ran, settings=QUICK)
        assert of(ran) == [4, 6]
        assert inbox.expected("k") == 7


def test_an_inbox_that_was_ordered_from_the_beginning_asks_nothing_of_its_history(tmp_path: Path) -> None:
    url = migrated(fresh_url("sqlite", tmp_path))
    with Inbox(url, order=Order()) as inbox:
        inbox.accept_all(None, [numbered(1), numbered(3)])
        inbox.process(Ran(), settings=QUICK)
        assert inbox.expected("k") == 2
        assert one(url, "SELECT count(*) FROM inbox_pending WHERE held") == 1
