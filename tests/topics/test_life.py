"""The life of a group as its users see it: what a start, a death, a return and an end do, and what is said of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import get_args

import psycopg
import pytest

from kit import until
from relaybox import AsyncMaintainer, AsyncOutbox, Event, Outbox, Retry, Settings, StartFrom, Topic
from relaybox.clock import SystemClock
from relaybox.errors import IllegalMove, NotFound
from relaybox.store.topics.completion import Completion
from relaybox.store.topics.life import MOVES, STANDING, Condition, GroupStanding, effects, reachable, standstill
from relaybox.types import DeliverySettings

from .kit import fresh_url
from .pull_kit import Pulled

MARKED = ("bitmap", "acks")
TRACKINGS = ("offset", *MARKED)
QUICK = Settings(delivery=DeliverySettings(instance_ttl="500ms", retry=Retry(base="5ms")))


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
        return [await producer.send(tx, n, key=str(n), type="Placed") or 0 for n in range(count)]


async def pull_all(box: AsyncOutbox, group: str) -> int:
    handled = 0
    async with box.topics.group("orders", group).consumer() as consumer:
        while batch := await consumer.poll():
            handled += len(batch)
            await consumer.commit(batch)
    return handled


async def completion(box: AsyncOutbox, numbers: Sequence[int]) -> list[Completion]:
    context = box.topics._context
    topic = await context.db.run(context.known("orders"), tx=False)
    return await context.db.run(context.store.completion(topic, numbers), tx=False)


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
    await box.topics.group("orders", "search").create()
    may_go = asyncio.Event()
    handled: list[int] = []

    async def handle(event: Event) -> None:
        await may_go.wait()
        handled.append(event.payload)

    group = box.topics.group("orders", "mail", silence="5m")
    service = await group.deliver(handle).start()
    heartbeats = box.topics._context.heartbeats
    if back == "start":
        await service.stop()
    heartbeats.held = True
    clock.ahead = timedelta(hours=1)
    async with box.topics.group("orders", "search").consumer() as alive:
        await alive.poll()
    assert await detect(url, clock) == 1
    numbers = await write(box)
    assert (await completion(box, numbers))[0].required == ["search"]
    heartbeats.held = False
    if back == "start":
        service = await group.deliver(handle).start()

    async def required() -> bool:
        shown = await completion(box, numbers)
        return all(one.required == ["mail", "search"] for one in shown)

    async with asyncio.timeout(20):
        while not await required():
            await asyncio.sleep(0.02)
    assert await pull_all(box, "search") == 3
    shown = await completion(box, numbers)
    assert [(one.completed_at, one.waiting) for one in shown] == [(None, ["mail"])] * 3
    may_go.set()
    await service.drain()
    assert sorted(handled) == [0, 1, 2]
    assert all(one.completed_at is not None for one in await completion(box, numbers))


async def stalled(box: AsyncOutbox) -> None:
    await box.topics.group("orders", "mail", start=StartFrom.earliest(), silence="5m").create()
    store = box.topics._context.store
    row = await box._db.run(store.group("orders", "mail"))
    assert row is not None
    await box._db.run(store.apply(row, "stall", "restarts without progress", None))


async def paused(box: AsyncOutbox) -> None:
    group = box.topics.group("orders", "mail", start=StartFrom.earliest(), silence="5m")
    await group.create()
    await group.pause(reason="mail server moves")


async def test_a_start_that_delivers_nothing_says_why_and_what_to_do(
    box: AsyncOutbox, caplog: pytest.LogCaptureFixture
) -> None:
    await box.topics.configure(Topic.pub_sub("orders"))
    await write(box)
    await paused(box)
    handled: list[int] = []
    group = box.topics.group("orders", "mail")
    service = await group.deliver(lambda event: handled.append(event.payload)).start()
    await until(lambda: any("given nothing" in record.message for record in caplog.records))
    (line,) = [record.message for record in caplog.records if "given nothing" in record.message]
    assert ("mail server moves" in line, "relaybox groups resume orders mail" in line) == (True, True)
    assert service.health().reasons == (line,)
    assert handled == []
    await group.resume(reason="mended")
    await until(lambda: service.health().level == "ok" and len(handled) == 3)
    assert (await group.info()).state == "active"


async def test_a_running_group_that_is_paused_elsewhere_says_why(
    url: str, box: AsyncOutbox, caplog: pytest.LogCaptureFixture
) -> None:
    await box.topics.configure(Topic.pub_sub("orders"))
    service = await box.topics.group("orders", "mail").deliver(lambda event: None).start()
    async with AsyncOutbox(url) as elsewhere:
        await elsewhere.topics.group("orders", "mail").pause(reason="invoices are wrong")
    await until(lambda: "invoices are wrong" in str(service.health().reasons))
    assert any("invoices are wrong" in r.message and r.levelname == "WARNING" for r in caplog.records)


@pytest.mark.parametrize("state", [stalled, paused])
async def test_polls_that_are_given_nothing_say_why_once(
    box: AsyncOutbox, caplog: pytest.LogCaptureFixture, state: object
) -> None:
    await box.topics.configure(Topic.pub_sub("orders"))
    await write(box)
    await state(box)  # type: ignore[operator]
    group = box.topics.group("orders", "mail")
    async with group.consumer() as consumer:
        for _ in range(3):
            assert len(await consumer.poll()) == 0
        (line,) = [record.message for record in caplog.records if "given nothing" in record.message]
        assert consumer.standstill == line
        await group.resume()
        assert len(await consumer.poll(wait=20)) == 3
        assert consumer.standstill is None


@pytest.mark.parametrize("tracking", MARKED)
async def test_a_member_that_cancels_its_group_completes_what_waited_for_it(box: AsyncOutbox, tracking: str) -> None:
    await box.topics.configure(Topic(name="orders", semantics="pub_sub", tracking=tracking))  # type: ignore[arg-type]
    await box.topics.group("orders", "search").create()
    group = box.topics.group("orders", "mail")
    service = await group.deliver(lambda event: None).start()
    await group.pause()
    numbers = await write(box)
    assert await pull_all(box, "search") == 3
    assert all(one.waiting == ["mail"] for one in await completion(box, numbers))
    await group.cancel()
    assert all(one.completed_at is not None for one in await completion(box, numbers))
    assert service.health().level == "critical"


@pytest.mark.parametrize("tracking", ["rows", *TRACKINGS])
def test_which_groups_have_an_event(sync_box: Outbox, tracking: str) -> None:
    box, queue = sync_box, tracking == "rows"
    semantics = "queue" if queue else "pub_sub"
    box.topics.configure(Topic(name="orders", semantics=semantics, tracking=tracking))  # type: ignore[arg-type]
    if not queue:
        box.topics.group("orders", "mail").create()
        box.topics.group("orders", "search").create()
    with box.transaction() as tx:
        numbers = [box.topics.producer("orders").send(tx, n, key=str(n), type="Placed") or 0 for n in range(2)]
    if queue:
        assert [box.topics.completion("orders", number) for number in numbers] == [{"default": "waiting"}] * 2
        return
    box.topics.group("orders", "late").create()
    with box.topics.group("orders", "mail").consumer() as consumer:
        consumer.commit(consumer.poll())
    with box.topics.group("orders", "search").consumer() as consumer:
        batch = consumer.poll()
        consumer.commit(batch, failed={event: ValueError("no") for event in batch if event.seq == numbers[1]})
    assert box.topics.completion("orders", numbers[0]) == {"mail": "done", "search": "done"}
    assert box.topics.completion("orders", numbers[1]) == {"mail": "done", "search": "waiting"}
    with pytest.raises(NotFound, match="no event with the number 4711"):
        box.topics.completion("orders", 4711)
    with pytest.raises(NotFound, match="not configured; did you mean 'orders'"):
        box.topics.completion("orders2", 1)


def test_what_an_operator_does_is_told_by_notify(url: str, sync_box: Outbox) -> None:
    box = sync_box
    box.topics.configure(Topic.pub_sub("orders"))
    mail = box.topics.group("orders", "mail")
    mail.create()
    with psycopg.connect(url, autocommit=True) as ears:
        ears.execute("LISTEN relaybox_outbox_event_alert")
        mail.pause(reason="mail server moves")
        mail.seek(StartFrom.earliest(), reason="again")
        heard = [note.payload for note in ears.notifies(timeout=10, stop_after=2)]
    assert heard == ["", ""], "any role may listen"


async def test_the_average_of_a_push_group_is_what_its_handlers_took(box: AsyncOutbox) -> None:
    """Of more events than are timed, over several heartbeats."""
    await box.topics.configure(Topic.pub_sub("orders"))
    times: list[float] = []

    async def handle(event: Event) -> None:
        started = asyncio.get_running_loop().time()
        await asyncio.sleep(0.02)
        times.append(asyncio.get_running_loop().time() - started)

    group = box.topics.group("orders", "mail")
    async with group.deliver(handle):
        await write(box, 40)
        await until(lambda: len(times) == 40)
    found = await group.info()
    assert found.average_ms is not None
    assert 1000 * min(times) * 0.9 <= found.average_ms <= 1000 * max(times) * 1.5


def test_the_average_of_a_pull_group_is_from_poll_to_commit() -> None:
    pulled = Pulled()
    pulled.group()
    assert pulled.at().info().average_ms is None
    pulled.world.write_many(4)
    with pulled.consumer() as consumer:
        batch = consumer.poll()
        pulled.later(2)
        consumer.commit(batch)
    assert pulled.at().info().average_ms == 500


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
    assert standing.pop("state") == list(GroupStanding._fields)
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
    mail = sync_box.topics.group("orders", "mail")
    assert mail.create().state == "active"
    mail.cancel()
    with pytest.raises(IllegalMove, match="is cancelled and cannot become paused"):
        mail.pause()
