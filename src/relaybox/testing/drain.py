"""Deliver what is pending, once, here and now: no services, no threads, no waiting.

    place_order(outbox, 7)
    drained = deliver_pending(outbox, listeners)
    assert [e.type for e in drained.delivered] == ["OrderPlaced", "StockReserved"]

Events are delivered one after the other in the order they are due, including those that listeners write meanwhile.
Plain listeners run in the calling thread, so they may use the test's own connection. What is delayed, or waits for a
retry, stays. A listener's error is raised after the event was marked for a retry as in production;
`raise_errors=False` collects the errors instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Any, overload

from ..delivery import Delivery
from ..drivers.spi import AsyncRunner
from ..engine.decide import decide
from ..engine.dispatch import Dispatch
from ..engine.rows.engine import Settled
from ..engine.threads import ListenerThreads
from ..errors import ConfigError
from ..event import Event
from ..facts import Delivered, Died, Retried
from ..listeners import Listener, Listeners, registry
from ..op import Op, T
from ..outbox import AsyncOutbox, Outbox
from ..outbox.source import OutboxSource
from ..outcome import DONE, Dead, RetryAt
from ..store.claims import Claim

LIMIT = 1_000
OWNER = "relaybox-testing"
LEASE = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Drained:
    """What became of the pending events, in order."""

    delivered: list[Event] = field(default_factory=list)
    failed: list[tuple[Event, Exception]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.delivered) + len(self.failed)


@overload
def deliver_pending(
    outbox: Outbox, listeners: Listeners | Callable[..., object], *, raise_errors: bool = True, limit: int = LIMIT
) -> Drained: ...
@overload
def deliver_pending(
    outbox: AsyncOutbox, listeners: Listeners | Callable[..., object], *, raise_errors: bool = True, limit: int = LIMIT
) -> Coroutine[Any, Any, Drained]: ...
def deliver_pending(outbox: Any, listeners: Any, *, raise_errors: bool = True, limit: int = LIMIT) -> Any:
    """Delivers what is due, in this call. To be awaited for an AsyncOutbox; for an Outbox, async listeners run in an
    event loop made for it."""
    if isinstance(outbox, AsyncOutbox):
        return _Drain(outbox, outbox._db, listeners, _Here(outbox._target)).run(raise_errors, limit)
    with suppress(RuntimeError):
        asyncio.get_running_loop()
        raise ConfigError("deliver_pending was called inside an event loop; give it an AsyncOutbox, and await it")
    loop = _StandingLoop()
    drain = _Drain(outbox, _Blocking(outbox, loop), listeners, _BesideLoop(outbox._target, loop))
    return loop.run(drain.run(raise_errors, limit))


class _StandingLoop:
    """An event loop that stands still while plain code works, in the same thread. As in the threads of production that
    code sees no running loop: Django and asyncio.run() refuse one."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._waiting: list[tuple[asyncio.Future[Any], Callable[[], Any]]] = []

    async def call(self, function: Callable[..., Any], *args: Any) -> Any:
        answer = self._loop.create_future()
        self._waiting.append((answer, partial(copy_context().run, function, *args)))
        self._loop.stop()
        return await answer

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        task = self._loop.create_task(work)
        task.add_done_callback(lambda _: self._loop.stop())
        try:
            while not task.done():
                self._loop.run_forever()
                while self._waiting:
                    _answer(*self._waiting.pop(0))
            return task.result()
        finally:
            if task.done() and not task.cancelled():
                task.exception()  # one that ends the program was raised by the loop: it is told once
            self._loop.close()


def _answer(answer: asyncio.Future[Any], call: Callable[[], Any]) -> None:
    try:
        result = call()
    except BaseException as error:
        answer.set_exception(error)
    else:
        answer.set_result(result)


class _Blocking:
    """A synchronous database with the face of an async one."""

    listen: Callable[[str, Callable[[], None], Callable[[], None]], Awaitable[None]] | None = None

    def __init__(self, outbox: Outbox, loop: _StandingLoop) -> None:
        self._loop = loop
        self._db = outbox._db
        self.dialect = outbox._db.dialect
        self.size = 1  # what it is asked for runs one after another
        self.address = outbox._db.address

    async def run(self, op: Op[T], *, tx: bool = True) -> T:
        result: T = await self._loop.call(partial(self._db.run, op, tx=tx))
        return result

    def within(self, seconds: float | None) -> _Blocking:
        return self

    def connection(self) -> Any:
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError


