"""Completion marks of bitmap and acks topics: who must have an event, who is done with it. See sql/mark.sql."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from ...op import Op
from ...topic import Tracking
from . import GroupRow, TopicRow
from .completion import Completion
from .logs import LogQueries

LAST = 2**63 - 1


class MarkWindow(NamedTuple):
    """Open marks up to a number, as one group stands to them."""

    last: int | None  # None: there are no more
    passed: Sequence[int]  # it will not get these (again)
    waiting: Sequence[int]


class MarkOps(LogQueries):
    def make_marks(self, topic_id: int, tracking: Tracking) -> Op[None]:
        log = self.log(topic_id)
        if tracking == "bitmap":
            yield log["topic.mark.create"].bind()
        else:
            yield log["topic.mark.create_wide"].bind()
            yield log["topic.mark.create_acks"].bind()
        yield log["topic.mark.create_open"].bind()

    def drop_marks(self, topic_id: int) -> Op[None]:
        yield self.log(topic_id)["topic.mark.drop"].bind()

    def complete(self, topic: TopicRow, group: GroupRow, seqs: Sequence[int], now: datetime | None) -> Op[int]:
        """This group is done with these, in the transaction that says so. How many events that completed."""
        if not seqs or topic.topic.tracking not in ("bitmap", "acks"):
            return 0
        log = self.log(topic.id)
        if topic.topic.tracking == "bitmap":
            if len(seqs) > 1:
                yield log["topic.mark.lock_unacked"].bind(seqs=list(seqs), bit=group.bit)
            acked = yield log["topic.mark.ack"].bind(seqs=list(seqs), bit=group.bit, now=now)
            return int(acked.rows[0][0])
        open_ = yield log["topic.mark.lock"].bind(seqs=list(seqs))
        ours = [row[0] for row in open_.rows]
        if not ours:
            return 0
        yield log["topic.mark.insert_acks"].bind(seqs=ours, group=group.id)
        complete = yield log["topic.mark.complete_wide"].bind(seqs=ours, now=now)
        return (yield from self._forget_acks(topic.id, [row[0] for row in complete.rows]))

    def mismatched(self, topic: TopicRow, limit: int) -> Op[int]:
        """Open events that wait for a group that is dead or cancelled."""
        wide = topic.topic.tracking == "acks"
        name = "topic.watch.mismatched_wide" if wide else "topic.watch.mismatched"
        found = yield self.log(topic.id)[name].bind(topic=topic.id, limit=limit)
        return int(found.rows[0][0])

    def release(self, topic: TopicRow, now: datetime | None, *, limit: int = 10_000) -> Op[int]:
        """Takes every group that is not active or paused off open marks. How many marks changed: call again until 0.
        Needs a transaction."""
        log = self.log(topic.id)
        if topic.topic.tracking not in ("bitmap", "acks") or not (yield from self.mismatched(topic, 1)):
            return 0
        if topic.topic.tracking == "bitmap":
            released = yield log["topic.mark.release"].bind(topic=topic.id, limit=limit, now=now)
            return len(released.rows)
        locked = yield log["topic.mark.lock_wide"].bind(topic=topic.id, limit=limit)
        if not locked.rows:
            return 0
        seqs, audience = [row[0] for row in locked.rows], list(locked.rows[0][1])
        released = yield log["topic.mark.release_wide"].bind(seqs=seqs, audience=audience, now=now)
        yield from self._forget_acks(topic.id, [seq for seq, complete in released.rows if complete])
        return len(released.rows)

    def catch_up(
        self,
        topic: TopicRow,
        group: GroupRow,
        after: int,
        now: datetime | None,
        *,
        limit: int = 10_000,
        upto: int = LAST,
    ) -> Op[int | None]:
        """Notes as done what the group has left behind without an ack: what a seek skipped, what was done before the
        topic had marks. Where to go on; None at the end. Idempotent. Needs a transaction."""
        if topic.topic.tracking not in ("bitmap", "acks"):
            return None
        window = yield from self.window(topic, group, after, upto, limit)
        yield from self.complete(topic, group, window.passed, now)
        return window.last

    def window(self, topic: TopicRow, group: GroupRow, after: int, upto: int, limit: int) -> Op[MarkWindow]:
        found = yield self.log(topic.id)["topic.mark.window"].bind(
            group=group.id, after=after, upto=upto, limit=limit, shards=list(range(topic.topic.shards))
        )
        return MarkWindow(*found.rows[0])

    def completion(self, topic: TopicRow, seqs: Sequence[int]) -> Op[list[Completion]]:
        """Who must have these events and who is done with them; of what is not kept any more there is no answer."""
        names = {
            "rows": "topic.mark.show_rows",
            "offset": "topic.mark.show_offset",
            "bitmap": "topic.mark.show",
            "acks": "topic.mark.show_wide",
        }
        found = yield self.log(topic.id)[names[topic.topic.tracking]].bind(topic=topic.id, seqs=list(seqs))
        return [Completion(seq, at and self.from_time(at), *names) for seq, at, *names in found.rows]

    def force_complete(
        self, topic: TopicRow, before: datetime, now: datetime | None, *, limit: int = 10_000
    ) -> Op[int]:
        """Completes open events created before then, even if groups wait for them. How many: call again until 0."""
        if topic.topic.tracking not in ("bitmap", "acks"):
            return 0
        forced = yield self.log(topic.id)["topic.mark.force"].bind(before=before, limit=limit, now=now)
        if topic.topic.tracking == "acks":
            yield from self._forget_acks(topic.id, [row[0] for row in forced.rows])
        return len(forced.rows)

    def _forget_acks(self, topic_id: int, seqs: Sequence[int]) -> Op[int]:
        """Nobody asks again who was done with a complete event, so the acks need no more room than the open ones."""
        if seqs:
            yield self.log(topic_id)["topic.mark.forget_acks"].bind(seqs=list(seqs))
        return len(seqs)
