"""What happens to events, as typed facts that observers subscribe to.

One fact per batch where a batch is one round trip, one per event where somebody may be woken by it. Facts
carry ids, types and counts, never payloads or headers. An observer that raises is logged and skipped: seeing
must not break delivering.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar, Literal, TypeVar, dataclass_transform

from .printable import log

_F = TypeVar("_F", bound="Fact")


@dataclass(frozen=True, slots=True)
class Fact:
    """Base of all facts; `stage` is the word the architecture uses for the place where it happened."""

    stage: ClassVar[str] = ""


@dataclass_transform(frozen_default=True)
def _at(stage: str) -> Callable[[type[_F]], type[_F]]:
    """Makes a class a fact of this stage."""

    def made(kind: type[_F]) -> type[_F]:
        kind.stage = stage
        return dataclass(frozen=True, slots=True)(kind)

    return made


@dataclass(frozen=True, slots=True)
class _Counted(Fact):
    count: int


@dataclass(frozen=True, slots=True)
class _Failed(Fact):
    event_id: str
    event_type: str
    attempts: int
    delay: timedelta
    error: str


@_at("write")
class Written(_Counted):
    """The INSERT ran; the caller's transaction is still open."""


@_at("write")
class HotEnqueued(_Counted):
    """Committed and handed to this process's hot queue."""


@_at("write")
class HotDropped(_Counted):
    """Committed, but the hot queue was full: the poller will find the rows."""


@_at("claim")
class Claimed(Fact):
    """Rows were claimed and put into the cold queue."""

    count: int
    took: float


@_at("claim")
class KeysChosen(Fact):
    """A claim by advisory or row locks wanted `tried` keys and got `taken`; others were faster with the rest."""

    tried: int
    taken: int


@_at("settle")
class Delivered(_Counted):
    """Listeners finished these and the database agreed."""


@_at("settle")
class Retried(_Failed):
    """A delivery failed; the event is tried again after `delay`."""


@_at("settle")
class Stuck(_Failed):
    """An ordered event has used up its attempts and is tried on (`block`): its key waits behind it."""


@_at("deliver")
class CutOff(Fact):
    """Handlers were cancelled: they ran longer than the setting named in `limit`."""

    count: int
    limit: str


@_at("settle")
class Died(Fact):
    """An event became a dead letter."""

    event_id: str
    event_type: str
    attempts: int
    error: str
    undecodable: bool = False


@_at("settle")
class ClaimLost(_Counted):
    """A settle or renewal found the claim gone: another instance has the event, or had it."""


@_at("claim")
class Released(_Counted):
    """Given back undelivered, at shutdown or on refusal."""


@_at("claim")
class TakenOver(Fact):
    """Dead instances were found; their claimed events are free."""

    instances: int
    events: int


@_at("claim")
class Depths(Fact):
    """Every second: queue depths here, and the age of the oldest due event (None: could not be measured)."""

    hot: int
    cold: int
    oldest: timedelta | None


@_at("purge")
class Purged(_Counted):
    """So many events that were finished and old were deleted."""


@_at("settle")
class Replayed(_Counted):
    """So many dead letters were made due again."""


@_at("runtime")
class LoopFailed(Fact):
    """A background loop met an error, logged it and goes on."""

    loop: str
    error: str


@_at("runtime")
class TaskEnded(Fact):
    """A background task ended although it should not; it is replaced after a moment."""

    task: str
    error: str


@_at("runtime")
class WakeUps(Fact):
    """How this process learns of new events: `listen`, or `poll` with the reason."""

    mode: str
    reason: str


@_at("deliver")
class Strayed(Fact):
    """A synchronous listener ran out of its time, or one that had has come back: so many threads hang now."""

    threads: int


@_at("deliver")
class Published(Fact):
    """A sink acknowledged these in one publish; `took` is its duration in seconds."""

    sink: str
    count: int
    took: float


@_at("deliver")
class CircuitChanged(Fact):
    """The broker went away (open: nothing is sent, no attempt is counted) or is back, with the reason."""

    sink: str
    open: bool
    reason: str


@_at("deliver")
class DestinationChanged(Fact):
    """Of a sink with many destinations one went away, became slow, or is well again; the others are not concerned.
    `destination` is its name, without secrets."""

    sink: str
    destination: str
    state: Literal["well", "slow", "away"]
    reason: str


@_at("deliver")
class CallsUnderWay(Fact):
    """Every second, of a sink with many destinations: calls under way, how many of them to destinations that are slow
    or do not answer, and events that wait here for theirs; how many destinations are slow now, and how many away."""

    sink: str
    under_way: int
    slow: int
    waiting: int
    slow_destinations: int
    away_destinations: int


@_at("write")
class Ingested(Fact):
    """A batch of a broker's messages was stored in an inbox, in `took` seconds. `malformed` ones, which are among the
    accepted, cannot be read: they are dead letters."""

    source: str
    accepted: int
    duplicates: int
    malformed: int
    took: float


@_at("write")
class Accepted(Fact):
    """An inbox was given messages: so many were new, so many were there already. With a handle of the caller's, its
    transaction is still open."""

    inbox: str
    count: int
    duplicates: int


