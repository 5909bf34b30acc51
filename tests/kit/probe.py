"""A probe that collects facts and deliveries, and waits for conditions on them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from relaybox import Event
from relaybox.facts import Fact

PATIENCE = 20.0
F = TypeVar("F", bound=Fact)


@dataclass
class Seen:
    event: Event
    attempts: int
    source: str
    at: float


@dataclass
class Probe:
    """Collects facts and deliveries. Tests wait for a condition on them, never for seconds."""

    facts: list[Fact] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def __call__(self, fact: Fact) -> None:
        with self._changed:
            self.facts.append(fact)
            self._changed.notify_all()

    def deliver(self, event: Event, delivery: Any) -> None:
        with self._changed:
            self.seen.append(Seen(event, delivery.attempts, delivery.source, time.monotonic()))
            self._changed.notify_all()

    def wait(self, condition: Callable[[], Any], timeout: float = PATIENCE) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, timeout), (
                f"waited {timeout} s in vain; delivered {len(self.seen)}, last facts {self.facts[-5:]}"
            )

    async def until(self, condition: Callable[[], Any], timeout: float = PATIENCE) -> None:
        await asyncio.to_thread(self.wait, condition, timeout)

    def of(self, kind: type[F]) -> list[F]:
        return [fact for fact in list(self.facts) if isinstance(fact, kind)]

    @property
    def ids(self) -> list[str]:
        return [seen.event.id for seen in list(self.seen)]

    def count(self, event_id: str) -> int:
        return self.ids.count(event_id)

    def has(self, *event_ids: str) -> Callable[[], bool]:
        return lambda: set(event_ids) <= set(self.ids)

    def wrote(self, count: int) -> Callable[[], bool]:
        return lambda: len(self.seen) >= count
