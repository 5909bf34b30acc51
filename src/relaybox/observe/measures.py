"""What is counted: one table from facts to metrics, for every exporter and for docs/reference/metrics.md.

Names are dotted and without the prefix; Prometheus writes them with underscores. A gauge whose value is None could not
be measured and is reported as missing, never as 0 and never as its last value.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any, Final, Literal, NamedTuple

from .. import facts
from ..clock import SYSTEM_CLOCK, Clock
from ..facts import Fact
from ..forks import FreshLock

MEASURED: Final = (
    facts.Depths,
    facts.CallsUnderWay,
    facts.TenantsWaiting,
    facts.ReplicaLag,
)  # again and again: their values grow stale
OTHER: Final = "other"
STALE_AFTER: Final = 60.0  # seconds; depths are measured every second
SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


def _of(name: str) -> Callable[[Any], float | None]:
    """An attribute of the fact as a number; of a duration its seconds."""

    def value(fact: Any) -> float | None:
        found = getattr(fact, name)
        if isinstance(found, timedelta):
            return found.total_seconds()
        return None if found is None else float(found)

    return value


def _one(fact: Any) -> float:
    return 1.0


def _how(wanted: str) -> Callable[[Any], float]:
    return lambda fact: float(fact.how == wanted)


class Measure(NamedTuple):
    kind: Literal["counter", "gauge", "histogram"]
    fact: type[Fact]
    name: str
    about: str
    value: Callable[[Any], float | None] = _of("count")
    label: str | None = None  # the attribute of the fact that becomes a label


_counter = partial(Measure, "counter")
_gauge = partial(Measure, "gauge")
_seconds = partial(Measure, "histogram", value=_of("took"))

MEASURES: Final = (
    _counter(facts.Written, "events.written", "events inserted; their transactions may still roll back"),
    _counter(
        facts.OverCap,
        "tenants.refused",
        "events refused because too much waits for their tenant",
        lambda fact: float(fact.count if fact.refused else 0),
        "tenant",
    ),
    _counter(
        facts.OverCap,
        "tenants.marked",
        "events marked because too much waits for their tenant",
        lambda fact: float(0 if fact.refused else fact.count),
        "tenant",
    ),
    _gauge(
        facts.TenantsWaiting, "tenants.waiting.most", "the most that waits for one tenant, as writers saw", _of("most")
    ),
    _gauge(facts.TenantsWaiting, "tenants.full", "tenants at their cap, as writers saw", _of("full")),
    _counter(facts.HotEnqueued, "queue.hot.added", "committed events handed to this process's hot queue"),
    _counter(facts.HotDropped, "queue.hot.dropped", "committed events the full hot queue left to the poller"),
    _counter(facts.Claimed, "queue.cold.added", "events claimed from the table into the cold queue"),
    _seconds(facts.Claimed, "claim.seconds", "duration of one claim"),
    _counter(facts.KeysChosen, "claim.keys.tried", "keys that claims by locks wanted", _of("tried")),
    _counter(facts.KeysChosen, "claim.keys.taken", "keys that they got", _of("taken")),
    _counter(
        facts.KeysChosen,
        "claim.keys.lost",
        "keys that another process was faster with: contention",
        lambda fact: float(fact.tried - fact.taken),
    ),
    _counter(facts.Delivered, "delivery.done", "events delivered and settled"),
    _counter(facts.Retried, "delivery.failed", "failed attempts that will be repeated", _one, "event_type"),
    _counter(facts.Stuck, "delivery.stuck", "failed attempts beyond the limit: a key waits", _one, "event_type"),
    _counter(facts.CutOff, "delivery.cut_off", "events whose handler was cancelled: it ran too long", label="limit"),
    _counter(facts.Died, "delivery.dead", "events that became dead letters", _one, "event_type"),
    _counter(facts.ClaimLost, "claim.lost", "events whose claim had ended or gone to another process"),
    _counter(facts.Released, "claim.released", "claimed events given back undelivered"),
    _counter(facts.TakenOver, "claim.taken_over", "events freed from dead processes", _of("events")),
    _counter(facts.TakenOver, "instances.taken_over", "dead processes found", _of("instances")),
    _counter(facts.Purged, "events.purged", "events deleted by purges"),
    _counter(facts.Administered, "admin.changes", "changes by operators", _one, "verb"),
    _counter(facts.Replayed, "events.replayed", "dead letters put back into the queue"),
    _gauge(facts.Strayed, "threads.stray", "threads in which listeners hang", _of("threads")),
    _counter(facts.Published, "relay.published", "messages a broker acknowledged", label="sink"),
    _seconds(facts.Published, "relay.seconds", "duration of one publish"),
    _gauge(facts.CircuitChanged, "circuit.open", "1 while the broker is away", _of("open")),
    _counter(facts.CircuitChanged, "circuit.opened", "outages of the broker", _of("open"), "sink"),
    _counter(
        facts.DestinationChanged,
        "destination.outages",
        "outages of one of many destinations",
        lambda fact: float(fact.state == "away"),
        "destination",
    ),
    _counter(
        facts.DestinationChanged,
        "destination.slowdowns",
        "how often one of many destinations became slow",
        lambda fact: float(fact.state == "slow"),
        "destination",
    ),
    _gauge(facts.CallsUnderWay, "relay.calls", "calls under way, to all destinations", _of("under_way")),
    _gauge(
        facts.CallsUnderWay, "relay.calls.slow", "those to destinations that are slow or do not answer", _of("slow")
    ),
    _gauge(facts.CallsUnderWay, "relay.calls.waiting", "events here that wait for their destination", _of("waiting")),
    _gauge(facts.CallsUnderWay, "destinations.slow", "destinations with slow calls", _of("slow_destinations")),
    _gauge(facts.CallsUnderWay, "destinations.away", "destinations that are away", _of("away_destinations")),
    _counter(facts.Accepted, "inbox.accepted", "messages an inbox took", label="inbox"),
    _counter(facts.Accepted, "inbox.duplicates", "messages an inbox had already", _of("duplicates"), "inbox"),
    _counter(facts.Ingested, "ingest.accepted", "messages stored in an inbox", _of("accepted"), "source"),
    _counter(facts.Ingested, "ingest.duplicates", "messages that were there already", _of("duplicates"), "source"),
    _counter(
        facts.Ingested, "ingest.malformed", "messages that cannot be read: dead letters", _of("malformed"), "source"
    ),
    _seconds(facts.Ingested, "ingest.seconds", "duration of storing a batch"),
    _counter(facts.Replicated, "replica.applied", "deltas and copies applied to a table", _one, "table"),
    _counter(facts.Replicated, "replica.inserted", "rows that came or changed", _of("inserted"), "table"),
    _counter(facts.Replicated, "replica.deleted", "rows that went or changed", _of("deleted"), "table"),
    _counter(facts.Replicated, "replica.copies", "times that all rows were copied", _of("copied"), "table"),
    _gauge(facts.ReplicaLag, "replica.behind", "deltas that a table does not have", _of("behind"), "table"),
    _counter(facts.Alert, "topics.alerts", "things somebody should look at", lambda fact: float(not fact.over), "name"),
    _counter(facts.Cleaned, "topics.deleted", "events of topics deleted one by one", _of("events")),
    _counter(facts.Cleaned, "topics.partitions.dropped", "partitions of topics dropped", _of("partitions")),
    _seconds(facts.Cleaned, "topics.cleanup.seconds", "duration of one cleanup"),
    _counter(facts.EventsLost, "groups.lost", "events a group will not get any more", _of("events"), "group"),
    _gauge(
        facts.Standing, "topics.cleanup.backlog", "events of topics that could be deleted and are not", _of("backlog")
    ),
    _counter(facts.Detected, "groups.died", "groups found dead", _of("groups")),
    _counter(facts.Detected, "groups.released", "open events that wait no more for dead groups", _of("events")),
    _gauge(
        facts.Standing, "topics.horizon.seconds", "age of the oldest open transaction; 0: none is open", _of("oldest")
    ),
    _counter(facts.FeedRefreshed, "feeds.full", "refreshes that evaluated the whole query", _how("full"), "feed"),
    _counter(facts.FeedRefreshed, "feeds.differential", "refreshes by what changed", _how("differential"), "feed"),
    _counter(facts.FeedFailed, "feeds.failed", "refreshes in transactions of their own that failed", _one, "feed"),
    _counter(facts.FeedRefreshed, "feeds.inserted", "rows that refreshes inserted", _of("inserted"), "feed"),
    _counter(facts.FeedRefreshed, "feeds.deleted", "rows that refreshes deleted", _of("deleted"), "feed"),
    _seconds(facts.FeedRefreshed, "feeds.seconds", "duration of one refresh"),
    _gauge(facts.FeedStanding, "feeds.age.seconds", "since the last refresh of a feed", _of("age"), "feed"),
    _gauge(
        facts.FeedStanding,
        "feeds.last.seconds",
        "duration of the last that had something to do",
        _of("took"),
        "feed",
    ),
    _gauge(facts.FeedStanding, "feeds.waiting", "changed rows that wait for a refresh", _of("waiting"), "feed"),
    _gauge(facts.FeedStanding, "feeds.kept.bytes", "kept for readers of a feed", _of("kept"), "feed"),
    _counter(
        facts.LoopFailed, "loop.failures", "errors in background loops, each followed by another try", _one, "loop"
    ),
    _counter(
        facts.TaskEnded, "tasks.ended", "background tasks that ended unexpectedly and were replaced", _one, "task"
    ),
    _gauge(
        facts.WakeUps,
        "wakeups.listening",
        "1 while LISTEN works, 0 while polling",
        lambda fact: float(fact.mode == "listen"),
    ),
    _gauge(facts.Depths, "queue.hot.depth", "events in the hot queue", _of("hot")),
    _gauge(facts.Depths, "queue.cold.depth", "events in the cold queue", _of("cold")),
    _gauge(
        facts.Depths,
        "lag.oldest.ms",
        "milliseconds since the oldest event became due that waits or is claimed; 0: there is none",
        lambda fact: None if fact.oldest is None else fact.oldest.total_seconds() * 1000,
    ),
)


class Labels:
    """At most `limit` values for the label of one metric; what comes later is "other", so that no exporter grows
    without bound. Each metric has a budget of its own: what fills one does not blind another."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._known: set[str] = set()
        self._lock = FreshLock()

    def __call__(self, value: str) -> str:
        return value if self.shows(value) else OTHER

    def shows(self, value: str) -> bool:
        """A gauge of many is none of them: what has no room is not shown."""
        if value not in self._known:
            with self._lock:
                if len(self._known) < self._limit:
                    self._known.add(value)
        return value in self._known


