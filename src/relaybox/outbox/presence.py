"""A delivering process in the outbox's tables: its row, what it takes over, and in ordered mode the shards it owns."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta

from .. import faults
from ..clock import Clock
from ..delivery import Delivery
from ..drivers.spi import AsyncRunner
from ..engine.presence import Presence, default_name
from ..facts import ClaimLost, Observers, TakenOver
from ..op import Op
from ..settings import Settings
from ..store.outbox import OutboxStore
from ..words import counted
from .shards import wish
from .source import OrderedSource, OutboxSource

log = logging.getLogger("relaybox")

ORDERED = ("ordered", "relay")  # roles that share the shards


@dataclass(eq=False)
class OutboxRegistration:
    _db: AsyncRunner
    _store: OutboxStore
    _source: OutboxSource
    _settings: Settings
    _role: str
    _observers: Observers
    _clock: Clock
    _in_flight: Callable[[], Iterable[Delivery]]
    _freed: Callable[[], None]
    _alone: bool = False  # until it has looked: whatever is claimed is an earlier run's

    def __post_init__(self) -> None:
        self._source.freed = self._freed
        self._source.here = self._in_flight
        self._name = self._settings.delivery.owner or default_name()
        self.presence = self._source.pulse = Presence(
            self, self._settings.delivery.instance_ttl, self._observers, self._clock, heard=self._freed, lost=self._lost
        )
        self.start = self.presence.start
        self.stop = self.presence.stop

    async def register(self, ttl: timedelta) -> None:
        registration = self._store.register(self._name, self._role, ttl, self._clock.database_now())
        self._source.owner = await self._db.run(registration)

    async def beat(self, ttl: timedelta) -> bool:
        beats = self._db.within(self._settings.delivery.heartbeat_seconds)
        return await beats.run(self._store.beat(self._source.owner, ttl, self._clock.database_now()), tx=False)

    async def tend(self) -> None:
        await self._take_over(alone=self._alone)
        self._alone = False
        await self._keep_shards()

    async def retire(self) -> None:
        await self._db.run(self._sign_off())

    def _sign_off(self) -> Op[None]:
        """In one transaction: who gets our shards must not find them without what we had claimed."""
        if isinstance(self._source, OrderedSource):
            yield from self._store.release_shards(self._source.owner, range(self._settings.order.shards))
        yield from self._store.retire(self._source.owner, self._clock.database_now())

    def _lost(self) -> None:
        lost = list(self._in_flight())
        for delivery in lost:
            delivery.lease_end = 0.0  # not started yet: never will be; running: its settle will be refused
        self._observers(ClaimLost(len(lost)))

    async def _take_over(self, *, alone: bool) -> None:
        taken = self._store.take_over(self._source.owner, self._clock.database_now(), alone=alone)
        dead, events = await self._db.run(taken)
        if dead:
            faults.hit("takeover.after")
            log.warning("took over %s of %s", counted(events, "event"), counted(dead, "dead instance"))
            self._observers(TakenOver(dead, events))
        if dead or events:  # also claims whose lease ended although their owner lives
            self._freed()

    async def _keep_shards(self) -> None:
        """Renew what we own; take what we want of the free ones; let surplus go once it is idle here."""
        source = self._source
        if not isinstance(source, OrderedSource):
            return
        settings, now = self._settings, self._clock.database_now()
        mine = await self._db.run(self._store.renew_shards(source.owner, settings.delivery.instance_ttl, now))
        everybody = await self._db.run(self._store.instances(now), tx=False)
        peers = [peer for peer in everybody if peer.role in ORDERED]
        more, among, surplus = wish(settings, mine, peers, source.owner, self._name)
        gained = source.leaving - surplus  # need not leave after all
        source.leaving = surplus
        if more > 0:
            gained |= set(
                await self._db.run(
                    self._store.acquire_shards(
                        source.owner, more, settings.order.shards, settings.delivery.instance_ttl, now, among
                    )
                )
            )
        if gained:
            self._freed()
        if surplus:
            async with source.claiming:
                busy = {source.shard(delivery) for delivery in self._in_flight()}
                idle = sorted(surplus - busy)
                if idle and not source.doubtful:
                    await self._db.run(self._store.release_shards(source.owner, idle))
                    source.leaving -= set(idle)
