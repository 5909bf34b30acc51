"""Ranges in this process: what may run now, what waits behind an earlier event of its key, what must follow it.

An ordered group runs one event of a key at a time. Once one fails, the later ones of its key leave for the parked table
behind it, and so do those of ranges that were claimed before that was settled; a later claim learns of it from the
database (`held`). They may not be there before it: a range with verdicts is settled with or after all earlier ranges of
its shard, and when an earlier one is given back undone, its verdicts count no more. Pure: no clock, no I/O.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

from ...event import Event
from ...ids import key_hash
from ...outcome import Dead, Outcome, RetryAt


class Verdict(NamedTuple):
    """An event that was not simply done. Without an outcome it waits behind an earlier one of its key."""

    event: Event
    outcome: Outcome | None
    attempts: int


class SharedEvents(list[Event]):
    """The events of a page, for every group that reads it. Nobody may change them."""

    @cached_property
    def types(self) -> frozenset[str]:
        """Found once for all: to look at every event again would cost a group a tenth of its time."""
        return frozenset([event.type for event in self])

    @cached_property
    def weight(self) -> int:
        return sum([len(event.body or b"") for event in self])


def weight_of(events: Sequence[Event]) -> int:
    """Bytes of their payloads."""
    return events.weight if isinstance(events, SharedEvents) else sum([len(event.body or b"") for event in events])


@dataclass(eq=False, repr=False, slots=True)
class Taken:
    """Events in this process under one token: a range of a log, or one event that was parked."""

    token: int
    shard: int
    events: Sequence[Event]
    attempts: int
    lease_end: float  # on the clock's monotonic time
    _: KW_ONLY
    held: frozenset[int] = frozenset()  # hashes of the keys that had parked events when this was claimed
    finished: frozenset[int] = frozenset()  # numbers of those that were done before the rest was given back
    parked: bool = False
    title: Any = None  # what its source knows it by
    serial: int = 0  # of the claim that brought it
    next: int = 0  # events before this one have been handed out
    left: int = field(init=False)  # not concluded
    gone: bool = False  # no longer ours, or given back
    verdicts: list[Verdict] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.finished:
            self.events = [event for event in self.events if event.seq not in self.finished]
        self.left = len(self.events)

    @property
    def types(self) -> frozenset[str]:
        """No event of it has another type."""
        events = self.events
        return events.types if isinstance(events, SharedEvents) else frozenset([event.type for event in events])

    def __repr__(self) -> str:
        kind = "parked event" if self.parked else "range"
        return f"Taken({kind} of shard {self.shard}, {self.left} of {len(self.events)} left, attempt {self.attempts})"


Handed: TypeAlias = tuple[Taken, Event]
Portion: TypeAlias = tuple[Taken, Sequence[Event]]


@dataclass(eq=False, slots=True)
class _Block:
    """A key whose later events must follow an earlier one."""

    open: int = 0  # verdicts that are not in the database yet
    serial: int = 0  # claims up to this one may not have seen them


class RangeHolding:
    def __init__(self, *, ordered: bool, parks: bool, finished: Callable[[Taken], None]) -> None:
        self.ordered = ordered
        self._parks = parks  # whether the dead hold their keys
        self._finished = finished
        self._all: dict[Taken, None] = {}  # in order of arrival; parked ones may share a token
        self._queue: deque[Taken] = deque()
        self._running: set[str] = set()
        self._waiting: dict[str, deque[Handed]] = {}
        self._blocked: dict[str, _Block] = {}
        self._busy: set[int] = set()  # shards that a batch is made of
        self._serial = 0
        self._claiming = math.inf
        self.size = 0  # events, until they are settled
        self.closed = False  # hand out nothing more
        self.handed: Callable[[], Iterable[Handed]] = lambda: ()  # what is with the workers

    def __len__(self) -> int:
        return len(self._all)

    @property
    def all_handed_out(self) -> bool:
        """Nothing waits to be handed out."""
        return not self._waiting and all(taken.next == len(taken.events) for taken in self._queue)

    def tokens(self) -> list[int]:
        return [taken.token for taken in self._all]

    def all(self) -> list[Taken]:
        return list(self._all)

    # -- arrivals -----------------------------------------------------------------------------------

    def begin_claim(self) -> None:
        self._serial += 1
        self._claiming = self._serial

    def end_claim(self, arrived: Sequence[Taken]) -> None:
        for taken in arrived:
            taken.serial = self._serial
            self._all[taken] = None
            self.size += len(taken.events)
            if not taken.left:
                self._finished(taken)
        self._claiming = math.inf
        parked = [taken for taken in arrived if taken.parked]
        self._queue.extendleft(reversed(parked))
        self._queue.extend([taken for taken in arrived if taken.left and not taken.parked])

    # -- one by one ---------------------------------------------------------------------------------

    def take(self) -> Handed | None:
        queue, ordered = self._queue, self.ordered
        while queue and not self.closed:
            taken = queue[0]
            index = taken.next
            if index == len(taken.events):
                queue.popleft()
                continue
            taken.next = index + 1
            event = taken.events[index]
            key = event.key
            if not ordered or key is None:
                return taken, event
            if (self._blocked or taken.held) and self._follows(taken, key):
                self._conclude(taken, event, None, 0)
            elif key in self._running:
                self._waiting.setdefault(key, deque()).append((taken, event))
            else:
                self._running.add(key)
                return taken, event
        return None

    def done(self, taken: Taken, event: Event) -> Handed | None:
        """Concludes an event. Returns the next of its key, if one waits."""
        taken.left -= 1
        if not taken.left:
            self._finish(taken)
        key = event.key
        return None if key is None or not self.ordered else self._next(key)

    def failed(self, taken: Taken, event: Event, outcome: Outcome, attempts: int) -> Handed | None:
        """Parks an event; if it holds its key, those that wait behind it follow. Returns the next that may run."""
        self._conclude(taken, event, outcome, attempts)
        key = event.key
        if key is None or not self.ordered:
            return None
        if taken.gone or not self.holds(outcome):
            return self._next(key)
        waiting = self._waiting.pop(key, ())
        for behind, follower in waiting:
            if not behind.parked:
                self._conclude(behind, follower, None, 0)
        kept = deque([handed for handed in waiting if handed[0].parked])
        if kept and not taken.parked:  # they were claimed for themselves; of a run the rest is given back
            self._waiting[key] = kept
        return self._next(key)

    def _next(self, key: str) -> Handed | None:
        waiting = self._waiting.get(key)
        if waiting is None:
            self._running.discard(key)
            return None
        handed = waiting.popleft()
        if not waiting:
            del self._waiting[key]
        return handed

    def abandon(self, event: Event) -> Handed | None:
        """For an event that was handed out and lost since. Returns the next of its key, if one came meanwhile."""
        return None if event.key is None or not self.ordered else self._next(event.key)

    # -- in batches ---------------------------------------------------------------------------------

    def gather(self, limit: int, suspicious: int) -> list[Portion]:
        """Up to `limit` events for one call. In an ordered group its shards wait until `part`. What has been claimed
        more often than `suspicious` goes alone: should it kill its process, it takes no neighbours along."""
        portions: list[Portion] = []
        for taken in () if self.closed else tuple(self._queue):
            if limit <= 0 or (self.ordered and taken.shard in self._busy):
                continue
            alone = taken.parked and taken.attempts > suspicious
            if alone and portions:
                break
            portion = self._portion(taken, limit)
            limit = 0 if alone and portion else limit - len(portion)
            if portion:
                portions.append((taken, portion))
        self._queue = deque([taken for taken in self._queue if taken.next < len(taken.events)])
        if self.ordered:
            self._busy.update([taken.shard for taken, _ in portions])
        return portions

    def _portion(self, taken: Taken, limit: int) -> Sequence[Event]:
        """The next that may run; those that must follow a failed one leave on the way."""
        if not (self.ordered and (self._blocked or taken.held)):
            portion = taken.events[taken.next : taken.next + limit]
            taken.next += len(portion)
            return portion
        runnable: list[Event] = []
        while taken.next < len(taken.events) and len(runnable) < limit:
            event = taken.events[taken.next]
            taken.next += 1
            if not self.follows(taken, event):
                runnable.append(event)
        return runnable

    def follows(self, taken: Taken, event: Event) -> bool:
        """Whether it must not run, and leaves for the parked table."""
        if not self.ordered or event.key is None or not self._follows(taken, event.key):
            return False
        self._conclude(taken, event, None, 0)
        return True

    def done_all(self, taken: Taken, count: int) -> None:
        taken.left -= count
        if not taken.left:
            self._finish(taken)

    def part(self, portions: Sequence[Portion]) -> None:
        if self.ordered:
            self._busy.difference_update([taken.shard for taken, _ in portions])

    # -- departures ---------------------------------------------------------------------------------

    def forget(self, taken: Taken) -> list[Taken]:
        """Removes what was lost and, in an ordered group, all behind it, which must not overtake it."""
        gone = [taken]
        if self.ordered:
            arrived = self.all()
            later = arrived[arrived.index(taken) + 1 :] if taken in arrived else ()
            gone += [each for each in later if (each.left or each.verdicts) and _behind(each, taken)]
        self._remove(gone)
        return gone

    def run_of(self, taken: Taken) -> list[Taken]:
        """Parked events of the same key that were claimed along with it."""
        key = taken.events[0].key
        if not (self.ordered and taken.parked) or key is None:
            return []
        return [each for each in self.all() if each.parked and each is not taken and each.events[0].key == key]

    def untouched(self) -> list[Taken]:
        """Ranges and parked events of which nothing was handed out."""
        return [taken for taken in self._all if taken.left and taken.next == 0]

    def give_up(self, gone: Sequence[Taken]) -> None:
        self._remove(gone)

    def _remove(self, gone: Sequence[Taken]) -> None:
        leaving = set(gone)
        undone_shards: set[int] = set()  # of which something earlier is not settled
        for taken in self.all():
            if taken not in leaving:
                if not taken.parked:
                    undone_shards.add(taken.shard)
                continue
            undone = self._undone(taken)
            if self.ordered and not taken.parked:
                if taken.shard in undone_shards:
                    undone |= self._take_back(taken)
                if undone:
                    undone_shards.add(taken.shard)
            taken.finished |= {event.seq for event in taken.events if event.seq is not None} - undone
            taken.gone = True
            del self._all[taken]
            self.size -= len(taken.events)
        self._queue = deque([taken for taken in self._queue if not taken.gone])
        for key, waiting in list(self._waiting.items()):
            kept = deque([handed for handed in waiting if not handed[0].gone])
            if kept:
                self._waiting[key] = kept
            else:
                del self._waiting[key]

    def _undone(self, taken: Taken) -> set[int | None]:
        undone = {event.seq for event in taken.events[taken.next :]}
        for waiting in (*self._waiting.values(), self.handed()):
            undone |= {event.seq for of, event in waiting if of is taken}
        return undone

    def _take_back(self, taken: Taken) -> set[int | None]:
        """Drops verdicts that may not be settled before an earlier range: their events are delivered again."""
        events = {verdict.event.seq for verdict in taken.verdicts}
        self._lift(taken)
        taken.left += len(taken.verdicts)
        taken.verdicts.clear()
        return events

    def settleable(self, finished: Sequence[Taken]) -> list[Taken]:
        """Which of the finished ones may be settled now, in one transaction."""
        if not self.ordered:
            return list(finished)
        through, waiting = set(finished), set[int]()
        for taken in self._all:
            if taken.parked:
                continue
            if taken not in through:
                waiting.add(taken.shard)
            elif taken.verdicts and taken.shard in waiting:
                through.discard(taken)
        return [taken for taken in finished if taken in through]

    def settled(self, settled: Sequence[Taken]) -> None:
        """These are in the database now, with their verdicts: they go."""
        for taken in settled:
            if taken in self._all:
                del self._all[taken]
                self.size -= len(taken.events)
            self._lift(taken)
        if self._blocked:
            oldest = min((taken.serial for taken in self._all), default=math.inf)
            oldest = min(oldest, self._claiming)
            self._blocked = {k: block for k, block in self._blocked.items() if block.open or block.serial >= oldest}

    def _lift(self, taken: Taken) -> None:
        for verdict in taken.verdicts:
            block = self._blocked.get(verdict.event.key or "")
            if block is not None and self._blocks(taken, verdict.outcome):
                block.open -= 1
                block.serial = self._serial

    # -- which keys must wait -----------------------------------------------------------------------

    def holds(self, outcome: Outcome | None) -> bool:
        """Whether the rest of the key must follow."""
        return outcome is None or isinstance(outcome, RetryAt) or (self._parks and isinstance(outcome, Dead))

    def _blocks(self, taken: Taken, outcome: Outcome | None) -> bool:
        return self.ordered and not taken.parked and self.holds(outcome)

    def _follows(self, taken: Taken, key: str) -> bool:
        if taken.parked:
            return False
        block = self._blocked.get(key)
        if block is not None and (block.open or taken.serial <= block.serial):
            return True
        return bool(taken.held) and key_hash(key) in taken.held

    def _conclude(self, taken: Taken, event: Event, outcome: Outcome | None, attempts: int) -> None:
        if taken.gone:  # the process that has it now decides
            return
        taken.verdicts.append(Verdict(event, outcome, attempts))
        if event.key is not None and self._blocks(taken, outcome):
            self._blocked.setdefault(event.key, _Block()).open += 1
        taken.left -= 1
        if not taken.left:
            self._finish(taken)

    def _finish(self, taken: Taken) -> None:
        if not taken.gone:
            self._finished(taken)


def _behind(each: Taken, taken: Taken) -> bool:
    """Whether `each` must not overtake `taken`: both of one shard, or both parked events of one key."""
    if taken.parked or each.parked:
        return each.parked and taken.parked and each.events[0].key == taken.events[0].key is not None
    return each.shard == taken.shard
