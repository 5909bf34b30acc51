"""Life with an adopted table: others write to it, processors compete, crash and are late."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from kit import Probe, one, rows
from relaybox import ALL, ConfigError, Event, Inbox, InvalidEvent, Retry, Where
from relaybox.testing.clock import ManualClock
from relaybox.types import Columns, Order, Priority

from .effects import QUICK, effects, say, text_of, with_effects, writing
from .kit import PATIENCE, Twin, agreed, arrived, expected, fresh_url, processed, serving
from .test_kill import killed
from .their_table import Theirs

SERVERS = ["postgres", "mariadb"]
NOW = {"postgresql": "now()", "mysql": "utc_timestamp(6)", "sqlite": "'2026-01-02 03:04:05'"}


def nothing(event: Event, handle: Any) -> None:
    """A handler that is content."""


@pytest.fixture
def theirs(engine: str, tmp_path: Path) -> Theirs:
    return adopted(fresh_url(engine, tmp_path))


def adopted(url: str, columns: Columns | None = None, *, attempts: int | None = None) -> Theirs:
    theirs = Theirs(with_effects(url), columns=columns)
    with Inbox(url) as inbox:
        inbox.adopt(theirs.table, columns)
        if attempts is not None:
            inbox.configure(retry=replace(QUICK.delivery.retry, attempts=attempts))
    return theirs


def now(theirs: Theirs) -> str:
    return NOW[theirs.url.partition(":")[0]]


async def test_the_twins_process_adopted_rows(theirs: Theirs, is_async: bool) -> None:
    for n in range(20):
        theirs.insert(f"m{n:02}", n)
    async with Twin(theirs.url, is_async=is_async) as inbox:
        assert (await inbox.process(writing(is_async), settings=QUICK)).done == 20
        assert (await inbox.process(writing(is_async), settings=QUICK)).done == 0
        assert effects(theirs.url) == [f"m{n:02}" for n in range(20)]
        assert theirs.waiting() == 0
        theirs.insert("m99", 99)
        assert (await inbox.process(writing(is_async), settings=QUICK, batch=10)).done == 1
        assert (await inbox.call("status")).pending == 0


def test_two_processors_compete(theirs: Theirs) -> None:
    for n in range(40):
        theirs.insert(f"m{n:02}", n)
    probe = Probe()
    with Inbox(theirs.url) as a, Inbox(theirs.url) as b:
        with (
            serving(a, writing(False), settings=QUICK, observers=[probe]) as first,
            serving(b, writing(False), settings=QUICK, observers=[probe], batch=5) as second,
        ):
            for n in range(40, 60):
                theirs.insert(f"m{n:02}", n)
            probe.wait(lambda: first.counts.done + second.counts.done >= 60)
    assert Counter(effects(theirs.url)) == {f"m{n:02}": 1 for n in range(60)}


def test_failures_are_counted_in_their_columns(theirs: Theirs) -> None:
    theirs.insert("bad", 1)
    theirs.insert("tried", 2, retry_count=2, error="'earlier'")
    theirs.insert("given up", 3, retry_count=10)

    def fail(event: Event, _: Any) -> None:
        raise ValueError("broken")

    with Inbox(theirs.url) as inbox:
        probe = Probe()
        with serving(inbox, fail, settings=QUICK, observers=[probe]) as processor:
            probe.wait(lambda: processor.counts.dead == 2)
        assert theirs.read("retry_count", "error") == [
            (10, "ValueError: broken"),
            (10, None),
            (10, "ValueError: broken"),
        ]
        assert {(one.event.id, one.attempts) for one in inbox.dead.list()} == {
            ("bad", 10),
            ("tried", 10),
            ("given up", 10),
        }
        assert inbox.status().dead == 3
        assert inbox.health().level == "degraded"
        assert inbox.dead.replay(["given up", "unknown"]) == 1
        assert theirs.read("retry_count", "error")[1] == (0, None)
        assert processed(inbox, nothing, settings=QUICK).done == 1
        assert inbox.dead.replay(ALL) == 2
        assert processed(inbox, nothing, settings=QUICK).done == 2
    assert theirs.waiting() == 0


def test_a_row_that_others_have_processed_is_not_run(theirs: Theirs) -> None:
    """Before it is picked up; after it was claimed; and while the handler's transaction waits to mark it."""
    for name in ("before", "claimed", "z"):
        theirs.insert(name, 1)
    theirs.set("before", processed_at=now(theirs))
    claimed = threading.Event()

    def first(event: Event, handle: Any) -> None:
        if event.id == "z":
            claimed.wait(PATIENCE)
        say(handle, text_of(event))

    def meanwhile(fact: object) -> None:
        if type(fact).__name__ == "Claimed" and not claimed.is_set():
            theirs.set("claimed", processed_at=now(theirs))
            claimed.set()

    with Inbox(theirs.url) as inbox:
        processed(inbox, first, settings=QUICK, observers=[meanwhile])
        assert claimed.is_set()
        processed(inbox, first, settings=QUICK)
        assert effects(theirs.url) == ["z"]
        assert inbox.status().pending == 0
        assert theirs.waiting() == 0


