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
from typing import Any, Final, TypeVar

from ..drivers.spi import AsyncRunner, Runner
from ..errors import ConsumerGroupAlreadyExists, ConsumerGroupNotFound, StoreError
from ..lifecycle import Alert, Replayed
from ..runtime.presence import default_name
from ..store.life import GroupState, Verb
from ..store.topics import (
    GroupOptions,
    GroupRow,
    Lag,
    MemberRow,
    Parked,
    ParkedState,
    TopicRow,
)
from .backfill import Backfill, Job, finish
from .home import Home, in_its_cluster
from .script import Plain, Script, aplay, play
from .start import StartFrom

log = logging.getLogger("relaybox")
T = TypeVar("T")
Members = list[MemberRow]
ParkedEvents = list[Parked]

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
        yield Plain(home.store.notify_alert(alert))
    except StoreError as error:
        log.warning("alert %s could not be sent by NOTIFY: %s", alert.name, type(error).__name__)


class Operator:
    """What both twins do, as scripts."""

    def __init__(self, home: Home[Any]) -> None:
        self.home = home
        self.store = home.store
        self.who = home.settings.owner or default_name()

    @property
    def now(self) -> datetime | None:
        return self.home.clock.database_now()

    def find(self, topic: str, group: str) -> Script[tuple[TopicRow, GroupRow]]:
        known: TopicRow = yield Plain(self.home.known(topic))
        found: GroupRow | None = yield Plain(self.store.group(topic, group))
        if found is None:
            raise ConsumerGroupNotFound(f"topic {topic!r} has no group {group!r}; list() shows those there are")
        return known, found

    # -- look -------------------------------------------------------------------------------------

    def overview(self, topic: str | None) -> Script[list[GroupHealth]]:
        groups: list[GroupRow] = yield Plain(self.store.groups(topic))
        healths = []
        for group in groups:
            known = yield Plain(self.home.known(group.topic))
            healths.append((yield from self._health(known, group)))
        return healths

    def health(self, topic: str, group: str) -> Script[GroupHealth]:
        known, found = yield from self.find(topic, group)
        return (yield from self._health(known, found))

    def _health(self, topic: TopicRow, group: GroupRow) -> Script[GroupHealth]:
        totals = yield Plain(self.store.totals(group, self.now))
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

    def metrics(self, topic: str, group: str) -> Script[GroupMetrics]:
        known, found = yield from self.find(topic, group)
        totals = yield Plain(self.store.totals(found, self.now))
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

    def members(self, topic: str, group: str) -> Script[list[MemberRow]]:
        _, found = yield from self.find(topic, group)
        members: list[MemberRow] = yield Plain(self.store.members(found, self.now))
        return members

    def lag(self, topic: str, group: str) -> Script[Lag]:
        known, found = yield from self.find(topic, group)
        return (yield from self._lag(known, found))

    def _lag(self, topic: TopicRow, group: GroupRow) -> Script[Lag]:
        yield Plain(in_its_cluster(self.store, topic))
        lag: Lag = yield Plain(self.store.lag(topic, group, self.now))
        return lag

    # -- make and end -----------------------------------------------------------------------------

    def create(
        self, topic: str, group: str, start: StartFrom, options: GroupOptions, if_not_exists: bool
    ) -> Script[GroupRow]:
        known: TopicRow = yield Plain(self.home.known(topic))
        if not if_not_exists:
            there: GroupRow | None = yield Plain(self.store.group(topic, group))
            if there is not None and there.state != "cancelled":
                raise ConsumerGroupAlreadyExists(topic, group)
        if known.topic.tracking == "rows" and options is PULLED:
            options = replace(options, ordered=False)
        found, new = yield self.store.subscribe(known, group, start.start, options, self.now)
        if new and start.backfill:
            yield from waited_for(self.home, known, found)
        return found  # type: ignore[no-any-return]

    def pause(self, topic: str, group: str, reason: str) -> Script[GroupRow]:
        _, found = yield from self.find(topic, group)
        return (yield from self.turn(found, "pause", reason))

    def resume(self, topic: str, group: str, reason: str) -> Script[GroupRow]:
        _, found = yield from self.find(topic, group)
        return (yield from self.turn(found, "resume", reason))

    def cancel(self, topic: str, group: str, reason: str) -> Script[GroupRow]:
        _, found = yield from self.find(topic, group)
        return (yield from self.turn(found, "cancel", reason))

    def resurrect(self, topic: str, group: str, backfill: bool, reason: str) -> Script[GroupRow]:
        _, found = yield from self.find(topic, group)
        return (yield from self.turn(found, "resurrect", reason, backfill=backfill))

    def turn(self, group: GroupRow, verb: Verb, reason: str, *, backfill: bool = True) -> Script[GroupRow]:
        """One verb of an operator, told, with what follows it: nobody waits for a group that is cancelled, and open
        events wait again for one that was dead."""
        moved: GroupRow = yield self.store.turn(group, verb, f"{self.who}: {reason}", self.now)
        if moved.condition != group.condition:
            back = "resurrected" if group.state == "dead" else "resumed"
            name = f"group_{back if moved.state == 'active' else moved.state}"
            yield from self._note(name, group, reason)
            self.home.wake()
        if moved.state == "cancelled":
            yield from self._release(group.topic)
        elif backfill and moved.state == "active":
            yield from finish(self.home, moved)
        elif group.state == "dead" and moved.state == "active":
            yield self.store.cancel_backfill(moved, self.now)
        return moved

    def _release(self, topic: str) -> Script[int]:
        """Nobody waits for those who are gone."""
        released = 0
        known = yield Plain(self.home.known(topic))
        while count := (yield self.store.release(known, self.now)):
            released += count
        return released

    def remove(self, topic: str, group: str, timeout: timedelta, reason: str) -> Script[bool]:
        """Each step is committed before the next: members see it, finish what they hold and stop."""
        yield Plain(self.home.known(topic))
        found: GroupRow | None = yield Plain(self.store.group(topic, group))
        if found is None:
            return False
        was_there = found.state != "cancelled"
        if found.state == "active":
            found = yield from self.turn(found, "pause", f"to be removed: {reason}")
        until = self.home.clock.monotonic() + timeout.total_seconds()
        while found.state == "paused" and self.home.clock.monotonic() < until:
            if not (yield Plain(self.store.totals(found, self.now))).holding:
                break
            yield LOOK_AGAIN
        found = yield from self.turn(found, "cancel", reason)
        released = yield from self._release(topic)
        yield self.store.forget(found)
        if was_there:
            yield from self._note("group_removed", found, f"{reason}; {released} events no longer wait for it")
        return was_there

    # -- move and mend ----------------------------------------------------------------------------

    def seek(self, topic: str, group: str, to: StartFrom, reason: str) -> Script[None]:
        known, found = yield from self.find(topic, group)
        yield self.store.seek(known, found, to.start, self.now)
        yield from self._note("consumer_seeked", found, f"to {to.start.kind}: {reason}")
        self.home.wake()
        after: int | None = 0
        while known.topic.tracking in ("bitmap", "acks") and after is not None:
            after = yield self.store.catch_up(known, found, after, self.now)

    def parked(
        self, topic: str, group: str, state: ParkedState | None, seqs: Sequence[int] | None, after: int, limit: int
    ) -> Script[list[Parked]]:
        known, found = yield from self.find(topic, group)
        return (yield from self._parked(known, found, state, seqs, after, limit))

    def _parked(
        self,
        topic: TopicRow,
        group: GroupRow,
        state: ParkedState | None,
        seqs: Sequence[int] | None,
        after: int,
        limit: int,
    ) -> Script[list[Parked]]:
        parked: list[Parked]
        if topic.topic.tracking == "rows":
            parked = yield Plain(self.store.parked_rows(topic, state, seqs, after, limit))
        else:
            parked = yield Plain(self.store.parked(group, state=state, seqs=seqs, after=after, limit=limit))
        return parked

    def replay(self, topic: str, group: str, seqs: Iterable[int] | None, reason: str) -> Script[int]:
        known, found = yield from self.find(topic, group)
        count = 0
        for page in (yield from self._dead(known, found, seqs)):
            if known.topic.tracking == "rows":
                count += len((yield self.store.replay_rows(known, page, self.now)))
            else:
                count += len((yield self.store.replay_parked(found, page, self.now)))
        if count:
            yield from self._note("parked_replayed", found, f"{count} events: {reason}")
            self.home.observers(Replayed(count))
            self.home.wake()
        return count

    def skip(self, topic: str, group: str, seqs: Sequence[int], reason: str) -> Script[int]:
        known, found = yield from self.find(topic, group)
        if known.topic.tracking == "rows":
            count = len((yield self.store.skip_rows(known, seqs)))
        else:
            count = len((yield self.store.skip_parked(known, found, seqs, self.now)))
        if count:
            yield from self._note("parked_skipped", found, f"{count} events: {reason}")
            self.home.wake()
        return count

    def _dead(self, topic: TopicRow, group: GroupRow, seqs: Iterable[int] | None) -> Script[list[list[int]]]:
        """Those named, or all that are dead now: what dies again meanwhile is not among them."""
        if seqs is not None:
            return [list(seqs)]
        pages: list[list[int]] = []
        after = 0
        while True:
            found = yield from self._parked(topic, group, "dead", None, after, PAGE)
            numbers = [one.event.seq for one in found if one.event.seq is not None]
            if not numbers:
                return pages
            pages.append(numbers)
            after = numbers[-1]

    def force_complete(self, topic: str, older_than: timedelta, reason: str) -> Script[int]:
        known: TopicRow = yield Plain(self.home.known(topic))
        before = yield Plain(self.store.time_ago(older_than, self.now))
        total = 0
        while count := (yield self.store.force_complete(known, before, self.now)):
            total += count
        if total:
            text = (
                f"{total} events older than {older_than} were called complete although groups wait for them: {reason}"
            )
            log.warning("%s: topic %s: %s", self.who, topic, text)
            yield from tell(self.home, Alert("force_completed", topic, text=text))
        return total

    def reap(self, silence: timedelta) -> Script[list[MemberRow]]:
        reaped: list[MemberRow] = yield self.store.reap_members(silence, self.now)
        for member in reaped:
            text = f"{member.name} was silent for {member.silent}"
            yield from tell(self.home, Alert("consumer_reaped", member.topic, member.group, text))
        return reaped

    def _note(self, name: str, group: GroupRow, text: str) -> Script[None]:
        log.info("%s by %s: group %s of topic %s: %s", name, self.who, group.name, group.topic, text)
        yield from tell(self.home, Alert(name, group.topic, group.name, f"by {self.who}: {text}"))


