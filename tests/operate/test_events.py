"""Events and dead letters for operators: the same for every product, engine and twin."""

from __future__ import annotations

import tracemalloc
from collections.abc import AsyncIterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from relaybox import ALL, ConfigError, Event, Outbox, Settings, Where
from relaybox.facts import Administered, Replayed
from relaybox.store.events import ROOM
from relaybox.types import AdminSettings, DeadLetter, Progress, StoredEvent

from .conftest import database
from .group_kit import GROUP_DESKS
from .kit import DESKS, Desk

ALL_DESKS = DESKS | GROUP_DESKS
PLACES = [
    (product, twin, engine)
    for product, made in ALL_DESKS.items()
    for twin in ("sync", "async")
    for engine in made.engines
]


@pytest_asyncio.fixture
async def desk(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Desk]:
    product, twin, engine = request.param
    made = ALL_DESKS[product](database(engine, tmp_path), twin == "async")
    yield made
    await made.close()


@pytest.fixture
def rows(desk: Desk) -> Desk:
    """Each event has a state of its own, that can be changed."""
    return desk


@pytest.fixture
def log(desk: Desk) -> Desk:
    """A group has a place in a log, and beside it what it parked."""
    return desk


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "desk" in metafunc.fixturenames:
        wanted = {"rows": False, "log": True}
        kinds = [wanted[name] for name in metafunc.fixturenames if name in wanted] or [False, True]
        fitting = [place for place in PLACES if ALL_DESKS[place[0]].log in kinds]
        metafunc.parametrize("desk", fitting, ids="-".join, indirect=True)


def ids(found: list[Any]) -> list[str]:
    return [one.event.id for one in found]


async def test_dead_letters_are_found_by_each_condition(desk: Desk) -> None:
    desk.kill(
        *(Event("A", n, key=f"k{n}", tenant="t", aggregate_type="Order") for n in range(3)), error="OSError: disk"
    )
    desk.kill(other := Event("B", 1), error="ValueError: 100%_full")
    desk.write(Event("A", 9))
    letters = await desk.call("dead.list")
    assert [letter.event.type for letter in letters] == ["A", "A", "A", "B"]
    assert all(isinstance(letter, DeadLetter) and letter.attempts == 1 for letter in letters)
    assert letters[3].error == "ValueError: 100%_full"
    first = letters[0].event.id
    now = datetime.now(UTC)
    for where, count in (
        (ALL, 4),
        (Where(type="A"), 3),
        (Where(aggregate_type="Order"), 3),
        (Where(key="k1"), 1),
        (Where(tenant="t"), 3),
        (Where(error="Error: disk"), 3),
        (Where(error="%_"), 1),
        (Where(error="error"), 0),
        (Where(ids=[first, other.id, "nobody"]), 2),
        (Where(ids=[first, other.id], type="B"), 1),
        (Where(ids=["nobody"]), 0),
        (Where(ids=[]), 0),
        (Where(since="1h"), 4),
        (Where(until="1h"), 0),
        (Where(since=now - timedelta(hours=1), until=now + timedelta(hours=1)), 4),
        (Where(since=now + timedelta(hours=1)), 0),
    ):
        assert await desk.call("dead.count", where) == count, where
        assert len(await desk.call("dead.list", where)) == count, where
        assert await desk.call("dead.replay", where, dry_run=True) == count, where
    assert (await desk.call("dead.get", other.id)).event == other
    assert await desk.call("dead.get", "nobody") is None
    assert await desk.call("audit") == []


async def test_lists_page(desk: Desk) -> None:
    desk.kill(*(Event("A", n) for n in range(5)))
    desk.finish(*(Event("A", n) for n in range(5)))
    every = ids(await desk.call("events.list"))
    assert len(every) == 10
    paged: list[str] = []
    after = 0
    while page := await desk.call("events.list", after=after, limit=3):
        paged += ids(page)
        after = page[-1].event.seq
    assert paged == every
    for limit in (0, -1):
        with pytest.raises(ConfigError, match="limit"):
            await desk.call("dead.list", limit=limit)


async def test_events_of_every_state(desk: Desk) -> None:
    events = {name: Event("A", name) for name in ("retry", "dead", "done", "claimed", "waiting")}
    desk.kill(events["dead"])
    desk.finish(events["done"])
    desk.write(events["claimed"])
    assert desk.claim() == [events["claimed"].id]
    desk.fail(events["retry"])
    desk.write(events["waiting"])
    found = {one.event.id: one for one in await desk.call("events.list")}
    assert {name: found[event.id].state for name, event in events.items()} == {name: name for name in events}
    assert all(isinstance(one, StoredEvent) for one in found.values())
    assert found[events["retry"].id].error == "ValueError: no"
    assert found[events["retry"].id].due is not None
    assert found[events["claimed"].id].due is None
    assert found[events["dead"].id].ended_at is not None
    for state, names in (("open", {"claimed", "retry", "waiting"}), ("dead", {"dead"}), ("done", {"done"})):
        assert set(ids(await desk.call("events.list", state=state))) == {events[name].id for name in names}
    assert await desk.call("events.count", Where(type="A")) == 5
    assert await desk.call("events.count", Where(since="1h", error="ValueError")) == 2
    assert (await desk.call("events.get", events["done"].id)).state == "done"
    with pytest.raises(ConfigError, match="expected state to be open, dead, done or None, got 'new'"):
        await desk.call("events.list", state="new")


