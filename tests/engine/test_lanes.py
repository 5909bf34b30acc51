"""Lanes as a state machine against a model: one of a key at a time, in order, nothing behind a failed head."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from relaybox.engine.rows.lanes import Lanes


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
        self.seq = 0

    @rule(target=running, keys=st.lists(st.sampled_from(["a", "b", "c", "d", None]), max_size=4))
    def admit(self, keys: list[str | None]):  # type: ignore[no-untyped-def]
        items = []
        for key in keys:
            self.seq += 1
            items.append(Item(self.seq, key))
        runnable = [item for item in items if item.lane is None or self._stands_first(item)]
        assert self.lanes.admit(items) == runnable
        return multiple(*runnable)

    def _stands_first(self, item: Item) -> bool:
        assert item.lane is not None
        queue = self.waiting.setdefault(item.lane, [])
        queue.append(item)
        return len(queue) == 1

    @rule(target=running, items=st.lists(consumes(running), max_size=3))
    def finish(self, items: list[Item]):  # type: ignore[no-untyped-def]
        followers = []
        for item in items:
            if item.lane is None:
                continue
            queue = self.waiting[item.lane]
            assert queue.pop(0) == item
            if queue:
                followers.append(queue[0])
            else:
                del self.waiting[item.lane]
        assert self.lanes.finish(items) == followers
        return multiple(*followers)

    @rule(target=failed, item=consumes(running))
    def fail(self, item: Item):  # type: ignore[no-untyped-def]
        """Until that is settled it keeps its lane: whatever comes waits behind it."""
        if item.lane is None:
            assert self.lanes.clear(item) == []
            return multiple()
        return item

    @rule(item=consumes(failed))
    def settle_failure(self, item: Item) -> None:
        followers = self.lanes.clear(item)
        assert item.lane is not None
        queue = self.waiting.pop(item.lane)
        assert [item, *followers] == queue
        assert [f.seq for f in followers] == sorted(f.seq for f in followers)

    @invariant()
    def agree(self) -> None:
        assert len(self.lanes) == len(self.waiting)


TestLanes = Model.TestCase
TestLanes.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
