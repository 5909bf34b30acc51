"""Calls the listener of an event, between interceptors.

Per event: before-interceptors in their order, listener, after-interceptors in reverse with the error or None. An event
that no listener takes is dead or ignored, as the listeners say; one that a filter turns down is ignored, which counts
as done.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from ..clock import SYSTEM_CLOCK, Clock
from ..delivery import Delivery
from ..errors import BatchFailed, DeliveryError, Unroutable
from ..event import Event, read_as
from ..hooks import Interceptor
from ..listeners import ANY, UNSET, Listener, Listeners, Unmatched
from ..retry import Retry
from ..words import did_you_mean
from .protocols import RowBatch
from .ranges.workers import RangeBatch
from .threads import ListenerThreads

log = logging.getLogger("relaybox")

TIMED = 16  # calls after each question how long listeners take


class _Nothing:
    """What to await for an event that nobody wants."""

    def __await__(self) -> Generator[None, None, None]:
        return
        yield


_NOTHING = _Nothing()


class Durations:
    """How long handlers take."""

    def __init__(self, clock: Clock) -> None:
        self.now = clock.monotonic
        self.events = 0
        self.seconds = 0.0

    def since(self, started: float, events: int = 1) -> None:
        self.events += events
        self.seconds += self.now() - started

    @property
    def mean(self) -> float:
        return self.seconds / self.events if self.events else 0.0


class Dispatch:
    """The handler of both engines: `row` of a delivery, `event` of an event in a range."""

    def __init__(
        self,
        listeners: Listeners[Any],
        threads: ListenerThreads,
        unmatched: Unmatched = "dead",
        *,
        timeout: timedelta | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        listeners = threads.around(listeners)
        self.ignored = 0
        self.stopping = False
        # Of a batch, so that each listener can take its share in one call; 0: no listener takes batches.
        self.size = min((listener.size for listener in listeners.all() if listener.size), default=0)
        self._listeners = listeners
        self._interceptors = listeners.interceptors
        self._dead = (listeners.unmatched or unmatched) == "dead"
        self._threads = threads
        self._timeout = timeout
        self._durations = Durations(clock)
        self._to_time = TIMED
        self._sole, self._sole_type = self._plain_listener()
        # Set while no call is to be timed: what to call for an event of the sole type.
        self._only: Callable[..., Awaitable[Any]] | None = None

    def _plain_listener(self) -> tuple[Listener | None, str]:
        """The only listener, if it takes every event of a type (ANY: of all) as it is, and nothing is around it. There
        is nothing to choose then, and to choose costs as much as the rest of a log's way to a listener."""
        found = self._listeners
        if len(found) == 1 and found.where is None and not found.interceptors:
            ((event_type, aggregate_type), (only,)) = next(iter(found.by_type().items()))
            if (
                aggregate_type == ANY
                and only.is_async
                and not only.takes_two
                and only.where is None
                and only.codec is None
            ):
                return only, event_type
        return None, ANY

    # -- one event ------------------------------------------------------------------------------------

    def row(self, delivery: Delivery) -> Awaitable[Any]:
        """What to await. The common case, one async listener and no interceptor, adds no coroutine of its own."""
        return self._intercepted(delivery) if self._interceptors else self._listen(delivery.event, delivery)

    def event(self, event: Event, attempts: int) -> Awaitable[Any]:
        if self._only is not None and (self._sole_type == event.type or not self._sole_type):
            return self._only(event)
        if self._to_time:
            self._to_time -= 1
            if not self._to_time and self._sole is not None:
                self._only = self._sole.call
            return self._timed(event, attempts)
        return self._of_range(event, attempts)

    def _of_range(self, event: Event, attempts: int) -> Awaitable[Any]:
        if self._interceptors:
            return self._intercepted(_delivery(event, attempts))
        return self._listen(event, attempts)

    async def _timed(self, event: Event, attempts: int) -> None:
        started = self._durations.now()
        try:
            await self._of_range(event, attempts)
        finally:
            self._durations.since(started)

    def mean(self) -> float:
        """Seconds per event; and the next few are timed."""
        self._to_time, self._only = TIMED, None
        return self._durations.mean

    def _listen(self, event: Event, second: Delivery | int) -> Awaitable[Any]:
        listener = self._listeners.find(event)
        if listener is None:
            return self._unmatched(event)
        if listener.codec is not None:
            event = read_as(event, listener.codec)
        if listener.takes_two:
            delivery = second if isinstance(second, Delivery) else _delivery(event, second)
            return self._called(listener, event, delivery)
        if listener.is_async:
            called: Awaitable[Any] = listener.call(event)
            return called
        return self._threaded(listener, event)

    def _called(self, listener: Listener, *arguments: Any) -> Awaitable[Any]:
        if listener.is_async:
            called: Awaitable[Any] = listener.call(*arguments)
            return called
        return self._threaded(listener, *arguments)

    async def _threaded(self, listener: Listener, *arguments: Any) -> None:
        await _maybe(await self._threads.call(listener.call, *arguments))

    def _unmatched(self, event: Event) -> Awaitable[Any]:
        if self._dead and not self._listeners.candidates(event):
            near = self._listeners.aggregate_types(event.type)
            if near:
                hint = f"; there is one for aggregate type {near[0]!r}"
            else:
                hint = did_you_mean(event.type, self._listeners.types(), "; listeners.on registers one")
            raise Unroutable(
                f"no listener for event type {event.type!r} of aggregate type {event.aggregate_type!r}{hint}"
            )
        self.ignored += 1
        return _NOTHING

    async def _intercepted(self, delivery: Delivery) -> None:
        async with self._around([delivery]):
            await self._listen(delivery.event, delivery)

    @asynccontextmanager
    async def _around(self, deliveries: Sequence[Delivery]) -> AsyncIterator[dict[int, Exception]]:
        """The interceptors, for each of them. Into what is given: the errors of single ones, by their numbers."""
        error: Exception | None = None
        errors: dict[int, Exception] = {}
        entered: list[tuple[Interceptor, Delivery]] = []
        try:
            for delivery in deliveries if self._interceptors else ():
                for interceptor in self._interceptors:
                    entered.append((interceptor, delivery))
                    await _maybe(interceptor.before_dispatch(delivery))
            yield errors
        except Exception as raised:
            error = raised
            raise
        except asyncio.CancelledError:
            error = DeliveryError("the listener was stopped: it ran too long, or this process is stopping")
            raise
        finally:
            for interceptor, delivery in reversed(entered):
                await _after(interceptor, delivery, errors.get(delivery.seq, error))

    # -- what listeners ask for ---------------------------------------------------------------------------

    def retry(self, event: Event) -> Retry | None:
        """None: as the settings say."""
        listener = self._asked(event)
        return None if listener is None else listener.retry

    @property
    def shortest(self) -> timedelta | None:
        """The least time that a call of a listener may take; None: any."""
        limits = [self._timeout if each.timeout is UNSET else each.timeout for each in self._listeners.all()]
        return min((limit for limit in limits if limit is not None), default=None)

    def timeout(self, event: Event) -> timedelta | None:
        listener = self._asked(event)
        return self._timeout if listener is None or listener.timeout is UNSET else listener.timeout

    def _asked(self, event: Event) -> Listener | None:
        found = self._listeners.candidates(event)
        if len(found) == 1:
            return found[0]
        try:
            return self._listeners.find(event)
        except Exception:  # a filter that fails; the event has failed by it, or will
            return None

    # -- batches ------------------------------------------------------------------------------------------

    async def whole(self, batch: RangeBatch) -> bool:
        """Calls the sole listener, if the batch is all its own. False: somebody must choose."""
        sole, events = self._sole, batch.events
        if sole is None or batch.types() != {self._sole_type}:
            return False
        started = self._durations.now()
        try:
            await sole.call(events)
        finally:
            self._durations.since(started, len(events))
        return True

    async def many(self, deliveries: Sequence[Delivery]) -> None:
        """Each listener that is concerned is called with its share. An error of the only one is about all of them;
        otherwise BatchFailed says what failed."""
        errors: dict[Event, BaseException] = {}
        shares: dict[Listener, list[Delivery]] = {}
        for delivery in deliveries:
            try:
                listener = self._listeners.find(delivery.event)
                if listener is None:
                    self._unmatched(delivery.event)
                else:
                    shares.setdefault(listener, []).append(delivery)
            except Exception as error:
                errors[delivery.event] = error
        started = self._durations.now()
        calls = [self._share(listener, share) for listener, share in shares.items()]
        results = await asyncio.gather(*calls, return_exceptions=True)
        self._durations.since(started, len(deliveries))
        skipped: set[Event] = set()
        for share, result in zip(shares.values(), results, strict=True):
            if isinstance(result, BatchFailed):
                errors.update(result.errors)
                skipped.update(result.skipped)
            elif isinstance(result, BaseException):
                if len(shares) == 1 and not errors:
                    raise result
                errors.update({delivery.event: result for delivery in share})
        if errors or skipped:
            raise BatchFailed(errors, skipped)

    async def _share(self, listener: Listener, deliveries: Sequence[Delivery]) -> None:
        if listener.size is not None:
            async with self._around(deliveries), self._limited(listener):
                await self._called(listener, [read(listener, delivery.event) for delivery in deliveries])
            return
        errors: dict[Event, BaseException] = {}
        skipped: list[Event] = []
        for delivery in deliveries:
            event = delivery.event
            if self.stopping or (event.key is not None and any(event.key == failed.key for failed in errors)):
                skipped.append(event)  # which is given back, or follows the one that failed
                continue
            try:
                async with self._around([delivery]), self._limited(listener):
                    second = (delivery,) if listener.takes_two else ()
                    await self._called(listener, read(listener, event), *second)
            except Exception as error:
                errors[event] = error
        if errors or skipped:
            raise BatchFailed(errors, skipped)

    @asynccontextmanager
    async def _limited(self, listener: Listener) -> AsyncIterator[None]:
        limit = self._timeout if listener.timeout is UNSET else listener.timeout
        try:
            async with asyncio.timeout(None if limit is None else limit.total_seconds()) as running:
                yield
        except TimeoutError as error:
            if running.expired():
                raise TimeoutError(f"the listener ran longer than {limit}") from error
            raise


