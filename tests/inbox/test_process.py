"""Processing: the effect and the mark are one transaction, failures are retried, and what cannot succeed dies."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from kit import Probe, one, rows
from kit.conditions import wait_until
from relaybox import AsyncInbox, ConfigError, Event, Inbox, Outbox, Reject, RetryLater, Settings
from relaybox.facts import Died, Retried, Strayed
from relaybox.types import Counts, DeliverySettings, Share

from .effects import QUICK, asay, effects, say, text_of, with_effects, writing
from .kit import PATIENCE, Twin, aprocessed, arrived, inbox_url, pending_ids, processed, serving

ONE_TRY = QUICK.replaced({"delivery.retry.attempts": 1})


@pytest.fixture
def home(url: str) -> str:
    return with_effects(url)


@pytest.fixture(params=[False, True], ids=["function", "coroutine"])
def coroutine(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture(params=[1, 7], ids=["single", "batch"])
def batch(request: pytest.FixtureRequest) -> int:
    return int(request.param)


async def run(inbox: Twin, handler: Any, **options: Any) -> Counts:
    options.setdefault("settings", QUICK)
    if isinstance(inbox.raw, AsyncInbox):
        return await aprocessed(inbox.raw, handler, **options)
    return await asyncio.to_thread(lambda: processed(inbox.raw, handler, **options))


def dead(url: str) -> list[tuple[Any, ...]]:
    return rows(url, "SELECT m.event_id, d.attempts, d.last_error FROM inbox_dead d JOIN inbox m ON m.seq = d.seq")


async def test_every_message_takes_effect_once(home: str, is_async: bool, coroutine: bool, batch: int) -> None:
    events = [arrived(n) for n in range(60)]
    async with Twin(home, is_async=is_async) as inbox:
        await inbox.call("accept_all", None, events)
        done = await run(inbox, writing(coroutine), batch=batch)
        assert (done.done, done.failed, done.dead) == (60, 0, 0)
        assert (await run(inbox, writing(coroutine), batch=batch)).done == 0
        assert not await inbox.call("accept", None, events[0])
    assert effects(home) == sorted(event.id for event in events)
    assert pending_ids(home) == []
    assert one(home, "SELECT count(*) FROM inbox_done WHERE attempts = 1 AND waited >= 0") == 60


async def test_no_more_than_asked_for(home: str, is_async: bool) -> None:
    async with Twin(home, is_async=is_async) as inbox:
        await inbox.call("accept_all", None, [arrived(n) for n in range(10)])
        assert (await run(inbox, writing(is_async), limit=4)).done == 4
        assert (await inbox.call("status")).pending == 6


async def test_a_failure_undoes_its_effect_and_comes_again(
    home: str, is_async: bool, coroutine: bool, batch: int
) -> None:
    probe = Probe()
    tries: Counter[str] = Counter()
    events = [arrived(n) for n in range(20)]
    bad = {events[3].id, events[4].id}

    def fail_twice(event: Event) -> None:
        tries[event.id] += 1
        if event.id in bad and tries[event.id] < 3:
            raise RuntimeError("not yet")

    async with Twin(home, is_async=is_async) as inbox:
        await inbox.call("accept_all", None, events)
        options: dict[str, Any] = {"settings": QUICK, "batch": batch, "observers": [probe]}
        if isinstance(inbox.raw, AsyncInbox):
            async with serving(inbox.raw, writing(coroutine, fail_twice), **options):
                await probe.until(lambda: len(effects(home)) == 20)
        else:
            with serving(inbox.raw, writing(coroutine, fail_twice), **options):
                await probe.until(lambda: len(effects(home)) == 20)
    assert effects(home) == sorted(event.id for event in events)
    assert all(tries[event_id] == 3 for event_id in bad)
    assert all(tries[event.id] == 1 for event in events if event.id not in bad)
    assert {fact.event_id for fact in probe.of(Retried)} == bad


async def test_what_fails_for_good_is_a_dead_letter(home: str, is_async: bool, coroutine: bool, batch: int) -> None:
    probe = Probe()
    events = [arrived(n) for n in range(6)]

    def refuse(event: Event) -> None:
        if event.payload["n"] == 2:
            raise Reject("never")
        if event.payload["n"] == 4:
            raise RuntimeError("this time")

    async with Twin(home, is_async=is_async) as inbox:
        await inbox.call("accept_all", None, events)
        done = await run(inbox, writing(coroutine, refuse), batch=batch, settings=ONE_TRY, observers=[probe])
    assert (done.done, done.dead) == (4, 2)
    assert len(effects(home)) == 4
    letters = {row[0]: row[1:] for row in dead(home)}
    assert letters == {events[2].id: (1, "Reject: never"), events[4].id: (1, "RuntimeError: this time")}
    assert len(probe.of(Died)) == 2
    assert pending_ids(home) == []


async def test_a_handler_chooses_its_delay(home: str, is_async: bool) -> None:
    def later(event: Event) -> None:
        raise RetryLater(timedelta(hours=1), "the bank is closed")

    async with Twin(home, is_async=is_async) as inbox:
        await inbox.call("accept", None, arrived(1))
        assert (await run(inbox, writing(is_async, later))).failed == 1
        assert (await run(inbox, writing(is_async, later))).failed == 0
    assert one(home, "SELECT last_error FROM inbox_pending") == "RetryLater: the bank is closed"
    assert one(home, "SELECT count(*) FROM inbox_pending WHERE owner IS NULL AND attempts = 1") == 1
    assert effects(home) == []


@pytest.mark.parametrize("server", ["postgres", "mariadb"])
async def test_a_handler_that_hangs_is_given_up_and_commits_nothing(server: str, tmp_path: Path) -> None:
    url = with_effects(inbox_url(server, tmp_path))
    entered, let_go, probe = threading.Event(), threading.Event(), Probe()

    def hang(event: Event, handle: Any) -> None:
        say(handle, text_of(event, "late"))
        if not entered.is_set():
            entered.set()
            let_go.wait(PATIENCE)

    with Inbox(url) as inbox:
        inbox.accept(None, arrived(1))
        settings = QUICK.replaced({"delivery.timeout": "200ms"})
        with serving(inbox, hang, settings=settings, observers=[probe]) as processor:
            await asyncio.to_thread(entered.wait, PATIENCE)
            await probe.until(lambda: processor.counts.done == 1)  # again: its connection is cut, its row is free
            let_go.set()
            await probe.until(lambda: probe.of(Strayed)[-1].threads == 0)
    assert len(effects(url)) == 1


@pytest.mark.parametrize("server", ["postgres", "mariadb"])
async def test_handlers_that_hang_for_ever_do_not_stop_the_inbox(
    server: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each keeps its thread and its connection; others take their place. The log shows where it hangs."""
    url = with_effects(inbox_url(server, tmp_path))
    let_go, probe = threading.Event(), Probe()

    def where_it_hangs() -> None:
        let_go.wait(PATIENCE)

    def handler(event: Event, handle: Any) -> None:
        if event.payload["n"] < 5:
            where_it_hangs()
        say(handle, text_of(event))

    settings = QUICK.replaced({"delivery.timeout": "1s", "delivery.workers": 2, "delivery.retry.attempts": 1})
    with Inbox(url) as inbox:
        inbox.accept_all(None, [arrived(n) for n in range(12)])
        with serving(inbox, handler, settings=settings, observers=[probe]) as processor:
            await probe.until(lambda: processor.counts.done == 7 and Strayed(5) in probe.of(Strayed))
            let_go.set()
            await probe.until(lambda: probe.of(Strayed)[-1].threads == 0)
    assert len(effects(url)) == 7
    assert "in thread relaybox-listener" in caplog.text
    assert "in where_it_hangs" in caplog.text


