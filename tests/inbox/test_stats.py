"""Numbers by type: exact after everything that can happen, folded or not, and read in one statement."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from kit import INNODB, one, rows, wait_until
from relaybox import ALL, Event, Inbox, Reject
from relaybox.observe.prometheus import InboxCollector
from relaybox.op import run
from relaybox.testing.clock import ManualClock

from .effects import QUICK
from .kit import WAITING, processed, replayed, serving

# What the stats say, counted the slow way.
COUNTED = """
SELECT m.event_type, count(p.seq), count(f.seq), count(d.seq), avg(f.waited) FROM inbox m
LEFT JOIN inbox_pending p ON p.seq = m.seq LEFT JOIN inbox_done f ON f.seq = m.seq
LEFT JOIN inbox_dead d ON d.seq = m.seq WHERE m.payload IS NOT NULL GROUP BY m.event_type ORDER BY m.event_type"""


def some(count: int, kind: str = "A") -> list[Event]:
    return [Event(kind, {"n": n}, id=f"{kind}-{n}") for n in range(count)]


def no_odd_ones(event: Event, _: Any) -> None:
    if event.payload["n"] % 2:
        raise Reject("odd")


def fold(inbox: Inbox, limit: int = 1000) -> int:
    return inbox._db.run(inbox.store.fold(limit))


def check(url: str, inbox: Inbox) -> None:
    """Before and after a fold, by the method and by the view."""
    counted = [tuple(map(int, row[1:4])) for row in rows(url, COUNTED)]
    average = [None if row[4] is None else pytest.approx(float(row[4]), abs=1e-5) for row in rows(url, COUNTED)]
    for _ in range(2):
        stats = inbox.stats()
        assert [tuple(row[1:4]) for row in stats] == counted
        assert [row.average and row.average.total_seconds() for row in stats] == average
        seen = rows(url, "SELECT pending, processed, dead FROM inbox_stats ORDER BY event_type")
        assert [tuple(map(int, row)) for row in seen] == counted
        fold(inbox)
        assert one(url, "SELECT count(*) FROM inbox_journal") == 0


@pytest.mark.parametrize("batch", [1, 7])
def test_every_change_is_counted(url: str, batch: int) -> None:
    clock = ManualClock()
    with Inbox(url, clock=clock) as inbox:
        assert inbox.stats() == []
        inbox.accept_all(None, [*some(9), *some(4, "B"), some(1)[0]])
        inbox.accept(None, Event("C", {"n": 0}))
        assert not inbox.accept(None, some(1)[0])
        inbox._db.run(inbox._op(some(3, "D"), "", {"D-1": "cannot be read"})[0])
        check(url, inbox)
        clock.advance(3)
        processed(inbox, no_odd_ones, batch=batch, settings=QUICK)
        check(url, inbox)
        inbox.events.replay(["A-0", "A-1", "B-1", "unknown"])
        check(url, inbox)
        processed(inbox, no_odd_ones, batch=batch, settings=QUICK)
        assert inbox.dead.discard(["A-1", "A-2"]) == 1
        inbox.dead.replay(ALL)
        check(url, inbox)
        clock.advance(4 * 86400)
        processed(inbox, no_odd_ones, settings=QUICK)
        inbox.purge(done="1d", dead="1d")
        check(url, inbox)
        clock.advance(4 * 86400)
        inbox.purge(done="1d", dead="1d")
        assert inbox.stats() == []


def test_what_rolls_back_is_not_counted(url: str) -> None:
    with Inbox(url) as inbox:
        events = some(3)
        with inbox._db.connection() as connection:
            connection.begin()
            inbox.accept_all(connection.raw, events)
            connection.rollback()
        assert inbox.stats() == []
        inbox.accept_all(None, events)
        check(url, inbox)


def test_a_late_commit_is_not_lost(url: str, engine: str) -> None:
    """What is under way while others fold is folded by the next."""
    if engine == "sqlite":
        pytest.skip("one writer at a time: nothing commits late")
    with Inbox(url) as inbox, inbox._db.connection() as late:
        late.begin()
        inbox.accept(late.raw, some(1)[0])
        inbox.accept(None, some(2)[1])
        assert fold(inbox) == 1
        late.commit()
        assert [row.pending for row in inbox.stats()] == [2]
        assert fold(inbox) == 1
        check(url, inbox)


def test_readers_and_folders_at_once(url: str) -> None:
    """Nobody sees a change twice or not at all while it is folded."""
    total, wrong, over = 40, list[int](), threading.Event()

    def read() -> None:
        with Inbox(url) as reader:
            while not over.is_set():
                found = reader.stats()
                wrong.extend(row.pending for row in found if row.pending != total)

    with Inbox(url) as inbox:
        for event in some(total):
            inbox.accept(None, event)
        readers = [threading.Thread(target=read) for _ in range(2)]
        for thread in readers:
            thread.start()
        while fold(inbox, 3):
            pass
        over.set()
        for thread in readers:
            thread.join()
    assert wrong == []


def test_two_replays_at_once_count_once(url: str, engine: str) -> None:
    """The second waits for the first, and finds nothing left to take back."""
    if engine == "sqlite":
        pytest.skip("one writer at a time")
    with Inbox(url) as inbox, inbox._db.connection() as first:
        inbox.accept_all(None, some(4))
        processed(inbox, no_odd_ones, settings=QUICK)
        first.begin()
        for kind, name in (("done", "A-0"), ("dead", "A-1")):
            run(replayed(inbox, kind, name), first)
        second = threading.Thread(target=inbox.events.replay, args=(["A-0", "A-1", "A-2"],))
        second.start()
        wait_until(lambda: one(url, WAITING[engine]), pause=INNODB)
        first.commit()
        second.join()
        check(url, inbox)


def test_a_purge_folds(url: str) -> None:
    with Inbox(url) as inbox:
        inbox.accept_all(None, some(6))
        inbox.accept(None, Event("B", 1))
        assert one(url, "SELECT count(*) FROM inbox_journal") == 2
        assert inbox.purge() == 0
        assert one(url, "SELECT count(*) FROM inbox_journal") == 0
        check(url, inbox)


async def test_a_processor_folds_in_the_background(url: str) -> None:
    with Inbox(url) as inbox:
        inbox.accept_all(None, some(6))
        with serving(inbox, no_odd_ones, settings=QUICK) as processor:
            processor.drain()
            wait_until(lambda: one(url, "SELECT count(*) FROM inbox_totals") == 1, pause=INNODB)
        check(url, inbox)


async def test_health_in_sql(url: str) -> None:
    """A view says what the method says."""
    seen = "pending_count, dead_letter_count, processors, health_status, throughput_per_sec, oldest_pending_age_sec"
    with Inbox(url) as inbox:
        assert rows(url, f"SELECT {seen} FROM inbox_health") == [(0, 0, 0, "healthy", 0, 0)]
        inbox.accept_all(None, some(6))
        assert rows(url, f"SELECT {seen} FROM inbox_health")[0][:4] == (6, 0, 0, "degraded")
        processed(inbox, no_odd_ones, settings=QUICK)
        inbox.accept(None, Event("B", 1))
        status, level = inbox.status(), inbox.health().level
        found = rows(url, f"SELECT {seen} FROM inbox_health")[0]
        assert found[:4] == (status.pending, status.dead, status.processors, level) == (1, 3, 0, "degraded")
        assert 0 < float(found[4]) <= 3
        assert float(found[5]) >= 0
        assert 0 < float(one(url, "SELECT avg_processing_time_sec FROM inbox_health")) < 60


def test_health_in_prometheus(url: str) -> None:
    with Inbox(url) as inbox, Inbox(url, "gone") as gone:
        inbox.accept_all(None, some(3))
        processed(inbox, no_odd_ones, settings=QUICK)
        registry = CollectorRegistry()
        registry.register(InboxCollector(inbox, gone))
        labels = {"inbox": "inbox"}
        assert registry.get_sample_value("relaybox_inbox_pending", labels) == 0
        assert registry.get_sample_value("relaybox_inbox_dead", labels) == 1
        assert registry.get_sample_value("relaybox_inbox_health", labels) == 1
        assert registry.get_sample_value("relaybox_inbox_throughput", labels) > 0
        assert registry.get_sample_value("relaybox_inbox_pending", {"inbox": "gone"}) is None
