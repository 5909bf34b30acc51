"""The tables of a product: their names, their queries, and the migrations that make them.

Numbered migrations, `migrations/NNN_name.sql` per product and dialect, are applied in order and recorded with a
checksum. Each file expands the schema; nothing is changed or dropped while an older release may still run. One process
migrates at a time (`schema.lock`); the others wait and find nothing to do.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from importlib.resources import files
from typing import Any, TypeVar

from .. import faults
from ..errors import SchemaDrift, SchemaMissing, SchemaTooNew, StoreBusy, StoreError
from ..op import Op, Query
from .dialect import Dialect
from .names import Tables
from .queries import Block, Names, fill, load, texts, without_comments

T = TypeVar("T")

_MADE = re.compile(r"CREATE TABLE (?:IF NOT EXISTS )?(\S+) \((.*?)\n\)", re.DOTALL)
_COLUMN = re.compile(r"^\s+([a-z_]+)\s+[a-z]", re.MULTILINE)
_CHANGED = re.compile(r"ALTER TABLE (\S+) (RENAME|CHANGE|ADD|DROP) COLUMN (\w+)(?: (?:TO )?(\w+))?")
_END = re.compile(r"(\$[a-z]*\$).*?\1|;", re.DOTALL)  # of a statement; a body is passed over
_FILE = re.compile(r"^(\d{3})_([a-z0-9_]+)\.sql$")


@dataclass(frozen=True, slots=True)
class Migration:
    """A step of the tables of a product; `applied_at` is None until it is applied."""

    version: int
    name: str
    sql: str
    checksum: str
    applied_at: datetime | None = None


@cache
def migration_files(product: str, dialect: str, audit: int | None) -> tuple[tuple[int, str, str], ...]:
    found, store = [], files("relaybox.store")
    for file in store.joinpath(product, dialect, "migrations").iterdir():
        if match := _FILE.match(file.name):
            found.append((int(match[1]), match[2], file.read_text(encoding="utf-8")))
    if audit is not None:
        text = store.joinpath("shared", dialect, "migrations", "audit.sql").read_text(encoding="utf-8")
        found.append((audit, "audit", text))
    return tuple(sorted(found))


def statements(sql: str) -> list[str]:
    """One statement per element. Our files have no `;` inside literals, only inside the bodies of functions."""
    text, parts, start = without_comments(inline(sql)), [], 0
    for found in _END.finditer(text):
        if found[0] == ";":
            parts.append(text[start : found.start()])
            start = found.end()
    return [part.strip() for part in (*parts, text[start:]) if part.strip()]


def inline(sql: str) -> str:
    return re.sub(r"--[^\n]*", "", sql)


class Schema:
    """What every store has. Its ops convert values by the ways of its dialect, which are bound here."""

    _dialect: Dialect
    _product: str  # the folder with its SQL
    _audit: int | None = None  # which of its migrations makes the audit table, which is shared

    def __init__(self, tables: Tables) -> None:
        self._dialect.check(tables)
        self.tables = tables
        self.dialect = self._dialect.name
        self.quote = self._dialect.quote
        self.capabilities = self._dialect.capabilities
        self.exact = self._dialect.exact
        self.to_time = self._dialect.to_time
        self.from_time = self._dialect.from_time
        self.numbers = self._dialect.numbers
        self.texts = self._dialect.texts
        self.pairs = self._dialect.pairs
        self.table = self._dialect.table
        self.event_row = self._dialect.event_row
        self.sql: dict[str, Query] = load(self.queries(), self.slots(), self._dialect.finish)

    def queries(self) -> dict[str, Block]:
        return texts("shared", self.dialect).queries | texts(self._product, self.dialect).queries

    def slots(self, **more: str) -> Names:
        slots = texts("shared", self.dialect).slots | texts(self._product, self.dialect).slots
        return Names(self.tables.substitutions(self.quote) | more, slots)

    @property
    def advice(self) -> str:
        return "run `relaybox migrate` or call migrate()"

    def migrations(self) -> list[Migration]:
        names = self.tables.substitutions(self.quote)
        return [
            Migration(
                version,
                name,
                self._dialect.finish(fill(self.fitting(inline(text)), names)),
                hashlib.sha256(text.encode()).hexdigest(),
            )
            for version, name, text in self.migration_files()
        ]

    def migration_files(self) -> tuple[tuple[int, str, str], ...]:
        return migration_files(self._product, self.dialect, self._audit)

    def fitting(self, text: str) -> str:
        """A migration as it is to be run here."""
        return text

    def applied(self) -> Op[list[Migration]]:
        exists = yield self.sql["schema.exists"].bind()
        if not exists.rows or not exists.rows[0][0]:
            return []
        result = yield self.sql["schema.applied"].bind()
        known = {m.version: m.sql for m in self.migrations()}
        return [Migration(row[0], row[1], known.get(row[0], ""), row[2], self.from_time(row[3])) for row in result.rows]

    def plan(self) -> Op[list[Migration]]:
        """What migrate() would do. Refuses a schema that a newer release made."""
        done = yield from self.applied()
        known = self.migrations()
        newest = known[-1].version
        if done and done[-1].version > newest:
            raise SchemaTooNew(
                f"table {self.tables.event!r} is at schema version {done[-1].version}, this relaybox knows "
                f"{newest}; upgrade the package before using these tables"
            )
        by_version = {m.version: m for m in known}
        for migration in done:
            if by_version[migration.version].checksum != migration.checksum:
                raise SchemaDrift(
                    f"migration {migration.version} ({migration.name}) of {self.tables.event!r} was applied from "
                    "a different file; compare the tables with `relaybox doctor` before going on"
                )
        return [m for m in known if m.version not in {d.version for d in done}]

    def migrate(self) -> Op[list[Migration]]:
        return (yield from self.locked(self._migrate()))

    def _migrate(self) -> Op[list[Migration]]:
        yield self.sql["schema.create"].bind()
        todo = yield from Schema.plan(self)  # what else a plan may name is migrated by itself
        for migration in todo:
            yield from self.prepare(migration)
            for text in statements(migration.sql):
                yield Query(f"migrate.{migration.version}", text, "count").bind()
            yield self.sql["schema.record"].bind(
                version=migration.version, name=migration.name, checksum=migration.checksum
            )
            faults.hit("migrate.step")
        return todo

    def migrate_unseen(self) -> Op[None]:
        """As migrate(), in statements that are run later, where nobody can look. On PostgreSQL they ask themselves what
        has been applied; elsewhere they are for a database without these tables."""
        if "schema.unless" not in self.sql:
            yield from Schema.migrate(self)
            return
        yield Query("schema.begin", self.sql["schema.lock"].text, "count").bind()
        for migration in self.migrations():
            steps = statements(migration.sql)
            applied = {"version": migration.version, "name": migration.name, "checksum": migration.checksum}
            yield self.sql["schema.unless"].bind(steps=steps, **applied)

    def prepare(self, migration: Migration) -> Op[None]:
        """What a migration needs first and its file cannot say."""
        yield from ()

    def locked(self, op: Op[T]) -> Op[T]:
        """Under the migration lock, and in a schema that is there. Where DDL commits by itself the lock is the
        session's, may be taken again within, and is given back."""
        got = yield self.sql["schema.lock"].bind()
        ends_by_itself = self.capabilities.transactional_ddl
        if not ends_by_itself and got.rows[0][0] != 1:
            raise StoreBusy(f"another process is migrating {self.tables.event!r} since 30 seconds; try again")
        try:
            yield from self._make_namespace()
            result = yield from op
        except GeneratorExit:
            raise
        except BaseException:
            if not ends_by_itself:
                with suppress(StoreError):
                    yield self.sql["schema.unlock"].bind()
            raise
        if not ends_by_itself:
            yield self.sql["schema.unlock"].bind()
        return result

    def _make_namespace(self) -> Op[None]:
        if self.tables.schema and not (yield from self.has_namespace()):
            create = f"CREATE SCHEMA {self.quote}{self.tables.schema}{self.quote}"
            yield Query("schema.make", create, "count").bind()

    def has_namespace(self) -> Op[bool]:
        """Whether the schema of the tables exists."""
        there = yield self.sql["schema.namespace"].bind()
        return bool(there.rows[0][0])

    def drop_namespace(self) -> Op[None]:
        """The schema with everything in it: for one that was made to be dropped."""
        yield self.sql["schema.drop_namespace"].bind()

    def verify_schema(self) -> Op[None]:
        """Raise unless the schema is exactly what this release expects."""
        todo = yield from self.plan()
        if todo and todo[0].version == self.migrations()[0].version:
            raise SchemaMissing(
                f"the tables of {todo[0].name} ({self.tables.event!r}) are not in this database; {self.advice}"
            )
        if todo:
            raise SchemaMissing(
                f"table {self.tables.event!r} lacks {len(todo)} migration(s), first {todo[0].version} "
                f"({todo[0].name}); {self.advice}"
            )

    def server_version(self) -> Op[str]:
        return str((yield self.sql["schema.server"].bind()).rows[0][0])

    def probe(self) -> Op[Sequence[Any]]:
        """Locks a row if nobody has: its number, and that of the session."""
        return (yield self.sql["schema.probe"].bind(version=self.migrations()[0].version)).rows

    def drift(self) -> Op[list[str]]:
        """Differences between the tables and what the migrations make, one line each; none for who may not see them."""
        if "schema.seen" in self.sql and not (yield self.sql["schema.seen"].bind()).rows[0][0]:
            return []
        result = yield self.sql["schema.columns"].bind()
        there = {(row[0], row[1]) for row in result.rows}
        lines = [f"{table}.{column} is missing" for table, column in sorted(self.expected_columns() - there)]
        indexes = yield self.sql["schema.indexes"].bind()
        have = {row[1] for row in indexes.rows}
        lines += [f"index {name} is missing" for name in sorted(self.expected_indexes() - have)]
        return lines or (yield from self.missing_limits())  # a column that is gone takes its constraint along

    def missing_limits(self, more: Iterable[str] = ()) -> Op[list[str]]:
        """Without these a writer of its own can store what no event is: it becomes a dead letter, not an error."""
        expected = {
            name.strip(self.quote)
            for migration in self.migrations()
            for name in re.findall(r"CONSTRAINT (\S+_limits\S?) CHECK", migration.sql)
        }
        there = yield self.sql["schema.limits"].bind()
        have = {name for row in there.rows for name in re.findall(r"\w+_limits\b", row[0])}
        return [f"constraint {name} is missing" for name in sorted({*expected, *more} - have)]

    def expected_columns(self) -> set[tuple[str, str]]:
        found = set[tuple[str, str]]()
        for migration in self.migrations():
            for table, body in _MADE.findall(migration.sql):
                found |= {(self._bare(table), column) for column in _COLUMN.findall(body)}
            for table, verb, column, name in _CHANGED.findall(migration.sql):
                if verb != "ADD":
                    found.discard((self._bare(table), column))
                if verb != "DROP":
                    found.add((self._bare(table), column if verb == "ADD" else name))
        return found

    def _bare(self, table: str) -> str:
        return table.rsplit(".", 1)[-1].strip(self.quote)

    def expected_indexes(self) -> set[str]:
        made = (name for migration in self.migrations() for name in self._dialect.index.findall(migration.sql))
        return {name.strip(self.quote) for name in made}
