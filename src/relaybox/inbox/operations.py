"""What an operator asks of an inbox, written once for both twins: checks first, then the store."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Unpack

from ..audit import Audit, Auditor
from ..clock import Clock
from ..drivers.script import Script, commit, look, slow, twin
from ..errors import ConfigError
from ..facts import Alert, Observers
from ..op import Op
from ..settings import Settings
from ..store.inbox import InboxStatus, InboxStore
from ..store.inbox.adopted.adoption import Adoption, Columns
from ..store.inbox.adopted.make import Dropped
from ..store.inbox.gaps import Gap
from ..store.inbox.meta import Plan
from ..store.inbox.operate import DeadMessage, InboxHealth, InboxMessage, MessageFilter, State, Thresholds
from ..store.inbox.order import Order, Priority
from ..store.inbox.stats import TypeStats
from ..store.schema import Migration
from ..values import AuditEntry
from .adopt import DEFAULT_ATTEMPTS, limits_to
from .alerts import Alerting, log_all, new_alerts
from .drain import Drained, Retention, drain

PAGE = 500  # messages per transaction of a replay by filter


class Operations:
    settings: Settings
    _observers: Observers

    def __init__(self, store: InboxStore, plan: Plan, clock: Clock) -> None:
        self.store = store
        self.name = store.tables.event
        self._plan = plan
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
        """Processors need not wait for their next poll."""

    # -- tables ---------------------------------------------------------------------------------------

    @slow
    def migrate(self) -> Script[list[Migration]]:
        """Create or upgrade the tables. Safe to call from many processes at once, and again."""
        return commit(self.store.migrate())

    @slow
    def create(self, *, max_attempts: int | None = None, retention: Retention | None = None) -> Script[None]:
        """Make the tables, and keep with them what all processors are to do. Raises AlreadyExists."""
        return commit(self.store.create(limits_to(max_attempts, retention)))

    @slow
    def adopt(
        self,
        table: str,
        columns: Columns | None = None,
        *,
        table_schema: str | None = None,
        max_attempts: int | None = None,
        retention: Retention | None = None,
    ) -> Script[Adoption]:
        """Use a table that is there as this inbox, without changing it. Its rows wait until their processed_at is set.
        Raises NotFound, NotFound, ConfigError, AlreadyExists before anything is made."""
        if not isinstance(table, str) or not table or "\0" in table:
            raise ConfigError(f"expected the name of the table to adopt, got {table!r}")
        attempts = max_attempts or DEFAULT_ATTEMPTS
        limits, schema = limits_to(attempts, retention), table_schema or self.store.tables.schema
        return commit(self.store.adopt(table, schema, columns or Columns(), attempts, limits))

    @twin
    def configure(self, *, max_attempts: int | None = None, retention: Retention | None = None) -> Script[None]:
        """Change what create() or adopt() agreed on, for all processors from their next start on. What is not given
        stays as it is."""
        limits = limits_to(max_attempts, retention)
        if not limits:
            raise ConfigError("expected max_attempts or retention, got neither; what is not given stays as it is")
        return commit(self.store.configure(limits))

    @slow
    def drop(self, *, cascade: bool = False, if_exists: bool = False, force: bool = False) -> Script[Dropped | None]:
        """Remove what relaybox made; the messages only with `cascade`, an adopted table never. None: there was nothing.
        Raises InUse while processors run or messages would be lost, unless forced."""
        return commit(self.store.drop(cascade=cascade, if_exists=if_exists, force=force, now=self._now))

    @twin
    def verify(self) -> Script[None]:
        """Raise SchemaMissing, SchemaTooNew or SchemaDrift unless the tables fit this release."""
        return look(self.store.verify_schema())

    # -- order and priority -------------------------------------------------------------------------

    @twin
    def enable_ordering(self, order: Order | None = None) -> Script[None]:
        """For all processes that use this inbox, from their next start on. Raises ConfigError."""
        yield from commit(self.store.agree(Plan(order or Order(), None), self._now))

    @twin
    def disable_ordering(self) -> Script[bool]:
        return commit(self.store.disable("order", self._now))

    @twin
    def enable_priority(self, priority: Priority | None = None) -> Script[None]:
        yield from commit(self.store.agree(Plan(None, priority or Priority()), self._now))

    @twin
    def disable_priority(self) -> Script[bool]:
        return commit(self.store.disable("priority", self._now))

    @twin
    def gaps(self, limit: int = 100) -> Script[list[Gap]]:
        """Numbers that are missing, the longest missed first."""
        return look(self._gaps(limit))

    def _gaps(self, limit: int) -> Op[list[Gap]]:
        order = yield from self._order()
        if order is None:
            raise ConfigError("this inbox is not ordered, so no number can be missing; enable_ordering() makes it so")
        return (yield from self.store.gaps(order, limit, self._now))

    def _order(self) -> Op[Order | None]:
        return self._plan.order or (yield from self.store.plan_of()).order

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
        return look(self.store.counts())

    @twin
    def health(self, thresholds: Thresholds | None = None) -> Script[InboxHealth]:
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
        return look(self.store.message(event_id))

    @twin
    def dead(
        self, where: MessageFilter | None = None, *, after: int = 0, limit: int = 100
    ) -> Script[list[DeadMessage]]:
        """Dead letters, oldest first; `after` is the `event.seq` of the last one you have."""
        return look(self.store.dead_messages(where or MessageFilter(), after, limit))

    @twin
    def count_dead(self, where: MessageFilter | None = None) -> Script[int]:
        return look(self.store.count_dead_messages(where or MessageFilter()))

    @twin
    def alerts(self, alerting: Alerting | None = None) -> Script[list[Alert]]:
        """Tell what is new since anybody looked: to the log and by NOTIFY. For cron; processors do it by themselves."""
        return log_all((yield from commit(self._alerts(alerting or Alerting()))))

    def _alerts(self, alerting: Alerting) -> Op[list[Alert]]:
        order = yield from self._order()
        return (yield from new_alerts(self.store, alerting, order, self._now, at_once=True))

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
    def drain(self, retention: Retention | None = None) -> Script[Drained]:
        """Delete what is older than it shall be kept; not given: as the settings say."""
        return drain(self.store, retention or Retention.of(self.settings), self._clock)


def _ids(event_ids: Any) -> list[str]:
    if isinstance(event_ids, str) or not all(isinstance(event_id, str) for event_id in event_ids):
        raise ConfigError("expected a list of event ids")
    return list(dict.fromkeys(event_ids))
