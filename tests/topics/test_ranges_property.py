"""Any order of writing, claiming, settling, giving back, expiring, leaving: a shard of an ordered group has one member,
every key keeps its order, and in the end everything was settled once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from relaybox import ALL
from relaybox.op import Op, Query
from relaybox.store.events import Search
from relaybox.store.topics import GroupRow, Range, Row
from relaybox.testing.servers import require

from .kit import START, World, happened

WHO = st.integers(0, 2)
FEW = st.integers(1, 4)
CLAIM = st.tuples(st.just("claim"), WHO, FEW, FEW)
FINISH = st.tuples(st.just("finish"), WHO, st.integers(0, 9))
STEP = st.one_of(
    st.tuples(st.just("write"), st.integers(1, 8)),
    CLAIM,
    CLAIM,
    FINISH,
    FINISH,
    st.tuples(st.just("return"), WHO, st.integers(0, 9)),
    st.tuples(st.just("leave"), WHO),
    st.tuples(st.just("forget"), WHO),
    st.tuples(st.just("wait"), st.sampled_from([20, 31])),
)
STEPS = st.lists(STEP, min_size=30, max_size=30)

TWO_OWNERS = """SELECT r.shard FROM outbox_event_range r JOIN outbox_event_member m ON m.id = r.owner
                WHERE r.group_id = :group AND r.until > :now GROUP BY 1 HAVING count(DISTINCT r.owner) > 1"""


def asked(text: str, **values: Any) -> Op[Sequence[Any]]:
    result = yield Query("asked", text, "rows").bind(**values)
    return result.rows


@dataclass
class Game:
    world: World
    group: GroupRow
    written: int = 0
    members: dict[int, int] = field(default_factory=dict)
    hands: dict[int, list[tuple[Range, list[Row]]]] = field(default_factory=lambda: defaultdict(list))
    settled: list[int] = field(default_factory=list)
    order: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))

    def play(self, step: tuple[Any, ...]) -> None:
        getattr(self, step[0] + "_")(*step[1:])
        self.check()

    def member(self, who: int) -> int:
        if who not in self.members:
            self.members[who] = self.world.member(self.group, f"m{who}", timedelta(days=1))
        return self.members[who]

    def write_(self, count: int) -> None:
        self.world.write(*(happened(n, f"k{n % 5}") for n in range(self.written, self.written + count)))
        self.written += count

    def claim_(self, who: int, events: int, ranges: int) -> None:
        taken = self.world.take(self.group, self.member(who), events=events, ranges=ranges)
        self.hands[who] += taken.pages

    def finish_(self, who: int, which: int) -> None:
        if not self.hands[who]:
            return
        held, page = self.hands[who].pop(0 if self.group.ordered else which % len(self.hands[who]))
        if self.world.settle(self.group, finished=[(held, ())]) == 0:
            self.note(page)

    def return_(self, who: int, which: int) -> None:
        """In ordered groups a member gives back from the end, as nothing may overtake what it keeps."""
        if not self.hands[who]:
            return
        held, page = self.hands[who].pop(-1)
        done = page[: which % (len(page) + 1)] if not self.hands[who] else []
        if self.world.settle(self.group, returned=[(held, [row[0] for row in done])]) == 0:
            self.note(done)

    def leave_(self, who: int) -> None:
        if who in self.members:
            self.world.run(self.world.store.leave(self.members.pop(who), self.world.now))

    def forget_(self, who: int) -> None:
        """A process that is gone and never says anything again."""
        self.hands[who].clear()
        self.members.pop(who, None)

    def wait_(self, seconds: int) -> None:
        assert self.world.now is not None
        self.world.now += timedelta(seconds=seconds)

    def note(self, page: list[Row]) -> None:
        for row in page:
            self.settled.append(row[0])
            self.order[row[4]].append(row[0])

    def check(self) -> None:
        held = self.world.run(asked(TWO_OWNERS, group=self.group.id, now=self.world.now), tx=False)
        assert not (self.group.ordered and held), "a shard has two members"
        assert len(self.settled) == len(set(self.settled)), "settled twice"

    def end(self) -> None:
        self.wait_(3600)
        for who in list(self.members):
            self.leave_(who)
        self.hands.clear()
        while True:
            self.claim_(9, 100, 9)
            if not self.hands[9]:
                break
            while self.hands[9]:
                self.finish_(9, 0)
            self.check()
        kept = self.world.kept(self.group)
        letters = self.world.run(kept.events("open", Search(ALL), 1000)).events
        letters += self.world.run(kept.events("dead", Search(ALL), 1000)).events
        assert sorted([*self.settled, *(letter.event.seq for letter in letters)]) == list(range(1, self.written + 1))
        if self.group.ordered:
            lone = {letter.event.key for letter in letters}
            for key, seqs in self.order.items():
                assert seqs == sorted(seqs) or key in lone, f"{key} was settled in the order {seqs}"


@pytest.mark.parametrize("ordered", [True, False], ids=["ordered", "unordered"])
def test_any_interleaving(ordered: bool) -> None:
    require("postgres-wheel", durable=False)
    with World(now=START) as world:
        games = 0

        @settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
        @given(STEPS)
        def play(steps: list[tuple[Any, ...]]) -> None:
            nonlocal games
            games += 1
            world.now = START
            world.topic = world.configure(f"topic{games}", shards=3)
            game = Game(world, world.group(ordered=ordered))
            for step in steps:
                game.play(step)
            game.end()

        play()
