"""The relay: an outbox or a group of a topic on one side, a broker on the other, per key in order.

    with Relay("postgresql://localhost/shop", "kafka://localhost:9092", to="orders"):
        ...                                                             # beside a program
    Relay(outbox, KafkaSink("kafka://localhost:9092"), to="orders").run(listen="0.0.0.0:9400")    # as the program

Any number of relays may run on one outbox; they share its keys. `relaybox relay` is this, as a command.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from ..brokers import sink_from_url
from ..brokers.formats import MessageFormat, renderer
from ..brokers.spi import DestinationLimits, Message, Sink
from ..contracts import Contracts
from ..drivers import open_async
from ..drivers.spi import AsyncRunner
from ..errors import BrokerUnavailable, ConfigError, StoreError
from ..event import Event
from ..facts import Observer
from ..outbox import AsyncOutbox, Outbox
from ..outbox.source import with_fair
from ..sealing import closed, sealing
from ..service import PULSE, AsyncService, Service, asks, made_as
from ..settings import Fair, Settings, chosen
from ..tasks import cancelled
from ..topics.group import AsyncGroup, Group
from ..values import Counts, Status
from .circuit import Circuit
from .destinations import Destinations
from .feed_input import FeedInput
from .inputs import GroupInput, OutboxInput, RelayInput
from .publish import Publisher, addressed, preparation
from .routing import Destination, router
from .rows import with_tombstones

log = logging.getLogger("relaybox")

CALLS = 8  # at a time, to a destination of which its sink says nothing


@dataclass(frozen=True, slots=True)
class Preview:
    """What would become of one waiting event: a message, or the problem that makes it a dead letter."""

    event: Event
    message: Message | None
    problem: str | None


class AsyncRelay(AsyncService):
    """Sends the events of an outbox, or of a group of a topic, to a broker: a service."""

    def __init__(
        self,
        source: Outbox | AsyncOutbox | Group | AsyncGroup | str,
        sink: Sink | str,
        *,
        to: Destination | None = None,
        contracts: Contracts | None = None,
        ordered: bool = True,
        fair: Fair | None = None,
        format: MessageFormat = "plain",
        ce_source: str = "relaybox",
        decrypt: bool = False,
        feed: str | None = None,
        rows: bool = False,
        tombstones: bool | None = None,
        settings: Settings | None = None,
        observers: Sequence[Observer] = (),
    ) -> None:
        """Wrong arguments raise here, wrong tables at the start. A broker that is away does not: it is waited for.

        source     an outbox, a group of a topic, or the URL of an outbox. The relay has connections of its own
        sink       where to: a sink or its URL. The relay opens and closes it
        to         the destination there: a name, a template such as "{aggregate_type}-events", or a function of the
                   event
        contracts  what events must look like to go out; they may name destinations instead of `to`
        ordered    keep the order of each key
        fair       "tenant": claims go round the tenants, so that none waits for what others have waiting; for an
                   outbox or a queue tracked by rows, and not with `ordered`
        format     "plain", "cloudevents" or "cloudevents-structured"
        ce_source  the attribute `source` of CloudEvents
        decrypt    send what a vault has encrypted as it was before; needs the vault, as the codec of the outbox.
                   Without it the ciphertext goes out, and headers say with which data key and what it was
        feed       the deltas of this feed and nothing else; the source is a group of its topic
        rows       with `feed`: one message for each row that was created, updated or deleted, instead of deltas
        tombstones with `rows`: after the message that a row was deleted another with its key and no body, for compacted
                   topics. None: if the sink has them
        settings   how much, how often, how long; if it is not given, those of the outbox
        observers  told of what happens, beside those of the outbox
        """
        if to is None and contracts is None:
            raise ConfigError("a relay needs `to` (a destination or a template) or contracts that name destinations")
        if contracts is not None:
            contracts.verify()
        if isinstance(source, str):
            source = AsyncOutbox(source, settings=settings)
        box = source._box if isinstance(source, (Group, AsyncGroup)) else source
        if not isinstance(box, (Outbox, AsyncOutbox)):
            raise ConfigError(f"expected an outbox, a group or the URL of an outbox, got {type(box).__name__}")
        super().__init__(box._clock)
        self.sink = sink_from_url(sink) if isinstance(sink, str) else sink
        if feed is not None and (not isinstance(source, (Group, AsyncGroup)) or not ordered or fair is not None):
            raise ConfigError(
                f"feed={feed!r} is sent in order, as a group of its topic: Relay(outbox.topics.group(TOPIC, NAME), …), "
                "without ordered=False and fair="
            )
        if rows and feed is None:
            raise ConfigError("rows=True is about the deltas of a feed: give it as feed=")
        if tombstones is not None and not rows:
            raise ConfigError("tombstones= is about messages for rows: it goes with rows=True")
        if tombstones and not self.sink.features.tombstones:
            raise ConfigError(f"{self.sink.name} has no messages without a body: leave tombstones=True out")
        self.settings = chosen(settings, lambda: box.settings).of_relay()
        self._pages = self.settings.listen
        if not isinstance(source, (Group, AsyncGroup)):
            self.settings = with_fair(self.settings, fair, ordered=ordered)
        self._observers = box._observers.joined(observers)
        features = self.sink.features
        route = router(to, features.separator) if to is not None else None
        self._prepare = preparation(self.sink, renderer(format, ce_source, features), route, contracts, decrypt)
        self._find = route if route is not None and contracts is None else lambda e: addressed(e, route, contracts)[1]
        if decrypt and sealing(box._codec) is None:
            raise ConfigError("decrypt=True needs an outbox with a vault, Outbox(url, codec=Vault(url, keyring))")
        codec = box._codec if decrypt else closed(box._codec)
        self._input: RelayInput
        if not isinstance(source, (Group, AsyncGroup)):
            self._input = OutboxInput(box, self.settings, self._observers, codec, ordered=ordered)
        elif feed is None:
            self._input = GroupInput(source, box, self.settings, self._observers, codec, ordered=ordered, fair=fair)
        else:
            ends = self.sink.features.tombstones if tombstones is None else tombstones
            self._input = FeedInput(
                source, box, self.settings, self._observers, codec, feed, rows=rows, tombstones=ends
            )
        if rows:
            self._prepare = with_tombstones(self._prepare)
        self._target = box._target
        self._db: AsyncRunner | None = None
        self._circuit: Circuit | None = None
        self._queue: Destinations | None = None
        self._opened = False
        self._closing = AsyncExitStack()

    @property
    def name(self) -> str:
        return f"relay of {self._input.what} to {self.sink.name}"

    async def _start(self) -> None:
        relay = self.settings.relay
        db = open_async(self._target, timeout=self.settings.delivery.statement_seconds)
        self._closing.push_async_callback(db.close)
        self._closing.push_async_callback(self.sink.close)
        circuit = self._circuit = Circuit(self.sink.name, self._reach, self._observers, self._clock)
        self._closing.push_async_callback(circuit.stop)
        patience = relay.timeout.total_seconds()
        try:
            async with asyncio.timeout(patience):
                await self._reach()
        except BrokerUnavailable as away:
            circuit.trip(away)
        except TimeoutError:
            circuit.trip(BrokerUnavailable(f"no connection within {patience:g} s"))
        if self.sink.features.by_destination and await self._input.by_rows(db):
            self._queue = Destinations(
                self.sink.name,
                self._find,
                getattr(self.sink, "limits", lambda destination: DestinationLimits(self.sink.name, CALLS)),
                calls=relay.calls,
                room=relay.in_flight,
                slow=relay.slow,
                observers=self._observers,
                clock=self._clock,
            )
        publisher = Publisher(
            self.sink,
            self._prepare,
            circuit,
            size=relay.batch,
            timeout=relay.timeout,
            observers=self._observers,
            clock=self._clock,
            queue=self._queue,
        )
        await self._input.start(db, publisher)
        self._db = db
        self._closing.push_async_callback(cancelled, asyncio.create_task(self._tend(db), name="relaybox-tend"))

    async def _reach(self) -> None:
        """Connect for the first time, or look whether the broker is back."""
        if self._opened:
            await self.sink.probe()
        else:
            await self.sink.open()
            self._opened = True

    async def _tend(self, db: AsyncRunner) -> None:
        while True:
            if self._queue is not None:
                self._queue.tell()
            try:
                await self._input.tend(db, self._outage or f"sends to {self.sink.name}")
            except StoreError as error:
                log.debug("the state of a relay could not be written or measured: %s", type(error).__name__)
            await self._clock.sleep(PULSE)

    def halt(self) -> None:
        self._input.halt()
        if self._circuit is not None:
            self._circuit.halt()

    async def _stop(self, timeout: float | None) -> None:
        """What the broker is about to acknowledge is settled; what waits for a broker that is away is given back."""
        self.halt()
        async with self._closing:  # last in, first out, each also when another failed
            self._db = None
            await self._input.stop(timeout)

    async def _drain(self) -> None:
        assert self._db is not None
        await self._input.drain(self._db.within(self.settings.delivery.batch_seconds))

    @property
    def _outage(self) -> str | None:
        away = self._circuit is not None and self._circuit.is_open
        return f"{self.sink.name} is unavailable" if away else None

    def _complaints(self) -> Iterator[str]:
        yield from self._input.complaints()
        if self._outage is not None:
            yield self._outage

    def _worries(self) -> Iterator[str]:
        return self._input.worries()

    @property
    def counts(self) -> Counts:
        return self._input.counts

    # -- looking ------------------------------------------------------------------------------------

    async def status(self) -> Status:
        """How much waits for this relay, and how long; also for one that does not run."""
        async with self._asking() as db:
            return await self._input.status(db)

    async def failing(self) -> int:
        """How many events wait for another try, also those whose attempt was not counted."""
        async with self._asking() as db:
            return await self._input.failing(db)

    async def preview(self, limit: int = 100) -> list[Preview]:
        """What would be sent next, without claiming or sending it."""
        async with self._asking() as db:
            return [self._previewed(event) for event in await self._input.waiting(db, limit)]

    def _previewed(self, event: Event) -> Preview:
        try:
            return Preview(event, self._prepare(event), None)
        except Exception as error:
            return Preview(event, None, f"{type(error).__name__}: {error}")

    @asynccontextmanager
    async def _asking(self) -> AsyncIterator[AsyncRunner]:
        limit = self.settings.delivery.batch_seconds
        if self._db is not None:
            yield self._db.within(limit)
            return
        db = open_async(self._target, size=1, timeout=limit)
        try:
            yield db
        finally:
            await db.close()


class Relay(Service):
    """Sends the events of an outbox, or of a group of a topic, to a broker: a service."""

    @made_as(AsyncRelay)
    def __init__(self, *args: object, **options: object) -> None:
        super().__init__(AsyncRelay(*args, **options))  # type: ignore[arg-type]

    status = asks(AsyncRelay.status)
    failing = asks(AsyncRelay.failing)
    preview = asks(AsyncRelay.preview)
