"""A delivering process: instance, engine, wake-ups, purge, and the hand-over from writers in this process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Literal

from ..clock import Clock
from ..delivery import Delivery
from ..drivers.spi import AsyncRunner
from ..engine.engine import Engine
from ..engine.protocols import BatchHandler, Handler
from ..engine.rows.engine import RowEngine
from ..engine.wakeups import Ears, Notifier
from ..engine.workers import Asked
from ..facts import Observers
from ..locking import ensure_sound
from ..settings import Settings
from ..store.claims import Claim
from ..store.grants.tenants import sees_all
from ..store.outbox import OutboxStore
from ..values import Status
from .hand_over import HandOvers
from .presence import OutboxRegistration
from .purge import OutboxPurgeLoop
from .source import FairSource, make_source
from .write import HandOver

log = logging.getLogger("relaybox")

Role = Literal["delivery", "ordered", "relay"]  # a relay that keeps order; one that does not is "delivery"


async def drained(engine: Engine[Any], ask: Callable[[], Awaitable[Status]], settings: Settings, clock: Clock) -> None:
    """Until there is nothing more to do here: all is delivered, waits for a retry, is blocked, or is with another
    process. One that died is found out within `instance_ttl`: so long it is waited for what it had."""
    ttl = settings.delivery.instance_ttl.total_seconds()
    patience: float | None = None
    while True:
        await engine.until_idle()
        status = await ask()
        if patience is None:
            patience = clock.monotonic() + 1.5 * ttl
        if not (status.due or status.claimed) or clock.monotonic() > patience:
            return
        await clock.sleep(ttl / 10)


class Node:
    def __init__(
        self,
        role: Role,
        db: AsyncRunner,
        store: OutboxStore,
        handler: Handler | BatchHandler,
        settings: Settings,
        *,
        observers: Observers,
        clock: Clock,
        asked: Asked | None = None,
        alone: bool = False,
    ) -> None:
        """`alone`: no other process delivers, so that whatever is claimed was claimed by an earlier run."""
        self._db = db
        self._store = store
        self._settings = settings
        self._clock = clock
        self._source = make_source(role in ("ordered", "relay"), db, store, settings, clock, observers)
        self.engine = RowEngine(self._source, handler, settings, observers, clock, asked)
        self._registration = OutboxRegistration(
            db, store, self._source, settings, role, observers, clock, self.engine.in_flight, self.engine.wake, alone
        )
        can_listen = db.listen is not None and store.capabilities.listen
        self._ears = Ears(self.engine, self._listen if can_listen else None, settings.delivery.poll, observers, clock)
        self._notifier = Notifier(self._notify) if can_listen and settings.delivery.notify else None
        self._purge = (
            OutboxPurgeLoop(db.within(settings.delivery.batch_seconds), store, settings, observers, clock)
            if settings.outbox.retention or settings.outbox.dead_retention
            else None
        )
        self._hand_overs = HandOvers(self.engine, self._source, clock, self._given_back)
        self._running = False

    @property
    def owner(self) -> int:
        """This process as the database knows it; 0: not yet."""
        return self._source.owner

    async def start(self) -> None:
        """Workers run and the first claim is under way when this returns. A failed start leaves nothing behind."""
        self._loop = asyncio.get_running_loop()
        await self._db.run(self._store.verify_schema(), tx=False)
        await self._db.run(sees_all(self._store, "event"), tx=False)
        if isinstance(self._source, FairSource):
            await self._db.run(self._store.verify_fair(), tx=False)
        await self._registration.start()
        try:
            await ensure_sound(self._db, self._store, self._clock, partial(self._store.probe_instance, self.owner))
        except BaseException:
            await self._registration.stop()
            raise
        self.engine.start()
        self._ears.start()
        if self._purge is not None:
            self._purge.start()
        self._running = True

    def halt(self) -> None:
        """Begin nothing more. Comes before whatever else is to be stopped."""
        self.engine.halt()

    async def stop(self, timeout: float | None = None) -> None:
        """Purge, ears, engine (ends what runs, gives back the rest), then sign off: each may still need the next."""
        if not self._running:
            return
        self._running = False
        self.engine.halt()
        async with AsyncExitStack() as ending:  # last in, first out, each also when another fails or is cancelled
            ending.push_async_callback(self._registration.stop)
            if self._notifier is not None:
                ending.push_async_callback(self._notifier.stop)
            ending.push_async_callback(self._hand_overs.stop)
            ending.push_async_callback(self.engine.stop, timeout)
            ending.push_async_callback(self._ears.stop)
            if self._purge is not None:
                ending.push_async_callback(self._purge.stop)

    def complaints(self) -> Iterator[str]:
        """Why it does not do its work, for people."""
        if self._source.silent:
            yield "no heartbeat reaches the database"
        if self.engine.missing + self._registration.presence.missing:
            yield "a background task ended and is being replaced"

    async def drain(self) -> None:
        patient = self._db.within(self._settings.delivery.batch_seconds)

        async def status() -> Status:
            return await patient.run(self._store.status(self._clock.database_now()), tx=False)

        await drained(self.engine, status, self._settings, self._clock)

    # -- what writers in this process use; callable from any thread ---------------------------------

    def claim(self) -> Claim | None:
        """Rows written here belong to this instance from their insert, except in ordered mode (no short cut)."""
        if not self._running or self._source.ordered or self._source.silent:
            return None
        return self._source.new_claim()

    def committed(self, hand_over: HandOver) -> None:
        if self._in_loop():
            self._take(hand_over)
        elif self._running:
            self._loop.call_soon_threadsafe(self._take, hand_over)

    def unseen(self) -> None:
        if self._in_loop():
            self._look_out()
        elif self._running:
            self._loop.call_soon_threadsafe(self._look_out)

    def _in_loop(self) -> bool:
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False

    def _take(self, hand_over: HandOver) -> None:
        claim = hand_over.claim
        if claim is None or hand_over.lease_end <= self._clock.monotonic():  # a transaction longer than the lease
            self._given_back()
            return
        deliveries = [
            Delivery(event, seq, claim.token, 1, hand_over.lease_end, hot=True)
            for event, seq in zip(hand_over.events, hand_over.seqs, strict=True)
            if event.deliver_at is None
        ]
        if deliveries:
            self._hand_overs.take(deliveries)
        if len(deliveries) < len(hand_over.events):
            self.engine.wake()  # a delayed one may be due sooner than the poller thinks

    def _given_back(self) -> None:
        """There is something to claim, for this process and for others."""
        self.engine.wake()
        if self._notifier is not None:
            self._notifier.soon()

    def _look_out(self) -> None:
        self.engine.expect()
        if self._notifier is not None:
            self._notifier.later()

    async def _listen(self, ready: Callable[[], None], wake: Callable[[], None]) -> None:
        assert self._db.listen is not None
        await self._db.listen(self._store.tables.channel, ready, wake)

    async def _notify(self) -> bool:
        return await self._db.run(self._store.notify(self._clock.database_now()), tx=False)
