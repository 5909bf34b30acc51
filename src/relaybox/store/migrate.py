"""Numbered migrations: `migrations/NNN_name.sql` per dialect, applied in order, recorded with a checksum.

Each file expands the schema; nothing is changed or dropped while an older release may still run. One
process migrates at a time (`schema.lock`); the others wait and find nothing to do.
"""

from __future__ import annotations

import hashlib
import re
from datetime import datetime
from functools import cache
from importlib.resources import files
from typing import Any

from .. import faults
from ..errors import SchemaDrift, SchemaMissing, SchemaTooNew
from ..op import Op, Query
from .names import Tables
from .queries import fill, without_comments
from .spi import Capabilities, Migration

_FILE = re.compile(r"^(\d{3})_([a-z0-9_]+)\.sql$")


@cache
def migration_files(dialect: str) -> tuple[tuple[int, str, str], ...]:
    found = []
    for file in files("relaybox.store").joinpath(dialect, "migrations").iterdir():
        if match := _FILE.match(file.name):
            found.append((int(match[1]), match[2], file.read_text(encoding="utf-8")))
    return tuple(sorted(found))


def statements(sql: str) -> list[str]:
    """One statement per element. Our files have no `;` inside literals or bodies."""
    return [part.strip() for part in without_comments(inline(sql)).split(";") if part.strip()]


def inline(sql: str) -> str:
    return re.sub(r"--[^\n]*", "", sql)


class MigrationOps:
    """The schema half of a store."""

    dialect: str
    quote: str
    tables: Tables
    capabilities: Capabilities
    sql: dict[str, Query]

    @property
    def advice(self) -> str:
        return "run `relaybox migrate` or call migrate()"

    def from_time(self, value: Any) -> datetime:
        raise NotImplementedError

    def migrations(self) -> list[Migration]:
        names = self.tables.substitutions(self.quote)
        return [
            Migration(version, name, fill(inline(text), names), hashlib.sha256(text.encode()).hexdigest())
            for version, name, text in migration_files(self.dialect)
        ]

    def applied(self) -> Op[list[Migration]]:
        exists = yield self.sql["schema.exists"].bind()
        if not exists.rows or not exists.rows[0][0]:
            return []
        result = yield self.sql["schema.applied"].bind()
        texts = {m.version: m.sql for m in self.migrations()}
        return [Migration(row[0], row[1], texts.get(row[0], ""), row[2], self.from_time(row[3])) for row in result.rows]

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
        yield from self.prepare_schema()
        yield self.sql["schema.create"].bind()
        todo = yield from MigrationOps.plan(self)  # what else a plan may name is migrated by itself
        for migration in todo:
            for text in statements(migration.sql):
                yield Query(f"migrate.{migration.version}", text, "count").bind()
            yield self.sql["schema.record"].bind(
                version=migration.version, name=migration.name, checksum=migration.checksum
            )
            faults.hit("migrate.step")
        return todo

    def prepare_schema(self) -> Op[None]:
        """Take the migration lock, and make the schema where the engine has schemas."""
        yield from self.lock_schema()
        if self.tables.schema:
            there = yield self.sql["schema.namespace"].bind()
            if not there.rows[0][0]:
                create = f"CREATE SCHEMA {self.quote}{self.tables.schema}{self.quote}"
                yield Query("schema.make", create, "count").bind()

    def lock_schema(self) -> Op[None]:
        yield self.sql["schema.lock"].bind()

    def verify_schema(self) -> Op[None]:
        """Raise unless the schema is exactly what this release expects."""
        todo = yield from self.plan()
        if todo:
            raise SchemaMissing(
                f"table {self.tables.event!r} lacks {len(todo)} migration(s), first {todo[0].version} "
                f"({todo[0].name}); {self.advice}"
            )

    def drift(self) -> Op[list[str]]:
        """Differences between the tables and what the migrations make, one line each."""
        result = yield self.sql["schema.columns"].bind()
        there = {(row[0], row[1]) for row in result.rows}
        lines = [f"{table}.{column} is missing" for table, column in sorted(self.expected_columns() - there)]
        indexes = yield self.sql["schema.indexes"].bind()
        have = {row[1] for row in indexes.rows}
        lines += [f"index {name} is missing" for name in sorted(self.expected_indexes() - have)]
        return lines

    def expected_columns(self) -> set[tuple[str, str]]:
        return {
            (table, column)
            for migration in self.migrations()
            for table, body in re.findall(
                r"CREATE TABLE (?:IF NOT EXISTS )?(\S+) \((.*?)\n\)", migration.sql, re.DOTALL
            )
            for table in [table.rsplit(".", 1)[-1].strip(self.quote)]
            for column in re.findall(r"^\s+([a-z_]+)\s+[a-z]", body, re.MULTILINE)
        }

    def expected_indexes(self) -> set[str]:
        return {
            name.strip(self.quote)
            for migration in self.migrations()
            for name in re.findall(r"CREATE INDEX (\S+) ON", migration.sql)
        }
