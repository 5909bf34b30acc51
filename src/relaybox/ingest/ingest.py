"""The ingest: a broker on one side, an inbox on the other. Received, stored in one transaction, acknowledged.

    inbox = Inbox("postgresql://localhost/billing", "orders_inbox")
    with Ingest("kafka://localhost:9092/orders?group=billing", inbox, sender="shop"):
        ...                                                        # beside a program
    Ingest(source, inbox, sender="shop").run(listen="0.0.0.0:9400")    # as the program

One batch at a time, in the broker's order. While the database is away nothing is acknowledged and nothing more is
received; while the broker is away it is opened again and again. Whatever comes twice for that, the inbox drops.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from typing import Any

from .. import faults
from ..brokers import source_from_url
from ..brokers.door import event_of
from ..brokers.parse import Reading
from ..brokers.spi import Incoming, Source
from ..drivers import open_async
from ..drivers.spi import AsyncRunner
from ..errors import BrokerUnavailable, ConfigError, RelayboxError, StoreError
from ..event import Event
from ..facts import CircuitChanged, Ingested, LoopFailed, Observer
from ..inbox.inbox import AsyncInbox, Inbox
from ..memory import freeze_gc
from ..op import T
from ..printable import stack_of
from ..sealing import arun_beside
from ..service import AsyncService, Service, made_as
from ..settings import Settings, chosen
from ..store.inbox import check_sender
from ..tasks import cancelled
from ..values import Counts

log = logging.getLogger("relaybox")

FIRST_PAUSE = 0.05
LONGEST_PAUSE = 1.0
OPEN_SECONDS = 30.0
STOP_SECONDS = 10.0  # for the batch under way


class AsyncIngest(AsyncService):
    """Stores the messages of a broker in an inbox, each once, and acknowledges what is stored: a service.

    Of its `counts`, `done` are the messages that are stored, `ignored` those of them that were there already, `dead`
    those of them that cannot be read."""

    def __init__(
        self,
        source: Source | str,
        inbox: Inbox | AsyncInbox,
        *,
        sender: str = "",
        reading: Reading | None = None,
        settings: Settings | None = None,
        observers: Sequence[Observer] = (),
    ) -> None:
        """Wrong arguments raise here, missing tables at the start. A broker that is away does not: it is waited for.

        source    where messages are read: a source or its URL. The ingest opens and closes it
        inbox     where they are stored. The ingest has connections of its own
        sender    who sent them: a duplicate is the same id of the same sender. An inbox that has several needs a name
                  for each: without one they are one sender, and their ids may meet
        reading   how messages are read that are neither relaybox's nor CloudEvents
        settings  how much, how often, how long; if it is not given, those of the inbox. `delivery.database_timeout`: a
                  transaction that takes longer is given up and tried again, the ids tell what it has done
        observers told of what happens, beside those of the inbox
        """
        if not isinstance(inbox, (Inbox, AsyncInbox)):
            raise ConfigError(
                f"expected inbox to be an Inbox, such as Inbox(url, 'orders_inbox'), got {type(inbox).__name__}"
            )
        super().__init__(inbox._clock)
        self.source = source_from_url(source) if isinstance(source, str) else source
        self.settings = chosen(settings, lambda: inbox.settings)
        self._pages = self.settings.listen
        self._inbox = inbox
        self._sender = check_sender(sender)
        self._reading = reading
        self._observers = inbox._observers.joined(observers)
        self._broker_trouble: str | None = None
        self._database_trouble: str | None = None
        self._opened = False
        self._stopping = asyncio.Event()
        self._empty = asyncio.Event()
        self._reader: asyncio.Task[None] | None = None
        self._closing = AsyncExitStack()
        self._counts = Counts()

    @property
    def name(self) -> str:
        return f"ingest of {self.source.name} into {self._inbox.name}"

    @property
    def counts(self) -> Counts:
        return self._counts

    async def _start(self) -> None:
        delivery, store = self.settings.delivery, self._inbox.store
        self._closing.push_async_callback(self._close_source)
        self._db: AsyncRunner = open_async(
            self._inbox._target, size=1, timeout=delivery.database_timeout.total_seconds()
        )
        self._closing.push_async_callback(self._db.close)
        await self._db.run(store.verify_schema(), tx=False)
        if await self._db.run(store.read_only(), tx=False):
            raise ConfigError("the inbox's database is read-only, a standby perhaps: connect to the primary")
        if self._inbox._vault is not None:
            await self._db.run(store.check_sealing(), tx=False)
            await asyncio.to_thread(self._inbox._vault.verify)
        try:
            await self._open()
        except BrokerUnavailable as away:
            self._lost(away)
        self._reader = asyncio.create_task(self._run(), name="relaybox-ingest")
        if delivery.freeze_gc:
            freeze_gc()

    async def _close_source(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_SECONDS):
                await self.source.close()

    def halt(self) -> None:
        self._stopping.set()

    async def _stop(self, timeout: float | None) -> None:
        """The batch under way is finished; what else was received is given back."""
        self.halt()
        async with self._closing:
            self._closing.push_async_callback(cancelled, self._reader)
            if self._reader is not None:
                await asyncio.wait([self._reader], timeout=STOP_SECONDS if timeout is None else timeout)

    async def _drain(self) -> None:
        """Until the broker has had nothing new for `ingest.wait`."""
        self._empty.clear()
        await self._empty.wait()

    def _complaints(self) -> Iterator[str]:
        if self._reader is None:
            yield "not running"
        if self._broker_trouble is not None:
            yield f"{self.source.name} is unavailable"
        if self._database_trouble is not None:
            yield "the database does not accept"

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
            self._observers(LoopFailed("ingest", reason))
        if reason != self._broker_trouble:
            stack = "" if expected else stack_of(error)
            log.warning("%s is unavailable: %s; messages wait there%s", self.source.name, reason, stack)
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
                answers = await self._accept(events, letters)
                break
            except Exception as error:
                if not isinstance(error, StoreError) and self._inbox._vault is None:
                    raise
                self._refused(error)  # a key management service that is away refuses too
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

    async def _accept(self, events: Sequence[Event], letters: dict[str, str]) -> list[bool]:
        """Processors of this process are told at once."""
        inbox = self._inbox
        sealed = await arun_beside(inbox._sealed(events, self._sender, letters), inbox._vault)
        op, tx = inbox._op(sealed, self._sender, letters)
        answers = await self._db.run(op, tx=tx)
        inbox._wake()
        return inbox._counted(answers)

    def _read(self, batch: Sequence[Incoming]) -> tuple[list[Event], dict[str, str]]:
        """As events, and why some could not be read."""
        events, letters = [], {}
        for message in batch:
            event, unread = event_of(message, self._reading)
            if unread is not None:
                letters[event.id] = unread
            events.append(event)
        return events, letters

    def _refused(self, error: Exception) -> None:
        ours = isinstance(error, RelayboxError)  # the text of another's may have anything in it, a key too
        reason = (ours and str(error)) or type(error).__name__
        if reason != self._database_trouble:
            log.warning("the inbox does not accept: %s; nothing is acknowledged", reason)
        self._database_trouble = reason
        self._observers(LoopFailed("ingest", f"{type(error).__name__}: {reason}" if ours else reason))

    def _count(self, events: Sequence[Event], new: Sequence[bool], letters: dict[str, str], took: float) -> None:
        accepted = sum(new)
        unread = sum(1 for event, fresh in zip(events, new, strict=True) if fresh and event.id in letters)
        for event in events if unread else ():
            if event.id in letters:
                log.error("message %s cannot be read and is a dead letter", event.id)
        known, so_far = len(new) - accepted, self._counts
        self._counts = replace(
            so_far, done=so_far.done + len(new), ignored=so_far.ignored + known, dead=so_far.dead + unread
        )
        self._observers(Ingested(self.source.name, accepted, known, unread, took))

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


class Ingest(Service):
    """Stores the messages of a broker in an inbox, each once, and acknowledges what is stored: a service.

    Of its `counts`, `done` are the messages that are stored, `ignored` those of them that were there already, `dead`
    those of them that cannot be read."""

    @made_as(AsyncIngest)
    def __init__(self, *args: Any, **options: Any) -> None:
        if any(isinstance(inbox, AsyncInbox) for inbox in (*args[1:2], options.get("inbox"))):
            raise ConfigError("an AsyncInbox belongs to the loop that made it; use AsyncIngest, or an Inbox")
        super().__init__(AsyncIngest(*args, **options))
