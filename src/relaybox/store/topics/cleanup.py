"""Deleting what is old and done with; see sql/cleanup.sql for what that is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import datetime, timedelta

from ...op import Op, Query
from . import TopicRow
from .logs import LogQueries
from .maintenance import Leftover, Sweep, Zombie

# Ticks: all that are younger than FRESH, then one per GRAIN, after a day one per COARSE.
FRESH = timedelta(minutes=5)
GRAIN = timedelta(seconds=10)
COARSE = timedelta(minutes=10)
# In a log that is spread a place means something in one table only. IS TRUE: a look into a hash, never a join.
SAME = "AND (l.seq IN (SELECT seq FROM locked)) IS TRUE"


class CleanupOps(LogQueries):
    def sweep_log(
        self, topic: TopicRow, places: Mapping[int, int], limit: int, now: datetime | None
    ) -> Op[Sweep | None]:
        """Delete what may go of the next `limit` events after each shard's place. None: the topic is busy. Needs a
        transaction."""
        locked = yield self.sql["topic.cleanup.lock"].bind(topic=topic.id)
        if not locked.rows:
            return None
        swept = yield self._swept(topic, "topic.cleanup.sweep").bind(
            topic=topic.id,
            shards=list(places),
            afters=list(places.values()),
            limit=max(1, limit // len(places)),
            now=now,
        )
        deleted, groups, events = swept.rows[0][3:6] if swept.rows else (0, [], [])
        lost = yield from self.count_lost(dict(zip(groups, events, strict=True)))
        return Sweep(deleted, lost, {row[0]: row[1] for row in swept.rows if row[2]})

    def count_lost(self, lost: Mapping[int, int]) -> Op[dict[str, int]]:
        """What groups will not get any more, by their ids; the answer is by name."""
        if not lost:
            return {}
        counted = yield self.sql["topic.cleanup.count_lost"].bind(groups=list(lost), events=list(lost.values()))
        return {row[0]: row[1] for row in counted.rows}

    def backlog(self, topic: TopicRow, limit: int, now: datetime | None) -> Op[int]:
        """How many of the oldest `limit` events could go and have not."""
        found = yield self._swept(topic, "topic.cleanup.backlog").bind(
            topic=topic.id, limit=limit // topic.topic.shards + 1, now=now
        )
        return int(found.rows[0][0])

    def _swept(self, topic: TopicRow, name: str) -> Query:
        """In the words of how the topic is tracked, and of how many tables it has."""
        slots, tracking = self.log_slots(topic.id), topic.topic.tracking
        words = {f"log_{word}": slots[f"{word}_{tracking}"] for word in ("marks", "closed", "unmark")}
        return self.later(topic, name, **words, log_same=SAME if topic.topic.spread > 1 else "")

    def purge_letters(self, retention: timedelta, limit: int, now: datetime | None) -> Op[int]:
        gone = yield self.sql["topic.cleanup.letters"].bind(retention=retention, limit=limit, now=now)
        return len(gone.rows)

    # -- groups -----------------------------------------------------------------------------------

    def old_groups(self, topic: TopicRow, retention: timedelta, now: datetime | None) -> Op[list[Leftover]]:
        """Dead or cancelled for longer than this; `pending`: something of theirs is parked yet."""
        found = yield self.sql["topic.cleanup.groups"].bind(topic=topic.id, retention=retention, now=now)
        return [Leftover(*row) for row in found.rows]

    def forget_group(self, topic: TopicRow, group: int, retention: timedelta, now: datetime | None) -> Op[bool]:
        locked = yield self.sql["topic.cleanup.lock"].bind(topic=topic.id)
        if not locked.rows:
            return False
        if topic.topic.tracking == "bitmap":  # the next owner of its bit would be done with what it never had
            found = yield self.sql["topic.group.find"].bind(topic=None, name=None, id=group)
            bit = found.rows[0][7] if found.rows else None
            if bit is not None and (yield self.log(topic.id)["topic.group.bit_in_use"].bind(bit=bit)).rows[0][0]:
                return False
        gone = yield self.sql["topic.cleanup.forget"].bind(group=group, retention=retention, now=now)
        yield self.sql["topic.group.end_promise"].bind(topic=topic.id, now=now)
        return bool(gone.rows)

    def put_forward(self, topic: TopicRow, now: datetime | None) -> Op[list[Zombie]]:
        """Cursors that stood still for `zombie_ttl` go past what is older than the retention."""
        locked = yield self.sql["topic.cleanup.lock"].bind(topic=topic.id)
        found = yield self.sql["topic.cleanup.zombies"].bind(topic=topic.id, now=now)
        if not locked.rows:
            return []
        zombies = []
        for row in found.rows:
            zombie = Zombie(*row)
            place = {"group": zombie.group_id, "shard": zombie.shard, "tick": zombie.to}
            over = yield self._swept(topic, "topic.cleanup.passed_over").bind(topic=topic.id, **place)
            zombies.append(zombie._replace(lost=over.rows[0][0]))
            yield self.sql["topic.cleanup.lose"].bind(**place)
            yield self.sql["topic.cleanup.keep"].bind(**place)
            yield self.sql["topic.cleanup.advance"].bind(**place, now=now)
        lost = Counter[int]()
        for zombie in zombies:
            lost[zombie.group_id] += zombie.lost
        yield from self.count_lost(lost)
        return zombies

    def forgive(self, topic: TopicRow, group: int, limit: int, now: datetime | None) -> Op[int]:
        """Marks wait no more for a group that was put forward. How many changed: call again until 0."""
        name = {"bitmap": "topic.cleanup.forgive", "acks": "topic.cleanup.forgive_wide"}.get(topic.topic.tracking)
        if name is None:
            return 0
        changed = yield self.log(topic.id)[name].bind(topic=topic.id, group=group, limit=limit, now=now)
        return len(changed.rows)

    # -- ticks ------------------------------------------------------------------------------------

    def thin_ticks(self, topic: TopicRow, after: int, limit: int, now: datetime | None) -> Op[tuple[int, int | None]]:
        """How many of the page after that tick went, and where the next page begins; None: that was the last."""
        locked = yield self.sql["topic.cleanup.lock"].bind(topic=topic.id)
        if not locked.rows:
            return 0, None
        found = yield self.sql["topic.cleanup.thin"].bind(
            topic=topic.id, after=after, fresh=FRESH, grain=GRAIN, coarse=COARSE, limit=limit, now=now
        )
        gone, last, seen = found.rows[0]
        return gone, last if seen == limit else None
