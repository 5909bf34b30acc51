"""Feeds that are refreshed by themselves: by a maintainer, and by a scheduler in the database."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from prometheus_client import CollectorRegistry

from kit import PATIENCE, make_postgres, one, rows, until, wait_until, with_driver
from relaybox import (
    AsyncMaintainer,
    AsyncOutbox,
    ConfigError,
    Event,
    Feed,
    Maintainer,
    Outbox,
    Settings,
    StartFrom,
    Topic,
)
from relaybox.clock import SystemClock
from relaybox.drivers import open_sync
from relaybox.errors import FeedError, StoreError
from relaybox.facts import Alert, Fact, FeedFailed, FeedRefreshed, FeedStanding
from relaybox.maintenance import Report
from relaybox.observe.prometheus import PrometheusObserver
from relaybox.outbox.doctor import examine
from relaybox.store.grants.ops import compare
from relaybox.types import DatabaseRole, FeedSettings, FeedSource, TopicSettings

TOTALS = Feed(
    "totals",
    "SELECT customer, count(*) AS n, sum(amount) AS total FROM orders GROUP BY customer",
    key="customer",
    sources={"orders": "customer"},
    every="1m",
)
SHARES = replace(TOTALS, name="shares", query="SELECT customer, sum(100 / amount) AS n FROM orders GROUP BY customer")
# Waits until the test lets it go, which it does by a lock.
HELD = Feed("held", "SELECT 1 AS id, pg_advisory_xact_lock_shared(7)::text AS held", key="id", mode="full", every="1m")
WRITTEN = "SELECT (SELECT count(*) FROM outbox_event_log_1), (SELECT max(n) FROM outbox_event_feed)"


class LaterClock(SystemClock):
    """Real seconds, and a database time that the test puts forward."""

    ahead = timedelta(0)

    def now(self) -> datetime:
        return datetime.now(UTC) + self.ahead

    def database_now(self) -> datetime | None:
        return self.now()

    def passes(self, **amount: float) -> None:
        self.ahead += timedelta(**amount)


@pytest.fixture
def url() -> str:
    url = make_postgres()
    with psycopg.connect(url, autocommit=True) as owner:
        owner.execute("CREATE TABLE orders (id integer PRIMARY KEY, customer integer NOT NULL, amount numeric)")
        owner.execute("CREATE INDEX ON orders (customer)")
        owner.execute("INSERT INTO orders SELECT g, g % 10, g FROM generate_series(1, 100) g")
    return url


@pytest.fixture
def box(url: str) -> Iterator[Outbox]:
    with Outbox(url) as box:
        yield box


class Upkeep:
    """A maintainer that does what the test says, when it says so."""

    def __init__(self, url: str, **settings: Any) -> None:
        self.url = url
        self.clock = LaterClock()
        self.facts: list[Fact] = []
        self.settings = Settings(feeds=FeedSettings(**settings))

    def maintainer(self) -> AsyncMaintainer:
        outbox = AsyncOutbox(self.url, settings=self.settings, clock=self.clock)
        return AsyncMaintainer(outbox, observers=[self.facts.append])

    async def does(self, *jobs: str) -> Report:
        maintainer = self.maintainer()
        try:
            report = maintainer._report = Report(leading=await maintainer._take_term())
            for job in jobs:
                await maintainer._run(job)
            return report
        finally:
            await maintainer.stop()

    def told(self, kind: type[Fact]) -> list[Any]:
        return [fact for fact in self.facts if isinstance(fact, kind)]

    def alerts(self, name: str) -> list[tuple[str, bool]]:
        return [(fact.group, fact.over) for fact in self.told(Alert) if fact.name == name]


@pytest.fixture
def upkeep(url: str) -> Upkeep:
    return Upkeep(url)


@pytest.fixture
async def held(url: str) -> AsyncIterator[psycopg.Connection]:
    """While it is open, refreshes of HELD wait."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SELECT pg_advisory_lock(7)")
        yield connection


def execute(url: str, *statements: str) -> None:
    for statement in statements:
        rows(url, statement)


def is_exact(url: str) -> bool:
    query = "SELECT customer, count(*), sum(amount) FROM orders GROUP BY 1 ORDER BY 1"
    return rows(url, "SELECT customer, n, total FROM feed_totals ORDER BY 1") == rows(url, query)


def waits(url: str, lock: str = "advisory") -> bool:
    return one(url, f"SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = '{lock}'") > 0


