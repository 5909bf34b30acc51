"""No tenant has much more waiting than it may: writes beyond its cap are refused, or the events are marked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from types import MappingProxyType
from typing import Any

import pytest

from kit import Probe, rows
from relaybox import AsyncOutbox, Event, Outbox, Settings, Topic
from relaybox.errors import ConfigError, SchemaMissing, StoreBusy, TenantFull
from relaybox.facts import OverCap, TenantsWaiting
from relaybox.testing import ManualClock
from relaybox.types import TenantSettings
from relaybox.values import ALL

CAP = 20


def settings(changes: Mapping[str, Any] = MappingProxyType({})) -> Settings:
    return Settings(tenants=TenantSettings(max_waiting=CAP)).replaced(changes)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def box(url: str, probe: Probe, clock: ManualClock) -> Iterator[Outbox]:
    with closing(Outbox(url, settings=settings(), observers=[probe], clock=clock)) as made:
        made.migrate()
        yield made


def write(box: Outbox, tenant: str | None, count: int) -> None:
    with box.transaction() as tx:
        box.write_all(tx, [Event("Happened", {}, tenant=tenant) for _ in range(count)])


def test_a_write_beyond_the_cap_is_refused(box: Outbox, url: str, probe: Probe, clock: ManualClock) -> None:
    write(box, "acme", 20)
    with box.transaction() as tx:
        with pytest.raises(TenantFull, match=r"20 event\(s\) wait for tenant 'acme' and 1 would be added") as refused:
            box.write(tx, Event("Happened", {}, tenant="acme"))
        tx.connection.cursor().execute("INSERT INTO business VALUES (1)")  # the transaction goes on
    assert (refused.value.tenant, refused.value.cap, refused.value.waiting) == ("acme", 20, 20)
    assert rows(url, "SELECT n FROM business") == [(1,)]
    assert box.status().due == 20
    write(box, "other", 1)
    write(box, None, 30)  # what is nobody's has no cap
    assert probe.of(OverCap) == [OverCap(1, "acme", refused=True)]


def test_nothing_of_a_refused_write_is_stored(box: Outbox) -> None:
    with box.transaction() as tx, pytest.raises(TenantFull, match=r"0 event.* 21 would be added"):
        box.write_all(tx, [Event("H", {}, tenant="other"), *(Event("H", {}, tenant="acme") for _ in range(21))])
    assert box.status().events == 0


def test_there_is_room_again_once_events_are_delivered(box: Outbox, clock: ManualClock) -> None:
    write(box, "acme", 20)
    with box.deliver(lambda event: None) as service:
        service.drain()
    with pytest.raises(TenantFull):  # what was counted is trusted for a moment
        write(box, "acme", 1)
    clock.advance(seconds=2)
    write(box, "acme", 20)


def test_what_others_write_is_seen_a_moment_later(box: Outbox, url: str, probe: Probe, clock: ManualClock) -> None:
    write(box, "acme", 5)
    with closing(Outbox(url)) as careless:
        write(careless, "acme", 1_000)
    write(box, "acme", 15)
    clock.advance(seconds=2)
    with pytest.raises(TenantFull, match="more than 20 event"):
        write(box, "acme", 1)
    assert [fact.full for fact in probe.of(TenantsWaiting)] == [0, 1]
    assert probe.of(TenantsWaiting)[-1].most == 21


def test_there_is_a_warning_once_a_minute(box: Outbox, clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        with pytest.raises(TenantFull):
            write(box, "acme", 21)
    clock.advance(minutes=2)
    with pytest.raises(TenantFull):
        write(box, "acme", 21)
    assert [record.getMessage() for record in caplog.records if "acme" in record.getMessage()] == [
        "events of tenant 'acme' are refused: more waits for it than 20 (tenants.max_waiting)"
    ] * 2


def test_it_is_not_counted_at_each_write(box: Outbox, probe: Probe) -> None:
    for _ in range(10):
        write(box, "acme", 2)
    assert len(probe.of(TenantsWaiting)) == 1
    with pytest.raises(TenantFull):
        write(box, "acme", 1)


def test_a_look_at_one_of_many_tenants_does_not_go_through_all(box: Outbox, probe: Probe, clock: ManualClock) -> None:
    for number in range(30):
        write(box, f"tenant {number}", 1)
    assert len(probe.of(TenantsWaiting)) == 1  # one gauge for all that are looked at in a moment
    clock.advance(seconds=2)
    write(box, "acme", 3)
    assert [fact.most for fact in probe.of(TenantsWaiting)] == [0, 0]


async def test_events_beyond_it_can_be_marked(url: str, probe: Probe) -> None:
    async with AsyncOutbox(url, settings=settings({"tenants.over": "mark"}), observers=[probe]) as box:
        await box.migrate()
        for _ in range(2):
            async with box.transaction() as tx:
                await box.write_all(tx, [Event("Happened", {}, tenant=name) for name in ["acme"] * 15 + ["other"]])
        events = await box.events.list(limit=100)
    marked = [stored.event for stored in events if "relaybox-over-cap" in stored.event.headers]
    assert len(events) == 32
    assert [(event.tenant, event.headers["relaybox-over-cap"]) for event in marked] == [("acme", "20")] * 15
    assert probe.of(OverCap) == [OverCap(15, "acme", refused=False)]


async def test_the_mark_reaches_listeners_of_the_same_process(url: str) -> None:
    seen: list[str | None] = []

    async def listen(event: Event) -> None:
        seen.append(event.headers.get("relaybox-over-cap"))

    changes = {"tenants.over": "mark", "tenants.max_waiting": 1}
    async with AsyncOutbox(url, settings=settings(changes)) as box:
        await box.migrate()
        async with box.deliver(listen) as service:
            async with box.transaction() as tx:
                await box.write_all(tx, [Event("Happened", {}, tenant="acme") for _ in range(2)])
            await service.drain()
    assert seen == ["1", "1"]


def test_a_cap_needs_the_index(url: str) -> None:
    with closing(Outbox(url, settings=settings())) as box:
        with pytest.raises(SchemaMissing, match="migrate --fair tenant"):
            write(box, "acme", 1)
        with pytest.raises(SchemaMissing, match="migrate --fair tenant"):
            box.verify()
        box.migrate()
        write(box, "acme", 1)


@pytest.mark.parametrize("engine", ["postgres"])
def test_batches_are_counted(box: Outbox, clock: ManualClock, url: str) -> None:
    with closing(Outbox(url)) as careless:
        write(careless, "acme", 1_000)
    assert rows(url, "SELECT count(*) FROM outbox_event_pending") == [(0,)]
    with pytest.raises(TenantFull, match="more than 20 event"):
        write(box, "acme", 1)


# -- queues (PostgreSQL) ----------------------------------------------------------------------------------


def job(tenant: str | None = "acme", topic: str | None = "jobs") -> Event:
    return Event("Happened", {}, tenant=tenant, topic=topic)


def waiting(box: Outbox, queue: str) -> int:
    return len(box.topics.queue(queue).events.list(state="open"))


@pytest.mark.parametrize("engine", ["postgres"])
def test_a_queue_has_a_cap_of_its_own(box: Outbox, clock: ManualClock, probe: Probe) -> None:
    for name in ("jobs", "mails"):
        box.topics.configure(Topic.queue(name))
    jobs = box.topics.producer("jobs")
    with box.transaction() as tx:
        for _ in range(20):
            jobs.send(tx, {}, tenant="acme")
    write(box, "acme", 20)
    with box.transaction() as tx:
        with pytest.raises(TenantFull, match=r"20 event\(s\) of queue 'jobs' wait for tenant 'acme'") as refused:
            jobs.send(tx, {}, tenant="acme")
        jobs.send(tx, {}, tenant="other")  # the transaction goes on
        box.write_all(tx, [job(topic="mails") for _ in range(20)])
    assert (refused.value.tenant, refused.value.topic, refused.value.waiting) == ("acme", "jobs", 20)
    assert (waiting(box, "jobs"), waiting(box, "mails"), box.status().due) == (21, 20, 20)
    with box.topics.queue("jobs").deliver(lambda event: None) as service:
        service.drain()
    clock.advance(seconds=2)
    write_to(box, [job() for _ in range(20)])
    with pytest.raises(TenantFull):
        write_to(box, [job()])
    assert [fact.tenant for fact in probe.of(OverCap)] == ["acme", "acme"]


def write_to(box: Outbox, events: list[Event]) -> None:
    with box.transaction() as tx:
        box.write_all(tx, events)


@pytest.mark.parametrize("engine", ["postgres"])
def test_nothing_is_stored_if_one_of_several_places_is_full(box: Outbox) -> None:
    box.topics.configure(Topic.queue("jobs"))
    box.topics.configure(Topic.pub_sub("orders"))
    write_to(box, [job() for _ in range(20)])
    with box.transaction() as tx, pytest.raises(TenantFull, match="queue 'jobs'"):
        box.write_all(tx, [job(topic=None), job(topic="orders"), job()])
    assert (box.status().events, waiting(box, "jobs")) == (0, 20)
    write_to(box, [job(topic=None) for _ in range(20)])  # what was refused is not counted
    with box.transaction() as tx, pytest.raises(TenantFull, match=r"event\(s\) wait for tenant"):
        box.write_all(tx, [job("other"), job(topic=None)])
    assert waiting(box, "jobs") == 20


@pytest.mark.parametrize("engine", ["postgres"])
def test_batches_of_a_queue_are_counted(box: Outbox, url: str) -> None:
    box.topics.configure(Topic.queue("jobs"))
    with closing(Outbox(url)) as careless:
        write_to(careless, [job() for _ in range(1_000)])
    with pytest.raises(TenantFull, match=r"more than 20 event\(s\) of queue 'jobs'"):
        write_to(box, [job()])


@pytest.mark.parametrize("engine", ["postgres"])
async def test_events_of_a_queue_can_be_marked(url: str) -> None:
    seen: list[tuple[str | None, bool]] = []

    async def listen(event: Event) -> None:
        seen.append((event.tenant, "relaybox-over-cap" in event.headers))

    async with AsyncOutbox(url, settings=settings({"tenants.over": "mark"})) as box:
        await box.migrate()
        await box.topics.configure(Topic.queue("jobs"))
        async with box.transaction() as tx:
            await box.write_all(tx, [*(job() for _ in range(21)), job("other"), job(topic=None)])
        async with box.topics.queue("jobs").deliver(listen) as service:
            await service.drain()
        assert [stored.event.headers for stored in await box.events.list()] == [{}]
    assert sorted(seen) == [("acme", True)] * 21 + [("other", False)]


@pytest.mark.parametrize("engine", ["postgres"])
def test_a_queue_that_is_made_later_has_the_index(box: Outbox, url: str) -> None:
    with closing(Outbox(url)) as careless:
        careless.topics.configure(Topic.queue("old"))
    with pytest.raises(SchemaMissing, match="migrate --fair tenant"):
        box.verify()
    with pytest.raises(SchemaMissing, match="migrate --fair tenant"):
        write_to(box, [job(topic="old")])
    box.migrate()
    box.topics.configure(Topic.queue("new"))
    box.verify()
    write_to(box, [job(topic="old"), job(topic="new")])


@pytest.mark.parametrize("engine", ["postgres"])
def test_a_queue_that_was_dropped_and_made_again_is_counted(box: Outbox, clock: ManualClock) -> None:
    box.topics.configure(Topic.queue("jobs"))
    write_to(box, [job()])
    box.topics.queue("jobs").events.discard(ALL)
    box.topics.drop("jobs")
    box.topics.configure(Topic.queue("jobs"))
    clock.advance(seconds=2)
    with pytest.raises(StoreBusy, match="topic 'jobs' was dropped or moved; repeat the transaction"):
        write_to(box, [job()])
    write_to(box, [job() for _ in range(20)])
    with pytest.raises(TenantFull):
        write_to(box, [job()])


@pytest.mark.parametrize("engine", ["postgres"])
def test_a_log_has_no_caps(box: Outbox) -> None:
    box.topics.configure(Topic.pub_sub("orders"))
    box.topics.configure(Topic.queue("clicks", tracking="offset"))
    logged = [job(topic=name) for name in ("orders", "clicks") for _ in range(30)]
    write_to(box, [*logged, *(job(topic=None) for _ in range(20))])
    with pytest.raises(TenantFull):
        write_to(box, [*logged, job(topic=None)])


@pytest.mark.parametrize("engine", ["postgres"])
def test_what_goes_into_the_outbox_for_an_unknown_topic_is_counted(url: str) -> None:
    with closing(Outbox(url, settings=settings({"outbox.unknown_topics": "outbox"}))) as box:
        box.migrate()
        write_to(box, [job(topic="unknown") for _ in range(20)])
        with pytest.raises(TenantFull):
            write_to(box, [job(topic="unknown")])


@pytest.mark.parametrize("engine", ["sqlite"])
def test_what_cannot_be_capped_is_refused_at_once(url: str) -> None:
    with pytest.raises(ConfigError, match="cdc=True nothing waits"):
        Outbox(url, cdc=True, settings=settings())
    with pytest.raises(ConfigError, match=r"tenants\.max_waiting or outbox\.write_function"):
        Outbox(url, settings=settings({"outbox.write_function": True}))
    with pytest.raises(ConfigError, match=r"tenants\.max_waiting to be a positive int"):
        settings({"tenants.max_waiting": 0})
    with pytest.raises(ConfigError, match=r"tenants\.over to be refuse or mark"):
        settings({"tenants.over": "drop"})