def test_their_own_replay_is_one(theirs: Theirs) -> None:
    theirs.insert("a", 1)
    with Inbox(theirs.url) as inbox:
        assert processed(inbox, writing(False), settings=QUICK).done == 1
        theirs.set("a", processed_at="NULL", retry_count="0")
        assert processed(inbox, writing(False), settings=QUICK).done == 1
        assert effects(theirs.url) == ["a", "a"]


def test_what_was_given_up_comes_again_by_hand_or_by_replay(theirs: Theirs) -> None:
    theirs.insert("a", 1, retry_count=10)
    theirs.insert("b", 2, retry_count=10)
    with Inbox(theirs.url) as inbox:
        assert inbox.dead.replay(["a", "missing"]) == 1  # nobody has picked it up so far
        assert processed(inbox, nothing, settings=QUICK).done == 1
        assert [letter.event.id for letter in inbox.dead.list()] == ["b"]
        theirs.set("b", retry_count="0")
        assert processed(inbox, nothing, settings=QUICK).done == 1
        assert inbox.dead.count() == 0
        theirs.insert("c", 3, retry_count=10)
        processed(inbox, nothing, settings=QUICK)
        assert inbox.dead.discard("c") == 1
        assert processed(inbox, nothing, settings=QUICK).done == 0
        assert inbox.events.replay("c") == 0, "for good"
        theirs.set("c", retry_count="0")
        assert processed(inbox, nothing, settings=QUICK).done == 1
    assert theirs.waiting() == 0


def test_rows_that_are_deleted_are_forgotten(theirs: Theirs) -> None:
    for n in range(3):
        theirs.insert(f"m{n}", n, retry_count=0 if n else 10)
    with Inbox(theirs.url) as inbox:
        assert processed(inbox, nothing, settings=QUICK, limit=1).done == 1  # all three are picked up
        theirs.say("DELETE FROM orders_in")
        assert processed(inbox, nothing, settings=QUICK).done == 0
        assert inbox.status().pending == 0
        assert inbox.purge(dead=0, seen=None) == 1
        assert inbox.status().dead == 0


@pytest.mark.parametrize("server", SERVERS)
def test_a_row_that_commits_late_is_picked_up(server: str, tmp_path: Path) -> None:
    """Its id and time are lower than those of rows that were processed long ago."""
    theirs = adopted(fresh_url(server, tmp_path))
    with Transaction(theirs) as late:
        late(theirs.insertion({"id": "'a'", "received_at": f"{now(theirs)}", "payload": "'{\"n\": 1}'"}))
        theirs.insert("b", 2)
        with Inbox(theirs.url) as inbox:
            assert processed(inbox, writing(False), settings=QUICK).done == 1
    with Inbox(theirs.url) as inbox:
        assert processed(inbox, writing(False), settings=QUICK).done == 1
    assert effects(theirs.url) == ["a", "b"]


@pytest.mark.parametrize("server", SERVERS)
def test_a_row_that_somebody_has_locked_is_passed_over(server: str, tmp_path: Path) -> None:
    theirs = adopted(fresh_url(server, tmp_path))
    theirs.insert("a", 1)
    theirs.insert("b", 2)
    with Inbox(theirs.url) as inbox:
        with Transaction(theirs) as other:
            other(theirs.update("a", processed_at=now(theirs)))
            assert processed(inbox, writing(False), settings=QUICK).done == 1
        probe = Probe()
        with serving(inbox, writing(False), settings=QUICK, observers=[probe]):
            theirs.insert("c", 3)
            probe.wait(lambda: effects(theirs.url) == ["b", "c"])
        assert theirs.waiting() == 0


