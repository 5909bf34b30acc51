"""Lanes as a state machine against a model: one of a key at a time, in order, nothing behind a failed head."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from relaybox.runtime.lanes import Lanes


@dataclass(frozen=True)
class Item:
    seq: int
    lane: str | None


class Model(RuleBasedStateMachine):
    """`waiting[key]`: seqs in arrival order, the head included. Bundles hold what the engine holds."""

    running = Bundle("running")
    failed = Bundle("failed")

    def __init__(self) -> None:
        super().__init__()
        self.lanes: Lanes[Item] = Lanes()
        self.waiting: dict[str, list[Item]] = {}
        self.blocked: set[str] = set()
        self.seq = 0

    @rule(target=running, key=st.sampled_from(["a", "b", "c", None]))
    def admit(self, key: str | None):  # type: ignore[no-untyped-def]
        self.seq += 1
        item = Item(self.seq, key)
        runs = self.lanes.admit(item)
        if key is None:
            assert runs
            return item
        queue = self.waiting.setdefault(key, [])
        queue.append(item)
        assert runs == (len(queue) == 1)
        return item if runs else multiple()

    @rule(target=running, item=consumes(running))
    def finish(self, item: Item):  # type: ignore[no-untyped-def]
        follower = self.lanes.finish(item)
        if item.lane is None:
            assert follower is None
            return multiple()
        queue = self.waiting[item.lane]
        assert queue.pop(0) == item
        if not queue:
            del self.waiting[item.lane]
            assert follower is None
            return multiple()
        assert follower == queue[0]
        return follower

    @rule(target=failed, item=consumes(running))
    def fail(self, item: Item):  # type: ignore[no-untyped-def]
        self.lanes.block(item)
        if item.lane is None:
            assert self.lanes.clear(item) == []
            return multiple()
        self.blocked.add(item.lane)
        return item

    @rule(item=consumes(failed))
    def settle_failure(self, item: Item) -> None:
        followers = self.lanes.clear(item)
        assert item.lane is not None
        queue = self.waiting.pop(item.lane)
        self.blocked.discard(item.lane)
        assert [item, *followers] == queue
        assert [f.seq for f in followers] == sorted(f.seq for f in followers)

    @invariant()
    def agree(self) -> None:
        assert len(self.lanes) == len(self.waiting)
        assert self.lanes.blocked() == self.blocked


TestLanes = Model.TestCase
TestLanes.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
