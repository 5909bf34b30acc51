"""The public face of topics: `outbox.topics`, as twins over the same ops.

outbox.topics.configure(Topic.pub_sub("orders"))
outbox.topics.producer("orders").send(session, {"id": 7}, key="order-7")

group = outbox.topics.group("mailer", "orders")                   handlers, called in an event loop
with outbox.topics.consumer("orders", group="billing") as c:      or poll and commit yourself
    batch = c.poll()

`groups` has what operators do with groups.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any, NoReturn, Unpack, overload

from ..drivers.spi import AsyncRunner, Runner
from ..errors import ConfigError, ConsumerGroupNotFound
from ..op import Op
from ..runtime.presence import default_name
from ..store.completion import Completion
from ..store.spi import Migration
from ..store.topics import TopicRow
from ..topic import Topic, Tracking
from .admin import AsyncGroupAdmin, GroupAdmin
from .advise import Advice, aadvise, advise
from .backfill import Backfill, BackfillProgress, BackfillResult, abackfill, backfill
from .consumer import AsyncConsumer, Consumer
from .deliver import GroupOption
from .group import QUEUE, Group
from .home import Home
from .move import MovePlan, acancel_move, amove, aplan_move, cancel_move, move, plan_move
from .move import Progress as MoveProgress
from .producer import AsyncProducer, AsyncWrite, P, Producer, Write, shard_topics

Migrations = list[Migration]
Rows = list[TopicRow]
Completions = list[Completion]


class Topics:
    def __init__(self, home: Home[Runner], write: Write) -> None:
        self._home = home
        self._write = write
        self.groups = GroupAdmin(home)

    def migrate(self) -> Migrations:
        """Create or upgrade the tables of topics; `Outbox.migrate()` does it too."""
        return self._home.db.run(self._home.store.migrate())

    def configure(self, topic: Topic) -> TopicRow:
        """Make the topic with its tables, or change what may be changed of it. Safe to repeat."""
        return self._home.db.run(self._home.store.configure(_topic(topic), self._home.clock.database_now()))

    def configure_sharded(self, topic: Topic, shards: int) -> Rows:
        """One hot topic as several; `producer(topic, shards=…)` writes to them as to one."""
        return [self.configure(replace(_topic(topic), name=name)) for name in shard_topics(topic.name, shards)]

    def get(self, name: str) -> TopicRow | None:
        return self._home.db.run(self._home.store.topic(name), tx=False)

    def list(self) -> Rows:
        return self._home.db.run(self._home.store.topics(), tx=False)

    def drop(self, name: str) -> bool:
        """With its events. Refused while a group reads it that is not cancelled. False: there is none."""
        return self._home.db.run(self._home.store.drop(name))

    @overload
    def producer(self, topic: str, payload_type: type[P], *, shards: int | None = None) -> Producer[P]: ...
    @overload
    def producer(self, topic: str, payload_type: None = None, *, shards: int | None = None) -> Producer[Any]: ...
    def producer(self, topic: str, payload_type: Any = None, *, shards: int | None = None) -> Producer[Any]:
        """A topic that is not configured may be written to: its events go into the outbox, as those of a queue."""
        return Producer(self._write, topic, payload_type, shards, self._home.codec)

    def consumer(self, topic: str, *, group: str, name: str | None = None) -> Consumer:
        """Pull: `poll`, `commit`. The group must be there; `groups.create` makes one."""
        return Consumer(self._home, topic, group, name or default_name())

    def backfill(self, topic: str, group: str, config: Backfill | None = None) -> BackfillResult:
        """Ask the marks of a topic for what was written before the group came. Blocks; goes on where it was stopped."""
        found = self._home.db.run(self._home.reader(topic, group), tx=False)
        return backfill(self._home, *found, config or Backfill())

    def backfill_progress(self, topic: str, group: str) -> BackfillProgress:
        return self._home.db.run(progress_of(self._home, topic, group), tx=False)

    def cancel_backfill(self, topic: str, group: str) -> bool:
        """Also one that another process runs: it ends after its batch. False: none is under way."""
        return self._home.db.run(stop_backfill(self._home, topic, group))

    def completion(self, topic: str, *numbers: int) -> Completions:
        """Which groups must have these events, and which are done with them. Of events that are not kept any more
        there is no answer."""
        return self._home.db.run(completion_of(self._home, topic, numbers), tx=False)

    def advise(self, topic: str, *, audit: bool = False) -> Advice:
        """Which tracking fits what is measured. `audit`: somebody must see of each event who has it."""
        return advise(self._home, topic, audit=audit)

    def plan_move(self, topic: str, tracking: Tracking) -> MovePlan:
        """What `move` would do; nothing is touched."""
        return plan_move(self._home, topic, tracking)

    def move(self, topic: str, tracking: Tracking, *, progress: MoveProgress | None = None) -> None:
        """To another tracking while it is used. Blocks; goes on where it was stopped."""
        move(self._home, topic, tracking, progress)

    def cancel_move(self, topic: str) -> bool:
        """Back, as long as writers have not been told. False: none is under way."""
        return cancel_move(self._home, topic)

    def group(self, name: str, topic: str, **options: Unpack[GroupOption]) -> NoReturn:
        raise ConfigError(
            f"group {name!r} would need an event loop for its handlers: use AsyncOutbox, or pull with "
            f"consumer({topic!r}, group={name!r})"
        )

    def queue(self, topic: str, *, name: str | None = None) -> Consumer:
        """Pull from the one group that a queue has. Handlers that are called need an AsyncOutbox."""
        return self.consumer(topic, group=QUEUE, name=name)


class AsyncTopics:
    def __init__(self, home: Home[AsyncRunner], write: AsyncWrite) -> None:
        self._home = home
        self._write = write
        self.groups = AsyncGroupAdmin(home)
        self._made: list[Group] = []

    async def migrate(self) -> Migrations:
        return await self._home.db.run(self._home.store.migrate())

    async def configure(self, topic: Topic) -> TopicRow:
        return await self._home.db.run(self._home.store.configure(_topic(topic), self._home.clock.database_now()))

    async def configure_sharded(self, topic: Topic, shards: int) -> Rows:
        return [await self.configure(replace(_topic(topic), name=name)) for name in shard_topics(topic.name, shards)]

    async def get(self, name: str) -> TopicRow | None:
        return await self._home.db.run(self._home.store.topic(name), tx=False)

    async def list(self) -> Rows:
        return await self._home.db.run(self._home.store.topics(), tx=False)

    async def drop(self, name: str) -> bool:
        return await self._home.db.run(self._home.store.drop(name))

    @overload
    def producer(self, topic: str, payload_type: type[P], *, shards: int | None = None) -> AsyncProducer[P]: ...
    @overload
    def producer(self, topic: str, payload_type: None = None, *, shards: int | None = None) -> AsyncProducer[Any]: ...
    def producer(self, topic: str, payload_type: Any = None, *, shards: int | None = None) -> AsyncProducer[Any]:
        return AsyncProducer(self._write, topic, payload_type, shards, self._home.codec)

    def consumer(self, topic: str, *, group: str, name: str | None = None) -> AsyncConsumer:
        return AsyncConsumer(self._home, topic, group, name or default_name())

    async def backfill(self, topic: str, group: str, config: Backfill | None = None) -> BackfillResult:
        found = await self._home.db.run(self._home.reader(topic, group), tx=False)
        return await abackfill(self._home, *found, config or Backfill())

    async def backfill_progress(self, topic: str, group: str) -> BackfillProgress:
        return await self._home.db.run(progress_of(self._home, topic, group), tx=False)

    async def cancel_backfill(self, topic: str, group: str) -> bool:
        return await self._home.db.run(stop_backfill(self._home, topic, group))

    async def completion(self, topic: str, *numbers: int) -> Completions:
        return await self._home.db.run(completion_of(self._home, topic, numbers), tx=False)

    async def advise(self, topic: str, *, audit: bool = False) -> Advice:
        return await aadvise(self._home, topic, audit=audit)

    async def plan_move(self, topic: str, tracking: Tracking) -> MovePlan:
        return await aplan_move(self._home, topic, tracking)

    async def move(self, topic: str, tracking: Tracking, *, progress: MoveProgress | None = None) -> None:
        await amove(self._home, topic, tracking, progress)

    async def cancel_move(self, topic: str) -> bool:
        return await acancel_move(self._home, topic)

    def group(self, name: str, topic: str, **options: Unpack[GroupOption]) -> Group:
        """Push: add consumers to it and start it. Closed with the outbox, if not before."""
        made = Group(self._home, topic, name, **options)
        self._made.append(made)
        return made

    def queue(self, topic: str, **options: Unpack[GroupOption]) -> Group:
        """The one group that a queue has."""
        return self.group(QUEUE, topic, **options)

    async def close(self) -> None:
        """Leave all groups; `AsyncOutbox.close()` does it."""
        made, self._made = self._made, []
        for group in made:  # all of them, before the first one is waited for
            group.halt()
        async with AsyncExitStack() as ending:  # each also when another failed, or nobody waits any longer
            ending.push_async_callback(self._home.close)
            await asyncio.gather(*(group.close() for group in made))


def progress_of(home: Home[Any], topic: str, group: str) -> Op[BackfillProgress]:
    _, found = yield from home.reader(topic, group)
    row = yield from home.store.backfill(found, home.clock.database_now())
    if row is None:
        raise ConsumerGroupNotFound(f"group {group!r} of topic {topic!r} is gone")
    return BackfillProgress.of(row)


def completion_of(home: Home[Any], topic: str, numbers: Sequence[int]) -> Op[Completions]:
    row = yield from home.known(topic)
    return (yield from home.store.completion(row, numbers))


def stop_backfill(home: Home[Any], topic: str, group: str) -> Op[bool]:
    _, found = yield from home.reader(topic, group)
    return (yield from home.store.cancel_backfill(found, home.clock.database_now()))


def _topic(topic: object) -> Topic:
    if not isinstance(topic, Topic):
        raise ConfigError(f"expected a Topic, such as Topic.pub_sub('orders'), got {type(topic).__name__}")
    return topic
