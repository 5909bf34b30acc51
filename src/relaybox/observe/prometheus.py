"""Metrics for Prometheus: `pip install 'relaybox[prometheus]'`. The list is in docs/reference/metrics.md."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any, Final, Protocol

from ..clock import SYSTEM_CLOCK, Clock
from ..durations import Duration, parse_duration
from ..errors import MissingExtra, NotFound, StoreError
from ..facts import Fact
from ..values import LIMITS
from .measures import MEASURES, SECONDS, STALE_AFTER, Gauged, Labels, Latest, Measure

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
    from prometheus_client.core import GaugeMetricFamily, Metric
except ModuleNotFoundError as error:
    raise MissingExtra("prometheus_client", "prometheus") from error

log = logging.getLogger("relaybox")


class PrometheusObserver:
    """
    outbox = Outbox(url, observers=[PrometheusObserver(prefix="shop_outbox")])

    Two outboxes in one process need two prefixes, or two registries. A gauge that could not be measured, or not
    lately, is NaN. The first `label_limit` values of a metric's label are told apart, later ones counted as "other".
    """

    def __init__(
        self,
        prefix: str = "relaybox",
        registry: CollectorRegistry = REGISTRY,
        *,
        label_limit: int = 100,
        stale_after: Duration = STALE_AFTER,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._label_limit = label_limit
        self._tell: dict[type[Fact], list[Callable[[Any], None]]] = {}
        for measure in MEASURES:
            name = f"{prefix}_{measure.name.replace('.', '_')}"
            fresh = partial(Latest, measure, parse_duration(stale_after, "stale_after").total_seconds(), clock)
            self._tell.setdefault(measure.fact, []).append(self._made(measure, name, registry, fresh))

    def __call__(self, fact: Fact) -> None:
        for tell in self._tell.get(type(fact), ()):
            tell(fact)

    def _made(
        self, measure: Measure, name: str, registry: CollectorRegistry, fresh: Callable[[], Latest]
    ) -> Callable[[Any], None]:
        """The metric, and how a fact changes it."""
        if measure.kind == "histogram":
            histogram = Histogram(name, measure.about, registry=registry, buckets=SECONDS)
            return lambda fact: histogram.observe(_number(measure.value(fact)))
        labels = (measure.label,) if measure.label else ()
        if measure.kind == "gauge":
            gauge = Gauge(name, measure.about, labels, registry=registry)

            def made(value: str | None) -> Latest:
                latest, child = fresh(), gauge if value is None else gauge.labels(value)
                child.set(math.nan)
                child.set_function(lambda: _number(latest.get()))
                return latest

            return Gauged(measure, self._label_limit, made)
        counter = Counter(name, measure.about, labels, registry=registry)
        if measure.label is None:
            return lambda fact: counter.inc(_number(measure.value(fact)))
        label, shown = measure.label, Labels(self._label_limit)
        return lambda fact: counter.labels(shown(getattr(fact, label))).inc(_number(measure.value(fact)))


def _number(value: float | None) -> float:
    return math.nan if value is None else value


class Snapshot(Protocol):
    """What `Outbox.status()` and `Relay.status()` return."""

    due: int
    delayed: int
    claimed: int
    retrying: int
    dead: int
    oldest_due: timedelta


class HasStatus(Protocol):
    """What a BacklogCollector asks: an outbox."""

    def status(self) -> Any:
        """The counts to show."""
        ...


BACKLOG: Final[tuple[tuple[str, str, Callable[[Snapshot], float]], ...]] = (
    ("backlog", "events due and not claimed", lambda s: s.due),
    ("backlog_delayed", "events waiting for their time or their next attempt", lambda s: s.delayed),
    ("backlog_claimed", "events claimed by some process", lambda s: s.claimed),
    ("backlog_retrying", "waiting events that failed at least once", lambda s: s.retrying),
    ("backlog_dead", "dead letters", lambda s: s.dead),
    (
        "backlog_oldest_seconds",
        "since the oldest event became due that waits or is claimed; 0: there is none",
        lambda s: s.oldest_due.total_seconds(),
    ),
)


class BacklogCollector:
    """
    REGISTRY.register(BacklogCollector(outbox))

    Asks the database at every scrape, so one process is enough, also one that delivers nothing. While the database
    does not answer, the metrics are absent.
    """

    def __init__(self, outbox: HasStatus, prefix: str = "relaybox") -> None:
        self._outbox = outbox
        self._prefix = prefix

    def describe(self) -> list[Metric]:
        """Registering asks nothing of the database."""
        return [GaugeMetricFamily(f"{self._prefix}_{name}", about) for name, about, _ in BACKLOG]

    def collect(self) -> Iterator[Metric]:
        """For the registry of prometheus_client."""
        try:
            status: Snapshot = self._outbox.status()
        except (StoreError, NotFound) as error:  # not found: a relay has not made its group yet
            log.warning("the backlog could not be measured: %s", type(error).__name__)
            return
        for name, about, value in BACKLOG:
            yield GaugeMetricFamily(f"{self._prefix}_{name}", about, value=value(status))


class InboxSnapshot(Protocol):
    """What `Inbox.status()` returns."""

    pending: int
    dead: int
    oldest: timedelta
    throughput: float
    average: timedelta | None
    processors: int


class HasInboxStatus(Protocol):
    """What an InboxCollector asks: an inbox."""

    name: str

    def status(self) -> Any:
        """How the inbox stands."""
        ...


def _level(found: InboxSnapshot) -> int:
    health = LIMITS.judge(found.pending, found.dead, found.oldest, found.processors)
    return ("ok", "degraded", "critical").index(health.level)


INBOX: Final[tuple[tuple[str, str, Callable[[InboxSnapshot], float]], ...]] = (
    ("pending", "messages that are not processed yet", lambda h: h.pending),
    ("dead", "dead letters", lambda h: h.dead),
    (
        "oldest_seconds",
        "since the oldest of the pending was received; 0: none is pending",
        lambda h: h.oldest.total_seconds(),
    ),
    ("throughput", "messages processed per second, over the last minute at most", lambda h: h.throughput),
    (
        "processing_seconds",
        "from received to processed on the average, of those",
        lambda h: math.nan if h.average is None else h.average.total_seconds(),
    ),
    ("processors", "processors alive", lambda h: h.processors),
    ("health", "0: ok, 1: degraded, 2: critical", _level),
)


class InboxCollector:
    """
    REGISTRY.register(InboxCollector(orders, payments))

    The same for inboxes, each with its name as the label `inbox`.
    """

    def __init__(self, *inboxes: HasInboxStatus, prefix: str = "relaybox_inbox") -> None:
        self._inboxes = inboxes
        self._prefix = prefix

    def describe(self) -> list[Metric]:
        """For the registry of prometheus_client."""
        return [GaugeMetricFamily(f"{self._prefix}_{name}", about, labels=["inbox"]) for name, about, _ in INBOX]

    def collect(self) -> Iterator[Metric]:
        """For the registry of prometheus_client."""
        found = dict[str, InboxSnapshot]()
        for inbox in self._inboxes:
            try:
                found[inbox.name] = inbox.status()
            except StoreError as error:
                log.warning("inbox %s could not be measured: %s", inbox.name, type(error).__name__)
        for name, about, value in INBOX:
            family = GaugeMetricFamily(f"{self._prefix}_{name}", about, labels=["inbox"])
            for label, condition in found.items():
                family.add_metric([label], value(condition))
            yield family
