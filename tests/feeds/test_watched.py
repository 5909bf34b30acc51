"""What is told of feeds: alerts, metrics, the doctor; and all of it in roles that own nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry

from kit import one
from kit.feeds import TOTALS, Upkeep, execute
from relaybox import (
    Feed,
    Outbox,
    Topic,
)
from relaybox.drivers import open_sync
from relaybox.facts import Alert, FeedStanding
from relaybox.observe.prometheus import PrometheusObserver
from relaybox.outbox.doctor import examine
from relaybox.store.grants.ops import compare
from relaybox.types import DatabaseRole, FeedSource

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
