"""Making and removing inboxes: of our own tables, or around a table that was there before.

Dropping takes what relaybox made. Messages of our own go only when that is asked for; a table of theirs never goes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from ....errors import AlreadyExists, InUse, NotFound
from ....op import Op
from ....retry import Retry
from ...queries import fill
from ...schema import Migration
from ..meta import Plan, Retention
from ..order import Order, Priority
from .adoption import Adoption, Column, Columns, agreed
from .ops import InboxAdopted, Verbatim

_CREATED = re.compile(
    r"^CREATE (?:[A-Z= ]+ )?(TABLE|VIEW|FUNCTION|SEQUENCE) (?:IF NOT EXISTS )?(\{\w+\})", re.MULTILINE
)
_KINDS = ("VIEW", "TABLE", "FUNCTION", "SEQUENCE")  # in the order in which they can go
LARGEST = 2**31 - 1
# Where a dialect has them.
MAKE = ("map", "number", "index", "theirs", "open", "change", "add", "message", "ids", "ids_at")
SENDER = 3  # the migration with which senders are told apart: what was made before says `source`
RENEW = ("renamed", "message", "ids_sender")


@dataclass(frozen=True, slots=True)
class Dropped:
    """What was removed with an inbox."""

    pending: int
    dead: int
    kept: str | None  # the table that is still there: of ours without cascade, of theirs always


@dataclass(frozen=True, slots=True)
class InboxInfo:
    """An inbox of a database: how it stands, and what all processes agree on (`Inbox.configure`)."""

    name: str
    schema: str | None  # None: the connection's own
    table: str | None  # the adopted table; None: a table of relaybox
    pending: int
    dead: int
    processors: int  # alive
    order: Order | None
    priority: Priority | None
    retention: Retention | None  # None: as the settings of each process say
    retry: Retry | None


class InboxMaking(InboxAdopted):
    def migrate(self) -> Op[list[Migration]]:
        try:
            yield from self._vacant()
        except AlreadyExists:  # asked for afterwards: another process may have made the inbox meanwhile
            exists = yield self.sql["schema.exists"].bind()
            if not (exists.rows and exists.rows[0][0]):
                raise
        return (yield from super().migrate())

    def _vacant(self) -> Op[None]:
        """Nobody else has what would be made."""
        taken = yield self.sql["inbox.adopt.taken"].bind()
        if taken.rows:
            raise AlreadyExists(
                "table",
                str(taken.rows[0][0]),
                f"{taken.rows[0][0]!r} is there already and belongs to no inbox; choose another name for the inbox, or "
                "rename what is there",
            )

    def adopt(self, table: str, schema: str | None, columns: Columns) -> Op[Adoption]:
        return self.locked(self._adopt(table, schema, columns))

    def _adopt(self, table: str, schema: str | None, columns: Columns) -> Op[Adoption]:
        name = self.tables.event
        if (yield from self.applied()):
            raise AlreadyExists(
                "inbox", name, f"there is an inbox {name!r} already; migrate() brings it up to date, drop() ends it"
            )
        yield from self._vacant()
        result = yield self.sql["inbox.adopt.columns"].bind(table=table, schema=schema)
        if not result.rows:
            where = f" in schema {schema!r}" if schema else ""
            raise NotFound(
                "table", table, f"there is no table {table!r}{where} to adopt; names are taken as they are written"
            )
        there = [
            Column(row[0], row[1], bool(row[2]), str(row[3] or ""), bool(row[4]), row[6] and int(row[6]))
            for row in result.rows
        ]
        adoption = agreed(self.their_columns, table, result.rows[0][5], columns, there, _most(Retry()))
        self.learn(adoption)
        try:
            names = self.their_names(adoption)
            names["sender_name"] = "source"
            for name in MAKE:
                yield from self._make(f"inbox.adopt.{name}", names)
            yield from super().migrate()
            yield from self._put("adopted", adoption.to_json())
        except BaseException:
            self.forget()
            raise
        return adoption

    def prepare(self, migration: Migration) -> Op[None]:
        """The relations around a table of theirs have names of theirs in them, which no file can have."""
        if self.adoption is not None and migration.version == SENDER:
            for name in RENEW:
                yield from self._make(f"inbox.adopt.{name}", self.their_names(self.adoption))

    def configure(self, changes: Mapping[str, Any], now: datetime | None) -> Op[Plan]:
        """How often a row of theirs is tried is part of its adoption too."""
        plan = yield from super().configure(changes, now)
        if self.adoption is not None and "retry" in changes:
            adoption = replace(self.adoption, max_attempts=_most(plan.retry or Retry()))
            yield from self._put("adopted", adoption.to_json())
            self.learn(adoption)
        return plan

    def _make(self, name: str, names: Mapping[str, str]) -> Op[None]:
        found = self.their_queries.get(name)
        if found is not None:
            yield Verbatim(name, self._dialect.finish(fill(found[0], names)), "count").bind()

    def drift(self) -> Op[list[str]]:
        """The indexes of a table that was adopted are its owner's."""
        adoption = yield from self.know()
        lines = yield from super().drift()
        return [line for line in lines if adoption is None or not line.startswith("index ")]

    # -- drop -------------------------------------------------------------------------------------

    def drop(self, *, cascade: bool, if_exists: bool, force: bool, now: datetime | None) -> Op[Dropped | None]:
        exists = yield self.sql["schema.exists"].bind()
        if if_exists and not exists.rows[0][0]:  # the lock would make something
            return None
        return (yield from self.locked(self._drop(cascade, if_exists, force, now)))

    def _drop(self, cascade: bool, if_exists: bool, force: bool, now: datetime | None) -> Op[Dropped | None]:
        name = self.tables.event
        if not (yield from self.applied()):
            if if_exists:
                return None
            raise NotFound("inbox", name, f"there is no inbox {name!r} here; if_exists=True takes that for done")
        adoption = yield from self.know()
        pending, _, dead = yield from self.counts()
        alive = yield from self._alive(now)
        lost = pending if adoption is None else 0
        if (alive or lost) and not force:
            raise InUse(
                "inbox",
                name,
                f"inbox {name!r} has {alive} running processors and {pending} waiting messages"
                f"{'' if adoption is None else ', which stay in their table'}; let it come to rest first, or pass "
                "force=True",
            )
        keep = adoption is None and not cascade
        for kind, relation in self._objects(adoption):
            if not (keep and relation == "{message}"):
                gone = fill(relation, self.tables.substitutions(self.quote))
                yield from self._make(f"inbox.drop.{kind.lower()}", {"gone": gone})
        self.forget()
        return Dropped(pending, dead, adoption.table if adoption else name if keep else None)

    def _objects(self, adoption: Adoption | None) -> list[tuple[str, str]]:
        """The objects that migrations made, in the order in which they can be dropped."""
        texts = [self.fitting(text) for _, _, text in self.migration_files()]
        if adoption is not None:
            theirs = self.their_queries
            texts = [theirs[name][0] for name in (f"inbox.adopt.{name}" for name in MAKE) if name in theirs] + texts
        found = [("TABLE", "{migration}"), *reversed(_CREATED.findall("\n".join(texts)))]
        return sorted(found, key=lambda one: _KINDS.index(one[0]))

    def _alive(self, now: datetime | None) -> Op[int]:
        """Processors."""
        return int((yield self.sql["inbox.drop.alive"].bind(now=self.to_time(now))).rows[0][0])

    # -- list -------------------------------------------------------------------------------------

    def names(self) -> Op[list[tuple[str, str | None]]]:
        """Every inbox of this database, with its schema."""
        return [(row[0], row[1]) for row in (yield self.sql["inbox.list"].bind()).rows]

    def info(self, now: datetime | None) -> Op[InboxInfo]:
        plan = yield from self.plan_of()
        pending, _, dead = yield from self.counts()
        alive = yield from self._alive(now)
        return InboxInfo(
            self.tables.event,
            self.tables.schema,
            self.adoption.table if self.adoption else None,
            pending,
            dead,
            alive,
            plan.order,
            plan.priority,
            plan.retention,
            plan.retry,
        )


def _most(retry: Retry) -> int:
    """Attempts, as a column counts them."""
    return min(retry.attempts or LARGEST, LARGEST)