# -- when it is due ----------------------------------------------------------------------------------------


def test_a_maintainer_refreshes_what_is_due(url: str, box: Outbox) -> None:
    """And wakes who reads the deltas, in another process than the writer's."""
    box.feeds.create(replace(TOTALS, every="100ms"))
    heard: list[Event] = []
    group = box.topics.group("totals", "mirror", start=StartFrom.earliest())
    with (
        group.deliver(heard.append),
        Outbox(url, settings=Settings(feeds=FeedSettings(interval="20ms"))) as mine,
        Maintainer(mine) as maintainer,
    ):
        wait_until(lambda: heard)
        execute(url, "UPDATE orders SET amount = amount + 1 WHERE id < 20")
        wait_until(lambda: len(heard) > 1 and is_exact(url))
        assert box.feeds.refresh(None, "totals").delta is None
        wait_until(lambda: maintainer.report.feeds_refreshed > 3)
    status = box.feeds.status("totals")
    assert (status.schedule.failures, status.schedule.error, status.late) == (0, None, False)
    assert status.schedule.every == timedelta(milliseconds=100)


async def test_not_before_its_time_and_never_later(url: str, box: Outbox, upkeep: Upkeep) -> None:
    box.feeds.create(TOTALS)
    assert (await upkeep.does("feeds")).feeds_refreshed == 1
    assert (await upkeep.does("feeds")).feeds_refreshed == 0
    after = box.feeds.status("totals").schedule
    assert after.seen_at is not None
    assert after.next_at is not None
    assert timedelta(seconds=53) < after.next_at - after.seen_at <= timedelta(seconds=61)
    upkeep.clock.passes(seconds=61)
    assert (await upkeep.does("feeds")).feeds_refreshed == 1
    (first, second) = upkeep.told(FeedRefreshed)
    assert (first.feed, first.how, first.inserted, first.deleted) == ("totals", "full", 10, 0)
    assert (second.how, second.inserted, second.deleted) == ("differential", 0, 0)


def test_by_cron(url: str, box: Outbox) -> None:
    """`relaybox maintain --once` waits for what it began."""
    box.feeds.create(TOTALS)
    box.feeds.create(replace(TOTALS, name="others", every=None))
    with Outbox(url) as mine:
        maintainer = Maintainer(mine)
        maintainer.once()
    assert (maintainer.report.feeds_refreshed, maintainer.report.feeds_failed) == (1, 0)
    assert is_exact(url)
    assert box.feeds.status("others").feed.refreshed_at is None


