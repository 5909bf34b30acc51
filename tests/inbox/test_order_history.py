"""Order over a history: keys whose messages were processed without one go on where the history ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kit import Probe, one
from relaybox import AsyncInbox, Event, Inbox, Reject
from relaybox.types import Columns, Order

from .effects import QUICK
from .kit import Twin, agreed, aprocessed, expected, fresh_url, inbox_url, processed, serving
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


@pytest.mark.parametrize("purged", [False, True], ids=["kept", "purged"])
async def test_turning_order_on(url: str, is_async: bool, purged: bool) -> None:
    with Inbox(url) as inbox:
        inbox.accept_all(None, [numbered(n, key) for n in range(1, 6) for key in ("a", "b")])
        processed(inbox, Ran(), settings=QUICK)
        if purged:
            assert inbox.purge(done=0) == 10
    ran = Ran()
    async with Twin(url, is_async=is_async) as twin:
        await twin.call("configure", order=Order())
        await twin.call("accept_all", None, [numbered(7, "a"), numbered(6, "a"), numbered(6, "b"), numbered(2, "new")])
        if isinstance(twin.raw, AsyncInbox):

            async def handle(event: Event, connection: Any) -> None:
                ran(event, connection)

            await aprocessed(twin.raw, handle, settings=QUICK)
        else:
            processed(twin.raw, ran, settings=QUICK)
        assert (of(ran, "a"), of(ran, "b"), of(ran, "new")) == ([6, 7], [6], [])
        with Inbox(url) as inbox:
            assert expected(inbox, "a") == 8
        assert [gap.key for gap in await twin.call("keys.list")] == ["new"], "a key without a history begins with 1"


def test_a_history_with_gaps(url: str) -> None:
    """4 waits while 5 and 6 were processed, 8 is dead: nothing that waits is given up, and nothing runs twice."""
    with Inbox(url) as inbox:
        inbox.accept_all(None, [numbered(n) for n in (1, 2, 3, 5, 6, 8)])
        processed(inbox, Ran(refused=(8,)), settings=QUICK)
        inbox.accept_all(None, [numbered(4), numbered(7), numbered(9)])
    ran = Ran()
    with agreed(url, order=Order()) as inbox:
        processed(inbox, ran, settings=QUICK)
        processed(inbox, ran, settings=QUICK)
        assert of(ran) == [4, 7]
        assert [(gap.first, gap.last, gap.cause) for gap in inbox.keys.list()] == [(8, 8, "dead")], (
            "as Order(dead='block') says"
        )
        inbox.dead.replay("k-8")
        processed(inbox, ran, settings=QUICK)
        assert of(ran) == [4, 7, 8, 9]
        inbox.accept(None, Event("Booked", {"n": 3}, key="k", headers={"sequence": "3"}))
        processed(inbox, ran, settings=QUICK)
        assert "came after its turn" in (inbox.dead.list()[0].error or "")


def test_order_off_and_on_again(url: str) -> None:
    ran = Ran()
    for order, numbers in ((Order(), (1, 2)), (None, (3, 4)), (Order(), (5,))):
        with agreed(url, order=order) as inbox:
            if order is None:
                inbox.configure(order=None)
            inbox.accept_all(None, [numbered(n) for n in numbers])
            processed(inbox, ran, settings=QUICK)
            processed(inbox, ran, settings=QUICK)
    assert sorted(of(ran)) == [1, 2, 3, 4, 5], "in no order while there was none"


def test_a_processor_that_began_before_the_order(url: str) -> None:
    ran, probe = Ran(), Probe()
    with Inbox(url) as old, Inbox(url) as new:
        old.accept(None, numbered(1))
        with serving(old, ran, settings=QUICK, observers=[probe]):
            probe.wait(lambda: len(ran) == 1)
            new.configure(order=Order())
            new.accept_all(None, [numbered(n) for n in (2, 3)])
            probe.wait(lambda: len(ran) == 3)
        new.accept(None, numbered(4))
        processed(new, ran, settings=QUICK)
        processed(new, ran, settings=QUICK)
    assert sorted(of(ran)) == [1, 2, 3, 4]


def test_an_adopted_table_with_a_history(engine: str, tmp_path: Path) -> None:
    """Rows that were processed before, and by the old code beside us, some of which we never saw waiting."""
    theirs = adopted(fresh_url(engine, tmp_path), Columns(sequence="nr"))
    for nr in (1, 2, 3):
        theirs.insert(f"m{nr}", nr, aggregate_id="'k'", sequence=nr)
        theirs.set(f"m{nr}", processed_at=now(theirs))
    theirs.insert("m4", 4, aggregate_id="'k'", sequence=4)
    ran = Ran()
    with agreed(theirs.url, order=Order()) as inbox:
        processed(inbox, ran, settings=QUICK)
        assert of(ran) == [4]
        theirs.insert("m5", 5, aggregate_id="'k'", sequence=5)
        theirs.set("m5", processed_at=now(theirs))
        theirs.insert("m6", 6, aggregate_id="'k'", sequence=6)
        processed(inbox, ran, settings=QUICK)
        assert of(ran) == [4, 6]
        assert expected(inbox, "k") == 7


def test_an_inbox_that_was_ordered_from_the_beginning_asks_nothing_of_its_history(tmp_path: Path) -> None:
    url = inbox_url("sqlite", tmp_path)
    with agreed(url, order=Order()) as inbox:
        inbox.accept_all(None, [numbered(1), numbered(3)])
        processed(inbox, Ran(), settings=QUICK)
        assert expected(inbox, "k") == 2
        assert one(url, "SELECT count(*) FROM inbox_pending WHERE held") == 1
