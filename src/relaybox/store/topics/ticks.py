"""Ticks: moments of a log. What two ticks differ in is what was committed between them."""

from __future__ import annotations

from datetime import datetime

from ...op import Op
from . import TopicRow
from .logs import LogQueries

# Numbers drawn since the last tick that are a reason for the next, seen or not.
STALE = 10_000


class TickOps(LogQueries):
    def tick(self, topic: TopicRow, now: datetime | None, *, wait: bool = False, force: bool = False) -> Op[int | None]:
        """The newest tick, made now if the last one missed something (or `force`). None: somebody else is making one.
        One statement, for which nothing is begun; with `wait` two, in the transaction of somebody who needs the tick to
        be durable with it."""
        if wait:
            yield self.sql["topic.tick.wait"].bind(topic=topic.id)
        make = self.log(topic.id)["topic.tick.make"]
        made = yield make.bind(topic=topic.id, stale=STALE, force=force, durable=wait, now=now)
        tick = made.rows[0][0]
        return None if tick is None else int(tick)
