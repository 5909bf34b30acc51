"""Making, adopting, dropping and finding inboxes.

    inbox = Inbox("postgresql://localhost/billing", "orders")
    inbox.create(max_attempts=5)                                    # tables of its own; raises AlreadyExists
    inbox.adopt("orders_in", Columns(id="nr", payload="body"))      # or around a table that is there, unchanged
    inbox.drop()                                                    # an adopted table survives in any case
    inboxes("postgresql://localhost/billing")                       # all of a database

What is agreed on here is kept with the inbox: `Inbox(url, "orders")` is all that another process needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from ..clock import SYSTEM_CLOCK, Clock
from ..drivers import open_async, open_sync
from ..errors import ConfigError
from ..op import Op
from ..store.inbox import InboxTables, open_inbox_store
from ..store.inbox.adopted.make import InboxInfo
from .drain import Retention

DEFAULT_ATTEMPTS = 10


def inboxes(target: Any, *, clock: Clock = SYSTEM_CLOCK) -> list[InboxInfo]:
    """Every inbox of a database, with its counts."""
    db = open_sync(target)
    try:
        return db.run(_infos(db.dialect, clock), tx=False)
    finally:
        db.close()


async def async_inboxes(target: Any, *, clock: Clock = SYSTEM_CLOCK) -> list[InboxInfo]:
    db = open_async(target)
    try:
        return await db.run(_infos(db.dialect, clock), tx=False)
    finally:
        await db.close()


def _infos(dialect: str, clock: Clock) -> Op[list[InboxInfo]]:
    found: list[InboxInfo] = []
    for name, schema in (yield from open_inbox_store(dialect, InboxTables()).names()):
        store = open_inbox_store(dialect, InboxTables(name, schema))
        found.append((yield from store.info(clock.database_now())))
    return found


def limits_to(max_attempts: int | None, retention: Retention | None) -> dict[str, Any]:
    if max_attempts is not None and (type(max_attempts) is not int or max_attempts < 1):
        raise ConfigError(f"expected max_attempts to be at least 1, got {max_attempts!r}")
    limits: dict[str, Any] = {} if max_attempts is None else {"max_attempts": max_attempts}
    if retention is not None:
        ages = {name: getattr(retention, name) for name in ("processed", "dead", "seen", "interval")}
        seconds = {name: age and age.total_seconds() for name, age in ages.items()}
        limits["retention"] = {**seconds, "batch": retention.batch}
    return limits


def retention_from(limits: Mapping[str, Any]) -> Retention | None:
    found = limits.get("retention")
    if found is None:
        return None
    ages: dict[str, Any] = {
        name: value and timedelta(seconds=value) for name, value in found.items() if name != "batch"
    }
    return Retention(**ages, batch=found["batch"])