# -- handles ------------------------------------------------------------------------------------------


def sqlalchemy_url(url: str, *, is_async: bool) -> str:
    scheme, rest = url.split("://", 1)
    driver = {
        "postgresql": ("psycopg", "asyncpg"),
        "mysql": ("pymysql", "asyncmy"),
        "sqlite": ("pysqlite", "aiosqlite"),
    }[scheme.partition("+")[0]][is_async]
    return f"{scheme.partition('+')[0]}+{driver}://{rest}"


async def test_a_sessionmaker(home: str, batch: int) -> None:
    import sqlalchemy as sa
    from sqlalchemy.orm import Session, sessionmaker

    events = [arrived(n) for n in range(12)]
    seen: list[type] = []

    def refuse(event: Event) -> None:
        if event.payload["n"] == 5:
            raise Reject("never")

    def handle(event: Event, session: Any) -> None:
        seen.append(type(session))
        say(session, text_of(event))
        refuse(event)

    with Inbox(home) as inbox:
        inbox.accept_all(None, events)
        engine = sa.create_engine(sqlalchemy_url(home, is_async=False))
        processed(inbox, handle, session=sessionmaker(engine), settings=QUICK, batch=batch)
        engine.dispose()
    assert effects(home) == sorted(event.id for event in events if event.payload["n"] != 5)
    assert len(dead(home)) == 1
    assert all(issubclass(kind, Session) for kind in seen)


async def test_an_async_sessionmaker_and_an_engine(home: str, batch: int) -> None:
    from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

    engine = create_async_engine(sqlalchemy_url(home, is_async=True))
    events = [arrived(n) for n in range(12)]
    async with AsyncInbox(home) as inbox:
        await inbox.accept_all(None, events[:6])
        await aprocessed(inbox, writing(True), session=async_sessionmaker(engine), settings=QUICK, batch=batch)
        await inbox.accept_all(None, events[6:])
        await aprocessed(inbox, writing(True), session=engine, settings=QUICK, batch=batch)
    await engine.dispose()
    assert effects(home) == sorted(event.id for event in events)


