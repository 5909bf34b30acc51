"""Outbox rows as a source of deliveries."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from datetime import timedelta
from typing import assert_never

from ..clock import Clock
from ..codec import JSON_CODEC, Codec
from ..drivers.spi import AsyncRunner
from ..event import Event
from ..ids import new_token, shard_of
from ..op import Op
from ..outcome import Dead, Done, RetryAt, Skip
from ..runtime.delivery import Delivery, Settled
from ..settings import Settings
from ..store.spi import Claim, Claimed, Death, Held, OutboxStore, Retry, Settlement


class OutboxSource:
    """Unordered: any instance may claim any due row. `owner` is set by the instance service."""

    ordered = False

    def __init__(self, db: AsyncRunner, store: OutboxStore, settings: Settings, clock: Clock) -> None:
        self._db = db
        self._store = store
        self._settings = settings
        self._clock = clock
        self._tx = not store.capabilities.single_statement
        self._codec: Codec = getattr(store, "codec", JSON_CODEC)  # not every store keeps one
        self.owner = 0
        self.alive_until = math.inf  # set by each heartbeat: after it we may have been declared dead
        self.doubtful: list[Claim] = []  # asked for, no reply: the database may have made them

    def new_claim(self) -> Claim:
        return Claim(self.owner, new_token(), self._settings.lease)

    @property
    def silent(self) -> bool:
        """Too long without a heartbeat (a pause, an outage): what we claim now might belong to nobody."""
        return self._clock.monotonic() >= self.alive_until

    async def claim(self, limit: int) -> list[Delivery]:
        if self.silent:
            return []
        await self._clear_doubts()
        claim = self.new_claim()
        ends = self._clock.monotonic() + claim.lease.total_seconds()
        self.doubtful.append(claim)
        rows = await self._db.run(self._pick(claim, limit), tx=self._tx)
        self.doubtful.clear()
        ordered = self.ordered
        return [
            Delivery(Event.stored(row, self._codec), row[0], claim.token, attempts, ends, hot=False, ordered=ordered)
            for row, attempts in rows
        ]

    async def _clear_doubts(self) -> None:
        """What a lost reply would have brought comes first: in ordered mode its successors would overtake it."""
        if self.doubtful:
            await self._db.run(self._store.abandon(self.doubtful, self._clock.database_now()))
            self.doubtful.clear()

    def _pick(self, claim: Claim, limit: int) -> Op[list[Claimed]]:
        return self._store.claim(claim, limit, self._clock.database_now())

    async def verify(self, deliveries: Sequence[Delivery]) -> set[int]:
        return await self._db.run(self._store.verify(_held(deliveries)), tx=False)

    async def settle(self, outcomes: Sequence[Settled]) -> int:
        settlement = self._settlement(outcomes)
        several = bool(settlement.retry or settlement.dead or settlement.ordered)
        return await self._db.run(self._store.settle(settlement, self._clock.database_now()), tx=self._tx or several)

    def _settlement(self, outcomes: Sequence[Settled]) -> Settlement:
        done: list[Held] = []
        retry: list[Retry] = []
        dead: list[Death] = []
        for delivery, outcome in outcomes:
            match outcome:
                case Done() | Skip():
                    done.append(Held(delivery.seq, delivery.token))
                case RetryAt(delay, error):
                    retry.append(Retry(delivery.seq, delivery.token, delay, error))
                case Dead(error):
                    dead.append(Death(delivery.seq, delivery.token, error))
                case _:
                    assert_never(outcome)
        if not self.ordered:
            return Settlement(done, retry, dead)
        hold = [Held(r.seq, r.token) for r in retry]
        park = [Held(d.seq, d.token) for d in dead] if self._settings.on_exhausted == "park" else []
        return Settlement(done, retry, dead, hold, park, ordered=True)

    async def release(self, deliveries: Sequence[Delivery]) -> None:
        await self._db.run(self._store.release(_held(deliveries), self._clock.database_now()))

    async def renew(self, deliveries: Sequence[Delivery]) -> set[int]:
        renewal = self._store.renew(_held(deliveries), self._settings.lease, self._clock.database_now())
        return await self._db.run(renewal, tx=self._tx)

    async def oldest(self) -> timedelta:
        return await self._db.run(self._store.oldest(self._clock.database_now()), tx=False)

    async def next_due(self) -> timedelta | None:
        return await self._db.run(self._store.next_due(self._clock.database_now()), tx=False)


class OrderedSource(OutboxSource):
    """Ordered by key: only shards this instance owns, and nothing behind a failed head."""

    ordered = True

    def __init__(self, db: AsyncRunner, store: OutboxStore, settings: Settings, clock: Clock) -> None:
        super().__init__(db, store, settings, clock)
        self.leaving: set[int] = set()  # shards on their way to another instance: claim nothing more of them
        # Shards are given away only between claims: one under way may bring rows of a shard that looks idle.
        self.claiming = asyncio.Lock()

    def _pick(self, claim: Claim, limit: int) -> Op[list[Claimed]]:
        return self._store.claim_ordered(claim, limit, self._settings.shards, self._clock.database_now())

    async def claim(self, limit: int) -> list[Delivery]:
        async with self.claiming:
            claimed = await super().claim(limit)
            if not self.leaving:
                return claimed
            leaving = frozenset(self.leaving)
            given_up = [d for d in claimed if self.shard(d) in leaving]
            if given_up:
                await self.release(given_up)
            return [d for d in claimed if self.shard(d) not in leaving]

    def shard(self, delivery: Delivery) -> int:
        event = delivery.event
        return shard_of(event.id if event.key is None else event.key, self._settings.shards)


def _held(deliveries: Sequence[Delivery]) -> list[Held]:
    return [Held(d.seq, d.token) for d in deliveries]