class GroupAdmin:
    """`outbox.topics.groups`."""

    def __init__(self, home: Home[Runner]) -> None:
        self._db, self._admin = home.db, Operator(home)

    def create(
        self,
        topic: str,
        group: str,
        start: StartFrom | None = None,
        *,
        options: GroupOptions = PULLED,
        if_not_exists: bool = False,
    ) -> GroupRow:
        """From now on, unless `start` says otherwise; the place is fixed here, not by the first poll."""
        script = self._admin.create(topic, group, start or StartFrom.latest(), options, if_not_exists)
        return play(script, self._db)

    def list(self, topic: str | None = None) -> list[GroupHealth]:
        return play(self._admin.overview(topic), self._db)

    def health(self, topic: str, group: str) -> GroupHealth:
        return play(self._admin.health(topic, group), self._db)

    def metrics(self, topic: str, group: str) -> GroupMetrics:
        return play(self._admin.metrics(topic, group), self._db)

    def members(self, topic: str, group: str) -> Members:
        return play(self._admin.members(topic, group), self._db)

    def lag(self, topic: str, group: str) -> Lag:
        return play(self._admin.lag(topic, group), self._db)

    def pause(self, topic: str, group: str, *, reason: str = "") -> GroupRow:
        """Its members stay and take nothing more; what is written is kept for it, up to `max_retention`."""
        return play(self._admin.pause(topic, group, reason), self._db)

    def resume(self, topic: str, group: str, *, reason: str = "") -> GroupRow:
        return play(self._admin.resume(topic, group, reason), self._db)

    def cancel(self, topic: str, group: str, *, reason: str = "") -> GroupRow:
        """Unsubscribe for good, at once: whatever its members hold is lost to them, and nothing waits for it."""
        return play(self._admin.cancel(topic, group, reason), self._db)

    def resurrect(self, topic: str, group: str, *, backfill: bool = True, reason: str = "") -> GroupRow:
        """Also one that stalled. It goes on where it stood, with what is still kept."""
        return play(self._admin.resurrect(topic, group, backfill, reason), self._db)

    def remove(self, topic: str, group: str, *, timeout: timedelta = DRAIN, reason: str = "") -> bool:
        """Let members finish what they hold, cancel, release, and delete it unless events still name its bit: then
        cleanup does. False: there is no such group."""
        return play(self._admin.remove(topic, group, timeout, reason), self._db)

    def seek(self, topic: str, group: str, to: StartFrom, *, reason: str = "") -> None:
        play(self._admin.seek(topic, group, to, reason), self._db)

    def parked(
        self,
        topic: str,
        group: str,
        *,
        state: ParkedState | None = None,
        seqs: Sequence[int] | None = None,
        after: int = 0,
        limit: int = 100,
    ) -> ParkedEvents:
        """What failed (retry), waits behind it (held), or was given up (dead), by number."""
        return play(self._admin.parked(topic, group, state, seqs, after, limit), self._db)

    def replay(self, topic: str, group: str, seqs: Iterable[int] | None = None, *, reason: str = "") -> int:
        """Dead ones, with fresh attempts; None: all there are now."""
        return play(self._admin.replay(topic, group, seqs, reason), self._db)

    def skip(self, topic: str, group: str, seqs: Sequence[int], *, reason: str = "") -> int:
        """Give parked events up for good; what waits behind them goes on."""
        return play(self._admin.skip(topic, group, seqs, reason), self._db)

    def force_complete(self, topic: str, older_than: timedelta, *, reason: str = "") -> int:
        """Call events complete that groups still wait for: they may be deleted before those groups have seen them."""
        return play(self._admin.force_complete(topic, older_than, reason), self._db)

    def reap(self, silence: timedelta = REAP_AFTER) -> Members:
        """Remove members silent for longer."""
        return play(self._admin.reap(silence), self._db)


