"""The tables of an inbox: what other services sent, every message once.

    message   wide; it rests until it is purged
    pending   narrow, one row per message that waits to be processed
    done      when a message was processed; dead: why it never will be
    state     the next number of every ordered key
    seen      the ids of all that was ever accepted; it outlives the messages, so a late duplicate is still one. On
              PostgreSQL a view: a purged message leaves its id where it was

Migrations and queries are a set of their own: a receiving service needs no outbox.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module

from ...codec import JSON_CODEC, Codec
from ...errors import ConfigError
from ..names import Tables
from .accept import check_sender
from .adopted.make import InboxMaking
from .operate import InboxStatus
from .order import Order, Priority

__all__ = ["InboxStatus", "InboxStore", "InboxTables", "check_sender", "open_inbox_store"]

TABLES = ("seen", "done", "state", "meta", "journal", "totals", "alert", "turn", "map")
PARTS = (*TABLES, "mine", "waiting", "letters", "stats", "health", "theirs", "open")
_STORES = {"postgres": "PostgresInboxStore", "sqlite": "SqliteInboxStore", "mysql": "MysqlInboxStore"}


@dataclass(frozen=True, slots=True)
class InboxTables(Tables):
    """An inbox is called like its message table; the other tables are named after it."""

    event: str = "inbox"

    def substitutions(self, quote: str) -> dict[str, str]:
        names = {"message": self.event} | {part: self.part(part) for part in PARTS}
        return Tables.substitutions(self, quote) | self.quoted(names, quote)


class InboxStore(InboxMaking):
    _product = "inbox"
    _audit = 2

    def __init__(self, tables: InboxTables | None = None, codec: Codec = JSON_CODEC) -> None:
        super().__init__(tables or InboxTables())
        self.codec = codec

    @property
    def advice(self) -> str:
        name = self.tables.event
        make = f"run `relaybox inbox create --inbox {name} --if-not-exists` or call migrate() of the inbox"
        return f"{make}; `relaybox inbox list` shows which there are"

    @property
    def single(self) -> bool:
        """Whether accepting a message is one statement, which needs no transaction around it."""
        return self._at_once and not self.former

    @property
    def _at_once(self) -> bool:
        return self.adoption is None and self._known and self.capabilities.single_statement

    def claims_at_once(self, order: Order | None, priority: Priority | None) -> bool:
        """Whether a claim is one statement."""
        return self._at_once and order is None and priority is None


def open_inbox_store(dialect: str, tables: InboxTables, codec: Codec = JSON_CODEC) -> InboxStore:
    if dialect not in _STORES:
        raise ConfigError(f"an inbox cannot be kept in {dialect!r}; it knows {', '.join(_STORES)}")
    module = import_module(f"{__name__}.{dialect}")
    store: InboxStore = getattr(module, _STORES[dialect])(tables, codec)
    return store