async def test_replay_by_id_and_by_condition(desk: Desk) -> None:
    a, b, c = (Event(name, 1, key="k") for name in "abc")
    desk.kill(a, b, c)
    assert await desk.call("dead.replay", a.id, reason="repaired", actor="ann") == 1
    assert await desk.call("dead.replay", a.id) == 0
    assert await desk.call("dead.replay", [b.id, "nobody", b.id]) == 1
    assert await desk.call("dead.replay", Where(type="b")) == 0
    assert await desk.call("dead.replay", ALL) == 1
    assert ids(await desk.call("dead.list")) == []
    assert set(ids(await desk.call("events.list", state="open"))) == {a.id, b.id, c.id}
    told = [fact for fact in desk.facts if isinstance(fact, Administered)]
    assert [(fact.verb, fact.changed) for fact in told] == [("replay", 1)] * 3
    assert (told[0].actor, told[0].reason) == ("ann", "repaired")
    assert [fact for fact in desk.facts if isinstance(fact, Replayed)] == [Replayed(1)] * 3
    entries = await desk.call("audit")
    assert [(entry.verb, entry.changed, entry.reason) for entry in entries] == [
        ("replay", 1, ""),
        ("replay", 1, ""),
        ("replay", 1, "repaired"),
    ]
    attempts = {one.event.id: one.attempts for one in await desk.call("events.list")}
    assert set(attempts.values()) == {0}


async def test_finished_events_are_handled_again(rows: Desk) -> None:
    done, dead = [Event("A", n, key=f"k{n % 2}") for n in range(3)], Event("A", 9)
    rows.finish(*done)
    rows.kill(dead)
    rows.write(waiting := Event("A", 10))
    assert await rows.call("dead.replay", [event.id for event in done]) == 0
    assert await rows.call("events.replay", done[0].id, dry_run=True) == 1
    assert await rows.call("events.replay", done[0].id) == 1
    assert await rows.call("events.replay", done[0].id) == 0  # it waits already
    assert await rows.call("events.replay", ALL) == 3
    assert await rows.call("events.count", ALL) == len(await rows.call("events.list", state="open")) == 5
    rows.finish(*done, dead, waiting, written=True)
    assert len(await rows.call("events.list", state="done")) == 5


async def test_what_dies_again_meanwhile_is_not_replayed_again(rows: Desk) -> None:
    """Also when a batch at a time is replayed, and the first is dead before the last comes."""
    events = [Event("A", n) for n in range(1100)]
    rows.finish(*events[:600])
    rows.kill(*events[600:])
    seen: list[Progress] = []

    def die(at: Progress) -> None:
        rows.kill_due()
        seen.append(at)

    assert await rows.call("events.replay", ALL, progress=die) == 1100
    assert [(at.done, at.total, at.what) for at in seen][-1] == (1100, 1100, "replay")
    assert [at.done for at in seen] == sorted(at.done for at in seen)
    (entry,) = await rows.call("audit")
    assert entry.changed == await rows.call("dead.count") == 1100


async def test_discarding(rows: Desk) -> None:
    dead, waiting, done = Event("A", 1), Event("A", 2), Event("A", 3)
    rows.kill(dead)
    rows.finish(done)
    rows.write(waiting)
    assert await rows.call("dead.discard", [waiting.id, done.id]) == 0
    assert await rows.call("dead.discard", ALL, dry_run=True) == 1
    assert await rows.call("dead.discard", ALL, reason="old") == 1
    assert await rows.call("dead.get", dead.id) is None
    assert await rows.call("events.discard", [waiting.id, done.id]) == 1
    assert [(one.event.id, one.state) for one in await rows.call("events.list")] == [(done.id, "done")]
    assert rows.claim() == []
    assert [(e.verb, e.changed, e.reason) for e in await rows.call("audit")] == [
        ("discard", 1, ""),
        ("discard", 1, "old"),
    ]


async def test_a_claimed_event_can_be_discarded(rows: Desk) -> None:
    event, other = Event("A", 1), Event("A", 2)
    rows.write(event, other)
    assert set(rows.claim()) == {event.id, other.id}
    assert await rows.call("events.discard", event.id) == 1
    assert [one.state for one in await rows.call("events.list")] == ["claimed"]


# -- groups that read a log --------------------------------------------------------------------------


