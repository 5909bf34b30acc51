"""What the jobs of a maintainer share: connections, store, settings, alerts, and the term that fences them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING

from ..clock import Clock
from ..drivers.spi import AsyncRunner
from ..facts import EventsLost, Observers
from ..op import Op, T
from ..settings import TopicSettings
from ..store.feeds import open_feed_store
from ..store.topics import TopicRow
from ..store.topics.maintenance import Term
from ..store.topics.terms import term_lost
from .alerts import Alerts

if TYPE_CHECKING:
    from ..store.topics.store import TopicStore

JOB = "maintenance"


class JobContext:
    def __init__(
        self, db: AsyncRunner, store: TopicStore, upkeep: TopicSettings, observers: Observers, clock: Clock
    ) -> None:
        self.db = db
        self.store = store
        self.feeds = open_feed_store(store.dialect, store.tables)
        self.upkeep = upkeep
        self.observers = observers
        self.clock = clock
        self.alerts = Alerts(db, store, observers, clock)
        self.term: Term | None = None
        self.stopping = False
        self.backlog: int | None = None  # what the last cleanup left over

    @property
    def now(self) -> datetime | None:
        return self.clock.database_now()

    async def topics(self) -> list[TopicRow]:
        return await self.read(self.store.topics())

    async def tell_lost(self, topic: TopicRow, lost: Mapping[str, int], how: str) -> int:
        """One alert for each group that lost events; their rows have the sums."""
        for group, events in sorted(lost.items()):
            text = f"{events} event(s) that it was still to have {how}"
            await self.alerts.happened("events_lost", topic.topic.name, group, text)
            self.observers(EventsLost(topic.topic.name, group, events))
        return sum(lost.values())

    async def read(self, op: Op[T]) -> T:
        return await self.db.run(op, tx=False)

    async def fenced(self, op: Op[T]) -> T:
        """In a transaction that only the leader can commit: a new leader waits for it, or it finds the term gone."""
        return await self.db.run(self._held(op))

    def _held(self, op: Op[T]) -> Op[T]:
        if self.term is None:
            op.close()
            raise term_lost(JOB)
        yield from self.store.hold_term(self.term, self.now)
        return (yield from op)
