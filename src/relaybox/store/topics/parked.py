"""Events that failed, or follow one of their key that did: copies outside the log, tried again one by one."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import NamedTuple

from ...errors import Undecodable
from ...event import MAX_HEADER_TEXT, MAX_PAYLOAD, Event
from ...ids import new_token
from ...op import Op
from ..event_rows import EPOCH, arrays, cut
from ..outbox.fair import TenantRound
from . import GroupRow, ParkedEvent, ParkedOutcome, Parking, TopicRow
from .marks import MarkOps
from .queues import ROOM, QueueOps


def fitting(parking: Parking) -> Parking:
    """As a row takes it. What is in a log, and is no event, cannot be tried: it is dead, without what does not fit."""
    event = parking.event
    body, headers = event.body, event.headers_text
    with suppress(Undecodable):
        there = event.id and event.type and event.occurred_at and event.created_at and body is not None
        if there and len(body) <= MAX_PAYLOAD and len(headers or "") <= MAX_HEADER_TEXT:
            return parking
    row = (
        *(event.seq, event.id or "?", event.type or "?", event.aggregate_type, event.key, event.tenant),
        *(event.content_type, b"", None, EPOCH, None, EPOCH),
    )
    error = f"Undecodable: its row in the log is not that of an event ({parking.error or 'a column does not fit'})"
    return parking._replace(event=Event.stored(row), state="dead", error=cut(error))


class ParkedSettled(NamedTuple):
    ended: set[int]  # done or dead
    lost: int


class ParkedOps(MarkOps, QueueOps):
    # -- inside claims and settles ----------------------------------------------------------------

    def park(self, group: GroupRow, parkings: Sequence[Parking], now: datetime | None) -> Op[None]:
        yield from self.lock_parked(group)
        parkings = list({parking.event.seq: parking for parking in parkings}.values())  # a number stands for one
        rows = [
            (event.seq, event.created_at, shard, key_hash, state, attempts, delay.total_seconds(), error)
            for event, shard, key_hash, state, attempts, delay, error in parkings
        ]
        columns = ("seqs", "created_ats", "shards", "key_hashes", "states", "attempts", "delays", "errors")
        values = arrays([parking.event for parking in parkings]) | self.table(rows, *columns)
        yield self.sql["topic.parked.park"].bind(**values, group=group.id, now=now)
        yield from self.promote(group, [parking.key_hash for parking in parkings if parking.state == "held"], now)

    def settle_parked(
        self, group: GroupRow, outcomes: Sequence[ParkedOutcome], now: datetime | None
    ) -> Op[ParkedSettled]:
        if not outcomes:
            return ParkedSettled(set(), 0)
        yield from self.lock_parked(group)
        again = [
            (o.seq, o.token, o.delay.total_seconds(), o.error, o.counted)
            for o in outcomes
            if not o.dead and o.delay is not None
        ]
        dead = [(o.seq, o.token, o.error) for o in outcomes if o.dead]
        done = [o for o in outcomes if not o.dead and o.delay is None]
        ended: dict[int, int] = {}
        kept = 0
        if again:
            values = self.table(again, "seqs", "tokens", "delays", "errors", "counted")
            kept = len((yield self.sql["topic.parked.retry"].bind(**values, group=group.id, now=now)).rows)
        if dead:
            values = self.table(dead, "seqs", "tokens", "errors")
            result = yield self.sql["topic.parked.die"].bind(**values, group=group.id, now=now)
            ended |= {row[0]: row[1] for row in result.rows}
        if done:
            result = yield self.sql["topic.parked.done"].bind(**self.pairs(done), group=group.id)
            ended |= {row[0]: row[1] for row in result.rows}
        yield from self.promote(group, list(ended.values()), now)
        return ParkedSettled(set(ended), len(outcomes) - kept - len(ended))

    def lock_parked(self, group: GroupRow) -> Op[None]:
        if group.ordered:
            yield self.sql["topic.parked.lock"].bind(group=group.id)

    def promote(self, group: GroupRow, keys: Sequence[int], now: datetime | None) -> Op[None]:
        if group.ordered and keys:
            yield self.sql["topic.parked.promote"].bind(group=group.id, keys=sorted(set(keys)), now=now)

    # -- trying again -----------------------------------------------------------------------------

    def claim_parked(
        self,
        topic: TopicRow,
        group: GroupRow,
        member: int,
        limit: int,
        lease: timedelta,
        now: datetime | None,
        at: TenantRound | None = None,
    ) -> Op[list[ParkedEvent]]:
        """Due ones; of an ordered group only the first of each key. What was tried often enough and never heard of
        again is dead here. Needs a transaction."""
        if topic.topic.tracking == "rows":
            return (yield from self.claim_rows(topic, member, limit, lease, now, at))
        token = new_token()
        result = yield self.sql["topic.parked.claim"].bind(
            group=group.id,
            member=member,
            token=token,
            ordered=group.ordered,
            limit=limit,
            room=ROOM,
            lease=lease.total_seconds(),
            now=now,
        )
        claimed = [ParkedEvent(row[:12], token, row[12], row[13]) for row in self.event_rows(result.rows)]
        claimed.sort(key=lambda parked: int(parked.row[0]))
        if group.blocks:
            return claimed
        worn = [parked for parked in claimed if parked.attempts > group.max_attempts]
        if worn:
            error = f"its process ended {group.max_attempts} times while handling it"
            dead = [ParkedOutcome(parked.row[0], token, None, error, dead=True) for parked in worn]
            settled = yield from self.settle_parked(group, dead, now)
            yield from self.complete(topic, group, sorted(settled.ended), now)
        return [parked for parked in claimed if parked.attempts <= group.max_attempts]

    def next_parked(self, group: GroupRow, now: datetime | None) -> Op[timedelta | None]:
        """How long until one may be claimed; None: none waits."""
        result = yield self.sql["topic.parked.next"].bind(group=group.id, now=now)
        return result.rows[0][0] if result.rows else None
