"""What is counted: one table from facts to metrics, for every exporter and for docs/reference/metrics.md.

Names are dotted and without the prefix; Prometheus writes them with underscores. A gauge whose value is None could not
be measured and is reported as missing, never as 0 and never as its last value.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any, Final, Literal, NamedTuple

from ..clock import SYSTEM_CLOCK, Clock
from ..facts import (
    Accepted,
    Administered,
    Alert,
    CircuitChanged,
    Claimed,
    ClaimLost,
    Cleaned,
    CutOff,
    Delivered,
    Depths,
    Detected,
    Died,
    EventsLost,
    Fact,
    HotDropped,
    HotEnqueued,
    Ingested,
    KeysChosen,
    LoopFailed,
    Published,
    Purged,
    Released,
    Replayed,
    Retried,
    Standing,
    Strayed,
    Stuck,
    TakenOver,
    TaskEnded,
    WakeUps,
    Written,
)
from ..forks import FreshLock

OTHER: Final = "other"
STALE_AFTER: Final = 60.0  # seconds; depths are measured every second
SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class Measure(NamedTuple):
    fact: type[Fact]
    kind: Literal["counter", "gauge", "histogram"]
    name: str
    about: str
    value: Callable[[Any], float | None]
    label: str | None = None  # the attribute of the fact that becomes a label


def _count(fact: Any) -> float:
    return float(fact.count)


def _one(fact: Any) -> float:
    return 1.0


def _lag(fact: Depths) -> float | None:
    return None if fact.oldest is None else fact.oldest.total_seconds() * 1000


def _backlog(fact: Standing) -> float | None:
    return None if fact.backlog is None else float(fact.backlog)


def _horizon(fact: Standing) -> float | None:
    return None if fact.oldest is None else fact.oldest.total_seconds()


MEASURES: Final = (
    Measure(Written, "counter", "events.written", "events inserted; their transactions may still roll back", _count),
    Measure(HotEnqueued, "counter", "queue.hot.added", "committed events handed to this process's hot queue", _count),
    Measure(
        HotDropped, "counter", "queue.hot.dropped", "committed events the full hot queue left to the poller", _count
    ),
    Measure(Claimed, "counter", "queue.cold.added", "events claimed from the table into the cold queue", _count),
    Measure(Claimed, "histogram", "claim.seconds", "duration of one claim", lambda fact: float(fact.took)),
    Measure(
        KeysChosen, "counter", "claim.keys.tried", "keys that claims by locks wanted", lambda fact: float(fact.tried)
    ),
    Measure(KeysChosen, "counter", "claim.keys.taken", "keys that they got", lambda fact: float(fact.taken)),
    Measure(
        KeysChosen,
        "counter",
        "claim.keys.lost",
        "keys that another process was faster with: contention",
        lambda fact: float(fact.tried - fact.taken),
    ),
    Measure(Delivered, "counter", "delivery.done", "events delivered and settled", _count),
    Measure(Retried, "counter", "delivery.failed", "failed attempts that will be repeated", _one, "event_type"),
    Measure(Stuck, "counter", "delivery.stuck", "failed attempts beyond the limit: a key waits", _one, "event_type"),
    Measure(
        CutOff, "counter", "delivery.cut_off", "events whose handler was cancelled: it ran too long", _count, "limit"
    ),
    Measure(Died, "counter", "delivery.dead", "events that became dead letters", _one, "event_type"),
    Measure(ClaimLost, "counter", "claim.lost", "events whose claim had ended or gone to another process", _count),
    Measure(Released, "counter", "claim.released", "claimed events given back undelivered", _count),
    Measure(
        TakenOver, "counter", "claim.taken_over", "events freed from dead processes", lambda fact: float(fact.events)
    ),
    Measure(TakenOver, "counter", "instances.taken_over", "dead processes found", lambda fact: float(fact.instances)),
    Measure(Purged, "counter", "events.purged", "events deleted by purges", _count),
    Measure(Administered, "counter", "admin.changes", "changes by operators", _one, "verb"),
    Measure(Replayed, "counter", "events.replayed", "dead letters put back into the queue", _count),
    Measure(Strayed, "gauge", "threads.stray", "threads in which listeners hang", lambda fact: float(fact.threads)),
    Measure(Published, "counter", "relay.published", "messages a broker acknowledged", _count, "sink"),
    Measure(Published, "histogram", "relay.seconds", "duration of one publish", lambda fact: float(fact.took)),
    Measure(CircuitChanged, "gauge", "circuit.open", "1 while the broker is away", lambda fact: float(fact.open)),
    Measure(
        CircuitChanged, "counter", "circuit.opened", "outages of the broker", lambda fact: float(fact.open), "sink"
    ),
    Measure(Accepted, "counter", "inbox.accepted", "messages an inbox took", _count, "inbox"),
    Measure(
        Accepted,
        "counter",
        "inbox.duplicates",
        "messages an inbox had already",
        lambda fact: float(fact.duplicates),
        "inbox",
    ),
    Measure(
        Ingested,
        "counter",
        "ingest.accepted",
        "messages stored in an inbox",
        lambda fact: float(fact.accepted),
        "source",
    ),
    Measure(
        Ingested,
        "counter",
        "ingest.duplicates",
        "messages that were there already",
        lambda fact: float(fact.duplicates),
        "source",
    ),
    Measure(
        Ingested,
        "counter",
        "ingest.malformed",
        "messages that cannot be read: dead letters",
        lambda fact: float(fact.malformed),
        "source",
    ),
    Measure(Ingested, "histogram", "ingest.seconds", "duration of storing a batch", lambda fact: float(fact.took)),
    Measure(
        Alert, "counter", "topics.alerts", "things somebody should look at", lambda fact: float(not fact.over), "name"
    ),
    Measure(
        Cleaned, "counter", "topics.deleted", "events of topics deleted one by one", lambda fact: float(fact.events)
    ),
    Measure(
        Cleaned,
        "counter",
        "topics.partitions.dropped",
        "partitions of topics dropped",
        lambda fact: float(fact.partitions),
    ),
    Measure(Cleaned, "histogram", "topics.cleanup.seconds", "duration of one cleanup", lambda fact: float(fact.took)),
    Measure(
        EventsLost, "counter", "groups.lost", "events a group will not get any more", lambda f: float(f.events), "group"
    ),
    Measure(
        Standing, "gauge", "topics.cleanup.backlog", "events of topics that could be deleted and are not", _backlog
    ),
    Measure(Detected, "counter", "groups.died", "groups found dead", lambda fact: float(fact.groups)),
    Measure(
        Detected,
        "counter",
        "groups.released",
        "open events that wait no more for dead groups",
        lambda f: float(f.events),
    ),
    Measure(
        Standing, "gauge", "topics.horizon.seconds", "age of the oldest open transaction; 0: none is open", _horizon
    ),
    Measure(
        LoopFailed, "counter", "loop.failures", "errors in background loops, each followed by another try", _one, "loop"
    ),
    Measure(
        TaskEnded, "counter", "tasks.ended", "background tasks that ended unexpectedly and were replaced", _one, "task"
    ),
    Measure(
        WakeUps,
        "gauge",
        "wakeups.listening",
        "1 while LISTEN works, 0 while polling",
        lambda fact: float(fact.mode == "listen"),
    ),
    Measure(Depths, "gauge", "queue.hot.depth", "events in the hot queue", lambda fact: float(fact.hot)),
    Measure(Depths, "gauge", "queue.cold.depth", "events in the cold queue", lambda fact: float(fact.cold)),
    Measure(
        Depths,
        "gauge",
        "lag.oldest.ms",
        "milliseconds since the oldest event became due that waits or is claimed; 0: there is none",
        _lag,
    ),
)


def measures_by_fact() -> dict[type[Fact], list[Measure]]:
    grouped: dict[type[Fact], list[Measure]] = defaultdict(list)
    for measure in MEASURES:
        grouped[measure.fact].append(measure)
    return dict(grouped)


class Labels:
    """At most `limit` values per label; what comes later is "other", so that no exporter grows without bound."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._known: set[str] = set()
        self._lock = FreshLock()

    def __call__(self, value: str) -> str:
        if value in self._known:
            return value
        with self._lock:
            if len(self._known) < self._limit:
                self._known.add(value)
        return value if value in self._known else OTHER


class Latest:
    """The last value of a gauge, None once it is older than `stale_after` seconds or was never measured.

    What is told only when it changes (WakeUps, CircuitChanged) never grows stale.
    """

    def __init__(self, measure: Measure, stale_after: float, clock: Clock = SYSTEM_CLOCK) -> None:
        self._expires = stale_after if measure.fact is Depths else float("inf")
        self._clock = clock
        self._value: float | None = None
        self._at = 0.0

    def set(self, value: float | None) -> None:
        self._value, self._at = value, self._clock.monotonic()

    def get(self) -> float | None:
        fresh = self._clock.monotonic() - self._at <= self._expires
        return self._value if fresh else None
