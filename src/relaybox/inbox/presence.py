"""A processor in the inbox's tables: its row, what it takes over, and in an ordered inbox keys that were not woken."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import timedelta

from .. import faults
from ..clock import Clock
from ..drivers.spi import AsyncRunner
from ..engine.presence import Presence, default_name
from ..engine.rows.engine import RowEngine
from ..facts import ClaimLost, Observers, TakenOver
from ..settings import Settings
from ..store.inbox import InboxStore
from ..store.inbox.order import Order
from ..words import counted
from .source import InboxSource

log = logging.getLogger("relaybox")

SWEEP = 10.0  # seconds between two looks for keys that stayed asleep because the process that had to wake them died
ROLE = "inbox"


@dataclass(eq=False)
class InboxRegistration:
    _db: AsyncRunner
    _store: InboxStore
    _source: InboxSource
    _engine: RowEngine
    _settings: Settings
    _order: Order | None
    _observers: Observers
    _clock: Clock
    _next_sweep: float = 0.0

    def __post_init__(self) -> None:
        self._source.room.here = self._engine.in_flight
        self._name = self._settings.delivery.owner or default_name()
        self.presence = self._source.pulse = Presence(
            self,
            self._settings.delivery.instance_ttl,
            self._observers,
            self._clock,
            heard=self._engine.wake,
            lost=self._lost,
        )
        self.start = self.presence.start
        self.stop = self.presence.stop

    async def register(self, ttl: timedelta) -> None:
        registration = self._store.register(self._name, ROLE, ttl, self._clock.database_now())
        self._source.owner = await self._db.run(registration)

    async def beat(self, ttl: timedelta) -> bool:
        beats = self._db.within(self._settings.delivery.heartbeat_seconds)
        return await beats.run(self._store.beat(self._source.owner, ttl, self._clock.database_now()), tx=False)

    async def retire(self) -> None:
        await self._db.run(self._store.retire(self._source.owner, self._clock.database_now()))

    def _lost(self) -> None:
        lost = list(self._engine.in_flight())
        for delivery in lost:
            delivery.lease_end = 0.0  # not started yet: never will be; running: its mark was first
        self._observers(ClaimLost(len(lost)))

    async def tend(self) -> None:
        """Free what the dead had claimed; in an ordered inbox also what nobody woke, and what waited long enough."""
        dead, messages = await self._db.run(self._store.take_over(self._source.owner, self._clock.database_now()))
        if dead:
            faults.hit("takeover.after")
            log.warning("took over %s of %s", counted(messages, "message"), counted(dead, "dead processor"))
            self._observers(TakenOver(dead, messages))
        woken = 0
        if self._order is not None and (dead or self._clock.monotonic() >= self._next_sweep):
            self._next_sweep = self._clock.monotonic() + SWEEP
            woken = await self._db.run(self._store.sweep(self._order, self._clock.database_now()))
        if messages or woken:
            self._engine.wake()
