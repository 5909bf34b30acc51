"""Pull consumers: ask for events, work, commit. Any number of consumers share a group.

    with outbox.topics.consumer("orders", group="billing", name="c1") as consumer:
        batch = consumer.poll(max_events=100)
        failed = {event: error for event in batch if (error := handle(event))}
        consumer.commit(batch, failed=failed)

The place belongs to the group and is fixed when the group is made. What a poll returns is leased for `visibility`; what
is not committed by then is given to the next consumer that polls, before anything newer. A commit of what was lost is
refused.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple, Self

from ..drivers.script import Async, Plain, Script, Sync, aplay, commit, look, play, twin
from ..errors import Closed, ConfigError, ConnectionLost, LeaseLost, NotFound, StoreError
from ..event import Event
from ..facts import Alert, Claimed, ClaimLost, Delivered, Died, Retried
from ..op import Op
from ..store.claims import Held
from ..store.topics import Beat, GroupRow, Lag, RangeSettlement, Start, TopicRow
from .admin import PULLED, tell
from .backfill import finish
from .batch import Batch, Failures, Page
from .home import AtHome, Home
from .liveness import sign_off
from .start import StartFrom

log = logging.getLogger("relaybox")
VISIBILITY: Final = timedelta(seconds=30)
HEALTHY: Final = timedelta(seconds=60)
BEAT: Final = 1.0  # seconds between two signs of life that polls and commits give
SLACK: Final = timedelta(seconds=5)
ENOUGH: Final = 0.75  # a batch is not asked for again if no more than this part of it is missing


class _Found(NamedTuple):
    batch: Batch
    tick: int  # what was read to
    at_the_end: bool


class _Pull(AtHome):
    """What both twins do, as scripts."""

    def __init__(self, home: Home[Any], topic: str, group: str, name: str) -> None:
        super().__init__(home)
        self._db = home.own
        self._topic_name = topic
        self._group_name = group
        self.name = name
        self._topic: TopicRow | None = None
        self._group: GroupRow | None = None
        self._member: int | None = None
        self._beaten = self._lives_until = float("-inf")
        self._open: list[Batch] = []
        self._processed = self._failed = 0
        self._busy = 0.0  # seconds between polls and their commits
        self._retry = home.settings.delivery.retry
        self._doubtful = False
        self._ranges = 1  # to ask for: few where shards have much, many where each has little
        self._closed = False
        self.standstill: str | None = None  # why polls are given nothing, and what ends that

    @property
    def _me(self) -> int:
        assert self._member is not None
        return self._member

    def _seats(self) -> Script[tuple[TopicRow, GroupRow]]:
        """The topic and the group, which must be there."""
        if self._closed:
            raise Closed(f"consumer {self.name!r} is closed; make a new one")
        if self._topic is None or self._group is None:
            self._topic = yield from look(self._home.readable(self._topic_name))
            self._group = yield from look(self._store.group(self._topic_name, self._group_name))
            if self._group is None and self._topic.topic.tracking == "rows":  # a queue has its group by itself
                self._group, _ = yield self._store.subscribe(
                    self._topic, self._group_name, Start("earliest"), replace(PULLED, ordered=False), self._now
                )
            if self._group is not None and self._group.ordered and self._topic.topic.tracking == "rows":
                raise ConfigError(
                    f"queue {self._topic_name!r} is tracked by rows and its group is ordered, which only push groups "
                    "can be; use topics.queue() of an AsyncOutbox, or cancel the group and begin anew"
                )
            if self._group is None or self._group.state == "cancelled":
                self._group = None
                raise self._not_found()
        return self._topic, self._group

    def _not_found(self) -> NotFound:
        return NotFound(
            "group",
            self._group_name,
            f"topic {self._topic_name!r} has no group {self._group_name!r} (any more); make it with "
            f"topics.groups.create({self._topic_name!r}, {self._group_name!r})",
        )

    # -- signs of life ----------------------------------------------------------------------------

    def _alive(self, visibility: timedelta, *, at_once: bool = False) -> Script[GroupRow]:
        """Join or beat: the row must outlive the lease. A dead group is alive again by it, unless it stalled."""
        _, group = yield from self._seats()
        started = self._clock.monotonic()
        held = [timedelta(seconds=batch.until - started) for batch in self._open if batch.open]
        ttl = max(visibility, HEALTHY, *held) + SLACK
        if self._member is None:
            self._member = yield from commit(self._store.join(group, self.name, ttl, self._now))
        elif (
            started - self._beaten < BEAT and self._lives_until >= started + visibility.total_seconds() and not at_once
        ):
            return group
        beat = self._beat(self._me)
        states = yield from look(self._store.beat([beat], ttl, self._now))
        self._processed, self._failed = self._processed - beat.processed, self._failed - beat.failed
        self._busy -= beat.busy_ms / 1000
        state = states.get(self._me)
        if state is None:  # removed after a long silence, or with its group
            self._member = self._topic = self._group = None
            return (yield from self._alive(visibility))
        self._beaten, self._lives_until = started, started + ttl.total_seconds()
        if state == "cancelled":
            self._group = None
            raise self._not_found()
        known = yield from look(self._home.readable(self._topic_name))
        if known.version != self._known().version:  # moved: the group may have got another bit
            _, group = yield from self._again()
        if state == "dead":
            self._group = group = yield from commit(
                self._store.turn(group, "beat", f"consumer {self.name} polls", self._now)
            )
            if group.state == "active":
                yield from finish(self._home, group)
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

    @twin
    def heartbeat(self) -> Script[None]:
        """A sign of life; leases are not touched."""
        yield from self._alive(timedelta(0), at_once=True)

    # -- poll -------------------------------------------------------------------------------------

    @twin
    def poll(self, max_events: int = 100, visibility: timedelta = VISIBILITY) -> Script[Batch]:
        """The next events, at most so many (what another consumer left behind comes whole), for so long. Empty: there
        is nothing for this consumer now."""
        if max_events < 1 or visibility <= timedelta(0):
            raise ConfigError(f"expected positive max_events and visibility, got {max_events} and {visibility}")
        _, group = yield from self._seats()
        started = self._clock.monotonic()
        self._open = [batch for batch in self._open if batch.open and batch.until > started]
        if group.ordered and self._open:
            raise ConfigError(
                f"consumer {self.name!r} of the ordered group {group.name!r} has a batch that is not committed; commit "
                "or release it first, or use more consumers"
            )
        group = yield from self._alive(visibility)
        found = yield from self._ask(group, max_events, visibility)
        if not found.batch.open and found.at_the_end:
            newest = yield from look(self._store.tick(self._known(), self._now))
            if newest is not None and newest > found.tick:
                found = yield from self._ask(group, max_events, visibility)
        while found.batch.open and not found.batch:  # all of it waits behind parked events: nothing to show
            yield from self._commit(found.batch)
            found = yield from self._ask(group, max_events, visibility)
        if found.batch:
            self._open.append(found.batch)
            self._home.observers(Claimed(len(found.batch), self._clock.monotonic() - started))
        return found.batch

    def _ask(self, group: GroupRow, most: int, visibility: timedelta) -> Script[_Found]:
        """After a claim whose reply was lost we may hold what we do not know of: it is given back before we take what
        comes behind it."""
        if self._doubtful:
            topic = self._known()
            if topic.topic.tracking == "rows":
                yield from commit(self._store.abandon_rows(topic, self._me, self._tokens, self._now))
            else:
                yield from commit(self._store.abandon(group, self._me, self._tokens, self._now))
        self._doubtful = True
        found = yield from commit(self._take(group, most, visibility))
        self._doubtful = False
        found.batch.since = self._clock.monotonic()
        found.batch.until = found.batch.since + visibility.total_seconds()  # not before the database's
        return found

    @property
    def _tokens(self) -> list[int]:
        return [token for batch in self._open for token in batch.tokens]

    def _known(self) -> TopicRow:
        assert self._topic is not None
        return self._topic

    def _take(self, group: GroupRow, most: int, visibility: timedelta) -> Op[_Found]:
        """Due parked events, then ranges, until there are enough."""
        topic, codec, now = self._known(), self._home.codec, self._now
        claimed = yield from self._store.claim_parked(topic, group, self._me, most, visibility, now)
        parked = [(one, Event.stored(one.row, codec, topic.topic.name)) for one in claimed]
        pages: list[Page] = []
        held: frozenset[int] = frozenset()
        room, ranges, tick, at_the_end = most - len(parked), self._ranges, 0, False
        while room > most * ENOUGH:
            ranges = min(ranges, room)
            taken = yield from self._store.claim(
                topic,
                group,
                self._me,
                events=room // ranges,
                ranges=ranges,
                most=room,
                lease=visibility,
                now=now,
                known=self._tokens + [page.range.token for page in pages],
            )
            tick, at_the_end = taken.tick, not taken.behind
            held |= taken.held  # also what another consumer has finished since: ours of that key wait in this batch
            for held_range, rows in taken.pages:
                events = (Event.stored(row, codec, topic.topic.name) for row in rows)
                pages.append(Page(held_range, events, held))
                room -= len(rows)
            if not taken.alive:
                self._member = None  # the next poll joins again
            if not taken.pages:
                break
            ranges *= 2
        self._ranges = max(1, min(len(pages), ranges) // (1 if room > 0 else 2))
        return _Found(Batch(pages, parked), tick, at_the_end)

    # -- commit -----------------------------------------------------------------------------------

    @twin
    def commit(
        self, batch: Batch, *, failed: Failures | None = None, done: Iterable[Event] | None = None
    ) -> Script[None]:
        """All that did not fail is done; with `done` only those are, and the rest is given back. What failed is tried
        again later or dies, as the group says. Where order matters stop with a key when one of its events fails, and
        say what is done: the rest then waits behind it. Raises LeaseLost if parts are no longer ours; the others are
        committed."""
        return self._commit(batch, failed, done)

    @twin
    def release(self, batch: Batch) -> Script[None]:
        """Give it back: it is delivered again at once, and no attempt is counted."""
        return self._commit(batch, done=())

    def _commit(
        self, batch: Batch, failed: Failures | None = None, done: Iterable[Event] | None = None
    ) -> Script[None]:
        if not batch.open:
            return
        topic, group = yield from self._seats()
        settlement = batch.settlement(group, done, failed or {}, self._retry)._replace(known=self._tokens)
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
            self._home.observers(ClaimLost(lost))
            raise _lost(group.name, lost, len(batch.tokens))
        self._tell(batch, settlement)
        yield from self._alive(timedelta(0))

    def _tell(self, batch: Batch, settlement: RangeSettlement) -> None:
        observers = self._home.observers
        left = [(parking.event, parking) for _, parking in settlement.parkings if parking.state != "held"]
        again = [(event, one) for (_, event), one in zip(batch.parked, settlement.parked, strict=True) if one.error]
        done = len(batch.done(settlement))
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
    def extend(self, batch: Batch | None = None, visibility: timedelta = VISIBILITY) -> Script[datetime]:
        """Hold it (None: all open batches) for so long from now. Returns until when, by the database's clock. Raises
        LeaseLost."""
        topic, group = yield from self._seats()
        batches = [batch] if batch is not None else [one for one in self._open if one.open]
        yield from self._alive(visibility)
        tokens = {token for one in batches for token in one.tokens}
        if topic.topic.tracking == "rows":
            held = [Held(event.seq or 0, found.token) for one in batches for found, event in one.parked]
            mine = yield from commit(self._store.renew_rows(topic, self._me, held, visibility, self._now))
            until = yield from look(self._store.time_ago(-visibility, self._now))
            ours = tokens - {one.token for one in held if one.seq not in mine}
        else:
            until, ours = yield from commit(self._store.prolong(group, sorted(tokens), visibility, self._now))
        if tokens - ours:
            raise _lost(group.name, len(tokens - ours), len(tokens))
        for one in batches:
            one.until = self._clock.monotonic() + visibility.total_seconds()
        return until

    # -- the group --------------------------------------------------------------------------------

    def _seek(self, to: StartFrom) -> Script[None]:
        topic, group = yield from self._seats()
        yield from commit(self._store.seek(topic, group, to.start, self._now))
        self._open.clear()
        self._group = None
        after: int | None = 0
        while topic.topic.tracking in ("bitmap", "acks") and after is not None:
            after = yield from commit(self._store.catch_up(topic, group, after, self._now))
        text = f"by {self.name}: {to.start}"
        yield from tell(self._home, Alert("consumer_seeked", topic.topic.name, group.name, text))

    def _lag(self) -> Script[Lag]:
        topic, group = yield from self._seats()
        return (yield from look(self._store.lag(topic, group, self._now)))

    @twin
    def close(self) -> Script[None]:
        """Leave: what is not committed goes to others at once; when its time is over, if the database cannot be told.
        The group stays."""
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


class Consumer(_Pull, Sync):
    """`outbox.topics.consumer(topic, group=…)`. One thread at a time; use one consumer per thread."""

    def seek(self, to: StartFrom) -> None:
        """Move the whole group. What its consumers hold is lost to them."""
        play(self._seek(to), self._home.db)

    def lag(self) -> Lag:
        return play(self._lag(), self._home.db)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class AsyncConsumer(_Pull, Async):
    """The same in an event loop."""

    async def seek(self, to: StartFrom) -> None:
        """Move the whole group. What its consumers hold is lost to them."""
        await aplay(self._seek(to), self._home.db, self._clock)

    async def lag(self) -> Lag:
        return await aplay(self._lag(), self._home.db, self._clock)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


def _lost(group: str, lost: int, total: int) -> LeaseLost:
    return LeaseLost(
        f"{lost} of {total} parts of this batch are no longer held by this consumer of group {group!r}: the "
        "visibility time ended before commit or extend, or the group was moved. They will be delivered again; "
        "poll with a longer visibility, or extend while working",
        lost,
    )
