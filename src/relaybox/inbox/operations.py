"""What an operator asks of an inbox, as ops that both twins run: checks first, then the store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..clock import Clock
from ..errors import ConfigError
from ..lifecycle import Alert
from ..op import Op
from ..store.inbox import InboxStore
from ..store.inbox_gaps import Gap
from ..store.inbox_meta import Plan
from ..store.inbox_operate import DeadMessage, InboxHealth, MessageFilter, State, Thresholds
from ..store.inbox_order import Order, Priority
from .alerts import Alerting, look


class Operations:
    def __init__(self, store: InboxStore, plan: Plan, clock: Clock) -> None:
        self._store = store
        self._plan = plan
        self._clock = clock

    def enable(self, *, order: Order | None = None, priority: Priority | None = None) -> Op[Plan]:
        return self._store.agree(Plan(order, priority), self._clock.database_now())

    def disable_ordering(self) -> Op[bool]:
        return self._store.disable("order", self._clock.database_now())

    def disable_priority(self) -> Op[bool]:
        return self._store.disable("priority", self._clock.database_now())

    def gaps(self, limit: int) -> Op[list[Gap]]:
        order = self._plan.order or (yield from self._store.plan_of()).order
        if order is None:
            raise ConfigError("this inbox is not ordered, so no number can be missing; enable_ordering() makes it so")
        return (yield from self._store.gaps(order, limit, self._clock.database_now()))

    def skip(self, key: str, to: int | None) -> Op[int | None]:
        if to is not None and (type(to) is not int or to < 0):
            raise ConfigError(f"expected the number to go on with to be at least 0, got {to!r}")
        return self._store.skip(key, to, self._clock.database_now())

    def health(self, thresholds: Thresholds | None) -> Op[InboxHealth]:
        return self._store.health(thresholds or Thresholds(), self._clock.database_now())

    def alerts(self, alerting: Alerting | None) -> Op[list[Alert]]:
        order = self._plan.order or (yield from self._store.plan_of()).order
        return (yield from look(self._store, alerting or Alerting(), order, self._clock.database_now(), at_once=True))

    def dead(self, where: MessageFilter | None, after: int, limit: int) -> Op[list[DeadMessage]]:
        return self._store.dead_messages(where or MessageFilter(), after, limit)

    def replay(self, event_ids: Sequence[str]) -> Op[list[str]]:
        return self._store.replay_messages(_ids(event_ids), self._clock.database_now())

    def discard(self, event_ids: Sequence[str]) -> Op[list[str]]:
        return self._store.discard_messages(_ids(event_ids), self._clock.database_now())

    def replay_page(self, where: MessageFilter, after: int, limit: int, *, processed: bool) -> Op[tuple[int, int]]:
        """One page of what a filter finds: where it got to, and how many are due again."""
        state: State = "processed" if processed else "dead"
        events = [message.event for message in (yield from self._store.messages(state, where, after, limit))]
        if not events:
            return after, 0
        replayed = yield from self._store.replay_messages([event.id for event in events], self._clock.database_now())
        return max(event.seq or 0 for event in events), len(replayed)


def _ids(event_ids: Any) -> list[str]:
    if isinstance(event_ids, str) or not all(isinstance(event_id, str) for event_id in event_ids):
        raise ConfigError("expected a list of event ids")
    return list(dict.fromkeys(event_ids))
