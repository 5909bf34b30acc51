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
from typing import ClassVar

log = logging.getLogger("relaybox")


@dataclass(frozen=True, slots=True)
class Fact:
    """Base of all facts; `stage` is the word the architecture uses for the place where it happened."""

    stage: ClassVar[str] = ""


@dataclass(frozen=True, slots=True)
class Written(Fact):
    """The INSERT ran; the caller's transaction is still open."""

    stage: ClassVar[str] = "write"
    count: int


@dataclass(frozen=True, slots=True)
class HotEnqueued(Fact):
    """Committed and handed to this process's hot queue."""

    stage: ClassVar[str] = "write"
    count: int


@dataclass(frozen=True, slots=True)
class HotDropped(Fact):
    """Committed, but the hot queue was full: the poller will find the rows."""

    stage: ClassVar[str] = "write"
    count: int


@dataclass(frozen=True, slots=True)
class Claimed(Fact):
    """Rows were claimed and put into the cold queue."""

    stage: ClassVar[str] = "claim"
    count: int
    took: float


@dataclass(frozen=True, slots=True)
class KeysChosen(Fact):
    """A claim by advisory or row locks wanted `tried` keys and got `taken`; others were faster with the rest."""

    stage: ClassVar[str] = "claim"
    tried: int
    taken: int


@dataclass(frozen=True, slots=True)
class Delivered(Fact):
    """Listeners finished these and the database agreed."""

    stage: ClassVar[str] = "settle"
    count: int


@dataclass(frozen=True, slots=True)
class Retried(Fact):
    """A delivery failed; the event is tried again after `delay`."""

    stage: ClassVar[str] = "settle"
    event_id: str
    event_type: str
    attempts: int
    delay: timedelta
    error: str


@dataclass(frozen=True, slots=True)
class Stuck(Fact):
    """An ordered event has used up its attempts and is tried on (`block`): its key waits behind it."""

    stage: ClassVar[str] = "settle"
    event_id: str
    event_type: str
    attempts: int
    delay: timedelta
    error: str


@dataclass(frozen=True, slots=True)
class CutOff(Fact):
    """Handlers were cancelled: they ran longer than the setting named in `limit`."""

    stage: ClassVar[str] = "deliver"
    count: int
    limit: str


@dataclass(frozen=True, slots=True)
class Died(Fact):
    """An event became a dead letter."""

    stage: ClassVar[str] = "settle"
    event_id: str
    event_type: str
    attempts: int
    error: str
    undecodable: bool = False


@dataclass(frozen=True, slots=True)
class ClaimLost(Fact):
    """A settle or renewal found the claim gone: another instance has the event, or had it."""

    stage: ClassVar[str] = "settle"
    count: int


@dataclass(frozen=True, slots=True)
class Released(Fact):
    """Given back undelivered, at shutdown or on refusal."""

    stage: ClassVar[str] = "claim"
    count: int


@dataclass(frozen=True, slots=True)
class TakenOver(Fact):
    """Dead instances were found; their claimed events are free."""

    stage: ClassVar[str] = "claim"
    instances: int
    events: int


@dataclass(frozen=True, slots=True)
class Depths(Fact):
    """Every second: queue depths here, and the age of the oldest due event (None: could not be measured)."""

    stage: ClassVar[str] = "claim"
    hot: int
    cold: int
    oldest: timedelta | None


@dataclass(frozen=True, slots=True)
class Purged(Fact):
    """So many events that were finished and old were deleted."""

    stage: ClassVar[str] = "purge"
    count: int


@dataclass(frozen=True, slots=True)
class Replayed(Fact):
    """So many dead letters were made due again."""

    stage: ClassVar[str] = "settle"
    count: int


@dataclass(frozen=True, slots=True)
class LoopFailed(Fact):
    """A background loop met an error, logged it and goes on."""

    stage: ClassVar[str] = "runtime"
    loop: str
    error: str


@dataclass(frozen=True, slots=True)
class TaskEnded(Fact):
    """A background task ended although it should not; it is replaced after a moment."""

    stage: ClassVar[str] = "runtime"
    task: str
    error: str


@dataclass(frozen=True, slots=True)
class WakeUps(Fact):
    """How this process learns of new events: `listen`, or `poll` with the reason."""

    stage: ClassVar[str] = "runtime"
    mode: str
    reason: str


