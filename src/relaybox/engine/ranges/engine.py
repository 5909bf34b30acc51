"""The engine of groups: it takes ranges of a log, delivers their events and settles each range as a whole.

    source.claim(events, ranges)   bounded by free room, in events and in bytes: back-pressure ends in the database
    holding.py                     one at a time per key, and what must follow a failed event
    workers.py                     call the handler, per event or per batch; an error becomes an outcome (decide.py)
    source.settle(done, returned)  a finished range is one row less, however many events it had
    source.settle(…, returned)     on shutdown, with what is finished, so that nothing is delivered twice

Beside RowEngine because a range has one lease for all its events, and nothing here is done per event but the
call (docs/decisions/011). The same promises: nothing starts after its lease ended by our own monotonic clock, nor while
we may have been declared dead; memory is bounded whatever the backlog.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import timedelta
from heapq import heappop, heappush
from typing import NamedTuple, Protocol

from ... import faults
from ...clock import Clock
from ...facts import Claimed, ClaimLost, Delivered, Observers
from ...outcome import RetryAt
from ...settings import Settings
from ..engine import Engine
from ..poller import QUIET, Poller
from ..protocols import Origin
from ..workers import Asked
from .holding import RangeHolding, Taken
from .workers import RangeBatchHandler, RangeHandler, RangeWorkers

log = logging.getLogger("relaybox")

PARKED = 500  # parked events per claim
LOOK = 1.0  # seconds between two looks at the parked ones while the log keeps us busy
REMEMBERED = 1000  # retries of ours whose time we know


class Claims(NamedTuple):
    taken: list[Taken]
    split: bool = False  # a range that nobody could finish was taken apart: its events are among the parked


class RangeSource(Origin, Protocol):
    """Every method is one round trip or a few; errors are raised, the engine retries."""

    shards: int
    share: int  # of the shards, that one claim can bring: others may have the rest
    known: Callable[[], Sequence[int]]  # tokens that are here; set by the engine
    here: Callable[[], Iterable[Taken]]  # what is; set by the engine
    full: bool  # something could not be claimed for want of room for its payload

    async def claim(self, events: int, ranges: int) -> Claims:
        """At most `ranges` of at most `events` each, with their events."""
        ...

    async def claim_parked(self, limit: int) -> Claims: ...

    async def settle(self, finished: Sequence[Taken], returned: Sequence[Taken]) -> int:
        """How many were another's already. What is returned carries the numbers that are `finished`."""
        ...

    async def renew(self, taken: Sequence[Taken]) -> set[int]:
        """The tokens that are still ours."""
        ...

    async def next_parked(self) -> timedelta | None: ...


