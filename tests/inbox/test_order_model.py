"""Any history of an ordered inbox beside a model of it: arrivals in any order and again, failures, dead letters,
replays, releases, discards, purges and time. After every run of a processor both agree on each effect, number, gap."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from kit import rows
from relaybox import Event, Reject
from relaybox.testing.clock import ManualClock
from relaybox.types import Order

from .effects import QUICK, say, text_of, with_effects
from .kit import agreed, expected, fresh_url, gaps, migrated, processed

KEYS = st.sampled_from(["a", "b"])
NUMBERS = st.integers(1, 6)
ORDERS = st.builds(
    Order,
    start=st.sampled_from([1, 1, 3, None]),
    missing=st.sampled_from(["block", timedelta(minutes=5)]),
    dead=st.sampled_from(["block", "skip"]),
)
Name = tuple[str, int]  # a key and a number
_runs = itertools.count()


@dataclass
class Waiting:
    since: float
    replayed: bool = False
    failed: bool = False
    resting: bool = False  # it failed, and is due again when time has passed


@dataclass
class Key:
    """What the inbox should know of one key."""

    next: int | None = None
    waiting: dict[int, Waiting] = field(default_factory=dict)
    done: set[int] = field(default_factory=set)  # and can be replayed
    dead: set[int] = field(default_factory=set)
    in_turn: list[int] = field(default_factory=list)
    beside: Counter[int] = field(default_factory=Counter)


class Model:
    def __init__(self, order: Order) -> None:
        self.order = order
        self.now = 0.0
        self.keys = {"a": Key(), "b": Key()}
        self.poisoned: set[Name] = set()  # never succeed
        self.stumbling: set[Name] = set()  # fail once

    def process(self) -> None:
        for name, key in self.keys.items():
            while self._step(name, key):
                pass

    def _step(self, name: str, key: Key) -> bool:
        awake = sorted(n for n, waiting in key.waiting.items() if not waiting.resting)
        first = self.first(key)
        if awake and first is not None and awake[0] <= first:
            key.next = first
            self._run(name, key, awake[0])
            return True
        if awake and awake[0] == min(key.waiting) and self._waited_enough(key.waiting[awake[0]]):
            key.next = awake[0]
            return True
        return False

    def _waited_enough(self, waiting: Waiting) -> bool:
        """What came behind a gap that has lasted as long as it may."""
        missing = self.order.missing
        return isinstance(missing, timedelta) and self.now - waiting.since >= missing.total_seconds()

    def first(self, key: Key) -> int | None:
        """The number the key goes on with, or would begin with."""
        if key.next is not None:
            return key.next
        return self.order.start if self.order.start is not None else min(key.waiting, default=None)

    def _run(self, name: str, key: Key, number: int) -> None:
        assert key.next is not None
        waiting = key.waiting[number]
        if number < key.next and not waiting.replayed:
            self._die(key, number)
        elif (name, number) in self.stumbling:
            self.stumbling.discard((name, number))
            waiting.resting = waiting.failed = True
        elif (name, number) in self.poisoned:
            self._die(key, number)
            if number == key.next and self.order.dead == "skip":
                key.next += 1
        else:
            del key.waiting[number]
            key.done.add(number)
            if number == key.next:
                key.next += 1
                key.in_turn.append(number)
            else:
                key.beside[number] += 1

    def _die(self, key: Key, number: int) -> None:
        del key.waiting[number]
        key.dead.add(number)

    def gaps(self) -> set[tuple[str, int, bool]]:
        """Numbers that block those behind them, and whether each is in a run of which the first has died."""
        found: set[tuple[str, int, bool]] = set()
        for name, key in self.keys.items():
            first = self.first(key)
            last = max(key.waiting, default=0)
            missing = [n for n in range(first or 0, last) if n not in key.waiting]
            for _, run in itertools.groupby(enumerate(missing), lambda pair: pair[1] - pair[0]):
                numbers = [n for _, n in run]
                found |= {(name, n, numbers[0] in key.dead) for n in numbers}
        return found


class OrderedInbox(RuleBasedStateMachine):
    url = ""

    @initialize(order=ORDERS)
    def begin(self, order: Order) -> None:
        self.run = f"r{next(_runs)}"
        self.clock = ManualClock()
        self.inbox = agreed(migrated(self.url, self.run), self.run, order=order, clock=self.clock)
        self.model = Model(order)
        self.accepted: set[Name] = set()
        self.settled = True  # nothing has happened since a processor ran

    def _id(self, key: str, number: int) -> str:
        return f"{self.run}-{key}-{number}"

    @rule(key=KEYS, number=NUMBERS)
    def arrive(self, key: str, number: int) -> None:
        self._accept(key, number)

    @rule(key=KEYS, numbers=st.permutations(range(1, 7)))
    def arrive_all(self, key: str, numbers: list[int]) -> None:
        for number in numbers:
            self._accept(key, number)

    def _accept(self, key: str, number: int) -> None:
        event = Event("Moved", {"n": number}, key=key, id=self._id(key, number), headers={"sequence": str(number)})
        new = self.inbox.accept(None, event)
        assert new == ((key, number) not in self.accepted)
        if new:
            self.accepted.add((key, number))
            self.model.keys[key].waiting[number] = Waiting(self.model.now)
            self.settled = False

    @rule(key=KEYS, number=NUMBERS, how=st.sampled_from(["poisoned", "stumbling"]))
    def mark(self, key: str, number: int, how: str) -> None:
        getattr(self.model, how).add((key, number))

    @rule()
    def cure(self) -> None:
        self.model.poisoned.clear()

    @rule(seconds=st.sampled_from([1, 301]))
    def wait(self, seconds: int) -> None:
        self.clock.advance(seconds)
        self.model.now += seconds
        for key in self.model.keys.values():
            for waiting in key.waiting.values():
                waiting.resting = False
        self.settled = False

    @rule(key=KEYS, number=NUMBERS)
    def replay(self, key: str, number: int) -> None:
        known = self.model.keys[key]
        there = number in known.done | known.dead
        assert self.inbox.events.replay(self._id(key, number)) == there
        if there:
            known.done.discard(number)
            known.dead.discard(number)
            known.waiting[number] = Waiting(self.model.now, replayed=True)
            self.settled = False

    @rule(key=KEYS, number=NUMBERS)
    def release_to(self, key: str, number: int) -> None:
        known = self.model.keys[key]
        first = known.next or self.model.order.start or 0
        assert self.inbox.keys.release(key, to=number) == (number > first)
        if number > first:
            known.next = number
            self.settled = False

    @precondition(lambda self: self.settled)
    @rule(key=KEYS)
    def release(self, key: str) -> None:
        known = self.model.keys[key]
        first = known.next or self.model.order.start
        here = [n for n in known.waiting if first is not None and n >= first]
        lowest = min(here, default=0)
        tried_again = bool(here) and lowest == first and known.waiting[lowest].failed
        assert self.inbox.keys.release(key) == (tried_again or (bool(here) and lowest != first))
        if tried_again:
            known.waiting[lowest].replayed = True
            known.next = lowest + 1
        elif here:
            known.next = max(known.next or 0, lowest)
        self.settled = False

    @rule(key=KEYS, number=NUMBERS)
    def discard(self, key: str, number: int) -> None:
        known = self.model.keys[key]
        there = number in known.dead or number in known.waiting
        assert self.inbox.events.discard(self._id(key, number)) == there
        known.dead.discard(number)
        known.waiting.pop(number, None)
        if there and number == (known.next or self.model.order.start):
            known.next = number + 1
        self.settled = self.settled and not there

    @rule()
    def purge(self) -> None:
        done = [number for key in self.model.keys.values() for number in key.done]
        self.clock.advance(0.001)
        assert self.inbox.purge(done=0, dead=None, seen=None) == len(done)
        for key in self.model.keys.values():
            key.done.clear()

    @precondition(lambda self: not any(key.waiting or key.dead for key in self.model.keys.values()))
    @rule()
    def forget_every_id(self) -> None:
        """What comes again after that has had its turn: it becomes a dead letter, and no second effect."""
        self.purge()
        assert self.inbox.purge(done=0, seen=0) == 0
        assert self.inbox.status().seen == 0
        self.accepted.clear()

    @rule(batch=st.sampled_from([1, 1, 3]))
    def process(self, batch: int) -> None:
        poisoned, stumbling = self.model.poisoned, set(self.model.stumbling)

        def handle(event: Event, handle: Any) -> None:
            name = str(event.key), event.payload["n"]
            say(handle, text_of(event, self.run))
            if name in stumbling:
                stumbling.discard(name)
                raise RuntimeError("once")
            if name in poisoned:
                raise Reject("never")

        self.model.process()
        idle = 0
        while idle < 2:  # a gap that has lasted long enough is left behind when a processor starts, once it is held
            idle = 0 if sum(self._process(handle, batch)) else idle + 1
        self.settled = True
        self._compare()

    def _process(self, handle: Any, batch: int) -> tuple[int, int, int]:
        result = processed(self.inbox, handle, settings=QUICK, batch=batch)
        return result.done, result.failed, result.dead

    def _compare(self) -> None:
        effects = [row[0].rpartition("-") for row in rows(self.url, self._text("effect", "note", "id"))]
        dead = {(letter.event.key, letter.event.payload["n"]) for letter in self.inbox.dead.list(limit=1000)}
        for name, key in self.model.keys.items():
            numbers = [int(number) for prefix, _, number in effects if prefix == f"{self.run}-{name}"]
            assert Counter(numbers) == Counter(key.in_turn) + key.beside
            assert key.in_turn == sorted(set(key.in_turn))
            assert [n for n in numbers if not key.beside[n]] == [n for n in key.in_turn if not key.beside[n]]
            assert {n for k, n in dead if k == name} == key.dead
            assert expected(self.inbox, name) == key.next
        assert self.inbox.status().pending == sum(len(key.waiting) for key in self.model.keys.values())

    def _text(self, table: str, column: str, order: str) -> str:
        return f"SELECT event_id FROM {table} WHERE {column} = '{self.run}' ORDER BY {order}"

    @invariant()
    def gaps(self) -> None:
        if getattr(self, "settled", False):
            found = {
                (gap.key, n, gap.cause == "dead")
                for gap in gaps(self.inbox)
                for n in range(gap.first or 0, (gap.last or 0) + 1)
            }
            assert found == self.model.gaps()

    def teardown(self) -> None:
        if hasattr(self, "inbox"):
            self.inbox.close()


def numbered(number: int, **options: Any) -> Event:
    return Event("Moved", {}, key="a", headers={"sequence": str(number)}, **options)


def stumble(event: Event, _: Any) -> None:
    raise RuntimeError("not yet")


def die(event: Event, _: Any) -> None:
    raise Reject("never")


def test_a_number_that_was_skipped_is_not_missing(url: str) -> None:
    """The one before it failed, was skipped too, and still waits for its next attempt."""
    with agreed(url, order=Order(start=3), clock=ManualClock()) as inbox:
        inbox.accept(None, numbered(3))
        processed(inbox, stumble, settings=QUICK)
        inbox.keys.release("a", to=5)
        inbox.accept(None, numbered(6))
        processed(inbox, stumble, settings=QUICK)
        assert [(gap.first, gap.last) for gap in gaps(inbox)] == [(5, 5)]


def test_a_dead_letter_that_is_tried_again_is_not_missing(url: str) -> None:
    with agreed(url, order=Order(), clock=ManualClock()) as inbox:
        inbox.accept_all(None, [numbered(1, id="first"), numbered(2)])
        processed(inbox, die, settings=QUICK)
        assert [(gap.first, gap.last, gap.cause) for gap in gaps(inbox)] == [(1, 1, "dead")]
        inbox.dead.replay("first")
        processed(inbox, stumble, settings=QUICK)
        assert gaps(inbox) == []


@pytest.mark.timeout(300)
@pytest.mark.parametrize("engine", ["postgres", "sqlite"])
def test_any_history(engine: str, tmp_path: Path) -> None:
    machine = type("Machine", (OrderedInbox,), {"url": with_effects(fresh_url(engine, tmp_path))})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=15, stateful_step_count=16, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
