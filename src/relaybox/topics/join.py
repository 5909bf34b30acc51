"""Joining a group, and making it if it is not there."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, NamedTuple, get_args

from ..clock import Clock
from ..errors import ConfigError
from ..event import check_topic
from ..op import Op
from ..outbox.source import with_fair
from ..retry import Retry
from ..settings import Fair, OnExhausted
from ..store.grants.tenants import sees_all
from ..store.topics import FOR_EVER, QUEUE, GroupOptions, GroupRow, TopicRow
from .context import TopicContext
from .start import StartFrom

PULLED: Final = timedelta(hours=24)  # consumers that poll may come and go


@dataclass(frozen=True, kw_only=True)
class Joining:
    """What a program says about a group. None: as the group is; a new one has the defaults."""

    topic: str
    group: str
    clock: Clock
    start: StartFrom | None = None
    ordered: bool | None = None
    on_exhausted: OnExhausted | None = None
    retry: Retry | None = None
    silence: timedelta | None = None
    fair: Fair | None = None
    attempts: Iterable[int] = ()  # that listeners ask for

    def __post_init__(self) -> None:
        check_topic(self.topic)
        if self.on_exhausted is not None and self.on_exhausted not in get_args(OnExhausted):
            raise ConfigError(f"expected on_exhausted to be block, park or skip, got {self.on_exhausted!r}")
        if self.fair is not None and self.fair not in get_args(Fair):
            raise ConfigError(f"expected fair to be off or tenant, got {self.fair!r}")
        if self.retry is not None and not isinstance(self.retry, Retry):
            raise ConfigError(f"expected retry to be a Retry, such as Retry(attempts=5), got {self.retry!r}")
        if self.start is not None and not isinstance(self.start, StartFrom):
            raise ConfigError(f"expected start to be a StartFrom, such as StartFrom.earliest(), got {self.start!r}")

    def options(
        self, context: TopicContext[Any], topic: TopicRow, there: GroupRow | None, *, push: bool
    ) -> GroupOptions:
        """`push`: for members whose listeners are called; they are heard of all the time."""
        settings, silence = context.settings, self.silence
        if silence is None:
            usual = topic.topic.heartbeat_timeout if push else PULLED
            silence = (
                usual if there is None or (push and there.heartbeat_timeout == PULLED) else there.heartbeat_timeout
            )
        if self.retry is not None or there is None or push:
            attempts = max((self.retry or settings.delivery.retry).attempts or FOR_EVER, *self.attempts, 1)
        else:
            attempts = there.max_attempts
        return GroupOptions(
            ordered=_either(self.ordered, there and there.ordered, topic.topic.semantics != "queue"),
            max_attempts=attempts,
            on_exhausted=_either(self.on_exhausted, there and there.on_exhausted, settings.order.on_exhausted),
            heartbeat_interval=min(topic.topic.heartbeat_interval, silence / 2),
            heartbeat_timeout=silence,
        )


def _either(*values: Any) -> Any:
    return next(value for value in values if value is not None)


class Joined(NamedTuple):
    topic: TopicRow
    group: GroupRow
    new: bool
    backfill: bool  # open events are to wait for it


def join(context: TopicContext[Any], joining: Joining, *, push: bool) -> Op[Joined]:
    """The group as it is then: perhaps paused, or stalled. A dead one is active again. Needs a transaction."""
    yield from sees_all(context.store, "parked")
    topic = yield from context.readable(joining.topic)
    queue = topic.topic.semantics == "queue"
    if queue and joining.group != QUEUE:
        raise ConfigError(f"topic {joining.topic!r} is a queue: its one group is {QUEUE!r}, got {joining.group!r}")
    there = yield from context.store.group(joining.topic, joining.group)
    if there is not None and there.state == "cancelled":
        there = None
    if there is None and joining.group == QUEUE and not queue:
        raise ConfigError(
            f"topic {joining.topic!r} is pub/sub, and {QUEUE!r} is the group of queues; give the group a name of its "
            f"own: topics.group({joining.topic!r}, NAME)"
        )
    options = joining.options(context, topic, there, push=push)
    rows = topic.topic.tracking == "rows"
    if joining.fair == "tenant" and not rows:
        raise ConfigError(
            f"fair='tenant' is for queues tracked by rows: topic {joining.topic!r} is a log (tracking "
            f"{topic.topic.tracking!r}), which is read in its order"
        )
    if rows and with_fair(context.settings, joining.fair, ordered=options.ordered).delivery.fair == "tenant":
        yield from context.store.queue(topic.id).verify_fair()
    if there is not None and there.state != "dead" and GroupOptions.of(there) == options:
        return Joined(topic, there, False, False)
    start = joining.start or (StartFrom.earliest() if queue else StartFrom.latest())
    group, new = yield from context.store.subscribe(
        topic, joining.group, start.start, options, context.clock.database_now()
    )
    marked = topic.topic.tracking in ("bitmap", "acks")
    return Joined(topic, group, new, new and start.backfill and marked)
