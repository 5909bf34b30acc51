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
from ..errors import ConfigError, TenantFull
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


class TenantCaps:
    """Of one outbox; for many threads."""

    def __init__(self, settings: TenantSettings, store: OutboxStore, clock: Clock, observers: Observers) -> None:
        assert settings.max_waiting is not None
        self._cap, self._refuse = settings.max_waiting, settings.over == "refuse"
        self._moment = settings.look_interval.total_seconds()
        self._store, self._clock, self._observers = store, clock, observers
        self._seen: dict[str, Seen] = {}
        self._lock = FreshLock()
        self._warned: dict[str, float] = {}
        self._verified = False
        self._told = float("-inf")

    def check(self, events: Sequence[Event]) -> Op[Sequence[Event]]:
        """The events to write. TenantFull: none of them; the caller's transaction is unharmed."""
        added = Counter(event.tenant for event in events if event.tenant is not None)
        over = {}
        for tenant, count in added.items():
            waiting = yield from self._waiting(tenant)
            if waiting + count > self._cap:
                over[tenant] = waiting
        for tenant in over:
            self._warn(tenant)
            self._observers(OverCap(added[tenant], tenant, refused=self._refuse))
            if self._refuse:
                raise TenantFull(tenant, self._cap, over[tenant], added[tenant])
        with self._lock:
            for tenant, count in added.items():
                if (seen := self._seen.get(tenant)) is not None:  # another thread may have made room
                    self._seen[tenant] = seen._replace(waiting=seen.waiting + count)
        mark = {OVER_CAP_HEADER: str(self._cap)}
        return [event.with_headers(mark) if event.tenant in over else event for event in events] if over else events

    def _warn(self, tenant: str) -> None:
        now = self._clock.monotonic()
        with self._lock:
            if now - self._warned.get(tenant, -WARN) < WARN:
                return
            if len(self._warned) >= REMEMBERED:
                self._warned.clear()
            self._warned[tenant] = now
        what = "are refused" if self._refuse else "are marked"
        log.warning("events of tenant %r %s: more waits for it than %d (tenants.max_waiting)", tenant, what, self._cap)

    def _waiting(self, tenant: str) -> Op[int]:
        now = self._clock.monotonic()
        with self._lock:
            seen = self._seen.get(tenant)
        if seen is not None and now - seen.at < self._moment:
            return seen.waiting
        if not self._verified:
            yield from self._store.verify_fair()
            self._verified = True
        waiting = yield from self._store.waiting_of(tenant, self._cap + 1)
        with self._lock:
            if len(self._seen) >= REMEMBERED:
                self._seen = {name: seen for name, seen in self._seen.items() if now - seen.at < self._moment}
            self._seen[tenant] = Seen(now, waiting)
        if now - self._told >= self._moment:
            self._tell(now)
        return waiting

    def _tell(self, now: float) -> None:
        self._told = now
        with self._lock:
            fresh = [seen.waiting for seen in self._seen.values() if now - seen.at < self._moment]
        self._observers(TenantsWaiting(max(fresh), sum(1 for count in fresh if count >= self._cap)))


def caps_of(
    settings: Settings, store: OutboxStore, clock: Clock, observers: Observers, *, cdc: bool
) -> TenantCaps | None:
    if settings.tenants.max_waiting is None:
        return None
    if cdc:
        raise ConfigError("tenants.max_waiting is for outboxes that deliver: with cdc=True nothing waits")
    if settings.outbox.write_function:
        raise ConfigError(
            "expected tenants.max_waiting or outbox.write_function, got both: a role that may only call the function "
            "cannot see what waits"
        )
    return TenantCaps(settings.tenants, store, clock, observers)
