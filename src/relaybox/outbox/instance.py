"""This process as the database knows it: a row with a heartbeat, and in ordered mode the shards it owns.

A process that dies stops beating; within `instance_ttl` another one frees its claims. One that was only
slow learns at its next beat that it was declared dead: its claims are gone, it registers anew.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import Callable, Iterable

from .. import faults
from ..clock import Clock
from ..drivers.spi import AsyncRunner
from ..lifecycle import ClaimLost, Observers, TakenOver
from ..op import Op
from ..runtime.delivery import Delivery
from ..runtime.service import cancelled, forever
from ..settings import Settings
from ..store.spi import OutboxStore
from .shards import wish
from .source import OrderedSource, OutboxSource

log = logging.getLogger("relaybox")

SIGN_OFF = 2.0  # seconds a stop gives the database to take note of it

ORDERED = ("ordered", "relay")  # roles that share the shards


def default_name() -> str:
    """Unique even when two pods share a host name: pid and a random part."""
    return f"{socket.gethostname()[:80]}-{os.getpid()}-{secrets.token_hex(4)}"


class InstanceService:
    def __init__(
        self,
        db: AsyncRunner,
        store: OutboxStore,
        source: OutboxSource,
        settings: Settings,
        role: str,
        observers: Observers,
        clock: Clock,
        in_flight: Callable[[], Iterable[Delivery]],
        freed: Callable[[], None],
    ) -> None:
        self._db = db
        self._store = store
        self._source = source
        self._settings = settings
        self._role = role
        self._observers = observers
        self._clock = clock
        self._in_flight = in_flight
        self._freed = source.freed = freed
        self._name = settings.owner or default_name()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self._register()
        await self._take_over(alone=self._role == "single")
        await self._keep_shards()
        self._task = asyncio.create_task(
            forever("heartbeat", self._beat, self._observers, self._clock), name="relaybox-heartbeat"
        )

    async def stop(self) -> None:
        """Leave: whatever is still claimed under our name is free at once, and so are our shards."""
        await cancelled(self._task)
        try:
            async with asyncio.timeout(SIGN_OFF):
                await self._db.run(self._sign_off())
        except Exception as error:
            log.error("could not sign off; the instance will expire by itself: %s", error)

    def _sign_off(self) -> Op[None]:
        """In one transaction: who gets our shards must not find them without what we had claimed."""
        if isinstance(self._source, OrderedSource):
            yield from self._store.release_shards(self._source.owner, range(self._settings.shards))
        yield from self._store.retire(self._source.owner, self._clock.database_now())

    async def _register(self) -> None:
        ttl, started = self._settings.instance_ttl, self._clock.monotonic()
        now = self._clock.database_now()
        self._source.owner = await self._db.run(self._store.register(self._name, self._role, ttl, now))
        self._source.alive_until = started + ttl.total_seconds()

    async def _beat(self) -> None:
        ttl = self._settings.instance_ttl
        await self._clock.sleep(ttl.total_seconds() / 5)
        was_silent, started = self._source.silent, self._clock.monotonic()
        now = self._clock.database_now()
        beats = self._db.within(self._settings.heartbeat_seconds)
        if await beats.run(self._store.beat(self._source.owner, ttl, now), tx=False):
            self._source.alive_until = started + ttl.total_seconds()
        else:
            log.warning("this process was declared dead after a silence; its claims were given to others")
            lost = list(self._in_flight())
            for delivery in lost:
                delivery.lease_end = 0.0  # not started yet: never will be; running: its settle will be refused
            self._observers(ClaimLost(len(lost)))
            await self._register()
        if was_silent:
            self._freed()  # the poller held back: it may go on
        await self._take_over(alone=False)
        await self._keep_shards()

    async def _take_over(self, *, alone: bool) -> None:
        survivor = self._source.owner if alone else None
        dead, events = await self._db.run(self._store.take_over(survivor, self._clock.database_now()))
        if dead:
            faults.hit("takeover.after")
            log.warning("took over %d events of %d dead instances", events, dead)
            self._observers(TakenOver(dead, events))
        if dead or events:  # also claims whose lease ended although their owner lives
            self._freed()

    async def _keep_shards(self) -> None:
        """Renew what we own; take what we want of the free ones; let surplus go once it is idle here."""
        source = self._source
        if not isinstance(source, OrderedSource):
            return
        settings, now = self._settings, self._clock.database_now()
        mine = await self._db.run(self._store.renew_shards(source.owner, settings.instance_ttl, now))
        everybody = await self._db.run(self._store.instances(now), tx=False)
        peers = [peer for peer in everybody if peer.role in ORDERED]
        more, among, surplus = wish(settings, mine, peers, source.owner, self._name)
        gained = source.leaving - surplus  # need not leave after all
        source.leaving = surplus
        if more > 0:
            gained |= set(
                await self._db.run(
                    self._store.acquire_shards(source.owner, more, settings.shards, settings.instance_ttl, now, among)
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
