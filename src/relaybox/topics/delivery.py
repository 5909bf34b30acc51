"""`group.deliver(listeners)`: the service that delivers the events of a group in this process. A log is read by the
range engine, a queue of rows is delivered as an outbox is.

Leaving is not unsubscribing: a service that stops leaves the group to its other members, and to itself after a restart.
`group.cancel()` ends the subscription.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any

from ..drivers.script import aplay
from ..drivers.spi import AsyncRunner
from ..engine.dispatch import Dispatch, RangeBatches, RowBatches
from ..engine.engine import Engine
from ..engine.presence import default_name
from ..engine.protocols import BatchHandler, Handler
from ..engine.ranges.engine import RangeEngine
from ..engine.ranges.workers import RangeBatchHandler, RangeHandler
from ..engine.threads import ListenerThreads
from ..engine.wakeups import Ears
from ..engine.workers import Asked
from ..errors import GroupError, StoreError
from ..listeners import Listeners, Unmatched
from ..outbox.node import Node
from ..outbox.source import with_fair
from ..service import AsyncService, Owner
from ..settings import Settings
from ..store.outbox import open_store
from ..store.topics import GroupRow, TopicRow
from ..store.topics.life import GroupState
from ..tasks import cancelled
from ..values import Counts
from .backfill import finish, start_backfill
from .context import TopicContext
from .join import Joining, join
from .source import TopicSource

log = logging.getLogger("relaybox")

LOOK = 0.1  # seconds between two looks whether a wait is in vain


@dataclass(frozen=True, kw_only=True)
class GroupHandlers:
    """What is called for the events of a group, as the engine of its topic wants it."""

    ranges: RangeHandler | RangeBatchHandler
    rows: Handler | BatchHandler
    asked: Asked | None = None
    ignored: Callable[[], int] = lambda: 0
    mean: Callable[[], float] = lambda: 0.0  # seconds that it takes for an event; 0: not measured
    close: Callable[[], None] = lambda: None


MakeHandlers = Callable[[TopicContext[AsyncRunner], TopicRow, GroupRow], GroupHandlers]


def listening(listeners: Listeners[Any], settings: Settings) -> MakeHandlers:
    def made(context: TopicContext[AsyncRunner], topic: TopicRow, row: GroupRow) -> GroupHandlers:
        threads = ListenerThreads(settings.delivery.workers, context.observers)
        unmatched: Unmatched = "ignore" if topic.topic.semantics == "pub_sub" else "dead"
        dispatch = Dispatch(listeners, threads, unmatched, timeout=settings.delivery.timeout, clock=context.clock)
        return GroupHandlers(
            ranges=RangeBatches(dispatch) if dispatch.size else dispatch.event,
            rows=RowBatches(dispatch) if dispatch.size else dispatch.row,
            asked=dispatch,
            ignored=lambda: dispatch.ignored,
            mean=dispatch.mean,
            close=threads.close,
        )

    return made


class _Member:
    """This process as a member of a group, and the engine that works for it."""

    engine: Engine[Any]

    def __init__(
        self,
        context: TopicContext[AsyncRunner],
        topic: TopicRow,
        row: GroupRow,
        handlers: GroupHandlers,
        settings: Settings,
    ) -> None:
        self.row = row
        self._context = context
        self._topic = topic
        self._handlers = handlers
        self._settings = settings
        self._required = topic.topic.tracking not in ("bitmap", "acks")  # no open event is left to be told of the group
        self._looking: asyncio.Task[None] | None = None
        self._asked = False
        self._said: str | None = None
        self._counted = Counts()

    async def _join(self) -> None:
        self._membership = await self._context.heartbeats.join(
            self.row,
            self._settings.delivery.owner or default_name(),
            told=self._told,
            lost=self._lost,
            alive=self._beat,
        )

    def _work_as(self, state: GroupState) -> None:
        """A group that is not active keeps its members, which take nothing."""
        if state == "active":
            self.engine.resume()
        else:
            self.engine.pause()

    def _told(self, state: GroupState) -> None:
        self.row = replace(self.row, state=state)
        self._work_as(state)
        if state != "cancelled":
            self._required = self._required and state != "dead"
            self._look()

    def _look(self) -> None:
        """After a start, and whenever the group's state changes."""
        self._asked = True
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._learn(), name=f"relaybox-group-{self.row.name}")

    async def _learn(self) -> None:
        """Why the group is as it is; and open events shall wait for it, also after it was dead."""
        context = self._context
        try:
            while self._asked:
                self._asked, was = False, self.row
                found = await context.own.run(context.store.group(was.topic, was.name), tx=False)
                if found is None or found.id != was.id:
                    return
                self.row = found
                if found.condition != "dead":  # the heartbeat wakes the dead
                    self._say(found.standstill)
                if not self._required and found.state != "dead":
                    self._required = await aplay(finish(context, found), context.own, context.clock)
        except StoreError as error:
            log.warning("group %s of topic %s could not be looked at: %s", self.row.name, self.row.topic, error)

    def _say(self, standstill: str | None) -> None:
        if standstill is not None and standstill != self._said:
            log.warning("%s", standstill)
        self._said = standstill

    def _lost(self) -> None:
        """It was declared dead, and has joined again."""

    def _beat(self) -> bool:
        """Before every heartbeat: also a moment to look for what others left behind."""
        now, last = self.counts, self._counted
        processed, failed = now.done - last.done, now.failed + now.dead - last.failed - last.dead
        filtered = now.ignored - last.ignored
        if now != last:
            busy = self._handlers.mean() * (processed + failed - filtered)
            self._membership.count(processed=processed, failed=failed, filtered=filtered, busy=busy)
        self._counted = now
        if not self._required:
            self._look()
        return True

    async def _leave(self) -> None:
        self._beat()
        try:
            await self._membership.leave()
        except Exception as error:
            log.error("could not sign off from group %s; this member will expire: %s", self.row.name, error)
        await cancelled(self._looking)  # now nothing can make us look again

    @property
    def counts(self) -> Counts:
        return replace(self.engine.counts, ignored=self._handlers.ignored())

    def halt(self) -> None:
        self.engine.halt()

    def complaints(self) -> Iterator[str]:
        if self.row.standstill is not None:
            yield self.row.standstill


