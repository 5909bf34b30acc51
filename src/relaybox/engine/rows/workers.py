"""The deliver stage: workers take what may run, call the handler, and conclude with an outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ... import faults
from ...clock import Clock
from ...delivery import Delivery
from ...errors import DeliveryError, Undecodable
from ...event import Event
from ...facts import Observers
from ...outcome import DONE, Dead, Outcome, Skip
from ...settings import DeliverySettings
from ..decide import describe
from ..protocols import BatchHandler, FairQueue, Handler
from ..workers import ENDED, Asked, Worker, Workers
from .lanes import Lanes

if TYPE_CHECKING:
    from .engine import RowEngine

YIELD_EVERY = 32  # events a worker runs before it lets the loop breathe


@dataclass(eq=False, slots=True)
class RowWorker(Worker):
    current: Sequence[Delivery] = ()
    batch: _Gathered | None = None

    def left(self) -> Sequence[Delivery]:
        """Taken and not concluded."""
        return self.current if self.batch is None else self.batch.left()

    def in_hand(self) -> Sequence[Event]:
        return [delivery.event for delivery in self.left()]


class RowWorkers(Workers[RowWorker]):
    """`delivery.workers` calls of the handler at once, one event each. A batch handler watches the time itself."""

    def __init__(
        self,
        engine: RowEngine,
        lanes: Lanes[Delivery],
        handler: Handler | BatchHandler,
        settings: DeliverySettings,
        observers: Observers,
        clock: Clock,
        asked: Asked | None,
    ) -> None:
        self._engine = engine
        self._lanes = lanes
        self._batches: BatchHandler | None = None
        if callable(handler):
            self._handler = handler
        else:
            self._batches = handler
        self._fair: FairQueue | None = getattr(handler, "queue", None)
        super().__init__(
            [RowWorker() for _ in range(settings.workers if self._fair is None else self._fair.workers)],
            self._work_singly if callable(handler) else self._work_batches,
            lambda: engine.pulse,
            settings,
            observers,
            clock,
            for_ever=engine.blocks,
            watched=callable(handler),
            asked=asked,
        )
        if self._fair is not None:
            self._fair.wake = lambda: self.wake(1)

    async def _next(self) -> Delivery | None:
        """None when this worker ends."""
        while (delivery := self._engine.take()) is None and not self.stopping:
            await self.sleep()
        if self._fair is not None and self._fair:  # it may have taken something else than what it was woken for
            self.wake(1)
        return delivery

    def _undeliverable(self, delivery: Delivery) -> Outcome | None:
        """The outcome of an event that no handler can or shall see; None: try it."""
        if delivery.event.body is None:
            if delivery.event.id is None:
                return Skip("the event row is gone")
            return Dead(describe(Undecodable(delivery.event.unreadable)))
        return self.hopeless(delivery.event, delivery.attempts)

    # -- one by one ---------------------------------------------------------------------------------

    async def _work_singly(self, worker: RowWorker) -> None:
        engine, monotonic, pulse = self._engine, self._clock.monotonic, self._pulse()
        take, conclude = engine.take, engine.conclude
        self._forget_left(worker)
        while True:
            delivery = take() or await self._next()
            if delivery is None:
                return
            worker.current = (delivery,)
            now = monotonic()
            if now >= pulse.alive_until:
                await self.heard()
                if self.stopping:
                    return
                now = monotonic()
            if now >= delivery.lease_end:  # nothing starts after its lease ended by our own clock
                engine.forget(delivery)
                worker.current = ()
                continue
            worker.calls += 1
            outcome = await self._deliver(worker, delivery)
            worker.calls += 1
            worker.current = ()
            conclude(delivery, outcome)
            if not worker.calls % (2 * YIELD_EVERY):
                await asyncio.sleep(0)

    def _forget_left(self, worker: RowWorker) -> None:
        """Left by the task before this one. What it was handling has failed, or it would come back for ever."""
        for delivery in worker.left():
            if not worker.ended_in_call:
                self._engine.forget(delivery)
            elif worker.batch is not None:
                worker.batch.failed(delivery, DeliveryError(ENDED))
            else:
                self.finish(delivery, DeliveryError(ENDED))
        worker.current, worker.batch = (), None

    async def _deliver(self, worker: RowWorker, delivery: Delivery) -> Outcome:
        try:
            if faults.armed is not None:
                faults.hit("deliver.before")
            if (outcome := self._undeliverable(delivery)) is not None:
                return outcome
            await self._handler(delivery)
            if faults.armed is not None:
                faults.hit("deliver.after")
            return DONE
        except BaseException as error:
            return self.failed(delivery.event, delivery.attempts, self.meant(worker, error))
        finally:
            if worker.timed_out:
                self.forgive(worker)

    # -- in batches ---------------------------------------------------------------------------------

    async def _work_batches(self, worker: RowWorker) -> None:
        assert self._batches is not None
        self._forget_left(worker)
        while (first := await self._next()) is not None:
            worker.current, worker.batch = (first,), None
            await self.heard()
            if self.stopping:
                return
            batch = worker.batch = self._gather(self._batches, first)
            if not batch:
                continue
            if faults.armed is not None:
                faults.hit("deliver.before")
            worker.calls += 1
            try:
                await self._batches.handle(batch)
                error: BaseException = RuntimeError("the batch handler said nothing about this event")
            except BaseException as raised:
                error = self.meant(worker, raised)
            worker.calls += 1
            for delivery in batch.left() if not self.stopping else ():  # else they are given back
                batch.failed(delivery, error)
            if faults.armed is not None:
                faults.hit("deliver.after")
            await asyncio.sleep(0)

    def _gather(self, batches: BatchHandler, first: Delivery) -> _Gathered:
        """As much as one call may take, without waiting for more."""
        size, calm, now = batches.size, self.calm, self._clock.monotonic()
        heads = [first, *self._engine.take_many(size - 1)]
        taken = [d for d in heads if d.lease_end > now and d.attempts <= calm and d.event.id is not None]
        if len(taken) < len(heads):
            taken = self._sort_out(heads, now)
        alone = len(taken) == 1 and self._suspect(taken[0])
        if batches.sequences and len(taken) < size and not alone:
            for head in self._lanes.followed(taken):
                taken += self._followers(head, size - len(taken))
        return _Gathered(self, batches, taken)

    def _sort_out(self, heads: Sequence[Delivery], now: float) -> list[Delivery]:
        """What may run together. What has been claimed often without an outcome goes alone: should it kill its process,
        it takes no neighbours along."""
        taken: list[Delivery] = []
        for place, head in enumerate(heads):
            if head.lease_end <= now:
                self._engine.forget(head)
            elif (outcome := self._undeliverable(head)) is not None:
                self._engine.conclude(head, outcome)
            elif not self._suspect(head):
                taken.append(head)
            else:
                alone = [] if taken else [head]
                self._engine.defer(heads[place + len(alone) :])
                return taken or alone
        return taken

    def _suspect(self, delivery: Delivery) -> bool:
        return delivery.attempts > self.calm

    def _followers(self, head: Delivery, limit: int) -> list[Delivery]:
        """Up to the first suspect, or the first that is not ours any more."""
        followers, now = self._lanes.join(head, limit), self._clock.monotonic()
        for number, follower in enumerate(followers):
            if self._suspect(follower) or follower.lease_end <= now:
                self._lanes.part(followers[number:])
                return followers[:number]
        return followers

    def finish(self, delivery: Delivery, error: BaseException | None) -> None:
        outcome = DONE if error is None else self.failed(delivery.event, delivery.attempts, error)
        self._engine.conclude(delivery, outcome)


class _Gathered:
    """The batch of one worker. Deliveries of a key stand in their order."""

    __slots__ = ("_batches", "_open", "_workers")

    def __init__(self, workers: RowWorkers, batches: BatchHandler, deliveries: Sequence[Delivery]) -> None:
        self._workers = workers
        self._batches = batches
        self._open = {delivery.seq: delivery for delivery in deliveries}

    def __len__(self) -> int:
        return len(self._open)

    def left(self) -> list[Delivery]:
        return list(self._open.values())

    async def waiting(self) -> list[Delivery]:
        """Nothing once the engine stops: a try that has not begun does not begin."""
        await self._workers.heard()
        if self._workers.stopping:
            return []
        now = self._workers._clock.monotonic()
        for lost in [d for d in self._open.values() if d.lease_end <= now]:
            if lost.seq in self._open:  # its key goes whole: nothing may overtake what another process has now
                head, *later = self._lane(lost)
                del self._open[head.seq]
                self._hold_back(later)
                self._workers._engine.forget(head)
        return self.left()

    def done(self, delivery: Delivery) -> None:
        if self._open.pop(delivery.seq, None) is not None:
            self._workers.finish(delivery, None)

    def done_all(self, deliveries: Sequence[Delivery]) -> None:
        self._workers._engine.conclude_all([d for d in deliveries if self._open.pop(d.seq, None) is not None])

    def failed(self, delivery: Delivery, error: BaseException) -> None:
        if delivery.seq not in self._open:
            return
        lane = self._lane(delivery)
        place = lane.index(delivery)
        if place:  # a predecessor is on its way yet: it is tried again behind it
            self._hold_back(lane[place:])
        else:
            del self._open[delivery.seq]
            self._hold_back(lane[1:])
            self._workers.finish(delivery, error)

    def _lane(self, delivery: Delivery) -> list[Delivery]:
        if delivery.lane is None or not self._batches.sequences:
            return [delivery]
        return [d for d in self._open.values() if d.lane == delivery.lane]

    def _hold_back(self, later: Sequence[Delivery]) -> None:
        for follower in later:
            del self._open[follower.seq]
        if later:
            self._workers._lanes.part(later)
