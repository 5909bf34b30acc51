"""Consumers that poll: ask for events, work, commit. Any number of them share a group.

    with outbox.topics.group("orders", "billing").consumer() as consumer:
        with consumer.poll(100, wait=5) as batch:
            for event in batch: ...

The place belongs to the group. What a poll returns is leased; what is not committed by then is given to the next
consumer that polls, before anything newer. A commit of what was lost is refused.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any, Final, Generic, NamedTuple, TypeVar

from ..drivers.script import Async, Plain, Script, Sync, aplay, commit, look, twin
from ..drivers.spi import AsyncRunner, Runner
from ..durations import Duration, parse_duration
from ..engine.wakeups import Ears
from ..errors import Closed, ConfigError, ConnectionLost, LeaseLost, NotFound, StoreError
from ..event import Event
from ..facts import Claimed, ClaimLost, Delivered, Died, Retried
from ..listeners import reader
from ..op import Op
from ..outbox.source import with_fair
from ..sealing import reading
from ..store.claims import HeldRow
from ..store.feeds import open_feed_store
from ..store.outbox.fair import TenantRound
from ..store.topics import Beat, GroupRow, RangeSettlement, TopicRow
from ..store.topics.page_room import PageRoom
from ..twins import AsyncClosing, Closing, told_by
from .backfill import finish, waited_for
from .batch import AsyncBatch, Batch, BatchPage, Failures, _Batch
from .context import TopicContext, WithTopicContext
from .deltas import DeltaRow, adelta_rows, delta_rows
from .join import Joining, join
from .liveness import sign_off

log = logging.getLogger("relaybox")

T = TypeVar("T")
AnyBatch = TypeVar("AnyBatch", bound=_Batch[Any])
LEASE: Final = timedelta(seconds=30)
HEALTHY: Final = timedelta(seconds=60)
BEAT: Final = 1.0  # seconds between two signs of life that polls and commits give
SLACK: Final = timedelta(seconds=5)
ENOUGH: Final = 0.75  # a batch is not asked for again if no more than this part of it is missing
FIRST_PAUSE: Final = 0.02  # seconds; it doubles between polls that find nothing
LONGEST_PAUSE: Final = 0.25
NONE: Final[Failures] = {}


class _Found(NamedTuple):
    batch: _Batch[Any]
    tick: int  # what was read to
    at_the_end: bool


class _Pull(WithTopicContext, Generic[AnyBatch]):
    """What both twins do, as scripts."""

    _batch: type[_Batch[Any]]

    @property
    def _longest_pause(self) -> float:
        """Seconds between polls that find nothing."""
        return LONGEST_PAUSE

    def __init__(self, context: TopicContext[Any], joining: Joining, name: str, model: Any) -> None:
        super().__init__(context)
        self._db = context.own
        self._joining = joining
        self._topic_name, self._group_name = joining.topic, joining.group
        self.name = name
        self._codec = context.codec if model is None else reading(context.codec, reader(model))
        self._topic: TopicRow | None = None
        self._group: GroupRow | None = None
        self._joined = False
        self._member: int | None = None
        self._beaten = self._lives_until = float("-inf")
        self._open: list[_Batch[Any]] = []
        self._processed = self._failed = 0
        self._busy = 0.0  # seconds between polls and their commits
        fair = with_fair(context.settings, joining.fair, ordered=False).delivery.fair
        self._round = TenantRound() if fair == "tenant" else None  # for queues tracked by rows
        self._retry = joining.retry or context.settings.delivery.retry
        self._doubtful = False
        self._ranges = 1  # to ask for: few where shards have much, many where each has little
        self._closed = False
        self.standstill: str | None = None  # why polls are given nothing, and what ends that

    @property
    def _me(self) -> int:
        assert self._member is not None
        return self._member

    def _seats(self) -> Script[tuple[TopicRow, GroupRow]]:
        """The topic and the group, which is made the first time if it is not there."""
        if self._closed:
            raise Closed(f"consumer {self.name!r} is closed; make a new one")
        if self._topic is None or self._group is None:
            if not self._joined:
                joined = yield from commit(join(self._context, self._joining, push=False))
                self._joined = True
                if joined.backfill:
                    yield from waited_for(self._context, joined.topic, joined.group)
            topic = yield from look(self._context.readable(self._topic_name))
            group = yield from look(self._store.group(self._topic_name, self._group_name))
            if group is None or group.state == "cancelled":
                name, topic_name = self._group_name, self._topic_name
                raise NotFound(
                    "group", name, f"group {name!r} of topic {topic_name!r} was cancelled; a new consumer makes it anew"
                )
            if group.ordered and topic.topic.tracking == "rows":
                raise ConfigError(
                    f"queue {self._topic_name!r} is tracked by rows and its group is ordered, which consumers that "
                    "poll cannot keep; use deliver(), or cancel the group and begin anew"
                )
            self._topic, self._group = topic, group
        return self._topic, self._group

    # -- signs of life ----------------------------------------------------------------------------

    def _alive(self, lease: timedelta) -> Script[GroupRow]:
        """Join or beat: the row must outlive the lease. A dead group is alive again by it, unless it stalled."""
        _, group = yield from self._seats()
        started = self._clock.monotonic()
        held = [timedelta(seconds=batch.until - started) for batch in self._open if batch.open]
        ttl = max(lease, HEALTHY, *held) + SLACK
        if self._member is None:
            self._member = yield from commit(self._store.join(group, self.name, ttl, self._now))
        elif started - self._beaten < BEAT and self._lives_until >= started + lease.total_seconds():
            return group
        beat = self._beat(self._me)
        states = yield from look(self._store.beat([beat], ttl, self._now))
        self._processed, self._failed = self._processed - beat.processed, self._failed - beat.failed
        self._busy -= beat.busy_ms / 1000
        state = states.get(self._me)
        if state is None:  # removed after a long silence, or with its group
            self._member = self._topic = self._group = None
            return (yield from self._alive(lease))
        self._beaten, self._lives_until = started, started + ttl.total_seconds()
        if state == "cancelled":
            self._group = None
            yield from self._seats()
        known = yield from look(self._context.readable(self._topic_name))
        if known.version != self._known().version:  # moved: the group may have got another bit
            _, group = yield from self._again()
        if state == "dead":
            self._group = group = yield from commit(
                self._store.apply(group, "beat", f"consumer {self.name} polls", self._now)
            )
            if group.state == "active":
                yield from finish(self._context, group)
        elif state != group.state:
            _, group = yield from self._again()
        self._say(group)
        return group

    def _again(self) -> Script[tuple[TopicRow, GroupRow]]:
        self._topic = None
        return (yield from self._seats())

    def _say(self, group: GroupRow) -> None:
        """Once per change: a poll that is given nothing looks like one that finds nothing."""
        if group.standstill != self.standstill and group.standstill is not None:
            log.warning("%s", group.standstill)
        self.standstill = group.standstill

    def _beat(self, member: int) -> Beat:
        return Beat(member, self._processed, self._failed, 0, int(self._busy * 1000))

    # -- poll -------------------------------------------------------------------------------------

    def _poll(self, limit: int, lease: Duration, wait: Duration) -> Script[Any]:
        held, patience = parse_duration(lease, "lease"), parse_duration(wait, "wait").total_seconds()
        if limit < 1 or held <= timedelta(0):
            raise ConfigError(f"expected a positive limit and lease, got {limit} and {lease}")
        until, pause = self._clock.monotonic() + patience, FIRST_PAUSE
        while not (batch := (yield from self._poll_once(limit, held))):
            left = until - self._clock.monotonic()
            if left <= 0:
                break
            yield float(min(pause, left))
            pause = min(pause * 2, self._longest_pause)
        return batch

    def _poll_once(self, limit: int, lease: timedelta) -> Script[_Batch[Any]]:
        _, group = yield from self._seats()
        started = self._clock.monotonic()
        self._open = [batch for batch in self._open if batch.open and batch.until > started]
        if group.ordered and self._open:
            raise ConfigError(
                f"consumer {self.name!r} of the ordered group {group.name!r} has a batch that is not committed; commit "
                "or release it first, or use more consumers"
            )
        group = yield from self._alive(lease)
        found = yield from self._ask(group, limit, lease)
        if found.at_the_end and not found.batch.pages:  # for the next poll, if this one found parked events
            newest = yield from look(self._store.tick(self._known(), self._now))
            if newest is not None and newest > found.tick and not found.batch.open:
                found = yield from self._ask(group, limit, lease)
        while found.batch.open and not found.batch:  # all of it waits behind parked events: nothing to show
            yield from self._commit(found.batch)
            found = yield from self._ask(group, limit, lease)
        if found.batch:
            self.standstill = None
            self._open.append(found.batch)
            self._context.observers(Claimed(len(found.batch), self._clock.monotonic() - started))
        return found.batch

    def _ask(self, group: GroupRow, most: int, lease: timedelta) -> Script[_Found]:
        """After a claim whose reply was lost we may hold what we do not know of: it is given back before we take what
        comes behind it."""
        if self._doubtful:
            topic = self._known()
            if topic.topic.tracking == "rows":
                yield from commit(self._store.abandon_rows(topic, self._me, self._tokens, self._now))
            else:
                yield from commit(self._store.abandon(group, self._me, self._tokens, self._now))
        self._doubtful = True
        found = yield from commit(self._take(group, most, lease))
        self._doubtful = False
        found.batch.since = self._clock.monotonic()
        found.batch.until = found.batch.since + lease.total_seconds()  # not before the database's
        return found

    @property
    def _tokens(self) -> list[int]:
        return [token for batch in self._open for token in batch._tokens]

    def _known(self) -> TopicRow:
        assert self._topic is not None
        return self._topic

    def _take(self, group: GroupRow, most: int, lease: timedelta) -> Op[_Found]:
        """Due parked events, then ranges, until there are enough."""
        topic, codec, now = self._known(), self._codec, self._now
        claimed = yield from self._store.claim_parked(topic, group, self._me, most, lease, now, self._round)
        parked = [(one, Event.stored(one.row, codec, topic.topic.name)) for one in claimed]
        pages: list[BatchPage] = []
        held: frozenset[int] = frozenset()
        room, ranges, tick, at_the_end = most - len(parked), self._ranges, 0, False
        payloads = self._payload_room([event for _, event in parked])
        while room > most * ENOUGH and not payloads.full:
            ranges = min(ranges, room)
            taken = yield from self._store.claim(
                topic,
                group,
                self._me,
                events=room // ranges,
                ranges=ranges,
                most=room,
                lease=lease,
                now=now,
                known=self._tokens + [page.range.token for page in pages],
                room=payloads,
            )
            tick, at_the_end = taken.tick, not taken.behind
            held |= taken.held  # also what another consumer has finished since: ours of that key wait in this batch
            for held_range, rows in taken.pages:
                events = (Event.stored(row, codec, topic.topic.name) for row in rows)
                pages.append(BatchPage(held_range, events, held))
                room -= len(rows)
            if not taken.alive:
                self._member = None  # the next poll joins again
            if not taken.pages:
                break
            ranges *= 2
        self._ranges = max(1, min(len(pages), ranges) // (1 if room > 0 else 2))
        return _Found(self._batch(pages, parked), tick, at_the_end)

    def _payload_room(self, parked: Sequence[Event]) -> PageRoom:
        here = [event for batch in self._open for page in batch.pages for event in (*page.shown, *page.held)]
        here += [event for batch in self._open for _, event in batch.parked] + list(parked)
        left = self._context.settings.delivery.payload_bytes - sum([len(event.body or b"") for event in here])
        return PageRoom(left, first=not here)

    # -- commit -----------------------------------------------------------------------------------

    @twin
    def commit(self, batch: AnyBatch, *, failed: Failures = NONE, done: Iterable[Event] | None = None) -> Script[None]:
        """All that did not fail is done; with `done` only those are, and the rest is given back. What failed is tried
        again later or dies, as the group says. Where order matters stop with a key when one of its events fails, and
        say what is done: the rest then waits behind it. LeaseLost: parts are not this consumer's any more; the others
        are committed."""
        return self._commit(batch, failed, done)

    @twin
    def release(self, batch: AnyBatch) -> Script[None]:
        """Gives it back: it is delivered again at once, and no attempt is counted."""
        return self._commit(batch, done=())

    def _commit(self, batch: _Batch[Any], failed: Failures = NONE, done: Iterable[Event] | None = None) -> Script[None]:
        if not batch.open:
            return
        topic, group = yield from self._seats()
        settlement = batch._settlement(group, done, failed, self._retry)._replace(known=self._tokens)
        was_doubtful, batch.doubtful = batch.doubtful, True
        try:
            settle = self._store.settle(topic, group, settlement, self._now)
            lost = yield Plain(settle) if settlement.is_one_statement(topic) else settle
        except StoreError:
            self._topic = None  # it may have been moved: ask again
            raise
        except BaseException:
            batch.doubtful = was_doubtful
            raise
        batch.open = False
        if lost and not was_doubtful:
            self._context.observers(ClaimLost(lost))
            raise _lost(group.name, lost, len(batch._tokens))
        self._tell(batch, settlement)
        yield from self._alive(timedelta(0))

    def _tell(self, batch: _Batch[Any], settlement: RangeSettlement) -> None:
        observers = self._context.observers
        left = [(parking.event, parking) for _, parking in settlement.parkings if parking.state != "held"]
        again = [(event, one) for (_, event), one in zip(batch.parked, settlement.parked, strict=True) if one.error]
        done = len(batch._done(settlement))
        self._processed += done
        self._failed += len(left) + len(again)
        self._busy += self._clock.monotonic() - batch.since
        if done:
            observers(Delivered(done))
        for event, parking in left:
            observers(_fact(event, batch.attempts(event), parking.delay, parking.error, parking.state == "dead"))
        for event, outcome in again:
            observers(_fact(event, batch.attempts(event), outcome.delay, outcome.error, outcome.dead))

    @twin
    def extend(self, batch: AnyBatch, lease: Duration = LEASE) -> Script[datetime]:
        """Holds it for so long from now. Returns until when, by the database's clock. LeaseLost: parts of it are not
        this consumer's any more."""
        topic, group = yield from self._seats()
        held_for = parse_duration(lease, "lease")
        yield from self._alive(held_for)
        tokens = set(batch._tokens)
        if topic.topic.tracking == "rows":
            held = [HeldRow(event.seq or 0, found.token) for found, event in batch.parked]
            mine = yield from commit(self._store.renew_rows(topic, self._me, held, held_for, self._now))
            until = yield from look(self._store.time_ago(-held_for, self._now))
            lost = len([one for one in held if one.seq not in mine])
        else:
            until, ours = yield from commit(self._store.prolong(group, sorted(tokens), held_for, self._now))
            lost = len(tokens - ours)
        if lost:
            raise _lost(group.name, lost, len(tokens))
        batch.until = self._clock.monotonic() + held_for.total_seconds()
        return until

    def _close(self) -> Script[None]:
        member, self._member, self._closed = self._member, None, True
        if member is None:
            return
        try:
            if self._topic is not None and self._topic.topic.tracking == "rows":
                yield from commit(self._store.leave_rows(self._topic, member, self._now))
            yield from commit(sign_off(self._store, self._beat(member), self._now))
        except ConnectionLost as error:
            log.warning("consumer %r could not sign off, others wait for what it holds: %s", self.name, error)


