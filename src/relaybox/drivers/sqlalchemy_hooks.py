"""Sees the real COMMIT and ROLLBACK of a SQLAlchemy connection.

SQLAlchemy's "commit" event comes before the COMMIT, and Session.after_commit also after a savepoint or while
an outer transaction stays open. `Dialect.do_commit` is the one place that every real COMMIT passes, so each
dialect object we meet gets one wrapper, for good; without callbacks it costs a dictionary lookup.
"""

from __future__ import annotations

import logging
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import sqlalchemy as sa
from sqlalchemy.engine.interfaces import Dialect
from sqlalchemy.pool import PoolProxiedConnection

from ..forks import FreshLock
from .spi import Callback

log = logging.getLogger("relaybox.drivers")


class RootCallbacks:
    """The callbacks of one root transaction. What a savepoint takes back was rolled back, whatever follows."""

    def __init__(self) -> None:
        self.committed: list[Callback] = []
        self.rolled_back: list[Callback] = []
        self.savepoints: dict[str, tuple[int, int]] = {}  # how many callbacks of each kind there were before it
        self.failed = False  # PostgreSQL answers COMMIT of a failed transaction with ROLLBACK and no error

    def undo_to(self, savepoint: str) -> None:
        committed, rolled_back = self.savepoints.get(savepoint, (0, 0))  # it is older than this watch
        undone = self.rolled_back[rolled_back:]
        del self.committed[committed:], self.rolled_back[rolled_back:]
        self.failed = False
        _fire(undone)


# Keyed by the checked-out connection, and emptied at each end: later transactions inherit nothing.
_watches: WeakKeyDictionary[PoolProxiedConnection, RootCallbacks] = WeakKeyDictionary()
_wrapped: WeakSet[Dialect] = WeakSet()
_lock = FreshLock()


def watch(connection: sa.Connection) -> RootCallbacks:
    _wrap_dialect(connection.engine.dialect)
    return _watches.setdefault(connection.connection, RootCallbacks())


def _wrap_dialect(dialect: Dialect) -> None:
    with _lock:
        if dialect not in _wrapped:
            _replace(dialect)
            _note_savepoints(dialect)
            _wrapped.add(dialect)


def _replace(dialect: Any) -> None:
    commit, rollback = dialect.do_commit, dialect.do_rollback

    def do_commit(dbapi_connection: PoolProxiedConnection) -> None:
        ended = _watches.pop(dbapi_connection, None)
        commit(dbapi_connection)  # when this raises the outcome is unknown: neither list is called
        if ended:
            _fire(ended.rolled_back if ended.failed else ended.committed)

    def do_rollback(dbapi_connection: PoolProxiedConnection) -> None:
        ended = _watches.pop(dbapi_connection, None)
        rollback(dbapi_connection)
        if ended:
            _fire(ended.rolled_back)

    dialect.do_commit = do_commit
    dialect.do_rollback = do_rollback


def _note_savepoints(dialect: Any) -> None:
    """A fatal error undoes the transaction though it can still be committed; going back to a savepoint mends it."""
    savepoint, rollback_to = dialect.do_savepoint, dialect.do_rollback_to_savepoint

    def failed(context: sa.engine.ExceptionContext) -> None:
        connection = context.connection
        if connection is not None and not connection.closed and _fatal(context.original_exception):
            mark_failed(connection)

    def do_savepoint(connection: sa.Connection, name: str) -> None:
        savepoint(connection, name)
        if (found := _found(connection)) is not None:
            found.savepoints[name] = len(found.committed), len(found.rolled_back)

    def do_rollback_to_savepoint(connection: sa.Connection, name: str) -> None:
        rollback_to(connection, name)
        if (found := _found(connection)) is not None:
            found.undo_to(name)

    sa.event.listen(dialect, "handle_error", failed)
    dialect.do_savepoint = do_savepoint
    dialect.do_rollback_to_savepoint = do_rollback_to_savepoint


def _fatal(error: BaseException) -> bool:
    """Every error that PostgreSQL reports (those of the client have no SQLSTATE), and MySQL's deadlock."""
    return bool(getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)) or error.args[:1] == (1213,)


def _found(connection: sa.Connection) -> RootCallbacks | None:
    return None if connection.invalidated else _watches.get(connection.connection)


def mark_failed(connection: sa.Connection) -> None:
    if (found := _found(connection)) is not None:
        found.failed = True


def _fire(callbacks: list[Callback]) -> None:
    """An error here would make SQLAlchemy report a COMMIT that happened as failed."""
    for callback in callbacks:
        try:
            callback()
        except Exception:
            log.exception("a callback after the end of a transaction failed")
