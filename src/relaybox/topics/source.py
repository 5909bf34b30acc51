"""A group's part of a log as a source for the range engine.

A group that comes to the end makes the next tick. A claim whose reply was lost is taken back before the next one: what
follows it in its shard would overtake it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from ..clock import Clock
from ..codec import Codec
from ..drivers.spi import AsyncRunner
from ..engine.ranges.engine import Claims
from ..engine.ranges.holding import Taken
from ..outcome import Outcome
from ..sealing import sealing
from ..settings import Settings
from ..store.topics import ClaimedRanges, RangeSettlement, TopicRow
from ..store.topics.page_room import PageRoom
from .batch import given_back, parked_outcome, parking
from .context import in_its_cluster
from .liveness import Membership
from .shared_reads import SharedReads

if TYPE_CHECKING:
    from ..store.topics.store import TopicStore

MOMENTS = (0.0005, 0.001, 0.002, 0.004)  # seconds in which another's tick is made; what it shows may be ours to claim
REFRESH = 2.0  # seconds after which the topic is looked up again: its tracking may have been moved


@dataclass(eq=False)
class TopicSource:
    _db: AsyncRunner
    _store: TopicStore
    _reads: SharedReads
    _topic: TopicRow
    _membership: Membership
    _settings: Settings
    _clock: Clock
    _codec: Codec
    _doubtful: bool = False  # a claim was asked for and not answered
    _end: int | None = None  # the tick up to which nothing is unclaimed, as far as we know
    _reached: int = 0
    _claimed_at: float = 0.0

    def __post_init__(self) -> None:
        self.ordered = self._membership.group.ordered
        self._sealing = sealing(self._codec)
        self.shards = self.share = self._topic.topic.shards
        self.known: Callable[[], Sequence[int]] = tuple  # tokens that are here; set by the engine
        self.here: Callable[[], Iterable[Taken]] = tuple  # what is; set by the engine
        self.full = False
        self._turn = self._reads.join(self._topic.id)
        self._reads.most_payloads = self._settings.delivery.payload_bytes
        self._reads.holders.append(self._held)
        self._refreshed_at = self._clock.monotonic()

    def close(self) -> None:
        self._reads.leave(self._topic.id)
        self._reads.holders.remove(self._held)

    def _held(self) -> Iterable[Taken]:
        return self.here()

    @property
    def pulse(self) -> Membership:
        return self._membership

    # -- claim --------------------------------------------------------------------------------------

    async def claim(self, events: int, ranges: int) -> Claims:
        asked_at = self._clock.monotonic()
        async with self._turn.lock:
            await self._refresh()
            waiting = self._end is not None and asked_at - self._claimed_at < self._patience
            if waiting and await self._tick(asked_at) in (None, self._end):
                return Claims([])
            given = await self._claim(events, ranges)
            if not given.pages and not given.behind and given.state == "active":
                newest = await self._tick(asked_at)
                if newest is not None and newest > given.tick:
                    given = await self._claim(events, ranges)
        self._end = None if given.behind else given.tick
        self._reached = self._end or self._reached
        return Claims(await self._with_keys(self._taken(given)), given.split > 0)

    @property
    def _goal(self) -> int | None:
        """Where other groups of this process went already: one read for all. Not where we come from."""
        goal = self._turn.goal
        return goal if goal is not None and goal > self._reached else None

    @property
    def _patience(self) -> float:
        """Seconds after which we also look for what others left behind."""
        return self._settings.delivery.instance_ttl.total_seconds() / 2

    def _room(self) -> PageRoom:
        """While all payloads are small nothing is measured."""
        room = self._settings.delivery.payload_bytes
        return PageRoom(room - self._reads.held, first=not list(self.here())) if self._reads.large else PageRoom(room)

    async def _claim(self, events: int, ranges: int) -> ClaimedRanges:
        await self._clear_doubts()
        room = self._room()
        self._lease_end = self._clock.monotonic() + self._settings.delivery.lease.total_seconds()
        self._doubtful = True
        given = await self._db.run(
            self._store.claim(
                self._topic,
                self._membership.group,
                self._membership.member,
                events=events,
                ranges=ranges,
                lease=self._settings.delivery.lease,
                now=self._clock.database_now(),
                pages=self._reads,
                target=self._goal,
                known=self.known(),
                room=room,
            )
        )
        self._doubtful = False
        self.full = room.full
        if given.pages or room.met:
            self._reads.large = room.met
        self._claimed_at = self._clock.monotonic()
        self.share = given.share or self.share
        if given.pages:
            self._turn.goal = max([self._turn.goal or 0, *(taken.place.target for taken, _ in given.pages)])
        return given

    def _taken(self, given: ClaimedRanges) -> list[Taken]:
        name = self._topic.topic.name
        return [
            Taken(
                claimed.token,
                claimed.place.shard,
                self._reads.events(rows, self._codec, name),
                claimed.attempts,
                self._lease_end,
                held=given.held,
                title=claimed,
            )
            for claimed, rows in given.pages
        ]

    async def _with_keys(self, taken: list[Taken]) -> list[Taken]:
        """Once the keys of their payloads are here. Until then the engine knows nothing of them."""
        if self._sealing is not None:
            keys = self._sealing.load([event for one in taken for event in one.events])
            if keys is not None:
                self._doubtful = True
                await keys
                self._doubtful = False
        return taken

    async def _tick(self, since: float) -> int | None:
        """The newest one, made if there is news. Those who asked meanwhile have the same answer."""
        turn = self._turn
        if turn.looked_at < since:
            looked_at = self._clock.monotonic()
            for pause in (*MOMENTS, None):
                turn.tick = await self._db.run(self._store.tick(self._topic, self._clock.database_now()), tx=False)
                if turn.tick is not None or pause is None:
                    break
                await asyncio.sleep(pause)
            turn.looked_at = looked_at
        return turn.tick

    async def _clear_doubts(self) -> None:
        if self._doubtful:
            group, member, now = self._membership.group, self._membership.member, self._clock.database_now()
            await self._db.run(self._store.abandon(group, member, self.known(), now))
            self._doubtful = False

    async def _refresh(self) -> None:
        if self._clock.monotonic() - self._refreshed_at > REFRESH:
            found = await self._db.run(self._store.topic(self._topic.topic.name), tx=False)
            if found is not None and found.version != self._topic.version:  # the group may have got another bit
                group = self._membership.group
                same = await self._db.run(self._store.group(group.topic, group.name), tx=False)
                if same is not None and same.id == group.id:
                    self._membership.group = same
            self._topic = found or self._topic
            await self._db.run(in_its_cluster(self._store, self._topic), tx=False)
            self._refreshed_at = self._clock.monotonic()

    async def claim_parked(self, limit: int) -> Claims:
        await self._clear_doubts()
        lease_end = self._clock.monotonic() + self._settings.delivery.lease.total_seconds()
        group, now = self._membership.group, self._clock.database_now()
        self._doubtful = True
        claimed = await self._db.run(
            self._store.claim_parked(
                self._topic, group, self._membership.member, limit, self._settings.delivery.lease, now
            )
        )
        self._doubtful = False
        taken = [
            Taken(
                parked.token,
                (parked.key_hash >> 32) % self.shards,
                self._reads.events([parked.row], self._codec, self._topic.topic.name),
                parked.attempts,
                lease_end,
                parked=True,
            )
            for parked in claimed
        ]
        return Claims(await self._with_keys(taken))

    async def next_parked(self) -> timedelta | None:
        return await self._db.run(self._store.next_parked(self._membership.group, self._clock.database_now()), tx=False)

    # -- settle -------------------------------------------------------------------------------------

    async def settle(self, finished: Sequence[Taken], returned: Sequence[Taken]) -> int:
        await self._refresh()  # also if nothing is claimed meanwhile: where marks were may be nothing any more
        marked = self._topic.topic.tracking in ("bitmap", "acks")
        settlement = RangeSettlement(
            finished=[(taken.title, _numbers(taken) if marked else ()) for taken in finished if not taken.parked],
            returned=[(taken.title, sorted(taken.finished)) for taken in returned if not taken.parked],
            parkings=[
                (taken.token, parking(verdict.event, taken.shard, verdict.attempts, verdict.outcome))
                for taken in (*finished, *returned)
                if not taken.parked
                for verdict in taken.verdicts
            ],
            parked=[
                *(parked_outcome(*_title(taken), _fate(taken)) for taken in finished if taken.parked),
                *(given_back(*_title(taken)) for taken in returned if taken.parked),
            ],
        )
        async with self._turn.marking if marked else nullcontext():
            group, now = self._membership.group, self._clock.database_now()
            settle = self._store.settle(self._topic, group, settlement, now)
            return await self._db.run(settle, tx=not settlement.is_one_statement(self._topic))

    async def renew(self, taken: Sequence[Taken]) -> set[int]:
        tokens = [each.token for each in taken]
        group, now = self._membership.group, self._clock.database_now()
        return await self._db.run(self._store.renew(group, tokens, self._settings.delivery.lease, now))


def _numbers(taken: Taken) -> list[int]:
    return [event.seq for event in taken.events if event.seq is not None]


def _title(taken: Taken) -> tuple[int, int]:
    seq = taken.events[0].seq
    assert seq is not None
    return seq, taken.token


def _fate(taken: Taken) -> Outcome | None:
    return taken.verdicts[0].outcome if taken.verdicts else None
