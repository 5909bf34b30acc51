"""The business transactions of the trial: a truth row and the event together, some rolled back on purpose."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from relaybox import AsyncOutbox, CommitUnknown, Event, Outbox

from .records import History, Numbers, Op

KEYS = 64
TRUTH = "CREATE TABLE truth (event_no bigint PRIMARY KEY, key integer NOT NULL, tx bigint NOT NULL)"


class OnPurpose(Exception):
    """Rolls a transaction or a savepoint back."""


class Load:
    """Decides what the next transaction does, and notes it before and after."""

    def __init__(self, history: History, numbers: Numbers, seed: int) -> None:
        self.history = history
        self._numbers = numbers
        self._random = random.Random(seed)
        self._tx = 0

    def event(self) -> tuple[int, int, Event]:
        number, key = self._numbers.draw(), self._random.randrange(KEYS)
        return number, key, Event("Counted", {"n": number, "k": key}, key=f"key-{key}")

    def plan(self) -> tuple[list[tuple[int, int, Event]], list[tuple[int, int, Event]], bool]:
        """Events of the transaction, events of a savepoint that is rolled back, whether all is rolled back."""
        draw = self._random.random()
        size = self._random.choice((250, 40, 10)) if draw < 0.02 else 1 + (draw < 0.2) * self._random.randrange(5)
        inner = [self.event() for _ in range(self._random.randrange(1, 3))] if self._random.random() < 0.15 else []
        return [self.event() for _ in range(size)], inner, self._random.random() < 0.12

    def rows(self, events: list[tuple[int, int, Event]]) -> list[tuple[int, int, int]]:
        self._tx += 1
        return [(number, key, events[0][0]) for number, key, _ in events]

    def note(self, op: Op, events: list[tuple[int, int, Event]]) -> None:
        self.history.many([self.history.packed(op, number, key) for number, key, _ in events])


class AsyncpgWriter:
    """The caller's own asyncpg connection and transaction: the hot path when the outbox is a node."""

    def __init__(self, url: str, box: AsyncOutbox, load: Load) -> None:
        self._url, self._box, self._load = url, box, load
        self._connection: Any = None

    async def step(self) -> None:
        import asyncpg

        load = self._load
        events, inner, abort = load.plan()
        if self._connection is None or self._connection.is_closed():
            self._connection = await asyncpg.connect(self._url, timeout=5)
        connection = self._connection
        transaction = connection.transaction()
        sent = False
        load.note(Op.PUBLISH, events)
        try:
            await transaction.start()
            await self._write(connection, events)
            if inner:
                load.note(Op.ABORT, inner)
                nested = connection.transaction()
                await nested.start()
                await self._write(connection, inner)
                await nested.rollback()
            if abort:
                load.note(Op.ABORT, events)
                await transaction.rollback()
                return
            sent = True
            await transaction.commit()
            load.note(Op.COMMIT_OK, events)
        except Exception:
            load.note(Op.COMMIT_UNKNOWN if sent else Op.FAILED, events)
            if not connection.is_closed():
                connection.terminate()
            raise

    async def _write(self, connection: Any, events: list[tuple[int, int, Event]]) -> None:
        await connection.executemany("INSERT INTO truth VALUES ($1, $2, $3)", self._load.rows(events))
        await self._box.write_all(connection, [event for _, _, event in events])


class ManualWriter:
    """Transactions that the outbox begins and ends, on psycopg."""

    def __init__(self, box: Outbox, load: Load) -> None:
        self._box, self._load = box, load

    async def step(self) -> None:
        load = self._load
        events, inner, abort = load.plan()
        load.note(Op.PUBLISH, events)
        try:
            with self._box.transaction() as tx:
                self._write(tx, events)
                if inner:
                    load.note(Op.ABORT, inner)
                    try:
                        with tx.savepoint():
                            self._write(tx, inner)
                            raise OnPurpose
                    except OnPurpose:
                        pass
                if abort:
                    load.note(Op.ABORT, events)
                    raise OnPurpose
            load.note(Op.COMMIT_OK, events)
        except OnPurpose:
            return
        except CommitUnknown as error:
            load.note(Op.COMMIT_UNKNOWN, events)
            if not set(error.event_ids) >= {event.id for _, _, event in events}:
                raise RuntimeError("CommitUnknown does not name all events of its transaction") from error
            raise
        except Exception:
            load.note(Op.FAILED, events)
            raise

    def _write(self, tx: Any, events: list[tuple[int, int, Event]]) -> None:
        with tx.connection.cursor() as cursor:
            cursor.executemany("INSERT INTO truth VALUES (%s, %s, %s)", self._load.rows(events))
        self._box.write_all(tx, [event for _, _, event in events])


class SessionWriter:
    """A SQLAlchemy AsyncSession."""

    def __init__(self, url: str, box: AsyncOutbox, load: Load) -> None:
        from sqlalchemy.ext.asyncio import create_async_engine

        self._box, self._load = box, load
        self._engine = create_async_engine(url.replace("://", "+psycopg://", 1), pool_size=2)

    async def step(self) -> None:
        load = self._load
        events, inner, abort = load.plan()
        load.note(Op.PUBLISH, events)
        sent = False
        try:
            async with self._session() as session:
                await self._write(session, events)
                if inner:
                    load.note(Op.ABORT, inner)
                    nested = await session.begin_nested()
                    await self._write(session, inner)
                    await nested.rollback()
                if abort:
                    load.note(Op.ABORT, events)
                    await session.rollback()
                    return
                sent = True
                await session.commit()
                load.note(Op.COMMIT_OK, events)
        except Exception:
            load.note(Op.COMMIT_UNKNOWN if sent else Op.FAILED, events)
            raise

    @asynccontextmanager
    async def _session(self) -> AsyncIterator[Any]:
        from sqlalchemy.ext.asyncio import AsyncSession

        async with AsyncSession(self._engine) as session:
            yield session

    async def _write(self, session: Any, events: list[tuple[int, int, Event]]) -> None:
        import sqlalchemy as sa

        statement = sa.text("INSERT INTO truth VALUES (:n, :k, :t)")
        await session.execute(statement, [{"n": n, "k": k, "t": t} for n, k, t in self._load.rows(events)])
        await self._box.write_all(session, [event for _, _, event in events])