async def test_what_a_group_finished_in_a_log_is_seen_again_by_seek(log: Desk) -> None:
    done, dead = Event("A", 1), Event("B", 2)
    log.finish(done)
    log.kill(dead)
    for which in (ALL, done.id, Where(type="A")):
        for dry_run in (True, False):
            with pytest.raises(ConfigError, match=r"seen again from a place on, by seek\(\)"):
                await log.call("events.replay", which, dry_run=dry_run)
    assert await log.call("audit") == []
    assert await log.call("events.replay", Where(type="B"), dry_run=True) == 1
    assert await log.call("events.replay", dead.id) == 1
    assert [one.state for one in await log.call("events.list")] == ["done", "retry"]


async def test_dead_letters_that_die_again_meanwhile_are_not_replayed_again(log: Desk) -> None:
    log.kill(*(Event("A", n) for n in range(1100)))
    seen: list[Progress] = []

    def die(at: Progress) -> None:
        log.kill_due()
        seen.append(at)

    assert await log.call("dead.replay", ALL, progress=die) == 1100
    assert [(at.done, at.total) for at in seen] == [(500, 1100), (1000, 1100), (1100, 1100)]
    (entry,) = await log.call("audit")
    assert entry.changed == await log.call("dead.count") == 1100
    assert entry.what == f"dead letters of group {log.box.topic}/{log.box.name}"


async def test_what_failed_can_be_discarded_and_what_waits_in_a_log_cannot(log: Desk) -> None:
    dead, retried, done, waiting = (Event("A", n) for n in range(4))
    log.kill(dead)
    log.fail(retried)
    log.finish(done)
    log.write(waiting)
    assert await log.call("dead.discard", [retried.id, done.id, waiting.id]) == 0
    assert await log.call("events.discard", [done.id, waiting.id]) == 0
    assert await log.call("events.discard", ALL, dry_run=True) == 2
    assert await log.call("dead.discard", ALL, reason="old") == 1
    assert await log.call("events.discard", ALL) == 1
    found = {one.event.id: one.state for one in await log.call("events.list")}
    assert found == {dead.id: "done", retried.id: "done", done.id: "done", waiting.id: "waiting"}
    assert log.claim() == [waiting.id]


async def test_a_parked_event_that_a_member_has_can_be_discarded(log: Desk) -> None:
    log.fail(event := Event("A", 1))
    assert log.claim() == [event.id]
    assert [one.state for one in await log.call("events.list")] == ["claimed"]
    assert await log.call("events.discard", event.id) == 1
    assert [one.state for one in await log.call("events.list")] == ["done"]


# -- asking -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", [None, 7, {"type": "A"}.get("x")])
async def test_all_must_be_said(desk: Desk, which: Any) -> None:
    desk.kill(Event("A", 1))
    with pytest.raises(ConfigError, match="expected an id, several ids or a Where"):
        await desk.call("dead.replay", which)
    with pytest.raises(TypeError):
        await desk.call("dead.discard")
    assert await desk.call("dead.count") == 1


async def test_a_required_reason_is_asked_for_before_anything_happens(desk: Desk) -> None:
    desk.kill(event := Event("A", 1))
    strict = type(desk)(desk.url, desk.is_async, settings=Settings(admin=AdminSettings(require_reason=True)))
    with pytest.raises(ConfigError, match=r"give a reason to discard dead letters"):
        await strict.call("dead.discard", event.id)
    assert await strict.call("dead.count") == 1
    assert await strict.call("dead.discard", event.id, reason="a test") == 1
    await strict.close()


def test_a_where_is_checked_when_it_is_made() -> None:
    with pytest.raises(ConfigError, match="expected ids to be several event ids"):
        Where(ids="one")
    with pytest.raises(ConfigError, match="naive"):
        Where(since=datetime(2030, 1, 1))
    with pytest.raises(ConfigError, match="expected since to be a duration"):
        Where(since="yesterday")


# -- large payloads --------------------------------------------------------------------------------------

LARGE = 50_000


async def test_a_page_of_large_payloads_does_not_fill_the_memory(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    room = 10 * LARGE
    monkeypatch.setattr("relaybox.operate.ROOM", room)

    def large(count: int) -> list[Event]:
        return [Event("Large", payload_bytes=bytes(LARGE), key=f"k{n}") for n in range(count)]

    desk.finish(*large(25))
    desk.kill(*large(25))
    desk.write(*large(25), Event("Small", 1))
    for name, count in (("events.list", 76), ("dead.list", 25)):
        found: list[int] = []
        while page := await desk.call(name, after=found[-1] if found else 0):
            assert 0 < sum(len(one.event.body) for one in page) <= room + 3 * LARGE  # one of each kind in any case
            found += [one.event.seq for one in page]
        assert len(found) == count
        assert found == sorted(found)
    assert {one.event.body for one in await desk.call("dead.list")} == {bytes(LARGE)}


async def test_the_memory_of_a_page_is_bounded(url: str) -> None:
    with closing(Outbox(url)) as box:
        for _ in range(10):
            with box.transaction() as tx:
                box.write_all(tx, [Event("Large", payload_bytes=bytes(1_000_000)) for _ in range(10)])
        tracemalloc.start()
        try:
            assert len(box.events.list()) < 20
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert most < 3 * ROOM
