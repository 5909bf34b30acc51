"""This processor as the database knows it: a row with a heartbeat.

A process that dies stops beating; within `instance_ttl` another one frees its claims. One that was only slow learns at
its next beat that it was declared dead: its claims are gone, it registers anew.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket

from .. import faults
from ..clock import Clock
from ..drivers.spi import AsyncRunner
from ..lifecycle import ClaimLost, Observers, TakenOver
from ..runtime.delivery import DeliveryEngine
from ..runtime.service import cancelled, forever
from ..settings import Settings
from ..store.inbox import InboxStore
from ..store.inbox_order import Order
from .source import InboxSource

log = logging.getLogger("relaybox")

SIGN_OFF = 2.0  # seconds a stop gives the database to take note of it
SWEEP = 10.0  # seconds between two looks for keys that nobody woke: who should have is dead, and that is noticed
ROLE = "inbox"


class Instance:
    def __init__(
        self,
        db: AsyncRunner,
        store: InboxStore,
        source: InboxSource,
        engine: DeliveryEngine,
        settings: Settings,
        order: Order | None,
        observers: Observers,
        clock: Clock,
    ) -> None:
        self._db = db
        self._store = store
        self._source = source
        self._engine = engine
        self._settings = settings
        self._order = order
        self._observers = observers
        self._clock = clock
        self._name = settings.owner or f"{socket.gethostname()[:80]}-{os.getpid()}-{secrets.token_hex(4)}"
        self._next_sweep = 0.0
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self._register()
        await self._care()
        self._task = asyncio.create_task(
            forever("heartbeat", self._beat, self._observers, self._clock), name="relaybox-heartbeat"
        )

    async def stop(self) -> None:
        """Leave: whatever is still claimed under our name is free at once."""
        await cancelled(self._task)
        try:
            async with asyncio.timeout(SIGN_OFF):
                await self._db.run(self._store.leave(self._source.owner, self._clock.database_now()))
        except Exception as error:
            log.error("could not sign off; the processor will expire by itself: %s", error)

    async def _register(self) -> None:
        ttl, started = self._settings.instance_ttl, self._clock.monotonic()
        registration = self._store.register(self._name, ROLE, ttl, self._clock.database_now())
        self._source.owner = await self._db.run(registration)
        self._source.alive_until = started + ttl.total_seconds()

    async def _beat(self) -> None:
        ttl = self._settings.instance_ttl
        await self._clock.sleep(ttl.total_seconds() / 5)
        was_silent, started = self._source.silent, self._clock.monotonic()
        beats = self._db.within(self._settings.heartbeat_seconds)
        if await beats.run(self._store.beat(self._source.owner, ttl, self._clock.database_now()), tx=False):
            self._source.alive_until = started + ttl.total_seconds()
        else:
            log.warning("this processor was declared dead after a silence; its claims were given to others")
            lost = list(self._engine.in_flight())
            for delivery in lost:
                delivery.lease_end = 0.0  # not started yet: never will be; running: its mark was first
            self._observers(ClaimLost(len(lost)))
            await self._register()
        if was_silent:
            self._engine.wake()
        await self._care()

    async def _care(self) -> None:
        """Free what the dead had claimed; in an ordered inbox also what nobody woke, and what waited long enough."""
        dead, messages = await self._db.run(self._store.free_dead_instances(self._clock.database_now()))
        if dead:
            faults.hit("takeover.after")
            log.warning("took over %d messages of %d dead processors", messages, dead)
            self._observers(TakenOver(dead, messages))
        woken = 0
        if self._order is not None and (dead or self._clock.monotonic() >= self._next_sweep):
            self._next_sweep = self._clock.monotonic() + SWEEP
            woken = await self._db.run(self._store.sweep(self._order, self._clock.database_now()))
        if messages or woken:
            self._engine.wake()