class Latest:
    """The last value of a gauge, None once it is older than `stale_after` seconds or was never measured.

    What is told only when it changes (WakeUps, CircuitChanged) never grows stale.
    """

    def __init__(self, measure: Measure, stale_after: float, clock: Clock = SYSTEM_CLOCK) -> None:
        self._expires = stale_after if measure.fact in MEASURED else float("inf")
        self._clock = clock
        self._value: float | None = None
        self._at = 0.0

    def set(self, value: float | None) -> None:
        self._value, self._at = value, self._clock.monotonic()

    def get(self) -> float | None:
        fresh = self._clock.monotonic() - self._at <= self._expires
        return self._value if fresh else None


class Gauged:
    """The last values of a gauge, one for each value of its label: called with a fact, it notes its value."""

    def __init__(self, measure: Measure, limit: int, made: Callable[[str | None], Latest]) -> None:
        self._measure = measure
        self._labels = Labels(limit)
        self._made = made
        self.latest: dict[str | None, Latest] = {} if measure.label else {None: made(None)}

    def __call__(self, fact: Any) -> None:
        label = getattr(fact, self._measure.label) if self._measure.label else None
        if label is not None and label not in self.latest:
            if not self._labels.shows(label):
                return
            self.latest[label] = self._made(label)
        self.latest[label].set(self._measure.value(fact))
