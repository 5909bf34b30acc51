"""Push groups: handlers that are called for the events of a topic, in as many processes as you like.

    async with outbox.topics.group("mailer", "orders") as group:
        group.add_consumer("mailer-1", send_mail)
        await group.start(StartFrom.latest())
        ...

Leaving is not unsubscribing: `close` leaves the group to its other members, and to itself after a restart. `cancel`
ends the subscription.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Self, Unpack

from ..drivers.script import aplay
from ..drivers.spi import AsyncRunner
from ..engine.threads import ListenerThreads
from ..errors import Closed, ConfigError, GroupError
from ..store.topics import FOR_EVER, GroupOptions, GroupRow, TopicRow
from ..store.topics.life import GroupState, Verb
from ..tasks import cancelled
from ..values import Counts
from .admin import turn
from .backfill import Backfill, start_backfill
from .deliver import GroupOption, LogDelivery, RowDelivery
from .dispatch import Batches, Filter, Member, Members, Payloads
from .home import Home
from .start import StartFrom

QUEUE = "default"  # the one group of a queue
LOOK = 0.1  # seconds between two looks whether a wait is in vain


class Group:
    def __init__(self, home: Home[AsyncRunner], topic: str, name: str, **options: Unpack[GroupOption]) -> None:
        unknown = set(options) - set(GroupOption.__annotations__)
        if unknown:
            raise ConfigError(f"unknown option {min(unknown)!r}; expected {', '.join(GroupOption.__annotations__)}")
        batch = options.get("batch")
        if batch is not None and (type(batch) is not int or batch < 1):
            raise ConfigError(f"expected batch to be a positive number of events or None, got {batch!r}")
        self.topic = topic
        self.name = name
        self._home = home
        self._options = options
        self._settings = options.get("settings") or home.settings
        if (retry := options.get("retry")) is not None:
            self._settings = self._settings.replaced({"delivery.retry": retry})
        payload_type = options.get("payload_type")
        self._payloads = Payloads(payload_type) if payload_type is not None else None
        self._members = Members(name, options.get("filter"), home.clock)
        self._threads = ListenerThreads(self._settings.delivery.workers, home.observers)
        self._delivering: LogDelivery | RowDelivery | None = None
        self._row: GroupRow | None = None
        self._backfill: Any = None
        self._ending: asyncio.Task[None] | None = None
        self._counts = Counts()  # when it was last stopped
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    # -- members ------------------------------------------------------------------------------------

    def add_consumer(self, id: str, handler: Callable[..., Any], filter: Filter | None = None) -> None:
        """A plain function runs in a thread. One that is added after the start begins at once."""
        self._check_open()
        self._members.add(Member(id, handler, filter, self._payloads, self._threads))

    def remove_consumer(self, id: str) -> None:
        if self._delivering is not None and self._members.ids() == [id]:
            raise GroupError(
                f"{id!r} is the last consumer of the started group {self.name!r}: close() or cancel() the group instead"
            )
        self._members.remove(id)

    @property
    def consumers(self) -> list[str]:
        return self._members.ids()

    # -- life cycle ---------------------------------------------------------------------------------

    async def start(self, start: StartFrom | None = None) -> Self:
        """Subscribe, or join if the group is there (`start` then does not matter), and deliver."""
        self._check_open()
        if self._delivering is not None:
            raise GroupError(f"group {self.name!r} is started already")
        if not len(self._members):
            raise GroupError(
                f"group {self.name!r} has no consumer; call add_consumer(id, handler) before start(), "
                "or its events would wait for nobody"
            )
        home = self._home
        topic = await home.db.run(home.readable(self.topic), tx=False)
        queue = topic.topic.semantics == "queue"
        if queue and self.name != QUEUE:
            raise ConfigError(f"topic {self.topic!r} is a queue: its one group is {QUEUE!r}, got {self.name!r}")
        begin = start or (StartFrom.earliest_unlimited() if queue else StartFrom.latest())
        row, new = await home.db.run(
            home.store.subscribe(topic, self.name, begin.start, self._group_options(topic), home.clock.database_now())
        )
        self._row = row
        if topic.topic.tracking == "rows":
            rows = RowDelivery(
                home, topic, row, self._members, self._options, self._settings, cancelled=self._cancelled
            )
            await rows.start()
            self._delivering = rows
            return self
        batch = self._options.get("batch")
        log = LogDelivery(
            home,
            topic,
            row,
            self._members if batch is None else Batches(self._members, batch),
            self._options,
            self._settings,
            cancelled=self._cancelled,
            filtered=lambda: self._members.filtered,
            mean=self._members.mean,
        )
        await log.start()
        self._delivering = log
        if new and begin.backfill and topic.topic.tracking in ("bitmap", "acks"):
            self._backfill = await start_backfill(home, topic, row, Backfill())
        return self

    def _group_options(self, topic: TopicRow) -> GroupOptions:
        options, plain = self._options, GroupOptions()
        ordered = options.get("ordered")
        return GroupOptions(
            ordered=topic.topic.semantics != "queue" if ordered is None else ordered,
            max_attempts=self._settings.delivery.retry.attempts or FOR_EVER,
            on_exhausted=options.get("on_exhausted")
            or (self._settings.order.on_exhausted if topic.topic.tracking == "rows" else plain.on_exhausted),
            heartbeat_interval=options.get("heartbeat_interval") or topic.topic.heartbeat_interval,
            heartbeat_timeout=options.get("heartbeat_timeout") or topic.topic.heartbeat_timeout,
        )

    async def pause(self) -> None:
        """For all its members, everywhere. What is unread is kept for it."""
        await self._turn("pause")

    async def resume(self) -> None:
        """Go on where it stood; also one that is dead, and then open events wait for it again."""
        await self._turn("resume")

    async def cancel(self) -> None:
        """End the subscription: events wait no longer for this group, and its members stop."""
        await self._turn("cancel")
        await self._stop()

    async def _turn(self, verb: Verb) -> None:
        if self._row is None:
            raise GroupError(f"group {self.name!r} is not started; use the admin API")
        home = self._home
        self._row = await aplay(turn(home, self._row, verb, "asked by a member"), home.db, home.clock)
        if self._delivering is not None:
            self._delivering.turned(self._row)

    def halt(self) -> None:
        """Begin nothing more here; `close` does it too."""
        if self._delivering is not None:
            self._delivering.halt()

    async def close(self) -> None:
        """Finish what runs, give back the rest, leave. The group stays subscribed. Safe to repeat."""
        if not self._closed:
            self._closed = True
            await self._stop()
            if self._ending is not None and self._ending is not asyncio.current_task():
                await asyncio.wait([self._ending])
            self._threads.close()

    async def _stop(self) -> None:
        delivering, self._delivering = self._delivering, None
        await cancelled(self._backfill)
        if delivering is not None:
            await delivering.stop()
            self._counts = delivering.counts

    def _cancelled(self) -> None:
        """Elsewhere: its members here stop."""
        if self._ending is None and self._delivering is not None:
            self._ending = asyncio.create_task(self._stop(), name="relaybox-group-ended")

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"group {self.name!r} is closed here; make a new one")

    # -- seeing -------------------------------------------------------------------------------------

    @property
    def running(self) -> bool:
        return self._delivering is not None

    @property
    def state(self) -> GroupState | None:
        """As last heard; None: it is not started."""
        row = self._delivering.row if self._delivering is not None else self._row
        return None if row is None else row.state

    @property
    def standstill(self) -> str | None:
        """Why the started group is given nothing, and what ends that; None: it is given what there is."""
        return self._delivering.row.standstill if self._delivering is not None else None

    @property
    def counts(self) -> Counts:
        return self._counts if self._delivering is None else self._delivering.counts

    async def until_idle(self) -> None:
        """Until everything that is there has been handled. GroupError: it will not be, as the group stands still."""
        delivering = self._delivering
        if delivering is None:
            return
        idle = asyncio.create_task(delivering.until_idle())
        try:
            while delivering.row.condition not in ("paused", "stalled"):
                if idle.done():
                    return
                await asyncio.wait([idle], timeout=LOOK)
            raise GroupError(f"the wait is in vain: {delivering.row.standstill}")
        finally:
            await cancelled(idle)
