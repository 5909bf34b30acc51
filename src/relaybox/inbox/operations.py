"""What an operator asks of a whole inbox, written once for both twins: checks first, then the store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Unpack

from ..audit import Audit, Auditor
from ..clock import Clock
from ..drivers.script import Script, commit, look, slow, twin
from ..drivers.spi import AsyncRunner, Runner
from ..durations import Duration
from ..errors import ConfigError
from ..facts import Alert, Observers, Purged
from ..locking import made
from ..op import Op
from ..operate import Desk
from ..retry import Retry
from ..settings import Settings
from ..store.grants import DatabaseRole, checked_role
from ..store.grants.ops import statements
from ..store.inbox import InboxStatus, InboxStore
from ..store.inbox.adopted.adoption import Adoption, Columns
from ..store.inbox.adopted.make import Dropped, InboxInfo
from ..store.inbox.meta import Retention
from ..store.inbox.order import Order, Priority
from ..store.inbox.stats import TypeStats
from ..store.schema import Migration
from ..values import KEEP, LIMITS, AuditEntry, Health, Limits, Progress
from .alerts import log_all, new_alerts
from .purge import purge, purgeable, retention_of

KINDS = {"order": Order, "priority": Priority, "retention": Retention, "retry": Retry}


class Operations:
    settings: Settings
    _observers: Observers

    def __init__(self, store: InboxStore, clock: Clock) -> None:
        self.store = store
        self.name = store.tables.event
        self._clock = clock

    @property
    def _now(self) -> datetime | None:
        return self._clock.database_now()

    @property
    def _auditor(self) -> Auditor:
        return Auditor(self.store, self.settings, self._observers, self._clock)

    def _desk(self, db: Runner | AsyncRunner) -> Desk:
        return Desk(db, self.store, self._auditor, self._observers, self._wake, f" of inbox {self.name}", (), True)

    @twin
    def audit(self, *, limit: int = 100, before: int | None = None) -> Script[list[AuditEntry]]:
        """What operators changed here, the newest first. Page on with `before=entries[-1].id`."""
        return look(self._auditor.entries(limit, before))

    def _wake(self) -> None:
        """Services need not wait for their next poll."""

    # -- tables ---------------------------------------------------------------------------------------

    @slow
    def migrate(self, *, dry_run: bool = False) -> Script[list[Migration]]:
        """Create or upgrade the tables, and say by which migrations. Safe to call from many processes at once, and
        again. `dry_run`: only say it."""
        return look(self.store.plan()) if dry_run else made(self.store, self.store.migrate())

    @twin
    def grants(self, role: DatabaseRole, *, to: str) -> Script[list[str]]:
        """The statements that give a role of the database what it needs of this inbox to be a receiver, worker,
        operator, reader or dashboard. Nothing is changed: the owner of the tables runs them."""
        return look(statements("inbox", self.store, None, checked_role(role), to))

    @slow
    def adopt(
        self, table: str, columns: Columns | None = None, *, table_schema: str | None = None, **audit: Unpack[Audit]
    ) -> Script[Adoption]:
        """Use a table that is there as this inbox, without changing it. Its rows wait until their processed_at is set.
        Raises NotFound, ConfigError or AlreadyExists before anything is made."""
        if not isinstance(table, str) or not table or "\0" in table:
            raise ConfigError(f"expected the name of the table to adopt, got {table!r}")
        adopted = self.store.adopt(table, table_schema or self.store.tables.schema, columns or Columns())
        return self._auditor.audited("adopt", f"table {table} as inbox {self.name}", adopted, audit)

    @twin
    def configure(
        self,
        *,
        order: Order | None = KEEP,
        priority: Priority | None = KEEP,
        retention: Retention | None = KEEP,
        retry: Retry | None = KEEP,
        **audit: Unpack[Audit],
    ) -> Script[InboxInfo]:
        """Changes what all processes that use this inbox agree on, from their next start on. What is not given stays.

        order      messages of a key in the order of their numbers; None: in no order
        priority   tiers in which messages are taken; None: none. Not together with an order
        retention  how long what is done is kept; None: as the settings of each process say
        retry      how often a message is tried, and when again; None: as the settings say
        """
        given = {"order": order, "priority": priority, "retention": retention, "retry": retry}
        changes = {name: value for name, value in given.items() if value is not KEEP}
        for name, value in changes.items():
            if value is not None and not isinstance(value, KINDS[name]):
                raise ConfigError(f"expected {name} to be {KINDS[name].__name__}(…) or None, got {value!r}")
        if retry is not KEEP and retry is not None and retry.delay is not None:
            raise ConfigError(
                "expected retry without delay=: a function cannot be kept with the inbox; use base and max"
            )
        if changes:
            what, change = f"inbox {self.name}: {', '.join(changes)}", self.store.configure(changes, self._now)
            yield from self._auditor.audited("configure", what, change, audit)
        return (yield from look(self.store.info(self._now)))

    @twin
    def info(self) -> Script[InboxInfo]:
        """How it stands, and what all processes agree on."""
        return look(self.store.info(self._now))

    @slow
    def drop(
        self, *, cascade: bool = False, if_exists: bool = False, force: bool = False, **audit: Unpack[Audit]
    ) -> Script[Dropped | None]:
        """Remove what relaybox made; the messages only with `cascade`, an adopted table never. None: there was nothing.
        Raises InUse while processors run or messages would be lost, unless forced."""
        change = self._auditor.begin("drop", f"inbox {self.name}", audit)
        dropped = yield from commit(self.store.drop(cascade=cascade, if_exists=if_exists, force=force, now=self._now))
        if dropped is not None:  # with its audit table: the log is what remains
            change.changed = None
            change.tell()
        return dropped

    @twin
    def verify(self) -> Script[None]:
        """Raise SchemaMissing, SchemaTooNew or SchemaDrift unless the tables fit this release."""
        return look(self.store.verify_schema())

    # -- look -----------------------------------------------------------------------------------------

    @twin
    def read_only(self) -> Script[bool]:
        """Whether nothing can be accepted here, as on a standby."""
        return look(self.store.read_only())

    @twin
    def status(self) -> Script[InboxStatus]:
        """How many messages wait, are known and are dead, how old the oldest is, and how fast they are processed."""
        return look(self.store.status(self._now))

    @twin
    def health(self, limits: Limits = LIMITS) -> Script[Health]:
        """Whether somebody should look: much waits, waits for long or is dead, or nobody processes what waits."""
        found = yield from look(self.store.status(self._now))
        return limits.judge(found.pending, found.dead, found.oldest, found.processors)

    @twin
    def stats(self) -> Script[list[TypeStats]]:
        """By type of event, exact; at the same price however many messages are kept."""
        return look(self.store.types())

    @twin
    def alerts(self) -> Script[list[Alert]]:
        """Tell what is new since anybody looked: to the log and by NOTIFY. For cron; services do it by themselves."""
        return log_all((yield from commit(self._alerts())))

    def _alerts(self) -> Op[list[Alert]]:
        order = (yield from self.store.plan_of()).order
        return (yield from new_alerts(self.store, self.settings.inbox, order, self._now, at_once=True))

    @twin
    def purge(
        self,
        *,
        done: Duration | None = KEEP,
        dead: Duration | None = KEEP,
        seen: Duration | None = KEEP,
        dry_run: bool = False,
        progress: Callable[[Progress], object] | None = None,
        **audit: Unpack[Audit],
    ) -> Script[int]:
        """Delete what is older than this: processed messages, dead letters, ids of messages that are gone. Not given:
        as agreed, or as the settings say. None: nothing. Returns how many messages went, or with `dry_run` how many it
        would be. Services purge too."""
        agreed = (yield from look(self.store.plan_of())).retention or retention_of(self.settings.inbox)
        given = {"done": done, "dead": dead, "seen": seen}
        retention = replace(agreed, **{name: value for name, value in given.items() if value is not KEEP})
        if dry_run:
            return (yield from look(purgeable(self.store, retention, self._clock)))
        change = self._auditor.begin("purge", f"inbox {self.name}", audit)

        def committed(batch: Op[int]) -> Script[int]:
            gone = yield from change.commit(batch)
            if progress is not None:
                progress(Progress(change.changed or 0, None, "purge"))
            return gone

        total = yield from purge(self.store, retention, self.settings.inbox.purge_batch, self._clock, committed)
        yield from commit(self._auditor.purge())
        change.tell()
        if total:
            self._observers(Purged(total))
        return total
