"""The table of a vault: data keys, wrapped. Without anything of an outbox: an inbox may stand alone.

In its files `{data_key}` is the table.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from ...errors import ConfigError
from ...op import Op
from ..dialect import DIALECTS, Dialect
from ..names import Tables
from ..schema import Schema


class VaultTables(Tables):
    __slots__ = ()

    def substitutions(self, quote: str) -> dict[str, str]:
        names = Tables.substitutions(self, quote)
        return names | {"data_key": names["event"], "data_key_name": names["event_name"]}


class KeyRow(NamedTuple):
    """A data key as it is stored. Erased: no master and nothing wrapped."""

    id: str
    subject: str | None
    master: str | None
    wrapped: str | None
    created_at: datetime
    erased_at: datetime | None

    def __repr__(self) -> str:
        return f"KeyRow({self.id!r})"


class VaultStore(Schema):
    _product = "vault"
    _audit = 2

    def __init__(self, dialect: Dialect, tables: Tables) -> None:
        self._dialect = dialect
        super().__init__(VaultTables(tables.event, tables.schema))

    @property
    def advice(self) -> str:
        return "run `relaybox vault create` or call migrate() of the vault"

    def read(self, ids: Collection[str]) -> Op[list[KeyRow]]:
        """Those of these that there are, erased ones too."""
        return self._rows((yield self.sql["vault.read"].bind(keys=self.texts(sorted(ids)))).rows)

    def usable(self, subjects: Collection[str], age: timedelta, now: datetime | None) -> Op[dict[str, KeyRow]]:
        """Of each subject the newest that may still encrypt."""
        find = self.sql["vault.find"]
        found = yield find.bind(keys=self.texts(sorted(subjects)), ttl=age.total_seconds(), now=self.to_time(now))
        # A text collation of MySQL takes 'a' and 'a ' for the same.
        return {
            row.subject: row for row in self._rows(found.rows) if row.subject is not None and row.subject in subjects
        }

    def insert(self, key: KeyRow, now: datetime | None) -> Op[None]:
        yield self.sql["vault.insert"].bind(
            id=key.id, subject=key.subject, master=key.master, wrapped=key.wrapped, now=self.to_time(now)
        )

    def of_subject(self, subject: str) -> Op[list[KeyRow]]:
        found = yield self.sql["vault.of_subject"].bind(keys=self.texts([subject]))
        return [row for row in self._rows(found.rows) if row.subject == subject]

    def destroy(self, ids: Collection[str], now: datetime | None) -> Op[int]:
        """What was wrapped is gone; whose it was stays known until `forget`."""
        destroy = self.sql["vault.destroy"]
        return (yield destroy.bind(keys=self.texts(sorted(ids)), now=self.to_time(now))).count

    def forget(self, ids: Collection[str]) -> Op[int]:
        return (yield self.sql["vault.forget"].bind(keys=self.texts(sorted(ids)))).count

    def wrapped_by_others(self, master: str, after: str, limit: int) -> Op[list[KeyRow]]:
        found = yield self.sql["vault.wrapped_by_others"].bind(master=master, after=after, limit=limit)
        return self._rows(found.rows)

    def rewrap(self, key: KeyRow, master: str, wrapped: str) -> Op[int]:
        return (yield self.sql["vault.rewrap"].bind(id=key.id, old=key.master, master=master, wrapped=wrapped)).count

    def waiting(self, master: str) -> Op[int]:
        """How many are wrapped by another master key."""
        return int((yield self.sql["vault.waiting"].bind(master=master)).rows[0][0])

    def masters(self) -> Op[dict[str | None, int]]:
        """How many data keys each master key wraps; None: erased ones."""
        return {row[0]: int(row[1]) for row in (yield self.sql["vault.masters"].bind()).rows}

    def _rows(self, rows: Sequence[Sequence[Any]]) -> list[KeyRow]:
        from_time = self.from_time
        return [
            KeyRow(id, subject, master, wrapped, from_time(made), None if erased is None else from_time(erased))
            for id, subject, master, wrapped, made, erased in rows
        ]


def open_vault_store(dialect: str, tables: Tables) -> VaultStore:
    if dialect not in DIALECTS:
        raise ConfigError(f"a vault cannot keep its keys in {dialect!r}; it knows {', '.join(DIALECTS)}")
    return VaultStore(DIALECTS[dialect], tables)
