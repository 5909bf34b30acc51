"""The deliver stage: workers take what may run, call the handler, and conclude with an outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from .. import faults
from ..clock import Clock
from ..outcome import DONE, Dead, Outcome, Skip
from ..retry import RetryPolicy
from ..settings import Settings
from .crew import Crew
from .decide import decide
from .service import cancelled
from .work import BatchHandler, Delivery, Handler

HEARING = 0.02  # seconds between two looks whether a silence has ended
YIELD_EVERY = 32  # events a worker runs before it lets the loop breathe


class Floor(Protocol):
    """What the engine is to its workers."""

    @property
    def silent(self) -> bool: ...

    def take(self) -> Delivery | None: ...

    def take_many(self, limit: int) -> list[Delivery]: ...

    def followed(self, heads: Sequence[Delivery]) -> list[Delivery]: ...

    def take_followers(self, delivery: Delivery, limit: int) -> list[Delivery]: ...

    def put_back(self, followers: Sequence[Delivery]) -> None: ...

    def defer(self, deliveries: Sequence[Delivery]) -> None: ...

    def conclude(self, delivery: Delivery, outcome: Outcome) -> None: ...

    def conclude_all(self, deliveries: Sequence[Delivery]) -> None: ...

    def forget(self, delivery: Delivery) -> None: ...


class Worker:
    __slots__ = ("deadline", "task", "timed_out")

    def __init__(self) -> None:
        self.deadline: float | None = None
        self.timed_out = False
        self.task: asyncio.Task[None] | None = None


class Workers:
    """`worker_count` calls of the handler at the same time, one event each."""

    def __init__(
        self, floor: Floor, handler: Handler | BatchHandler, settings: Settings, retry: RetryPolicy, clock: Clock
    ) -> None:
        self._floor = floor
        self._settings = settings
        self._retry = retry
        self._clock = clock
        self._crew = Crew()
        self.wake = self._crew.wake
        self._calm = min(settings.max_attempts, max(2, settings.max_attempts // 2))  # nothing to look into up to here
        self._all = [Worker() for _ in range(settings.worker_count)]
        self._watcher: asyncio.Task[None] | None = None
        if callable(handler):
            self._handler = handler
        else:
            self._batches = handler

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        batched = hasattr(self, "_batches")
        for worker in self._all:
            work = self._work_batches(worker) if batched else self._work(worker)
            worker.task = self._crew.hire(work)
        limit = self._settings.handler_timeout
        if limit is not None and not batched:
            self._watcher = asyncio.create_task(self._watch(limit.total_seconds()))

    async def stop(self, timeout: float) -> None:
        """Finish what is queued; whoever takes longer is cancelled."""
        await self._crew.stop(timeout)
        await cancelled(self._watcher)

    async def heard(self) -> None:
        """Nothing starts while we may have been declared dead (a pause, an outage of the database)."""
        while self._floor.silent:  # noqa: ASYNC110 - a heartbeat moves a time on, it sets no event
            await asyncio.sleep(HEARING)

    async def _next(self) -> Delivery | None:
        """None when this worker may go home."""
        while (delivery := self._floor.take()) is None and not self._crew.stopping.is_set():
            await self._crew.sleep()
        return delivery

    def _ours(self, delivery: Delivery) -> bool:
        """Nothing starts after its lease ended by our own clock."""
        if delivery.lease_end > self._clock.monotonic():
            return True
        self._floor.forget(delivery)
        return False

    def _hopeless(self, delivery: Delivery) -> Outcome | None:
        """What is decided before any handler sees it."""
        if delivery.event.id is None:
            return Skip("the event row is gone")
        if delivery.attempts > self._settings.max_attempts and not self._retries_for_ever(delivery):
            return Dead(f"claimed {delivery.attempts} times without an outcome: does it kill its process?")
        return None

    def _failed(self, delivery: Delivery, error: BaseException) -> Outcome:
        return decide(
            error,
            delivery.attempts,
            max_attempts=self._settings.max_attempts,
            retry=self._retry,
            retry_for_ever=self._retries_for_ever(delivery),
        )

    def _retries_for_ever(self, delivery: Delivery) -> bool:
        return delivery.ordered and self._settings.on_exhausted == "block"

    # -- one by one ---------------------------------------------------------------------------------

    async def _work(self, worker: Worker) -> None:
        timeout = self._settings.handler_timeout
        limit = timeout.total_seconds() if timeout is not None else None
        take, conclude = self._floor.take, self._floor.conclude
        ran = 0
        while True:
            delivery = take() or await self._next()
            if delivery is None:
                return
            if self._floor.silent:
                await self.heard()
            if not self._ours(delivery):
                continue
            if limit is not None:
                worker.deadline = self._loop.time() + limit
            conclude(delivery, await self._deliver(worker, delivery))
            ran += 1
            if ran % YIELD_EVERY == 0:
                await asyncio.sleep(0)

    async def _deliver(self, worker: Worker, delivery: Delivery) -> Outcome:
        try:
            if faults.armed is not None:
                faults.hit("deliver.before")
            if (outcome := self._hopeless(delivery)) is not None:
                return outcome
            await self._handler(delivery)
            if faults.armed is not None:
                faults.hit("deliver.after")
            return DONE
        except asyncio.CancelledError as error:
            if worker.timed_out:
                limit = self._settings.handler_timeout
                return self._failed(delivery, TimeoutError(f"the listener ran longer than {limit}"))
            if worker.task is None or worker.task.cancelling():
                raise
            return self._failed(delivery, error)  # nobody cancelled us: the listener awaited something cancelled
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # a listener's sys.exit() must not take a worker away, or the loop with it
            return self._failed(delivery, error)
        finally:
            worker.deadline = None
            if worker.timed_out:  # also when the listener swallowed the cancellation
                worker.timed_out = False
                if worker.task is not None:
                    worker.task.uncancel()

    async def _watch(self, limit: float) -> None:
        """Cancel listeners that run too long. One timer for all workers instead of one per event."""
        while True:
            await asyncio.sleep(min(limit / 4, 0.25))
            now = self._loop.time()
            for worker in self._all:
                if worker.deadline is not None and worker.deadline < now and worker.task is not None:
                    worker.deadline = None
                    worker.timed_out = True
                    worker.task.cancel()

    # -- in batches ---------------------------------------------------------------------------------

    async def _work_batches(self, worker: Worker) -> None:
        while (first := await self._next()) is not None:
            await self.heard()
            batch = self._gather(first)
            if not batch:
                continue
            if faults.armed is not None:
                faults.hit("deliver.before")
            try:
                await self._batches.handle(batch)
                error: BaseException = RuntimeError("the batch handler said nothing about this event")
            except asyncio.CancelledError as raised:
                if worker.task is None or worker.task.cancelling():
                    raise
                error = raised  # nobody cancelled us: a client gave up what we awaited
            except (KeyboardInterrupt, GeneratorExit):
                raise
            except BaseException as raised:
                error = raised
            for delivery in batch.left():
                batch.failed(delivery, error)
            if faults.armed is not None:
                faults.hit("deliver.after")
            await asyncio.sleep(0)

    def _gather(self, first: Delivery) -> _Gathered:
        """As much as one call may take, without waiting for more."""
        size, calm, now = self._batches.size, self._calm, self._clock.monotonic()
        heads = [first, *self._floor.take_many(size - 1)]
        taken = [d for d in heads if d.lease_end > now and d.attempts <= calm and d.event.id is not None]
        if len(taken) < len(heads):
            taken = self._sort_out(heads, now)
        alone = len(taken) == 1 and self._suspect(taken[0])
        if self._batches.sequences and len(taken) < size and not alone:
            for head in self._floor.followed(taken):
                taken += self._followers(head, size - len(taken))
        return _Gathered(self, taken)

    def _sort_out(self, heads: Sequence[Delivery], now: float) -> list[Delivery]:
        """What may run together. What has been claimed often without an outcome goes alone: should it kill its process,
        it takes no neighbours along."""
        taken: list[Delivery] = []
        for place, head in enumerate(heads):
            if head.lease_end <= now:
                self._floor.forget(head)
            elif (outcome := self._hopeless(head)) is not None:
                self._floor.conclude(head, outcome)
            elif not self._suspect(head):
                taken.append(head)
            else:
                alone = [] if taken else [head]
                self._floor.defer(heads[place + len(alone) :])
                return taken or alone
        return taken

    def _suspect(self, delivery: Delivery) -> bool:
        return delivery.attempts > max(2, self._settings.max_attempts // 2)

    def _followers(self, head: Delivery, limit: int) -> list[Delivery]:
        """Up to the first suspect."""
        followers = self._floor.take_followers(head, limit)
        for number, follower in enumerate(followers):
            if self._suspect(follower):
                self._floor.put_back(followers[number:])
                return followers[:number]
        return followers

    def finish(self, delivery: Delivery, error: BaseException | None) -> None:
        self._floor.conclude(delivery, DONE if error is None else self._failed(delivery, error))


class _Gathered:
    """The batch of one worker. Deliveries of a key stand in their order."""

    __slots__ = ("_open", "_workers")

    def __init__(self, workers: Workers, deliveries: Sequence[Delivery]) -> None:
        self._workers = workers
        self._open = {delivery.seq: delivery for delivery in deliveries}

    def __len__(self) -> int:
        return len(self._open)

    def left(self) -> list[Delivery]:
        return list(self._open.values())

    async def waiting(self) -> list[Delivery]:
        await self._workers.heard()
        now = self._workers._clock.monotonic()
        for lost in [d for d in self._open.values() if d.lease_end <= now]:
            if lost.seq in self._open:  # its key goes whole: nothing may overtake what another process has now
                head, *later = self._lane(lost)
                del self._open[head.seq]
                self._hold_back(later)
                self._workers._floor.forget(head)
        return self.left()

    def done(self, delivery: Delivery) -> None:
        if self._open.pop(delivery.seq, None) is not None:
            self._workers.finish(delivery, None)

    def done_all(self, deliveries: Sequence[Delivery]) -> None:
        self._workers._floor.conclude_all([d for d in deliveries if self._open.pop(d.seq, None) is not None])

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
        if delivery.lane is None or not self._workers._batches.sequences:
            return [delivery]
        return [d for d in self._open.values() if d.lane == delivery.lane]

    def _hold_back(self, later: Sequence[Delivery]) -> None:
        for follower in later:
            del self._open[follower.seq]
        if later:
            self._workers._floor.put_back(later)