class RangeBatches:
    """The handler of the range engine, many events at a time."""

    def __init__(self, dispatch: Dispatch) -> None:
        self.size = dispatch.size
        self._dispatch = dispatch

    async def handle(self, batch: RangeBatch) -> None:
        if not await self._dispatch.whole(batch):
            await self._dispatch.many([_delivery(event, attempts) for event, attempts in batch.attempts()])


class RowBatches:
    """The handler of the row engine, many events at a time. If a call fails as a whole, halves are tried."""

    sequences = True

    def __init__(self, dispatch: Dispatch) -> None:
        self.size = dispatch.size
        self._many = dispatch.many

    async def handle(self, batch: RowBatch) -> None:
        todo: list[Sequence[Delivery]] = [await batch.waiting()]
        while todo:
            wanted, ours = todo.pop(), {delivery.seq for delivery in await batch.waiting()}
            part = [delivery for delivery in wanted if delivery.seq in ours]
            if not part:
                continue
            try:
                await self._many(part)
                batch.done_all(part)
            except BatchFailed as error:
                todo.append(_conclude(batch, part, error))
            except Exception as error:
                if len(part) == 1:
                    batch.failed(part[0], error)
                else:
                    middle = len(part) // 2
                    todo += [part[middle:], part[:middle]]


def _conclude(batch: RowBatch, part: Sequence[Delivery], error: BatchFailed) -> list[Delivery]:
    """Concludes what a batch listener named. Returns the deliveries that are to be handled again."""
    again = []
    for delivery in part:
        if delivery.event in error.errors:
            batch.failed(delivery, error.errors[delivery.event])
        elif delivery.event in error.skipped:
            again.append(delivery)
        else:
            batch.done(delivery)
    return again


def read(listener: Listener, event: Event) -> Event:
    return event if listener.codec is None else read_as(event, listener.codec)


def _delivery(event: Event, attempts: int) -> Delivery:
    return Delivery(event, event.seq or 0, 0, attempts, 0.0, hot=False)


async def _after(interceptor: Interceptor, delivery: Delivery, error: Exception | None) -> None:
    try:
        await _maybe(interceptor.after_dispatch(delivery, error))
    except Exception:
        log.exception("after_dispatch of %s failed for event %s", type(interceptor).__name__, delivery.event.id)


async def _maybe(value: Any) -> None:
    if inspect.isawaitable(value):
        await value
