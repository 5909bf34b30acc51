"""How a started group delivers in this process: from a log with the range engine, or from rows as an outbox does."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypedDict

from ..drivers.script import aplay
from ..drivers.spi import AsyncRunner
from ..engine.engine import Engine
from ..engine.presence import default_name
from ..engine.ranges.engine import RangeEngine
from ..engine.ranges.workers import RangeBatchHandler, RangeHandler
from ..engine.wakeups import Ears
from ..errors import ConfigError, StoreError
from ..outbox.node import Node
from ..retry import Retry
from ..settings import OnExhausted, Settings
from ..store.outbox import open_store
from ..store.topics import FOR_EVER, GroupRow, TopicRow
from ..store.topics.life import GroupState
from ..tasks import cancelled
from ..values import Counts
from .backfill import finish
from .dispatch import Filter, Members, PayloadType
from .home import Home
from .liveness import Membership
from .source import TopicSource

log = logging.getLogger("relaybox")


class GroupOption(TypedDict, total=False):
    payload_type: PayloadType  # handlers get the decoded payload; a model, or event type -> model
    filter: Filter | None  # events for which it is False are none of this group's business
    batch: int | None  # handlers take lists of at most so many events
    ordered: bool | None  # one at a time per key, over all processes; default: yes, for queues no
    on_exhausted: OnExhausted | None
    heartbeat_interval: timedelta | None
    heartbeat_timeout: timedelta | None
    instance: str | None  # the name of this process among the members
    in_flight: int  # events in this process at most
    retry: Retry | None  # none: as the settings say
    settings: Settings | None


class _Delivery:
    """A member of the group, and the engine that works for it."""

    engine: Engine[Any]
    _membership: Membership

    def __init__(
        self,
        home: Home[AsyncRunner],
        row: GroupRow,
        options: GroupOption,
        settings: Settings,
        cancelled: Callable[[], None],
        mean: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._home = home
        self.row = row
        self._settings = settings
        self._name = options.get("instance") or self._settings.delivery.owner or default_name()
        self._cancelled = cancelled
        self._mean = mean  # seconds that the handler takes for an event; 0: not measured
        self._counted = Counts()

    def halt(self) -> None:
        self.engine.halt()

    async def until_idle(self) -> None:
        await self.engine.until_idle()

    def told(self, state: GroupState) -> None:
        """How the group is. A paused or stalled one keeps its heartbeat and takes nothing."""
        if state == "active":
            self.engine.resume()
        else:
            self.engine.pause()

    def turned(self, row: GroupRow) -> None:
        """By this process: nobody has to ask how the group is. The next beat tells what has changed since."""
        self.row = row
        self._membership.turned(row.state)
        self.told(row.state)

    def _say(self) -> None:
        if self.row.standstill is not None:
            log.warning("%s", self.row.standstill)

    async def _leave(self) -> None:
        self._count()
        try:
            await self._membership.leave()
        except Exception as error:
            log.error("could not sign off from group %s; this member will expire: %s", self.row.name, error)

    @property
    def counts(self) -> Counts:
        raise NotImplementedError

    def _count(self) -> None:
        now, last = self.counts, self._counted
        processed, failed = now.done - last.done, now.failed + now.dead - last.failed - last.dead
        filtered = now.ignored - last.ignored
        if now != last:
            busy = self._mean() * (processed + failed - filtered)
            self._membership.count(processed=processed, failed=failed, filtered=filtered, busy=busy)
        self._counted = now


class LogDelivery(_Delivery):
    """Membership, engine and ears."""

    engine: RangeEngine

    def __init__(
        self,
        home: Home[AsyncRunner],
        topic: TopicRow,
        row: GroupRow,
        handler: RangeHandler | RangeBatchHandler,
        options: GroupOption,
        settings: Settings,
        *,
        cancelled: Callable[[], None],
        filtered: Callable[[], int] = lambda: 0,
        mean: Callable[[], float],
    ) -> None:
        super().__init__(home, row, options, settings, cancelled, mean)
        self._topic = topic
        self._handler = handler
        self._in_flight = options.get("in_flight") or topic.topic.fetch_batch * topic.topic.shards
        self._filtered = filtered
        self._required = topic.topic.tracking not in ("bitmap", "acks")  # no open event is left to be told of the group
        self._looking: asyncio.Task[None] | None = None
        self._asked = False
        attempts = None if row.max_attempts == FOR_EVER else row.max_attempts
        self._settings = settings.replaced(
            {"delivery.retry.attempts": attempts, "order.on_exhausted": row.on_exhausted}
        )

    async def start(self) -> None:
        home, settings = self._home, self._settings
        self._membership = await home.heartbeats.join(
            self.row, self._name, told=self._heard, lost=self._lost, alive=self._beat
        )
        self._source = TopicSource(
            home.own, home.store, home.reads, self._topic, self._membership, settings, home.clock, home.codec
        )
        self.engine = RangeEngine(
            self._source,
            self._handler,
            settings,
            home.observers,
            home.clock,
            range_events=self._topic.topic.fetch_batch,
            capacity=self._in_flight,
            eager=not callable(self._handler),
        )
        listen = home.own.listen if settings.delivery.notify else None
        self._ears = Ears(
            self.engine,
            None if listen is None else lambda ready, wake: listen(home.store.tables.channel, ready, wake),
            settings.delivery.poll,
            home.observers,
            home.clock,
        )
        self.engine.start()
        self.told(self._membership.state)
        self._ears.start()
        self._say()
        if not self._required:
            self._look()

    async def stop(self) -> None:
        """Ears, engine (drains and gives back), then sign off: each may still need the next."""
        self.halt()
        await self._ears.stop()
        await self.engine.stop()
        self._source.close()
        await self._leave()
        await cancelled(self._looking)  # now nothing can make us look again

    def _heard(self, state: GroupState) -> None:
        self.told(state)
        if state == "cancelled":
            self._cancelled()
        else:
            self._required = self._required and state != "dead"
            self._look()

    def _look(self) -> None:
        """After a start, and whenever the group's state changes."""
        self._asked = True
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._learn(), name=f"relaybox-group-{self.row.name}")

    async def _learn(self) -> None:
        """Why the group is as it is; and open events shall wait for it, also after it was dead."""
        home = self._home
        try:
            while self._asked:
                self._asked, was = False, self.row
                found = await home.db.run(home.store.group(was.topic, was.name), tx=False)
                if found is None or found.id != was.id:
                    return
                self.row = found
                if found.condition not in (was.condition, "dead") and found.standstill is not None:
                    log.warning("%s", found.standstill)  # of the dead the heartbeat takes care
                if not self._required and found.state != "dead":
                    self._required = await aplay(finish(home, found), home.db, home.clock)
        except StoreError as error:
            log.warning("group %s of topic %s could not be looked at: %s", self.row.name, self.row.topic, error)

    def _lost(self) -> None:
        self.engine.lost()

    def _beat(self) -> bool:
        """Before every heartbeat: also a moment to look for what others left behind."""
        self._count()
        self.engine.wake()
        if not self._required:
            self._look()
        return True

    @property
    def counts(self) -> Counts:
        return replace(self.engine.counts, ignored=self._filtered())

    def complaints(self) -> Iterator[str]:
        """Why it does not do its work, for people."""
        if self.engine.silent:
            yield "no heartbeat reaches the database"
        if self.engine.missing + self._home.heartbeats.missing:
            yield "a background task ended and is being replaced"


