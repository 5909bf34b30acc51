"""Backfill: adding a group to what open events require. See sql/backfill.sql."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Literal

from ...op import Op
from . import GroupRow, TopicRow
from .completion import BackfillRow
from .marks import MarkOps


class BackfillOps(MarkOps):
    def begin_backfill(
        self,
        topic: TopicRow,
        group: GroupRow,
        token: int,
        lease: timedelta,
        now: datetime | None,
    ) -> Op[Literal["begun", "resumed", "completed", "busy", "gone"]]:
        """Whether the job is ours now, and from the beginning or from where it was left. Needs a transaction."""
        found = yield self.sql["topic.backfill.lock"].bind(group=group.id, now=now)
        if not found.rows or found.rows[0][0] not in ("active", "paused"):
            return "gone"
        _, state, leased, first = found.rows[0]
        if state == "completed":
            return "completed"
        if state == "in_progress" and leased:
            return "busy"
        if state != "not_started":
            yield self.sql["topic.backfill.resume"].bind(group=group.id, token=token, lease=lease, now=now)
            return "resumed"
        until, total = 0, 0
        if topic.topic.tracking in ("bitmap", "acks"):
            extent = yield self.log(topic.id)["topic.backfill.extent"].bind(first=first)
            total, until = extent.rows[0]
        yield self.sql["topic.backfill.begin"].bind(
            group=group.id, seq=first, until=until, total=total, token=token, lease=lease, now=now
        )
        return "begun"

    def backfill_step(
        self,
        topic: TopicRow,
        group: GroupRow,
        token: int,
        limit: int,
        lease: timedelta,
        rate: float,
        now: datetime | None,
    ) -> Op[tuple[int, bool] | None]:
        """One batch and its checkpoint: how many events now require the group, and whether that was the end. None: the
        job is no longer ours. Needs a transaction."""
        held = yield from self.hold_backfill(group, token, lease, rate, now)
        if held is None:
            return None
        seq, until = held
        added, ended = 0, True
        if topic.topic.tracking in ("bitmap", "acks"):
            window = yield from self.window(topic, group, seq - 1, until, limit)
            added = yield from self._require(topic, group, window.waiting)
            ended = window.last is None or window.last >= until
            seq = until + 1 if window.last is None else window.last + 1
        yield self.sql["topic.backfill.advance"].bind(group=group.id, seq=seq, added=added, ended=ended, now=now)
        return added, ended

    def _require(self, topic: TopicRow, group: GroupRow, seqs: Sequence[int]) -> Op[int]:
        log = self.log(topic.id)
        if topic.topic.tracking == "bitmap":
            changed = yield log["topic.backfill.require"].bind(seqs=list(seqs), bit=group.bit)
        else:
            changed = yield log["topic.backfill.require_wide"].bind(seqs=list(seqs), group=group.id)
        return changed.count

    def hold_backfill(
        self, group: GroupRow, token: int, lease: timedelta, rate: float, now: datetime | None
    ) -> Op[tuple[int, int] | None]:
        """Renews the lease: the next number and the last. None: cancelled, taken over, or the group is not alive."""
        held = yield self.sql["topic.backfill.hold"].bind(
            group=group.id, token=token, lease=lease, rate=float(rate), now=now
        )
        return tuple(held.rows[0]) if held.rows else None

    def cancel_backfill(self, group: GroupRow, now: datetime | None) -> Op[bool]:
        """Stops it at the border of a batch, wherever it runs. It can be resumed."""
        ended = yield self.sql["topic.backfill.end"].bind(
            group=group.id, state="cancelled", error=None, token=None, now=now
        )
        return ended.count > 0

    def leave_backfill(self, group: GroupRow, token: int) -> Op[None]:
        """Leaves the backfill as it is, for the next process."""
        yield self.sql["topic.backfill.leave"].bind(group=group.id, token=token)

    def fail_backfill(self, group: GroupRow, token: int, error: str, now: datetime | None) -> Op[bool]:
        ended = yield self.sql["topic.backfill.end"].bind(
            group=group.id, state="failed", error=error, token=token, now=now
        )
        return ended.count > 0

    def backfill(self, group: GroupRow) -> Op[BackfillRow | None]:
        found = yield self.sql["topic.backfill.show"].bind(group=group.id)
        if not found.rows:
            return None
        return BackfillRow(*found.rows[0])
