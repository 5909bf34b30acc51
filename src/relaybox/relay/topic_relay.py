"""A relay that is a group of a topic: it reads the topic's log, so nothing is written per event.

    async with TopicRelay(url, KafkaSink("kafka://localhost:9092"), topic="orders", group="kafka", to="orders"):
        await asyncio.Event().wait()

`relaybox relay --topic orders --group kafka` is this, as a process. Any number of them share the topic's shards.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from ..brokers.spi import Sink
from ..clock import SYSTEM_CLOCK, Clock
from ..codec import JSON_CODEC, Codec
from ..delivery import Delivery
from ..engine.ranges.workers import RangeBatch
from ..errors import BatchFailed, ConfigError, GroupError
from ..event import Event
from ..facts import Observers
from ..settings import Settings
from ..store.names import Tables
from ..store.outbox.values import Status
from ..store.topics import FOR_EVER, GroupOptions, GroupRow, Lag, TopicRow, open_topic_store
from ..topics.deliver import LogDelivery
from ..topics.dispatch import Durations
from ..topics.home import Home
from ..topics.start import StartFrom
from ..values import Health
from .publish import Publisher
from .relay import Preview, Relay


class RangePublisher:
    """A publisher as the range engine's handler."""

    def __init__(self, publisher: Publisher, durations: Durations, *, ordered: bool) -> None:
        self.size = publisher.size
        self._durations = durations
        self._publisher = publisher
        self._ordered = ordered

    async def handle(self, batch: RangeBatch) -> None:
        started = self._durations.now()
        try:
            await self._publish(batch)
        finally:
            self._durations.since(started, len(batch.events))

    async def _publish(self, batch: RangeBatch) -> None:
        publication = _Publication(batch, one_per_key=self._ordered and not self._publisher.sequences)
        publication.fill(self._ordered)
        while before := len(publication):
            await self._publisher.handle(publication)
            if len(publication) == before:  # what is left is not ours any more
                break
        publication.conclude()


class _Publication:
    """The batch of one call, as a publisher wants it: each delivery is concluded once."""

    def __init__(self, batch: RangeBatch, *, one_per_key: bool) -> None:
        self._batch = batch
        self._one_per_key = one_per_key
        self._open: dict[int, Delivery] = {}
        self._errors: dict[Event, BaseException] = {}
        self._skipped: set[Event] = set()

    def fill(self, ordered: bool) -> None:
        for event in self._batch.events:
            assert event.seq is not None
            self._open[event.seq] = Delivery(event, event.seq, 0, 1, 0.0, hot=False, ordered=ordered)

    def __len__(self) -> int:
        return len(self._open)

    async def waiting(self) -> list[Delivery]:
        """With a sink that keeps no sequences, the first of each key: the next one follows when it is acknowledged."""
        ours = await self._batch.ours()
        mine = [delivery for delivery in self._open.values() if delivery.event.id in ours]
        if not self._one_per_key:
            return mine
        heads: dict[Any, Delivery] = {}
        for delivery in mine:
            heads.setdefault(delivery.seq if delivery.lane is None else delivery.lane, delivery)
        return list(heads.values())

    def done(self, delivery: Delivery) -> None:
        self._open.pop(delivery.seq, None)

    def done_all(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            self._open.pop(delivery.seq, None)

    def failed(self, delivery: Delivery, error: BaseException) -> None:
        """If an earlier one of its key is under way yet, it is tried again behind that."""
        lane = [each for each in self._open.values() if delivery.lane is not None and each.lane == delivery.lane]
        if delivery.seq not in self._open:
            return
        if not lane or lane[0] is delivery:
            self._errors[delivery.event] = error
            del self._open[delivery.seq]
            lane = lane[1:]
        else:
            lane = lane[lane.index(delivery) :]
        for follower in lane:
            self._skipped.add(follower.event)
            del self._open[follower.seq]

    def conclude(self) -> None:
        self._skipped |= {delivery.event for delivery in self._open.values()}
        if self._errors or self._skipped:
            raise BatchFailed(self._errors, self._skipped)


def status_of(lag: Lag) -> Status:
    """How far a group is behind, in the words of an outbox."""
    due = max(0, lag.events - lag.taken - lag.parked)
    return Status(due, 0, lag.taken, lag.parked, lag.dead, lag.oldest or timedelta(0), lag.events)


class TopicRelay(Relay):
    def __init__(
        self,
        target: Any,
        sink: Sink,
        *,
        topic: str,
        group: str,
        start: StartFrom | None = None,
        table: str = "outbox_event",
        schema: str | None = None,
        clock: Clock = SYSTEM_CLOCK,
        codec: Codec = JSON_CODEC,
        settings: Settings | None = None,
        observers: Sequence[Any] = (),
        **options: Any,
    ) -> None:
        super().__init__(
            target,
            sink,
            table=table,
            schema=schema,
            clock=clock,
            codec=codec,
            settings=settings,
            observers=observers,
            **options,
        )
        self._topic = topic
        self._group = group
        self._begin_at = start or StartFrom.latest()
        topics = open_topic_store(self._db.dialect, Tables(table, schema))
        self._home = Home(target, self._db, topics, self.settings, clock, Observers(observers), codec, lambda: None)
        self._ended = False
        self._row: GroupRow | None = None
        self._topic_row: TopicRow | None = None

    async def _deliver(self, publisher: Publisher) -> LogDelivery:
        home, settings, now = self._home, self.settings, self._clock.database_now()
        if self._migrate:
            await home.db.within(None).run(home.store.migrate())
        topic = await home.db.run(home.readable(self._topic), tx=False)
        if topic.topic.tracking == "rows":
            raise ConfigError(f"queue {self._topic!r} is tracked by rows; a relay reads topics that have a log")
        options = GroupOptions(
            ordered=self._ordered,
            max_attempts=settings.delivery.retry.attempts or FOR_EVER,
            on_exhausted=settings.order.on_exhausted,
            heartbeat_interval=topic.topic.heartbeat_interval,
            heartbeat_timeout=topic.topic.heartbeat_timeout,
        )
        row, _ = await home.db.run(home.store.subscribe(topic, self._group, self._begin_at.start, options, now))
        self._topic_row, self._row = topic, row
        durations = Durations(self._clock)
        delivery = LogDelivery(
            home,
            topic,
            row,
            RangePublisher(publisher, durations, ordered=row.ordered),
            {"in_flight": settings.delivery.cold_queue},
            settings.replaced({"delivery.timeout": None}),
            cancelled=self._cancelled,
            mean=lambda: durations.mean,
        )
        await delivery.start()
        return delivery

    def _cancelled(self) -> None:
        """Nothing is sent any more; `health` says why."""
        self._ended = True

    def health(self) -> Health:
        health = super().health()
        still = self._node.row.standstill if isinstance(self._node, LogDelivery) else None
        if self._ended:
            still = f"group {self._group!r} was cancelled"
        return health if still is None else Health("critical", (*health.reasons, still), health.live)

    async def close(self) -> None:
        try:
            await super().close()
        finally:
            await self._home.close()

    # -- looking ------------------------------------------------------------------------------------

    async def status(self) -> Status:
        if self._row is None or self._topic_row is None:
            raise GroupError(f"group {self._group!r} is not started")
        lag = await self._patient.run(
            self._home.store.lag(self._topic_row, self._row, self._clock.database_now()), tx=False
        )
        return status_of(lag)

    async def failing(self) -> int:
        return (await self.status()).retrying

    async def preview(self, limit: int = 100) -> list[Preview]:
        raise ConfigError(
            "a preview shows what waits in the outbox; `relaybox groups lag` shows what waits for a group"
        )
