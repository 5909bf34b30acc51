"""A topic, its pull consumers, and time that the test moves."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from relaybox import Retry, StartFrom
from relaybox.facts import Fact
from relaybox.testing.clock import ManualClock
from relaybox.topics.batch import Batch
from relaybox.topics.consumer import Consumer
from relaybox.topics.group import Group

from .kit import World
from .liveness_kit import context, group_at

SILENCE = timedelta(minutes=5)


class Pulled:
    def __init__(self, **options: Any) -> None:
        self.clock = ManualClock()
        self.world = World(now=self.clock.now(), options=options)
        self.facts: list[Fact] = []
        self.context = context(self.world, self.facts, self.clock)

    def at(self, name: str = "g", **options: Any) -> Group:
        return group_at(self.context, name, **options)

    def group(self, name: str = "g", *, attempts: int = 10, **options: Any) -> Group:
        options = {"start": StartFrom.earliest(), "on_exhausted": "skip", "silence": SILENCE, **options}
        self.at(name, retry=Retry(attempts=attempts), **options).create()
        return self.at(name)

    def consumer(self, name: str = "c", group: str = "g") -> Consumer[Any]:
        return self.at(group).consumer(name)

    def later(self, seconds: float) -> None:
        self.clock.advance(seconds=seconds)
        self.world.now = self.clock.now()

    def of(self, kind: type[Fact]) -> list[Any]:
        return [fact for fact in self.facts if isinstance(fact, kind)]


def beat(consumer: Consumer[Any]) -> None:
    """A sign of life, as every poll gives one."""
    consumer._play(consumer._alive(timedelta(0)))


def seqs(batch: Batch[Any]) -> list[int]:
    return sorted(event.seq for event in batch if event.seq is not None)


def drained(consumer: Consumer[Any], most: int = 100) -> list[int]:
    seen = []
    while batch := consumer.poll(most):
        seen += seqs(batch)
        consumer.commit(batch)
    return seen
