"""A topic, its pull consumers, and time that the test moves."""

from __future__ import annotations

from typing import Any

from relaybox.facts import Fact
from relaybox.store.topics import GroupOptions
from relaybox.testing.clock import ManualClock
from relaybox.topics.admin import GroupAdmin
from relaybox.topics.batch import Batch
from relaybox.topics.consumer import Consumer
from relaybox.topics.start import StartFrom

from .kit import World
from .liveness_kit import home


class Pulled:
    def __init__(self, **options: Any) -> None:
        self.clock = ManualClock()
        self.world = World(now=self.clock.now(), options=options)
        self.facts: list[Fact] = []
        self.home = home(self.world, self.facts, self.clock)
        self.admin = GroupAdmin(self.home)

    def group(self, name: str = "g", **options: Any) -> None:
        self.admin.create("t", name, StartFrom.earliest(), options=GroupOptions(**options))

    def consumer(self, name: str = "c", group: str = "g") -> Consumer:
        return Consumer(self.home, "t", group, name)

    def later(self, seconds: float) -> None:
        self.clock.advance(seconds=seconds)
        self.world.now = self.clock.now()

    def of(self, kind: type[Fact]) -> list[Any]:
        return [fact for fact in self.facts if isinstance(fact, kind)]


def seqs(batch: Batch) -> list[int]:
    return sorted(event.seq for event in batch if event.seq is not None)


def drained(consumer: Consumer, most: int = 100) -> list[int]:
    seen = []
    while batch := consumer.poll(most):
        seen += seqs(batch)
        consumer.commit(batch)
    return seen