@dataclass(frozen=True, slots=True)
class Strayed(Fact):
    """A synchronous listener ran out of its time, or one that had has come back: so many threads hang now."""

    stage: ClassVar[str] = "deliver"
    threads: int


@dataclass(frozen=True, slots=True)
class Published(Fact):
    """A sink acknowledged these in one publish; `took` is its duration in seconds."""

    stage: ClassVar[str] = "deliver"
    sink: str
    count: int
    took: float


@dataclass(frozen=True, slots=True)
class CircuitChanged(Fact):
    """The broker went away (open: nothing is sent, no attempt is counted) or is back, with the reason."""

    stage: ClassVar[str] = "deliver"
    sink: str
    open: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Ingested(Fact):
    """A batch of a broker's messages was stored in an inbox, in `took` seconds. `malformed` ones, which are among the
    accepted, cannot be read: they are dead letters."""

    stage: ClassVar[str] = "write"
    source: str
    accepted: int
    duplicates: int
    malformed: int
    took: float


@dataclass(frozen=True, slots=True)
class Accepted(Fact):
    """An inbox was given messages: so many were new, so many were there already. With a handle of the caller's, its
    transaction is still open."""

    stage: ClassVar[str] = "write"
    inbox: str
    count: int
    duplicates: int


@dataclass(frozen=True, slots=True)
class Alert(Fact):
    """Somebody should look: a group died or was moved, a consumer is silent, storage runs full … `name` says which."""

    stage: ClassVar[str] = "operate"
    name: str
    topic: str = ""
    group: str = ""
    text: str = ""
    over: bool = False  # it was so, and is no more


@dataclass(frozen=True, slots=True)
class Cleaned(Fact):
    """One run of the cleanup over all topics, and the partitions dropped since the last one."""

    stage: ClassVar[str] = "purge"
    events: int
    partitions: int
    took: float


@dataclass(frozen=True, slots=True)
class EventsLost(Fact):
    """Events of a topic that a group was still to have, and cannot get any more; the alert `events_lost` says why."""

    stage: ClassVar[str] = "purge"
    topic: str
    group: str
    events: int


@dataclass(frozen=True, slots=True)
class Detected(Fact):
    """One look for dead groups: how many were found, and from how many open events dead ones were taken off."""

    stage: ClassVar[str] = "operate"
    groups: int
    events: int


@dataclass(frozen=True, slots=True)
class Standing(Fact):
    """Every minute: age of the oldest open transaction that may have written events (only its own are held back), and
    events that could be deleted and are not. None: not known."""

    stage: ClassVar[str] = "operate"
    oldest: timedelta | None
    backlog: int | None


@dataclass(frozen=True, slots=True)
class Administered(Fact):
    """An operator changed something, and the change is committed. `changed` says how many, where that means something.
    The same is in the audit table."""

    stage: ClassVar[str] = "operate"
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


def _alarm(fact: Fact) -> None:
    """The type of an error only: its text may quote the payload, and is kept with the dead letter."""
    if isinstance(fact, Died):
        level = logging.CRITICAL if fact.undecodable else logging.ERROR
        error = fact.error.partition(":")[0]
        log.log(level, "event %s (%s) died at attempt %d: %s", fact.event_id, fact.event_type, fact.attempts, error)
    elif isinstance(fact, Stuck):
        error, pause = fact.error.partition(":")[0], fact.delay.total_seconds()
        log.error(
            "event %s (%s) failed at attempt %d, beyond its limit, and its key waits for it: %s; next try in %g s",
            fact.event_id, fact.event_type, fact.attempts, error, pause,
        )  # fmt: skip
    elif isinstance(fact, HotDropped):
        log.warning("the hot queue is full: %d events are left to the poller", fact.count)
    elif isinstance(fact, Alert):
        word = f"{fact.name} is over" if fact.over else fact.name
        log.warning("%s (topic %s, group %s): %s", word, fact.topic or "-", fact.group or "-", fact.text)
    elif isinstance(fact, Administered):
        many = "" if fact.changed is None else f" ({fact.changed})"
        log.info("%s %r%s by %r, reason %r", fact.verb, fact.what, many, fact.actor, fact.reason)
