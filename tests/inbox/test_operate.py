"""Operating an inbox: dead letters, replay, health, retention, and the views for people."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from flow.kit import Probe, one, rows
from relaybox import ConfigError, Event, Inbox, Reject, Retry, Settings
from relaybox.clock import SystemClock
from relaybox.errors import SchemaMissing
from relaybox.facts import Accepted, Fact, Purged
from relaybox.store.inbox.operate import Pace, judge
from relaybox.testing.clock import ManualClock
from relaybox.types import InboxStatus, MessageFilter, Retention, Thresholds

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
    async with Twin(url, is_async=is_async) as inbox_twin:
        letters = await inbox_twin.call("dead", limit=3)
        assert [letter.event.id for letter in letters] == [event.id for event in events[1:6:2]]
        assert (letters[0].error, letters[0].attempts, letters[0].source) == ("Reject: odd", 1, "shop")
        assert letters[0].dead_at.tzinfo is not None
        more = await inbox_twin.call("dead", after=letters[-1].event.seq)
        assert [letter.event.payload["n"] for letter in more] == [7, 9, 1]
        assert await inbox_twin.call("count_dead") == 6
        for where, count in (
            (MessageFilter(source="bank"), 1),
            (MessageFilter(key="k"), 5),
            (MessageFilter(event_type="Other", tenant="acme"), 1),
            (MessageFilter(tenant="acme", key="k"), 0),
            (MessageFilter(before=datetime(2020, 1, 1, tzinfo=UTC)), 0),
            (MessageFilter(since=datetime(2020, 1, 1, tzinfo=UTC)), 6),
        ):
            assert await inbox_twin.call("count_dead", where) == count
            assert len(await inbox_twin.call("dead", where)) == count
        gone = await inbox_twin.call("discard", [events[1].id, events[2].id, "unknown"])
        assert gone == [events[1].id]
        assert not await inbox_twin.call("accept", None, events[1])
    assert events[1].id not in message_ids(url)
    assert events[2].id in message_ids(url)


async def test_replay_by_id(url: str, is_async: bool) -> None:
    """Exactly those ids, with fresh attempts, whether dead or processed."""
    with Inbox(url) as inbox:
        events = filled(inbox)
    async with Twin(url, is_async=is_async) as twin:
        wanted = [events[3].id, events[4].id]
        assert sorted(await twin.call("replay", [*wanted, "unknown", *wanted])) == sorted(wanted)
        assert sorted(pending_ids(url)) == sorted(wanted)
        assert await twin.call("replay", wanted) == []
        with pytest.raises(ConfigError, match="list of event ids"):
            await twin.call("replay", "one")
    assert one(url, "SELECT max(attempts) FROM inbox_pending") == 0
    seen: list[int] = []
    with Inbox(url) as inbox:
        processed(inbox, lambda event, _: seen.append(event.payload["n"]), settings=QUICK)
        assert sorted(seen) == [3, 4]
        assert inbox.status() == InboxStatus(0, 10, 4)


async def test_replay_by_filter(url: str, is_async: bool) -> None:
    with Inbox(url) as inbox:
        filled(inbox, 20)
        inbox.accept(None, Event("Other", {"n": 1}))
        processed(inbox, accept_all_but_odd, settings=QUICK)
    async with Twin(url, is_async=is_async) as twin:
        assert await twin.call("replay_all", MessageFilter(event_type="OrderPlaced")) == 10
        assert await twin.call("replay_all", MessageFilter(source="bank"), processed=True) == 0
        assert await twin.call("replay_all", MessageFilter(source="shop"), processed=True) == 10
        assert (await twin.call("status")).pending == 20
        assert await twin.call("count_dead") == 1


async def test_strings_are_data(url: str, is_async: bool) -> None:
    events = [Event("Odd", {"n": 1}, id=text, key=text, tenant=text) for text in NASTY]
    async with Twin(url, is_async=is_async) as twin:
        assert all(await twin.call("accept_all", None, events, sender="x' --"))
        with Inbox(url) as inbox:
            processed(inbox, accept_all_but_odd, settings=QUICK)
        for text in NASTY:
            letters = await twin.call("dead", MessageFilter(key=text, tenant=text, source="x' --"))
            assert text in [letter.event.id for letter in letters]
            assert await twin.call("replay", [text]) == [text]
        assert sorted(pending_ids(url)) == sorted(NASTY)
        assert await twin.call("skip", NASTY[0], 5) == 5
        assert await twin.call("expected", NASTY[0]) == 5
        assert await twin.call("expected", "a") is None
        assert await twin.call("skip", "a ", 9) == 9
        assert await twin.call("expected", "a") is None


# -- health -----------------------------------------------------------------------------------------------


async def test_health(url: str, is_async: bool) -> None:
    clock = ManualClock()
    async with Twin(url, is_async=is_async, clock=clock) as twin:
        health = await twin.call("health")
        assert (health.status, health.reasons, health.throughput) == ("healthy", (), 0)
        await twin.call("accept_all", None, [arrived(n) for n in range(10)])
        clock.advance(120)
        health = await twin.call("health")
        assert (health.pending, health.oldest, health.status) == (10, timedelta(minutes=2), "degraded")
        assert any("no processor" in reason for reason in health.reasons)
        strict = Thresholds(pending=(1, 10), oldest=(timedelta(1), timedelta(2)))
        assert (await twin.call("health", strict)).status == "critical"
        with Inbox(url, clock=clock) as inbox:
            processed(inbox, accept_all_but_odd, settings=QUICK)
        clock.advance(10)
        health = await twin.call("health")
        assert (health.pending, health.dead, health.status) == (0, 5, "degraded")
        assert health.reasons == ("5 dead letters",)
        assert (health.throughput, health.average) == (0.5, timedelta(minutes=2))


def test_judgement() -> None:
    limits = Thresholds(pending=(10, 20), dead=(5, 5), oldest=(timedelta(seconds=1), timedelta(seconds=2)))
    calm = judge(InboxStatus(9, 0, 4), Pace(0.9, 0, None, None, 1), limits)
    assert (calm.status, calm.reasons) == ("healthy", ())
    bad = judge(InboxStatus(10, 0, 5), Pace(1.5, 0, None, None, 0), limits)
    assert bad.status == "critical"
    assert bad.reasons[0] == "5 dead letters"
    assert len(bad.reasons) == 4
    for wrong in ({"pending": (5, 1)}, {"dead": (0, 1)}, {"oldest": (timedelta(0), timedelta(1))}):
        with pytest.raises(ConfigError, match="rising"):
            Thresholds(**wrong)


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
        assert not await twin.call("accept", None, events[0])  # the ledger outlives the message
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


async def test_dead_letters_are_kept_for_ever_by_default(url: str) -> None:
    clock = ManualClock()
    with Inbox(url, clock=clock) as inbox:
        filled(inbox)
        clock.advance(10 * 365 * 86400)
        assert inbox.purge() == 5
        assert len(seen_ids(url)) == 5
        assert inbox.count_dead() == 5


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
        assert [message.event.payload["n"] for message in inbox.messages("processed")] == [100]
        assert inbox.count_dead() == 5
        clock.advance(73 * 3600)
        for_ever = {"inbox.retention": None, "inbox.dead_retention": None, "inbox.seen_retention": None}
        processed(inbox, accept_all_but_odd, settings=QUICK.replaced(for_ever))
        assert len(inbox.messages("processed")) == 1, "a service that is told to keep everything"


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
        assert inbox.dead()[0].attempts == 1
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