class _Here(ListenerThreads):
    """Plain listeners in the calling thread: what they use belongs to the test. One of a framework that refuses to work
    in an event loop is called where the framework says."""

    def __init__(self, target: Any) -> None:
        super().__init__(1)
        self._frameworks = [framework for framework in self._frameworks if framework.concerns(target)]

    def _within(self, listener: Listener) -> Listener:
        for framework in self._frameworks if not listener.is_async else ():
            listener = replace(listener, call=framework.apart(listener.call), is_async=True)
        return listener

    async def call(self, function: Callable[..., Any], *args: Any) -> Any:
        return function(*args)


class _BesideLoop(_Here):
    """The same, while the loop stands still."""

    def __init__(self, target: Any, loop: _StandingLoop) -> None:
        super().__init__(target)
        self._standing = loop

    def _within(self, listener: Listener) -> Listener:
        for framework in self._frameworks if listener.is_async else ():
            listener = replace(listener, call=framework.here(listener.call), is_async=False)
        return listener

    async def call(self, function: Callable[..., Any], *args: Any) -> Any:
        return await self._standing.call(function, *args)


class _Held(OutboxSource):
    """Claims that outlast the test, so what failed is not due again before the end."""

    def new_claim(self) -> Claim:
        return super().new_claim()._replace(lease=LEASE)


class _Drain:
    def __init__(
        self,
        box: Outbox | AsyncOutbox,
        db: AsyncRunner,
        listeners: Listeners | Callable[..., object],
        threads: ListenerThreads,
    ) -> None:
        self._box = box
        self._db = db
        self._source = _Held(db, box.store, box.settings, box._clock)
        self._dispatch = Dispatch(registry(listeners), threads, timeout=box.settings.delivery.timeout)
        self._waiting: list[Delivery] = []
        self._done: list[Settled] = []
        self._failed: list[Settled] = []  # settled at the end: until then they are held, so nobody claims them again
        self._drained = Drained()

    async def run(self, raise_errors: bool, limit: int) -> Drained:
        store, clock = self._box.store, self._box._clock
        self._source.owner = await self._db.run(store.register(OWNER, "test", LEASE, clock.database_now()))
        try:
            while claimed := await self._source.claim(self._box.settings.delivery.batch):
                self._waiting += claimed
                await self._deliver_all(raise_errors, limit)
                await self._settle(self._done)
        finally:
            await self._settle(self._done)
            await self._settle(self._failed)
            if self._waiting:
                await self._source.release(self._waiting)
            await self._db.run(store.retire(self._source.owner, clock.database_now()))
        return self._drained

    async def _deliver_all(self, raise_errors: bool, limit: int) -> None:
        while self._waiting:
            if len(self._drained) >= limit:
                raise AssertionError(
                    f"{limit} events delivered and there are more: does a listener write events in a circle? "
                    "Raise the limit if there are really that many"
                )
            error = await self._deliver(self._waiting.pop(0))
            if error is not None and raise_errors:
                raise error

    async def _deliver(self, delivery: Delivery) -> Exception | None:
        settings = self._box.settings.delivery
        timeout = settings.timeout
        try:
            async with asyncio.timeout(timeout.total_seconds() if timeout is not None else None):
                await self._dispatch.row(delivery)
        except Exception as error:
            outcome = decide(error, delivery.attempts, settings.retry)
            self._drained.failed.append((delivery.event, error))
            self._failed.append((delivery, outcome))
            return error
        self._drained.delivered.append(delivery.event)
        self._done.append((delivery, DONE))
        return None

    async def _settle(self, outcomes: list[Settled]) -> None:
        """As the engine does it, with the same facts."""
        if not outcomes:
            return
        settled, tell = outcomes[:], self._box._observers
        outcomes.clear()
        await self._source.settle(settled)
        done = sum(1 for _, outcome in settled if outcome is DONE)
        if done:
            tell(Delivered(done))
        for delivery, outcome in settled:
            event = delivery.event
            if isinstance(outcome, RetryAt):
                tell(Retried(event.id, event.type, delivery.attempts, outcome.delay, outcome.error))
            elif isinstance(outcome, Dead):
                tell(Died(event.id, event.type, delivery.attempts, outcome.error))
