"""What the contract's tests stand on: one fresh outbox per test, a way to run ops, a time that stands still."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pytest_asyncio

from relaybox.drivers.pool import AsyncDatabase, Database
from relaybox.errors import StoreBusy
from relaybox.event import Event
from relaybox.ids import new_token
from relaybox.op import Op, Query, T, arun, run
from relaybox.store.claims import Claim, Death, HeldRow, RetryRow
from relaybox.store.names import Tables
from relaybox.store.outbox import OutboxStore
from relaybox.store.outbox.values import ClaimedRow

T0 = datetime(2031, 5, 4, 3, 2, 1, 123456, tzinfo=UTC)
LEASE = timedelta(seconds=30)
SECOND = timedelta(seconds=1)
MICROSECOND = timedelta(microseconds=1)

_numbers = itertools.count(1)


class Runner:
    """One face for both kinds of database: sync ones run in threads, so claimers really are concurrent."""

    def __init__(self, database: Database | AsyncDatabase) -> None:
        self.database = database

    async def run(self, op: Op[T], *, tx: bool = True) -> T:
        if isinstance(self.database, AsyncDatabase):
            return await self.database.run(op, tx=tx)
        return await asyncio.to_thread(self.database.run, op, tx=tx)

    async def persist(self, make: Callable[[], Op[T]], *, tx: bool = True) -> T:
        """Again after StoreBusy, as every caller of an op must be ready to do."""
        for _ in range(20):
            try:
                return await self.run(make(), tx=tx)
            except StoreBusy:
                continue
        return await self.run(make(), tx=tx)

    @asynccontextmanager
    async def begun(self, op: Op[T]) -> AsyncIterator[T]:
        """An op whose transaction stays open until the block ends, and is then rolled back."""
        if isinstance(self.database, AsyncDatabase):
            async with self.database.connection() as theirs:
                await theirs.begin()
                yield await arun(op, theirs)
                await theirs.rollback()
        else:
            with self.database.connection() as ours:
                ours.begin()
                yield run(op, ours)
                ours.rollback()

    async def copies(self) -> bool:
        if isinstance(self.database, AsyncDatabase):
            async with self.database.connection() as theirs:
                return theirs.copy
        with self.database.connection() as ours:
            return ours.copy

    async def close(self) -> None:
        if isinstance(self.database, AsyncDatabase):
            await self.database.close()
        else:
            await asyncio.to_thread(self.database.close)


class Taken(NamedTuple):
    """Rows as claimed, with the claim that every later write must show."""

    claim: Claim
    rows: list[ClaimedRow]

    @property
    def seqs(self) -> list[int]:
        return [claimed.row[0] for claimed in self.rows]

    @property
    def ids(self) -> list[str]:
        return [claimed.row[1] for claimed in self.rows]

    @property
    def attempts(self) -> list[int]:
        return [claimed.attempts for claimed in self.rows]

    @property
    def events(self) -> list[Event]:
        return [Event.stored(claimed.row) for claimed in self.rows]

    @property
    def held(self) -> list[HeldRow]:
        return [HeldRow(seq, self.claim.token) for seq in self.seqs]

    def retries(self, delay: timedelta = SECOND, error: str = "bad") -> list[RetryRow]:
        return [RetryRow(held.seq, held.token, delay, error) for held in self.held]

    def deaths(self, error: str = "hopeless") -> list[Death]:
        return [Death(held.seq, held.token, error) for held in self.held]


def some_events(count: int, *, key: str | None = None, type: str = "Counted") -> list[Event]:
    """Numbered events: on one key, or each on its own."""
    return [Event(type, {"n": n}, key=key or f"k{n}") for n in range(count)]


class Harness:
    """Subclasses say which database and which store; each test gets new tables in it."""

    store: OutboxStore
    db: Runner
    strategies: Sequence[str]  # ways to keep the order of keys that are tried

    def connect(self) -> Database | AsyncDatabase:
        raise NotImplementedError

    def make_store(self, tables: Tables) -> OutboxStore:
        raise NotImplementedError

    async def disconnect(self) -> None:
        """After each test, for what `connect` opened beside the databases: an engine, say."""

    @pytest_asyncio.fixture(autouse=True)
    async def _contract(self) -> AsyncIterator[None]:
        self._runners: list[Runner] = []
        self.store = self.fresh_store()
        self.db = self.another()
        await self.run(self.store.migrate())
        yield
        for runner in self._runners:
            await runner.close()
        await self.disconnect()

    def another(self) -> Runner:
        """A second handle on the same database: other connections, as in another process."""
        runner = Runner(self.connect())
        self._runners.append(runner)
        return runner

    def fresh_store(self, prefix: str = "t") -> OutboxStore:
        """A store whose tables do not exist yet; runs on one database do not meet."""
        return self.make_store(Tables(f"{prefix}{os.getpid()}_{next(_numbers)}"))

    async def run(self, op: Op[T], *, tx: bool = True) -> T:
        return await self.db.run(op, tx=tx)

    async def write(
        self, *events: Event, claim: Claim | None = None, now: datetime = T0, copy: bool = False
    ) -> list[int]:
        return await self.run(self.store.write(events, claim, now, copy=copy))

    async def take(
        self,
        limit: int = 2_000,
        *,
        now: datetime = T0,
        owner: int = 1,
        lease: timedelta = LEASE,
        db: Runner | None = None,
        shards: int = 0,
    ) -> Taken:
        """A claim as the poller makes it: without a transaction where one statement is enough."""
        claim = Claim(owner, new_token(), lease)
        tx = not self.store.capabilities.single_statement

        def attempt() -> Op[list[ClaimedRow]]:
            if shards:
                return self.store.claim_ordered(claim, limit, shards, now)
            return self.store.claim(claim, limit, now)

        return Taken(claim, await (db or self.db).persist(attempt, tx=tx))

    async def die(self, taken: Taken, error: str = "hopeless", now: datetime = T0) -> None:
        from relaybox.store.outbox.values import Settlement

        assert await self.run(self.store.settle(Settlement(dead=taken.deaths(error)), now)) == 0

    def named(self, part: str) -> str:
        """A table of this outbox, quoted for its engine."""
        return self.store.tables.substitutions(self.store.quote)[part]

    def raw(self, *texts: str) -> Op[list[Sequence[tuple[Any, ...]]]]:
        """Statements of the test's own, for looking and for breaking things."""
        answers = []
        for text in texts:
            rows = text.lstrip().upper().startswith("SELECT")
            result = yield Query("contract", text, "rows" if rows else "count").bind()
            answers.append(result.rows)
        return answers
