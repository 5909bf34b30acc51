"""The life of an engine, of rows and of ranges alike: start, pause, stop. What it holds is its own."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any, Generic

from .. import faults
from ..clock import Clock
from ..event import Event
from ..facts import Observers, Released
from ..memory import freeze_gc
from ..outcome import Dead, Outcome, RetryAt
from ..settings import Settings
from ..values import Counts
from .poller import Poller
from .protocols import Origin, Pulse
from .renewer import L, Renewer
from .reports import is_news, report
from .settler import Settler
from .workers import Workers

log = logging.getLogger("relaybox")

RELEASE = 1.0  # seconds a stop gives the database at least, to take back what is left
NEXT_TRY = 5.0  # seconds in which a due event begins; later, another process has it, or it succeeded
STUCK = 1000  # events that keep their keys waiting, of which health() knows


class Engine(ABC, Generic[L]):
    _workers: Workers[Any]

    def __init__(
        self,
        source: Origin,
        settings: Settings,
        observers: Observers,
        clock: Clock,
        poller: Poller,
        *,
        pending: Callable[[], Sequence[object]],
        held: Callable[[], Iterable[L]],
    ) -> None:
        """`pending`: decided and not settled yet. `held`: what is here under a lease."""
        self._source = source
        self._settings = settings
        self._observers = observers
        self._clock = clock
        self._poller = poller
        self.wake = poller.wake
        self.expect = poller.expect
        self.poll_every = poller.every
        self.until_idle = poller.until_idle
        self._settler = Settler(pending, self._settle)
        self._renewer = Renewer(held, self._renew, settings.delivery.lease.total_seconds(), observers, clock)
        self._strays: list[L] = []  # no longer wanted here, perhaps still ours in the database
        self._may_claim = asyncio.Event()
        self._may_claim.set()
        self._started = False
        self._done = self._failed = self._dead = 0
        self._stuck: dict[str, tuple[float, str]] = {}  # id of an event: until when it counts as stuck, and what it is

    @property
    def counts(self) -> Counts:
        return Counts(self._done, self._failed, self._dead)

    def _count(self, done: int, unlucky: Sequence[Outcome | None]) -> None:
        self._done += max(done, 0)
        for outcome in unlucky:
            self._failed += isinstance(outcome, RetryAt)
            self._dead += isinstance(outcome, Dead)

    def _tell(self, event: Event, outcome: Outcome | None, attempts: int) -> None:
        """What became of an event that was not delivered."""
        limit = self._workers.retry(event).limit
        report(self._observers, event, outcome, attempts, limit)
        self._stuck.pop(event.id, None)
        if isinstance(outcome, RetryAt) and is_news(outcome, attempts, limit):
            until = self._clock.monotonic() + 2 * outcome.delay.total_seconds() + NEXT_TRY
            self._stuck[event.id] = (until, f"{event.id} ({event.type}), attempt {attempts}")
            if len(self._stuck) > STUCK:
                del self._stuck[next(iter(self._stuck))]

    def worries(self) -> Iterator[str]:
        """What an operator should look at although work goes on. Callable from any thread."""
        now = self._clock.monotonic()
        if stuck := [what for until, what in tuple(self._stuck.values()) if until > now]:
            yield f"{len(stuck)} event(s) failed too often and keep their keys waiting, such as {stuck[-1]}"

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._started = True
        self._workers.start(self._steps())
        if self._settings.delivery.freeze_gc:
            freeze_gc()

    def _steps(self) -> dict[str, Callable[[], Awaitable[None]]]:
        return {"claim": self._claim_step, "settle": self._settler.step, "renew": self._renewer.step}

    @abstractmethod
    def halt(self) -> None:
        """Begin nothing more. Comes before whatever else is to be stopped."""

    async def stop(self, timeout: float | None = None) -> None:
        """Begin nothing more, let what runs finish within `timeout` (delivery.stop_timeout), settle, give the rest
        back."""
        if not self._started:
            return
        self._started = False
        self.halt()
        patience = self._settings.delivery.stop_timeout.total_seconds() if timeout is None else timeout
        deadline = self._loop.time() + patience
        await self._workers.stop(patience)
        await self._workers.stop_loops("claim")
        await self._settler.flush(max(deadline, self._loop.time() + RELEASE))
        await self._workers.stop_loops()
        events = self._give_up_all()
        if self._strays:
            try:
                faults.hit("release.before")
                async with asyncio.timeout(max(patience, RELEASE)):
                    await self._return_strays()
                self._observers(Released(events))
            except Exception as error:
                log.error("could not give back %d events; their leases will run out: %s", events, error)
            self._strays.clear()

    @abstractmethod
    def pause(self) -> None:
        """Claim nothing more; what has not begun is given back."""

    def resume(self) -> None:
        self._may_claim.set()
        self._poller.wake()

    @property
    def pulse(self) -> Pulse:
        return self._source.pulse

    @property
    def blocks(self) -> bool:
        """Whether what keeps failing keeps its key waiting, for ever."""
        return self._source.ordered and self._settings.order.on_exhausted == "block"

    @property
    def missing(self) -> int:
        """Background tasks that ended and are not replaced yet."""
        return self._workers.missing

    @abstractmethod
    async def _claim_step(self) -> None: ...

    @abstractmethod
    async def _settle(self) -> None: ...

    @abstractmethod
    async def _renew(self, aging: Sequence[L], ends: float) -> int: ...

    @abstractmethod
    async def _return_strays(self) -> None: ...

    @abstractmethod
    def _give_up_all(self) -> int:
        """All that is left is a stray. How many events wait in them."""
