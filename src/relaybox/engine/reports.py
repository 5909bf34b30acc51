"""Outcomes as facts for observers. What somebody must act on is told even when nobody observes."""

from __future__ import annotations

from ..errors import Undecodable
from ..event import Event
from ..facts import Died, Observers, Retried, Stuck
from ..outcome import Dead, Outcome, RetryAt


def is_news(outcome: Outcome | None, attempts: int, limit: float) -> bool:
    """Whether it goes to the log although nobody observes."""
    return type(outcome) is Dead or (type(outcome) is RetryAt and outcome.counted and attempts >= limit)


def report(observers: Observers, event: Event, outcome: Outcome | None, attempts: int, limit: float) -> None:
    if isinstance(outcome, RetryAt):
        observers(Retried(event.id, event.type, attempts, outcome.delay, outcome.error))
        if is_news(outcome, attempts, limit):
            observers(Stuck(event.id, event.type, attempts, outcome.delay, outcome.error))
    elif isinstance(outcome, Dead):
        undecodable = outcome.error.startswith(Undecodable.__name__)
        observers(Died(event.id, event.type, attempts, outcome.error, undecodable))
