"""Groups for operators: look at them, stop and move them, deal with what they parked.

    admin = outbox.topics.groups
    admin.list("orders")
    admin.pause("orders", "billing", reason="invoices are being corrected")
    admin.replay("orders", "billing")

Whatever changes something is logged with who and why, told to observers and by NOTIFY as an Alert, and safe to repeat.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from ..drivers.script import Async, Script, Sync, commit, look, twin
from ..errors import AlreadyExists, NotFound, StoreError
from ..facts import Alert, Replayed
from ..op import Op
from ..store.topics import GroupOptions, GroupRow, Lag, MemberRow, Parked, ParkedState, TopicRow
from ..store.topics.life import GroupState, Verb
from .backfill import Backfill, Job, finish
from .home import AtHome, Home, in_its_cluster
from .start import StartFrom

log = logging.getLogger("relaybox")

DRAIN: Final = timedelta(seconds=30)
LOOK_AGAIN: Final = 0.1
REAP_AFTER: Final = timedelta(hours=24)
PAGE: Final = 500
PULLED: Final = GroupOptions(heartbeat_timeout=timedelta(hours=24))  # pull consumers may come and go


@dataclass(frozen=True, slots=True)
class GroupHealth:
    """One group as an operator wants to see it."""

    topic: str
    group: str
    state: GroupState
    reason: str | None
    members: int
    last_heartbeat: datetime
    silent: timedelta
    failures: int
    pending: int
    in_flight: int
    parked: int
    dead: int
    processed: int
    lost: int  # events that were deleted before it had them
    healthy: bool  # active, heard of within its timeout, and somebody is there to do the work


@dataclass(frozen=True, slots=True)
class GroupMetrics:
    """Counts are those of all members there ever were; the rate is that of those running."""

    topic: str
    group: str
    processed: int
    failed: int
    filtered: int
    average_ms: float | None  # what handlers take for an event: of a sample, or by batches. None: not measured yet
    per_second: float
    oldest_pending: timedelta | None
    lag: int


def waited_for(home: Home[Any], topic: TopicRow, group: GroupRow) -> Script[None]:
    """A group's place says what it reads. Where events wait for acks, open ones are told to wait for it too."""
    if topic.topic.tracking in ("bitmap", "acks"):
        yield from Job(home, topic, group, Backfill()).run()


def tell(home: Home[Any], alert: Alert) -> Script[None]:
    """To observers and by NOTIFY. What it tells of has happened, whether or not somebody hears it."""
    home.observers(alert)
    try:
        yield from look(home.store.notify_alert(alert))
    except StoreError as error:
        log.warning("alert %s could not be sent by NOTIFY: %s", alert.name, type(error).__name__)


def turn(home: Home[Any], group: GroupRow, verb: Verb, reason: str, *, backfill: bool = True) -> Script[GroupRow]:
    """One verb of an operator, told, with what follows it: nobody waits for a group that is cancelled, and open
    events wait again for one that was dead."""
    now = home.clock.database_now
    moved = yield from commit(home.store.turn(group, verb, f"{home.who}: {reason}", now()))
    if moved.condition != group.condition:
        back = "resurrected" if group.state == "dead" else "resumed"
        name = f"group_{back if moved.state == 'active' else moved.state}"
        yield from _note(home, name, group, reason)
        home.wake()
    if moved.state == "cancelled":
        yield from _release(home, group.topic)
    elif backfill and moved.state == "active":
        yield from finish(home, moved)
    elif group.state == "dead" and moved.state == "active":
        yield from commit(home.store.cancel_backfill(moved, now()))
    return moved


def _release(home: Home[Any], topic: str) -> Script[int]:
    """Nobody waits for those who are gone."""
    released = 0
    known = yield from look(home.known(topic))
    while count := (yield from commit(home.store.release(known, home.clock.database_now()))):
        released += count
    return released


def _note(home: Home[Any], name: str, group: GroupRow, text: str) -> Script[None]:
    log.info("%s by %s: group %s of topic %s: %s", name, home.who, group.name, group.topic, text)
    yield from tell(home, Alert(name, group.topic, group.name, f"by {home.who}: {text}"))