@_at("deliver")
class Replicated(Fact):
    """A table that follows a feed was given a delta, or all rows (`copied`). With a handle of the caller's, its
    transaction is still open."""

    table: str
    feed: str
    inserted: int
    deleted: int
    copied: bool


@_at("deliver")
class ReplicaLag(Fact):
    """At each look at the source: deltas that the table does not have. None: it is to be copied."""

    table: str
    behind: int | None


@_at("operate")
class Alert(Fact):
    """Somebody should look: a group died or was moved, a consumer is silent, storage runs full … `name` says which."""

    name: str
    topic: str = ""
    group: str = ""
    text: str = ""
    over: bool = False  # it was so, and is no more


@_at("purge")
class Cleaned(Fact):
    """One run of the cleanup over all topics, and the partitions dropped since the last one."""

    events: int
    partitions: int
    took: float


@_at("purge")
class EventsLost(Fact):
    """Events of a topic that a group was still to have, and cannot get any more; the alert `events_lost` says why."""

    topic: str
    group: str
    events: int


@_at("operate")
class Detected(Fact):
    """One look for dead groups: how many were found, and from how many open events dead ones were taken off."""

    groups: int
    events: int


@_at("operate")
class Standing(Fact):
    """Every minute: age of the oldest open transaction that may have written events (only its own are held back), and
    events that could be deleted and are not. None: not known."""

    oldest: timedelta | None
    backlog: int | None


@_at("refresh")
class FeedRefreshed(Fact):
    """A feed was brought up to date, in `took` seconds; with a handle of the caller's its transaction is still open.
    `how` is full or differential."""

    feed: str
    how: str
    inserted: int
    deleted: int
    took: float


@_at("refresh")
class FeedFailed(Fact):
    """A refresh in a transaction of its own failed, the `failures`-th in a row; table and stream are as they were.
    `error` quotes no rows."""

    feed: str
    failures: int
    error: str


@_at("operate")
class FeedStanding(Fact):
    """Every minute, of each feed: how long ago it was last refreshed, how long a refresh took that had something to do,
    changed rows that wait for the next, and bytes that are kept for its readers. None: not known."""

    feed: str
    age: timedelta | None
    took: timedelta | None
    waiting: int | None
    kept: int | None


@_at("write")
class OverCap(Fact):
    """More waits for a tenant than `tenants.max_waiting`: so many events were refused, or marked."""

    count: int
    tenant: str
    refused: bool


@_at("write")
class TenantsWaiting(Fact):
    """A writer has looked how much waits for a tenant. Of those it has looked at a moment ago: the `most` that waits
    for one, and how many are `full`."""

    most: int
    full: int


@_at("operate")
class Administered(Fact):
    """An operator changed something, and the change is committed. `changed` says how many, where that means something.
    The same is in the audit table."""

    verb: str
    what: str
    changed: int | None
    actor: str
    reason: str


Observer = Callable[[Fact], None]


class Observers:
    """The subscribers of one outbox. Falsy when nobody watches, so hot paths can skip making facts.

    Dead letters, drops and what operators change are logged even then: nobody should learn of them from a customer.
    """

    __slots__ = ("_all", "_logged")

    def __init__(self, observers: Sequence[Observer] = ()) -> None:
        self._all = tuple(observers)
        self._logged = any(getattr(observer, "writes_log", False) for observer in self._all)

    def __bool__(self) -> bool:
        return bool(self._all)

    def joined(self, more: Sequence[Observer]) -> Observers:
        """These observers and more, each once."""
        return Observers([*self._all, *(observer for observer in more if observer not in self._all)])

    def __call__(self, fact: Fact) -> None:
        if not self._logged:
            _alarm(fact)
        for observer in self._all:
            try:
                observer(fact)
            except Exception:
                log.exception("observer %r failed on %s", observer, type(fact).__name__)


OURS = "Unroutable:"  # whose text is of names, and says what to do


def _alarm(fact: Fact) -> None:
    """The type of an error only: its text may quote the payload, and is kept with the dead letter."""
    if isinstance(fact, Died):
        level = logging.CRITICAL if fact.undecodable else logging.ERROR
        error = fact.error if fact.error.startswith(OURS) else fact.error.partition(":")[0]
        log.log(level, "event %s (%s) died at attempt %d: %s", fact.event_id, fact.event_type, fact.attempts, error)
    elif isinstance(fact, Stuck):
        error, pause = fact.error.partition(":")[0], fact.delay.total_seconds()
        log.error(
            "event %s (%s) failed at attempt %d, beyond its limit, and its key waits for it: %s; next try in %g s",
            fact.event_id, fact.event_type, fact.attempts, error, pause,
        )  # fmt: skip
    elif isinstance(fact, FeedFailed):
        log.warning("feed %s could not be refreshed, %d in a row: %s", fact.feed, fact.failures, fact.error)
    elif isinstance(fact, HotDropped):
        log.warning("the hot queue is full: %d events are left to the poller", fact.count)
    elif isinstance(fact, Alert):
        word = f"{fact.name} is over" if fact.over else fact.name
        log.warning("%s (topic %s, group %s): %s", word, fact.topic or "-", fact.group or "-", fact.text)
    elif isinstance(fact, Administered):
        many = "" if fact.changed is None else f" ({fact.changed})"
        log.info("%s %r%s by %r, reason %r", fact.verb, fact.what, many, fact.actor, fact.reason)
