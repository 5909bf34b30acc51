"""Inbox and AsyncInbox, twins over the same ops: accept messages of other services, each of them once.

    inbox = Inbox("postgresql://localhost/billing", "orders_inbox")
    inbox.migrate()
    inbox.accept(None, event)           # in a transaction of its own
    inbox.accept(session, event)        # or in yours: stored if and when you commit

An id is a duplicate from the commit on that brought it, however long ago that was. Two transactions that accept the
same id at once are never both told that it is new: the second waits for the first to end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from ..clock import SYSTEM_CLOCK, Clock
from ..drivers import open_async, open_sync, wrap
from ..drivers.spi import AsyncConnection, AsyncRunner, Connection, Runner
from ..errors import ConfigError, InvalidEvent, NoTransaction
from ..event import Event
from ..op import Op, arun, run
from ..store.inbox import InboxStatus, InboxStore, InboxTables, check_source, open_inbox_store
from ..store.spi import Migration


class _Shared:
    """What the twins have in common: the checks before anything reaches the database."""

    def __init__(self, store: InboxStore, clock: Clock) -> None:
        self.store = store
        self._clock = clock

    def _op(self, events: Sequence[Event], source: str | None) -> Op[list[bool]]:
        if isinstance(events, Event) or not all(isinstance(event, Event) for event in events):
            raise InvalidEvent(
                "accept_all() takes a list of events, accept() takes one; Event(type, payload) makes one"
            )
        return self.store.accept(events, check_source(source), self._clock.database_now())

    def _connection(self, handle: Any) -> Connection | AsyncConnection:
        connection = wrap(handle)
        if connection.dialect != self.store.dialect:
            raise ConfigError(
                f"this inbox is on {self.store.dialect}, the handle is a {connection.dialect} connection; "
                "pass one to the inbox's database, or None for a transaction of its own"
            )
        if not connection.in_transaction():
            raise NoTransaction(
                "accept() needs an open transaction, or None for one of its own; this "
                f"{type(handle).__module__}.{type(handle).__qualname__} is in autocommit mode. Begin one first"
            )
        return connection


class Inbox(_Shared):
    """For synchronous programs. Safe to use from many threads."""

    def __init__(
        self, target: Any, name: str = "inbox", *, schema: str | None = None, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        tables = InboxTables(name, schema)
        self._db: Runner = open_sync(target)
        super().__init__(open_inbox_store(self._db.dialect, tables), clock)

    def migrate(self) -> list[Migration]:
        """Create or upgrade the tables. Safe to call from many processes at once, and again."""
        return self._db.run(self.store.migrate())

    def verify(self) -> None:
        """Raise SchemaMissing, SchemaTooNew or SchemaDrift unless the tables fit this release."""
        self._db.run(self.store.verify_schema(), tx=False)

    def accept(self, handle: Any, event: Event, *, source: str | None = None) -> bool:
        """Store it in the handle's transaction (None: in one of its own). False: it was there already.

        When the reply of its own commit is lost this raises ConnectionLost: accept it again, the id tells.
        """
        return self.accept_all(handle, (event,), source=source)[0]

    def accept_all(self, handle: Any, events: Sequence[Event], *, source: str | None = None) -> list[bool]:
        """The same for many, all or none, in list order."""
        op = self._op(events, source)
        if handle is None:
            return self._db.run(op)
        connection = self._connection(handle)
        if connection.is_async:
            raise ConfigError(f"{type(handle).__qualname__} is an async handle; use AsyncInbox")
        return run(op, connection)

    def status(self) -> InboxStatus:
        return self._db.run(self.store.counts(), tx=False)

    def close(self) -> None:
        self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class AsyncInbox(_Shared):
    """For asyncio programs."""

    def __init__(
        self, target: Any, name: str = "inbox", *, schema: str | None = None, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        tables = InboxTables(name, schema)
        self._db: AsyncRunner = open_async(target)
        super().__init__(open_inbox_store(self._db.dialect, tables), clock)

    async def migrate(self) -> list[Migration]:
        return await self._db.run(self.store.migrate())

    async def verify(self) -> None:
        await self._db.run(self.store.verify_schema(), tx=False)

    async def accept(self, handle: Any, event: Event, *, source: str | None = None) -> bool:
        return (await self.accept_all(handle, (event,), source=source))[0]

    async def accept_all(self, handle: Any, events: Sequence[Event], *, source: str | None = None) -> list[bool]:
        op = self._op(events, source)
        if handle is None:
            return await self._db.run(op)
        connection = self._connection(handle)
        return await arun(op, connection) if connection.is_async else run(op, connection)

    async def status(self) -> InboxStatus:
        return await self._db.run(self.store.counts(), tx=False)

    async def close(self) -> None:
        await self._db.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()
