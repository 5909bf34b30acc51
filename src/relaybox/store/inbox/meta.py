"""What all processes that use an inbox agree on, kept beside its messages: order or priority, retention, retries."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from ...durations import OptionalDurationField
from ...errors import ConfigError
from ...event import MAX_BROKEN, MAX_SEALED
from ...op import Op
from ...retry import Retry
from ..events import EventOps
from .order import Order, Priority, Tier
from .settle import InboxSettles


@dataclass(frozen=True)
class Retention:
    """How long an inbox keeps what it is done with; None: for ever.

    done   processed messages
    dead   dead letters
    seen   the ids of messages that are gone. An id must be known for longer than any sender may repeat its message
    """

    done: OptionalDurationField = OptionalDurationField("72h")
    dead: OptionalDurationField = OptionalDurationField(None)
    seen: OptionalDurationField = OptionalDurationField("90d")

    def __post_init__(self) -> None:
        for name in ("done", "dead", "seen"):
            value = getattr(self, name)
            if value is not None and value < timedelta(0):
                raise ConfigError(f"expected {name} to be a duration of at least zero, or None, got {value}")
        if self.seen is not None and self.done is not None and self.seen < self.done:
            raise ConfigError(
                f"expected ids to be kept at least as long as messages ({self.done}), got {self.seen}: "
                "a message that comes again after its id was forgotten takes effect again"
            )


@dataclass(frozen=True, slots=True)
class Plan:
    """What all processes that use an inbox agree on. None: no order, no priorities; as the settings of each say."""

    order: Order | None = None
    priority: Priority | None = None
    retention: Retention | None = None
    retry: Retry | None = None

    def __post_init__(self) -> None:
        if self.order is not None and self.priority is not None:
            raise ConfigError(
                "an inbox is ordered or has priorities, not both, because a number that waits for a less urgent one is "
                "not urgent: set the other to None, or use relaybox.types.TieredInbox, an ordered inbox per tier"
            )


class InboxMeta(InboxSettles, EventOps):
    _events = "inbox.events."
    _claims = "inbox.claim."
    _largest: int | None = MAX_SEALED

    def _largest_listed(self) -> int | None:
        return None if self._largest is None else MAX_BROKEN  # what came and could not be read is kept

    def facts(self) -> Op[dict[str, str]]:
        return dict((yield self.sql["inbox.meta.list"].bind()).rows)

    def plan_of(self) -> Op[Plan]:
        found = yield from self.facts()
        return Plan(**{name: make(**json.loads(found[name])) for name, make in _MADE.items() if name in found})

    def configure(self, changes: Mapping[str, Any], now: datetime | None) -> Op[Plan]:
        """Agree on these parts of the plan; the others stay. Two that come at once meet at the lock."""
        yield from self.verify_schema()
        yield self.sql["inbox.meta.lock"].bind()
        there = yield from self.plan_of()
        plan = replace(there, **changes)
        for name, value in changes.items():
            before = getattr(there, name)
            if value == before:
                continue
            if name == "order" and before is None:
                yield from self._history_ends(None, older=True, now=now)
            elif name == "order" and value is None:  # what was held back for its number is due
                yield self.sql["inbox.order.free"].bind(now=self.to_time(now))
            yield from self._put(name, value)
        return plan

    def _history_ends(self, at: str | None, *, older: bool, now: datetime | None) -> Op[None]:
        """What is here may be processed without an order: `older` processors, which began before `at`, keep none."""
        self.until, clock = yield from self.newest(now)
        at = at or clock.isoformat()
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

    def _put(self, name: str, value: Any) -> Op[None]:
        """None: it is forgotten."""
        yield self.sql["inbox.meta.remove"].bind(name=name)
        if value is not None:
            yield self.sql["inbox.meta.put"].bind(name=name, value=json.dumps(as_json(value)))


def as_json(value: Any) -> Any:
    """Durations as seconds, which they are made of again."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    if is_dataclass(value):
        return {entry.name: as_json(getattr(value, entry.name)) for entry in fields(value) if entry.init}
    return [as_json(one) for one in value] if isinstance(value, (tuple, list)) else value


def _priority(tiers: Sequence[Mapping[str, Any]], rest: str | None) -> Priority:
    return Priority(tuple(Tier(**tier) for tier in tiers), rest)


_MADE: Mapping[str, Callable[..., Any]] = {
    "order": Order,
    "priority": _priority,
    "retention": Retention,
    "retry": Retry,
}