class Transaction:
    """Of somebody else, as long as the block lasts."""

    def __init__(self, theirs: Theirs) -> None:
        self._url = theirs.url

    def __enter__(self) -> Any:
        if self._url.startswith("mysql"):
            import pymysql

            from relaybox.drivers.mysql_session import options

            self._raw: Any = pymysql.connect(**{**options(self._url), "autocommit": False})
        else:
            import psycopg

            self._raw = psycopg.connect(self._url)
        return self._raw.cursor().execute

    def __exit__(self, *exc: object) -> None:
        self._raw.commit()
        self._raw.close()


@pytest.mark.parametrize("point", ["claim.after", "settle.before"])
async def test_a_crash_leaves_the_row_waiting(theirs: Theirs, point: str) -> None:
    for n in range(6):
        theirs.insert(f"m{n}", n)
    assert await killed(theirs.url, crash=f"{point}:{1 if point == 'claim.after' else 2}:kill")
    assert theirs.waiting() == 6 - len(effects(theirs.url))
    probe = Probe()
    with Inbox(theirs.url) as inbox, serving(inbox, writing(False), settings=QUICK, observers=[probe]):
        await probe.until(lambda: theirs.waiting() == 0)
    assert effects(theirs.url) == [f"m{n}" for n in range(6)]


async def test_a_row_that_kills_its_process_dies(engine: str, tmp_path: Path) -> None:
    theirs = adopted(fresh_url(engine, tmp_path), attempts=3)
    theirs.insert("fatal", 1)
    theirs.insert("fine", 2)
    with Inbox(theirs.url) as inbox:
        for run in range(1, 20):
            if not await killed(theirs.url, "1"):
                break
            assert theirs.read("retry_count")[0][0] == run
            await lapsed(inbox)
        assert [letter.event.id for letter in inbox.dead.list()] == ["fatal"]
    assert effects(theirs.url) == ["fine"]


async def lapsed(inbox: Inbox) -> None:
    """The dead process is known to be dead."""
    async with asyncio.timeout(PATIENCE):
        while inbox.status().processors:
            await asyncio.sleep(0.05)


def test_rows_that_are_odd_stop_nobody(engine: str, tmp_path: Path) -> None:
    """Headers that are none, numbers where text is due, an error that is longer than its column."""
    url = fresh_url(engine, tmp_path)
    short = {"mariadb": "varchar(20) CHARACTER SET latin1", "postgres": "varchar(20)", "sqlite": "text"}[engine]
    theirs = Theirs(url, columns=Columns(headers="more"), error=short)
    theirs.insert("array", 1, headers="'[1]'")
    theirs.insert("number", 2, headers="'{\"sequence\": 5}'", aggregate_id="'k'")
    theirs.insert("null", 3, headers="'null'", payload="NULL")
    if engine == "sqlite":
        theirs.insert("garbage", 4, headers="'{'", retry_count="'many'", received_at="'then'")

    def fail(event: Event, _: Any) -> None:
        raise ValueError("✓" * 100)

    with Inbox(url) as inbox:
        inbox.adopt("orders_in", Columns(headers="more"))
        inbox.configure(retry=Retry(attempts=1))
        assert processed(inbox, fail, settings=QUICK).dead == len(theirs.read("id"))
        assert all(error.startswith("ValueError: ") for (error,) in theirs.read("error"))
        assert inbox.dead.replay(ALL) == len(theirs.read("id"))
        assert processed(inbox, nothing, settings=QUICK).done == len(theirs.read("id"))


# -- order, priority, accept ------------------------------------------------------------------------


def test_order(engine: str, tmp_path: Path) -> None:
    columns = Columns(sequence="nr")
    theirs = adopted(fresh_url(engine, tmp_path), columns)
    for nr in (3, 1, 5, 2):
        theirs.insert(f"m{nr}", nr, aggregate_id="'k'", sequence=nr)
    ran: list[int] = []
    with agreed(theirs.url, order=Order()) as inbox:
        processed(inbox, lambda event, _: ran.append(event.payload["n"]), settings=QUICK)
        assert ran == [1, 2, 3]
        assert [(gap.first, gap.last) for gap in inbox.keys.list()] == [(4, 4)]
        theirs.insert("m4", 4, aggregate_id="'k'", sequence=4, processed_at=now(theirs))
        assert inbox.events.replay("m4") == 1
        probe = Probe()
        with serving(inbox, lambda event, _: ran.append(event.payload["n"]), settings=QUICK, observers=[probe]):
            probe.wait(lambda: len(ran) == 5)
        assert ran == [1, 2, 3, 4, 5]
        for nr in (6, 7):
            theirs.insert(f"m{nr}", nr, aggregate_id="'k'", sequence=nr)
        processed(inbox, nothing, settings=QUICK, limit=0)
        assert expected(inbox, "k") == 6


