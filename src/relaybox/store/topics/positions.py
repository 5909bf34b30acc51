"""Where a group stands: how far behind it is, and putting it somewhere else."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from ...errors import ConfigError
from ...op import Op
from . import GroupRow, Lag, Start, TopicRow
from .groups import GroupOps
from .life import GroupState
from .ranges import RangeOps

# Events counted one by one; beyond, the rest is reckoned from the numbers that are left.
COUNTED = 20_000


class Unread(NamedTuple):
    """A group that is still to have an event, or has it parked."""

    group: int
    state: GroupState
    seq: int


class PositionOps(RangeOps, GroupOps):
    def seek(self, topic: TopicRow, group: GroupRow, to: Start, now: datetime | None) -> Op[None]:
        """Needs a transaction. What members hold is refused from then on. Waits for claims that are under way."""
        if topic.topic.tracking == "rows":
            raise ConfigError(
                f"queue {topic.topic.name!r} is tracked by rows: what is done is gone, and there is no place to go to; "
                "replay dead events instead, or move the queue to tracking='offset'"
            )
        yield from self._lock_groups(topic.id)
        place = yield from self.start_of(topic, to, now)
        yield from self.promise(topic.id, place.base, now)
        yield self.sql["topic.position.start"].bind(group=group.id, since=place.since, first=place.first)
        yield from self._hold_cursors(group)
        yield self.sql["topic.position.place"].bind(group=group.id, base=place.base, now=now)
        yield self.sql["topic.position.drop"].bind(group=group.id)
        yield from self.lock_parked(group)
        again = yield self.log(topic.id)["topic.position.unpark"].bind(
            topic=topic.id, group=group.id, base=place.base, since=place.since, first=place.first
        )
        yield from self.promote(group, [row[0] for row in again.rows], now)

    def hold_place(self, group: GroupRow) -> Op[None]:
        """Until the end of the transaction nobody moves the group, and its members move on no more."""
        yield from self._lock_groups(group.topic_id)
        yield from self._hold_cursors(group)

    def unread(self, topic: TopicRow, seqs: Sequence[int]) -> Op[list[Unread]]:
        """Which groups are still to have which of these events."""
        if not seqs:
            return []
        found = yield self.log(topic.id)["topic.position.unread"].bind(topic=topic.id, seqs=list(seqs))
        return [Unread(*row) for row in found.rows]

    def lag(self, topic: TopicRow, group: GroupRow, now: datetime | None) -> Op[Lag]:
        if topic.topic.tracking == "rows":
            return (yield from self.lag_rows(topic, group, now))
        log, shards = self.log(topic.id), topic.topic.shards
        most = COUNTED // shards + 1
        unread = yield log["topic.position.lag"].bind(topic=topic.id, group=group.id, shards=shards, most=most)
        held = yield log["topic.position.held"].bind(group=group.id, shards=shards, now=now)
        at, taken, oldest_taken, parked, oldest_parked, dead = held.rows[0]
        counts: dict[int, int] = {}
        exact = True
        for shard, count, more, _, first, last, newest in unread.rows:
            counts[shard] = _reckoned(count, first, last, newest) if more else count
            exact = exact and not more
        created = [row[3] for row in unread.rows] + [oldest_taken, oldest_parked]
        ages = [at - one for one in created if one is not None]
        return Lag(
            group=group.name,
            events=sum(counts.values()) + taken + parked,
            taken=taken,
            parked=parked,
            dead=dead,
            oldest=max(*ages, timedelta()) if ages else None,
            shards=counts,
            exact=exact,
        )


def _reckoned(count: int, first: int, last: int, newest: int) -> int:
    """As dense as what was counted, up to the newest number."""
    return count + max(0, newest - last) * count // (last - first + 1)