async def test_the_definition_has_the_schedule(url: str, box: Outbox, upkeep: Upkeep) -> None:
    box.feeds.create(replace(TOTALS, every="1h"))
    await upkeep.does("feeds")
    before = box.feeds.status("totals").schedule
    box.feeds.create(replace(TOTALS, every="1h"))
    assert box.feeds.status("totals").schedule == before
    box.feeds.create(replace(TOTALS, every="30m", timeout="1m"))
    after = box.feeds.status("totals").schedule
    assert (after.every, after.timeout) == (timedelta(minutes=30), timedelta(minutes=1))
    assert (await upkeep.does("feeds")).feeds_refreshed == 1, "another interval begins at once"
    box.feeds.create(replace(TOTALS, every=None))
    upkeep.clock.passes(hours=2)
    assert box.feeds.status("totals").schedule.next_at is None
    assert (await upkeep.does("feeds")).feeds_refreshed == 0


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
def test_in_a_schema_and_with_each_driver(url: str, driver: str) -> None:
    with Outbox(url, schema="shop") as box:
        box.migrate()
        box.feeds.create(TOTALS)
        with Outbox(with_driver(url, driver), schema="shop") as mine:
            maintainer = Maintainer(mine)
            maintainer.once()
        assert (maintainer.report.feeds_refreshed, maintainer.report.feeds_failed) == (1, 0)
        assert one(url, "SELECT count(*) FROM shop.feed_totals") == 10
        execute(url, "CALL shop.outbox_event_feed_run('totals')")
        assert box.feeds.status("totals").schedule.failures == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"every": "10ms"}, "every to be a duration from 100ms"),
        ({"timeout": 0}, "timeout"),
        ({"every": "often"}, "30s"),
    ],
)
def test_what_no_schedule_is(options: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        replace(TOTALS, **options)


# -- what fails ----------------------------------------------------------------------------------------------


async def test_a_failure_leaves_everything_and_is_told(url: str, box: Outbox, upkeep: Upkeep) -> None:
    box.feeds.create(SHARES)
    await upkeep.does("feeds")
    before = rows(url, WRITTEN), rows(url, "SELECT * FROM feed_shares ORDER BY 1")
    execute(url, "UPDATE orders SET amount = 0 WHERE id = 1")
    pauses = []
    for failures in (1, 2, 3):
        upkeep.clock.passes(minutes=3)
        assert (await upkeep.does("feeds", "watch")).feeds_failed == 1
        status = box.feeds.status("shares")
        plan = status.schedule
        assert plan.failures == failures
        assert plan.error == "error 22012; its text may quote rows, and is in the log of the server"
        assert plan.next_at is not None
        assert plan.failed_at is not None
        pauses.append((plan.next_at - plan.failed_at).total_seconds())
        assert status.waiting == 1, "to be looked at by the next"
    assert [round(pause / 10) for pause in pauses] == [1, 2, 4]
    assert (rows(url, WRITTEN), rows(url, "SELECT * FROM feed_shares ORDER BY 1")) == before
    assert [(fact.feed, fact.failures) for fact in upkeep.told(FeedFailed)] == [("shares", n) for n in (1, 2, 3)]
    assert upkeep.alerts("feed_failing") == [("shares", False)]
    (found,) = [f for f in examine(box._db, box.store) if f.check == "feeds"]
    assert (found.level, "failed 3 time(s) in a row" in found.text) == ("warning", True)
    execute(url, "UPDATE orders SET amount = 1 WHERE id = 1")
    upkeep.clock.passes(minutes=3)
    assert (await upkeep.does("feeds", "watch")).feeds_refreshed == 1
    assert upkeep.alerts("feed_failing") == [("shares", False), ("shares", True)]
    plan = box.feeds.status("shares").schedule
    assert (plan.failures, plan.error) == (0, None)


async def test_who_asks_may_end_the_failures(url: str, box: Outbox, upkeep: Upkeep) -> None:
    box.feeds.create(replace(SHARES, every="1h"))
    execute(url, "UPDATE orders SET amount = 0 WHERE id = 1")
    await upkeep.does("feeds")
    assert box.feeds.status("shares").schedule.failures == 1
    execute(url, "DELETE FROM orders WHERE id = 1")
    assert box.feeds.refresh(None, "shares").inserted == 10
    plan = box.feeds.status("shares").schedule
    assert (plan.failures, plan.error) == (0, None)


async def test_who_asks_is_told_and_others_too(url: str, upkeep: Upkeep) -> None:
    """A job of somebody's own scheduler, which sees the error and may keep it to itself."""
    failed: list[Fact] = []
    async with AsyncOutbox(url, observers=[failed.append]) as box:
        await box.feeds.create(replace(SHARES, every=None))
        execute(url, "UPDATE orders SET amount = 0 WHERE id = 1")
        for failures in (1, 2):
            with pytest.raises(StoreError, match="division by zero"):
                await box.feeds.refresh(None, "shares")
            plan = (await box.feeds.status("shares")).schedule
            assert (plan.failures, plan.error) == (failures, "StoreError; who called was told the rest")
        assert [fact.failures for fact in failed if isinstance(fact, FeedFailed)] == [1, 2]
        await upkeep.does("watch")
        assert upkeep.alerts("feed_failing") == [("shares", False)]
        await box.feeds.pause("shares")
        with pytest.raises(FeedError, match="paused"):
            await box.feeds.refresh(None, "shares")
        await upkeep.does("watch")
        assert upkeep.alerts("feed_failing") == [("shares", False), ("shares", True)]
        assert (await box.feeds.status("shares")).schedule.failures == 2


async def test_another_definition_ends_the_failures(url: str, box: Outbox, upkeep: Upkeep) -> None:
    box.feeds.create(SHARES)
    execute(url, "UPDATE orders SET amount = 0 WHERE id = 1")
    await upkeep.does("feeds")
    query = "SELECT customer, sum(100 / nullif(amount, 0)) AS n FROM orders GROUP BY customer"
    box.feeds.create(replace(SHARES, query=query))
    assert (await upkeep.does("feeds")).feeds_refreshed == 1


async def test_a_timeout_is_a_failure(url: str, box: Outbox, upkeep: Upkeep, held: psycopg.Connection) -> None:
    box.feeds.create(replace(HELD, timeout="100ms"))
    assert (await upkeep.does("feeds")).feeds_failed == 1
    assert box.feeds.status("held").schedule.error == "canceling statement due to statement timeout (57014)"
    assert box.feeds.status("held").feed.deltas == 0


async def test_a_lost_connection_is_a_failure(url: str, box: Outbox, upkeep: Upkeep, held: psycopg.Connection) -> None:
    """Nobody could write it down in that transaction."""
    box.feeds.create(HELD)
    job = asyncio.create_task(upkeep.does("feeds"))
    await until(lambda: waits(url))
    held.execute("SELECT pg_terminate_backend(pid) FROM pg_locks WHERE NOT granted AND locktype = 'advisory'")
    assert (await job).feeds_failed == 1
    plan = box.feeds.status("held").schedule
    assert (plan.failures, plan.error) == (1, "ConnectionLost; its text is in the log of the maintainer")
    assert (await upkeep.does("feeds")).feeds_failed == 0, "it has its pause"


# -- side by side --------------------------------------------------------------------------------------------


async def test_a_slow_feed_holds_nothing_up(url: str, box: Outbox, held: psycopg.Connection) -> None:
    settings = Settings(feeds=FeedSettings(interval="20ms", at_once=2))
    box.feeds.create(HELD)
    async with AsyncOutbox(url, settings=settings) as mine, AsyncMaintainer(mine) as maintainer:
        await until(lambda: waits(url))
        box.feeds.create(replace(TOTALS, every="100ms"))
        await until(lambda: is_exact(url) if one(url, "SELECT count(*) FROM feed_totals") else False)
        before = maintainer.report.ticks
        await until(lambda: maintainer.report.ticks > before)
        assert box.feeds.status("held").feed.deltas == 0
        assert waits(url)
        held.execute("SELECT pg_advisory_unlock(7)")
        await until(lambda: box.feeds.status("held").feed.deltas == 1)


async def test_slow_feeds_share_half_of_the_places(url: str, box: Outbox, held: psycopg.Connection) -> None:
    """Known from the last time."""
    for n in range(4):
        box.feeds.create(replace(HELD, name=f"held{n}"))
    execute(url, "UPDATE outbox_event_feed_schedule SET took = '1 minute'")
    box.feeds.create(replace(TOTALS, every="100ms"))
    settings = Settings(feeds=FeedSettings(interval="20ms", at_once=4))
    async with AsyncOutbox(url, settings=settings) as mine, AsyncMaintainer(mine) as maintainer:
        await until(lambda: maintainer.report.feeds_refreshed > 5)
        assert is_exact(url)
        assert one(url, "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'advisory'") == 2
        held.execute("SELECT pg_advisory_unlock(7)")
        await until(lambda: sum(box.feeds.status(f"held{n}").feed.deltas for n in range(4)) == 4)


async def test_a_feed_that_somebody_refreshes_is_passed_by(url: str, box: Outbox, upkeep: Upkeep) -> None:
    box.feeds.create(TOTALS)
    with psycopg.connect(url) as mine:
        box.feeds.refresh(mine, "totals")
        report = await upkeep.does("feeds")
        assert (report.feeds_refreshed, report.feeds_failed) == (0, 0)
        mine.rollback()
    assert (await upkeep.does("feeds")).feeds_refreshed == 1


async def test_two_maintainers_refresh_it_once(url: str, box: Outbox, held: psycopg.Connection) -> None:
    """One was frozen, and did not notice that its term is over: whether a feed is due is asked under the lock."""
    box.feeds.create(HELD)
    jobs = [Upkeep(url).maintainer() for _ in range(2)]
    (feed,) = await jobs[0]._db.run(jobs[0]._context.feeds.due(timedelta(1), None))
    first = asyncio.create_task(jobs[0]._feeds._attempt(feed))
    await until(lambda: waits(url))
    assert await jobs[1]._feeds._attempt(feed) is None, "it is locked"
    held.execute("SELECT pg_advisory_unlock(7)")
    attempt = await first
    assert attempt is not None
    assert attempt.done is not None
    assert await jobs[1]._feeds._attempt(feed) is None, "it is not due"
    for job in jobs:
        await job.stop()


@pytest.mark.parametrize("verb", ["pause", "drop", "create"])
async def test_what_changes_while_it_is_refreshed(
    url: str, box: Outbox, upkeep: Upkeep, held: psycopg.Connection, verb: str
) -> None:
    """It waits for the refresh, and the next one knows."""
    box.feeds.create(HELD)
    job = asyncio.create_task(upkeep.does("feeds"))
    await until(lambda: waits(url))
    other = replace(HELD, query="SELECT 2 AS id, ''::text AS held")
    change = {
        "pause": lambda: box.feeds.pause("held"),
        "drop": lambda: box.feeds.drop("held"),
        "create": lambda: box.feeds.create(other),
    }[verb]
    thread = threading.Thread(target=change)
    thread.start()
    await until(lambda: waits(url, "transactionid"))
    held.execute("SELECT pg_advisory_unlock(7)")
    report = await job
    await asyncio.to_thread(thread.join, PATIENCE)
    assert (report.feeds_refreshed, report.feeds_failed) == (1, 0)
    upkeep.clock.passes(hours=1)
    report = await upkeep.does("feeds")
    assert (report.feeds_refreshed, report.feeds_failed) == (1 if verb == "create" else 0, 0)
    if verb == "create":
        assert rows(url, "SELECT id FROM feed_held") == [(2,)]


async def test_a_stop_waits_and_then_cuts(url: str, box: Outbox, held: psycopg.Connection) -> None:
    box.feeds.create(HELD)
    settings = Settings(topics=TopicSettings(stop_timeout="100ms"))
    async with AsyncOutbox(url, settings=settings) as mine, AsyncMaintainer(mine):
        await until(lambda: waits(url))
    await until(lambda: not waits(url))
    assert box.feeds.status("held").feed.deltas == 0
    held.execute("SELECT pg_advisory_unlock(7)")
    assert box.feeds.refresh(None, "held").inserted == 1


# -- what somebody should know -----------------------------------------------------------------------------


async def test_having_to_evaluate_all_is_told_once(url: str, box: Outbox, upkeep: Upkeep) -> None:
    box.feeds.create(TOTALS)
    await upkeep.does("feeds", "watch")
    box.feeds.refresh(None, "totals", full=True)
    await upkeep.does("watch")
    assert upkeep.alerts("outbox_full_refresh") == [], "the first, and one that was asked for"
    execute(url, "TRUNCATE orders")
    assert box.feeds.refresh(None, "totals").how == "full"
    await upkeep.does("watch")
    await upkeep.does("watch")
    (alert,) = [fact for fact in upkeep.told(Alert) if fact.name == "outbox_full_refresh"]
    assert (alert.group, alert.text) == ("totals", "the whole query was evaluated: TRUNCATE of public.orders")


async def test_drift_is_found_and_waiting_changes_are_none(url: str, box: Outbox, upkeep: Upkeep) -> None:
    box.feeds.create(TOTALS)
    await upkeep.does("feeds")
    execute(url, "UPDATE orders SET customer = customer + 1 WHERE id < 5")
    upkeep.clock.passes(days=1, minutes=1)
    assert (await upkeep.does("verify", "watch")).feeds_verified == 1
    assert box.feeds.verify("totals").rows == 5
    assert box.feeds.status("totals").schedule.wrong == 0
    execute(url, "UPDATE feed_totals SET n = 0 WHERE customer IN (1, 7, 8)")
    assert (await upkeep.does("verify")).feeds_verified == 0, "once a day"
    upkeep.clock.passes(days=1)
    await upkeep.does("verify", "watch")
    assert upkeep.alerts("feed_drift") == [("totals", False)]
    assert box.feeds.status("totals").schedule.wrong == 2
    box.feeds.refresh(None, "totals", full=True)
    await upkeep.does("watch")
    assert upkeep.alerts("feed_drift") == [("totals", False), ("totals", True)]


async def test_a_feed_that_is_late_or_deaf(url: str, box: Outbox, upkeep: Upkeep) -> None:
    box.feeds.create(TOTALS)
    await upkeep.does("feeds", "watch")
    assert not box.feeds.status("totals").late
    upkeep.clock.passes(minutes=7)
    execute(url, "ALTER TABLE orders DISABLE TRIGGER ALL")
    await upkeep.does("watch")
    assert upkeep.alerts("feed_late") == [("totals", False)]
    assert upkeep.alerts("feed_deaf") == [("totals", False)]
    texts = [f.text for f in examine(box._db, box.store, clock=upkeep.clock) if f.check == "feeds"]
    assert ["missed changes" in text for text in texts] == [True, False]
    assert ["is to be refreshed every 0:01:00" in text for text in texts] == [False, True]
    await upkeep.does("feeds", "watch")
    assert upkeep.alerts("feed_late")[1:] == [("totals", True)]
    assert upkeep.alerts("feed_deaf")[1:] == [("totals", True)]


async def test_storage(url: str, box: Outbox) -> None:
    upkeep = Upkeep(url, critical_mb=1)
    query = "SELECT id, repeat('x', 20000) AS text FROM orders"
    box.feeds.create(Feed("wide", query, key="id", sources={"orders": "id"}, every="1m"))
    assert box.feeds.status("wide").storage == "ok"
    await upkeep.does("feeds", "watch")
    assert upkeep.alerts("feed_storage") == [("wide", False)]
    status = box.feeds.status("wide")
    assert (status.kept_deltas, status.storage) == (1, "ok"), "by the settings of this outbox"
    with Outbox(url, settings=upkeep.settings) as strict:
        assert strict.feeds.status("wide").storage == "critical"


async def test_metrics_of_each_feed(url: str, box: Outbox, upkeep: Upkeep) -> None:
    registry = CollectorRegistry()
    upkeep.facts = seen = []  # type: ignore[var-annotated]
    observer = PrometheusObserver(registry=registry, label_limit=2)
    for name in ("a", "b", "c"):
        box.feeds.create(replace(TOTALS, name=name))
    await upkeep.does("feeds")
    execute(url, "UPDATE orders SET amount = 0 WHERE id = 1")
    await upkeep.does("watch")
    box.feeds.drop("a")
    maintainer = upkeep.maintainer()
    assert {fact.feed: fact.waiting for fact in upkeep.told(FeedStanding) if fact.waiting is not None} == {
        "a": 1,
        "b": 1,
        "c": 1,
    }
    await maintainer.stop()
    for fact in seen:
        observer(fact)

    def shown(name: str, feed: str) -> float | None:
        return registry.get_sample_value(f"relaybox_feeds_{name}", {"feed": feed})

    assert sum(shown("full_total", feed) or 0 for feed in ("a", "b", "c", "other")) == 3
    assert [feed for feed in ("a", "b", "c", "other") if shown("inserted_total", feed) == 10][-1] == "other"
    assert sum(shown("waiting", feed) is not None for feed in ("a", "b", "c")) == 2, "a gauge of many is none of them"
    assert shown("waiting", "other") is None
    assert registry.get_sample_value("relaybox_feeds_seconds_count") == 3


def test_auto_counts_what_was_never_analysed(url: str, box: Outbox) -> None:
    execute(url, "INSERT INTO orders SELECT g, g, g FROM generate_series(1000, 9000) g")
    box.feeds.create(replace(TOTALS, mode="auto"))
    execute(url, "ALTER TABLE feed_totals SET (autovacuum_enabled = off)")
    box.feeds.refresh(None, "totals")
    assert one(url, "SELECT reltuples <= 0 FROM pg_class WHERE relname = 'feed_totals'")
    execute(url, "UPDATE orders SET amount = 0 WHERE id >= 7800")
    assert box.feeds.refresh(None, "totals").how == "differential"
    execute(url, "UPDATE orders SET amount = 1 WHERE id >= 1000")
    assert box.feeds.refresh(None, "totals").how == "full"


# -- from SQL ----------------------------------------------------------------------------------------------


def test_the_procedure_refreshes_and_wakes(url: str, box: Outbox) -> None:
    box.feeds.create(replace(TOTALS, every=None))
    with psycopg.connect(url, autocommit=True) as ears, psycopg.connect(url, autocommit=True) as scheduler:
        ears.execute("LISTEN relaybox_outbox_event")
        scheduler.execute("CALL outbox_event_feed_run('totals')")
        assert [note.channel for note in ears.notifies(timeout=PATIENCE, stop_after=1)] == ["relaybox_outbox_event"]
        assert is_exact(url)
        assert box.feeds.status("totals").schedule.seen_at is not None
        box.feeds.pause("totals")
        scheduler.execute("CALL outbox_event_feed_run('totals')")


def test_the_procedure_says_and_keeps_what_failed(url: str, box: Outbox) -> None:
    box.feeds.create(replace(SHARES, every=None))
    execute(url, "UPDATE orders SET amount = 0 WHERE id = 1")
    for failures in (1, 2):
        with pytest.raises(psycopg.errors.DivisionByZero, match="feed shares: error 22012"):
            execute(url, "CALL outbox_event_feed_run('shares')")
        assert box.feeds.status("shares").schedule.failures == failures
    assert box.feeds.status("shares").feed.deltas == 0
    with pytest.raises(psycopg.Error, match="there is no feed nothing"):
        execute(url, "CALL outbox_event_feed_run('nothing')")


# -- in a role of its own ----------------------------------------------------------------------------------


@pytest.fixture
def role(url: str) -> Iterator[str]:
    name = f"keeper_{url.rsplit('/', 1)[1].partition('?')[0]}"[:60]
    execute(url, f'CREATE ROLE "{name}"')
    yield name
    execute(url, f'DROP OWNED BY "{name}"', f'DROP ROLE "{name}"')


@pytest.mark.parametrize("job", ["worker", "operator", "reader", "dashboard"])
def test_the_doctor_looks_at_feeds_in_every_role(url: str, box: Outbox, role: str, job: DatabaseRole) -> None:
    box.feeds.create(replace(TOTALS, inline_rows=0))
    box.feeds.refresh(None, "totals")
    execute(url, *box.grants(job, to=role))
    with closing(open_sync(f"{url}?options=-c%20role%3D{role}")) as database:
        assert [f.level for f in examine(database, box.store) if f.check == "feeds"] == ["ok"]


async def test_in_the_role_of_a_maintainer(url: str, box: Outbox, role: str) -> None:
    execute(url, "CREATE SCHEMA shop", "ALTER TABLE orders SET SCHEMA shop")
    execute(url, "CREATE TABLE name (id integer PRIMARY KEY, customer integer NOT NULL)")
    marks = Topic.pub_sub("marked", tracking="bitmap")
    box.topics.configure(marks)
    query = "SELECT o.id, n.customer FROM shop.orders o JOIN name n ON n.id = o.customer"
    resolved = FeedSource("id", resolve="SELECT o.id FROM touched t JOIN shop.orders o ON o.customer = t.id")
    sources = {"shop.orders": "id", "name": resolved}
    box.feeds.create(Feed("named", query, key="id", sources=sources, every="1m", topic="marked", inline_rows=0))
    query = "SELECT customer, count(*) AS n FROM shop.orders GROUP BY customer"
    box.feeds.create(replace(TOTALS, sources={"shop.orders": "customer"}, query=query))
    box.feeds.create(Feed("theirs", "SELECT id FROM name", key="id", sources={"name": "id"}))
    theirs = f"{url}?options=-c%20role%3D{role}"
    lines = box.grants("maintainer", to=role)
    assert not [line for line in lines if "feed_theirs" in line], "it is not refreshed by itself"
    for line in lines:
        if "shop" not in line and "totals" not in line:
            execute(url, line)
    upkeep = Upkeep(theirs)
    await upkeep.does("feeds", "watch")
    plans = {name: box.feeds.status(name).schedule for name in ("totals", "named")}
    assert plans["totals"].error == "permission denied for schema shop (42501)"
    with closing(open_sync(theirs)) as database:
        lacks = database.run(compare("outbox", box.store, box.topic_store, "maintainer"), tx=False)
    assert {finding.fix for finding in lacks if finding.level != "ok"} == {
        line for line in lines if "shop" in line or "totals" in line
    }
    for line in lines:
        execute(url, line)
    execute(url, "INSERT INTO name SELECT g, g FROM generate_series(1, 9) g")
    upkeep.clock.passes(hours=1)
    report = await upkeep.does("feeds", "verify", "cleanup", "watch")
    assert (report.feeds_refreshed, report.feeds_failed, report.feeds_verified) == (2, 0, 0)
    assert one(url, "SELECT count(*) FROM feed_named") == 90
    execute(url, "UPDATE shop.orders SET amount = 0 WHERE id = 7")
    upkeep.clock.passes(days=1, hours=1)
    report = await upkeep.does("feeds", "verify", "watch")
    assert (report.feeds_refreshed, report.feeds_failed, report.feeds_verified) == (2, 0, 2)
    with closing(open_sync(theirs)) as database:
        lacks = database.run(compare("outbox", box.store, box.topic_store, "maintainer"), tx=False)
    assert [finding.level for finding in lacks] == ["ok"]
