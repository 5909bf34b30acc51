"""The deliver stage of groups: workers take events or batches of ranges, call the handler, and conclude."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast

from ... import faults
from ...clock import Clock
from ...errors import BatchFailed, BrokerUnavailable, DeliveryError, RetryLater
from ...event import Event
from ...facts import Observers
from ...outcome import Outcome, RetryAt
from ...settings import DeliverySettings
from ..decide import decide
from ..workers import ENDED, Asked, Worker, Workers
from .holding import Handed, Portion, RangeHolding, Taken

if TYPE_CHECKING:
    from .engine import RangeEngine

YIELD_EVERY = 64  # events a worker runs before it lets the loop breathe
NOTHING = cast("Handed", (None, None))  # a worker that sleeps keeps no page in memory

RangeHandler: TypeAlias = Callable[[Event, int], Awaitable[Any]]  # an event, and which attempt this is


class RangeBatch:
    """What one call of a batch handler is about."""

    __slots__ = ("_portions", "_workers", "events")

    def __init__(self, workers: RangeWorkers, portions: Sequence[Portion]) -> None:
        self._workers = workers
        self._portions = portions
        self.events: list[Event] = list(chain.from_iterable([events for _, events in portions]))

    def types(self) -> set[str]:
        """No event of it has another type."""
        return set().union(*[taken.types for taken, _ in self._portions])

    def attempts(self) -> Iterator[tuple[Event, int]]:
        """The events, and which attempt this is of each."""
        return ((event, taken.attempts) for taken, events in self._portions for event in events)

    async def ours(self) -> set[str]:
        """The ids of the events that are still ours: for a handler that waits, to ask before every try. None once the
        engine stops: a try that has not begun does not begin."""
        await self._workers.heard()
        if self._workers.stopping:
            return set()
        now = self._workers._clock.monotonic()
        return {event.id for taken, events in self._portions if taken.lease_end > now for event in events}


class RangeBatchHandler(Protocol):
    """Handles many events in one call. BatchFailed says which of them failed; any other error is about all."""

    size: int  # most events in one call

    async def handle(self, batch: RangeBatch) -> None: ...


@dataclass(eq=False, slots=True)
class RangeWorker(Worker):
    handed: Handed | None = None  # what it has, or what it has next; set whenever others may run
    current: Sequence[Portion] = ()  # the same in batches, as long as it is not concluded
    gathered: Sequence[Portion] = ()  # the whole batch

    def in_hand(self) -> Sequence[Event]:
        if self.calls % 2 and self.handed is not None:
            return [self.handed[1]]
        return [event for _, events in self.current for event in events]


class RangeWorkers(Workers[RangeWorker]):
    """`delivery.workers` calls of the handler at the same time."""

    def __init__(
        self,
        engine: RangeEngine,
        holding: RangeHolding,
        handler: RangeHandler | RangeBatchHandler,
        settings: DeliverySettings,
        observers: Observers,
        clock: Clock,
        asked: Asked | None,
    ) -> None:
        self._engine = engine
        self._holding = holding
        if callable(handler):
            self._handler = handler
        else:
            self._batches = handler
        super().__init__(
            [RangeWorker() for _ in range(settings.workers)],
            self._work_singly if callable(handler) else self._work_batches,
            lambda: engine.pulse,
            settings,
            observers,
            clock,
            for_ever=engine.blocks,
            asked=asked,
        )
        holding.handed = self._handed

    def _handed(self) -> Iterable[Handed]:
        workers = self.workers
        batches = [(taken, event) for worker in workers for taken, events in worker.current for event in events]
        return batches + [worker.handed for worker in workers if worker.handed is not None]

    # -- one by one ---------------------------------------------------------------------------------

    async def _work_singly(self, worker: RangeWorker) -> None:
        holding, engine, handler, monotonic = self._holding, self._engine, self._handler, self._clock.monotonic
        take, done, stopped, pulse = holding.take, holding.done, self._stop.is_set, self._pulse()
        if worker.ended_in_call and worker.handed is not None:  # it has failed, or it would come back for ever
            worker.handed = self._failed(*worker.handed, DeliveryError(ENDED))
        while not stopped():
            if worker.handed is None:
                worker.handed = take()
                if worker.handed is None:
                    taken, event = NOTHING
                    await self.sleep()
                    continue
            taken, event = worker.handed
            now = monotonic()
            if now >= pulse.alive_until:
                await self.heard()
                now = monotonic()
                if stopped():
                    return
            if now >= taken.lease_end or taken.gone or (taken.parked and engine.suspects(taken)):
                engine.forget(taken)
                worker.handed = holding.abandon(event)
                continue
            if taken.parked and (outcome := self.hopeless(event, taken.attempts)) is not None:
                worker.handed = self._conclude(taken, event, outcome)
                continue
            worker.calls += 1
            try:
                if faults.armed is not None:
                    faults.hit("deliver.before")
                await handler(event, taken.attempts)
                if faults.armed is not None:
                    faults.hit("deliver.after")
                worker.calls += 1
                worker.handed = done(taken, event)
            except BaseException as error:
                meant = self.meant(worker, error)
                worker.calls += 1
                worker.handed = self._failed(taken, event, meant)
            if worker.timed_out:  # and the handler swallowed it
                self.forgive(worker)
            if not worker.calls % (2 * YIELD_EVERY):
                await asyncio.sleep(0)

    def _failed(self, taken: Taken, event: Event, error: BaseException) -> Handed | None:
        return self._conclude(taken, event, self.failed(event, taken.attempts, error))

    def _conclude(self, taken: Taken, event: Event, outcome: Outcome) -> Handed | None:
        handed = self._holding.failed(taken, event, outcome, taken.attempts)
        if taken.parked and self._holding.holds(outcome):
            self._engine.run_failed(taken)
        return handed

    # -- in batches ---------------------------------------------------------------------------------

    async def _work_batches(self, worker: RangeWorker) -> None:
        holding = self._holding
        if worker.gathered:  # the task before this one ended amid it
            for taken, _ in worker.current:
                self._engine.forget(taken)
            self._part(worker)
        while not self._stop.is_set():
            portions = holding.gather(self._batches.size, self.calm)
            if not portions:
                await self.sleep()
                continue
            worker.current = worker.gathered = portions
            await self._deliver(worker, portions)
            if self._stop.is_set():
                return  # what is not concluded is given back
            self._part(worker)
            await asyncio.sleep(0)

    def _part(self, worker: RangeWorker) -> None:
        """The shards of its batch are free, also of what has left the batch meanwhile."""
        self._holding.part(worker.gathered)
        worker.current = worker.gathered = ()
        self.wake(len(self.workers))

    async def _deliver(self, worker: RangeWorker, portions: Sequence[Portion]) -> None:
        """All in one call. If it fails, halves, and halves of halves: the event that spoils it for the others is found
        in a few calls, and it alone is parked."""
        await self.heard()
        todo: list[Sequence[Portion]] = [[portion for portion in portions if self._may_run(*portion)]]
        fresh = True  # those that must follow a failed one are gone already
        while todo and not self._stop.is_set():
            part = todo.pop() if fresh else self._runnable(todo.pop())
            fresh = False
            if not part:
                continue
            worker.current = [*chain.from_iterable(todo), *part]
            error = await self._call(worker, part)
            if isinstance(error, _Interrupted):
                todo.append(part)  # what of it is still ours runs again, unless we stop
                continue
            if error is None:
                for taken, events in part:
                    self._holding.done_all(taken, len(events))
            elif isinstance(error, BatchFailed):
                todo.append(self._some_failed(part, error))
            elif len(pairs := [(taken, event) for taken, events in part for event in events]) == 1:
                self._failed(*pairs[0], error)
            else:
                middle = len(pairs) // 2
                todo += [[(taken, (event,)) for taken, event in half] for half in (pairs[middle:], pairs[:middle])]
            worker.current = list(chain.from_iterable(todo))

    def _runnable(self, part: Sequence[Portion]) -> list[Portion]:
        """What is still ours, without those that must follow a failed one."""
        follows, now = self._holding.follows, self._clock.monotonic()
        for taken, _ in part:
            if taken.lease_end <= now:
                self._engine.forget(taken)
        still = [(taken, [e for e in events if not follows(taken, e)]) for taken, events in part if not taken.gone]
        return [(taken, events) for taken, events in still if events]

    def _may_run(self, taken: Taken, events: Sequence[Event]) -> bool:
        if taken.gone:  # with one before it in this batch, which it must not overtake
            return False
        if taken.lease_end <= self._clock.monotonic():
            self._engine.forget(taken)
        elif not (taken.parked and taken.attempts > self.calm):
            return True
        elif not self._engine.suspects(taken):
            if (outcome := self.hopeless(events[0], taken.attempts)) is None:
                return True
            self._conclude(taken, events[0], outcome)
        return False

    async def _call(self, worker: RangeWorker, portions: Sequence[Portion]) -> BaseException | None:
        """The error, if there was one that is not over by waiting."""
        batch, tries = RangeBatch(self, portions), 0
        while True:
            worker.calls += 1
            try:
                if faults.armed is not None:
                    faults.hit("deliver.before")
                await self._batches.handle(batch)
                if faults.armed is not None:
                    faults.hit("deliver.after")
                worker.calls += 1
                if worker.timed_out:
                    self.forgive(worker)
                return None
            except BaseException as raised:
                error = self.meant(worker, raised)
                worker.calls += 1
            tries += 1
            pause = self._worth_waiting(error, tries)
            if pause is None:
                return error
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._stop.wait()
            await self.heard()
            if self._stop.is_set() or len(await batch.ours()) < len(batch.events):
                return _Interrupted()

    def _worth_waiting(self, error: BaseException, tries: int) -> float | None:
        """Seconds after which the same call is made again: the destination is away, or the handler asked for it."""
        if not isinstance(error, (RetryLater, BrokerUnavailable)):
            return None
        outcome = decide(error, tries, self._settings.retry, for_ever=self._for_ever)
        return outcome.delay.total_seconds() if isinstance(outcome, RetryAt) else None

    def _some_failed(self, part: Sequence[Portion], error: BatchFailed) -> list[Portion]:
        """Concludes what a batch handler named. Returns the portions that are to be handled again."""
        again: list[Portion] = []
        for taken, events in part:
            for event in events:
                if event in error.errors:
                    self._failed(taken, event, error.errors[event])
                elif event in error.skipped:
                    again.append((taken, (event,)))
                else:
                    self._holding.done_all(taken, 1)
        return again


class _Interrupted(Exception):
    """We stop, or it is not ours any more: what is left will be given back, or is another's."""
