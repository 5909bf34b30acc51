"""Sees the real COMMIT and ROLLBACK of a SQLAlchemy connection.

SQLAlchemy's "commit" event comes before the COMMIT, and Session.after_commit also after a savepoint or while
an outer transaction stays open. `Dialect.do_commit` is the one place that every real COMMIT passes, so each
dialect object we meet gets one wrapper, for good; without callbacks it costs a dictionary lookup.
"""

from __future__ import annotations

import logging
import threading
from weakref import WeakKeyDictionary, WeakSet

import sqlalchemy as sa
from sqlalchemy.engine.interfaces import Dialect
from sqlalchemy.pool import PoolProxiedConnection

from .spi import Callback

log = logging.getLogger("relaybox.drivers")


class Watch:
    """The callbacks of one root transaction."""

    def __init__(self) -> None:
        self.committed: list[Callback] = []
        self.rolled_back: list[Callback] = []


# Keyed by the checked-out connection, and emptied at each end: later transactions inherit nothing.
_watches: WeakKeyDictionary[PoolProxiedConnection, Watch] = WeakKeyDictionary()
_wrapped: WeakSet[Dialect] = WeakSet()
_lock = threading.Lock()


def watch(connection: sa.Connection) -> Watch:
    _wrap_dialect(connection.engine.dialect)
    return _watches.setdefault(connection.connection, Watch())


def _wrap_dialect(dialect: Dialect) -> None:
    with _lock:
        if dialect not in _wrapped:
            _replace(dialect)
            _wrapped.add(dialect)


def _replace(dialect: Dialect) -> None:
    commit, rollback = dialect.do_commit, dialect.do_rollback

    def do_commit(dbapi_connection: PoolProxiedConnection) -> None:
        ended = _watches.pop(dbapi_connection, None)
        commit(dbapi_connection)  # when this raises the outcome is unknown: neither list is called
        if ended:
            _fire(ended.committed)

    def do_rollback(dbapi_connection: PoolProxiedConnection) -> None:
        ended = _watches.pop(dbapi_connection, None)
        rollback(dbapi_connection)
        if ended:
            _fire(ended.rolled_back)

    dialect.do_commit = do_commit  # type: ignore[method-assign]
    dialect.do_rollback = do_rollback  # type: ignore[method-assign]


def _fire(callbacks: list[Callback]) -> None:
    """An error here would make SQLAlchemy report a COMMIT that happened as failed."""
    for callback in callbacks:
        try:
            callback()
        except Exception:
            log.exception("a callback after the end of a transaction failed")
