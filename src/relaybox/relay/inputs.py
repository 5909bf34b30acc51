"""What a relay reads: the rows of an outbox, or the log of a topic as one of its groups."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from functools import cached_property

from ..codec import Codec
from ..drivers.spi import AsyncRunner
from ..engine.dispatch import Durations
from ..errors import ConfigError
from ..event import Event
from ..facts import Depths, Observers
from ..outbox import AsyncOutbox, Outbox
from ..outbox.node import Node, drained
from ..outbox.source import with_fair
from ..settings import Fair, Settings
from ..store.outbox import OutboxStore, open_store
from ..store.topics import GroupRow, Lag, TopicRow, open_topic_store
from ..topics.context import TopicContext
from ..topics.delivery import GroupHandlers, LogMember, RowMember
from ..topics.group import AsyncGroup, Group
from ..topics.join import join
from ..values import Counts, Status
from .publish import Publisher
from .ranges import RangePublisher

OF_OUTBOX = ("outbox.retention", "outbox.dead_retention")  # topics have their own


class RelayInput(ABC):
    """Started once, with the connections of the relay."""

    def __init__(
        self, box: Outbox | AsyncOutbox, settings: Settings, observers: Observers, codec: Codec, *, ordered: bool
    ) -> None:
        box._check_deliverable()
        self.what = box.store.tables.event  # for people
        self.box = box
        self._settings = settings
        self._observers = observers
        self._codec = codec
        self._clock = box._clock
        self._ordered = ordered
        self._running: Node | LogMember | RowMember | None = None

    @abstractmethod
    async def by_rows(self, db: AsyncRunner) -> bool:
        """Whether it gives event by event, so that each destination can have a queue."""

    @abstractmethod
    async def start(self, db: AsyncRunner, publisher: Publisher) -> None: ...

    def halt(self) -> None:
        if self._running is not None:
            self._running.halt()

    async def stop(self, timeout: float | None) -> None:
        if self._running is not None:
            await self._running.stop(timeout)

    @abstractmethod
    async def drain(self, db: AsyncRunner) -> None: ...

    def complaints(self) -> Iterator[str]:
        return iter(("not running",)) if self._running is None else self._running.complaints()

    def worries(self) -> Iterator[str]:
        return iter(()) if self._running is None else self._running.engine.worries()

    @property
    def counts(self) -> Counts:
        return Counts() if self._running is None else self._running.engine.counts

    @abstractmethod
    async def tend(self, db: AsyncRunner, sends: str) -> None:
        """Every second while the relay works; `sends` says where to, or why it does not."""

    @abstractmethod
    async def status(self, db: AsyncRunner) -> Status: ...

    @abstractmethod
    async def failing(self, db: AsyncRunner) -> int: ...

    @abstractmethod
    async def waiting(self, db: AsyncRunner, limit: int) -> list[Event]: ...


class OutboxInput(RelayInput):
    _running: Node | None
    _told: tuple[int, str] = (0, "")

    @cached_property
    def _store(self) -> OutboxStore:
        """That of the outbox, with payloads as this relay sends them."""
        store = self.box.store
        return store if store.codec is self._codec else open_store(store.dialect, store.tables, self._codec)

    async def by_rows(self, db: AsyncRunner) -> bool:
        return True

    async def start(self, db: AsyncRunner, publisher: Publisher) -> None:
        node = Node(
            "relay" if self._ordered else "delivery",
            db,
            self._store,
            publisher,
            self._settings,
            observers=self._observers,
            clock=self._clock,
        )
        await node.start()
        self._running = node

    async def drain(self, db: AsyncRunner) -> None:
        assert self._running is not None
        await self._running.drain()

    async def tend(self, db: AsyncRunner, sends: str) -> None:
        """It is written down with this process, for `relaybox status`."""
        assert self._running is not None
        note = self._running.owner, sends
        if note != self._told:
            await db.run(self.box.store.note(*note), tx=False)
            self._told = note

    async def status(self, db: AsyncRunner) -> Status:
        return await db.run(self.box.store.status(self._clock.database_now()), tx=False)

    async def failing(self, db: AsyncRunner) -> int:
        return await db.run(self.box.store.failing(), tx=False)

    async def waiting(self, db: AsyncRunner, limit: int) -> list[Event]:
        rows = await db.run(self.box.store.waiting(limit, self._clock.database_now()), tx=False)
        return [Event.stored(row, self._codec) for row in rows]


class GroupInput(RelayInput):
    """Of a log nothing is written per event: the group's cursor moves over it. A queue tracked by rows is an outbox of
    its own."""

    _running: LogMember | RowMember | None

    def __init__(
        self,
        group: Group | AsyncGroup,
        box: Outbox | AsyncOutbox,
        settings: Settings,
        observers: Observers,
        codec: Codec,
        *,
        ordered: bool,
        fair: Fair | None = None,
    ) -> None:
        super().__init__(box, settings, observers, codec, ordered=ordered)
        self.what = f"topic {group.topic} as group {group.name}"
        said = group._joining
        self._joining = replace(
            said,
            ordered=ordered if said.ordered is None else said.ordered,
            fair=fair or said.fair,
            on_exhausted=said.on_exhausted or settings.order.on_exhausted,
        )
        self._store = open_topic_store(self.box.store.dialect, self.box._tables)
        self._context: TopicContext[AsyncRunner] | None = None
        self._rows: tuple[TopicRow, GroupRow] | None = None

    async def by_rows(self, db: AsyncRunner) -> bool:
        topic = await db.run(self._at(db).readable(self._joining.topic), tx=False)
        return topic.topic.tracking == "rows"

    async def start(self, db: AsyncRunner, publisher: Publisher) -> None:
        settings = self._settings.replaced({"delivery.timeout": None, **dict.fromkeys(OF_OUTBOX)})
        settings = with_fair(settings, self._joining.fair, ordered=False)
        context = self._context = self._at(db)
        joined = await db.run(join(context, self._joining, push=True))
        self._rows = joined.topic, joined.group
        handlers = self._handlers(db, publisher, joined.group, Durations(self._clock))
        kind = RowMember if joined.topic.topic.tracking == "rows" else LogMember
        member = kind(context, *self._rows, handlers, settings)
        await member.start(settings.delivery.cold_queue)
        self._running = member

    def _handlers(self, db: AsyncRunner, publisher: Publisher, group: GroupRow, durations: Durations) -> GroupHandlers:
        ranges = RangePublisher(publisher, durations, ordered=group.ordered)
        return GroupHandlers(ranges=ranges, rows=publisher, mean=lambda: durations.mean)

    async def stop(self, timeout: float | None) -> None:
        try:
            await super().stop(timeout)
        finally:
            if self._context is not None:
                await self._context.close()

    async def drain(self, db: AsyncRunner) -> None:
        assert self._running is not None
        await drained(self._running.engine, lambda: self.status(db), self._settings, self._clock)

    @property
    def counts(self) -> Counts:
        return Counts() if self._running is None else self._running.counts

    async def tend(self, db: AsyncRunner, sends: str) -> None:
        if self._observers and not isinstance(self._running, RowMember):  # whose engine measures
            oldest: timedelta | None = None
            try:
                oldest = (await self._lag(db)).oldest or timedelta(0)
            finally:  # a failed measurement is reported as missing, never as zero
                held = 0 if self._running is None else self._running.engine.in_flight
                self._observers(Depths(0, held, oldest))

    async def _lag(self, db: AsyncRunner) -> Lag:
        if (rows := self._rows) is None:
            rows = await db.run(self._at(db).reader(self._joining.topic, self._joining.group), tx=False)
        return await db.run(self._store.lag(*rows, self._clock.database_now()), tx=False)

    def _at(self, db: AsyncRunner) -> TopicContext[AsyncRunner]:
        box = self.box
        return TopicContext(
            box._target, db, self._store, self._settings, self._clock, self._observers, self._codec, lambda: None
        )  # fmt: skip

    async def status(self, db: AsyncRunner) -> Status:
        return status_of(await self._lag(db))

    async def failing(self, db: AsyncRunner) -> int:
        return (await self._lag(db)).parked

    async def waiting(self, db: AsyncRunner, limit: int) -> list[Event]:
        raise ConfigError(
            "a preview shows what waits in the outbox; `relaybox groups lag` shows what waits for a group"
        )


def status_of(lag: Lag) -> Status:
    """How far a group is behind, in the words of an outbox."""
    due = max(0, lag.events - lag.taken - lag.parked)
    return Status(due, 0, lag.taken, lag.parked, lag.dead, lag.oldest or timedelta(0), lag.events)
