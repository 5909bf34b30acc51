"""Logs that were carried into another cluster: found out, and put right. See sql/incarnation.sql."""

from __future__ import annotations

from datetime import datetime

from ...op import Op
from . import TopicRow
from .maintenance import Incarnation
from .ticks import TickOps

NOTHING_LEFT = -1


class IncarnationOps(TickOps):
    def incarnation(self) -> Op[Incarnation]:
        found = yield self.sql["topic.incarnation.check"].bind()
        return Incarnation(*found.rows[0])

    def note_incarnation(self) -> Op[None]:
        yield self.sql["topic.incarnation.note"].bind()

    def living_members(self, now: datetime | None) -> Op[int]:
        found = yield self.sql["topic.incarnation.living"].bind(now=now)
        return int(found.rows[0][0])

    def place_again(self, topic: TopicRow, shard: int) -> Op[None]:
        """Remember where the groups go on in a shard, by number. Needs a transaction."""
        found = yield self.log(topic.id)["topic.incarnation.places"].bind(topic=topic.id, shard=shard)
        for group, seq in found.rows:
            yield self.sql["topic.incarnation.park"].bind(
                group=group, shard=shard, seq=NOTHING_LEFT if seq is None else seq
            )
        yield self.sql["topic.incarnation.ranges"].bind(topic=topic.id, shard=shard)

    def stamp(self, topic: TopicRow, shard: int, after: int, limit: int) -> Op[tuple[int, int | None]]:
        """How many of a page's events got a number of this cluster, and where the next page begins."""
        page = yield self.log(topic.id)["topic.incarnation.stamp"].bind(shard=shard, after=after, limit=limit)
        last, seen, stamped = page.rows[0]
        return stamped, last if seen == limit else None

    def go_on(self, topic: TopicRow, now: datetime | None) -> Op[None]:
        """A first tick of this cluster, to which the groups read from their places. Needs a transaction of its own."""
        tick = yield from self.tick(topic, now, wait=True, force=True)
        yield self.sql["topic.incarnation.resume"].bind(topic=topic.id, tick=tick, now=now)
        yield self.sql["topic.incarnation.promise"].bind(topic=topic.id, now=now)
        yield self.sql["topic.incarnation.starts"].bind(topic=topic.id)
        yield self.sql["topic.incarnation.forget"].bind(topic=topic.id, tick=tick)
