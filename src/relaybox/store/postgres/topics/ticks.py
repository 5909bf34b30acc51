"""Ticks: moments of a log. What two ticks differ in is what was committed between them."""

from __future__ import annotations

from datetime import datetime

from ....op import Op
from ...topics import TopicRow
from .logs import LogQueries

# Numbers drawn since the last tick that are a reason for the next, seen or not.
STALE = 10_000


class TickOps(LogQueries):
    def tick(self, topic: TopicRow, now: datetime | None, *, wait: bool = False, force: bool = False) -> Op[int | None]:
        """The newest tick, made now if the last one missed something (or `force`). None: somebody else is making one.
        Needs a transaction of its own, or with `wait` that of somebody who needs the tick to be durable with it."""
        log = self.log(topic.id)
        news = log["topic.tick.news"].bind(topic=topic.id, stale=STALE)
        known, missed = (yield news).rows[0]
        if not (missed or force):
            return int(known)
        locked = yield log["topic.tick.wait" if wait else "topic.tick.lock"].bind(topic=topic.id)
        if not locked.rows:
            return None
        floor = locked.rows[0][1]
        if not force:  # one may have been made meanwhile
            tick, missed = (yield news).rows[0]
            if not missed:
                return int(tick)
        made = yield log["topic.tick.make"].bind(topic=topic.id, floor=floor, now=now)
        return int(made.rows[0][0])
