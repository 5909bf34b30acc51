"""What all processes that use an inbox agree on, kept beside its messages: order, or priority."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from ...errors import ConfigError
from ...op import Op
from .order import Order, Priority, Tier
from .settle import InboxSettles


@dataclass(frozen=True, slots=True)
class Plan:
    """How an inbox is worked off. Not both: a number that waits for a less urgent predecessor is not urgent."""

    order: Order | None = None
    priority: Priority | None = None

    def __post_init__(self) -> None:
        if self.order is not None and self.priority is not None:
            raise conflict()


def conflict() -> ConfigError:
    return ConfigError(
        "an inbox is ordered or has priorities, not both: disable the one first, or use relaybox.inbox.TieredInbox, "
        "which keeps an ordered inbox per tier"
    )


class InboxMeta(InboxSettles):
    def facts(self) -> Op[dict[str, str]]:
        return dict((yield self.sql["inbox.meta.list"].bind()).rows)

    def plan_of(self) -> Op[Plan]:
        found = yield from self.facts()
        return Plan(
            order_from(json.loads(found["order"])) if "order" in found else None,
            priority_from(json.loads(found["priority"])) if "priority" in found else None,
        )

    def agree(self, wanted: Plan, now: datetime | None = None) -> Op[Plan]:
        """Writes down what is wanted, unless it contradicts what is there; nothing wanted: what is there. Two that
        come at once with different wishes meet at the lock."""
        yield self.sql["inbox.meta.lock"].bind()
        there = yield from self.plan_of()
        if wanted == Plan() or wanted == there:
            return there
        if (wanted.order and there.priority) or (wanted.priority and there.order):
            raise conflict()
        if wanted.order is not None:
            if there.order is None:
                yield from self._history_ends(None, older=True, now=now)
            yield from self._put("order", order_to(wanted.order))
        if wanted.priority is not None:
            yield from self._put("priority", priority_to(wanted.priority))
        return wanted

    def _history_ends(self, at: str | None, *, older: bool, now: datetime | None) -> Op[None]:
        """What is here may be processed without an order: `older` processors, which began before `at`, keep none."""
        last, clock = (yield self.sql["inbox.order.last"].bind(now=self.to_time(now))).rows[0]
        self.until = int(last)
        at = at or self.from_time(clock).isoformat()
        yield from self._put("history", {"until": self.until, "at": at, "older": older})

    def still_without_order(self, now: datetime | None) -> Op[None]:
        """What processors do that began before there was an order is history too."""
        if not json.loads((yield from self.facts()).get("history", "{}")).get("older"):
            return
        yield self.sql["inbox.meta.lock"].bind()
        found = json.loads((yield from self.facts()).get("history", "{}"))
        if found.get("older"):  # they are there, or were when somebody looked last
            at = self.to_time(datetime.fromisoformat(found["at"]))
            older = (yield self.sql["inbox.order.older"].bind(at=at, now=self.to_time(now))).rows
            yield from self._history_ends(found["at"], older=bool(older), now=now)

    def disable(self, what: Literal["order", "priority"], now: datetime | None) -> Op[bool]:
        """True: it was there. What was held back for its number is due."""
        gone = yield self.sql["inbox.meta.remove"].bind(name=what)
        if what == "order":
            yield self.sql["inbox.order.free"].bind(now=self.to_time(now))
        return gone.count > 0

    def _put(self, name: str, value: Mapping[str, Any]) -> Op[None]:
        yield self.sql["inbox.meta.remove"].bind(name=name)
        yield self.sql["inbox.meta.put"].bind(name=name, value=json.dumps(value))


def order_to(order: Order) -> dict[str, Any]:
    missing = order.missing.total_seconds() if isinstance(order.missing, timedelta) else order.missing
    return {"start": order.start, "missing": missing, "dead": order.dead}


def order_from(value: Mapping[str, Any]) -> Order:
    missing = value["missing"]
    return Order(
        start=value["start"],
        missing=timedelta(seconds=missing) if isinstance(missing, (int, float)) else missing,
        dead=value["dead"],
    )


def priority_to(priority: Priority) -> dict[str, Any]:
    tiers = [[tier.name, tier.low, tier.high, tier.patience.total_seconds()] for tier in priority.tiers]
    return {"tiers": tiers, "rest": priority.rest}


def priority_from(value: Mapping[str, Any]) -> Priority:
    tiers = tuple(Tier(name, low, high, timedelta(seconds=patience)) for name, low, high, patience in value["tiers"])
    return Priority(tiers, value["rest"])
