"""What groups are made of: the choice of a member, shared pages, and a claim whose reply is lost."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from kit import until
from relaybox import Delivery, Event, Listeners
from relaybox.codec import JSON_CODEC
from relaybox.engine.dispatch import Dispatch
from relaybox.engine.threads import ListenerThreads
from relaybox.errors import BatchFailed, ConnectionLost
from relaybox.store.topics import Place, Row
from relaybox.topic import Topic
from relaybox.topics.shared_reads import ROW, SharedReads

from .test_group import Seen, process

NOW = datetime(2026, 1, 1, tzinfo=UTC)
CHOICES = """
from relaybox import Event, Listeners
async def handle(event): ...
members = Listeners()
for name in %r:
    members.on("T", name=name)(handle)
print([members.find(Event("T", n, key=f"k{n}")).name for n in range(50)])
"""


async def _nothing(event: Event) -> None: ...


def members(*names: str, **filters: Any) -> Listeners:
    made: Listeners = Listeners()
    for name in names:
        made.on("T", name=name, where=filters.get(name))(_nothing)
    return made


def chosen(group: Listeners, event: Event) -> str | None:
    found = group.find(event)
    return None if found is None else found.name


# -- the choice of a member -------------------------------------------------------------------------------------------


def test_every_process_chooses_the_same_member_whatever_the_order_they_came_in() -> None:
    """Neither `hash()` of a text nor the order of a dictionary decides."""
    answers = {
        subprocess.run(
            [sys.executable, "-c", CHOICES % names],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for names, seed in ((["a", "b", "c"], "1"), (["c", "a", "b"], "2"), (["b", "c", "a"], "3"))
    }
    assert len(answers) == 1


def test_the_key_decides_and_without_one_the_id() -> None:
    group = members("a", "b", "c")
    assert len({chosen(group, Event("T", n, key="same")) for n in range(100)}) == 1
    spread = Counter(chosen(group, Event("T", n)) for n in range(3000))
    assert set(spread) == {"a", "b", "c"}
    assert min(spread.values()) > 800


@pytest.mark.parametrize("smallest", [-(2**63), -(2**31), 0, 2**63 - 1])
def test_no_hash_chooses_a_member_that_is_not_there(monkeypatch: pytest.MonkeyPatch, smallest: int) -> None:
    """The smallest number has no positive counterpart where numbers have a size."""
    monkeypatch.setattr("relaybox.listeners.key_hash", lambda key: smallest)
    assert chosen(members("a", "b", "c"), Event("T", 1)) is not None


def test_only_the_willing_are_asked() -> None:
    group = members("a", "b", b=lambda event: False)
    assert {chosen(group, Event("T", n)) for n in range(50)} == {"a"}
    assert chosen(members("a", a=lambda event: False), Event("T", 1)) is None


async def test_one_members_failure_in_a_batch_is_not_the_others() -> None:
    done: list[int] = []
    group: Listeners = Listeners()

    @group.on_batch("T", name="fine", where=lambda event: event.payload < 5)
    async def fine(events: Sequence[Event]) -> None:
        done.extend(event.payload for event in events)

    @group.on_batch("T", name="broken", where=lambda event: event.payload >= 5)
    async def broken(events: Sequence[Event]) -> None:
        raise OSError("away")

    events = [Event("T", n) for n in range(10)]
    dispatch = Dispatch(group, ListenerThreads(1))
    with pytest.raises(BatchFailed) as failed:
        await dispatch.many([Delivery(event, n, 0, 1, 0.0, hot=False) for n, event in enumerate(events)])
    assert sorted(done) == [0, 1, 2, 3, 4]
    assert set(failed.value.errors) == set(events[5:])


# -- shared pages -----------------------------------------------------------------------------------------------------


def page(count: int, size: int = 10) -> list[Row]:
    return [(n, f"id{n}", "T", None, None, None, None, b"x" * size, None, NOW, None, NOW) for n in range(count)]


def place(after: int) -> Place:
    return Place(0, 1, 2, after, 2**63 - 1)


def test_a_page_is_kept_until_everybody_has_had_it_and_its_events_are_made_once() -> None:
    reads = SharedReads()
    for _ in range(3):
        reads.join(1)
    rows = reads.put(1, place(0), 100, page(5))
    made = reads.events(rows, JSON_CODEC, "t")
    for _ in range(2):
        found = reads.get(1, place(0), 100)
        assert found is rows
        assert reads.events(found, JSON_CODEC, "t") is made
    assert reads.get(1, place(0), 100) is None
    assert reads.weight == 0
    assert not reads._pages


def test_nothing_is_kept_for_one_reader_alone() -> None:
    reads = SharedReads()
    reads.join(1)
    reads.put(1, place(0), 100, page(5))
    assert reads.get(1, place(0), 100) is None
    assert reads.weight == 0


def test_what_is_kept_is_bounded_by_bytes() -> None:
    reads = SharedReads(limit=10 * (ROW + 100))
    reads.join(1)
    reads.join(1)
    for after in range(50):
        reads.put(1, place(after), 100, page(3, 100))
        assert reads.weight <= 10 * (ROW + 100)
    assert reads.get(1, place(49), 100) is not None
    assert reads.get(1, place(0), 100) is None
    reads.leave(1)
    assert reads.weight == 0
    assert not reads._pages


# -- a lost reply -----------------------------------------------------------------------------------------------------


async def test_what_a_lost_reply_claimed_comes_before_what_follows_it() -> None:
    """The database made the claim and the connection broke: the places behind it must not overtake it."""
    async with process(None, Topic.pub_sub("orders", shards=1)) as here:
        seen = Seen()
        db, lost = here.box.topics._context.own, []
        run = db.run

        async def losing(op: Any, *, tx: bool = True) -> Any:
            answer = await run(op, tx=tx)
            if getattr(answer, "pages", None) and len(lost) < 3:
                lost.append(answer)
                raise ConnectionLost("the reply was lost")
            return answer

        db.run = losing  # type: ignore[method-assign]
        async with here.deliver(seen.note):
            await here.write(*range(200), key="k")
            await until(lambda: len(seen) >= 200)
        assert len(lost) == 3
        assert seen == list(range(200))
