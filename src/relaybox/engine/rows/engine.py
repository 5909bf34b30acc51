"""The one delivery engine of rows: claim → deliver → settle.

    source.claim(capacity)   bounded by free capacity: back-pressure ends in the database
    lanes                    one at a time per key where the source is ordered
    handler(delivery)        workers run it, with a timeout; an error becomes an outcome (decide.py)
    source.settle(outcomes)  in batches, fenced by each claim's token
    source.release(rest)     on shutdown

Invariants: an event is in `_in_flight` from the moment it is queued until its outcome is in the database, so
it never runs twice here at once; nothing starts after its lease ended by our own monotonic clock, nor after stop();
memory is bounded by the two queue capacities, whatever the backlog and however long the database is away.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from datetime import timedelta
from itertools import islice
from typing import Any

from ... import faults
from ...clock import Clock
from ...delivery import Delivery
from ...facts import Claimed, ClaimLost, Delivered, Depths, HotDropped, HotEnqueued, Observers
from ...outcome import DONE, Dead, Done, Outcome, RetryAt
from ...settings import Settings
from ..engine import Engine
from ..poller import EAGER, QUIET, Poller
from ..protocols import BatchHandler, FairQueue, Handler, RowSource, Settled, WorkQueue
from ..reports import is_news
from ..workers import Asked
from .lanes import Lanes
from .workers import RowWorkers

__all__ = ["Delivery", "Handler", "RowEngine", "RowSource", "Settled"]

log = logging.getLogger("relaybox")

SETTLE_BATCH = 1000  # outcomes per round trip
FULL = 1.0  # seconds after which one looks again whether there is room for payloads
MEASURE = 1.0  # seconds between two measurements of depths and lag


class RowEngine(Engine[Delivery]):
    _source: RowSource

    def __init__(
        self,
        source: RowSource,
        handler: Handler | BatchHandler,
        settings: Settings,
        observers: Observers,
        clock: Clock,
        asked: Asked | None = None,
    ) -> None:
        capacity = settings.delivery.cold_queue
        super().__init__(
            source,
            settings,
            observers,
            clock,
            Poller(min(settings.delivery.batch, capacity), capacity),
            pending=lambda: self._outcomes,
            held=lambda: self._in_flight.values(),
        )
        self._hot: deque[Delivery] = deque()
        self._fair: FairQueue | None = getattr(handler, "queue", None)
        self._cold: WorkQueue = self._fair if self._fair is not None else deque()
        self._turn = 0
        self._lanes: Lanes[Delivery] = Lanes()
        self._in_flight: dict[int, Delivery] = {}
        self._cold_in_flight = 0
        self._renamed = 0  # deliveries that were claimed anew while they were here
        self._outcomes: list[Settled] = []
        # An ordered claim must not overlap the settling of a failed head: it could bring in its followers.
        self._claim_or_block: AbstractAsyncContextManager[Any] = asyncio.Lock() if source.ordered else nullcontext()
        self._looked_past = 0.0  # when nothing was found of keys that have no queue here
        self._in_vain = 0  # how often in a row
        self._retry_timer: asyncio.TimerHandle | None = None  # the earliest only: there may be millions of retries
        self._stopping = False
        self._workers = RowWorkers(self, self._lanes, handler, settings.delivery, observers, clock, asked)

    # -- life cycle -------------------------------------------------------------------------------

    def _steps(self) -> dict[str, Callable[[], Awaitable[None]]]:
        return super()._steps() | ({"measure": self._measure_step} if self._observers else {})

    def halt(self) -> None:
        self._stopping = self._poller.closed = True
        self._hot.clear()
        self._cold.clear()
        self._workers.halt()

    def _give_up_all(self) -> int:
        if self._retry_timer is not None:
            self._retry_timer.cancel()
        self._strays += self._in_flight.values()
        self._in_flight.clear()
        return len(self._strays)

    def pause(self) -> None:
        """Claim nothing more; what has not begun is given back."""
        self._may_claim.clear()
        untouched = [*self._hot, *self._cold]
        self._hot.clear()
        self._cold.clear()
        for delivery in untouched:
            self._give_up(delivery)

    # -- entrances ----------------------------------------------------------------------------------

    def offer(self, deliveries: Sequence[Delivery]) -> Sequence[Delivery]:
        """Put committed events into the hot queue. Returns those that found no room."""
        if self._stopping:
            return deliveries
        room = self.hot_room
        accepted, refused = deliveries[:room], deliveries[room:]
        for delivery in accepted:
            if self._supersedes(delivery, self._in_flight.get(delivery.seq)):
                self._in_flight[delivery.seq] = delivery
                self._hot.append(delivery)
        self._workers.wake(len(accepted))
        if accepted and self._observers:
            self._observers(HotEnqueued(len(accepted)))
        return self.refuse(refused)

    @property
    def hot_room(self) -> int:
        return max(0, self._settings.delivery.hot_queue - (len(self._in_flight) - self._cold_in_flight))

    def refuse(self, deliveries: Sequence[Delivery]) -> Sequence[Delivery]:
        """Committed events that found no room in the hot queue."""
        if deliveries:
            self._observers(HotDropped(len(deliveries)))
        return deliveries

    @property
    def depths(self) -> tuple[int, int]:
        return len(self._hot), len(self._cold)

    def in_flight(self) -> Iterable[Delivery]:
        return [*self._in_flight.values(), *self._strays]

    # -- claim --------------------------------------------------------------------------------------

    async def _claim_step(self) -> None:
        if self._stopping:
            await self._loop.create_future()  # until stop() cancels this loop
        if self._strays:  # first: they may come before what a claim brings
            async with self._claim_or_block:
                await self._return_strays()
        poller, capacity = self._poller, self._settings.delivery.cold_queue
        if not self._may_claim.is_set():
            poller.begin()
            poller.ended(found=False, empty=not (self._in_flight or self._strays))
            await poller.woken_within(math.inf)
            return
        if self._fair is not None and poller.drains:  # until what is due has been tried
            for delivery, outcome in self._fair.resting():
                self.conclude(delivery, outcome)
        if self._fair is not None and self._cold_in_flight > capacity // 2:
            self._make_room(self._fair, capacity)
        room = capacity - self._cold_in_flight
        if room < min(poller.portion, capacity // 4 or 1):
            await poller.more_room(QUIET if self._fair is not None else None)
            return
        crowded = self._lanes.waiting > capacity // 2
        if crowded and self._loop.time() < self._looked_past + QUIET * (1 if poller.woken else 2**self._in_vain):
            await poller.more_room(EAGER)  # until queues here got shorter, or it is time to look past them again
            return
        limit = min(room, poller.portion)
        poller.begin()
        faults.hit("claim.before")
        started = self._loop.time()
        past = {*(self._lanes.crowded() if crowded else ()), *self._lanes.full}
        async with self._claim_or_block:
            await self._return_strays()
            claimed = await self._source.claim(limit, past)
            faults.hit("claim.after")
            self._enqueue(self._not_behind_strays(claimed))
        if claimed and self._observers:
            self._observers(Claimed(len(claimed), self._loop.time() - started))
        poller.ended(
            found=bool(claimed), empty=not (self._in_flight or self._strays or self._source.silent or self._stopping)
        )
        if claimed:
            self._in_vain = 0
        if len(claimed) >= limit:
            poller.was_full()
        elif self._source.full:
            await poller.more_room(FULL)
        elif crowded and not claimed:
            self._looked_past, self._in_vain = self._loop.time(), min(self._in_vain + 1, 4)
        elif not claimed:  # a short claim does not mean that nothing is left: only an empty one does
            await poller.rest(self._source.next_due)

    def _make_room(self, queue: FairQueue, capacity: int) -> None:
        """What waits for others to be done with goes back to the database, and so do the followers of what takes long,
        if they are many."""
        for delivery, outcome in queue.excess():
            self.conclude(delivery, outcome)
        if self._lanes.waiting > capacity // 4:
            stalled = queue.stalled()
            keep = max(capacity // (8 * max(len(stalled), 1)), 1)
            for head in stalled:
                followers = self._lanes.trim(head, keep)
                for follower in followers:
                    self._remove(follower)
                self._strays += followers

    def _not_behind_strays(self, claimed: list[Delivery]) -> list[Delivery]:
        """What was given up while this claim was under way goes before what it brings of the same key."""
        if not (self._strays and self._source.ordered):
            return claimed
        given_up = {stray.lane for stray in self._strays} - {None}
        self._strays += [delivery for delivery in claimed if delivery.lane in given_up]
        return [delivery for delivery in claimed if delivery.lane not in given_up]

    async def _return_strays(self) -> None:
        """Until this succeeds they are tried again: while our claim lives, nobody else gets them."""
        strays = list(self._strays)
        if strays:
            await self._source.release(strays)
            del self._strays[: len(strays)]

    def _enqueue(self, claimed: Sequence[Delivery]) -> None:
        arrived = {delivery.seq: delivery for delivery in claimed}
        for seq in arrived.keys() & self._in_flight.keys():  # our own lease ran out while it was here …
            known, fresh = self._in_flight[seq], arrived[seq]
            if self._supersedes(fresh, known):
                continue
            known.token, known.lease_end = fresh.token, fresh.lease_end  # … and the fresh claim is its new title
            self._renamed += 1
            del arrived[seq]
        self._in_flight |= arrived
        self._cold_in_flight += len(arrived)
        self._may_run(self._lanes.admit(arrived.values()))

    def _supersedes(self, fresh: Delivery, known: Delivery | None) -> bool:
        """Whether it is not the event that has its number here. After a fail-over that lost the latest commits, numbers
        are given again: the event that had it is no more. It does not begin, and its outcome is settled under its own
        token, which is gone too."""
        if known is None:
            return True
        if known.event.id == fresh.event.id:
            return False
        known.lease_end = 0.0
        self._remove(known)
        self._observers(ClaimLost(1))
        return True

    def _may_run(self, deliveries: Sequence[Delivery]) -> None:
        if deliveries and not self._stopping:
            self._cold.extend(deliveries)
            self._workers.wake(len(deliveries))
            if not self._may_claim.is_set():  # paused while they were claimed, or while one of their key ran
                self.pause()

    async def _measure_step(self) -> None:
        """Queue depths and lag for observers, in a loop of its own: the lag matters most when the poller is busy or
        the database is away. A failed measurement is reported as missing, never as zero."""
        oldest: timedelta | None = None
        try:
            oldest = await self._source.oldest()
        finally:
            self._observers(Depths(*self.depths, oldest))
        await self._clock.sleep(MEASURE)

    # -- deliver ------------------------------------------------------------------------------------

    def take(self) -> Delivery | None:
        """Two hot for one cold while both wait, so neither starves."""
        if self._hot and (self._turn < 2 or not self._cold):
            self._turn = self._turn + 1 if self._cold else 0
            return self._hot.popleft()
        if self._cold:
            self._turn = 0
            return self._cold.popleft()
        return None

    def take_many(self, limit: int) -> list[Delivery]:
        if self._hot:
            return list(islice(iter(self.take, None), limit))
        return [self._cold.popleft() for _ in range(min(limit, len(self._cold)))]

    def defer(self, deliveries: Sequence[Delivery]) -> None:
        """Deliveries that were taken come next again."""
        if not self._stopping:
            self._cold.extendleft(reversed(deliveries))
            self._workers.wake(len(deliveries))

    def conclude(self, delivery: Delivery, outcome: Outcome) -> None:
        if self._fair is not None:
            self._fair.ended(delivery)
        self._outcomes.append((delivery, outcome))
        if delivery.ordered and not self._holds(outcome):  # else nothing of the key runs until that is settled
            self._may_run(self._lanes.finish([delivery]))
        self._settle_soon(1)

    def conclude_all(self, deliveries: Sequence[Delivery]) -> None:
        """All of these are done."""
        if self._fair is not None:
            for delivery in deliveries:
                self._fair.ended(delivery)
        self._outcomes += [(delivery, DONE) for delivery in deliveries]
        self._may_run(self._lanes.finish(deliveries))
        self._settle_soon(len(deliveries))

    def _settle_soon(self, added: int) -> None:
        waiting = len(self._outcomes)
        if waiting >= SETTLE_BATCH or not (self._hot or self._cold):
            self._settler.now()
        elif waiting == added:
            self._settler.soon()

    def _holds(self, outcome: Outcome) -> bool:
        """Whether the rest of the key must wait."""
        return isinstance(outcome, RetryAt) or (
            isinstance(outcome, Dead) and self._settings.order.on_exhausted == "park"
        )

    def forget(self, delivery: Delivery) -> None:
        """Its lease ended before it began (a pause, a long outage). By the database's clock, or by a renewal whose
        reply was lost, it may still be ours: it is given back, and the next claim of it delivers it."""
        self._observers(ClaimLost(self._give_up(delivery)))

    def _give_up(self, delivery: Delivery) -> int:
        """With what waits behind it here; how many that are."""
        followers = self._lanes.clear(delivery)
        if self._fair is not None:
            self._fair.ended(delivery)
        for gone in (delivery, *followers):
            self._remove(gone)
            self._strays.append(gone)
        self._poller.wake()
        self._poller.room()
        return 1 + len(followers)

    def _remove(self, delivery: Delivery) -> None:
        if self._in_flight.get(delivery.seq) is delivery:
            del self._in_flight[delivery.seq]
            self._cold_in_flight -= not delivery.hot

    # -- settle -------------------------------------------------------------------------------------

    async def _settle(self) -> None:
        while self._outcomes:
            await self._settle_batch(self._outcomes[: self._settle_end()])

    def _settle_end(self) -> int:
        """Not amid what was claimed together: a claim that is settled as a whole costs least."""
        outcomes, end = self._outcomes, SETTLE_BATCH
        while 0 < end < len(outcomes) and outcomes[end][0].token == outcomes[end - 1][0].token:
            end += 1
        return end

    async def _settle_batch(self, batch: Sequence[Settled]) -> None:
        faults.hit("settle.before")
        unlucky = [settled for settled in batch if settled[1] is not DONE]
        blocks = self._source.ordered and any(self._holds(outcome) for _, outcome in unlucky)
        async with self._claim_or_block if blocks else nullcontext():
            titles, before = [delivery.token for delivery, _ in batch], self._renamed
            lost = await self._source.settle(batch)
            faults.hit("settle.after")
            del self._outcomes[: len(batch)]
            if self._renamed != before:
                renamed = [settled for settled, title in zip(batch, titles, strict=True) if settled[0].token != title]
                batch = [settled for settled, title in zip(batch, titles, strict=True) if settled[0].token == title]
                lost = max(0, lost - self._claimed_meanwhile(renamed))
            self._strays += self._settled(batch)
            self._poller.room()
            self._count(len(batch) - len(unlucky) - lost, [outcome for _, outcome in unlucky])
            retry = self._workers.retry
            if self._observers or lost or any(is_news(o, d.attempts, retry(d.event).limit) for d, o in unlucky):
                self._report(batch, lost)
            if blocks:  # if it fails the next claim tries again
                await self._return_strays()

    def _claimed_meanwhile(self, renamed: Sequence[Settled]) -> int:
        """Our lease had run out and we claimed these anew while they were being settled. What is final is settled again
        under the new title; a retry has come back already and runs. How many the settle must have missed."""
        missed = 0
        for delivery, outcome in renamed:
            if isinstance(outcome, RetryAt):
                delivery.attempts += 1
                self._may_run([delivery])
            else:
                self._outcomes.insert(missed, (delivery, outcome))
                missed += 1
        return missed

    def _settled(self, batch: Sequence[Settled]) -> list[Delivery]:
        """Forget what is in the database now; the followers of heads that failed are to be released."""
        followers: list[Delivery] = []
        in_flight = self._in_flight
        for delivery, outcome in batch:
            if in_flight.get(delivery.seq) is delivery:
                del in_flight[delivery.seq]
                if not delivery.hot:
                    self._cold_in_flight -= 1
            if outcome is DONE:
                continue
            if type(outcome) is RetryAt:
                self._wake_at(self._loop.time() + outcome.delay.total_seconds() + 0.001)
            if delivery.ordered and self._holds(outcome):
                followers += self._lanes.clear(delivery)
        for follower in followers:
            self._remove(follower)
        return followers

    def _wake_at(self, when: float) -> None:
        """For the earliest retry of ours; when it fires, `next_due` knows of the others."""
        timer = self._retry_timer
        if timer is not None and self._loop.time() < timer.when() <= when:
            return
        if timer is not None:
            timer.cancel()
        self._retry_timer = self._loop.call_at(when, self._poller.wake)

    def _report(self, batch: Sequence[Settled], lost: int) -> None:
        done = sum(1 for _, outcome in batch if type(outcome) is Done) - lost  # at least so many
        if lost:
            self._observers(ClaimLost(lost))
        if done > 0:
            self._observers(Delivered(done))
        for delivery, outcome in batch:
            if outcome is not DONE:
                self._tell(delivery.event, outcome, delivery.attempts)

    # -- renew --------------------------------------------------------------------------------------

    async def _renew(self, chunk: Sequence[Delivery], ends: float) -> int:
        titles = [(delivery, delivery.token) for delivery in chunk]
        ours, lost = await self._source.renew(chunk), 0
        for delivery, token in titles:
            if delivery.seq in ours and delivery.token == token:
                delivery.lease_end = ends
            elif self._in_flight.get(delivery.seq) is delivery and delivery.token == token:
                delivery.lease_end = 0.0  # not started yet: never will be; running: its settle will be refused
                lost += 1
        return lost
