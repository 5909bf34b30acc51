"""Feeds that are refreshed by themselves: by a maintainer, and by a scheduler in the database."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from kit import PATIENCE, one, rows, until, wait_until, with_driver
from kit.feeds import SHARES, TOTALS, Upkeep, execute
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
)
from relaybox.errors import FeedError, StoreError
from relaybox.facts import Fact, FeedFailed, FeedRefreshed
from relaybox.outbox.doctor import examine
from relaybox.types import FeedSettings, TopicSettings

# Waits until the test lets it go, which it does by a lock.
HELD = Feed("held", "SELECT 1 AS id, pg_advisory_xact_lock_shared(7)::text AS held", key="id", mode="full", every="1m")
WRITTEN = "SELECT (SELECT count(*) FROM outbox_event_log_1), (SELECT max(n) FROM outbox_event_feed)"


@pytest.fixture
async def held(url: str) -> AsyncIterator[psycopg.Connection]:
    """While it is open, refreshes of HELD wait."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SELECT pg_advisory_lock(7)")
        yield connection


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


async def test_a_clock_that_is_put_back(url: str, box: Outbox, upkeep: Upkeep) -> None:
    """As by a fail-over: nobody waits until it is where it was."""
    box.feeds.create(replace(TOTALS, every="1h"))
    upkeep.clock.passes(days=1)
    assert (await upkeep.does("feeds")).feeds_refreshed == 1
    upkeep.clock.passes(minutes=50)
    assert (await upkeep.does("feeds")).feeds_refreshed == 0
    upkeep.clock.passes(hours=-20)
    assert (await upkeep.does("feeds")).feeds_refreshed == 1
    assert (await upkeep.does("feeds")).feeds_refreshed == 0


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