class LogMember(_Member):
    """Reads a log."""

    engine: RangeEngine

    async def start(self, in_flight: int | None) -> None:
        context, settings, topic, handler = self._context, self._settings, self._topic.topic, self._handlers.ranges
        await self._join()
        self._source = TopicSource(
            context.own,
            context.store,
            context.reads,
            self._topic,
            self._membership,
            settings,
            context.clock,
            context.codec,
        )
        self.engine = RangeEngine(
            self._source,
            handler,
            settings,
            context.observers,
            context.clock,
            asked=self._handlers.asked,
            range_events=topic.fetch_batch,
            capacity=in_flight or topic.fetch_batch * topic.shards,
            eager=not callable(handler),
        )
        listen = context.own.listen if settings.delivery.notify else None
        self._ears = Ears(
            self.engine,
            None if listen is None else lambda ready, wake: listen(context.store.tables.channel, ready, wake),
            settings.delivery.poll,
            context.observers,
            context.clock,
        )
        self.engine.start()
        self._work_as(self._membership.state)
        self._ears.start()
        self._look()

    async def stop(self, timeout: float | None = None) -> None:
        """Ears, engine (ends what runs, gives back the rest), then sign off: each may still need the next."""
        self.engine.halt()
        await self._ears.stop()
        await self.engine.stop(timeout)
        self._source.close()
        await self._leave()

    def _lost(self) -> None:
        self.engine.lost()

    def _beat(self) -> bool:
        self.engine.wake()
        return super()._beat()

    def complaints(self) -> Iterator[str]:
        yield from super().complaints()
        if self.engine.silent:
            yield "no heartbeat reaches the database"
        if self.engine.missing + self._context.heartbeats.missing:
            yield "a background task ended and is being replaced"