class RangeEngine(Engine[Taken]):
    _source: RangeSource

    def __init__(
        self,
        source: RangeSource,
        handler: RangeHandler | RangeBatchHandler,
        settings: Settings,
        observers: Observers,
        clock: Clock,
        *,
        asked: Asked | None = None,
        range_events: int = 1000,
        capacity: int = 16_000,
        eager: bool = False,
    ) -> None:
        """`eager`: whole ranges from the first claim on, which groups that read the same can share."""
        super().__init__(
            source,
            settings,
            observers,
            clock,
            Poller(capacity if eager else min(settings.delivery.batch, capacity), capacity),
            pending=lambda: self._holding.settleable(self._finished),
            held=lambda: self._holding.all(),
        )
        self._eager = eager
        self._range_events = min(range_events, capacity)
        self._capacity = capacity
        self._payload_bytes = settings.delivery.payload_bytes
        self._finished: list[Taken] = []
        parks = settings.order.on_exhausted == "park"
        self._holding = RangeHolding(ordered=source.ordered, parks=parks, finished=self._range_finished)
        source.known = self._known
        source.here = self._holding.all
        self._parked_due = 0.0
        self._retries: list[float] = []
        self._alone: Taken | None = None
        self._wary = False  # among the parked is one that may kill its process: it runs alone
        self._writing = asyncio.Lock()  # settling and renewing lock the same rows
        self._workers = RangeWorkers(self, self._holding, handler, settings.delivery, observers, clock, asked)

    # -- life cycle -------------------------------------------------------------------------------

    def halt(self) -> None:
        self._holding.closed = self._poller.closed = True
        self._workers.halt()

    def _give_up_all(self) -> int:
        rest = self._holding.all()
        self._finished.clear()
        self._holding.give_up(rest)
        self._strays += rest
        return sum(taken.left for taken in self._strays)

    # -- entrances ----------------------------------------------------------------------------------

    def pause(self) -> None:
        """Claim nothing more; what has not begun is given back."""
        if self._may_claim.is_set():
            self._may_claim.clear()
            untouched = self._holding.untouched()
            self._holding.give_up(untouched)
            self._strays += untouched
            self._poller.wake()
            self._poller.room()

    def lost(self) -> None:
        """This process was declared dead: what is here may be another's."""
        events = 0
        for taken in self._holding.all():
            taken.lease_end = 0.0  # not started yet: never will be; running: its settle may be refused
            events += taken.left
        if events:
            self._observers(ClaimLost(events))
        self._poller.wake()

    @property
    def silent(self) -> bool:
        return self._clock.monotonic() >= self._source.pulse.alive_until

    @property
    def in_flight(self) -> int:
        return self._holding.size

    def _known(self) -> list[int]:
        return [*self._holding.tokens(), *(taken.token for taken in self._strays)]

    # -- claim --------------------------------------------------------------------------------------

    async def _claim_step(self) -> None:
        await self._return_strays()  # first: they may come before what a claim brings
        if not self._may_claim.is_set():
            await self._may_claim.wait()
        poller = self._poller
        room = poller.portion - self._holding.size
        if room < max(1, poller.portion // 4):
            await poller.more_room()
            return
        poller.begin()
        if self.silent:
            await poller.woken_within(QUIET)
            return
        parked = await self._claim_parked()
        if self._alone is not None:
            await self._until_empty()
            self._alone = None
            return
        events, ranges = self._portion(room)
        claimed = await self._claim(lambda: self._source.claim(events, ranges))
        poller.ended(found=bool(claimed or parked), empty=not (len(self._holding) or self._strays or self.silent))
        if claimed:
            if any(len(taken.events) >= events for taken in claimed):
                poller.was_full()
            self._weigh(claimed)
        elif self._source.full:
            await poller.more_room(QUIET)
        elif not parked:
            await self._rest()

    def _portion(self, room: int) -> tuple[int, int]:
        """Events in a range, and ranges. Where others may read the same, little room means fewer ranges, not shorter
        ones: only what is cut at the same places can be shared."""
        shards = self._source.shards
        if not self._eager:
            events = min(self._range_events, max(1, room // self._source.share))
            return events, min(shards, room // events)
        fair = max(1, self._poller.portion // shards)
        events = self._range_events if fair >= self._range_events else 1 << (fair.bit_length() - 1)
        return events, max(1, min(shards, room // events))

    async def _until_empty(self) -> None:
        while len(self._holding):
            await self._poller.more_room()

    async def _claim(self, claim: Callable[[], Awaitable[Claims]]) -> list[Taken]:
        faults.hit("claim.before")
        started = self._loop.time()
        self._holding.begin_claim()
        claims = Claims([])
        try:
            claims = await claim()
        finally:
            self._holding.end_claim(claims.taken)
        faults.hit("claim.after")
        self._not_behind_strays(claims.taken)
        if claims.split:
            self._parked_due = 0.0
            self._poller.wake()
        events = sum([len(taken.events) for taken in claims.taken])
        if events:
            self._workers.wake(events)
            if self._observers:
                self._observers(Claimed(events, self._loop.time() - started))
        return claims.taken

    def _not_behind_strays(self, claimed: Sequence[Taken]) -> None:
        """What was given up while this claim was under way goes before what it brings of the same shard."""
        if self._strays and self._source.ordered:
            shards = {stray.shard for stray in self._strays if not stray.parked}
            self._give_back([taken for taken in claimed if taken.shard in shards and not taken.parked])

    async def _claim_parked(self) -> list[Taken]:
        if self._loop.time() < self._parked_due:
            return []
        if self._wary and len(self._holding):
            due = await self._source.next_parked()
            if due is None or due > timedelta(0):
                self._look_again(LOOK if due is None else min(LOOK, due.total_seconds()))
                return []
            await self._until_empty()  # however much is to be had of the log: it must get its turn
        limit = 1 if self._wary else PARKED
        claimed = await self._claim(lambda: self._source.claim_parked(limit))
        self._alone = claimed[0] if self._wary and claimed else None
        if len(claimed) < limit:
            self._look_again(LOOK)
        return claimed

    def _look_again(self, seconds: float) -> None:
        """At the parked ones: after so long, or when one of ours is due."""
        now = self._loop.time()
        while self._retries and self._retries[0] <= now:
            heappop(self._retries)
        self._parked_due = min([now + seconds, *self._retries[:1]])

    def _weigh(self, claimed: Sequence[Taken]) -> None:
        """Have fewer events here while payloads are large."""
        sizes = [len(event.body or b"") for taken in claimed for event in taken.events[::16]]
        self._poller.most = max(1, min(self._capacity, self._payload_bytes * len(sizes) // (sum(sizes) or 1)))
        self._poller.portion = min(self._poller.portion, self._poller.most)

    async def _rest(self) -> None:
        """Nothing to claim: sleep until woken, until a parked event is due, or for the poll interval."""
        poller, time = self._poller, self._loop.time
        if await poller.woken_within(min(QUIET, self._parked_due - time())) or self._parked_due <= time():
            return
        due = await self._source.next_parked()
        if not poller.woken:  # else what we have just heard may be news no more
            wait = poller.until(due)
            self._look_again(min(wait, LOOK))
            await poller.woken_within(min(wait, self._retries[0] - time() if self._retries else math.inf))

    # -- what workers call --------------------------------------------------------------------------

    def forget(self, taken: Taken) -> None:
        """Its lease ended before it was through (a pause, a long outage). By the database's clock it may still be ours:
        it is given back, and the next claim of it delivers the rest."""
        if taken.gone:
            return
        gone = self._holding.forget(taken)
        self._finished = [each for each in self._finished if not each.gone]
        self._strays += gone
        self._poller.wake()
        self._poller.room()
        self._observers(ClaimLost(sum(each.left for each in gone)))

    def suspects(self, taken: Taken) -> bool:
        """A parked event that has been claimed often runs alone, or is given back uncounted until it can."""
        if taken.attempts <= self._workers.calm or taken is self._alone:
            return False
        self._wary = True
        self._give_back([taken])
        return True

    def run_failed(self, taken: Taken) -> None:
        """What was claimed along with a parked event of the same key waits behind it again."""
        self._give_back(self._holding.run_of(taken))

    def _give_back(self, gone: Sequence[Taken]) -> None:
        if gone:
            self._holding.give_up(gone)
            self._strays += gone
            self._parked_due = 0.0
            self._poller.wake()
            self._poller.room()

    # -- settle -------------------------------------------------------------------------------------

    def _range_finished(self, taken: Taken) -> None:
        self._finished.append(taken)
        if self._holding.all_handed_out:
            self._settler.now()
        else:
            self._settler.soon()

    async def _settle(self) -> None:
        while batch := self._holding.settleable(self._finished):
            await self._settle_batch(batch)

    async def _settle_batch(self, batch: Sequence[Taken]) -> None:
        faults.hit("settle.before")
        async with self._writing:
            lost = await self._source.settle(batch, ())
        faults.hit("settle.after")
        settled = set(batch)
        self._finished = [taken for taken in self._finished if taken not in settled]
        self._holding.settled(batch)
        self._poller.room()
        self._after(batch, lost)

    def _after(self, settled: Sequence[Taken], lost: int) -> None:
        done = sum(len(taken.events) - len(taken.verdicts) - (taken.left if taken.gone else 0) for taken in settled)
        if lost == len(settled):
            done = 0  # where only some were lost we do not know which, and count them
        self._count(done, [outcome for taken in settled for _, outcome, _ in taken.verdicts])
        if lost:
            self._observers(ClaimLost(lost))
        if done and self._observers:
            self._observers(Delivered(done))
        for taken in settled:
            if taken.parked:
                self._parked_due = 0.0  # the next of its key may be free now
                self._poller.wake()
                self._wary = self._wary and taken.attempts > self._workers.calm
            for event, outcome, attempts in taken.verdicts:
                if isinstance(outcome, RetryAt):
                    self._retry_at(self._loop.time() + outcome.delay.total_seconds() + 0.001)
                self._tell(event, outcome, attempts)

    def _retry_at(self, when: float) -> None:
        """We parked it, so we know when it is due."""
        if len(self._retries) < REMEMBERED:
            heappush(self._retries, when)
        self._parked_due = min(self._parked_due, when)
        self._poller.wake()

    async def _return_strays(self) -> None:
        """Until this succeeds it is tried again: while our lease lives, nobody else gets them."""
        strays = list(self._strays)
        if strays:
            async with self._writing:
                lost = await self._source.settle((), strays)
            del self._strays[: len(strays)]
            self._holding.settled(strays)
            self._after(strays, lost)

    # -- renew --------------------------------------------------------------------------------------

    async def _renew(self, aging: Sequence[Taken], ends: float) -> int:
        async with self._writing:
            aging = [taken for taken in aging if not taken.gone]
            ours = await self._source.renew(aging) if aging else set()
        lost = 0
        for taken in aging:
            if taken.token in ours:
                taken.lease_end = ends
            elif not taken.gone and taken.left:
                taken.lease_end = 0.0
                lost += taken.left
        return lost