class _Operator(AtHome):
    """What both twins do, as scripts."""

    def _find(self, topic: str, group: str) -> Script[tuple[TopicRow, GroupRow]]:
        known = yield from look(self._home.known(topic))
        found = yield from look(self._store.group(topic, group))
        if found is None:
            raise NotFound("group", group, f"topic {topic!r} has no group {group!r}; list() shows those there are")
        return known, found

    # -- look -------------------------------------------------------------------------------------

    @twin
    def health(self, topic: str, group: str) -> Script[GroupHealth]:
        return (yield from self._health(*(yield from self._find(topic, group))))

    def _health(self, topic: TopicRow, group: GroupRow) -> Script[GroupHealth]:
        totals = yield from look(self._store.totals(group, self._now))
        lag = yield from self._lag(topic, group)
        return GroupHealth(
            topic=group.topic,
            group=group.name,
            state=group.state,
            reason=group.reason,
            members=totals.members,
            last_heartbeat=group.heartbeat_at,
            silent=totals.silent,
            failures=group.failures,
            pending=lag.events,
            in_flight=lag.taken,
            parked=lag.parked,
            dead=lag.dead,
            processed=totals.processed,
            lost=group.lost,
            healthy=group.state == "active" and totals.members > 0 and totals.silent < group.heartbeat_timeout,
        )

    @twin
    def metrics(self, topic: str, group: str) -> Script[GroupMetrics]:
        known, found = yield from self._find(topic, group)
        totals = yield from look(self._store.totals(found, self._now))
        lag = yield from self._lag(known, found)
        handled = totals.processed + totals.failed - totals.filtered
        return GroupMetrics(
            topic=topic,
            group=group,
            processed=totals.processed,
            failed=totals.failed,
            filtered=totals.filtered,
            average_ms=totals.busy_ms / handled if handled and totals.busy_ms else None,
            per_second=totals.per_second,
            oldest_pending=lag.oldest,
            lag=lag.events,
        )

    @twin
    def members(self, topic: str, group: str) -> Script[list[MemberRow]]:
        _, found = yield from self._find(topic, group)
        return (yield from look(self._store.members(found, self._now)))

    @twin
    def lag(self, topic: str, group: str) -> Script[Lag]:
        return (yield from self._lag(*(yield from self._find(topic, group))))

    def _lag(self, topic: TopicRow, group: GroupRow) -> Script[Lag]:
        yield from look(in_its_cluster(self._store, topic))
        return (yield from look(self._store.lag(topic, group, self._now)))

    # -- make and end -----------------------------------------------------------------------------

    @twin
    def create(
        self,
        topic: str,
        group: str,
        start: StartFrom | None = None,
        *,
        options: GroupOptions = PULLED,
        if_not_exists: bool = False,
    ) -> Script[GroupRow]:
        """From now on, unless `start` says otherwise; the place is fixed here, not by the first poll."""
        start = start or StartFrom.latest()
        known = yield from look(self._home.known(topic))
        if not if_not_exists:
            there = yield from look(self._store.group(topic, group))
            if there is not None and there.state != "cancelled":
                raise AlreadyExists(
                    "group",
                    group,
                    f"topic {topic!r} has a group {group!r} already; pass if_not_exists=True to use it as it is",
                )
        if known.topic.tracking == "rows" and options is PULLED:
            options = replace(options, ordered=False)
        found, new = yield from commit(self._store.subscribe(known, group, start.start, options, self._now))
        if new and start.backfill:
            yield from waited_for(self._home, known, found)
        return found

    @twin
    def pause(self, topic: str, group: str, *, reason: str = "") -> Script[GroupRow]:
        """Its members stay and take nothing more; what is written is kept for it, up to `max_retention`."""
        return self._turn(topic, group, "pause", reason)

    @twin
    def resume(self, topic: str, group: str, *, reason: str = "") -> Script[GroupRow]:
        return self._turn(topic, group, "resume", reason)

    @twin
    def cancel(self, topic: str, group: str, *, reason: str = "") -> Script[GroupRow]:
        """Unsubscribe for good, at once: whatever its members hold is lost to them, and nothing waits for it."""
        return self._turn(topic, group, "cancel", reason)

    @twin
    def resurrect(self, topic: str, group: str, *, backfill: bool = True, reason: str = "") -> Script[GroupRow]:
        """Also one that stalled. It goes on where it stood, with what is still kept."""
        return self._turn(topic, group, "resurrect", reason, backfill=backfill)

    def _turn(self, topic: str, group: str, verb: Verb, reason: str, *, backfill: bool = True) -> Script[GroupRow]:
        _, found = yield from self._find(topic, group)
        return (yield from turn(self._home, found, verb, reason, backfill=backfill))

    @twin
    def remove(self, topic: str, group: str, *, timeout: timedelta = DRAIN, reason: str = "") -> Script[bool]:
        """Let members finish what they hold, cancel, release, and delete it unless events still name its bit: then
        cleanup does. False: there is no such group."""
        yield from look(self._home.known(topic))
        found = yield from look(self._store.group(topic, group))
        if found is None:
            return False
        was_there = found.state != "cancelled"
        if found.state == "active":  # each step is committed before the next: members see it and finish
            found = yield from turn(self._home, found, "pause", f"to be removed: {reason}")
        until = self._clock.monotonic() + timeout.total_seconds()
        while found.state == "paused" and self._clock.monotonic() < until:
            if not (yield from look(self._store.totals(found, self._now))).holding:
                break
            yield LOOK_AGAIN
        found = yield from turn(self._home, found, "cancel", reason)
        released = yield from _release(self._home, topic)
        yield from commit(self._store.forget(found))
        if was_there:
            text = f"{reason}; {released} events no longer wait for it"
            yield from _note(self._home, "group_removed", found, text)
        return was_there

    # -- move and mend ----------------------------------------------------------------------------

    @twin
    def seek(self, topic: str, group: str, to: StartFrom, *, reason: str = "") -> Script[None]:
        known, found = yield from self._find(topic, group)
        yield from commit(self._store.seek(known, found, to.start, self._now))
        yield from _note(self._home, "consumer_seeked", found, f"to {to.start.kind}: {reason}")
        self._home.wake()
        after: int | None = 0
        while known.topic.tracking in ("bitmap", "acks") and after is not None:
            after = yield from commit(self._store.catch_up(known, found, after, self._now))

    @twin
    def parked(
        self,
        topic: str,
        group: str,
        *,
        state: ParkedState | None = None,
        seqs: Sequence[int] | None = None,
        after: int = 0,
        limit: int = 100,
    ) -> Script[list[Parked]]:
        """What failed (retry), waits behind it (held), or was given up (dead), by number."""
        known, found = yield from self._find(topic, group)
        return (yield from look(self._parked(known, found, state, seqs, after, limit)))

    def _parked(
        self,
        topic: TopicRow,
        group: GroupRow,
        state: ParkedState | None,
        seqs: Sequence[int] | None,
        after: int,
        limit: int,
    ) -> Op[list[Parked]]:
        if topic.topic.tracking == "rows":
            return self._store.parked_rows(topic, state, seqs, after, limit)
        return self._store.parked(group, state=state, seqs=seqs, after=after, limit=limit)

    @twin
    def replay(self, topic: str, group: str, seqs: Iterable[int] | None = None, *, reason: str = "") -> Script[int]:
        """Dead ones, with fresh attempts; None: all there are now."""
        known, found = yield from self._find(topic, group)
        count = 0
        for page in (yield from self._dead(known, found, seqs)):
            if known.topic.tracking == "rows":
                replayed = self._store.replay_rows(known, page, self._now)
            else:
                replayed = self._store.replay_parked(found, page, self._now)
            count += len((yield from commit(replayed)))
        if count:
            yield from _note(self._home, "parked_replayed", found, f"{count} events: {reason}")
            self._home.observers(Replayed(count))
            self._home.wake()
        return count

    @twin
    def skip(self, topic: str, group: str, seqs: Sequence[int], *, reason: str = "") -> Script[int]:
        """Give parked events up for good; what waits behind them goes on."""
        known, found = yield from self._find(topic, group)
        if known.topic.tracking == "rows":
            skipped = self._store.skip_rows(known, seqs)
        else:
            skipped = self._store.skip_parked(known, found, seqs, self._now)
        count = len((yield from commit(skipped)))
        if count:
            yield from _note(self._home, "parked_skipped", found, f"{count} events: {reason}")
            self._home.wake()
        return count

    def _dead(self, topic: TopicRow, group: GroupRow, seqs: Iterable[int] | None) -> Script[list[list[int]]]:
        """Those named, or all that are dead now: what dies again meanwhile is not among them."""
        if seqs is not None:
            return [list(seqs)]
        pages: list[list[int]] = []
        after = 0
        while True:
            found = yield from look(self._parked(topic, group, "dead", None, after, PAGE))
            numbers = [one.event.seq for one in found if one.event.seq is not None]
            if not numbers:
                return pages
            pages.append(numbers)
            after = numbers[-1]

    @twin
    def force_complete(self, topic: str, older_than: timedelta, *, reason: str = "") -> Script[int]:
        """Call events complete that groups still wait for: they may be deleted before those groups have seen them."""
        known = yield from look(self._home.known(topic))
        before = yield from look(self._store.time_ago(older_than, self._now))
        total = 0
        while count := (yield from commit(self._store.force_complete(known, before, self._now))):
            total += count
        if total:
            text = (
                f"{total} events older than {older_than} were called complete although groups wait for them: {reason}"
            )
            log.warning("%s: topic %s: %s", self._home.who, topic, text)
            yield from tell(self._home, Alert("force_completed", topic, text=text))
        return total

    @twin
    def reap(self, silence: timedelta = REAP_AFTER) -> Script[list[MemberRow]]:
        """Remove members silent for longer."""
        reaped = yield from commit(self._store.reap_members(silence, self._now))
        for member in reaped:
            text = f"{member.name} was silent for {member.silent}"
            yield from tell(self._home, Alert("consumer_reaped", member.topic, member.group, text))
        return reaped

    @twin
    def list(self, topic: str | None = None) -> Script[list[GroupHealth]]:
        healths = []
        for group in (yield from look(self._store.groups(topic))):
            known = yield from look(self._home.known(group.topic))
            healths.append((yield from self._health(known, group)))
        return healths


class GroupAdmin(_Operator, Sync):
    """`outbox.topics.groups`."""


class AsyncGroupAdmin(_Operator, Async):
    """The same in an event loop."""
