"""How much may wait for one tenant: looked at before events are written, seldom, and never further than the cap.

What a look has found is good for a moment. In it what this process writes is added, what others write or deliver is not
known. So a tenant may have more than the cap, by what other processes write for it in that time.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from ..clock import Clock
from ..errors import ConfigError, SchemaMissing, StoreBusy, TenantFull
from ..event import OVER_CAP_HEADER, Event
from ..facts import Observers, OverCap, TenantsWaiting
from ..forks import FreshLock
from ..op import Op
from ..settings import Settings, TenantSettings
from ..store.outbox import OutboxStore

log = logging.getLogger("relaybox")

REMEMBERED = 10_000  # tenants
WARN = 60.0  # seconds between two warnings about one


class Seen(NamedTuple):
    at: float
    waiting: int


class WaitsIn(NamedTuple):
    """Where an event will wait: in the outbox, or in the queue of a topic, which is an outbox of its own."""

    store: OutboxStore
    topic: str | None = None

    @property
    def words(self) -> str:
        return "" if self.topic is None else f" of queue {self.topic!r}"


Counted = tuple[WaitsIn, str]  # a tenant in one place


class TenantCaps:
    """Of one outbox and its queues, each of which counts for itself; for many threads."""

    def __init__(self, settings: TenantSettings, clock: Clock, observers: Observers) -> None:
        assert settings.max_waiting is not None
        self._cap, self._refuse = settings.max_waiting, settings.over == "refuse"
        self._moment = settings.look_interval.total_seconds()
        self._clock, self._observers = clock, observers
        self._seen: dict[Counted, Seen] = {}
        self._lock = FreshLock()
        self._warned: dict[Counted, float] = {}
        self._verified: set[str] = set()  # tables
        self._told = float("-inf")

    def check(self, events: Sequence[Event], places: Sequence[WaitsIn | None]) -> Op[Sequence[Event]]:
        """The events to write, of which those without a place count nowhere. TenantFull: none of them; the caller's
        transaction is unharmed."""
        counted = [
            None if place is None or event.tenant is None else (place, event.tenant)
            for event, place in zip(events, places, strict=True)
        ]
        added = Counter(one for one in counted if one is not None)
        over = {}
        for one, count in added.items():
            waiting = yield from self._waiting(one)
            if waiting + count > self._cap:
                over[one] = waiting
        for one in over:
            place, tenant = one
            self._warn(one)
            self._observers(OverCap(added[one], tenant, refused=self._refuse))
            if self._refuse:
                raise TenantFull(tenant, self._cap, over[one], added[one], place.topic)
        with self._lock:
            for one, count in added.items():
                if (seen := self._seen.get(one)) is not None:  # another thread may have made room
                    self._seen[one] = seen._replace(waiting=seen.waiting + count)
        if not over:
            return events
        mark = {OVER_CAP_HEADER: str(self._cap)}
        return [event.with_headers(mark) if one in over else event for event, one in zip(events, counted, strict=True)]

    def _warn(self, one: Counted) -> None:
        now = self._clock.monotonic()
        with self._lock:
            if now - self._warned.get(one, -WARN) < WARN:
                return
            if len(self._warned) >= REMEMBERED:
                self._warned.clear()
            self._warned[one] = now
        place, tenant = one
        log.warning(
            "events%s of tenant %r are %s: more waits for it than %d (tenants.max_waiting)",
            place.words,
            tenant,
            "refused" if self._refuse else "marked",
            self._cap,
        )

    def _waiting(self, one: Counted) -> Op[int]:
        now = self._clock.monotonic()
        with self._lock:
            seen = self._seen.get(one)
        if seen is not None and now - seen.at < self._moment:
            return seen.waiting
        place, tenant = one
        table = place.store.tables.event
        if table not in self._verified:
            yield from place.store.verify_fair()
            self._verified.add(table)
        try:
            waiting = yield from place.store.waiting_of(tenant, self._cap + 1)
        except SchemaMissing as error:
            if place.topic is None:
                raise
            self._verified.discard(table)
            raise StoreBusy(f"topic {place.topic!r} was dropped or moved; repeat the transaction") from error
        with self._lock:
            if len(self._seen) >= REMEMBERED:
                self._seen = {one: seen for one, seen in self._seen.items() if now - seen.at < self._moment}
            self._seen[one] = Seen(now, waiting)
        if now - self._told >= self._moment:
            self._tell(now)
        return waiting

    def _tell(self, now: float) -> None:
        self._told = now
        with self._lock:
            fresh = [seen.waiting for seen in self._seen.values() if now - seen.at < self._moment]
        self._observers(TenantsWaiting(max(fresh), sum(1 for count in fresh if count >= self._cap)))


def caps_of(settings: Settings, clock: Clock, observers: Observers, *, cdc: bool) -> TenantCaps | None:
    if settings.tenants.max_waiting is None:
        return None
    if cdc:
        raise ConfigError("tenants.max_waiting is for outboxes that deliver: with cdc=True nothing waits")
    if settings.outbox.write_function:
        raise ConfigError(
            "expected tenants.max_waiting or outbox.write_function, got both: a role that may only call the function "
            "cannot see what waits"
        )
    return TenantCaps(settings.tenants, clock, observers)
