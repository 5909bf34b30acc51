"""The relay: an outbox on one side, a broker on the other, per key in order.

    async with Relay("postgresql://localhost/shop", KafkaSink("kafka://localhost:9092"), to="orders"):
        await asyncio.Event().wait()

Any number of relays may run on one outbox; they share its keys. `relaybox relay` is this, as a process.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Protocol, Self

from ..brokers.formats import MessageFormat, renderer
from ..brokers.spi import Message, Sink
from ..clock import SYSTEM_CLOCK, Clock
from ..codec import JSON_CODEC, Codec
from ..contracts import Contracts
from ..drivers import open_async, parse
from ..errors import BrokerUnavailable, Closed, ConfigError, StoreError
from ..event import Event
from ..facts import Observer, Observers
from ..outbox.node import Node
from ..settings import Settings
from ..store.names import Tables
from ..store.outbox import open_store
from ..store.outbox.values import Status
from ..tasks import cancelled
from ..values import Health
from .circuit import Circuit
from .publish import Publisher, preparation
from .routing import To, router

log = logging.getLogger("relaybox")

PULSE = 1.0  # seconds between two signs of life of the loop


@dataclass(frozen=True, slots=True)
class Preview:
    """What would become of one waiting event."""

    event: Event
    message: Message | None
    problem: str | None


class Engine(Protocol):
    async def until_idle(self) -> None: ...


class Delivering(Protocol):
    """What runs while a relay is open: a node of the outbox, or a member of a topic's group."""

    @property
    def engine(self) -> Engine: ...

    def complaints(self) -> Iterable[str]: ...

    async def stop(self) -> None: ...


