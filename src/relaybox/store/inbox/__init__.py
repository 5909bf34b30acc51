"""The tables of an inbox: what other services sent, every message once.

    message   wide; it rests until it is drained
    pending   narrow, one row per message that waits to be processed
    done      when a message was processed; dead: why it never will be
    state     the next number of every ordered key
    seen      the ids of all that was ever accepted; it outlives the messages, so a late duplicate is still one. On
              PostgreSQL a view: a drained message leaves its id where it was

Migrations and queries are a set of their own: a receiving service needs no outbox.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib import import_module

from ...errors import ConfigError
from ...event import Event
from ...op import Op
from ..names import Tables
from ..rows import chunks
from .adopted.make import InboxMaking
from .operate import InboxStatus
from .order import Order, Priority

__all__ = ["InboxStatus", "InboxStore", "InboxTables", "check_source", "open_inbox_store"]

PARTS = (
    "seen",
    "done",
    "state",
    "meta",
    "mine",
    "waiting",
    "letters",
    "stats",
    "journal",
    "totals",
    "alert",
    "turn",
    "health",
    "map",
    "theirs",
    "open",
)
_STORES = {"postgres": "PostgresInboxStore", "sqlite": "SqliteInboxStore", "mysql": "MysqlInboxStore"}


@dataclass(frozen=True, slots=True)
class InboxTables(Tables):
    """An inbox is called like its message table; the other tables are named after it."""

    event: str = "inbox"

    @property
    def alert_channel(self) -> str:
        """Where NOTIFY tells of alerts."""
        return f"{self.channel[:57]}_alert"

    def substitutions(self, quote: str) -> dict[str, str]:
        names = Tables.substitutions(self, quote)
        prefix = f"{quote}{self.schema}{quote}." if self.schema else ""
        names |= {"message": names["event"], "message_name": self.event, "alert_channel": self.alert_channel}
        for part in PARTS:
            names |= {part: f"{prefix}{quote}{self.part(part)}{quote}", f"{part}_name": self.part(part)}
        return names


class InboxStore(InboxMaking):
    _product = "inbox"

    def __init__(self, tables: InboxTables | None = None) -> None:
        super().__init__(tables or InboxTables())

    @property
    def advice(self) -> str:
        name = self.tables.event
        return f"run `relaybox inbox create --inbox {name} --if-not-exists` or call migrate() of the inbox"

    def accept(self, events: Sequence[Event], source: str | None, now: datetime | None) -> Op[list[bool]]:
        """Store what was not seen before, in list order; of each event whether that was so. Needs a transaction.

        Another transaction that has accepted the same id and not ended is waited for.
        """
        answers: list[bool] = []
        insert = self.insert_new if (yield from self.know()) is None else self.insert_theirs
        for chunk in chunks(events):
            distinct: dict[str, Event] = {}
            for event in chunk:
                distinct.setdefault(event.id, event)
            new = yield from insert(list(distinct.values()), source, now)
            answers += told(chunk, new)
        return answers

    @property
    def single(self) -> bool:
        """Whether accepting a message is one statement, which needs no transaction around it."""
        return self.adoption is None and self._known and self.capabilities.single_statement

    def accept_one(self, event: Event, source: str | None, now: datetime | None) -> Op[list[bool]]:
        """The same as `accept` by that statement, where `single`."""
        raise NotImplementedError

    def accept_together(
        self, events: Sequence[Event], sources: Sequence[str | None], now: datetime | None
    ) -> Op[list[bool]]:
        """The same for many of several callers, where `single`. Nobody is waited for: rather none is accepted, and
        StoreBusy raised."""
        raise NotImplementedError

    def claims_at_once(self, order: Order | None, priority: Priority | None) -> bool:
        """Whether a claim is one statement."""
        return self.single and order is None and priority is None

    def insert_new(self, events: Sequence[Event], source: str | None, now: datetime | None) -> Op[set[str]]:
        """One chunk of distinct events. Returns the ids that were new."""
        raise NotImplementedError

    def read_only(self) -> Op[bool]:
        """Whether nothing can be accepted here, as on a standby."""
        result = yield self.sql["inbox.status.read_only"].bind()
        return bool(result.rows[0][0])


def told(events: Sequence[Event], new: set[str]) -> list[bool]:
    """Of each event whether it was new; of the same twice, the first."""
    answers = []
    for event in events:
        answers.append(event.id in new)
        new.discard(event.id)
    return answers


def check_source(source: str | None) -> str | None:
    """Who sent a message, as its column takes it."""
    if source is not None and not (isinstance(source, str) and 0 < len(source) <= 255 and source.isprintable()):
        raise ConfigError(f"expected source to be 1 to 255 printable characters, got {str(source)[:40]!r}")
    return source


def open_inbox_store(dialect: str, tables: InboxTables) -> InboxStore:
    if dialect not in _STORES:
        raise ConfigError(f"an inbox cannot be kept in {dialect!r}; it knows {', '.join(_STORES)}")
    module = import_module(f"{__name__}.{dialect}")
    return getattr(module, _STORES[dialect])(tables)  # type: ignore[no-any-return]
