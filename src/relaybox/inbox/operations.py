"""What an operator asks of an inbox, written once for both twins: checks first, then the store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Unpack

from ..audit import Audit, Auditor
from ..clock import Clock
from ..drivers.script import Script, commit, look, slow, twin
from ..durations import Duration
from ..errors import ConfigError
from ..facts import Alert, Observers, Purged
from ..op import Op
from ..retry import Retry
from ..settings import Settings
from ..store.inbox import InboxStatus, InboxStore
from ..store.inbox.adopted.adoption import Adoption, Columns
from ..store.inbox.adopted.make import Dropped, InboxInfo
from ..store.inbox.gaps import Gap
from ..store.inbox.meta import Retention
from ..store.inbox.operate import DeadMessage, InboxHealth, InboxMessage, MessageFilter, State, Thresholds
from ..store.inbox.order import Order, Priority
from ..store.inbox.stats import TypeStats
from ..store.schema import Migration
from ..values import KEEP, AuditEntry
from .alerts import log_all, new_alerts
from .purge import purge, retention_of

PAGE = 500  # messages per transaction of a replay by filter
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
        return look(self.store.plan()) if dry_run else commit(self.store.migrate())

    @slow
    def adopt(self, table: str, columns: Columns | None = None, *, table_schema: str | None = None) -> Script[Adoption]:
        """Use a table that is there as this inbox, without changing it. Its rows wait until their processed_at is set.
        Raises NotFound, ConfigError or AlreadyExists before anything is made."""
        if not isinstance(table, str) or not table or "\0" in table:
            raise ConfigError(f"expected the name of the table to adopt, got {table!r}")
        return commit(self.store.adopt(table, table_schema or self.store.tables.schema, columns or Columns()))

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
    def drop(self, *, cascade: bool = False, if_exists: bool = False, force: bool = False) -> Script[Dropped | None]:
        """Remove what relaybox made; the messages only with `cascade`, an adopted table never. None: there was nothing.
        Raises InUse while processors run or messages would be lost, unless forced."""
        return commit(self.store.drop(cascade=cascade, if_exists=if_exists, force=force, now=self._now))

    @twin
    def verify(self) -> Script[None]:
        """Raise SchemaMissing, SchemaTooNew or SchemaDrift unless the tables fit this release."""
        return look(self.store.verify_schema())

    # -- order ----------------------------------------------------------------------------------------

    @twin
    def gaps(self, limit: int = 100) -> Script[list[Gap]]:
        """Numbers that are missing, the longest missed first."""
        return look(self._gaps(limit))

    def _gaps(self, limit: int) -> Op[list[Gap]]:
        order = (yield from self.store.plan_of()).order
        if order is None:
            raise ConfigError(
                "this inbox is not ordered, so no number can be missing; configure(order=Order()) makes it so"
            )
        return (yield from self.store.gaps(order, limit, self._now))

    @twin
    def expected(self, key: str) -> Script[int | None]:
        """The next number of a key; None: nothing of it was processed yet."""
        return look(self.store.expected(key))

    @twin
    def skip(self, key: str, to: int | None = None, **audit: Unpack[Audit]) -> Script[int | None]:
        """Let a key go on with this number, or with the lowest that is held back. It never goes back."""
        if to is not None and (type(to) is not int or to < 0):
            raise ConfigError(f"expected the number to go on with to be at least 0, got {to!r}")
        skipped = self.store.skip(key, to, self._now)
        number = yield from self._auditor.audited("release", f"key {key}", skipped, audit)
        self._wake()
        return number

    # -- look -----------------------------------------------------------------------------------------

    @twin
    def read_only(self) -> Script[bool]:
        """Whether nothing can be accepted here, as on a standby."""
        return look(self.store.read_only())

    @twin
    def status(self) -> Script[InboxStatus]:
        """How many messages wait, are known and are dead."""
        return look(self.store.counts())

    @twin
    def health(self, thresholds: Thresholds | None = None) -> Script[InboxHealth]:
        """How it does, and why it does not do well."""
        return look(self.store.health(thresholds or Thresholds(), self._now))

    @twin
    def stats(self) -> Script[list[TypeStats]]:
        """By type of event, exact; at the same price however many messages are kept."""
        return look(self.store.types())

    @twin
    def messages(
        self, state: State = "pending", where: MessageFilter | None = None, *, after: int = 0, limit: int = 100
    ) -> Script[list[InboxMessage]]:
        """What waits, is dead or was processed; oldest first, `after` is the `event.seq` of the last one you have."""
        return look(self.store.messages(state, where or MessageFilter(), after, limit))

    @twin
    def message(self, event_id: str) -> Script[InboxMessage | None]:
        """One message by its id, wherever it is."""
        return look(self.store.message(event_id))

    @twin
    def dead(
        self, where: MessageFilter | None = None, *, after: int = 0, limit: int = 100
    ) -> Script[list[DeadMessage]]:
        """Dead letters, oldest first; `after` is the `event.seq` of the last one you have."""
        return look(self.store.dead_messages(where or MessageFilter(), after, limit))

    @twin
    def count_dead(self, where: MessageFilter | None = None) -> Script[int]:
        """How many dead letters the filter finds."""
        return look(self.store.count_dead_messages(where or MessageFilter()))

    @twin
    def alerts(self) -> Script[list[Alert]]:
        """Tell what is new since anybody looked: to the log and by NOTIFY. For cron; services do it by themselves."""
        return log_all((yield from commit(self._alerts())))

    def _alerts(self) -> Op[list[Alert]]:
        order = (yield from self.store.plan_of()).order
        return (yield from new_alerts(self.store, self.settings.inbox, order, self._now, at_once=True))

    # -- mend -----------------------------------------------------------------------------------------

    @twin
    def replay(self, event_ids: Sequence[str]) -> Script[list[str]]:
        """Process these again, whether dead or processed. Returns the ids of which that was so."""
        replayed = yield from commit(self.store.replay_messages(_ids(event_ids), self._now))
        self._wake()
        return replayed

    @twin
    def replay_all(self, where: MessageFilter | None = None, *, processed: bool = False) -> Script[int]:
        """The same for all dead letters that the filter finds, or for all processed messages. Returns how many."""
        total, after, before = 0, 0, -1
        while after != before:
            before = after
            state: State = "processed" if processed else "dead"
            after, count = yield from commit(self._replay_page(state, where or MessageFilter(), after))
            total += count
        self._wake()
        return total

    def _replay_page(self, state: State, where: MessageFilter, after: int) -> Op[tuple[int, int]]:
        """Where it got to, and how many are due again."""
        events = [message.event for message in (yield from self.store.messages(state, where, after, PAGE))]
        if not events:
            return after, 0
        replayed = yield from self.store.replay_messages([event.id for event in events], self._now)
        return max(event.seq or 0 for event in events), len(replayed)

    @twin
    def discard(self, event_ids: Sequence[str]) -> Script[list[str]]:
        """Dead letters go for good. An ordered key goes on past them. Returns the ids that were dead."""
        discarded = yield from commit(self.store.discard_messages(_ids(event_ids), self._now))
        self._wake()
        return discarded

    @twin
    def purge(
        self, *, done: Duration | None = KEEP, dead: Duration | None = KEEP, seen: Duration | None = KEEP
    ) -> Script[int]:
        """Deletes what is older than this: processed messages, dead letters, ids of messages that are gone. Not given:
        as agreed, or as the settings say. None: nothing. Returns how many messages went. Services purge too."""
        agreed = (yield from look(self.store.plan_of())).retention or retention_of(self.settings.inbox)
        given = {"done": done, "dead": dead, "seen": seen}
        retention = replace(agreed, **{name: value for name, value in given.items() if value is not KEEP})
        total = yield from purge(self.store, retention, self.settings.inbox.purge_batch, self._clock)
        if total:
            self._observers(Purged(total))
        return total


def _ids(event_ids: Any) -> list[str]:
    if isinstance(event_ids, str) or not all(isinstance(event_id, str) for event_id in event_ids):
        raise ConfigError("expected a list of event ids")
    return list(dict.fromkeys(event_ids))
