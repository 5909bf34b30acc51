"""Groups: who reads a topic, in as many processes as you like.

    mail = outbox.topics.group("orders", "mail")
    with mail.deliver(listeners): ...            listeners are called
    with mail.consumer() as consumer: ...        or poll and commit yourself
    mail.pause(reason="the mail server moves")   and what operators do
    mail.dead.replay(ALL, reason="it is back")

A group is a name until somebody asks it for something: `deliver`, `consumer` and `create` make it, or join it if it is
there. What changes it is written down with who and why, and told to observers and by NOTIFY as an Alert.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any, Final, Protocol, TypeVar, Unpack, overload

from ..audit import Audit, Change
from ..delivery import Delivery
from ..drivers.script import Async, Script, Sync, commit, look, slow, twin
from ..drivers.spi import AsyncRunner, Runner
from ..durations import Duration, parse_duration
from ..engine.presence import default_name
from ..errors import AlreadyExists, GroupError, StoreError
from ..facts import Alert
from ..listeners import Listeners, registry
from ..op import Op
from ..operate import AsyncDeadLetters, AsyncEvents, AsyncKeys, DeadLetters, Desk, Events, Keys
from ..service import AsyncService, Owner, Service
from ..settings import Settings
from ..store.feeds import open_feed_store
from ..store.topics import FOR_EVER, GroupRow, Lag, TopicRow
from ..store.topics.life import Verb
from ..twins import told_by
from ..values import Health, Progress
from .backfill import Job, Pace, finish, pace_of, progress_of, waited_for
from .consumer import AsyncConsumer, Consumer
from .context import TopicContext, WithTopicContext, in_its_cluster
from .delivery import GroupDelivery, MakeHandlers, listening
from .group_events import GroupEvents
from .hand_off import move
from .info import GroupInfo, health_of
from .join import Joining, join
from .start import StartFrom

log = logging.getLogger("relaybox")

T = TypeVar("T")
LOOK_AGAIN: Final = 0.1


class TopicsOwner(Owner, Protocol):
    """The outbox, for the services of its groups."""

    settings: Settings

    def _topic_context(self, closing: AsyncExitStack) -> TopicContext[AsyncRunner]:
        """For a service, in the loop that runs."""
        ...


def tell(context: TopicContext[Any], alert: Alert) -> Script[None]:
    """To observers and by NOTIFY. What it tells of has happened, whether or not somebody hears it."""
    context.observers(alert)
    try:
        yield from look(context.store.notify_alert())
    except StoreError as error:
        log.warning("alert %s could not be sent by NOTIFY: %s", alert.name, type(error).__name__)


def describe(context: TopicContext[Any], topic: TopicRow, group: GroupRow) -> Script[GroupInfo]:
    now = context.clock.database_now()
    totals = yield from look(context.store.totals(group, now))
    members = yield from look(context.store.members(group, now))
    lag = yield from _lag(context, topic, group)
    filled = yield from look(context.store.backfill(group))
    return GroupInfo._of(group, totals, lag, members, None if filled is None else progress_of(filled))


def _lag(context: TopicContext[Any], topic: TopicRow, group: GroupRow) -> Script[Lag]:
    yield from look(in_its_cluster(context.store, topic))
    return (yield from look(context.store.lag(topic, group, context.clock.database_now())))


def release(context: TopicContext[Any], topic: str) -> Script[int]:
    """Nobody waits for those who are gone."""
    released = 0
    known = yield from look(context.known(topic))
    while count := (yield from commit(context.store.release(known, context.clock.database_now()))):
        released += count
    return released


class _Group(WithTopicContext):
    """What both twins do, as scripts."""

    def __init__(self, context: TopicContext[Any], box: TopicsOwner, joining: Joining) -> None:
        super().__init__(context)
        self.topic, self.name = joining.topic, joining.group
        self._box = box
        self._joining = joining

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.topic!r}, {self.name!r})"

    def _desk(self) -> Desk:
        context, of = self._context, f" of group {self.topic}/{self.name}"
        kept = GroupEvents(context, self.topic, self.name)
        return Desk(context.db, kept, context.auditor, context.observers, context.wake, of=of)

    def _find(self) -> Script[tuple[TopicRow, GroupRow]]:
        return (yield from look(self._context.reader(self.topic, self.name)))

    # -- make -------------------------------------------------------------------------------------

    @twin
    def create(self, *, if_not_exists: bool = False) -> Script[GroupInfo]:
        """Makes the group. Its place in the topic is fixed now, not when its first member comes. AlreadyExists: it is
        there; with `if_not_exists` that is fine."""
        if not if_not_exists:
            yield from look(self._context.known(self.topic))
            there = yield from look(self._store.group(self.topic, self.name))
            if there is not None and there.state != "cancelled":
                raise AlreadyExists(
                    "group",
                    self.name,
                    f"topic {self.topic!r} has a group {self.name!r} already; pass if_not_exists=True to use it",
                )
        joined = yield from commit(join(self._context, self._joining, push=False))
        if joined.backfill:
            yield from waited_for(self._context, joined.topic, joined.group)
        return (yield from describe(self._context, joined.topic, joined.group))

    # -- look -------------------------------------------------------------------------------------

    @twin
    def info(self) -> Script[GroupInfo]:
        """Its state, its members, and how far it is."""
        return (yield from describe(self._context, *(yield from self._find())))

    @twin
    def lag(self) -> Script[Lag]:
        """How far it is behind."""
        return (yield from _lag(self._context, *(yield from self._find())))

    @twin
    def health(self) -> Script[Health]:
        """Whether somebody does its work, as the database knows it: over all processes."""
        topic, group = yield from self._find()
        return health_of(group, (yield from describe(self._context, topic, group)))

    # -- change -----------------------------------------------------------------------------------

    @twin
    def pause(self, **audit: Unpack[Audit]) -> Script[None]:
        """Its members stay and take nothing more, in all processes. What is written is kept for it, up to the topic's
        `max_retention`."""
        yield from self._apply("pause", audit)

    @slow
    def resume(self, **audit: Unpack[Audit]) -> Script[None]:
        """It goes on where it stood, with what is still kept: if it was paused, dead, or had stalled."""
        moved = yield from self._apply("resume", audit)
        yield from finish(self._context, moved)  # of one that was dead: open events wait for it again

    @slow
    def cancel(self, *, wait: Duration = 0, **audit: Unpack[Audit]) -> Script[None]:
        """Ends the subscription for good: nothing is kept for it any more. What its members hold is lost to them;
        `wait`: how long they may finish it first."""
        patience = parse_duration(wait, "wait").total_seconds()
        _, found = yield from self._find()
        if patience and found.state == "active":  # each step is committed before the next: members see it and finish
            found = yield from self._apply("pause", audit)
        until = self._clock.monotonic() + patience
        while found.state == "paused" and self._clock.monotonic() < until:
            if not (yield from look(self._store.totals(found, self._now))).holding:
                break
            yield LOOK_AGAIN
        yield from self._apply("cancel", audit)
        yield from release(self._context, self.topic)

    def _apply(self, verb: Verb, audit: Audit) -> Script[GroupRow]:
        context, change = self._context, self._change(verb, audit)
        _, group = yield from self._find()
        moved = group

        def applied() -> Op[bool | None]:
            nonlocal moved
            moved = yield from self._store.apply(group, verb, f"{change.actor}: {change.reason}", self._now)
            return None if moved.condition != group.condition else False

        if (yield from change.commit(applied())) is None:
            yield from self._tell(f"group_{'resumed' if moved.state == 'active' else moved.state}", change)
            context.state_changed(moved)
            context.wake()
        return moved

    def _change(self, verb: str, audit: Audit) -> Change:
        return self._context.auditor.begin(verb, f"group {self.topic}/{self.name}", audit)

    def _tell(self, alert: str, change: Change, text: str = "") -> Script[None]:
        change.tell()
        text = f"by {change.actor}: {text}{change.reason}"
        yield from tell(self._context, Alert(alert, self.topic, self.name, text))

    @slow
    def seek(self, to: StartFrom, **audit: Unpack[Audit]) -> Script[None]:
        """Moves it: back, to see events again, or forward, to pass them over. What its members hold is lost to them."""
        change = self._change("seek", audit)
        topic, group = yield from self._find()
        feeds = open_feed_store(self._store.dialect, self._store.tables)
        yield from change.commit(move(self._store, feeds, topic, group, to.start, self._now))
        yield from self._tell("group_moved", change, f"to {to.start.kind}: ")
        self._context.wake()
        after: int | None = 0
        while topic.topic.tracking in ("bitmap", "acks") and after is not None:
            after = yield from commit(self._store.catch_up(topic, group, after, self._now))

    @slow
    def backfill(
        self, *, pace: Pace = "gentle", progress: Callable[[Progress], object] | None = None
    ) -> Script[Progress]:
        """Where a topic knows of each event which groups have it (tracking bitmap or acks): what was written before the
        group came, and is not complete yet, waits for it too. Ends when it is done, and goes on where an earlier run
        ended. `pace`: gentle, normal or fast; each looks how long others must wait, and slows down."""
        limits = pace_of(pace)
        return (yield from Job(self._context, *(yield from self._find()), limits, progress).run())

    @twin
    def cancel_backfill(self) -> Script[bool]:
        """Also one that another process runs: it ends after its batch. False: none is under way."""
        _, found = yield from self._find()
        return (yield from commit(self._store.cancel_backfill(found, self._now)))

    # -- services ---------------------------------------------------------------------------------

    def _delivery(
        self,
        owner: Owner | None,
        make: MakeHandlers,
        *,
        attempts: Iterable[int] = (),
        settings: Settings | None = None,
        in_flight: int | None = None,
    ) -> GroupDelivery:
        """A service that gives the group's events to what `make` makes: listeners, or a relay's publisher."""
        joining = replace(self._joining, attempts=tuple(attempts))
        settings = settings or self._box.settings
        return GroupDelivery(self._box._topic_context, owner, joining, make, settings, in_flight=in_flight)

    def _deliver(self, owner: Owner | None, listeners: Listeners | Callable[..., object]) -> GroupDelivery:
        found: Listeners[Delivery] = registry(listeners, several=True)
        if not found.all():
            raise GroupError(f"no listener is registered for {self!r}, so that its events would wait for nobody")
        attempts = [each.retry.attempts or FOR_EVER for each in found.all() if each.retry is not None]
        return self._delivery(owner, listening(found, self._box.settings), attempts=attempts)


class Group(_Group, Sync):
    """A group of a topic; `outbox.topics.group` makes it. It does nothing until it is asked."""

    _context: TopicContext[Runner]

    def __init__(self, context: TopicContext[Runner], box: TopicsOwner, joining: Joining) -> None:
        super().__init__(context, box, joining)
        desk = self._desk()
        self.dead, self.events, self.keys = DeadLetters(desk), Events(desk), Keys(desk)

    def deliver(self, listeners: Listeners | Callable[..., object]) -> Service:
        """The service that delivers the group's events in this process, to listeners or to one function that takes
        all. Several named listeners of a type share its events by key. A group that stalled raises GroupError."""
        return Service(self._deliver(None, listeners), self._box)

    @overload
    def consumer(self, name: str | None = None) -> Consumer[Any]: ...
    @overload
    def consumer(self, name: str | None = None, *, model: type[T]) -> Consumer[T]: ...
    def consumer(self, name: str | None = None, *, model: Any = None) -> Consumer[Any]:
        """For programs that poll and commit themselves. `name`: of this member; `model`: what payloads are read into.
        Any number of consumers, in any number of processes, share the group's events."""
        return Consumer(self._context, self._joining, name or default_name(), model)


@told_by(Group)
class AsyncGroup(_Group, Async):
    """A group of a topic; `outbox.topics.group` makes it. It does nothing until it is asked."""

    _context: TopicContext[AsyncRunner]

    def __init__(self, context: TopicContext[AsyncRunner], box: TopicsOwner, joining: Joining) -> None:
        super().__init__(context, box, joining)
        desk = self._desk()
        self.dead, self.events, self.keys = AsyncDeadLetters(desk), AsyncEvents(desk), AsyncKeys(desk)

    def deliver(self, listeners: Listeners | Callable[..., object]) -> AsyncService:
        return self._deliver(self._box, listeners)

    @overload
    def consumer(self, name: str | None = None) -> AsyncConsumer[Any]: ...
    @overload
    def consumer(self, name: str | None = None, *, model: type[T]) -> AsyncConsumer[T]: ...
    def consumer(self, name: str | None = None, *, model: Any = None) -> AsyncConsumer[Any]:
        return AsyncConsumer(self._context, self._joining, name or default_name(), model)