def _fact(event: Event, attempts: int, delay: timedelta | None, error: str | None, dead: bool) -> Retried | Died:
    if dead:
        return Died(event.id, event.type, attempts, error or "")
    return Retried(event.id, event.type, attempts, delay or timedelta(0), error or "")


class Consumer(_Pull[Batch[T]], Sync, Closing, Generic[T]):
    """Polls a group; `group.consumer()` makes it. One thread at a time: use one consumer per thread."""

    _context: TopicContext[Runner]
    _batch = Batch

    def poll(self, limit: int = 100, *, lease: Duration = LEASE, wait: Duration = 0) -> Batch[T]:
        """The next events, held for `lease`. Empty: there was nothing for this consumer within `wait`.

        limit  events at most: fewer may come although more wait; what another consumer left behind comes whole
        lease  how long they are this consumer's: what is not committed by then is given to another
        wait   how long to wait for the first event
        """
        batch: Batch[T] = self._play(self._poll(limit, lease, wait))
        batch.consumer = self
        return batch

    def rows(self, event: Event[Any]) -> Iterator[DeltaRow]:
        """The rows of a delta of a feed: deleted ones, then inserted ones. A chunk is in memory at a time. NotFound:
        they are not kept any more."""
        return delta_rows(event, open_feed_store(self._store.dialect, self._store.tables), self._db)

    def close(self) -> None:
        """Leaves: what is not committed goes to others at once; when its lease ends, if the database cannot be told.
        The group stays."""
        self._play(self._close())


