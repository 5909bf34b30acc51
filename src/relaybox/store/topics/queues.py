"""The one group of a queue tracked by rows: what it holds, and pull consumers that claim from it. See sql/queue.sql.

Its events are in an outbox of the queue's own, so the group has a state and members, but no place."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from ...ids import new_token
from ...op import Op
from ..claims import Claim, Death, HeldRow, RetryRow
from ..outbox import OutboxStore
from ..outbox.fair import TenantRound
from ..outbox.values import ClaimedRow, Settlement
from . import GroupRow, Lag, ParkedEvent, ParkedOutcome, TopicRow
from .logs import LogQueries

ROOM = 16 * 2**20  # bytes of payloads in a claim


class QueueOps(LogQueries):
    def claim_rows(
        self,
        topic: TopicRow,
        member: int,
        limit: int,
        lease: timedelta,
        now: datetime | None,
        at: TenantRound | None = None,
    ) -> Op[list[ParkedEvent]]:
        """Nothing for a member that is not alive or whose group is not active. Fair between tenants if there is a place
        in their round."""

        def claimable() -> Op[list[ClaimedRow]]:
            return queue.claim(claim, limit, now) if at is None else queue.claim_fair(claim, limit, at, now)

        log, queue = self.log(topic.id), self.queue(topic.id)
        member_name = yield log["topic.queue.state"].bind(member=member, now=now)
        if not member_name.rows:
            return []
        yield log["topic.queue.enlist"].bind(
            member=member, name=member_name.rows[0][0], ttl=lease.total_seconds(), now=now
        )
        claim = Claim(member, new_token(), lease, max(ROOM // max(limit, 1), 1))
        claimed = yield from claimable()
        if not claimed and any((yield from queue.take_over(None, now))):
            claimed = yield from claimable()
        claimed = yield from self._loaded(queue, claim, claimed, now)
        return [ParkedEvent(one.row, claim.token, one.attempts, 0) for one in claimed]

    def _loaded(
        self, queue: OutboxStore, claim: Claim, claimed: Sequence[ClaimedRow], now: datetime | None
    ) -> Op[list[ClaimedRow]]:
        """With large payloads, as far as there is room for them: the others are given back."""
        if all(one.row[7] is not None for one in claimed):
            return list(claimed)
        loaded = yield from queue.load(claimed, ROOM, first=True)
        if loaded.back:
            yield from queue.release([HeldRow(seq, claim.token) for seq in loaded.back], now)
        there = (one for one in claimed if one.row[0] not in loaded.back)
        return [one._replace(row=loaded.rows.get(one.row[0], one.row)) for one in there]

    def settle_rows(self, topic: TopicRow, outcomes: Sequence[ParkedOutcome], now: datetime | None) -> Op[int]:
        """How many were another's already."""
        queue = self.queue(topic.id)
        back = [HeldRow(one.seq, one.token) for one in outcomes if one.delay is not None and one.error is None]
        again = [
            RetryRow(one.seq, one.token, one.delay, one.error, one.counted)
            for one in outcomes
            if one.delay is not None and one.error is not None
        ]
        dead = [Death(one.seq, one.token, one.error or "") for one in outcomes if one.dead]
        done = [HeldRow(one.seq, one.token) for one in outcomes if one.delay is None and not one.dead]
        lost = 0
        if back:
            lost = max(len(back) - (yield from queue.release(back, now)), 0)
        if again or dead or done:
            settled = yield from queue.settle(Settlement(done=done, retry=again, dead=dead), now)
            lost += max(settled, 0)  # a claim that names an event twice has both
        return lost

    def renew_rows(
        self, topic: TopicRow, member: int, held: Sequence[HeldRow], lease: timedelta, now: datetime | None
    ) -> Op[set[int]]:
        """Numbers of those that are still ours."""
        log = self.log(topic.id)
        yield log["topic.queue.enlist"].bind(member=member, name="", ttl=lease.total_seconds(), now=now)
        return (yield from self.queue(topic.id).renew(held, lease, now))

    def abandon_rows(self, topic: TopicRow, member: int, known: Sequence[int], now: datetime | None) -> Op[int]:
        found = yield self.log(topic.id)["topic.queue.unknown"].bind(member=member, known=list(known))
        claims = [Claim(member, row[0], timedelta(0)) for row in found.rows]
        return (yield from self.queue(topic.id).abandon(claims, now)) if claims else 0

    def leave_rows(self, topic: TopicRow, member: int, now: datetime | None) -> Op[None]:
        """What the member had claimed is free."""
        yield from self.queue(topic.id).retire(member, now)

    def lag_rows(self, topic: TopicRow, group: GroupRow, now: datetime | None) -> Op[Lag]:
        found = yield from self.queue(topic.id).status(now)
        events = found.due + found.delayed + found.claimed
        oldest = found.oldest_due if events else None
        return Lag(group.name, events, found.claimed, found.retrying, found.dead, oldest)