class AsyncGroupAdmin:
    """The same in an event loop."""

    def __init__(self, home: Home[AsyncRunner]) -> None:
        self._db, self._admin = home.db, Operator(home)

    async def _play(self, script: Script[T]) -> T:
        return await aplay(script, self._db, self._admin.home.clock)

    async def create(
        self,
        topic: str,
        group: str,
        start: StartFrom | None = None,
        *,
        options: GroupOptions = PULLED,
        if_not_exists: bool = False,
    ) -> GroupRow:
        script = self._admin.create(topic, group, start or StartFrom.latest(), options, if_not_exists)
        return await self._play(script)

    async def list(self, topic: str | None = None) -> list[GroupHealth]:
        return await self._play(self._admin.overview(topic))

    async def health(self, topic: str, group: str) -> GroupHealth:
        return await self._play(self._admin.health(topic, group))

    async def metrics(self, topic: str, group: str) -> GroupMetrics:
        return await self._play(self._admin.metrics(topic, group))

    async def members(self, topic: str, group: str) -> Members:
        return await self._play(self._admin.members(topic, group))

    async def lag(self, topic: str, group: str) -> Lag:
        return await self._play(self._admin.lag(topic, group))

    async def pause(self, topic: str, group: str, *, reason: str = "") -> GroupRow:
        return await self._play(self._admin.pause(topic, group, reason))

    async def resume(self, topic: str, group: str, *, reason: str = "") -> GroupRow:
        return await self._play(self._admin.resume(topic, group, reason))

    async def cancel(self, topic: str, group: str, *, reason: str = "") -> GroupRow:
        return await self._play(self._admin.cancel(topic, group, reason))

    async def resurrect(self, topic: str, group: str, *, backfill: bool = True, reason: str = "") -> GroupRow:
        return await self._play(self._admin.resurrect(topic, group, backfill, reason))

    async def remove(self, topic: str, group: str, *, timeout: timedelta = DRAIN, reason: str = "") -> bool:
        return await self._play(self._admin.remove(topic, group, timeout, reason))

    async def seek(self, topic: str, group: str, to: StartFrom, *, reason: str = "") -> None:
        await self._play(self._admin.seek(topic, group, to, reason))

    async def parked(
        self,
        topic: str,
        group: str,
        *,
        state: ParkedState | None = None,
        seqs: Sequence[int] | None = None,
        after: int = 0,
        limit: int = 100,
    ) -> ParkedEvents:
        return await self._play(self._admin.parked(topic, group, state, seqs, after, limit))

    async def replay(self, topic: str, group: str, seqs: Iterable[int] | None = None, *, reason: str = "") -> int:
        return await self._play(self._admin.replay(topic, group, seqs, reason))

    async def skip(self, topic: str, group: str, seqs: Sequence[int], *, reason: str = "") -> int:
        return await self._play(self._admin.skip(topic, group, seqs, reason))

    async def force_complete(self, topic: str, older_than: timedelta, *, reason: str = "") -> int:
        return await self._play(self._admin.force_complete(topic, older_than, reason))

    async def reap(self, silence: timedelta = REAP_AFTER) -> Members:
        return await self._play(self._admin.reap(silence))
