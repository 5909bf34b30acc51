"""A RowSource in memory, for tests of the engine: its rows, tokens and leases, and a database that can go away."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from relaybox.clock import SYSTEM_CLOCK, Clock
from relaybox.engine.protocols import BatchHandler, Delivery, Handler, Settled
from relaybox.engine.rows.engine import RowEngine
from relaybox.engine.workers import Asked
from relaybox.errors import ConnectionLost
from relaybox.event import Event
from relaybox.facts import Observers
from relaybox.outcome import Dead, RetryAt
from relaybox.retry import Retry
from relaybox.settings import DeliverySettings, OnExhausted, OrderSettings, Settings
from relaybox.testing import Probe


@dataclass
class Row:
    event: Event
    token: int | None = None
    attempts: int = 0
    due: float = 0.0
    error: str | None = None


class ScriptedSource:
    def __init__(self, *, ordered: bool = False, clock: Clock = SYSTEM_CLOCK, lease: float = 30.0) -> None:
        self.ordered = ordered
        self.silent = False
        self.full = False
        self.pulse = self
        self.rows: dict[int, Row] = {}
        self.dead: dict[int, Row] = {}
        self.held: dict[str, int] = {}  # key -> seq of its failed head
        self.limits: list[int] = []
        self.settled: list[list[Settled]] = []
        self.released: list[int] = []
        self.renewed: list[int] = []
        self.claimed_at: list[float] = []
        self.down: set[str] = set()  # methods that fail as if the database were away
        self.failures = 0
        self.lease = lease
        self.clock = clock
        self.settle_gate: asyncio.Event | None = None
        self.release_gate: asyncio.Event | None = None
        self._numbers = itertools.count(1)
        self._tokens = itertools.count(1000)

    @property
    def alive_until(self) -> float:
        return -math.inf if self.silent else math.inf

    # -- what tests do ------------------------------------------------------------------------------

    def add(self, count: int = 1, *, key: str | None = None, type: str = "T") -> list[int]:
        seqs = [next(self._numbers) for _ in range(count)]
        for seq in seqs:
            self.rows[seq] = Row(Event(type, seq, key=key))
        return seqs

    def add_hot(self, count: int = 1, *, lease: float | None = None) -> list[Delivery]:
        """Rows that their writer has claimed, as `Node.committed` hands them over."""
        made = []
        for seq in self.add(count):
            row = self.rows[seq]
            row.token, row.attempts, row.due = next(self._tokens), 1, self._now() + self.lease
            ends = self.clock.monotonic() + (self.lease if lease is None else lease)
            made.append(Delivery(row.event, seq, row.token, 1, ends, hot=True))
        return made

    def expire(self, *seqs: int) -> None:
        """The lease ends in the database: anybody may claim again."""
        for seq in seqs:
            self.rows[seq].due = 0.0

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _reach(self, method: str) -> None:
        if method in self.down:
            self.failures += 1
            raise ConnectionLost("the database is away")

    # -- the RowSource protocol ----------------------------------------------------------------------

    async def claim(self, limit: int, past: Collection[str] = ()) -> list[Delivery]:
        self.claimed_at.append(self._now())
        await asyncio.sleep(0)
        self._reach("claim")
        self.limits.append(limit)
        token = next(self._tokens)
        ends = self.clock.monotonic() + self.lease
        taken = []
        for seq, row in sorted(self.rows.items()):
            free = row.event.key not in past and not self._behind(seq, row)
            if len(taken) < limit and row.due <= self._now() and free:
                row.token, row.attempts, row.due = token, row.attempts + 1, self._now() + self.lease
                taken.append(Delivery(row.event, seq, token, row.attempts, ends, hot=False, ordered=self.ordered))
        return taken

    def _behind(self, seq: int, row: Row) -> bool:
        head = self.held.get(row.event.key or "")
        return self.ordered and head is not None and head < seq

    async def verify(self, deliveries: Sequence[Delivery]) -> set[int]:
        return {d.seq for d in deliveries if self._ours(d)}

    def _ours(self, delivery: Delivery) -> bool:
        row = self.rows.get(delivery.seq)
        return row is not None and row.token == delivery.token

    async def settle(self, outcomes: Sequence[Settled]) -> int:
        await asyncio.sleep(0)
        if self.settle_gate is not None:
            await self.settle_gate.wait()
        self._reach("settle")
        self.settled.append(list(outcomes))
        lost = 0
        for delivery, outcome in outcomes:
            if not self._ours(delivery):
                lost += 1
                continue
            row = self.rows[delivery.seq]
            key = row.event.key or ""
            if isinstance(outcome, RetryAt):
                row.attempts -= not outcome.counted
                row.token, row.due, row.error = None, self._now() + outcome.delay.total_seconds(), outcome.error
                self.held[key] = min(delivery.seq, self.held.get(key, delivery.seq))
                continue
            if isinstance(outcome, Dead):
                row.error = outcome.error
                self.dead[delivery.seq] = row
            del self.rows[delivery.seq]
            if self.held.get(key) == delivery.seq:
                del self.held[key]
        return lost

    async def release(self, deliveries: Sequence[Delivery]) -> None:
        await asyncio.sleep(0)
        if self.release_gate is not None:
            await self.release_gate.wait()
        self._reach("release")
        for delivery in deliveries:
            if self._ours(delivery):
                row = self.rows[delivery.seq]
                row.token, row.attempts, row.due = None, row.attempts - 1, 0.0
                self.released.append(delivery.seq)

    async def renew(self, deliveries: Sequence[Delivery]) -> set[int]:
        self._reach("renew")
        ours = {d.seq for d in deliveries if self._ours(d)}
        self.renewed += sorted(ours)
        return ours

    async def oldest(self) -> timedelta:
        self._reach("oldest")
        waiting = [row for row in self.rows.values() if row.token is None]
        return timedelta(seconds=5) if waiting else timedelta(0)

    async def next_due(self) -> timedelta | None:
        self._reach("next_due")
        dues = [row.due for row in self.rows.values()]
        return timedelta(seconds=min(dues) - self._now()) if dues else None


Pause = float | Callable[[int], float]


def chosen(pause: Pause, attempts: int = 10, on_exhausted: OnExhausted = "block", **delivery: Any) -> Settings:
    """What engines look at, with retries without surprises."""
    retry = Retry(attempts=attempts, delay=pause if callable(pause) else lambda _: pause)
    return Settings(delivery=DeliverySettings(retry=retry, **delivery), order=OrderSettings(on_exhausted=on_exhausted))


MakeEngine = Callable[..., RowEngine]


def make_engine(
    source: ScriptedSource,
    handler: Handler | BatchHandler,
    probe: Probe,
    *,
    pause: Pause = 0.0,
    clock: Clock = SYSTEM_CLOCK,
    asked: Asked | None = None,
    **settings: Any,
) -> RowEngine:
    engine = RowEngine(source, handler, chosen(pause, **settings), Observers([probe]), clock, asked)
    engine.poll_every(timedelta(milliseconds=20))
    return engine
