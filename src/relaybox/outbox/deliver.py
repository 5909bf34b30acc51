"""Calls the listener of an event, between interceptors.

Per event: before-interceptors in registration order, route, listener, after-interceptors in reverse with the
error or None. A before-interceptor that raises counts as a failure of the event; an after-interceptor that
raises is logged and changes nothing.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from ..engine.rows.engine import Delivery
from ..engine.threads import ListenerThreads
from ..errors import DeliveryError, Unroutable
from ..event import GLOBAL
from .listeners import Listener, Listeners, Registry

log = logging.getLogger("relaybox")


class Interceptor:
    """Override one or both, sync or async. `Interceptor.before(f)` and `.after(f)` make one from a function."""

    def before_dispatch(self, delivery: Delivery) -> Any:
        return None

    def after_dispatch(self, delivery: Delivery, error: Exception | None) -> Any:
        return None

    @staticmethod
    def before(function: Callable[[Delivery], Any]) -> Interceptor:
        return _Before(function)

    @staticmethod
    def after(function: Callable[[Delivery, Exception | None], Any]) -> Interceptor:
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


class Dispatch:
    """The engine's handler for an outbox."""

    def __init__(self, listeners: Registry, interceptors: Sequence[Interceptor], threads: ListenerThreads) -> None:
        self._find = listeners.find
        self._listeners = listeners
        self._interceptors = tuple(interceptors)
        self._threads = threads

    def __call__(self, delivery: Delivery) -> Awaitable[Any]:
        """What to await. The common case, one async listener and no interceptor, adds no coroutine of its own."""
        return self._intercepted(delivery) if self._interceptors else self._listen(delivery)

    def _listen(self, delivery: Delivery) -> Awaitable[Any]:
        event = delivery.event
        listener = self._find(event.aggregate_type, event.type)
        if listener is None:
            raise self._unroutable(event.aggregate_type, event.type)
        if listener.is_async:
            return listener.call(event, delivery) if listener.wants_delivery else listener.call(event)  # type: ignore[no-any-return]
        return self._threaded(listener, delivery)

    async def _intercepted(self, delivery: Delivery) -> None:
        error: Exception | None = None
        entered = []
        try:
            for interceptor in self._interceptors:
                entered.append(interceptor)
                await _maybe(interceptor.before_dispatch(delivery))
            await self._listen(delivery)
        except Exception as raised:
            error = raised
            raise
        except asyncio.CancelledError:
            error = DeliveryError("the listener was stopped: it ran too long, or this process is stopping")
            raise
        finally:
            for interceptor in reversed(entered):
                await self._after(interceptor, delivery, error)

    async def _after(self, interceptor: Interceptor, delivery: Delivery, error: Exception | None) -> None:
        try:
            await _maybe(interceptor.after_dispatch(delivery, error))
        except Exception:
            log.exception("after_dispatch of %s failed for event %s", type(interceptor).__name__, delivery.event.id)

    async def _threaded(self, listener: Listener, delivery: Delivery) -> None:
        arguments = (delivery.event, delivery) if listener.wants_delivery else (delivery.event,)
        await _maybe(await self._threads.call(listener.call, *arguments))

    def _unroutable(self, aggregate_type: str, event_type: str) -> Unroutable:
        text = f"no listener for event type {event_type!r} of aggregate type {aggregate_type!r}"
        near = self._listeners.near_misses(event_type) if isinstance(self._listeners, Listeners) else []
        if near:
            text += f"; there is one for {near[0]!r}: register it with aggregate_type={aggregate_type!r}"
            if aggregate_type == GLOBAL:
                text += " or write the event with its aggregate type"
        return Unroutable(text)


async def _maybe(value: Any) -> None:
    if inspect.isawaitable(value):
        await value
