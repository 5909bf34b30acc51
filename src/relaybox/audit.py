"""Who changed what, and why. Every change by an operator is a fact and a log line, and a row in the audit table that is
written in the transaction of the change.

    @twin
    def release(self, key: str, **audit: Unpack[Audit]) -> Script[bool]:
        return self._auditor.audited("release", f"key {key}", self._store.release_key(key), audit)

A change of several transactions has one row, which counts on with each of them:

    change = self._auditor.begin("replay", "dead letters", audit)
    while (yield from change.commit(self._batch())):
        ...
    change.tell()
"""

from __future__ import annotations

import getpass
import socket
from dataclasses import dataclass
from datetime import timedelta
from typing import TypedDict, TypeVar

from .clock import Clock
from .drivers.script import Script, commit
from .errors import ConfigError
from .facts import Administered, Observers
from .op import Op
from .settings import Settings
from .store.schema import Schema
from .values import AuditEntry

T = TypeVar("T")

LONGEST = 255  # of an actor and of what is changed, as the table has room


class Audit(TypedDict, total=False):
    """`reason` says why, to those who read it later. `actor` says who: without it, `admin.actor` of the settings, or
    user@host."""

    reason: str
    actor: str | None


def here() -> str:
    """user@host"""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a container's user need not have a name
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


class Auditor:
    """Of one product: where its rows go, and who is told."""

    def __init__(self, store: Schema, settings: Settings, observers: Observers, clock: Clock) -> None:
        self.store = store
        self.settings = settings.admin
        self.observers = observers
        self.clock = clock

    def begin(self, verb: str, what: str, audit: Audit) -> Change:
        """Raises ConfigError before anything is written if a reason is required and none is given."""
        reason, actor = audit.get("reason", ""), audit.get("actor")
        if not isinstance(reason, str) or not isinstance(actor, str | None):
            raise ConfigError(f"expected reason and actor to be text, got {reason!r} and {actor!r}")
        if self.settings.require_reason and not reason.strip():
            raise ConfigError(f'admin.require_reason is on: give a reason to {verb} {what}, reason="…" or --reason')
        return Change(self, verb, what[:LONGEST], (actor or self.settings.actor or here())[:LONGEST], reason)

    def audited(self, verb: str, what: str, op: Op[T], audit: Audit) -> Script[T]:
        """A change of one transaction: commits it with its row, then tells of it. An op that answers 0 or False changed
        nothing, and neither happens."""
        change = self.begin(verb, what, audit)
        answer = yield from change.commit(op)
        change.tell()
        return answer

    def entries(self, limit: int, before: int | None) -> Op[list[AuditEntry]]:
        """The newest first."""
        if limit < 1:
            raise ConfigError(f"expected limit to be a positive int, got {limit}")
        found = yield self.store.sql["audit.list"].bind(limit=limit, before=before)
        return [AuditEntry(row[0], self.store.from_time(row[1]), *row[2:]) for row in found.rows]

    def purge(self) -> Op[int]:
        age: timedelta | None = self.settings.audit_retention
        if age is None:
            return 0
        now = self.store.to_time(self.clock.database_now())
        return (yield self.store.sql["audit.purge"].bind(ttl=age.total_seconds(), now=now)).count


@dataclass(eq=False, slots=True)
class Change:
    """One change by an operator, of one transaction or several."""

    _auditor: Auditor
    verb: str
    what: str
    actor: str
    reason: str
    changed: int | None = 0  # None: not a matter of numbers
    _row: int | None = None

    def commit(self, op: Op[T]) -> Script[T]:
        """One transaction of it. A number that the op answers is how much it changed."""
        return commit(self.written(op))

    def written(self, op: Op[T]) -> Op[T]:
        """The op with its row, for a transaction of somebody else's."""
        answer = yield from op
        count = int(answer) if isinstance(answer, int) else None
        if count == 0:
            return answer
        sql = self._auditor.store.sql
        if self._row is None:
            now = self._auditor.store.to_time(self._auditor.clock.database_now())
            yield sql["audit.write"].bind(
                actor=self.actor, verb=self.verb, what=self.what, changed=count, reason=self.reason, now=now
            )
            self._row = (yield sql["audit.number"].bind()).rows[0][0]
        else:
            yield sql["audit.add"].bind(id=self._row, changed=count)
        self.changed = None if count is None or self.changed is None else self.changed + count
        return answer

    def tell(self) -> None:
        """After the last transaction. Nothing, if nothing was changed."""
        if self.changed != 0:
            self._auditor.observers(Administered(self.verb, self.what, self.changed, self.actor, self.reason))
