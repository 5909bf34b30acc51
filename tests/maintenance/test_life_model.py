"""A model of the life of groups, with time: whatever is done to groups and however long it takes,

* no event that a group was to have is gone before its time: `retention` always, `max_retention` for a group that keeps
  its claim, unless it stood still for `zombie_ttl` since it last came to life;
* every event that a group was to have and does not get is counted in its row and told;
* a group that is given nothing says why, and open events wait for every group that is still to have them.

Rules act on a real database and on the model; the test moves the database's time. 10 scripts of 24 steps for each
tracking, the same ones each time; LIFE_EXAMPLES=500 makes as many new ones.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import count
from typing import Any, ClassVar

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from relaybox import Outbox, StartFrom, Topic
from relaybox.errors import IllegalMove
from relaybox.facts import Alert, EventsLost
from relaybox.maintenance import AsyncMaintainer
from relaybox.store.topics.life import STANDING
from relaybox.topic import Tracking
from relaybox.topics.group import Group
from relaybox.types import TopicSettings
from topics.pull_kit import beat

from .kit import World, run_jobs

EXAMPLES = int(os.environ.get("LIFE_EXAMPLES", "10"))
pytestmark = pytest.mark.timeout(300 + 30 * EXAMPLES)

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
RETENTION, ZOMBIE, LONGEST = 2 * DAY, 3 * DAY, 10 * DAY
TIMEOUT = timedelta(hours=2)
names = st.sampled_from(("mail", "search"))
waits = st.sampled_from((HOUR, 5 * HOUR, 30 * HOUR, 30 * HOUR, 50 * HOUR, 80 * HOUR, 11 * DAY))
ALL = ("ticks", "partitions", "detect", "cleanup", "groups", "thin")
runs = st.sampled_from((("detect",), ("cleanup",), ("detect", "cleanup", "partitions"), ALL))
_numbers = count(1)


@dataclass
class Reader:
    """What the model knows of a group that is not cancelled."""

    wants: set[int]
    alive_since: datetime
    beat_at: datetime
    moved_at: datetime
    state: str = "active"
    stalled: bool = False
    settled: int = 0  # of the losses in its row: those that a read has shown to be true
    required: bool = True  # open events that it wants wait for it; not after a seek, which asks for nothing


@dataclass
class Written:
    at: datetime
    promised: bool
    there: bool = True


@dataclass
class Home:
    """One database, one outbox and one maintainer for all scripts of a tracking."""

    world: World = field(default_factory=World)

    def __post_init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.box = Outbox(self.world.url, clock=self.world.clock)
        self.look = psycopg.connect(self.world.url, autocommit=True)
        self.maintainer: AsyncMaintainer = self.world.maintainer(upkeep=TopicSettings(group_retention=20 * DAY))

    def close(self) -> None:
        self.loop.run_until_complete(self.maintainer.stop())
        self.loop.close()
        self.box.close()
        self.look.close()
        self.world.close()


class Life(RuleBasedStateMachine):
    tracking: ClassVar[Tracking]
    home: ClassVar[Home]

    def __init__(self) -> None:
        super().__init__()
        self.box, self.clock = self.home.box, self.home.world.clock
        self.topic = f"orders-{next(_numbers)}"
        self.events: dict[int, Written] = {}
        self.readers: dict[str, Reader] = {}
        self.home.world.facts.clear()

    @property
    def now(self) -> datetime:
        return self.clock.at

    @initialize(zero=st.sampled_from((4 * HOUR, 4 * DAY)), partitions=st.sampled_from(("none", "day")))
    def configure(self, zero: timedelta, partitions: Any) -> None:
        self.zero = zero
        row = self.box.topics.configure(
            Topic(
                name=self.topic,
                semantics="pub_sub",
                tracking=self.tracking,
                shards=2,
                retention=RETENTION,
                zero_retention=zero,
                max_retention=LONGEST,
                zombie_ttl=ZOMBIE,
                partitions=partitions,
            )
        )
        self.log = f"outbox_event_log_{row.id}"
        self.create("mail", earliest=False)
        self.write(2)

    def teardown(self) -> None:
        for name in self.readers:
            self.group(name).cancel()
        self.box.topics.drop(self.topic)

    def group(self, name: str, **options: Any) -> Group:
        return self.box.topics.group(self.topic, name, **options)

    # -- writing and reading ------------------------------------------------------------------------

    @rule(events=st.integers(1, 4))
    def write(self, events: int) -> None:
        producer = self.box.topics.producer(self.topic)
        with self.box.transaction() as tx:
            for n in range(events):
                number = producer.send(tx, n, key=str(n), type="Placed") or 0
                self.events[number] = Written(self.now, promised=bool(self.readers))
                for reader in self.readers.values():
                    reader.wants.add(number)
        self.home.loop.run_until_complete(run_jobs(self.home.maintainer, "ticks"))

    @rule(name=names, most=st.sampled_from((1, 100)))
    def read(self, name: str, most: int) -> None:
        """To the end with 100; with 1 only a part."""
        if name not in self.readers:
            return
        reader, got = self.readers[name], set[int]()
        with self.group(name).consumer("reader") as consumer:
            while batch := consumer.poll(most):
                got |= {event.seq for event in batch if event.seq is not None}
                consumer.commit(batch)
                if most == 1:
                    break
            self._sign(reader)
            assert (consumer.standstill is None) == (reader.state == "active"), "it says why it is given nothing"
        if reader.state != "active":
            assert not got
            return
        assert got <= reader.wants, "nothing comes twice, and nothing it was not to have"
        if got:
            reader.moved_at = self.now
        reader.wants -= got
        if most > 1:
            lost, parked = self.group(name).info().lost, self._parked(name)
            missing = reader.wants - parked
            assert lost - reader.settled == len(missing), f"{name} misses {missing}"
            assert not any(self.events[number].there for number in missing) or self._put_forward(name)
            reader.settled, reader.wants = lost, reader.wants & parked

    @rule(name=names)
    def take_and_crash(self, name: str) -> None:
        """It polls and is never heard of again; what it took is free when its lease is over."""
        if name in self.readers:
            consumer = self.group(name).consumer("crashed")
            if consumer.poll(3, lease=1):
                self.readers[name].moved_at = self.now
            self._sign(self.readers[name])
            self.clock.pass_time(minutes=3)

    @rule(name=names)
    def heartbeat(self, name: str) -> None:
        if name in self.readers:
            with self.group(name).consumer("reader") as consumer:
                beat(consumer)
            self._sign(self.readers[name])

    def _sign(self, reader: Reader) -> None:
        """A sign of life."""
        if self.now - reader.beat_at > TIMEOUT:
            reader.alive_since = self.now
        reader.beat_at = self.now
        if reader.state == "dead" and not reader.stalled:
            self._alive(reader)

    def _alive(self, reader: Reader) -> None:
        if reader.state != "active":
            reader.state, reader.stalled = "active", False
            reader.alive_since = reader.beat_at = self.now

    # -- what operators do --------------------------------------------------------------------------

    @rule(name=names, earliest=st.booleans())
    def create(self, name: str, earliest: bool) -> None:
        if name in self.readers:
            return
        start = StartFrom.earliest() if earliest else StartFrom.latest()
        self.group(name, start=start, silence=TIMEOUT).create()
        wants = self._there() if earliest else set()
        for number in wants:
            self.events[number].promised = True
        self.readers[name] = Reader(wants, self.now, self.now, self.now)

    @rule(name=names, verb=st.sampled_from(("pause", "resume", "stall", "cancel")))
    def turn(self, name: str, verb: str) -> None:
        if name not in self.readers:
            return
        reader = self.readers[name]
        row = next(row for row in self._rows() if row.name == name and row.state != "cancelled")
        if verb == "stall":
            if reader.state == "active":
                self.home.world.run(self.home.world.store.apply(row, "stall", "test", self.now))
                reader.state, reader.stalled = "dead", True
            return
        try:
            getattr(self.group(name), verb)(reason="test")
        except IllegalMove:
            assert (verb, reader.state) == ("pause", "dead")
            return
        if verb == "cancel":
            del self.readers[name]
        elif verb == "pause":
            reader.state = "paused"
        else:
            self._alive(reader)

    @rule(name=names, earliest=st.booleans())
    def seek(self, name: str, earliest: bool) -> None:
        if name not in self.readers:
            return
        reader = self.readers[name]
        self.group(name).seek(StartFrom.earliest() if earliest else StartFrom.latest())
        reader.wants = self._there() if earliest else set()
        reader.settled = self.group(name).info().lost
        reader.moved_at, reader.required = self.now, False
        for number in reader.wants:
            self.events[number].promised = True

    # -- time and maintenance -----------------------------------------------------------------------

    @rule(wait=waits)
    def pass_time(self, wait: timedelta) -> None:
        self.clock.at += wait

    @rule(wait=waits, jobs=runs)
    def later(self, wait: timedelta, jobs: tuple[str, ...]) -> None:
        self.clock.at += wait
        self.maintain(jobs)

    @rule(name=names, wait=waits, back=st.sampled_from(("paused", "stalled", "heartbeat")), jobs=runs)
    def go_and_come_back(self, name: str, wait: timedelta, back: str, jobs: tuple[str, ...]) -> None:
        """Paused, stalled or dead for so long, then back; the maintenance comes before the first poll."""
        if back == "paused":
            self.turn(name, "pause")
        elif back == "stalled":
            self.turn(name, "stall")
        self.later(wait, ("detect",))
        if back != "heartbeat":
            self.read(name, 1)
        self.heartbeat(name) if back == "heartbeat" else self.turn(name, "resume")
        self.maintain(jobs)

    @rule(jobs=runs)
    def maintain(self, jobs: tuple[str, ...]) -> None:
        before = len(self.home.world.facts)
        report = self.home.loop.run_until_complete(run_jobs(self.home.maintainer, *jobs))
        facts = self.home.world.facts[before:]
        assert report.lost == sum(fact.events for fact in facts if isinstance(fact, EventsLost))
        self._watch_groups()
        for fact in facts:
            if isinstance(fact, Alert) and fact.name == "group_put_forward" and fact.topic == self.topic:
                reader = self.readers[fact.group]
                assert self.now - max(reader.alive_since, reader.moved_at) > ZOMBIE, "it had its time"

    def _watch_groups(self) -> None:
        """Who died, and was it time; who was forgotten, and could it be."""
        rows = {row.name: row for row in self._rows() if row.state != "cancelled"}
        for name, reader in list(self.readers.items()):
            row = rows.get(name)
            if row is None:
                assert reader.state == "dead", "only the dead are forgotten"
                del self.readers[name]
            elif row.state == "dead" and reader.state == "active":
                assert row.stalled or self.now - reader.beat_at > TIMEOUT
                reader.state, reader.stalled = "dead", row.stalled
            else:
                assert (row.state, row.stalled) == (reader.state, reader.stalled)

    # -- what must be so ----------------------------------------------------------------------------

    @invariant()
    def nothing_went_before_its_time(self) -> None:
        there = self._there()
        for number, event in self.events.items():
            if not event.there or number in there:
                continue
            event.there, age = False, self.now - event.at
            assert age > (RETENTION if event.promised else min(self.zero, LONGEST)), f"{number} went after {age}"
            for name, reader in self.readers.items():
                if number in reader.wants - self._parked(name) and STANDING[reader.state].kept:  # type: ignore[index]
                    assert age > LONGEST or self._put_forward(name), f"{number} went before {name} had it"

    @invariant()
    def every_loss_is_counted_and_told(self) -> None:
        told = Counter[str]()
        for fact in self.home.world.facts:
            if isinstance(fact, EventsLost) and fact.topic == self.topic:
                told[fact.group] += fact.events
        counted = Counter[str]()
        for row in self._rows():
            counted[row.name] += row.lost
        alerts = {f.group for f in self.home.world.facts if isinstance(f, Alert) and f.name == "events_lost"}
        assert set(+counted) <= alerts
        for name, reader in self.readers.items():
            (lost,) = (row.lost for row in self._rows() if row.name == name and row.state != "cancelled")
            gone = sum(not self.events[number].there for number in reader.wants - self._parked(name))
            assert gone <= lost - reader.settled, f"{name} lost {gone} events without a word"
            assert lost <= told[name]

    @precondition(lambda self: self.tracking != "offset")
    @invariant()
    def open_events_wait_for_who_is_to_have_them(self) -> None:
        there = self._there()
        place = self.box.topics._context
        topic = place.db.run(place.known(self.topic))
        for shown in place.db.run(place.store.completion(topic, sorted(there))):
            assert set(shown.waiting) <= set(self.readers), f"{shown.seq} waits for a group that is gone"
            if shown.completed_at is None:
                for name, reader in self.readers.items():
                    wanted = shown.seq in reader.wants and reader.required and not self._put_forward(name)
                    if wanted and STANDING[reader.state].required:  # type: ignore[index]
                        assert name in shown.waiting, f"{shown.seq} does not wait for {name}"

    # -- looking past relaybox ----------------------------------------------------------------------

    def _there(self) -> set[int]:
        return {row[0] for row in self.home.look.execute(f"SELECT seq FROM {self.log}")}  # type: ignore[arg-type]

    def _parked(self, name: str) -> set[int]:
        """What crashed with its reader too often is with the group as a copy: the log may go."""
        text = f"""SELECT p.seq FROM outbox_event_parked p JOIN outbox_event_group g ON g.id = p.group_id
                   JOIN outbox_event_topic t ON t.id = g.topic_id
                   WHERE t.name = '{self.topic}' AND g.name = '{name}' AND g.state <> 'cancelled'"""
        return {row[0] for row in self.home.look.execute(text)}  # type: ignore[arg-type]

    def _rows(self) -> list[Any]:
        return self.home.world.run(self.home.world.store.groups(self.topic))

    def _put_forward(self, name: str) -> bool:
        return any(
            alert.topic == self.topic and alert.group == name for alert in self.home.world.told("group_put_forward")
        )


def check(machine: type[Life]) -> None:
    machine.home = Home()
    try:
        machine.TestCase.settings = settings(
            max_examples=EXAMPLES,
            stateful_step_count=24,
            deadline=None,
            derandomize="LIFE_EXAMPLES" not in os.environ,
            database=None,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        machine.TestCase("runTest").runTest()
    finally:
        machine.home.close()


@pytest.mark.parametrize("tracking", ["offset", "bitmap", "acks"])
def test_no_promised_event_goes_early_and_every_loss_is_told(tracking: Tracking) -> None:
    class Machine(Life):
        pass

    Machine.tracking = tracking
    check(Machine)
