"""Marks in the consumer's own database.

Every move is one statement that decides by itself, so it needs no transaction around it, and `mark` can run in the
caller's: the mark then commits or rolls back with the effect, which is exactly once.
"""

from __future__ import annotations

from typing import Any

from ..clock import Clock
from ..drivers import wrap
from ..drivers.spi import AsyncConnection, Connection
from ..errors import ConfigError, NoTransaction
from ..op import Op
from ..store.guard import GuardSchema
from .spi import KeyState, Terms


class SqlMarks:
    def __init__(self, schema: GuardSchema, terms: Terms, clock: Clock) -> None:
        self.schema = schema
        self.terms = terms
        self._clock = clock
        self._consumer = schema.text(terms.consumer)

    def _row(self, key: str, **params: Any) -> dict[str, Any]:
        return {"consumer": self._consumer, "event_id": self.schema.text(key), **params}

    def _now(self) -> Any:
        return self.schema.to_time(self._clock.database_now())

    def enter(self, key: str, token: int) -> Op[KeyState]:
        return self._enter(key, token, done=not self.terms.two_phase)

    def mark(self, key: str, token: int) -> Op[KeyState]:
        return self._enter(key, token, done=True)

    def _enter(self, key: str, token: int, *, done: bool) -> Op[KeyState]:
        ttl = self.terms.ttl if done else self.terms.lease
        row = self._row(key, token=token, done=done, ttl=ttl.total_seconds(), now=self._now())
        while True:
            inserted = yield self.schema.sql["guard.insert"].bind(**row)
            if inserted.count:
                return "first"
            taken = yield self.schema.sql["guard.take_over"].bind(**row)
            if taken.count:
                return "first"
            there = yield self.schema.sql["guard.state"].bind(**self._row(key))
            if there.rows:
                return "done" if there.rows[0][0] else "in progress"
            # Deleted since: its owner failed, or it was purged.

    def renew(self, key: str, token: int) -> Op[bool]:
        lease = self.terms.lease.total_seconds()
        result = yield self.schema.sql["guard.renew"].bind(**self._row(key, token=token, lease=lease, now=self._now()))
        return result.count == 1

    def finish(self, key: str, token: int) -> Op[bool]:
        if not self.terms.two_phase:
            return True
        ttl = self.terms.ttl.total_seconds()
        row = self._row(key, token=token, ttl=ttl, now=self._now())
        result = yield self.schema.sql["guard.done"].bind(**row)
        if not result.count:  # nothing there: nobody has entered since, or the one that did has failed
            result = yield self.schema.sql["guard.insert"].bind(**row, done=True)
        return result.count == 1

    def leave(self, key: str, token: int) -> Op[bool]:
        result = yield self.schema.sql["guard.leave"].bind(**self._row(key, token=token))
        return result.count == 1

    def forget(self, key: str) -> Op[None]:
        yield self.schema.sql["guard.delete"].bind(**self._row(key))

    def purge(self, limit: int) -> Op[int]:
        result = yield self.schema.sql["guard.purge"].bind(limit=limit, now=self._now())
        return result.count

    def connection(self, handle: Any) -> Connection | AsyncConnection:
        connection = wrap(handle)
        if connection.dialect != self.schema.dialect:
            raise ConfigError(
                f"this guard is on {self.schema.dialect}, the handle is a {connection.dialect} connection; the mark "
                "must be in the database of the effect"
            )
        if not connection.in_transaction():
            raise NoTransaction(
                "mark() needs an open transaction, so that the mark commits or rolls back with the effect; this "
                f"{type(handle).__module__}.{type(handle).__qualname__} is in autocommit mode. Begin one first"
            )
        return connection
