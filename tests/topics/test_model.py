"""Whatever groups do, in any order, no live group misses an event, none is stuck, nothing is deleted early.

A model keeps what each group is owed: what was committed after it came (all there was, if it began with the earliest),
until it has settled it. Rules act on a real database and on the model. When a script ends, everybody who lives is
drained and must have been given all it was owed; then every event that anybody was required to have must be complete.

25 scripts of 40 steps for each tracking, the same ones each time. MODEL_EXAMPLES=1000 makes as many new ones, about a
second each, and MODEL_STEPS=100 longer ones.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from relaybox import Event
from relaybox.errors import IllegalMove
from relaybox.ids import key_hash, new_token
from relaybox.op import run
from relaybox.store.event_rows import lane_key
from relaybox.store.topics import (
    ClaimedRanges,
    GroupOptions,
    ParkedOutcome,
    Parking,
    RangeSettlement,
    Start,
)
from relaybox.topic import Tracking

from .world import World, make_url

NAMES = ("a", "b", "c", "d")
SOON = timedelta(microseconds=1)
LEASE = timedelta(minutes=1)
_numbers = count(1)
EXAMPLES = int(os.environ.get("MODEL_EXAMPLES", "25"))
pytestmark = pytest.mark.timeout(600 + 60 * EXAMPLES)
names = st.sampled_from(NAMES)
who = st.integers(0, len(NAMES) - 1)


@dataclass
class Reader:
    """What the model knows of a group."""

    owed: set[int]
    first: int = 0  # lower numbers that are committed late are passed over
    state: str = "active"
    taken: list[ClaimedRanges] = field(default_factory=list)
    parked: set[int] = field(default_factory=set)  # copies: the log may forget them
    again: set[int] = field(default_factory=set)  # may come twice, because of a seek or a death
    sought: bool = False  # then it has left something behind without a word
    job: int | None = None

    @property
    def live(self) -> bool:
        return self.state in ("active", "paused")


class Model(RuleBasedStateMachine):
    tracking: ClassVar[Tracking]
    url: ClassVar[str | None] = None

    @initialize()
    def begin(self) -> None:
        if Model.url is None:
            Model.url = make_url()
        self.world = World(
            self.tracking, url=Model.url, name=f"model{next(_numbers)}", shards=3, retention=SOON, zero_retention=SOON
        )
        self.log = f"outbox_event_log_{self.world.topic.id}"
        self.readers: dict[str, Reader] = {}
        self.transactions: list[tuple[ExitStack, Any, list[int]]] = []

    # -- writers ----------------------------------------------------------------------------------

    @rule(number=st.integers(1, 6))
    def write(self, number: int) -> None:
        self._committed(self.world.write(number))

    @precondition(lambda self: len(self.transactions) < 3)
    @rule(number=st.integers(1, 3))
    def write_and_wait(self, number: int) -> None:
        stack = ExitStack()
        connection = stack.enter_context(self.world.db.connection())
        connection.begin()
        seqs = run(self.world.store.write(self.world.topic, _events(number), None), connection)
        assert seqs is not None
        self.transactions.append((stack, connection, seqs))

    @precondition(lambda self: self.transactions)
    @rule(which=st.integers(0, 2), commits=st.booleans())
    def end_transaction(self, which: int, commits: bool) -> None:
        stack, connection, seqs = self.transactions.pop(which % len(self.transactions))
        if commits:
            connection.commit()
            self._committed(seqs)
        else:
            connection.rollback()
        stack.close()

    def _committed(self, seqs: list[int]) -> None:
        for reader in self.readers.values():
            reader.owed.update(seq for seq in seqs if seq >= reader.first)

    def _stored(self) -> set[int]:
        return {row[0] for row in self.world.sql(f"SELECT seq FROM {self.log}")}

    # -- groups -----------------------------------------------------------------------------------

    def _pick(self, who: int | str) -> tuple[str, Reader]:
        """One of those there are: by name, or whichever the number falls on."""
        name = who if isinstance(who, str) else sorted(self.readers)[who % len(self.readers)]
        return name, self.readers[name]

    @rule(name=names, earliest=st.booleans(), ordered=st.booleans())
    def join(self, name: str, earliest: bool, ordered: bool) -> None:
        known = self.readers.get(name)
        if known is not None and known.state != "dead":
            return
        start = Start("earliest" if earliest else "latest")
        options = None if known else GroupOptions(ordered=ordered)
        store = self.world.store
        group, new = self.world.run(store.subscribe(self.world.topic, name, start, options, None))
        assert new == (known is None)
        if known is not None:
            self._resurrected(name, known)
        else:
            self.readers[name] = Reader(self._stored() if earliest else set())
        assert group.state == "active"

    @precondition(lambda self: self.readers)
    @rule(who=who)
    def resurrect(self, who: int) -> None:
        name, reader = self._pick(who)
        if reader.state != "dead":
            return
        self.world.run(self.world.store.apply(self.world.group(name), "resume", "back", None))
        self._resurrected(name, reader)

    def _resurrected(self, name: str, reader: Reader) -> None:
        """It goes on from where it was, with what is still there; the model's words for resurrection and backfill."""
        reader.state = "active"
        reader.owed &= self._stored() | reader.parked
        reader.job = None

    @precondition(lambda self: self.readers)
    @rule(who=who, state=st.sampled_from(["paused", "active", "dead", "cancelled"]))
    def move(self, who: int, state: str) -> None:
        name, reader = self._pick(who)
        if reader.state == state or (reader.state, state) == ("dead", "active"):
            return
        try:
            self.world.state(name, state)
        except IllegalMove:
            assert (reader.state, state) in {("paused", "dead"), ("dead", "paused")}
            return
        reader.state = state
        if state in ("dead", "cancelled"):
            reader.again |= _numbers_of(reader.taken)
            reader.taken.clear()
        if state == "cancelled":
            del self.readers[name]

    # -- reading ----------------------------------------------------------------------------------

    @rule()
    def tick(self) -> None:
        self.world.tick()

    @precondition(lambda self: self.readers)
    @rule(who=who, events=st.integers(1, 5), ranges=st.integers(1, 4))
    def claim(self, who: int, events: int, ranges: int) -> None:
        name, reader = self._pick(who)
        taken = self.world.claim(name, events=events, ranges=ranges)
        if reader.state != "active":
            assert not taken.pages
        if taken.pages:
            given = _numbers_of([taken])
            assert given <= reader.owed | reader.again, f"{name} was given {given - reader.owed} for the second time"
            reader.taken.append(taken)

    @precondition(lambda self: self.readers)
    @rule(who=who, which=st.integers(0, 3))
    def settle(self, who: int | str, which: int) -> None:
        name, reader = self._pick(who)
        if not reader.taken:
            return
        taken = reader.taken.pop(which % len(reader.taken))
        assert self.world.settle(name, taken) == 0
        self._settled(reader, _numbers_of([taken]))

    @precondition(lambda self: self.readers)
    @rule(who=who, which=st.integers(0, 3))
    def fail(self, who: int, which: int) -> None:
        """The first event of each page is parked; in an ordered group the rest of its key goes behind it."""
        name, reader = self._pick(who)
        if not reader.taken:
            return
        taken = reader.taken.pop(which % len(reader.taken))
        ordered, parkings = self.world.group(name).ordered, []
        for held, rows in taken.pages:
            events = [Event.stored(row[:12]) for row in rows]
            key = lane_key(events[0])
            for n, event in enumerate(events):
                if n == 0 or (ordered and lane_key(event) == key):
                    state: Any = "held" if n or key_hash(key) in taken.held else "retry"
                    parkings.append(
                        (held.token, Parking(event, held.place.shard, key_hash(key), state, 1, timedelta(), "no"))
                    )
        done = [(held, [row[0] for row in rows]) for held, rows in taken.pages]
        settlement = RangeSettlement(finished=done, parkings=parkings)
        store = self.world.store
        assert self.world.run(store.settle(self.world.topic, self.world.group(name), settlement, None)) == 0
        parked = {parking.event.seq for _, parking in parkings if parking.event.seq is not None}
        reader.parked |= parked
        self._settled(reader, _numbers_of([taken]) - parked)

    @precondition(lambda self: self.readers)
    @rule(who=who, dead=st.booleans())
    def retry(self, who: int, dead: bool) -> None:
        name, reader = self._pick(who)
        if reader.state == "active":
            self._retry(name, reader, dead=dead)

    def _retry(self, name: str, reader: Reader, *, dead: bool = False) -> int:
        group, store = self.world.group(name), self.world.store
        claimed = self.world.run(store.claim_parked(self.world.topic, group, self.world.member(group), 5, LEASE, None))
        outcomes = [ParkedOutcome(event.row[0], event.token, None, "no" if dead else None, dead) for event in claimed]
        self.world.run(store.settle(self.world.topic, group, RangeSettlement(parked=outcomes), None))
        self._settled(reader, {outcome.seq for outcome in outcomes})
        return len(claimed)

    def _settled(self, reader: Reader, seqs: set[int]) -> None:
        reader.owed -= seqs
        reader.parked -= seqs

    @precondition(lambda self: self.readers)
    @rule(who=who, to=st.sampled_from(["latest", "earliest", "event"]))
    def seek(self, who: int, to: Any) -> None:
        name, reader = self._pick(who)
        if not reader.live:
            return
        stored = self._stored()
        event = sorted(stored)[len(stored) // 2] if stored else 1
        start = Start(to, event=event if to == "event" else None)
        self.world.run(self.world.store.seek(self.world.topic, self.world.group(name), start, None))
        reader.again |= stored | reader.parked | reader.owed
        reader.taken.clear()
        reader.sought = True
        reader.first = event if to == "event" else 0
        reader.owed = set() if to == "latest" else {seq for seq in stored if seq >= reader.first}
        parked = f"SELECT seq FROM outbox_event_parked WHERE group_id = {self.world.group(name).id} AND state <> 'dead'"
        reader.parked = {row[0] for row in self.world.sql(parked)}

    # -- jobs -------------------------------------------------------------------------------------

    @precondition(lambda self: self.readers)
    @rule(who=who, limit=st.integers(1, 5))
    def backfill(self, who: int | str, limit: int) -> None:
        name, reader = self._pick(who)
        group, store = self.world.group(name), self.world.store
        if reader.job is None:
            token = new_token()
            begun = self.world.run(store.begin_backfill(self.world.topic, group, token, LEASE, None))
            assert begun in ("begun", "resumed", "completed", "busy", "gone")
            reader.job = token if begun in ("begun", "resumed") else None
        if reader.job is not None:
            step = self.world.run(store.backfill_step(self.world.topic, group, reader.job, limit, LEASE, 0.0, None))
            if step is None or step[1]:
                reader.job = None

    @rule(limit=st.integers(1, 10))
    def release(self, limit: int) -> None:
        self.world.run(self.world.store.release(self.world.topic, None, limit=limit))

    @precondition(lambda self: self.readers)
    @rule(who=who)
    def catch_up(self, who: int) -> None:
        name, reader = self._pick(who)
        if reader.sought:
            self.world.catch_up(name)

    @rule()
    def sweep(self) -> None:
        """Nothing goes that a live group is owed, but copies of it are parked."""
        before = self._stored()
        kept = self._required_and_open()
        self.world.run(self.world.store.sweep_log(self.world.topic, dict.fromkeys(range(3), 0), 1000, None))
        gone = before - self._stored()
        for name, reader in self.readers.items():
            early = gone & (reader.owed - reader.parked) if reader.live else set()
            assert not early, f"{early} deleted, {name} has not had them"
        assert not gone & kept, "deleted while somebody who lives is waited for"

    def _required_and_open(self) -> set[int]:
        if self.tracking == "offset":
            return set()
        acks = self.world.mark.replace("_mark_", "_ack_")
        wanted = {
            "bitmap": "m.required & t.required & ~m.done <> 0",
            "acks": f"""EXISTS (SELECT 1 FROM unnest(m.required) AS g WHERE g = ANY(t.audience) AND NOT EXISTS (
                SELECT 1 FROM {acks} a WHERE a.seq = m.seq AND a.group_id = g))""",
        }[self.tracking]
        text = f"""SELECT m.seq FROM {self.world.mark} m, outbox_event_topic t
                   WHERE t.id = {self.world.topic.id} AND m.completed_at IS NULL AND {wanted}"""
        return {row[0] for row in self.world.sql(text)}

    # -- the end ----------------------------------------------------------------------------------

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        try:
            while self.transactions:
                self.end_transaction(0, True)
            for name, reader in self.readers.items():
                if reader.state == "paused":
                    self.world.state(name, "active")
                    reader.state = "active"
            living = {name: reader for name, reader in self.readers.items() if reader.state == "active"}
            for name, reader in living.items():
                self._finish(name, reader)
            for name, reader in living.items():
                assert not reader.owed, f"{name} never got {sorted(reader.owed)}"
            self._all_complete(list(living))
        finally:
            self.world.db.close()

    def _finish(self, name: str, reader: Reader) -> None:
        while reader.job is not None:
            self.backfill(name, 5)
        while reader.taken:
            self.settle(name, 0)
        while True:
            self.world.tick()
            taken = self.world.claim(name)
            if taken.pages:
                assert self.world.settle(name, taken) == 0
                self._settled(reader, _numbers_of([taken]))
            elif not self._retry(name, reader) and not taken.behind:
                return

    def _all_complete(self, living: list[str]) -> None:
        if self.tracking == "offset":
            return
        self.world.release()
        self.world.catch_up(*(name for name in living if self.readers[name].sought))
        nobody = {"bitmap": "required = 0", "acks": "required = '{}'"}[self.tracking]
        stuck = self.world.sql(f"SELECT seq FROM {self.world.mark} WHERE completed_at IS NULL AND NOT {nobody}")
        assert stuck == [], f"{stuck} are complete and do not know it"


def _numbers_of(taken: list[ClaimedRanges]) -> set[int]:
    return {row[0] for one in taken for _, rows in one.pages for row in rows}


def _events(number: int) -> list[Event]:
    return [Event("Happened", {"n": n}, key=f"k{n % 3}") for n in range(number)]


class OffsetModel(Model):
    tracking = "offset"


class BitmapModel(Model):
    tracking = "bitmap"


class AcksModel(Model):
    tracking = "acks"


_settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=int(os.environ.get("MODEL_STEPS", "40")),
    deadline=None,
    phases=(Phase.explicit, Phase.generate),  # making a script of database calls smaller takes longer than reading it
    derandomize="MODEL_EXAMPLES" not in os.environ,
    suppress_health_check=list(HealthCheck),
)
TestOffset = OffsetModel.TestCase
TestOffset.settings = _settings
TestBitmap = BitmapModel.TestCase
TestBitmap.settings = _settings
TestAcks = AcksModel.TestCase
TestAcks.settings = _settings
