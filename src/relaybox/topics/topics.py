"""`outbox.topics`: topics, what is written to them and who reads them, as twins over the same ops.

outbox.topics.configure(Topic.pub_sub("orders", retention="7d"))
outbox.topics.producer("orders").send(session, {"id": 7}, key="order-7")

mail = outbox.topics.group("orders", "mail")
with mail.deliver(listeners): ...
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, Literal, TypeVar, Unpack, overload

from ..audit import Audit
from ..drivers.script import Async, Script, Sync, commit, look, slow, twin
from ..durations import Duration, parse_duration
from ..errors import ConfigError, NotFound
from ..facts import Alert
from ..op import Op
from ..retry import Retry
from ..settings import Fair, OnExhausted
from ..store.grants.tenants import sees_all
from ..store.topics import QUEUE
from ..store.topics.completion import Completion
from ..topic import Semantics, Topic, Tracking
from ..twins import told_by
from .advise import Advice, advise
from .context import TopicContext, WithTopicContext
from .group import AsyncGroup, Group, TopicsOwner, describe, tell
from .info import GroupInfo, TopicInfo
from .join import Joining
from .move import MovePlan, MoveProgress, move
from .producer import AsyncProducer, AsyncWrite, Producer, Write
from .start import StartFrom

P = TypeVar("P")
T = TypeVar("T")
Completed = Literal["done", "waiting"]
G = TypeVar("G", Group, AsyncGroup)


def nothing() -> Op[None]:
    """For a change whose own transactions are many: it is written down at its end."""
    return
    yield


class _Topics(WithTopicContext, Generic[G]):
    """What both twins do, as scripts."""

    _group: type[G]

    def __init__(self, context: TopicContext[Any], box: TopicsOwner, write: Any) -> None:
        super().__init__(context)
        self._box = box
        self._write = write

    # -- topics -----------------------------------------------------------------------------------

    @slow
    def configure(self, topic: Topic, **audit: Unpack[Audit]) -> Script[TopicInfo]:
        """Makes the topic with its tables, or changes what may be changed of it. Safe to repeat."""
        if not isinstance(topic, Topic):
            raise ConfigError(f"expected a Topic, such as Topic.pub_sub('orders'), got {type(topic).__name__}")
        row = yield from look(self._store.topic(topic.name))
        if row is None or row.topic != topic:  # nothing is asked of who changes nothing
            row = yield from self._audited("configure", topic.name, self._store.configure(topic, self._now), audit)
            settings = self._context.settings
            indexed = settings.delivery.fair == "tenant" or settings.tenants.max_waiting is not None
            if indexed and row.topic.tracking == "rows":
                yield from commit(self._store.queue(row.id).make_fair())
        return TopicInfo._of(row)

    def _audited(self, verb: str, topic: str, op: Op[T], audit: Audit) -> Script[T]:
        return self._context.auditor.audited(verb, f"topic {topic}", op, audit)

    @twin
    def get(self, topic: str) -> Script[TopicInfo | None]:
        """None: there is none."""
        row = yield from look(self._store.topic(topic))
        return None if row is None else TopicInfo._of(row)

    @slow
    def drop(self, topic: str, **audit: Unpack[Audit]) -> Script[bool]:
        """Deletes the topic with its events. InUse: a group reads it that is not cancelled, a feed writes to it, or a
        queue has unfinished events. False: there is none."""
        yield from look(sees_all(self._store, "parked"))
        yield from look(self._context.unfed(topic))
        return (yield from self._audited("drop", topic, self._store.drop(topic), audit))

    @twin
    def completion(self, topic: str, number: int) -> Script[dict[str, Completed]]:
        """Which groups have this event (done), and which are still to have it (waiting). NotFound: the event is not
        kept any more."""
        row = yield from look(self._context.known(topic))
        found: Sequence[Completion] = yield from look(self._store.completion(row, [number]))
        if not found:
            raise NotFound("event", str(number), f"topic {topic!r} keeps no event with the number {number} (any more)")
        waiting, concerned = set(found[0].waiting), {*found[0].required, *found[0].done}
        return {group: "waiting" if group in waiting else "done" for group in sorted(concerned)}

    @twin
    def advise(self, topic: str, *, audit: bool = False) -> Script[Advice]:
        """Which tracking fits what is measured. `audit`: it must be known of each event which groups have it."""
        return advise(self._context, topic, audit=audit)

    @slow
    def move(
        self,
        topic: str,
        *,
        tracking: Tracking | None = None,
        semantics: Semantics | None = None,
        dry_run: bool = False,
        progress: MoveProgress | None = None,
        **audit: Unpack[Audit],
    ) -> Script[MovePlan]:
        """To another tracking, or from a queue to pub/sub, while it is used. Ends when it is done; one that was
        interrupted goes on where it was. `dry_run`: only says what it would do."""
        change = self._context.auditor.begin("move", f"topic {topic}", audit)
        plan = yield from move(self._context, topic, tracking, progress, semantics=semantics, dry_run=dry_run)
        if plan.steps and not dry_run:
            yield from change.commit(nothing())
            change.tell()
        return plan

    @twin
    def cancel_move(self, topic: str, **audit: Unpack[Audit]) -> Script[bool]:
        """Back, as long as writers have not been told. False: none is under way."""
        return self._audited("cancel move", topic, self._store.cancel_move(topic, self._now), audit)

    @slow
    def force_complete(self, topic: str, older_than: Duration, **audit: Unpack[Audit]) -> Script[int]:
        """Calls events complete that groups still wait for: they may be deleted before those groups have seen them."""
        change = self._context.auditor.begin("complete", f"topic {topic}", audit)
        known = yield from look(self._context.known(topic))
        age = parse_duration(older_than, "older_than")
        before = yield from look(self._store.time_ago(age, self._now))
        total = 0
        while count := (yield from change.commit(self._store.force_complete(known, before, self._now))):
            total += count
        if total:
            change.tell()
            text = (
                f"{total} events older than {age} were called complete although groups wait for them: {change.reason}"
            )
            yield from tell(self._context, Alert("force_completed", topic, text=text))
        return total

    # -- groups -----------------------------------------------------------------------------------

    @twin
    def groups(self, topic: str | None = None) -> Script[list[GroupInfo]]:
        """All groups, or those of a topic."""
        infos = []
        for group in (yield from look(self._store.groups(topic))):
            known = yield from look(self._context.known(group.topic))
            infos.append((yield from describe(self._context, known, group)))
        return infos

    def group(
        self,
        topic: str,
        name: str,
        *,
        start: StartFrom | None = None,
        ordered: bool | None = None,
        on_exhausted: OnExhausted | None = None,
        retry: Retry | None = None,
        silence: Duration | None = None,
        fair: Fair | None = None,
    ) -> G:
        """A group of a topic, which may not be there yet. What is not given is as the group is; a new one has defaults.

        start         where a new group begins: StartFrom.latest(), unless it is given; in a queue with what is there
        ordered       the events of a key one after the other, over all processes: yes, in a queue no
        on_exhausted  what becomes of the key of an event that has failed too often, if `ordered`: "block" goes on
                      trying, "park" holds the key until the dead letter is replayed or discarded, "skip" goes on with
                      the next; as the settings say
        retry         how often an event is tried, and when again; as the settings say
        silence       for how long no member may be heard of before the group counts as dead: 5 minutes with members
                      that deliver, else 24 hours
        fair          "tenant": of a queue tracked by rows, claims go round the tenants; not if `ordered`. Needs
                      `migrate(fair="tenant")` of the outbox, after the queue has been made. As the settings say
        """
        joining = Joining(
            topic=topic,
            group=name,
            clock=self._clock,
            start=start,
            ordered=ordered,
            on_exhausted=on_exhausted,
            retry=retry,
            silence=None if silence is None else parse_duration(silence, "silence"),
            fair=fair,
        )
        return self._group(self._context, self._box, joining)

    def queue(
        self,
        topic: str,
        *,
        ordered: bool | None = None,
        on_exhausted: OnExhausted | None = None,
        retry: Retry | None = None,
        silence: Duration | None = None,
        fair: Fair | None = None,
    ) -> G:
        """The one group of a queue. Arguments: see `group`."""
        return self.group(
            topic, QUEUE, ordered=ordered, on_exhausted=on_exhausted, retry=retry, silence=silence, fair=fair
        )

    @twin
    def list(self) -> Script[list[TopicInfo]]:
        """All topics, by name."""
        return [TopicInfo._of(row) for row in (yield from look(self._store.topics()))]


class Topics(_Topics[Group], Sync):
    """Topics, their groups and consumers. PostgreSQL only."""

    _group = Group
    _write: Write

    @overload
    def producer(self, topic: str) -> Producer[Any]: ...
    @overload
    def producer(self, topic: str, model: type[P]) -> Producer[P]: ...
    def producer(self, topic: str, model: Any = Any) -> Producer[Any]:
        """Writes payloads to one topic. `model`: the class that they must have."""
        return Producer(self._write, topic, model, self._context.codec)


@told_by(Topics)
class AsyncTopics(_Topics[AsyncGroup], Async):
    """Topics, their groups and consumers. PostgreSQL only."""

    _group = AsyncGroup
    _write: AsyncWrite

    @overload
    def producer(self, topic: str) -> AsyncProducer[Any]: ...
    @overload
    def producer(self, topic: str, model: type[P]) -> AsyncProducer[P]: ...
    def producer(self, topic: str, model: Any = Any) -> AsyncProducer[Any]:
        return AsyncProducer(self._write, topic, model, self._context.codec)
