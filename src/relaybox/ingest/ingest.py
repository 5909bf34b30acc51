"""The ingest: a broker on one side, an inbox on the other. Received, stored in one transaction, acknowledged.

    async with AsyncInbox("postgresql://localhost/billing", "orders_inbox") as inbox:
        async with Ingest(KafkaSource("kafka://localhost:9092/orders", group="billing"), inbox):
            await asyncio.Event().wait()

One batch at a time, in the broker's order. While the database is away nothing is acknowledged and nothing more is
received; while the broker is away it is opened again and again. Whatever comes twice for that, the inbox drops.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Self

from .. import faults
from ..brokers.parse import Reading, malformed, parse
from ..brokers.spi import Incoming, Source
from ..clock import SYSTEM_CLOCK, Clock
from ..errors import BrokerUnavailable, Closed, ConfigError, InvalidEvent, StoreError
from ..event import Event
from ..facts import CircuitChanged, Ingested, LoopFailed, Observer, Observers
from ..inbox import AsyncInbox
from ..memory import freeze_gc
from ..op import T
from ..settings import Settings
from ..store.inbox import check_source
from ..tasks import cancelled

log = logging.getLogger("relaybox")

FIRST_PAUSE = 0.05
LONGEST_PAUSE = 1.0
OPEN_SECONDS = 30.0
STOP_SECONDS = 10.0  # for the batch under way
PULSE = 1.0  # seconds between two signs of life of the loop


class Totals(NamedTuple):
    """What one ingest has stored so far."""

    accepted: int = 0
    duplicates: int = 0
    malformed: int = 0  # dead letters: also among the accepted ones


class Ingest:
    """Runs while its `async with` block is open. Wrong settings and missing tables raise before anything starts; a
    broker that is away does not.

    source   where messages are read
    sender   who sent them: kept beside every message
    reading  how messages are read that are neither relaybox's nor CloudEvents
    settings `ingest`, and `delivery.database_timeout`: a transaction that takes longer is given up and tried again, the
             ids tell what it has done
    """

    def __init__(
        self,
        source: Source,
        inbox: AsyncInbox,
        *,
        sender: str | None = None,
        reading: Reading | None = None,
        settings: Settings | None = None,
        observers: Sequence[Observer] = (),
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.source = source
        self.totals = Totals()
        self._inbox = inbox
        self._sender = check_source(sender)
        self._reading = reading
        self.settings = settings or Settings.load()
        self._observers = Observers(observers)
        self._clock = clock
        self._broker_trouble: str | None = None
        self._database_trouble: str | None = None
        self._opened = False
        self._pulse = clock.monotonic()
        self._stopping = asyncio.Event()
        self._empty = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        if self._stopping.is_set():
            raise Closed("this ingest is closed; make a new one")
        try:
            await self._inbox.verify()
            if await self._inbox.read_only():
                raise ConfigError("the inbox's database is read-only, a standby perhaps: connect to the primary")
            try:
                await self._open()
            except BrokerUnavailable as away:
                self._lost(away)
        except BaseException:
            await self.close()
            raise
        self._tasks = [
            asyncio.create_task(self._run(), name="relaybox-ingest"),
            asyncio.create_task(self._beat(), name="relaybox-pulse"),
        ]
        if self.settings.delivery.freeze_gc:
            freeze_gc()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Receive no more, finish the batch under way, give the rest back. Safe to repeat."""
        self._stopping.set()
        try:
            if self._tasks:
                await asyncio.wait(self._tasks[:1], timeout=STOP_SECONDS)
        finally:
            try:
                await cancelled(*self._tasks)
            finally:
                with suppress(TimeoutError):
                    async with asyncio.timeout(STOP_SECONDS):
                        await self.source.close()

    async def drained(self) -> None:
        """Returns once the broker has had nothing new for as long as it is waited for."""
        self._empty.clear()
        await self._empty.wait()

    def health(self) -> tuple[bool, list[str]]:
        """Whether the loop turns, and why nothing comes in: callable from any thread."""
        live = self._clock.monotonic() - self._pulse < PULSE * 10
        reasons = []
        if not self._tasks or self._stopping.is_set():
            reasons.append("not running")
        elif not live:
            reasons.append("the event loop is stuck")
        if self._broker_trouble is not None:
            reasons.append(f"{self.source.name} is unavailable")
        if self._database_trouble is not None:
            reasons.append("the database does not accept")
        return live, reasons

    # -- the loop -----------------------------------------------------------------------------------

    async def _run(self) -> None:
        pause = FIRST_PAUSE
        while not self._stopping.is_set():
            try:
                await self._step()
                pause = FIRST_PAUSE
            except Exception as error:
                self._lost(error)
                await self._unless_stopped(self._clock.sleep(pause * random.uniform(0.5, 1.0)))
                pause = min(pause * 2, LONGEST_PAUSE)

    async def _step(self) -> None:
        if not self._opened:
            await self._unless_stopped(self._open())
        ingest = self.settings.ingest
        batch = await self._unless_stopped(self.source.receive(ingest.batch, ingest.wait.total_seconds()))
        if batch and await self._store(batch):
            await self.source.acknowledge(batch)
            faults.hit("settle.after")
        elif not batch:
            self._empty.set()

    async def _open(self) -> None:
        try:
            async with asyncio.timeout(OPEN_SECONDS):
                await self.source.open()
        except TimeoutError:
            raise BrokerUnavailable(f"{self.source.name} did not answer within {OPEN_SECONDS:g} s") from None
        self._opened = True
        if self._broker_trouble is not None:
            log.warning("%s is back", self.source.name)
            self._broker_trouble = None
            self._observers(CircuitChanged(self.source.name, False, "back"))

    def _lost(self, error: Exception) -> None:
        """Whatever it was: on a new connection what is not acknowledged comes again."""
        self._opened = False
        expected = isinstance(error, BrokerUnavailable)
        reason = str(error) if expected else type(error).__name__
        if not expected:
            log.debug("an ingest failed", exc_info=error)
            self._observers(LoopFailed("ingest", reason))
        if reason != self._broker_trouble:
            log.warning("%s is unavailable: %s; messages wait there", self.source.name, reason)
        if self._broker_trouble is None:
            self._observers(CircuitChanged(self.source.name, True, reason))
        self._broker_trouble = reason

    async def _store(self, batch: Sequence[Incoming]) -> bool:
        """In one transaction, however long the database is away. False: we were told to stop meanwhile."""
        events, letters = self._read(batch)
        pause, started = FIRST_PAUSE, self._clock.monotonic()
        while True:
            faults.hit("write.before")
            try:
                answers = await self._inbox.accept_all(
                    None, events, source=self._sender, letters=letters, timeout=self.settings.delivery.database_timeout
                )
                break
            except StoreError as error:
                self._refused(error)
                await self._unless_stopped(self._clock.sleep(pause * random.uniform(0.5, 1.0)))
                pause = min(pause * 2, LONGEST_PAUSE)
                if self._stopping.is_set():
                    return False
        faults.hit("write.committed")
        if self._database_trouble is not None:
            log.warning("the database accepts again")
            self._database_trouble = None
        self._count(events, answers, letters, self._clock.monotonic() - started)
        return True

    def _read(self, batch: Sequence[Incoming]) -> tuple[list[Event], dict[str, str]]:
        """As events, and why some could not be read."""
        events, letters = [], {}
        for message in batch:
            try:
                event = parse(message, self._reading)
            except InvalidEvent as error:
                event = malformed(message)
                letters[event.id] = f"{type(error).__name__}: {error} (read at {message.place})"
            events.append(event)
        return events, letters

    def _refused(self, error: Exception) -> None:
        reason = str(error) or type(error).__name__
        if reason != self._database_trouble:
            log.warning("the database does not accept: %s; nothing is acknowledged", reason)
        self._database_trouble = reason
        self._observers(LoopFailed("ingest", f"{type(error).__name__}: {reason}"))

    def _count(self, events: Sequence[Event], new: Sequence[bool], letters: dict[str, str], took: float) -> None:
        accepted = sum(new)
        unread = sum(1 for event, fresh in zip(events, new, strict=True) if fresh and event.id in letters)
        for event in events if unread else ():
            if event.id in letters:
                log.error("message %s cannot be read and is a dead letter", event.id)
        so_far = self.totals
        self.totals = Totals(
            so_far.accepted + accepted,
            so_far.duplicates + len(new) - accepted,
            so_far.malformed + unread,
        )
        self._observers(Ingested(self.source.name, accepted, len(new) - accepted, unread, took))

    async def _unless_stopped(self, work: Coroutine[Any, Any, T]) -> T | None:
        """None when we were told to stop before it had ended."""
        task = asyncio.ensure_future(work)
        stop = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait([task, stop], return_when=asyncio.FIRST_COMPLETED)
        finally:
            await cancelled(stop)
            if not task.done():
                await cancelled(task)
        return None if task.cancelled() else task.result()

    async def _beat(self) -> None:
        while True:
            self._pulse = self._clock.monotonic()
            await self._clock.sleep(PULSE)