class RowMember(_Member):
    """A queue tracked by rows is an outbox of its own: this process is a member of the group for its state, and an
    instance of the queue for its claims."""

    async def start(self, in_flight: int | None) -> None:
        context, handlers = self._context, self._handlers
        self._node = Node(
            "ordered" if self.row.ordered else "delivery",
            context.own,
            open_store("postgres", context.store.tables.queue(self._topic.id), context.codec),
            handlers.rows,
            self._settings,
            observers=context.observers,
            clock=context.clock,
            asked=handlers.asked,
        )
        self.engine = self._node.engine
        await self._join()
        try:
            self._work_as(self._membership.state)
            await self._node.start()
        except BaseException:
            await self._membership.leave()
            raise
        self._look()

    async def stop(self, timeout: float | None = None) -> None:
        await self._node.stop(timeout)
        await self._leave()

    def complaints(self) -> Iterator[str]:
        yield from super().complaints()
        yield from self._node.complaints()


class GroupDelivery(AsyncService):
    """`group.deliver(listeners)`."""

    def __init__(
        self,
        open_context: Callable[[AsyncExitStack], TopicContext[AsyncRunner]],
        owner: Owner | None,
        joining: Joining,
        make: MakeHandlers,
        settings: Settings,
        *,
        in_flight: int | None = None,
    ) -> None:
        """`in_flight`: events in this process at most; as many as fit, if it is not given."""
        super().__init__(joining.clock, owner)
        self._open_context = open_context
        self._joining = joining
        self._make = make
        self._settings = settings
        self._pages = settings.listen
        self._in_flight = in_flight
        self._closing = AsyncExitStack()
        self._member: LogMember | RowMember | None = None
        self._backfill: asyncio.Task[Any] | None = None

    @property
    def name(self) -> str:
        return f"group {self._joining.group!r} of topic {self._joining.topic!r}"

    async def _start(self) -> None:
        context = self._open_context(self._closing)
        with context.reads.coming():
            joined = await context.own.run(join(context, self._joining, push=True))
            self._member = await self._begin(context, joined.topic, joined.group)
        if joined.backfill:
            self._backfill = await start_backfill(context, joined.topic, joined.group)

    async def _begin(self, context: TopicContext[AsyncRunner], topic: TopicRow, row: GroupRow) -> LogMember | RowMember:
        if row.stalled:
            raise GroupError(f"{row.standstill}")
        handlers = self._make(context, topic, row)
        self._closing.callback(handlers.close)
        retry = self._joining.retry or self._settings.delivery.retry
        settings = self._settings.replaced({"delivery.retry": retry, "order.on_exhausted": row.on_exhausted})
        settings = with_fair(settings, self._joining.fair, ordered=False)
        kind = RowMember if topic.topic.tracking == "rows" else LogMember
        member = kind(context, topic, row, handlers, settings)
        await member.start(self._in_flight)
        return member

    def halt(self) -> None:
        if self._member is not None:
            self._member.halt()

    async def _stop(self, timeout: float | None) -> None:
        async with self._closing:
            await cancelled(self._backfill)
            if self._member is not None:
                await self._member.stop(timeout)

    async def _drain(self) -> None:
        """GroupError: the group stands still, so that the wait would be in vain."""
        member = self._member
        assert member is not None
        idle = asyncio.create_task(member.engine.until_idle())
        try:
            while member.row.condition not in ("paused", "stalled", "cancelled"):
                if idle.done():
                    return
                await asyncio.wait([idle], timeout=LOOK)
            raise GroupError(f"the wait is in vain: {member.row.standstill}")
        finally:
            await cancelled(idle)

    def _complaints(self) -> Iterator[str]:
        return iter(()) if self._member is None else self._member.complaints()

    def _worries(self) -> Iterator[str]:
        return iter(()) if self._member is None else self._member.engine.worries()

    @property
    def counts(self) -> Counts:
        return Counts() if self._member is None else self._member.counts