class _Naps:
    """Pauses that end when there may be news."""

    def __init__(self) -> None:
        self.news = asyncio.Event()
        self.longest = LONGEST_PAUSE

    async def sleep(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.news.wait()
        self.news.clear()

    def wake(self) -> None:
        self.news.set()

    def poll_every(self, interval: timedelta) -> None:
        self.longest = interval.total_seconds()


@told_by(Consumer)
class AsyncConsumer(_Pull[AsyncBatch[T]], Async, AsyncClosing, Generic[T]):
    """Polls a group; `group.consumer()` makes it. One task at a time: use one consumer per task."""

    _context: TopicContext[AsyncRunner]
    _batch = AsyncBatch

    def __init__(self, context: TopicContext[AsyncRunner], joining: Joining, name: str, model: Any) -> None:
        super().__init__(context, joining, name, model)
        self._naps = _Naps()
        self._ears: Ears | None = None

    @property
    def _longest_pause(self) -> float:
        return self._naps.longest

    async def poll(self, limit: int = 100, *, lease: Duration = LEASE, wait: Duration = 0) -> AsyncBatch[T]:
        if wait and self._ears is None:
            context, listen = self._context, self._db.listen if self._context.settings.delivery.notify else None
            channel = context.store.tables.channel
            hear = None if listen is None else lambda ready, wake: listen(channel, ready, wake)
            self._ears = Ears(self._naps, hear, context.settings.delivery.poll, context.observers, context.clock)
            self._ears.start()
        batch: AsyncBatch[T] = await aplay(self._poll(limit, lease, wait), self._db, self._naps)
        batch.consumer = self
        return batch

    def rows(self, event: Event[Any]) -> AsyncIterator[DeltaRow]:
        return adelta_rows(event, open_feed_store(self._store.dialect, self._store.tables), self._db)

    async def close(self) -> None:
        if self._ears is not None:
            await self._ears.stop()
        await self._play(self._close())


def _lost(group: str, lost: int, total: int) -> LeaseLost:
    return LeaseLost(
        f"{lost} of {total} parts of this batch are no longer held by this consumer of group {group!r}: the "
        "lease ended before commit or extend, or the group was moved. They will be delivered again; "
        "poll with a longer lease, or extend it while working",
        lost,
    )
