"""What the topics, groups and consumers of one outbox share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ..audit import Auditor
from ..clock import Clock
from ..codec import Codec
from ..drivers.spi import AsyncRunner, Runner
from ..errors import GroupError, InUse, NotFound
from ..facts import Observers
from ..op import Op
from ..outbox.route import unknown_topic
from ..settings import Settings
from ..store.feeds import open_feed_store
from ..store.topics import GroupRow, TopicRow
from ..words import did_you_mean
from .liveness import Heartbeats
from .shared_reads import SharedReads

if TYPE_CHECKING:
    from ..store.topics.store import TopicStore

R = TypeVar("R", Runner, AsyncRunner)


def in_its_cluster(store: TopicStore, topic: TopicRow) -> Op[None]:
    if topic.topic.tracking == "rows":
        return
    found = yield from store.incarnation()
    if found.foreign:
        raise GroupError(
            f"topic {topic.topic.name!r} comes from cluster {found.noted}, this is {found.here}: its transaction "
            "numbers mean nothing here, and events would be passed over. Stop all consumers and run "
            "`relaybox doctor --repair`"
        )


@dataclass(frozen=True, slots=True)
class TopicContext(Generic[R]):
    target: Any  # what `open_async` takes: heartbeats and listeners have connections of their own
    db: R
    store: TopicStore
    settings: Settings
    clock: Clock
    observers: Observers
    codec: Codec
    wake: Callable[[], None]  # tell listeners that there is something new
    reads: SharedReads = field(default_factory=SharedReads, compare=False)
    services: R | None = field(default=None, compare=False)  # as `db`, but neither handlers nor callers can take them
    _beats: list[Heartbeats] = field(default_factory=list, compare=False)  # one, once somebody needs it

    @property
    def auditor(self) -> Auditor:
        """Writes down what operators change, in the audit table of the outbox."""
        return Auditor(self.store, self.settings, self.observers, self.clock)

    @property
    def own(self) -> R:
        """For what claims, renews and settles."""
        return self.db if self.services is None else self.services

    def known(self, topic: str) -> Op[TopicRow]:
        """The topic, which must have been configured."""
        row = yield from self.store.topic(topic)
        if row is None:
            raise (yield from unknown_topic(self.store, topic))
        return row

    def readable(self, topic: str) -> Op[TopicRow]:
        """The same for who reads it: by the transaction numbers of another cluster events would be passed over."""
        row = yield from self.known(topic)
        yield from in_its_cluster(self.store, row)
        return row

    def unfed(self, topic: str) -> Op[None]:
        """InUse: feeds write their deltas to it."""
        names = yield from open_feed_store(self.store.dialect, self.store.tables).of_topic(topic)
        if names:
            raise InUse(
                "topic", topic, f"topic {topic!r} has the deltas of feed {', '.join(names)}; drop the feed first"
            )

    def reader(self, topic: str, group: str) -> Op[tuple[TopicRow, GroupRow]]:
        """A group and its topic, which must be there."""
        row = yield from self.known(topic)
        found = yield from self.store.group(topic, group)
        if found is None:
            names = [each.name for each in (yield from self.store.groups(topic))]
            hint = did_you_mean(group, names, "; see `relaybox groups list`")
            raise NotFound("group", group, f"topic {topic!r} has no group {group!r}{hint}")
        return row, found

    def state_changed(self, group: GroupRow) -> None:
        """This process changed the group's state: its members here need not wait for a heartbeat to hear of it."""
        for beats in self._beats:
            beats.state_changed(group)

    @property
    def heartbeats(self) -> Heartbeats:
        """One for all members of this process; needs a running loop."""
        if not self._beats:
            self._beats.append(Heartbeats(self.target, self.store, self.settings, self.clock, self.observers))
        return self._beats[0]

    async def close(self) -> None:
        """Leave with every member that is still here."""
        while self._beats:
            await self._beats.pop().close()


class WithTopicContext:
    """What both twins of an operator have: `look` and `commit` run on the outbox's connections."""

    def __init__(self, context: TopicContext[Any]) -> None:
        self._context = context
        self._db = context.db
        self._clock = context.clock
        self._store = context.store

    @property
    def _now(self) -> datetime | None:
        return self._clock.database_now()
