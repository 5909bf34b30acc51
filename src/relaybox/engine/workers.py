"""The tasks of an engine: loops and workers that sleep, are watched, are replaced when they end, and stop together."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from ..clock import Clock
from ..event import Event
from ..facts import CutOff, Observers
from ..outcome import Dead, Outcome
from ..retry import Retry
from ..settings import DeliverySettings
from ..tasks import cancelled
from .decide import decide
from .failures import FailureLog
from .loops import Loops
from .protocols import Pulse

log = logging.getLogger("relaybox")

ENDED = "the task in which the handler ran was cancelled, perhaps by the handler"

HEARING = 0.02  # seconds between two looks whether a silence has ended
NAMED = 10  # events that a log line names


@dataclass(eq=False, slots=True)
class Worker:
    """One call of the handler at a time."""

    calls: int = 0  # calls begun and ended: odd while the handler runs
    timed_out: bool = False
    ended_in_call: bool = False  # the task before this one ended while the handler ran
    task: asyncio.Task[None] | None = None

    def in_hand(self) -> Sequence[Event]:
        """The events of the call that runs."""
        raise NotImplementedError


W = TypeVar("W", bound=Worker)


class Asked(Protocol):
    """Retries and timeouts of listeners, which win over the settings."""

    stopping: bool  # no listener is called any more, also where one call of a worker is about several

    @property
    def shortest(self) -> timedelta | None:
        """The least time that a call may take; None: any."""
        ...

    def retry(self, event: Event) -> Retry | None: ...

    def timeout(self, event: Event) -> timedelta | None: ...


class Workers(Generic[W]):
    def __init__(
        self,
        workers: Sequence[W],
        work: Callable[[W], Coroutine[Any, Any, None]],
        pulse: Callable[[], Pulse],
        settings: DeliverySettings,
        observers: Observers,
        clock: Clock,
        *,
        for_ever: bool,
        watched: bool = True,
        asked: Asked | None = None,
    ) -> None:
        """`for_ever`: what keeps failing keeps its key waiting. `watched`: handlers that run too long are cancelled.
        `asked`: retries and timeouts of listeners, which win over the settings."""
        self.workers = workers
        self._stop = asyncio.Event()
        self._loops = Loops(observers, clock)
        self.stop_loops = self._loops.stop
        # Nothing to look into up to so many attempts.
        most = settings.retry.attempts or 10  # for ever: as by default
        self.calm = min(most, max(2, most // 2))
        self._work = work
        self._pulse = pulse
        self._settings = settings
        self._asked = asked
        self._observers = observers
        self._clock = clock
        self._for_ever = for_ever
        self._watched = watched
        self._failures = FailureLog(clock)
        self._sleepers: list[asyncio.Future[None]] = []

    # -- tasks ----------------------------------------------------------------------------------------

    def start(self, steps: dict[str, Callable[[], Awaitable[None]]]) -> None:
        """The loops of the engine, and its workers."""
        if self._asked is not None:
            self._asked.stopping = False
        for name, step in steps.items():
            self._loops.repeat(name, step)
        shortest = self._settings.timeout if self._asked is None else self._asked.shortest
        if self._watched and shortest is not None:
            self._loops.repeat("watch", lambda: self._watch(min(shortest.total_seconds() / 4, 0.25)))
        for worker in self.workers:
            self._loops.keep(worker, "worker", partial(self._begin, worker))

    async def _begin(self, worker: W) -> None:
        worker.ended_in_call = worker.calls % 2 == 1
        worker.timed_out, worker.calls = False, worker.calls + worker.calls % 2
        worker.task = asyncio.current_task()
        await self._work(worker)

    @property
    def missing(self) -> int:
        """Tasks that ended and are not replaced yet."""
        return self._loops.missing

    @property
    def stopping(self) -> bool:
        return self._stop.is_set()

    # -- workers --------------------------------------------------------------------------------------

    async def sleep(self) -> None:
        """Until there is work, or it is time to stop."""
        sleeper = asyncio.get_running_loop().create_future()
        self._sleepers.append(sleeper)
        await sleeper

    def wake(self, count: int) -> None:
        sleepers = self._sleepers
        while count > 0 and sleepers:
            sleeper = sleepers.pop()
            if not sleeper.done():
                sleeper.set_result(None)
                count -= 1

    async def heard(self) -> None:
        """Nothing starts while this process may have been declared dead (a pause, an outage of the database)."""
        monotonic, pulse = self._clock.monotonic, self._pulse()
        while monotonic() >= pulse.alive_until and not self.stopping:  # noqa: ASYNC110 - a heartbeat moves a time on
            await asyncio.sleep(HEARING)

    async def _watch(self, interval: float) -> None:
        """Cancel handlers that run too long. One timer for all workers instead of one per event. A worker that waits
        for something else, for a heartbeat or for work, has no handler to cancel."""
        seen: dict[W, tuple[int, float]] = {}
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(interval)
            now = loop.time()
            for worker in self.workers:
                calls, since = seen.get(worker, (-1, now))
                if not worker.calls % 2 or calls != worker.calls:
                    seen[worker] = (worker.calls, now)
                elif now - since > self._limit(worker) and not worker.timed_out and worker.task is not None:
                    worker.timed_out = True
                    worker.task.cancel()
                    self._observers(CutOff(len(worker.in_hand()), "delivery.timeout"))

    def _limit(self, worker: W) -> float:
        """Seconds that the call of this worker may take."""
        limit, events = self._settings.timeout, worker.in_hand()
        if self._asked is not None and events:
            limit = self._asked.timeout(events[0])
        return math.inf if limit is None else limit.total_seconds()

    def meant(self, worker: W, error: BaseException) -> BaseException:
        """What to take for the error of a handler. A cancellation or interrupt of the worker itself is raised again."""
        if worker.timed_out:
            self.forgive(worker)
            if isinstance(error, asyncio.CancelledError):
                late = TimeoutError(f"the handler ran longer than {self._limit(worker):g} s")
                late.__cause__ = error  # its stack says where
                return late
        if isinstance(error, asyncio.CancelledError) and (worker.task is None or worker.task.cancelling()):
            raise error
        if isinstance(error, (KeyboardInterrupt, GeneratorExit)):
            raise error
        return error  # also a handler's sys.exit(), which must not take a worker away, or the loop with it

    def forgive(self, worker: W) -> None:
        """Takes the cancellation of a handler back, also when the handler swallowed it."""
        worker.timed_out = False
        if worker.task is not None:
            worker.task.uncancel()

    # -- from errors to outcomes ------------------------------------------------------------------------

    def retry(self, event: Event) -> Retry:
        return (self._asked and self._asked.retry(event)) or self._settings.retry

    def hopeless(self, event: Event, attempts: int) -> Outcome | None:
        """The outcome of an event that no handler shall see again; None: try it."""
        if attempts > 1 and not self._for_ever and attempts > self.retry(event).limit:
            return Dead(f"claimed {attempts} times without an outcome: does it kill its process?")
        return None

    def failed(self, event: Event, attempts: int, error: BaseException) -> Outcome:
        self._failures(event, attempts, error)
        return decide(error, attempts, self.retry(event), for_ever=self._for_ever)

    # -- stop -----------------------------------------------------------------------------------------

    def halt(self) -> None:
        """Nothing more begins."""
        self._stop.set()
        if self._asked is not None:
            self._asked.stopping = True
        self._loops.closing()
        self.wake(len(self._sleepers))

    async def stop(self, timeout: float) -> None:
        """What runs may finish; what takes longer is cancelled, and the log names it."""
        self.halt()
        running = [worker.task for worker in self.workers if worker.task is not None]
        _, slow = await asyncio.wait(running, timeout=timeout) if running else ((), ())
        self._tell([event for worker in self.workers if worker.task in slow for event in worker.in_hand()], timeout)
        await cancelled(*slow)

    def _tell(self, cut_off: Sequence[Event], timeout: float) -> None:
        if cut_off:
            named = ", ".join(f"{event.id} ({event.type})" for event in cut_off[:NAMED])
            more = f" and {len(cut_off) - NAMED} more" if len(cut_off) > NAMED else ""
            log.warning(
                "stopping cut off handlers that ran for %g s more; their events will be delivered again: %s%s",
                timeout, named, more,
            )  # fmt: skip
            self._observers(CutOff(len(cut_off), "delivery.stop_timeout"))
