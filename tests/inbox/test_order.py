"""Order by number: held back until it is its turn, gaps found, and nothing that is forgotten starts a key anew."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter, defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kit import Probe, one
from relaybox import AsyncInbox, ConfigError, Event, Inbox, Reject
from relaybox.ids import key_hash
from relaybox.store.inbox.order import NumberedMessage, admit
from relaybox.testing.clock import ManualClock
from relaybox.types import Order, Priority

from .effects import QUICK, with_effects, writing
from .kit import ENGINES, Twin, agreed, expected, gaps, inbox_url, pending_ids, processed, serving

ALL = {"done": 0, "dead": None, "seen": None}


def numbered(key: str, number: int, **options: Any) -> Event:
    return Event("Moved", {"n": number}, key=key, headers={"sequence": str(number)}, **options)


class Ran:
    """What a handler has seen, by key."""

    def __init__(self, fail: Callable[[Event], None] | None = None) -> None:
        self.by_key: defaultdict[str, list[int]] = defaultdict(list)
        self._fail = fail

    def __call__(self, event: Event, handle: Any) -> None:
        if self._fail is not None:
            self._fail(event)
        assert event.key is not None
        self.by_key[event.key].append(event.payload["n"])


def work(inbox: Inbox, ran: Any, **options: Any) -> None:
    options.setdefault("settings", QUICK)
    processed(inbox, ran, **options)


async def test_ten_per_key_in_any_order(url: str, is_async: bool) -> None:
    """Also with two processors at once."""
    chance = random.Random(3)
    events = [numbered(f"k{k}", n) for k in range(8) for n in range(1, 11)]
    chance.shuffle(events)
    ran = Ran()
    probe = Probe()
    async with Twin(url, is_async=is_async, order=Order()) as inbox:
        other = AsyncInbox(url)
        async with serving(other, ran, settings=QUICK, observers=[probe]) as first:
            async with serving(other, ran, settings=QUICK, observers=[probe], batch=5) as second:
                for event in events:
                    if is_async:
                        await inbox.call("accept", None, event)
                    else:  # beside the loop: it may have a transaction under way, and there is one writer
                        await asyncio.to_thread(inbox.raw.accept, None, event)
                await probe.until(lambda: first.counts.done + second.counts.done >= 80)
        await other.close()
    assert ran.by_key == {f"k{k}": list(range(1, 11)) for k in range(8)}


async def test_many_that_come_in_rounds(url: str) -> None:
    """Claims meet almost nothing but messages to hold back, and still one call drains all."""
    events = [numbered(f"k{k}", n) for n in range(1, 61) for k in range(20)]
    ran = Ran()
    with agreed(url, order=Order()) as inbox:
        inbox.accept_all(None, [*events[600:], *events[:600]])
        work(inbox, ran, settings=QUICK.replaced({"delivery.instance_ttl": "5s", "delivery.lease": "10s"}))
    assert ran.by_key == {f"k{k}": list(range(1, 61)) for k in range(20)}


async def test_a_gap_holds_back_its_own_key_only(url: str) -> None:
    ran = Ran()
    with agreed(url, order=Order()) as inbox:
        inbox.accept_all(None, [numbered("a", 1), numbered("a", 3), numbered("b", 2), numbered("c", 1)])
        work(inbox, ran)
        assert ran.by_key == {"a": [1], "c": [1]}
        found = inbox.keys.list()
        assert {(gap.key, gap.cause, gap.first, gap.last) for gap in found} == {("a", "gap", 2, 2), ("b", "gap", 1, 1)}
        assert (expected(inbox, "a"), expected(inbox, "b")) == (2, None)
        inbox.accept_all(None, [numbered("a", 2), numbered("b", 1)])
        work(inbox, ran)
        assert ran.by_key == {"a": [1, 2, 3], "b": [1, 2], "c": [1]}
        assert inbox.keys.list() == []


async def test_messages_without_a_number_or_a_key_do_not_wait(url: str) -> None:
    ran: list[str] = []

    def handle(event: Event, _: Any) -> None:
        ran.append(event.id)

    plain = Event("Moved", {}, key="a", id="plain")
    odd = Event("Moved", {}, key="a", id="odd", headers={"sequence": "x7"})
    keyless = Event("Moved", {}, id="keyless", headers={"sequence": "7"})
    with agreed(url, order=Order()) as inbox:
        inbox.accept_all(None, [numbered("a", 2), plain, odd, keyless])
        work(inbox, handle)
    assert sorted(ran) == ["keyless", "odd", "plain"]


async def test_gaps_are_found_before_and_between(url: str) -> None:
    """5 is processed, 8 and 9 wait: 6 to 7 are missing."""
    clock = ManualClock()
    with agreed(url, order=Order(), clock=clock) as inbox:
        inbox.accept_all(None, [numbered("a", n) for n in range(1, 6)])
        work(inbox, Ran())
        inbox.accept_all(None, [numbered("a", n) for n in (8, 9, 12)])
        came = clock.now()
        clock.advance(90)
        first, second = sorted(inbox.keys.list(), key=lambda gap: gap.first or 0)
        assert (first.first, first.last, first.cause, first.event_id) == (6, 7, "gap", None)
        assert (second.first, second.last) == (10, 11)
        assert first.since == came


async def test_a_purged_history_does_not_start_anew(url: str) -> None:
    """The next number is kept in a state, not in old messages."""
    ran = Ran()
    with agreed(url, order=Order()) as inbox:
        inbox.accept_all(None, [numbered("a", n) for n in (1, 2, 3)])
        work(inbox, ran)
        assert inbox.purge(**ALL) == 3
        assert one(url, "SELECT count(*) FROM inbox WHERE payload IS NOT NULL") == 0
        inbox.accept_all(None, [numbered("a", 5), numbered("a", 4)])
        work(inbox, ran)
    assert ran.by_key["a"] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("start", [0, 7, None])
async def test_where_a_key_begins(url: str, start: int | None) -> None:
    ran = Ran()
    first = 100 if start is None else start
    with agreed(url, order=Order(start=start)) as inbox:
        inbox.accept_all(None, [numbered("a", first + n) for n in (2, 0, 1)])
        work(inbox, ran)
    assert ran.by_key["a"] == [first, first + 1, first + 2]


async def test_replays_run_beside_the_sequence(url: str) -> None:
    ran = Ran()
    events = [numbered("a", n) for n in (1, 2, 3)]
    with agreed(url, order=Order()) as inbox:
        inbox.accept_all(None, events)
        work(inbox, ran)
        assert inbox.events.replay([events[1].id, "unknown"]) == 1
        work(inbox, ran)
        assert ran.by_key["a"] == [1, 2, 3, 2]
        inbox.accept(None, numbered("a", 4))
        work(inbox, ran)
    assert ran.by_key["a"] == [1, 2, 3, 2, 4]


async def test_a_number_that_comes_twice_dies_once(url: str) -> None:
    ran = Ran()
    with agreed(url, order=Order()) as inbox:
        inbox.accept_all(None, [numbered("a", 1), numbered("a", 1, id="other"), numbered("a", 2)])
        work(inbox, ran)
        work(inbox, ran)
        assert ran.by_key["a"] == [1, 2]
        (letter,) = inbox.dead.list()
        assert "came after its turn" in (letter.error or "")
        inbox.dead.replay(letter.event.id)
        work(inbox, ran)
    assert ran.by_key["a"] == [1, 2, 1]


def deadly(*numbers: int) -> Callable[[Event], None]:
    def fail(event: Event) -> None:
        if event.payload["n"] in numbers:
            raise Reject("never")

    return fail


async def test_a_dead_letter_blocks_until_somebody_decides(url: str) -> None:
    ran = Ran(deadly(2))
    events = [numbered("a", n) for n in (1, 2, 3)]
    with agreed(url, order=Order()) as inbox:
        inbox.accept_all(None, events)
        work(inbox, ran)
        work(inbox, ran)
        assert ran.by_key["a"] == [1]
        (blocked,) = inbox.keys.list()
        assert (blocked.first, blocked.last, blocked.cause) == (2, 2, "dead")
        assert (blocked.event_id, blocked.attempts, blocked.error) == (events[1].id, 1, "Reject: never")
        cured = Ran()
        inbox.dead.replay(events[1].id)
        work(inbox, cured)
        work(inbox, cured)
    assert cured.by_key["a"] == [2, 3]


@pytest.mark.parametrize("way", ["release", "discard", "policy"])
async def test_past_a_dead_letter(url: str, way: str) -> None:
    ran = Ran(deadly(2))
    events = [numbered("a", n) for n in (1, 2, 3, 4)]
    with agreed(url, order=Order(dead="skip" if way == "policy" else "block")) as inbox:
        inbox.accept_all(None, events)
        work(inbox, ran)
        if way == "release":
            assert inbox.keys.release("a", reason="it is lost", actor="ann")
            assert [(entry.verb, entry.what, entry.actor) for entry in inbox.audit()][:1] == [
                ("release", "key a of inbox inbox", "ann")
            ]
            assert not inbox.keys.release("a"), "it goes on"
        elif way == "discard":
            assert inbox.dead.discard([events[1].id, events[0].id]) == 1
            assert not inbox.accept(None, events[1])
        work(inbox, ran)
        assert inbox.dead.count() == (0 if way == "discard" else 1)
    assert ran.by_key["a"] == [1, 3, 4]


async def test_past_a_number_that_never_comes(url: str) -> None:
    clock = ManualClock()
    ran = Ran()
    with agreed(url, order=Order(missing=timedelta(minutes=5)), clock=clock) as inbox:
        inbox.accept_all(None, [numbered("a", 1), numbered("a", 4), numbered("a", 5)])
        work(inbox, ran)
        work(inbox, ran)
        assert ran.by_key["a"] == [1]
        clock.advance(301)
        work(inbox, ran)
        assert ran.by_key["a"] == [1, 4, 5]
        assert not inbox.keys.release("a", to=3), "it never goes back"
        assert expected(inbox, "a") == 6
        assert inbox.keys.release("a", to=9)
        assert expected(inbox, "a") == 9


async def test_a_message_that_is_tried_again_blocks_its_key(url: str) -> None:
    """Released, it is tried on by itself, and the key goes on without it."""
    clock, failing = ManualClock(), [True]

    def stumble(event: Event) -> None:
        if event.payload["n"] == 2 and failing:
            raise RuntimeError("not yet")

    ran = Ran(stumble)
    with agreed(url, order=Order(), clock=clock) as inbox:
        inbox.accept_all(None, [numbered("a", n) for n in (1, 2, 3)])
        work(inbox, ran)
        (blocked,) = inbox.keys.list()
        assert (blocked.key, blocked.cause, blocked.attempts, blocked.first) == ("a", "retry", 1, None)
        assert blocked.error == "RuntimeError: not yet"
        assert blocked.event_id == inbox.events.list(state="open")[0].event.id
        assert inbox.keys.release("a")
        work(inbox, ran)
        assert ran.by_key["a"] == [1, 3]
        failing.clear()
        clock.advance(3600)
        work(inbox, ran)
        assert (ran.by_key["a"], inbox.dead.count(), expected(inbox, "a")) == ([1, 3, 2], 0, 4)


async def test_an_open_message_that_is_discarded_lets_its_key_go_on(url: str) -> None:
    ran = Ran()
    with agreed(url, order=Order()) as inbox:
        inbox.accept_all(None, events := [numbered("a", n) for n in (1, 2, 3, 4)])
        assert inbox.events.discard([events[0].id, events[1].id]) == 2
        work(inbox, ran)
        assert ran.by_key["a"] == [3, 4]
        inbox.accept_all(None, events := [numbered("a", n) for n in (7, 8)])
        assert inbox.events.discard(events[0].id) == 1, "not the next: it leaves a gap"
        work(inbox, ran)
        assert [(gap.cause, gap.first, gap.last) for gap in inbox.keys.list()] == [("gap", 5, 7)]


def test_without_an_order_no_key_waits(url: str) -> None:
    with Inbox(url) as inbox:
        inbox.accept_all(None, [numbered("a", 5)])
        assert inbox.keys.list() == []
        assert not inbox.keys.release("a")
        assert not inbox.keys.release("a", to=7)
        for wrong in (-1, True, "2"):
            with pytest.raises(ConfigError, match="at least 0"):
                inbox.keys.release("a", to=wrong)  # type: ignore[arg-type]


async def test_a_wake_up_that_was_lost_is_found(url: str) -> None:
    """The process of the predecessor died between its commit and the wake-up."""
    from .effects import rows_or_none

    ran = Ran()
    with agreed(url, order=Order()) as inbox:
        inbox.accept_all(None, [numbered("a", 2)])
        work(inbox, ran)
        assert one(url, "SELECT count(*) FROM inbox_pending WHERE held") == 1
        rows_or_none(url, f"INSERT INTO inbox_state VALUES ({key_hash('a')}, 'a', 2, {_now(url)})")
        work(inbox, ran)
    assert ran.by_key["a"] == [2]


def _now(url: str) -> str:
    return "0" if url.startswith("sqlite") else "CURRENT_TIMESTAMP"


async def test_a_failing_head_keeps_its_place(url: str) -> None:
    tries: Counter[int] = Counter()

    def fail_twice(event: Event) -> None:
        tries[event.payload["n"]] += 1
        if event.payload["n"] % 2 and tries[event.payload["n"]] < 3:
            raise RuntimeError("not yet")

    ran, probe = Ran(fail_twice), Probe()
    with agreed(url, order=Order()) as inbox:
        inbox.accept_all(None, [numbered("a", n) for n in range(1, 8)])
        with serving(inbox, ran, settings=QUICK, observers=[probe]):
            await probe.until(lambda: len(ran.by_key["a"]) == 7)
    assert ran.by_key["a"] == list(range(1, 8))


async def test_many_processors_one_key_at_a_time(engine: str, url: str) -> None:
    """The effects of a key commit in sequence, although several processes work on it."""
    home = with_effects(url)
    events = [numbered(f"k{k}", n, id=f"k{k}-{n:03}") for k in range(5) for n in range(1, 31)]
    random.Random(1).shuffle(events)
    with agreed(home, order=Order()) as inbox:
        inbox.accept_all(None, events)
    ran = Ran()

    def handle(event: Event, handle: Any) -> None:
        writing(False)(event, handle)
        ran(event, handle)

    def one_worker(_: int) -> None:
        with agreed(home, order=Order()) as inbox:
            while pending_ids(home):
                processed(
                    inbox,
                    handle,
                    settings=QUICK.replaced({"delivery.batch": 7, "delivery.instance_ttl": timedelta(seconds=1.5)}),
                )

    with ThreadPoolExecutor(3) as threads:
        await asyncio.to_thread(lambda: list(threads.map(one_worker, range(3))))
    assert ran.by_key == {f"k{k}": list(range(1, 31)) for k in range(5)}


# -- order or priority ----------------------------------------------------------------------------------


async def test_order_and_priority_exclude_each_other(url: str, is_async: bool) -> None:
    async with Twin(url, is_async=is_async) as inbox:
        with pytest.raises(ConfigError, match="not both"):
            await inbox.call("configure", order=Order(), priority=Priority())
        assert (await inbox.call("configure", order=Order())).order == Order()
        with pytest.raises(ConfigError, match="not both"):
            await inbox.call("configure", priority=Priority())
        info = await inbox.call("configure", order=None, priority=Priority())
        assert (info.order, info.priority) == (None, Priority())
        with pytest.raises(ConfigError, match="not both"):
            await inbox.call("configure", order=Order(start=0))
        assert (await inbox.call("info")).priority == Priority()
        assert (await inbox.call("configure", priority=None)).priority is None
        assert (await inbox.call("configure", priority=None)).priority is None


async def test_every_process_keeps_to_what_was_enabled(url: str) -> None:
    ran = Ran()
    with Inbox(url) as inbox:
        inbox.configure(order=Order(start=5, missing="1h", dead="skip"))
        inbox.accept_all(None, [numbered("a", 6), numbered("a", 5), numbered("b", 6)])
        work(inbox, ran)
        assert ran.by_key == {"a": [5, 6]}
        inbox.configure(order=None)
        work(inbox, ran)
    assert ran.by_key == {"a": [5, 6], "b": [6]}


@pytest.mark.parametrize(
    "wrong", [{"start": -1}, {"start": True}, {"missing": "wait"}, {"missing": timedelta(0)}, {"dead": "park"}]
)
def test_orders_that_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Order(**wrong)


# -- any history ----------------------------------------------------------------------------------------

KEYS = ("a", "b")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("accept"), st.sampled_from(KEYS), st.integers(1, 6)),
        st.tuples(st.just("process"), st.integers(1, 4), st.sampled_from([1, 3])),
        st.tuples(st.just("replay"), st.sampled_from(KEYS), st.integers(1, 6)),
        st.tuples(st.just("fail"), st.sampled_from(KEYS), st.integers(1, 6)),
        st.tuples(st.just("purge")),
    ),
    max_size=14,
)
_runs = itertools.count()


class World:
    """An inbox beside a model of it: numbers accepted, and how often each was replayed."""

    def __init__(self, url: str) -> None:
        self.inbox = agreed(url, order=Order())

    def play(self, steps: list[tuple[Any, ...]]) -> None:
        run = f"r{next(_runs)}-"
        accepted: set[tuple[str, int]] = set()
        failing: set[tuple[str, int]] = set()
        first: defaultdict[str, list[int]] = defaultdict(list)
        again: Counter[tuple[str, int]] = Counter()
        replayed: Counter[tuple[str, int]] = Counter()

        def handle(event: Event, _: Any) -> None:
            key, number = str(event.key).removeprefix(run), event.payload["n"]
            if (key, number) in failing:
                failing.discard((key, number))
                raise RuntimeError("once")
            if number in first[key]:
                again[key, number] += 1
            else:
                first[key].append(number)

        def one_id(key: str, number: int) -> str:
            return f"{run}{key}-{number}"

        for step in steps:
            match step:
                case ("accept", key, number):
                    new = self.inbox.accept(None, numbered(run + key, number, id=one_id(key, number)))
                    assert new == ((key, number) not in accepted)
                    accepted.add((key, number))
                case ("process", limit, batch):
                    work(self.inbox, handle, limit=limit, batch=batch)
                case ("replay", key, number):
                    replayed[key, number] += self.inbox.events.replay(one_id(key, number))
                case ("fail", key, number):
                    failing.add((key, number))
                case ("purge",):
                    self.inbox.purge(**ALL)
        for _ in range(50):
            work(self.inbox, handle)
            if not one_due(self.inbox):
                break
        for key in KEYS:
            numbers = {number for name, number in accepted if name == key}
            reach = next(n for n in itertools.count(1) if n not in numbers)
            assert first[key] == list(range(1, reach)), steps
            missing = {
                n
                for gap in gaps(self.inbox)
                if gap.key == run + key
                for n in range(gap.first or 0, (gap.last or 0) + 1)
            }
            assert missing == set(range(reach, max(numbers, default=0))) - numbers
        assert again == replayed


def one_due(inbox: Inbox) -> bool:
    return inbox._db.run(inbox.store.next_message(None), tx=False) is not None


@pytest.fixture(scope="module", params=ENGINES)
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> World:
    folder: Path = tmp_path_factory.mktemp("order")
    return World(inbox_url(request.param, folder))


@given(steps=STEPS)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_history(world: World, steps: list[tuple[Any, ...]]) -> None:
    world.play(steps)


@given(
    rows=st.lists(st.tuples(st.sampled_from(KEYS), st.integers(1, 8)), max_size=20),
    expected=st.dictionaries(st.sampled_from(KEYS), st.integers(1, 5)),
)
def test_admission(rows: list[tuple[str, int]], expected: dict[str, int]) -> None:
    lowest = {key: min(n for k, n in rows if k == key) for key, _ in rows}
    standing = [
        NumberedMessage(seq, key, number, expected.get(key), lowest[key]) for seq, (key, number) in enumerate(rows)
    ]
    verdict = admit(standing, 1)
    assert sorted(verdict.take + verdict.hold) == list(range(len(rows)))
    for key in KEYS:
        taken = [rows[seq][1] for seq in verdict.take if rows[seq][0] == key]
        assert taken == sorted(taken)
        reach = max([expected.get(key, 1), *(n + 1 for n in taken)])
        have = {n for k, n in rows if k == key} | set(range(1, expected.get(key, 1)))
        assert set(range(1, reach)) <= have
        assert reach not in have
        assert all(rows[seq][1] > reach for seq in verdict.hold if rows[seq][0] == key)