def test_an_ordered_key_goes_on_past_a_row_that_others_have_processed(engine: str, tmp_path: Path) -> None:
    theirs = adopted(fresh_url(engine, tmp_path), Columns(sequence="nr"))
    for nr in (1, 2, 3):
        theirs.insert(f"m{nr}", nr, aggregate_id="'k'", sequence=nr)
    ran: list[int] = []

    def handle(event: Event, _: Any) -> None:
        ran.append(event.payload["n"])
        if event.id == "m1":
            raise ValueError("not yet")

    with agreed(theirs.url, order=Order()) as inbox:
        processed(inbox, handle, settings=QUICK, limit=1)
        theirs.set("m1", processed_at=now(theirs))
        probe = Probe()
        with serving(inbox, handle, settings=QUICK, observers=[probe]):
            probe.wait(lambda: ran[-2:] == [2, 3])
        assert expected(inbox, "k") == 4


def test_priority(engine: str, tmp_path: Path) -> None:
    theirs = adopted(fresh_url(engine, tmp_path), Columns(priority="urgency"))
    for n, priority in enumerate((9, 5, 1)):
        theirs.insert(f"m{n}", n, priority=priority)
    ran: list[int] = []
    with agreed(theirs.url, priority=Priority()) as inbox:
        for _ in range(3):
            processed(inbox, lambda event, _: ran.append(event.payload["n"]), settings=QUICK, limit=1)
    assert ran == [2, 1, 0]


async def test_accept_inserts_into_their_table(theirs: Theirs, is_async: bool) -> None:
    event = arrived(1, key="k", headers={"trace_id": "t"})
    theirs.insert("there", 0)
    async with Twin(theirs.url, is_async=is_async) as inbox:
        assert await inbox.call("accept", None, event, sender="shop")
        assert not await inbox.call("accept", None, event)
        assert await inbox.call("accept_all", None, [Event("A", {}, id="there"), arrived(2)]) == [False, True]
        mine = [
            row for row in theirs.read("id", "event_type", "sender", "aggregate_id", "trace_id") if row[0] == event.id
        ]
        assert mine == [(event.id, "OrderPlaced", "shop", "k", "t")]
        assert (await inbox.process(writing(is_async), settings=QUICK)).done == 3
        buried = arrived(3)
        burying, _ = inbox.raw._op([buried], "", {buried.id: "unreadable"})
        assert (await inbox.raw._db.run(burying) if is_async else inbox.raw._db.run(burying)) == [True]
        assert (await inbox.process(writing(is_async), settings=QUICK)).done == 0
        assert [(one.event.id, one.error) for one in await inbox.call("dead.list")] == [(buried.id, "unreadable")]


def test_accept_needs_columns(engine: str, tmp_path: Path) -> None:
    url = fresh_url(engine, tmp_path)
    number = {"postgresql": "bigint", "mysql": "bigint", "sqlite": "integer"}[url.partition(":")[0]]
    Theirs(url, "narrow", Columns(event_type=None))
    Theirs(url, "numbered", id=number)
    with Inbox(url, "a") as inbox:
        inbox.adopt("narrow", Columns(event_type=None))
        with pytest.raises(InvalidEvent, match="without a column for event_type"):
            inbox.accept(None, arrived(1))
    with Inbox(url, "b") as inbox:
        inbox.adopt("numbered")
        with pytest.raises(InvalidEvent, match=r"does not fit the .* ids of 'numbered'"):
            inbox.accept(None, arrived(1))
        assert inbox.accept(None, Event("A", {"n": 1}, id="17"))
        assert processed(inbox, nothing, settings=QUICK).done == 1


# -- operate ----------------------------------------------------------------------------------------


