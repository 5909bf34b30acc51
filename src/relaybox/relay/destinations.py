"""A queue for each destination of a sink that has many: none holds a worker, or memory, that the others need.

    waiting ──a call is free──► under way ──► answered
       └──memory is short──► given back to the database, uncounted, until about its turn

A destination has a limit of calls, and begins with one: an answer lets it have more, an outage takes them back. It is
quick once it answers within `slow`, and as long as nothing of it has been under way for longer than that. What is
not quick, be it a success that takes its time or an answer that never comes, shares half of the calls, in all and of
each host. So the other half is there for whatever answers, however many destinations do not.

While half of the relay's memory is taken, a destination keeps here what it is going to take within moments. The rest is
given back with a due time that follows its pace, so that claims find what is meant for others.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal
from weakref import WeakValueDictionary

from ..brokers.spi import DestinationLimits
from ..clock import Clock
from ..delivery import Delivery
from ..errors import DeliveryError
from ..event import Event
from ..facts import CallsUnderWay, DestinationChanged, Observers
from ..outcome import RetryAt

KEPT = 10.0  # times `slow`: how much work, in seconds, a destination may keep here while memory is short
LONGEST = 60.0  # seconds for which an event is given back …
CHURN = 100  # … unless that made more than so many of one destination come again per second
REST = 10.0  # seconds of a pause in which what waits stays here; longer ones are for the database
MOST = 10_000  # destinations remembered
NOWHERE = DestinationLimits("nowhere", 64)  # of events whose destination cannot be told; they fail at once


@dataclass(slots=True, eq=False)
class _Destination:
    limits: DestinationLimits
    gates: tuple[_Gate, ...]
    since: float  # when it last began or answered something, or got something to wait
    waiting: deque[Delivery] = field(default_factory=deque)
    taken: set[Delivery] = field(default_factory=set)  # by workers
    calls: dict[Delivery, float] = field(default_factory=dict)  # since when they are under way; the oldest first
    most: int = 1  # calls at a time, for now
    mean: float = 0.0  # seconds for an answer
    quick: bool = False
    listed: bool = False  # among those that may begin something
    rests_until: float = -math.inf  # after an outage; what waits stays here
    state: Literal["well", "slow", "away"] = "well"
    booked: float = 0.0  # when it will have taken all that was given back, at its pace …
    spread: float = 0.0  # … and when that may come again, for the sake of the database

    def is_slow(self, now: float, slow: float) -> bool:
        return not self.quick or self.age(now) > slow

    def age(self, now: float) -> float:
        """Of its oldest call."""
        return now - next(iter(self.calls.values())) if self.calls else 0.0

    def pace(self, now: float) -> float:
        """Seconds for an answer, by those that came and by those that do not come."""
        return max(self.mean, self.age(now) if self.calls else now - self.since)


class _Gate:
    """A number of calls that destinations share: all of them, or those of a host."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.taken = 0
        self.busy: set[_Destination] = set()

    def admits(self, destination: _Destination, now: float, slow: float) -> bool:
        half = max(self.most // 2, 1)
        if self.taken >= self.most:
            return False
        if self.taken < half or not destination.is_slow(now, slow):
            return True
        return sum(len(each.taken) for each in self.busy if each.is_slow(now, slow)) < half

    def begin(self, destination: _Destination) -> None:
        self.taken += 1
        self.busy.add(destination)

    def end(self, destination: _Destination) -> None:
        self.taken -= 1
        if not destination.taken:
            self.busy.discard(destination)


class Destinations:
    """The queue of the engine, for one relay. True while something of it may begin."""

    def __init__(
        self,
        sink: str,
        find: Callable[[Event], str],
        limits: Callable[[str], DestinationLimits],
        *,
        calls: int,
        room: int,
        slow: timedelta,
        observers: Observers,
        clock: Clock,
    ) -> None:
        """`find`: where an event goes; it may raise. `limits`: what the sink says of that. `room`: how many events a
        relay holds at a time."""
        self.workers = calls
        self._room = room
        self._sink = sink
        self._find = find
        self._ask = limits
        self._slow = slow.total_seconds()
        self._observers = observers
        self._clock = clock
        self._all = _Gate(calls)
        self._hosts: WeakValueDictionary[str, _Gate] = WeakValueDictionary()
        self._known: dict[str | None, _Destination] = {}
        self._of: dict[Delivery, _Destination] = {}
        self._ready: deque[_Destination] = deque()
        self.wake: Callable[[], None] = lambda: None  # something may begin; set by who works

    # -- as a queue ---------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._of) - self._all.taken

    def __iter__(self) -> Iterator[Delivery]:
        return (delivery for delivery, destination in self._of.items() if delivery not in destination.taken)

    def __bool__(self) -> bool:
        """The first of the ready ones may begin something then."""
        ready, now = self._ready, self._clock.monotonic()
        for _ in range(len(ready)):
            first = ready[0]
            if not first.waiting or len(first.taken) >= first.most:
                ready.popleft().listed = False  # until one of it ends
            elif first.rests_until <= now and all(gate.admits(first, now, self._slow) for gate in first.gates):
                return True
            else:
                ready.rotate(-1)
        return False

    def popleft(self) -> Delivery:
        if not self:
            raise IndexError("nothing may begin")
        destination = self._ready[0]
        delivery = destination.waiting.popleft()
        destination.taken.add(delivery)
        destination.since = self._clock.monotonic()
        for gate in destination.gates:
            gate.begin(destination)
        self._ready.rotate(-1)  # each in turn
        return delivery

    def extend(self, deliveries: Iterable[Delivery]) -> None:
        for delivery in deliveries:
            self._add(delivery).append(delivery)

    def extendleft(self, deliveries: Iterable[Delivery]) -> None:
        for delivery in deliveries:
            self.ended(delivery)
            self._add(delivery).appendleft(delivery)

    def _add(self, delivery: Delivery) -> deque[Delivery]:
        destination = self._of[delivery] = self._destination(self._found(delivery.event))
        if not destination.waiting:
            destination.since = self._clock.monotonic()
        self._list(destination)
        return destination.waiting

    def clear(self) -> None:
        """Forgets what waits."""
        for delivery in list(self):
            del self._of[delivery]
        for destination in self._known.values():
            destination.waiting.clear()

    def _list(self, destination: _Destination) -> None:
        if not destination.listed:
            destination.listed = True
            self._ready.append(destination)

    # -- what becomes of a delivery -----------------------------------------------------------------

    def ended(self, delivery: Delivery) -> None:
        """It is concluded, or given up."""
        destination = self._of.pop(delivery, None)
        if destination is None:
            return
        destination.calls.pop(delivery, None)
        if delivery not in destination.taken:
            destination.waiting.remove(delivery)
            return
        destination.taken.discard(delivery)
        for gate in destination.gates:
            gate.end(destination)
        self._list(destination)

    def called(self, delivery: Delivery) -> None:
        """A request for it begins now."""
        destination = self._of.get(delivery)
        if destination is not None:
            destination.calls.pop(delivery, None)
            destination.calls[delivery] = self._clock.monotonic()

    def answered(self, name: str, took: float, outage: str | None) -> None:
        """In so many seconds. An outage: what kept it from answering."""
        destination = self._destination(name)
        destination.since = self._clock.monotonic()
        destination.mean = took if not destination.mean else 0.7 * destination.mean + 0.3 * took
        destination.quick = outage is None and destination.mean <= self._slow
        if outage is not None:
            destination.most = 1
        elif destination.most < destination.limits.calls:
            destination.most = min(2 * destination.most, destination.limits.calls)
        if destination.quick:
            destination.booked = destination.spread = 0.0
        state: Literal["well", "slow", "away"] = "away" if outage else "well" if destination.quick else "slow"
        if state != destination.state:
            destination.state = state
            reason = outage or f"{destination.mean:.1f} s for an answer"
            self._observers(DestinationChanged(self._sink, destination.limits.name, state, reason))

    def rests(self, name: str, seconds: float) -> None:
        """Nothing of it begins for so long, if that is not too long to keep it here."""
        if seconds > REST:
            return
        destination = self._destination(name)
        destination.rests_until = self._clock.monotonic() + seconds
        asyncio.get_running_loop().call_later(seconds, lambda: self.wake())

    def resting(self) -> list[tuple[Delivery, RetryAt]]:
        """What waits for a destination that rests, until it no longer does."""
        now, given_back = self._clock.monotonic(), []
        for destination in {each for each in self._of.values() if each.rests_until > now}:
            why = f"BrokerUnavailable: {destination.limits.name} rests after an outage"
            later = RetryAt(timedelta(seconds=destination.rests_until - now), why, counted=False)
            for delivery in destination.waiting:
                del self._of[delivery]
                given_back.append((delivery, later))
            destination.waiting.clear()
        return given_back

    # -- while memory is short ----------------------------------------------------------------------

    def excess(self) -> list[tuple[Delivery, RetryAt]]:
        """What waits beyond what its destination is going to take soon, and until when it is not needed."""
        now, given_back = self._clock.monotonic(), []
        busy = {self._of[delivery] for delivery in self}
        for destination in busy:
            limit, pace = destination.limits.calls, max(destination.pace(now), 0.001)
            share = max(1, self._room // (4 * len(busy)))  # of a quarter of the memory, where many are slow
            keep = max(min(limit, share), int(limit * KEPT * self._slow / pace))
            over = [destination.waiting.pop() for _ in range(len(destination.waiting) - keep)]
            for delivery in reversed(over):
                del self._of[delivery]
                given_back.append((delivery, self._later(destination, pace, now, keep)))
        return given_back

    def _later(self, destination: _Destination, pace: float, now: float, before: int) -> RetryAt:
        each = pace / destination.limits.calls
        begins = max(now, destination.rests_until)
        destination.booked = max(destination.booked, begins + before * each) + each
        destination.spread = max(destination.spread, now) + 1 / CHURN
        delay = min(destination.booked - now, max(LONGEST, destination.spread - now)) * random.uniform(0.8, 1.0)
        why = f"BrokerUnavailable: {destination.limits.name} has enough to do, at {pace:.1f} s for an answer"
        return RetryAt(timedelta(seconds=delay), why, counted=False)

    def stalled(self) -> list[Delivery]:
        """Of destinations that are not quick: what follows these here waits for long."""
        now = self._clock.monotonic()
        slow = {each for each in self._of.values() if each.is_slow(now, self._slow)}
        return [delivery for delivery, destination in self._of.items() if destination in slow]

    # -- destinations -------------------------------------------------------------------------------

    def _found(self, event: Event) -> str | None:
        try:
            return self._find(event)
        except Exception:
            return None  # it fails for that when it is prepared

    def _destination(self, name: str | None) -> _Destination:
        destination = self._known.get(name)
        if destination is not None:
            return destination
        limits = self._limits_of(name)
        gates: tuple[_Gate, ...] = (self._all,)
        if limits.host:
            host = self._hosts.get(limits.host) or _Gate(limits.host_calls)
            self._hosts[limits.host] = host
            gates = (host, self._all)
        destination = _Destination(limits, gates, self._clock.monotonic())
        if limits is NOWHERE:
            destination.most, destination.quick = limits.calls, True
        if len(self._known) >= MOST:
            idle = next((name for name, each in self._known.items() if not (each.waiting or each.taken)), None)
            self._known.pop(idle, None)
        self._known[name] = destination
        return destination

    def _limits_of(self, name: str | None) -> DestinationLimits:
        try:
            return NOWHERE if name is None else self._ask(name)
        except DeliveryError:
            return NOWHERE

    def tell(self) -> None:
        """Every second."""
        if self._observers:
            now = self._clock.monotonic()
            slow = [each for each in self._all.busy if each.is_slow(now, self._slow)]
            away = sum(1 for each in self._known.values() if each.state == "away")
            calls, slow_calls = self._all.taken, sum(len(each.taken) for each in slow)
            self._observers(CallsUnderWay(self._sink, calls, slow_calls, len(self), len(slow), away))