async def test_a_session_must_fit(home: str) -> None:
    with Inbox(home) as inbox:
        inbox.accept(None, arrived(1))
        with pytest.raises(ConfigError, match="takes 3 arguments"):
            inbox.process(lambda event, handle, more: None)  # type: ignore[arg-type,misc]
        for wrong, value in (("batch", 0), ("share", 3)):
            with pytest.raises(ConfigError, match=f"expected {wrong}"):
                inbox.process(writing(False), **{wrong: value})
        with pytest.raises(ConfigError, match="no synchronous context manager"):
            processed(inbox, writing(False), session=object)
        assert inbox.events.list()[0].attempts == 0


async def test_a_session_of_the_wrong_kind_is_refused_at_the_start(home: str, coroutine: bool) -> None:
    """Not once for each message."""
    import sqlalchemy as sa
    from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
    from sqlalchemy.orm import sessionmaker

    sync, other = sa.create_engine(sqlalchemy_url(home, is_async=False)), sa.create_engine("sqlite:///:memory:")
    engine = create_async_engine(sqlalchemy_url(home, is_async=True))
    wrong: Any = sessionmaker(sync) if coroutine else async_sessionmaker(engine)
    async with AsyncInbox(home) as inbox:
        await inbox.accept(None, arrived(1))
        with pytest.raises(ConfigError, match=f"no {'a' if coroutine else ''}synchronous context manager"):
            await aprocessed(inbox, writing(coroutine), session=wrong)
        if not home.startswith("sqlite") and not coroutine:
            with pytest.raises(ConfigError, match="the session gave a sqlite connection"):
                await aprocessed(inbox, writing(coroutine), session=other)
        assert (await inbox.events.list())[0].attempts == 0
    sync.dispose()
    other.dispose()
    await engine.dispose()


def test_closing_stops_all_services_together(tmp_path: Path) -> None:
    """None begins anything while another is waited for."""
    keys = {share: next(key for key in map(str, range(99)) if Share(share, 2).has(key)) for share in (0, 1)}
    began, both_stop, seen = threading.Event(), threading.Event(), list[str]()

    def late(event: Event) -> None:
        began.set()
        seen.append("first" if both_stop.wait(PATIENCE) else "alone")

    def never(event: Event) -> None:
        seen.append("begun while the other was waited for")

    patient = QUICK.replaced({"delivery.stop_timeout": "1m"})
    inbox = Inbox(f"sqlite:///{tmp_path}/inbox.db", settings=patient)
    inbox.migrate()
    idle = inbox.process(never, share=Share(0, 2)).start()
    inbox.process(late, share=Share(1, 2)).start()
    inbox.accept(None, Event("T", 1, key=keys[1]))
    assert began.wait(PATIENCE)
    closing = threading.Thread(target=inbox.close)
    closing.start()
    wait_until(lambda: idle.health().reasons == ("not running",), "the stop of the idle service", patience=PATIENCE / 4)
    both_stop.set()
    closing.join(PATIENCE)
    assert seen == ["first"]


# -- on to the outbox ---------------------------------------------------------------------------------


async def test_inbox_to_outbox_in_one_transaction(home: str, coroutine: bool) -> None:
    """What a handler writes to an outbox is there exactly when its effect is."""
    from relaybox import AsyncOutbox

    with Outbox(home) as box:
        box.migrate()
    events = [arrived(n) for n in range(10)]
    tries: Counter[str] = Counter()

    def once(event: Event) -> None:
        tries[event.id] += 1
        if event.payload["n"] % 3 == 0 and tries[event.id] == 1:
            raise RuntimeError("after the writes")

    async with AsyncInbox(home) as inbox, AsyncOutbox(home) as aoutbox:
        outbox = Outbox(home)

        def handle(event: Event, connection: Any) -> None:
            say(connection, text_of(event))
            outbox.write(connection, Event("Billed", event.payload))
            once(event)

        async def ahandle(event: Event, connection: Any) -> None:
            await asay(connection, text_of(event))
            await aoutbox.write(connection, Event("Billed", event.payload))
            once(event)

        await inbox.accept_all(None, events)
        probe = Probe()
        handler: Any = ahandle if coroutine else handle
        async with serving(inbox, handler, settings=QUICK, observers=[probe]) as processor:
            await probe.until(lambda: processor.counts.done == 10)
        outbox.close()
    assert effects(home) == sorted(event.id for event in events)
    assert one(home, "SELECT count(*) FROM outbox_event") == 10


# -- many ---------------------------------------------------------------------------------------------


async def test_ten_workers_none_twice(engine: str, home: str) -> None:
    """The effect has no unique key: a message that ran twice would show."""
    events = [arrived(n) for n in range(400)]
    with Inbox(home) as inbox:
        inbox.accept_all(None, events)

    def work(_: int) -> int:
        with Inbox(home) as inbox:
            return processed(
                inbox, writing(False), settings=Settings(delivery=DeliverySettings(batch=5, cold_queue=10))
            ).done

    with ThreadPoolExecutor(10) as threads:
        done = await asyncio.to_thread(lambda: list(threads.map(work, range(10))))
    with Inbox(home) as inbox:  # what a process gave back when it left
        processed(inbox, writing(False), settings=QUICK)
    assert sum(count > 0 for count in done) > 1
    assert effects(home) == sorted(event.id for event in events)
    assert pending_ids(home) == []