def test_retention_never_empties_their_table(theirs: Theirs) -> None:
    theirs.insert("done", 1)
    theirs.insert("dead", 2, retry_count=10)
    clock = ManualClock(datetime(2026, 1, 1, tzinfo=UTC))
    with Inbox(theirs.url, clock=clock) as inbox:
        processed(inbox, nothing, settings=QUICK)
        clock.advance(timedelta(days=30))
        assert inbox.purge(done=None, dead=0) == 0
        assert inbox.purge(done=0, dead=0, seen=0) == 1
        assert len(theirs.read("id")) == 2
        assert one(theirs.url, "SELECT count(*) FROM inbox_map") == 1
        assert processed(inbox, nothing, settings=QUICK).done == 0
        assert inbox.events.replay("done") == 1
        assert processed(inbox, nothing, settings=QUICK).done == 1
        assert inbox.dead.discard("dead") == 1
        assert processed(inbox, nothing, settings=QUICK).done == 0
        assert (inbox.status().dead, theirs.waiting()) == (0, 1)


def test_views_and_stats(theirs: Theirs) -> None:
    theirs.insert("a", 1)
    theirs.insert("b", 2, retry_count=10)
    with Inbox(theirs.url) as inbox:
        processed(inbox, nothing, settings=QUICK)
        [stats] = inbox.stats()
        assert (stats.event_type, stats.pending, stats.processed, stats.dead) == ("OrderPlaced", 0, 1, 1)
        assert [found.event.id for found in inbox.events.list(state="done")] == ["a"]
        assert [found.event.id for found in inbox.events.list(state="dead")] == ["b"]
        assert inbox.events.list(state="open") == []
        found = inbox.events.get("b")
        assert found is not None
        assert found.state == "dead"
    assert rows(theirs.url, "SELECT event_id FROM inbox_letters") == [("b",)]
    assert rows(theirs.url, "SELECT event_id, status FROM inbox_status ORDER BY event_id") == [
        ("a", "processed"),
        ("b", "dead"),
    ]


def test_rows_are_found_by_their_ids_before_they_are_picked_up(theirs: Theirs) -> None:
    theirs.insert("open", 1)
    theirs.insert("dead", 2, retry_count=10)
    theirs.insert("done", 3)
    theirs.set("done", processed_at=now(theirs))
    before = theirs.read("processed_at", "retry_count", "error")
    with Inbox(theirs.url) as inbox:
        states = {
            name: found and found.state for name in ("open", "dead", "done", "no") for found in [inbox.events.get(name)]
        }
        assert states == {"open": "waiting", "dead": "dead", "done": "done", "no": None}
        assert theirs.read("processed_at", "retry_count", "error") == before
        assert inbox.events.replay(["open", "dead", "done", "no"], dry_run=True) == 2
        assert inbox.events.replay(["open", "dead", "done", "no"]) == 2
        assert theirs.waiting() == 3
        assert processed(inbox, nothing, settings=QUICK).done == 3


def test_an_open_row_that_is_discarded_is_given_up_in_their_table(theirs: Theirs) -> None:
    theirs.insert("a", 1)
    theirs.insert("b", 2)
    with Inbox(theirs.url) as inbox:
        assert inbox.events.discard("a") == 1
        assert processed(inbox, nothing, settings=QUICK).done == 1
        assert theirs.read("retry_count", "error") == [(10, "discarded"), (1, None)]
        assert inbox.events.count() == 1


def test_conditions_that_their_table_has_no_column_for_are_refused(engine: str, tmp_path: Path) -> None:
    theirs = adopted(fresh_url(engine, tmp_path), Columns(sender=None, aggregate_id=None))
    theirs.insert("a", 1)
    with Inbox(theirs.url) as inbox:
        processed(inbox, nothing, settings=QUICK)
        assert inbox.events.count(Where(type="OrderPlaced", since="1h")) == 1
        for name in ("tenant", "aggregate_type", "sender", "key"):
            with pytest.raises(ConfigError, match=f"'orders_in' was adopted without a column for {name}"):
                inbox.events.count(Where(**{name: "x"}))
            with pytest.raises(ConfigError, match=name):
                inbox.events.replay(Where(**{name: "x"}))


def test_processors_stand_still_when_inboxes_are_off(theirs: Theirs, caplog: pytest.LogCaptureFixture) -> None:
    theirs.insert("a", 1)
    off = QUICK.replaced({"inbox.enabled": False})
    with Inbox(theirs.url) as inbox:
        assert processed(inbox, writing(False), settings=off).done == 0
        assert "inbox.enabled is off" in caplog.text
        assert inbox.accept(None, arrived(2))
        assert inbox.status().pending == 2
        assert processed(inbox, writing(False), settings=QUICK).done == 2


def test_imports_stay_lazy() -> None:
    """Who adopts nothing loads nothing of it."""
    code = "import relaybox.inbox, sys; print('relaybox.store.inbox.adopted.postgres' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"
