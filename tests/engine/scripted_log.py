"""A log in memory, for tests of the range engine alone: shards, ranges with tokens, parked events, and a database that
can go away."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from scripted_source import chosen

from relaybox.clock import SYSTEM_CLOCK, Clock
from relaybox.engine.ranges.engine import Claims, RangeEngine
from relaybox.engine.ranges.holding import Taken
from relaybox.errors import ConnectionLost
from relaybox.event import Event
from relaybox.facts import Observers
from relaybox.ids import key_hash, shard_of
from relaybox.outcome import Dead, RetryAt
from relaybox.testing import Probe


@dataclass
class Held:
    """A range in the database."""

    shard: int
    events: list[Event]
    attempts: int = 1
    finished: set[int] = field(default_factory=set)
    token: int | None = None


@dataclass
class Parked:
    event: Event
    state: str
    attempts: int
    due: float
    error: str | None = None
    token: int | None = None


class ScriptedLog:
    def __init__(
        self,
        *,
        ordered: bool = True,
        shards: int = 4,
        parks: bool = False,
        clock: Clock = SYSTEM_CLOCK,
        lease: float = 30,
    ) -> None:
        self.ordered = ordered
        self.shards = self.share = shards
        self.parks = parks
        self.clock = clock
        self.lease = lease
        self.alive_until = math.inf
        self.pulse = self
        self.known: Callable[[], Sequence[int]] = lambda: ()
        self.here: Callable[[], Iterable[Taken]] = tuple
        self.full = False
        self.unread: dict[int, list[Event]] = {shard: [] for shard in range(shards)}
        self.ranges: list[Held] = []
        self.parked: dict[int, Parked] = {}
        self.down: set[str] = set()
        self.settled_ranges = 0
        self.renewed: list[int] = []
        self.asked: list[tuple[int, int]] = []
        self._numbers = itertools.count(1)
        self._tokens = itertools.count(1000)

    # -- what tests do ------------------------------------------------------------------------------

    def add(self, count: int = 1, *, key: str | None = None, keys: int | None = None) -> list[int]:
        seqs = []
        for n in range(count):
            seq = next(self._numbers)
            name = f"k{n % keys}" if keys else key
            made = Event("T", seq, key=name)
            row = (seq, made.id, "T", None, name, None, None, made.body, None, made.occurred_at, None, made.occurred_at)
            event = Event.stored(row)
            self.unread[shard_of(event.id if name is None else name, self.shards)].append(event)
            seqs.append(seq)
        return seqs

    def take_away(self) -> None:
        """Everything claimed is another's now."""
        for held in self.ranges:
            held.token = next(self._tokens)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _reach(self, method: str) -> None:
        if method in self.down:
            raise ConnectionLost("the database is away")

    @property
    def empty(self) -> bool:
        return not (any(self.unread.values()) or self.ranges or self.parked)

    # -- the RangeSource protocol -------------------------------------------------------------------

    async def claim(self, events: int, ranges: int) -> Claims:
        await asyncio.sleep(0)
        self._reach("claim")
        self.asked.append((events, ranges))
        ends = self.clock.monotonic() + self.lease
        heads = {key_hash(p.event.key) for p in self.parked.values() if p.event.key and self._holds(p)}
        held = frozenset(heads) if self.ordered else frozenset()
        taken = []
        for left in [each for each in self.ranges if each.token is None]:
            left.token, left.attempts = next(self._tokens), left.attempts + 1
            done = frozenset(left.finished)
            taken.append(Taken(left.token, left.shard, left.events, left.attempts, ends, held=held, finished=done))
        for shard, unread in self.unread.items():
            if unread and len(taken) < ranges:
                page, self.unread[shard] = unread[:events], unread[events:]
                fresh = Held(shard, page, token=next(self._tokens))
                self.ranges.append(fresh)
                taken.append(Taken(fresh.token or 0, shard, page, 1, ends, held=held))
        return Claims(taken)

    def _holds(self, parked: Parked) -> bool:
        return parked.state != "dead" or self.parks

    async def claim_parked(self, limit: int) -> Claims:
        await asyncio.sleep(0)
        self._reach("claim_parked")
        token, ends, taken = next(self._tokens), self.clock.monotonic() + self.lease, []
        seen: set[str] = set()
        for _, parked in sorted(self.parked.items()):
            key = parked.event.key
            first = not self.ordered or key is None or key not in seen
            if key is not None and self._holds(parked):
                seen.add(key)
            free = parked.token is None and parked.state != "dead" and parked.due <= self._now()
            if first and free and len(taken) < limit:
                parked.token, parked.attempts, parked.state = token, parked.attempts + 1, "retry"
                shard = shard_of(parked.event.id if key is None else key, self.shards)
                taken.append(Taken(token, shard, [parked.event], parked.attempts, ends, parked=True))
        return Claims(taken)

    async def settle(self, finished: Sequence[Taken], returned: Sequence[Taken]) -> int:
        await asyncio.sleep(0)
        self._reach("settle")
        lost = 0
        for taken in (*finished, *returned):
            if taken.parked:
                self._settle_parked(taken, given_back=taken in returned)
                continue
            held = next((each for each in self.ranges if each.token == taken.token), None)
            if held is None:
                lost += 1
                continue
            for event, outcome, attempts in taken.verdicts:
                state = {RetryAt: "retry", Dead: "dead"}.get(type(outcome), "held")
                delay = outcome.delay.total_seconds() if isinstance(outcome, RetryAt) else 0.0
                counted = attempts - (isinstance(outcome, RetryAt) and not outcome.counted)
                error = getattr(outcome, "error", None)
                assert event.seq is not None
                self.parked[event.seq] = Parked(event, state, counted, self._now() + delay, error)
            if taken in returned:
                held.token, held.attempts = None, held.attempts - 1
                held.finished = set(taken.finished)
            else:
                self.ranges.remove(held)
                self.settled_ranges += 1
        return lost

    def _settle_parked(self, taken: Taken, *, given_back: bool) -> None:
        seq = taken.events[0].seq
        assert seq is not None
        row = self.parked[seq]
        row.token = None
        outcome = taken.verdicts[0].outcome if taken.verdicts else None
        if given_back:
            row.attempts -= 1
        elif isinstance(outcome, RetryAt):
            row.due, row.error = self._now() + outcome.delay.total_seconds(), outcome.error
            row.attempts -= not outcome.counted
        elif isinstance(outcome, Dead):
            row.state, row.error = "dead", outcome.error
        else:
            del self.parked[seq]

    async def renew(self, taken: Sequence[Taken]) -> set[int]:
        self._reach("renew")
        ours = {held.token for held in self.ranges} | {parked.token for parked in self.parked.values()}
        self.renewed += [each.token for each in taken if each.token in ours]
        return {each.token for each in taken if each.token in ours}

    async def next_parked(self) -> timedelta | None:
        waiting = [parked.due for parked in self.parked.values() if parked.state != "dead" and parked.token is None]
        return timedelta(seconds=min(waiting) - self._now()) if waiting else None


def make_range_engine(
    log: ScriptedLog,
    handler: Any,
    probe: Probe,
    *,
    pause: float = 0.0,
    engine: dict[str, Any] | None = None,
    **settings: Any,
) -> RangeEngine:
    settings = {"on_exhausted": "park" if log.parks else "skip", **settings}
    call: Any = (lambda event, attempts: handler(event)) if callable(handler) else handler
    made = RangeEngine(log, call, chosen(pause, **settings), Observers([probe]), log.clock, **(engine or {}))
    made.poll_every(timedelta(milliseconds=20))
    return made
