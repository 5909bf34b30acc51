"""Priority with aging, order and priority by several inboxes, and the shares of workers."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit import Probe, rows
from relaybox import ConfigError, Event, Inbox
from relaybox.store.inbox.order import TIERS
from relaybox.testing.clock import ManualClock
from relaybox.types import AsyncTieredInbox, Order, Priority, Share, Tier, TieredInbox

from .effects import QUICK
from .kit import agreed, fresh_url, migrated, processed


def ranked(n: int, priority: object = None, **options: Any) -> Event:
    headers = {} if priority is None else {"priority": str(priority)}
    return Event("Asked", {"n": n}, headers=headers, **options)


def taken(inbox: Inbox, limit: int) -> list[int]:
    """In the order in which they are claimed: one by one."""
    seen: list[int] = []

    def handle(event: Event, _: Any) -> None:
        seen.append(event.payload["n"])

    for _ in range(limit):
        processed(inbox, handle, limit=1, settings=QUICK)
    return seen


async def test_the_urgent_first_and_nobody_for_ever_last(url: str) -> None:
    """Patience is how much longer a tier waits than it would have to."""
    clock = ManualClock()
    with agreed(url, priority=Priority(), clock=clock) as inbox:
        inbox.accept(None, ranked(1, 9))
        clock.advance(10)
        inbox.accept_all(None, [ranked(2, 9), ranked(3, 4), ranked(4, 1), ranked(5, 2)])
        assert taken(inbox, 2) == [4, 5]
        clock.advance(22)  # the first background message has waited 32 s, longer than its patience
        inbox.accept_all(None, [ranked(6, 1), ranked(7, 5)])
        assert taken(inbox, 5) == [3, 1, 6, 7, 2]


async def test_a_priority_that_is_in_no_tier_is_delivered_all_the_same(url: str) -> None:
    few = Priority((Tier("now", 2, 3, timedelta(0)), Tier("later", 5, 6, timedelta(seconds=9))))
    with agreed(url, priority=few) as inbox:
        given = [None, 0, 1, 2, 3, 4, 5, 6, 7, 9, 10, -1, "high", "", "٣"]
        inbox.accept_all(None, [ranked(n, priority) for n, priority in enumerate(given)])
        seen: list[int] = []
        processed(inbox, lambda event, _: seen.append(event.payload["n"]), settings=QUICK)
    assert sorted(seen) == list(range(len(given)))


@pytest.mark.parametrize(
    ("tiers", "rest", "match"),
    [
        ((), None, "at least one tier"),
        ((Tier("a", 1, 4, timedelta(0)), Tier("b", 4, 9, timedelta(1))), None, "overlap"),
        ((Tier("a", 3, 2, timedelta(0)),), None, "not empty"),
        ((Tier("a", 0, 2, timedelta(0)),), None, "within 1 to 9"),
        ((Tier("a", 1, 10, timedelta(0)),), None, "within 1 to 9"),
        ((Tier("a", 1, 2, timedelta(-1)),), None, "patience"),
        ((Tier("a", 1, 2, timedelta(0)), Tier("a", 3, 4, timedelta(0))), None, "name of its own"),
        (TIERS, "urgent", "expected rest"),
    ],
)
def test_tiers_that_are_refused(tiers: tuple[Tier, ...], rest: str | None, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        Priority(tiers, rest)


@given(
    waiting=st.dictionaries(st.integers(0, 9), st.lists(st.floats(0, 100), max_size=5), max_size=10),
    limit=st.integers(1, 20),
)
def test_ranking(waiting: dict[int, list[float]], limit: int) -> None:
    numbers = iter(range(1000))
    rows = {value: [(next(numbers), waited) for waited in waits] for value, waits in waiting.items()}
    flat = {seq: (value, waited) for value, pairs in rows.items() for seq, waited in pairs}
    priority = Priority()
    chosen = priority.first(rows, limit)
    assert len(chosen) == len(set(chosen)) == min(limit, len(flat))

    def urgency(seq: int) -> float:
        value, waited = flat[seq]
        return priority.tier_of(value).patience.total_seconds() - waited

    worst = max(map(urgency, chosen), default=0.0)
    assert all(urgency(seq) >= worst for seq in flat if seq not in chosen)


# -- both, by several inboxes ---------------------------------------------------------------------------


async def test_order_inside_every_tier(engine: str, tmp_path: Path) -> None:
    url = fresh_url(engine, tmp_path)
    probe, seen = Probe(), list[str]()

    async def ahandle(event: Event, _: Any) -> None:
        seen.append(f"{event.key}{event.payload['n']}")
        probe(None)  # type: ignore[arg-type]  # something happened: look again

    def message(key: str, n: int, priority: int) -> Event:
        return Event("Moved", {"n": n}, key=key, headers={"sequence": str(n), "priority": str(priority)})

    with TieredInbox(url, "jobs", settings=QUICK) as inbox:
        inbox.migrate()
        for key, priority in (("c", 1), ("n", 5), ("b", 9)):
            for n in (3, 1, 2):
                assert inbox.accept(None, message(key, n, priority), sender="shop")
        with inbox.process(ahandle) as processing:
            await probe.until(lambda: len(seen) == 9)
            assert processing.drain().done == 9
            assert processing.health().level == "ok"
    assert {key: [s for s in seen if s[0] == key] for key in "cnb"} == {
        k: [f"{k}{n}" for n in (1, 2, 3)] for k in "cnb"
    }
    assert len(rows(url, "SELECT 1 FROM jobs_critical")) == len(rows(url, "SELECT 1 FROM jobs_normal")) == 3
    async with AsyncTieredInbox(url, "jobs", order=Order(), settings=QUICK) as again:
        await again.migrate()
        assert await again.accept(None, message("c", 4, 2))
        async with again.process(ahandle):
            await probe.until(lambda: len(seen) == 10)


# -- shares ---------------------------------------------------------------------------------------------


async def test_every_message_is_one_workers_and_no_others(url: str) -> None:
    events = [Event("Asked", {"n": n}, key=f"key-{n}" if n % 3 else None) for n in range(60)]
    seen: list[tuple[int, Event]] = []
    with Inbox(url) as inbox:
        inbox.accept_all(None, events)
        for worker in range(4):
            processed(
                inbox,
                lambda event, _, worker=worker: seen.append((worker, event)),  # type: ignore[misc]
                share=Share(worker, 4),
                settings=QUICK,
            )
        assert inbox.status().pending == 0
    assert Counter(event.id for _, event in seen) == Counter(event.id for event in events)
    assert all(Share(worker, 4).has(event.key) for worker, event in seen)
    assert len({worker for worker, _ in seen}) == 4


@pytest.mark.parametrize(("worker", "workers"), [(-1, 2), (2, 2), (0, 0), (True, 2), (0.0, 1)])
def test_shares_that_are_refused(worker: Any, workers: Any) -> None:
    with pytest.raises(ConfigError):
        Share(worker, workers)


async def test_the_share_is_the_same_in_sql(tmp_path: Path) -> None:
    """Also for the key whose hash would be the smallest integer. Strings are data."""
    import psycopg

    url = migrated(fresh_url("postgres", tmp_path), "my_inbox")
    keys = [*(f"key-{n}" for n in range(200)), "ключ", "'; DROP TABLE my_inbox; --", ""]
    with psycopg.connect(url) as connection:
        for key in keys:
            found = connection.execute(
                "SELECT array_agg(my_inbox_mine(%s, w, 7) ORDER BY w) FROM generate_series(0, 6) w", (key,)
            ).fetchone()
            assert found is not None
            assert found[0] == [Share(worker, 7).has(key) for worker in range(7)]
            assert sum(found[0]) == 1
        assert connection.execute("SELECT my_inbox_mine(NULL, 3, 7)").fetchone() == (True,)
