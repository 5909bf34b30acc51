"""Who is called for an event: exactly one listener per (aggregate type, event type)."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Any, NamedTuple, Protocol, TypeVar

from ..engine.threads import is_async
from ..errors import ConfigError
from ..event import GLOBAL, name_of

F = TypeVar("F", bound=Callable[..., Any])


class Listener(NamedTuple):
    call: Callable[..., Any]
    is_async: bool
    wants_delivery: bool  # takes (event, delivery) rather than (event)


class Registry(Protocol):
    """Replace `Listeners` to route in another way."""

    def find(self, aggregate_type: str, event_type: str) -> Listener | None: ...

    def event_types(self) -> set[str]: ...


class Listeners:
    """
    listeners = Listeners()

    @listeners.on("OrderPlaced")
    async def confirm(event): ...

    @listeners.on("Shipped", aggregate_type="Order")
    def shipped(event, delivery): ...        # a plain function runs in a thread; delivery.attempts tells the try
    """

    def __init__(self) -> None:
        self._all: dict[tuple[str, str], Listener] = {}  # by aggregate type and event type

    def on(self, event_type: str | Enum, *, aggregate_type: str | Enum = GLOBAL) -> Callable[[F], F]:
        def decorate(function: F) -> F:
            self.register(event_type, function, aggregate_type=aggregate_type)
            return function

        return decorate

    def register(
        self,
        event_type: str | Enum,
        function: Callable[..., Awaitable[Any] | Any],
        *,
        aggregate_type: str | Enum = GLOBAL,
    ) -> None:
        if not callable(function):
            raise ConfigError(f"expected a listener to be callable, got {type(function).__name__}")
        event_name = name_of(event_type, "event type")
        key = name_of(aggregate_type, "aggregate type"), event_name
        if key in self._all:
            raise ConfigError(
                f"a listener for {':'.join(key)!r} is registered already; one event has one listener. "
                "Call several functions from it, or use different aggregate types"
            )
        self._all[key] = Listener(function, is_async(function), _takes_two(function))

    def find(self, aggregate_type: str, event_type: str) -> Listener | None:
        return self._all.get((aggregate_type, event_type))

    def event_types(self) -> set[str]:
        return {event_type for _, event_type in self._all}

    def near_misses(self, event_type: str) -> list[str]:
        """Others with the same event type: what somebody meant who forgot the aggregate type."""
        return sorted(":".join(key) for key in self._all if key[1] == event_type)

    def __len__(self) -> int:
        return len(self._all)


def _takes_two(function: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    positional = [
        p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty
    ]
    if not 1 <= len(positional) <= 2 and not any(p.kind is p.VAR_POSITIONAL for p in parameters):
        raise ConfigError(
            f"expected listener {getattr(function, '__name__', function)!r} to take (event) or (event, delivery), "
            f"it takes {len(positional)} arguments"
        )
    return len(positional) == 2