class Relay:
    """Delivers while its `async with` block is open. Wrong settings raise before anything starts; a broker that is
    away does not: the relay waits for it."""

    def __init__(
        self,
        target: Any,
        sink: Sink,
        *,
        to: To | None = None,
        contracts: Contracts | None = None,
        ordered: bool = True,
        format: MessageFormat = "plain",
        source: str = "relaybox",
        table: str = "outbox_event",
        schema: str | None = None,
        settings: Settings | None = None,
        observers: Sequence[Observer] = (),
        migrate: bool = False,
        clock: Clock = SYSTEM_CLOCK,
        codec: Codec = JSON_CODEC,
    ) -> None:
        if to is None and contracts is None:
            raise ConfigError("a relay needs `to` (a destination or a template) or contracts that name destinations")
        if contracts is not None:
            contracts.verify()
        if isinstance(target, str) and parse(target).in_memory:
            raise ConfigError("an in-memory SQLite database belongs to one connection; use a file")
        self.sink = sink
        self.settings = (settings or Settings.load()).of_relay()
        self._target = target
        self._clock = clock
        self._observers = Observers(observers)
        self._migrate = migrate
        self._ordered = ordered
        self._opened = False
        self._db = open_async(target, timeout=self.settings.delivery.statement_seconds)
        self._patient = self._db.within(self.settings.delivery.batch_seconds)  # for questions
        self.store = open_store(self._db.dialect, Tables(table, schema), codec)
        self._prepare = preparation(
            sink,
            renderer(format, source, sink.features),
            router(to, sink.features.separator) if to is not None else None,
            contracts,
        )
        self._node: Delivering | None = None
        self.circuit: Circuit | None = None
        self._pulse = clock.monotonic()
        self._pulse_task: asyncio.Task[None] | None = None
        self._note_task: asyncio.Task[None] | None = None
        self._closed = False

    async def __aenter__(self) -> Self:
        if self._closed:
            raise Closed("this relay is closed; make a new one")
        self._pulse_task = asyncio.create_task(self._beat(), name="relaybox-pulse")
        try:
            if self._migrate:
                await self._db.within(None).run(self.store.migrate())
            await self._start()
        except BaseException:
            await self.close()
            raise
        return self

    async def _start(self) -> None:
        circuit = self.circuit = Circuit(self.sink.name, self._reach, self._observers, self._clock)
        patience = self.settings.relay.timeout.total_seconds()
        try:
            async with asyncio.timeout(patience):
                await self._reach()
        except BrokerUnavailable as away:
            circuit.trip(away)
        except TimeoutError:
            circuit.trip(BrokerUnavailable(f"no connection within {patience:g} s"))
        publisher = Publisher(
            self.sink,
            self._prepare,
            circuit,
            size=self.settings.relay.batch,
            timeout=self.settings.relay.timeout,
            observers=self._observers,
            clock=self._clock,
        )
        self._node = await self._deliver(publisher)

    async def _deliver(self, publisher: Publisher) -> Delivering:
        node = Node(
            "relay" if self._ordered else "delivery",
            self._db,
            self.store,
            publisher,
            self.settings,
            observers=self._observers,
            clock=self._clock,
        )
        await node.start()
        self._note_task = asyncio.create_task(self._keep_note(node), name="relaybox-note")
        return node

    async def _reach(self) -> None:
        """Connect for the first time, or look whether the broker is back."""
        if self._opened:
            await self.sink.probe()
        else:
            await self.sink.open()
            self._opened = True

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Claim no more, finish what the broker is about to acknowledge, give the rest back. Safe to repeat."""
        if self._closed:
            return
        self._closed = True
        async with AsyncExitStack() as ending:  # last in, first out, each also when another failed
            ending.push_async_callback(self._db.close)
            ending.push_async_callback(self.sink.close)
            ending.push_async_callback(cancelled, self._pulse_task, self._note_task)
            if self.circuit is not None:
                ending.push_async_callback(self.circuit.stop)
            if self._node is not None:
                ending.push_async_callback(self._node.stop)

    def health(self) -> Health:
        """For /live and /ready: callable from any thread."""
        live = self._clock.monotonic() - self._pulse < PULSE * 10
        reasons = []
        if self._node is None or self._closed:
            reasons.append("not running")
        elif not live:
            reasons.append("the event loop is stuck")
        else:
            reasons += self._node.complaints()
        if self.circuit is not None and self.circuit.reason is not None:
            reasons.append(f"{self.sink.name} is unavailable")
        return Health("critical" if reasons else "ok", tuple(reasons), live)

    async def _beat(self) -> None:
        while True:
            self._pulse = self._clock.monotonic()
            await self._clock.sleep(PULSE)

    async def _keep_note(self, node: Node) -> None:
        """An outage is written down with this process, for `relaybox status`."""
        told: tuple[int, str | None] = (0, None)
        while True:
            away = self.circuit is not None and self.circuit.is_open
            note = node.owner, f"{self.sink.name} is unavailable" if away else None
            if note != told and (away or told[1] is not None):
                try:
                    await self._db.run(self.store.note(*note), tx=False)
                    told = note
                except StoreError as error:
                    log.debug("the state of the broker could not be written down: %s", type(error).__name__)
            await self._clock.sleep(PULSE)

    # -- looking ------------------------------------------------------------------------------------

    async def status(self) -> Status:
        return await self._patient.run(self.store.status(self._clock.database_now()), tx=False)

    async def failing(self) -> int:
        """Events that wait for another try, also those whose attempt was not counted."""
        return await self._patient.run(self.store.failing(), tx=False)

    async def preview(self, limit: int = 100) -> list[Preview]:
        """What would be sent next, without claiming or sending it."""
        rows = await self._patient.run(self.store.waiting(limit, self._clock.database_now()), tx=False)
        return [self._previewed(Event.stored(row)) for row in rows]

    def _previewed(self, event: Event) -> Preview:
        try:
            return Preview(event, self._prepare(event), None)
        except Exception as error:
            return Preview(event, None, f"{type(error).__name__}: {error}")

    async def drained(self) -> Status:
        """Returns once there is nothing more to do here: all is delivered, waits for a retry, is blocked, or is with
        another process. One that died is found out within `instance_ttl`: so long it is waited for what it had."""
        if self._node is None:
            raise Closed("drained() is for a relay whose `async with` block is open")
        ttl = self.settings.delivery.instance_ttl.total_seconds()
        patience: float | None = None
        while True:
            await self._node.engine.until_idle()
            status = await self.status()
            if patience is None:
                patience = self._clock.monotonic() + 1.5 * ttl
            if not (status.due or status.claimed) or self._clock.monotonic() > patience:
                return status
            await self._clock.sleep(ttl / 10)