class RowDelivery(_Delivery):
    """A queue tracked by rows is an outbox of its own."""

    def __init__(
        self,
        home: Home[AsyncRunner],
        topic: TopicRow,
        row: GroupRow,
        members: Members,
        options: GroupOption,
        settings: Settings,
        *,
        cancelled: Callable[[], None],
    ) -> None:
        if options.get("batch") is not None:
            raise ConfigError(f"queue {topic.topic.name!r} is tracked by rows: handlers take one event; omit batch")
        super().__init__(home, row, options, settings, cancelled)
        self._members = members
        self._node = Node(
            "ordered" if options.get("ordered") else "delivery",
            home.own,
            open_store("postgres", home.store.tables.queue(topic.id), home.codec),
            lambda delivery: self._members(delivery.event),
            settings.replaced({"order.on_exhausted": options.get("on_exhausted") or settings.order.on_exhausted}),
            observers=home.observers,
            clock=home.clock,
        )
        self.engine = self._node.engine

    async def start(self) -> None:
        """A member of the group for its state, and an instance of the queue for its claims."""
        self._membership = await self._home.heartbeats.join(self.row, self._name, told=self._heard, alive=self._beat)
        try:
            self.told(self._membership.state)
            await self._node.start()
        except BaseException:
            await self._membership.leave()
            raise
        self._say()

    async def stop(self) -> None:
        await self._node.stop()
        await self._leave()

    def _heard(self, state: GroupState) -> None:
        self.row = replace(self.row, state=state)
        self.told(state)
        if state == "cancelled":
            self._cancelled()

    def _beat(self) -> bool:
        self._count()
        return True

    @property
    def counts(self) -> Counts:
        return replace(self.engine.counts, ignored=self._members.filtered)
