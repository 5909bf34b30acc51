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
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any, NoReturn, Unpack, overload

from ..drivers.script import Async, Script, Sync, commit, look, slow, twin
from ..drivers.spi import AsyncRunner, Runner
from ..engine.presence import default_name
from ..errors import ConfigError, NotFound
from ..store.schema import Migration
from ..store.topics import TopicRow
from ..store.topics.completion import Completion
from ..topic import Topic, Tracking
from .admin import AsyncGroupAdmin, GroupAdmin
from .advise import Advice, advise
from .backfill import Backfill, BackfillProgress, BackfillResult, Job
from .consumer import AsyncConsumer, Consumer
from .deliver import GroupOption
from .group import QUEUE, Group
from .home import AtHome, Home
from .move import MovePlan, move, plan_move
from .move import Progress as MoveProgress
from .producer import AsyncProducer, AsyncWrite, P, Producer, Write, shard_topics


class _Topics(AtHome):
    """What both twins do, as scripts."""

    @slow
    def migrate(self) -> Script[list[Migration]]:
        """Create or upgrade the tables of topics; `Outbox.migrate()` does it too."""
        return commit(self._store.migrate())

    @twin
    def configure(self, topic: Topic) -> Script[TopicRow]:
        """Make the topic with its tables, or change what may be changed of it. Safe to repeat."""
        return commit(self._store.configure(_topic(topic), self._now))

    @twin
    def configure_sharded(self, topic: Topic, shards: int) -> Script[list[TopicRow]]:
        """One hot topic as several; `producer(topic, shards=…)` writes to them as to one."""
        rows = []
        for name in shard_topics(_topic(topic).name, shards):
            rows.append((yield from commit(self._store.configure(replace(topic, name=name), self._now))))
        return rows

    @twin
    def get(self, name: str) -> Script[TopicRow | None]:
        return look(self._store.topic(name))

    @slow
    def drop(self, name: str) -> Script[bool]:
        """With its events. Refused while a group reads it that is not cancelled. False: there is none."""
        return commit(self._store.drop(name))

    @slow
    def backfill(self, topic: str, group: str, config: Backfill | None = None) -> Script[BackfillResult]:
        """Ask the marks of a topic for what was written before the group came. Blocks; goes on where it was stopped."""
        found = yield from look(self._home.reader(topic, group))
        return (yield from Job(self._home, *found, config or Backfill()).run())

    @twin
    def backfill_progress(self, topic: str, group: str) -> Script[BackfillProgress]:
        _, found = yield from look(self._home.reader(topic, group))
        row = yield from look(self._store.backfill(found, self._now))
        if row is None:
            raise NotFound("group", group, f"group {group!r} of topic {topic!r} is gone")
        return BackfillProgress.of(row)

    @twin
    def cancel_backfill(self, topic: str, group: str) -> Script[bool]:
        """Also one that another process runs: it ends after its batch. False: none is under way."""
        _, found = yield from look(self._home.reader(topic, group))
        return (yield from commit(self._store.cancel_backfill(found, self._now)))

    @twin
    def completion(self, topic: str, *numbers: int) -> Script[list[Completion]]:
        """Which groups must have these events, and which are done with them. Of events that are not kept any more
        there is no answer."""
        row = yield from look(self._home.known(topic))
        return (yield from look(self._store.completion(row, numbers)))

    @twin
    def advise(self, topic: str, *, audit: bool = False) -> Script[Advice]:
        """Which tracking fits what is measured. `audit`: somebody must see of each event who has it."""
        return advise(self._home, topic, audit=audit)

    @twin
    def plan_move(self, topic: str, tracking: Tracking) -> Script[MovePlan]:
        """What `move` would do; nothing is touched."""
        return plan_move(self._home, topic, tracking)

    @slow
    def move(self, topic: str, tracking: Tracking, *, progress: MoveProgress | None = None) -> Script[None]:
        """To another tracking while it is used. Blocks; goes on where it was stopped."""
        return move(self._home, topic, tracking, progress)

    @twin
    def cancel_move(self, topic: str) -> Script[bool]:
        """Back, as long as writers have not been told. False: none is under way."""
        return commit(self._store.cancel_move(topic, self._now))

    @twin
    def list(self) -> Script[list[TopicRow]]:
        return look(self._store.topics())


class Topics(_Topics, Sync):
    def __init__(self, home: Home[Runner], write: Write) -> None:
        super().__init__(home)
        self._write = write
        self.groups = GroupAdmin(home)

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

    def group(self, name: str, topic: str, **options: Unpack[GroupOption]) -> NoReturn:
        raise ConfigError(
            f"group {name!r} would need an event loop for its handlers: use AsyncOutbox, or pull with "
            f"consumer({topic!r}, group={name!r})"
        )

    def queue(self, topic: str, *, name: str | None = None) -> Consumer:
        """Pull from the one group that a queue has. Handlers that are called need an AsyncOutbox."""
        return self.consumer(topic, group=QUEUE, name=name)


class AsyncTopics(_Topics, Async):
    def __init__(self, home: Home[AsyncRunner], write: AsyncWrite) -> None:
        super().__init__(home)
        self._write = write
        self.groups = AsyncGroupAdmin(home)
        self._made: list[Group] = []

    @overload
    def producer(self, topic: str, payload_type: type[P], *, shards: int | None = None) -> AsyncProducer[P]: ...
    @overload
    def producer(self, topic: str, payload_type: None = None, *, shards: int | None = None) -> AsyncProducer[Any]: ...
    def producer(self, topic: str, payload_type: Any = None, *, shards: int | None = None) -> AsyncProducer[Any]:
        return AsyncProducer(self._write, topic, payload_type, shards, self._home.codec)

    def consumer(self, topic: str, *, group: str, name: str | None = None) -> AsyncConsumer:
        return AsyncConsumer(self._home, topic, group, name or default_name())

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


def _topic(topic: object) -> Topic:
    if not isinstance(topic, Topic):
        raise ConfigError(f"expected a Topic, such as Topic.pub_sub('orders'), got {type(topic).__name__}")
    return topic
