"""The life of a group as its users see it: what a start, a death, a return and an end do, and what is said of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path
from typing import get_args

import psycopg
import pytest

from relaybox import AsyncMaintainer, AsyncOutbox, Event, Outbox, Retry, Settings, StartFrom, Topic
from relaybox.clock import SystemClock
from relaybox.errors import ConfigError, IllegalMove
from relaybox.store.topics import GroupOptions, GroupRow
from relaybox.store.topics.life import MOVES, STANDING, Condition, Standing, effects, reachable, standstill
from relaybox.topics.group import Group
from relaybox.types import DeliverySettings

from .kit import fresh_url
from .liveness_kit import until
from .pull_kit import Pulled

MARKED = ("bitmap", "acks")
TRACKINGS = ("offset", *MARKED)
QUICK = Settings(delivery=DeliverySettings(instance_ttl="500ms", retry=Retry(base="5ms")))
MINUTES = GroupOptions(heartbeat_timeout=timedelta(minutes=5))


class Shifted(SystemClock):
    """Real seconds; the database lives `ahead` of them."""

    ahead: timedelta = timedelta(0)

    def database_now(self) -> object:  # type: ignore[override]
        return self.now() + self.ahead


@pytest.fixture
def clock() -> Shifted:
    return Shifted()


@pytest.fixture
def url() -> str:
    return fresh_url()


@pytest.fixture
async def box(url: str, clock: Shifted) -> AsyncIterator[AsyncOutbox]:
    async with AsyncOutbox(url, settings=QUICK, clock=clock) as made:
        await made.migrate()
        yield made


@pytest.fixture
def sync_box(url: str) -> Iterator[Outbox]:
    with Outbox(url) as made:
        made.migrate()
        yield made


async def write(box: AsyncOutbox, count: int = 3) -> list[int]:
    producer = box.topics.producer("orders")
    async with box.transaction() as tx:
        return [await producer.send(tx, n, key=str(n), type="Placed") for n in range(count)]


async def pull_all(box: AsyncOutbox, group: str) -> int:
    handled = 0
    async with box.topics.consumer("orders", group=group) as consumer:
        while batch := await consumer.poll():
            handled += len(batch)
            await consumer.commit(batch)
    return handled


async def detect(url: str, clock: Shifted) -> int:
    maintainer = AsyncMaintainer(AsyncOutbox(url, clock=clock), jobs=("detect",))
    await maintainer.once()
    return maintainer.report.groups_died


@pytest.mark.parametrize("back", ["heartbeat", "start"])
@pytest.mark.parametrize("tracking", MARKED)
async def test_a_push_group_back_from_the_dead_is_required_again(
    url: str, box: AsyncOutbox, clock: Shifted, tracking: str, back: str
) -> None:
    """What was written while it was dead is complete only when it has it as well."""
    await box.topics.configure(Topic(name="orders", semantics="pub_sub", tracking=tracking))  # type: ignore[arg-type]
    await box.topics.groups.create("orders", "search")
    may_go = asyncio.Event()
    handled: list[int] = []

    async def handle(event: Event) -> None:
        await may_go.wait()
        handled.append(event.payload)

    group = box.topics.group("mail", "orders", heartbeat_timeout=timedelta(minutes=5))
    group.add_consumer("m", handle)
    await group.start()
    heartbeats = box.topics._home.heartbeats
    if back == "start":
        await group.close()
    heartbeats.held = True
    clock.ahead = timedelta(hours=1)
    async with box.topics.consumer("orders", group="search") as alive:
        await alive.heartbeat()
    assert await detect(url, clock) == 1
    numbers = await write(box)
    assert (await box.topics.completion("orders", *numbers))[0].required == ["search"]
    heartbeats.held = False
    if back == "start":
        group = box.topics.group("mail", "orders", heartbeat_timeout=timedelta(minutes=5))
        group.add_consumer("m", handle)
        await group.start()

    async def required() -> bool:
        shown = await box.topics.completion("orders", *numbers)
        return all(one.required == ["mail", "search"] for one in shown)

    async with asyncio.timeout(20):
        while not await required():
            await asyncio.sleep(0.02)
    assert await pull_all(box, "search") == 3
    shown = await box.topics.completion("orders", *numbers)
    assert [(one.completed_at, one.waiting) for one in shown] == [(None, ["mail"])] * 3
    may_go.set()
    await group.until_idle()
    assert sorted(handled) == [0, 1, 2]
    assert all(one.completed_at is not None for one in await box.topics.completion("orders", *numbers))


async def stalled(box: AsyncOutbox) -> None:
    row = await box.topics.groups.create("orders", "mail", StartFrom.earliest(), options=MINUTES)
    await box._db.run(box.topics._home.store.turn(row, "stall", "restarts without progress", None))


async def paused(box: AsyncOutbox) -> None:
    await box.topics.groups.create("orders", "mail", StartFrom.earliest(), options=MINUTES)
    await box.topics.groups.pause("orders", "mail", reason="mail server moves")


@pytest.mark.parametrize(
    ("state", "why", "verb"),
    [(stalled, "restarts without progress", "resurrect"), (paused, "mail server moves", "resume")],
)
async def test_a_start_that_delivers_nothing_says_why_and_what_to_do(
    box: AsyncOutbox,
    caplog: pytest.LogCaptureFixture,
    state: object,
    why: str,
    verb: str,
) -> None:
    await box.topics.configure(Topic.pub_sub("orders"))
    await write(box)
    await state(box)  # type: ignore[operator]
    handled: list[int] = []
    group = box.topics.group("mail", "orders")
    group.add_consumer("m", lambda event: handled.append(event.payload))
    with caplog.at_level(logging.WARNING):
        await group.start()
    (line,) = [record.message for record in caplog.records if "given nothing" in record.message]
    assert (why in line, f"relaybox groups {verb} orders mail" in line) == (True, True)
    assert group.standstill == line
    assert (group.state, handled) == ("paused" if state is paused else "dead", [])
    await getattr(box.topics.groups, verb)("orders", "mail", reason="mended")
    await until(lambda: group.standstill is None and len(handled) == 3)
    assert group.state == "active"


async def test_a_running_group_that_is_paused_elsewhere_says_why(
    box: AsyncOutbox, caplog: pytest.LogCaptureFixture
) -> None:
    await box.topics.configure(Topic.pub_sub("orders"))
    group = box.topics.group("mail", "orders")
    group.add_consumer("m", lambda event: None)
    await group.start()
    await box.topics.groups.pause("orders", "mail", reason="invoices are wrong")
    await until(lambda: group.standstill is not None)
    assert any("invoices are wrong" in r.message and r.levelname == "WARNING" for r in caplog.records)


@pytest.mark.parametrize("state", [stalled, paused])
async def test_polls_that_are_given_nothing_say_why_once(
    box: AsyncOutbox, caplog: pytest.LogCaptureFixture, state: object
) -> None:
    await box.topics.configure(Topic.pub_sub("orders"))
    await write(box)
    await state(box)  # type: ignore[operator]
    async with box.topics.consumer("orders", group="mail") as consumer:
        for _ in range(3):
            assert len(await consumer.poll()) == 0
        (line,) = [record.message for record in caplog.records if "given nothing" in record.message]
        assert consumer.standstill == line
        await box.topics.groups.resurrect("orders", "mail")
        await box.topics.groups.resume("orders", "mail")
        await consumer.heartbeat()
        assert consumer.standstill is None
        assert len(await consumer.poll()) == 3


@pytest.mark.parametrize("tracking", MARKED)
async def test_a_member_that_cancels_its_group_completes_what_waited_for_it(box: AsyncOutbox, tracking: str) -> None:
    await box.topics.configure(Topic(name="orders", semantics="pub_sub", tracking=tracking))  # type: ignore[arg-type]
    await box.topics.groups.create("orders", "search")
    group: Group = box.topics.group("mail", "orders")
    group.add_consumer("m", lambda event: None)
    await group.start()
    await group.pause()
    numbers = await write(box)
    assert await pull_all(box, "search") == 3
    assert all(one.waiting == ["mail"] for one in await box.topics.completion("orders", *numbers))
    await group.cancel()
    assert all(one.completed_at is not None for one in await box.topics.completion("orders", *numbers))
    assert not group.running


@pytest.mark.parametrize("tracking", ["rows", *TRACKINGS])
def test_which_groups_have_an_event(sync_box: Outbox, tracking: str) -> None:
    box, queue = sync_box, tracking == "rows"
    semantics = "queue" if queue else "pub_sub"
    box.topics.configure(Topic(name="orders", semantics=semantics, tracking=tracking))  # type: ignore[arg-type]
    if not queue:
        box.topics.groups.create("orders", "mail")
        box.topics.groups.create("orders", "search")
    with box.transaction() as tx:
        numbers = [box.topics.producer("orders").send(tx, n, key=str(n), type="Placed") for n in range(2)]
    if queue:
        assert [(one.required, one.done) for one in box.topics.completion("orders", *numbers)] == [
            (["default"], [])
        ] * 2
        return
    box.topics.groups.create("orders", "late")
    with box.topics.consumer("orders", group="mail") as consumer:
        consumer.commit(consumer.poll())
    with box.topics.consumer("orders", group="search") as consumer:
        batch = consumer.poll()
        consumer.commit(batch, failed={event: ValueError("no") for event in batch if event.seq == numbers[1]})
    first, second = box.topics.completion("orders", *numbers, 4711)
    assert (first.seq, first.required, first.done, first.waiting) == (
        numbers[0],
        ["mail", "search"],
        ["mail", "search"],
        [],
    )
    assert (second.required, second.done, second.waiting) == (["mail", "search"], ["mail"], ["search"])
    with pytest.raises(ConfigError, match="not configured"):
        box.topics.completion("orders2", 1)


def test_what_an_operator_does_is_told_by_notify(url: str, sync_box: Outbox) -> None:
    box = sync_box
    box.topics.configure(Topic.pub_sub("orders"))
    box.topics.groups.create("orders", "mail")
    with psycopg.connect(url, autocommit=True) as ears:
        ears.execute("LISTEN relaybox_outbox_event_alert")
        box.topics.groups.pause("orders", "mail", reason="mail server moves")
        box.topics.groups.seek("orders", "mail", StartFrom.earliest(), reason="again")
        heard = [note.payload for note in ears.notifies(timeout=10, stop_after=2)]
    assert ['"group_paused"' in heard[0], "mail server moves" in heard[0], '"consumer_seeked"' in heard[1]] == [
        True
    ] * 3


async def test_the_average_of_a_push_group_is_what_its_handlers_took(box: AsyncOutbox) -> None:
    """Of more events than are timed, over several heartbeats."""
    await box.topics.configure(Topic.pub_sub("orders"))
    times: list[float] = []

    async def handle(event: Event) -> None:
        started = asyncio.get_running_loop().time()
        await asyncio.sleep(0.02)
        times.append(asyncio.get_running_loop().time() - started)

    group = box.topics.group("mail", "orders")
    group.add_consumer("m", handle)
    await group.start()
    await write(box, 40)
    await until(lambda: len(times) == 40)
    await group.close()
    found = await box.topics.groups.metrics("orders", "mail")
    assert found.average_ms is not None
    assert 1000 * min(times) * 0.9 <= found.average_ms <= 1000 * max(times) * 1.5


def test_the_average_of_a_pull_group_is_from_poll_to_commit() -> None:
    pulled = Pulled()
    pulled.group()
    assert pulled.admin.metrics("t", "g").average_ms is None
    pulled.world.write_many(4)
    with pulled.consumer() as consumer:
        batch = consumer.poll()
        pulled.later(2)
        consumer.commit(batch)
    assert pulled.admin.metrics("t", "g").average_ms == 500


# -- the tables -------------------------------------------------------------------------------------


def table(heading: str) -> dict[str, list[str]]:
    """The first table under a heading of the page about groups: its rows by their first cell."""
    page = (Path(__file__).parents[2] / "docs/concepts/groups.md").read_text().partition(f"## {heading}\n")[2]
    lines = [line for line in page.partition("\n## ")[0].splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    size = next(n for n, row in enumerate([*rows, []]) if len(row) != len(rows[0]))
    return {row[0]: row[1:] for n, row in enumerate(rows[:size]) if n != 1}


def test_the_page_about_groups_shows_these_tables() -> None:
    standing = table("What a state means for events")
    assert standing.pop("state") == list(Standing._fields)
    assert standing == {state: ["yes" if one else "no" for one in found] for state, found in STANDING.items()}
    moves = table("What moves a group")
    conditions = moves.pop("")
    assert conditions == list(get_args(Condition))
    shown = {
        verb: ["refused" if found[c] is None else "–" if found[c] == c else found[c] for c in conditions]
        for verb, found in MOVES.items()  # type: ignore[index]
    }
    assert moves == shown


def test_every_verb_says_what_it_makes_of_every_condition() -> None:
    conditions = set(get_args(Condition))
    assert {verb: set(moves) for verb, moves in MOVES.items()} == dict.fromkeys(MOVES, conditions)
    assert reachable("cancelled") == []
    assert reachable("dead") == ["active", "cancelled"]


def test_who_is_required_again_is_who_was_not() -> None:
    for was in get_args(Condition):
        for verb in MOVES:
            to = MOVES[verb][was]
            if to is not None and was != "cancelled":
                assert ("require again" in effects(was, to)) == (was in ("dead", "stalled") and to == "active")
    assert not any(STANDING["cancelled"])


def test_only_an_active_group_stands_not_still() -> None:
    assert [standstill("t", "g", one, "x") is None for one in get_args(Condition)] == [True, False, False, False, False]


def test_a_refused_verb_names_what_is_possible(sync_box: Outbox) -> None:
    sync_box.topics.configure(Topic.pub_sub("orders"))
    row: GroupRow = sync_box.topics.groups.create("orders", "mail")
    sync_box.topics.groups.cancel("orders", "mail")
    with pytest.raises(IllegalMove, match="is cancelled and cannot become paused"):
        sync_box.topics.groups.pause("orders", "mail")
    assert row.condition == "active"
