"""Operating an inbox: dead letters, replay, health, retention, and the views for people."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from kit import Probe, one, rows, wait_until
from relaybox import ALL, ConfigError, Event, Inbox, Reject, Retry, Settings, Where
from relaybox.clock import SystemClock
from relaybox.errors import SchemaMissing
from relaybox.facts import Accepted, Administered, Fact, Purged
from relaybox.testing.clock import ManualClock
from relaybox.types import AdminSettings, Health, Limits, Order, Progress, Retention

from .effects import QUICK
from .kit import Twin, arrived, fresh_url, message_ids, pending_ids, processed, seen_ids, serving
from .their_table import Theirs

NASTY = ["'; DROP TABLE inbox; --", "a\\' OR 1=1", '"x"', "%s", ":name", "{seen}", "$1", "ü✓", "a ", "a"]


def accept_all_but_odd(event: Event, _: Any) -> None:
    if event.payload["n"] % 2:
        raise Reject("odd")


def filled(inbox: Inbox, count: int = 10, **options: Any) -> list[Event]:
    """Even ones are processed, odd ones are dead."""
    events = [arrived(n, **options) for n in range(count)]
    inbox.accept_all(None, events, sender="shop")
    processed(inbox, accept_all_but_odd, settings=QUICK)
    return events


async def test_dead_letters(url: str, is_async: bool) -> None:
    with Inbox(url) as inbox:
        events = filled(inbox, key="k")
        inbox.accept(None, Event("Other", {"n": 1}, tenant="acme"), sender="bank")
        processed(inbox, accept_all_but_odd, settings=QUICK)
    async with Twin(url, is_async=is_async) as twin:
        letters = await twin.call("dead.list", limit=3)
        assert [letter.event.id for letter in letters] == [event.id for event in events[1:6:2]]
        assert (letters[0].error, letters[0].attempts, letters[0].event.sender) == ("Reject: odd", 1, "shop")
        assert letters[0].dead_at.tzinfo is not None
        more = await twin.call("dead.list", after=letters[-1].event.seq)
        assert [letter.event.payload["n"] for letter in more] == [7, 9, 1]
        assert await twin.call("dead.count") == 6
        for where, count in (
            (Where(sender="bank"), 1),
            (Where(sender=""), 0),
            (Where(key="k"), 5),
            (Where(type="Other", tenant="acme"), 1),
            (Where(tenant="acme", key="k"), 0),
            (Where(until=datetime(2020, 1, 1, tzinfo=UTC)), 0),
            (Where(since=datetime(2020, 1, 1, tzinfo=UTC)), 6),
        ):
            assert await twin.call("dead.count", where) == count
            assert len(await twin.call("dead.list", where)) == count
        assert (await twin.call("dead.get", events[1].id, sender="shop")).event.payload == {"n": 1}
        assert await twin.call("dead.get", events[1].id, sender="bank") is None
        assert await twin.call("dead.discard", [events[1].id, events[2].id, "unknown"]) == 1
        assert not await twin.call("accept", None, events[1], sender="shop")
    assert events[1].id not in message_ids(url)
    assert events[2].id in message_ids(url)


async def test_replay_by_id(url: str, is_async: bool) -> None:
    """Exactly those ids, with fresh attempts, whether dead or processed."""
    with Inbox(url) as inbox:
        events = filled(inbox)
    async with Twin(url, is_async=is_async) as twin:
        wanted = [events[3].id, events[4].id]
        assert await twin.call("events.replay", [*wanted, "unknown", *wanted]) == 2
        assert sorted(pending_ids(url)) == sorted(wanted)
        assert await twin.call("events.replay", wanted) == 0
    assert one(url, "SELECT max(attempts) FROM inbox_pending") == 0
    seen: list[int] = []
    with Inbox(url) as inbox:
        processed(inbox, lambda event, _: seen.append(event.payload["n"]), settings=QUICK)
        assert sorted(seen) == [3, 4]
        status = inbox.status()
        assert (status.pending, status.seen, status.dead) == (0, 10, 4)


async def test_replay_by_condition(url: str, is_async: bool) -> None:
    with Inbox(url) as inbox:
        filled(inbox, 20)
        inbox.accept(None, Event("Other", {"n": 1}))
        processed(inbox, accept_all_but_odd, settings=QUICK)
    async with Twin(url, is_async=is_async) as twin:
        assert await twin.call("dead.replay", Where(type="OrderPlaced")) == 10
        assert await twin.call("events.replay", Where(sender="bank")) == 0
        assert await twin.call("events.replay", Where(sender="shop")) == 10
        assert (await twin.call("status")).pending == 20
        assert await twin.call("dead.count") == 1


async def test_the_numbers_by_type_follow_replays_and_discards(url: str) -> None:
    with Inbox(url) as inbox:
        events = filled(inbox)
        inbox.accept(None, arrived(100))
        assert inbox.events.replay([events[0].id, events[1].id]) == 2
        assert [tuple(row[:4]) for row in inbox.stats()] == [("OrderPlaced", 3, 4, 4)]
        assert inbox.events.discard(ALL) == 7, "dead ones and open ones"
        assert [tuple(row[:4]) for row in inbox.stats()] == [("OrderPlaced", 0, 4, 0)]
    assert pending_ids(url) == []
    assert len(message_ids(url)) == 4


async def test_strings_are_data(url: str, is_async: bool) -> None:
    events = [Event("Odd", {"n": 1}, id=text, key=text, tenant=text) for text in NASTY]
    async with Twin(url, is_async=is_async, order=Order()) as twin:
        assert all(await twin.call("accept_all", None, events, sender="x' --"))
        with Inbox(url) as inbox:
            processed(inbox, accept_all_but_odd, settings=QUICK)
        for text in NASTY:
            letters = await twin.call("dead.list", Where(key=text, tenant=text, sender="x' --"))
            assert text in [letter.event.id for letter in letters]
            assert (await twin.call("dead.get", text)).event.id == text
            assert await twin.call("dead.replay", [text]) == 1
        assert sorted(pending_ids(url)) == sorted(NASTY)
        assert await twin.call("keys.release", NASTY[0], to=5)
        assert not await twin.call("keys.release", NASTY[0], to=5), "it is there"
        assert await twin.call("keys.release", "a ", to=9)
        assert await twin.call("keys.release", "a", to=9), "another key"


# -- health -----------------------------------------------------------------------------------------------


async def test_health(url: str, is_async: bool) -> None:
    clock = ManualClock()
    async with Twin(url, is_async=is_async, clock=clock) as twin:
        assert await twin.call("health") == Health()
        assert (await twin.call("status")).throughput == 0
        await twin.call("accept_all", None, [arrived(n) for n in range(10)])
        clock.advance(120)
        health = await twin.call("health")
        status = await twin.call("status")
        assert (status.pending, status.oldest, health.level) == (10, timedelta(minutes=2), "degraded")
        assert any("no process works on them" in reason for reason in health.reasons)
        strict = Limits(waiting=(1, 10), oldest=(timedelta(1), timedelta(2)))
        assert (await twin.call("health", strict)).level == "critical"
        with Inbox(url, clock=clock) as inbox:
            processed(inbox, accept_all_but_odd, settings=QUICK)
        clock.advance(10)
        status = await twin.call("status")
        assert (status.pending, status.dead) == (0, 5)
        assert await twin.call("health") == Health("degraded", ("5 dead letters",))
        assert (status.throughput, status.average) == (0.5, timedelta(minutes=2))


# -- retention --------------------------------------------------------------------------------------------


async def test_retention(url: str, is_async: bool) -> None:
    clock = ManualClock()
    keep = {"done": "72h", "dead": "30d", "seen": "60d"}
    few = QUICK.replaced({"inbox.purge_batch": 3})
    async with Twin(url, is_async=is_async, clock=clock, settings=few) as twin:
        with Inbox(url, clock=clock) as inbox:
            events = filled(inbox)
            inbox.accept(None, arrived(99))
        clock.advance(71 * 3600)
        assert await twin.call("purge", **keep) == 0
        clock.advance(2 * 3600)
        assert await twin.call("purge", **keep) == 5
        assert (len(message_ids(url)), len(seen_ids(url))) == (6, 11)
        assert not await twin.call("accept", None, events[0], sender="shop")  # the ledger outlives the message
        clock.advance(30 * 86400)
        assert await twin.call("purge", **keep) == 5
        assert len(seen_ids(url)) == 11
        clock.advance(30 * 86400)
        assert await twin.call("purge", **keep) == 0
    assert len(message_ids(url)) == len(pending_ids(url)) == len(seen_ids(url)) == 1
    for wrong in (
        {"done": timedelta(-1)},
        {"dead": "soon"},
        {"done": timedelta(9), "seen": timedelta(8)},
    ):
        with pytest.raises(ConfigError):
            Retention(**wrong)


async def test_a_purge_can_be_tried_and_is_written_down(url: str, is_async: bool) -> None:
    clock, facts, seen = ManualClock(), list[Fact](), list[Progress]()
    few = QUICK.replaced({"inbox.purge_batch": 3})
    async with Twin(url, is_async=is_async, clock=clock, settings=few, observers=[facts.append]) as twin:
        with Inbox(url, clock=clock) as inbox:
            filled(inbox)
        clock.advance(86400)
        for wanted, count in (({"done": "1h"}, 5), ({"done": "1h", "dead": "1h"}, 10), ({"done": "2d"}, 0)):
            assert await twin.call("purge", **wanted, dry_run=True) == count
        assert (await twin.call("audit"), len(message_ids(url))) == ([], 10)
        told = {"reason": "full", "actor": "ann"}
        assert await twin.call("purge", done="1h", dead="1h", progress=seen.append, **told) == 10
        assert [at.done for at in seen] == [3, 5, 8, 10]
        assert Administered("purge", "inbox inbox", 10, "ann", "full") in facts
        (entry,) = await twin.call("audit")
        assert (entry.verb, entry.changed, entry.reason) == ("purge", 10, "full")
        clock.advance(400 * 86400)
        twin.raw.settings = Settings(admin=AdminSettings(audit_retention="365d"))
        assert await twin.call("purge") == 0
        assert await twin.call("audit") == [], "the audit table is purged too"


async def test_a_service_purges_the_audit_table(url: str) -> None:
    clock = ManualClock()
    with Inbox(url, clock=clock) as inbox:
        filled(inbox)
        inbox.dead.discard(ALL)
        clock.advance(400 * 86400)
        old = QUICK.replaced({"admin.audit_retention": "365d"})
        with serving(inbox, accept_all_but_odd, settings=old):
            wait_until(lambda: inbox.audit() == [])


async def test_dead_letters_are_kept_for_ever_by_default(url: str) -> None:
    clock = ManualClock()
    with Inbox(url, clock=clock) as inbox:
        filled(inbox)
        clock.advance(10 * 365 * 86400)
        assert inbox.purge() == 5
        assert len(seen_ids(url)) == 5
        assert inbox.dead.count() == 5


async def test_a_service_purges_in_the_background(url: str) -> None:
    probe = Probe()
    with Inbox(url) as inbox:
        filled(inbox)
        quick = QUICK.replaced({"inbox.retention": "1us", "inbox.purge_interval": "20ms"})
        with serving(inbox, accept_all_but_odd, observers=[probe], settings=quick):
            await probe.until(lambda: probe.of(Purged))
    assert len(message_ids(url)) == 5


def said(way: str, folder: Path, values: dict[str, str]) -> Settings:
    """Settings as a program, its environment or its file say them."""
    quick = {"delivery.poll": "20ms"} | values
    if way == "file":
        file = folder / "relaybox.toml"
        file.write_text("".join(f'{path} = "{value}"\n' for path, value in quick.items()))
        return Settings.load(file, environment={})
    if way == "environment":
        variables = {f"RELAYBOX_{path.replace('.', '_').upper()}": value for path, value in quick.items()}
        return Settings.load(environment=variables)
    return Settings.load(environment={}, given=quick)


@pytest.mark.parametrize("way", ["argument", "environment", "file"])
async def test_a_processor_keeps_to_the_settings(url: str, is_async: bool, way: str, tmp_path: Path) -> None:
    settings = said(
        way,
        tmp_path,
        {
            "inbox.retention": "1ms",
            "inbox.dead_retention": "1ms",
            "inbox.purge_interval": "20ms",
            "inbox.purge_batch": "2",
        },
    )
    probe = Probe()
    with Inbox(url) as inbox:
        filled(inbox)
    async with Twin(url, is_async=is_async) as twin:
        options = {"settings": settings, "observers": [probe]}
        processor = serving(twin.raw, accept_all_but_odd, **options)
        async with processor if is_async else entered(processor):
            await probe.until(lambda: sum(fact.count for fact in probe.of(Purged)) == 10)
    assert message_ids(url) == []
    assert len(seen_ids(url)) == 10


@asynccontextmanager
async def entered(processor: Any) -> AsyncIterator[None]:
    with processor:
        yield


async def test_nobody_said_anything_and_an_inbox_does_not_grow_for_ever(url: str) -> None:
    clock, probe = ManualClock(), Probe()
    with Inbox(url, clock=clock) as inbox:
        filled(inbox)
        clock.advance(73 * 3600)
        inbox.accept(None, arrived(100))
        with serving(inbox, accept_all_but_odd, settings=QUICK, observers=[probe]) as processor:
            await probe.until(lambda: probe.of(Purged) and processor.counts.done == 1)
        assert [found.event.payload["n"] for found in inbox.events.list(state="done")] == [100]
        assert inbox.dead.count() == 5
        clock.advance(73 * 3600)
        for_ever = {"inbox.retention": None, "inbox.dead_retention": None, "inbox.seen_retention": None}
        processed(inbox, accept_all_but_odd, settings=QUICK.replaced(for_ever))
        assert len(inbox.events.list(state="done")) == 1, "a service that is told to keep everything"


async def test_ages_are_of_the_database(url: str, is_async: bool) -> None:
    """A client whose clock is days ahead deletes nothing too early."""

    class Ahead(SystemClock):
        def now(self) -> datetime:
            return super().now() + timedelta(days=365)

    with Inbox(url) as inbox:
        filled(inbox)
    async with Twin(url, is_async=is_async, clock=Ahead()) as twin:
        assert await twin.call("purge", dead="1d") == 0
    assert len(seen_ids(url)) == 10


# -- what is agreed on ------------------------------------------------------------------------------------


async def test_attempts_can_be_changed(engine: str, tmp_path: Path, is_async: bool) -> None:
    url = fresh_url(engine, tmp_path)
    probe = Probe()

    def fail(event: Event, _: Any) -> None:
        raise ValueError

    async with Twin(url, "box", is_async=is_async) as twin:
        with pytest.raises(SchemaMissing):
            await twin.call("configure", retry=Retry(attempts=1))
        await twin.call("migrate")
        await twin.call("configure", retry=Retry(attempts=5), retention=Retention(done="1h"))
        for wrong in (5, "often", Retry(delay=lambda n: n)):
            with pytest.raises(ConfigError, match="retry"):
                await twin.call("configure", retry=wrong)
        assert (await twin.call("configure", retry=Retry(attempts=1, base="5ms"))).retention == Retention(done="1h")
        await twin.call("accept", None, arrived(1))
    with Inbox(url, "box") as inbox:
        with serving(inbox, fail, settings=QUICK, observers=[probe]) as processor:
            await probe.until(lambda: processor.counts.dead == 1)
        assert inbox.dead.list()[0].attempts == 1
        info = inbox.configure(retention=Retention(done=7200))
        assert (info.retry, info.retention) == (Retry(attempts=1, base="5ms"), Retention(done="2h"))
        info = inbox.configure(retry=None, retention=None)
        assert (info.retry, info.retention) == (None, None)


def test_attempts_of_an_adopted_table_can_be_changed(engine: str, tmp_path: Path) -> None:
    url = fresh_url(engine, tmp_path)
    theirs, probe = Theirs(url), Probe()
    theirs.insert("a", 1)

    def fail(event: Event, _: Any) -> None:
        raise ValueError

    with Inbox(url, "box") as inbox:
        inbox.adopt("orders_in")
        inbox.configure(retry=Retry(attempts=1))
    with Inbox(url, "box") as inbox:
        with serving(inbox, fail, settings=QUICK, observers=[probe]) as processor:
            probe.wait(lambda: processor.counts.dead == 1)
        assert rows(url, "SELECT retry_count FROM orders_in") == [(1,)]
        assert processed(inbox, fail, settings=QUICK).failed == 0
        inbox.configure(retry=Retry(attempts=3))
    with Inbox(url, "box") as inbox:
        assert processed(inbox, lambda *_: None, settings=QUICK).done == 1, "its attempts are below the limit again"


# -- accepting --------------------------------------------------------------------------------------------


async def test_duplicates_are_counted(url: str, is_async: bool) -> None:
    facts: list[Fact] = []
    async with Twin(url, is_async=is_async, observers=[facts.append]) as twin:
        await twin.call("accept", None, arrived(1, id="a"))
        await twin.call("accept", None, arrived(1, id="a"))
        await twin.call("accept_all", None, [arrived(1, id="a"), arrived(2, id="b"), arrived(2, id="b")])
    told = [fact for fact in facts if isinstance(fact, Accepted)]
    assert [(fact.inbox, fact.count, fact.duplicates) for fact in told] == [
        ("inbox", 1, 0),
        ("inbox", 0, 1),
        ("inbox", 1, 2),
    ]


# -- views ------------------------------------------------------------------------------------------------


async def test_views(url: str) -> None:
    """Live: nothing in them is older than the question."""
    with Inbox(url) as inbox:
        filled(inbox)
        inbox.accept(None, arrived(100))
        assert [tuple(row[:4]) for row in inbox.stats()] == [("OrderPlaced", 1, 5, 5)]
        assert inbox.stats()[0].average is not None
    assert rows(url, "SELECT event_type, pending, processed, dead FROM inbox_stats") == [("OrderPlaced", 1, 5, 5)]
    assert [row[0] for row in rows(url, "SELECT last_error FROM inbox_letters")] == ["Reject: odd"] * 5
    assert rows(url, "SELECT attempts, held FROM inbox_waiting") in ([(0, 0)], [(0, False)])
    states = dict(rows(url, "SELECT status, count(*) FROM inbox_status GROUP BY status"))
    assert states == {"dead": 5, "processed": 5, "pending": 1}
