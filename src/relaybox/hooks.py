"""Where a program can take part: around writes, around deliveries, and in the choice of events."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from .delivery import Delivery
from .event import Event

Filter: TypeAlias = Callable[[Event], bool]


class WriterHook:
    """Override what you need. `outbox/write.py` says when each is called relative to the commit."""

    def before_write(self, events: Sequence[Event]) -> Sequence[Event] | None:
        """The events to write instead; None or an empty list: none. An error reaches the writer."""
        return events

    def after_write(self, events: Sequence[Event]) -> None:
        """They are written, in a transaction that is still open."""

    def after_commit(self, events: Sequence[Event]) -> None:
        """They are stored for good."""

    def after_rollback(self, events: Sequence[Event]) -> None:
        """They are not stored."""


class Interceptor:
    """Around each call of a listener. Override one or both, sync or async; `Interceptor.before(f)` and `.after(f)` make
    one from a function."""

    def before_dispatch(self, delivery: Delivery) -> Any:
        """An error counts as a failure of the listener, which is then not called."""
        return None

    def after_dispatch(self, delivery: Delivery, error: Exception | None) -> Any:
        """An error here is logged and changes nothing."""
        return None

    @staticmethod
    def before(function: Callable[[Delivery], Any]) -> Interceptor:
        """An interceptor that calls this function before each listener."""
        return _Before(function)

    @staticmethod
    def after(function: Callable[[Delivery, Exception | None], Any]) -> Interceptor:
        """An interceptor that calls this function after each listener, with its error or None."""
        return _After(function)


class _Before(Interceptor):
    def __init__(self, function: Callable[[Delivery], Any]) -> None:
        self._function = function

    def before_dispatch(self, delivery: Delivery) -> Any:
        return self._function(delivery)


class _After(Interceptor):
    def __init__(self, function: Callable[[Delivery, Exception | None], Any]) -> None:
        self._function = function

    def after_dispatch(self, delivery: Delivery, error: Exception | None) -> Any:
        return self._function(delivery, error)
