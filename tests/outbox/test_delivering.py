"""The four ways as whole processes: start, deliver, stop; and what a bad start leaves behind."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from typing import Any

import pytest

from kit import QUICK, Box, Probe, happened, make_box, one, recording, rows, stored, waiting
from relaybox import ALL, AsyncOutbox, ConfigError, Event, Listeners, Outbox, Reject, Settings, Where
from relaybox.errors import Closed, ConnectionLost, SchemaMissing, SchemaTooNew
from relaybox.facts import Delivered, Died, HotDropped, Purged, Retried
from relaybox.spi import Interceptor
from relaybox.types import DeliverySettings, OutboxSettings

KINDS = ("alone", "delivery", "ordered")
BOTH = pytest.mark.parametrize("is_async", [True, False], ids=["async", "sync"])


async def write(box: Box, *events: Event) -> list[str]:
    if box.is_async:
        async with box.raw.transaction() as tx:
            await box.raw.write_all(tx, events)
    else:
        with box.raw.transaction() as tx:
            box.raw.write_all(tx, events)
    return [event.id for event in events]


@BOTH
@pytest.mark.parametrize("way", KINDS)
async def test_delivers_retries_and_buries(url: str, probe: Probe, way: str, is_async: bool) -> None:
    listeners = recording(probe)

    @listeners.on("Flaky")
    async def flaky(event: Event, delivery: Any) -> None:
        if delivery.attempts < 3:
            raise ValueError("not yet")
        probe.deliver(event, delivery)

    @listeners.on("Sync")
    def plain(event: Event, delivery: Any) -> None:
        assert threading.current_thread().name.startswith("relaybox-listener")
        probe.deliver(event, delivery)

    @listeners.on("Hopeless")
    async def hopeless(event: Event) -> None:
        raise Reject("no use")

    async with make_box(way, url, probe, is_async=is_async, listeners=listeners) as box:
        good = await write(box, *(happened(n, key=f"k{n}") for n in range(20)))
        more = await write(box, Event("Flaky", None, key="f"), Event("Sync", None, key="s"))
        dead = await write(box, Event("Hopeless", None, key="h"), Event("Unheard", None, key="u"))
        await probe.until(probe.has(*good, *more))
        await probe.until(lambda: len(probe.of(Died)) == 2)
        assert await box.call("dead.count") == 2
        assert {letter.event.id for letter in await box.call("dead.list")} == set(dead)
        assert await box.call("dead.count", Where(type="Unheard")) == 1
        assert "no listener" in (await box.call("dead.get", dead[1])).error
        status = await box.call("status")
        assert status.dead == 2
    assert sorted(probe.ids) == sorted(good + more)
    assert len(probe.of(Retried)) == 2
    assert sum(fact.count for fact in probe.of(Delivered)) == 22
    assert waiting(url) == 0
    assert one(url, "SELECT count(*) FROM outbox_event_instance") == 0


@BOTH
async def test_replay_and_purge(url: str, probe: Probe, is_async: bool) -> None:
    allowed: list[bool] = []
    listeners = Listeners()

    async def moody(event: Event, delivery: Any) -> None:
        if not allowed:
            raise Reject("not today")
        probe.deliver(event, delivery)

    listeners.on("Happened")(moody)
    async with make_box("delivery", url, probe, is_async=is_async, listeners=listeners) as box:
        ids = await write(box, *(happened(n) for n in range(5)))
        await probe.until(lambda: len(probe.of(Died)) == 5)
        assert await box.call("purge", done=timedelta(0)) == 0, "nothing dead is purged unless asked"
        allowed.append(True)
        assert await box.call("dead.replay", ids[0])
        assert not await box.call("dead.replay", "no such event")
        await probe.until(probe.has(ids[0]))
        assert await box.call("dead.replay", ALL) == 4
        await probe.until(probe.has(*ids))
        await probe.until(lambda: waiting(url) == 0)
        assert await box.call("purge", done=timedelta(hours=1)) == 0
        assert await box.call("purge", done=timedelta(0)) == 5
    assert stored(url) == 0
    assert sum(fact.count for fact in probe.of(Purged)) == 5


@BOTH
async def test_an_outbox_for_cdc_writes_and_purges_by_age(url: str, probe: Probe, is_async: bool) -> None:
    settings = Settings(outbox=OutboxSettings(retention="1ms", purge_interval="20ms"))
    plain = make_box("cdc", url, probe, is_async=is_async)
    async with plain:
        await write(plain, *(happened(n) for n in range(3)))
    assert stored(url) == 3
    assert waiting(url) == 0, "nobody delivers: there is nothing pending"
    async with make_box("cdc", url, probe, is_async=is_async, settings=settings) as box:
        await write(box, happened(4))
        purger = box.raw.purger()
        await (purger.start() if is_async else asyncio.to_thread(purger.start))
        await probe.until(lambda: sum(fact.count for fact in probe.of(Purged)) == 4)
    assert stored(url) == 0


async def test_hot_and_cold(url: str, probe: Probe) -> None:
    """A commit we see goes to the hot queue; a full hot queue gives the rest to the poller; nothing twice."""
    slow = Settings(delivery=DeliverySettings(hot_queue=5, workers=1, instance_ttl="1s", lease="3s"))
    async with make_box("delivery", url, probe, settings=slow) as box:
        ids = await write(box, *(happened(n) for n in range(40)))
        await probe.until(probe.has(*ids))
    assert sorted(probe.ids) == sorted(ids)
    assert {seen.source for seen in probe.seen} == {"HOT", "COLD"}
    assert {seen.attempts for seen in probe.seen} == {1}, "a refused event was not tried"
    assert sum(fact.count for fact in probe.of(HotDropped)) == 35


async def test_delayed_events_wait_for_their_time(url: str, probe: Probe) -> None:
    from datetime import UTC, datetime

    soon = datetime.now(UTC) + timedelta(milliseconds=300)
    later = datetime.now(UTC) + timedelta(hours=1)
    async with make_box("alone", url, probe) as box:
        await write(box, happened(1, deliver_at=later))
        await write(box, happened(2, deliver_at=soon), happened(3))
        await probe.until(probe.wrote(2))
        assert datetime.now(UTC) >= soon
    assert {seen.event.payload["n"] for seen in probe.seen} == {2, 3}  # a slow machine writes the third when 2 is due
    assert waiting(url) == 1


async def test_interceptors_surround_the_listener(url: str, probe: Probe) -> None:
    calls: list[str] = []

    async def before(delivery: Any) -> None:
        calls.append("before")

    def after(delivery: Any, error: Exception | None) -> None:
        calls.append(f"after {type(error).__name__}")
        raise RuntimeError("changes nothing")

    class Both(Interceptor):
        def before_dispatch(self, delivery: Any) -> None:
            calls.append("both")
            if delivery.attempts == 1:
                raise ValueError("first try refused")

        def after_dispatch(self, delivery: Any, error: Exception | None) -> None:
            calls.append("unboth")

    interceptors = [Interceptor.before(before), Both(), Interceptor.after(after)]
    listeners = recording(probe)
    listeners.interceptors = tuple(interceptors)
    async with make_box("alone", url, probe, listeners=listeners) as box:
        await write(box, happened())
        await probe.until(probe.wrote(1))
    assert calls == ["before", "both", "unboth", "before", "both", "after NoneType", "unboth"]


# -- starts that fail, stops that repeat ------------------------------------------------------------------


def _threads() -> set[threading.Thread]:
    """But for the one that looks after time limits: all outboxes of a process share it, and it comes and goes."""
    return {
        thread
        for thread in threading.enumerate()
        if thread.name.startswith("relaybox") and thread.name != "relaybox-limits"
    }


def _ended(before: set[threading.Thread]) -> bool:
    """Those of SQLite connections end by themselves a moment after they are told."""
    for thread in _threads() - before:
        thread.join(2)
    return _threads() <= before


@BOTH
@pytest.mark.parametrize("way", KINDS)
async def test_a_schema_that_is_missing(bare_url: str, probe: Probe, way: str, is_async: bool) -> None:
    before, tasks = _threads(), len(asyncio.all_tasks())
    box = make_box(way, bare_url, probe, is_async=is_async)
    with pytest.raises(SchemaMissing, match="migrate"):
        await box.__aenter__()
    assert _ended(before)
    assert len(asyncio.all_tasks()) == tasks
    await box.close()
    with pytest.raises(Closed):
        await box.__aenter__()


@BOTH
async def test_a_schema_that_is_newer(url: str, probe: Probe, is_async: bool) -> None:
    rows(
        url,
        "INSERT INTO outbox_event_migration (version, name, checksum, applied_at) "
        "SELECT 999, 'from_the_future', 'x', applied_at FROM outbox_event_migration WHERE version = 1",
    )
    box = make_box("delivery", url, probe, is_async=is_async)
    with pytest.raises(SchemaTooNew, match="upgrade the package"):
        await box.__aenter__()
    plain = make_box("plain", url, probe, is_async=is_async)
    with pytest.raises(SchemaTooNew, match="999"):
        await plain.call("migrate")
    with pytest.raises(SchemaTooNew):
        await plain.call("verify")
    await plain.close()


@BOTH
async def test_a_database_that_does_not_answer(probe: Probe, is_async: bool) -> None:
    before, tasks = _threads(), len(asyncio.all_tasks())
    box = make_box("delivery", "postgresql://nobody:secret@127.0.0.1:1/none", probe, is_async=is_async)
    with pytest.raises(ConnectionLost) as caught:
        await box.__aenter__()
    assert "secret" not in str(caught.value)
    assert _ended(before)
    assert len(asyncio.all_tasks()) == tasks


@BOTH
async def test_close_is_idempotent_and_final(url: str, probe: Probe, is_async: bool) -> None:
    before = _threads()
    box = make_box("delivery", url, probe, is_async=is_async)
    async with box:
        await write(box, happened())
        await probe.until(probe.wrote(1))
        await box.close()
        await box.close()
    with pytest.raises(Closed):
        await write(box, happened())
    if not url.startswith("sqlite"):  # its connection threads end by themselves a moment later
        assert _ended(before)
    assert stored(url) == 1


async def test_two_outboxes_on_two_databases_in_one_process(tmp_path: Any, pg: str) -> None:
    from kit import make_database

    first, second = Probe(), Probe()
    other = make_database("sqlite", tmp_path)
    async with make_box("delivery", pg, first) as one_box, make_box("delivery", other, second) as two_box:
        mine = await write(one_box, happened(1))
        theirs = await write(two_box, happened(2))
        await first.until(first.has(*mine))
        await second.until(second.has(*theirs))
    assert (first.ids, second.ids) == (mine, theirs)


def test_migrate_is_safe_from_many_threads(bare_url: str) -> None:
    boxes = [Outbox(bare_url) for _ in range(6)]
    planned = len(boxes[0].migrate(dry_run=True))
    results: list[Any] = []

    def migrate(box: Outbox) -> None:
        try:
            results.append(len(box.migrate()))
        except Exception as error:
            results.append(error)

    threads = [threading.Thread(target=migrate, args=(box,)) for box in boxes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results, key=str) == [0, 0, 0, 0, 0, planned]
    for box in boxes:
        box.verify()
        box.close()


def test_listeners_must_be_listeners_or_a_function(pg: str) -> None:
    with pytest.raises(ConfigError, match="expected Listeners or a function of an event, got dict"):
        Outbox(pg).deliver({"Happened": print})  # type: ignore[arg-type]


async def test_two_services_of_one_outbox_do_not_deliver_the_same_events(pg: str) -> None:
    async with AsyncOutbox(pg, settings=QUICK) as box, box.deliver(Listeners()):
        with pytest.raises(ConfigError, match="this outbox delivers already"):
            await box.deliver(Listeners()).start()


@BOTH
async def test_a_service_has_one_life(url: str, probe: Probe, is_async: bool) -> None:
    box = make_box("plain", url, probe, is_async=is_async)
    async with box:
        service = box.raw.deliver(recording(probe))

        async def call(name: str) -> Any:
            method = getattr(service, name)
            return await (method() if is_async else asyncio.to_thread(method))

        assert service.health().reasons == ("not running",)
        with pytest.raises(Closed, match="delivery of outbox_event is not running"):
            await call("drain")
        await call("start")
        ids = await write(box, *(happened(n) for n in range(10)))
        assert (await call("drain")).done == 10
        assert sorted(probe.ids) == sorted(ids)
        assert service.health().level == "ok"
        with pytest.raises(Closed, match="started already"):
            await call("start")
        await call("stop")
        await call("stop")
        with pytest.raises(Closed, match="make a new one"):
            await call("start")
        await write(box, happened(11))
        again = box.raw.deliver(recording(probe))
        assert (await (again.once() if is_async else asyncio.to_thread(again.once))).done == 1
    assert waiting(url) == 0


def test_alone_and_ordered_do_not_go_together(pg: str) -> None:
    with pytest.raises(ConfigError, match="expected ordered or alone, got both"):
        Outbox(pg).deliver(Listeners(), ordered=True, alone=True)
