"""What differs between databases in every product: quoting, times, lists as parameters, and what can be done at all.

A store has a Dialect and asks it; products that share nothing else share these.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

from ..errors import ConfigError
from .event_rows import EPOCH, USUAL, as_json, checked, unreadable
from .names import Tables
from .queries import qualified


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a dialect can do; makes the table in docs/reference/engines.md."""

    single_statement: bool  # claims and settles are one statement each and need no transaction around them
    listen: bool  # wake-ups across processes
    copy: bool  # bulk load of large batches
    skip_locked: bool  # concurrent claims do not wait for one another
    transactional_ddl: bool  # a failed migration leaves nothing behind
    advisory_keys: bool = False  # ordered delivery can choose keys by advisory locks
    locked_keys: bool = False  # ordered delivery can choose keys by locks on their head rows
    whole_claims: bool = False  # understands Settlement.whole: a claim is one row, not one per event

    @property
    def order_strategies(self) -> tuple[str, ...]:
        """What `order.strategy` may be; shards need nothing special."""
        can = {"shards": True, "advisory": self.advisory_keys, "rows": self.locked_keys}
        return tuple(name for name, yes in can.items() if yes)


class Dialect:
    """PostgreSQL's ways where nothing else is said: times are datetimes, lists are arrays."""

    name: ClassVar[str]
    quote: ClassVar[str] = '"'
    capabilities: ClassVar[Capabilities]
    index: ClassVar[re.Pattern[str]] = re.compile(r"CREATE INDEX (\S+) ON")  # as a migration makes one

    def product(self, version: str) -> tuple[str, tuple[int, ...]]:
        """The name of a server of this version, and the oldest version that will do."""
        raise NotImplementedError

    def check(self, tables: Tables) -> None:
        """Raise when tables cannot be called so here."""

    def finish(self, text: str) -> str:
        """A statement of ours, filled, as it is sent."""
        return text

    def to_time(self, value: datetime | None) -> Any:
        return value

    def from_time(self, value: Any) -> datetime:
        """psycopg answers in the session's time zone; asyncpg in UTC."""
        moment: datetime = value if value.tzinfo is UTC else value.astimezone(UTC)
        return moment

    def exact(self, text: str) -> Any:
        """A text as a column takes it that compares byte by byte."""
        return text

    def numbers(self, values: Sequence[int]) -> Any:
        return list(values)

    def texts(self, values: Sequence[Any]) -> Any:
        return list(values)

    def pairs(self, held: Sequence[tuple[Any, ...]]) -> dict[str, Any]:
        """Claims as parameters, sorted so that concurrent batches lock in one order."""
        ordered = sorted((h[0], h[1]) for h in held)
        return {"seqs": [seq for seq, _ in ordered], "tokens": [token for _, token in ordered]}

    def table(self, rows: Sequence[Sequence[Any]], *names: str) -> dict[str, Any]:
        """Rows as parameters: an array per column, by these names, or one JSON text called `rows`."""
        columns = zip(*rows, strict=True) if rows else ((),) * len(names)
        return {name: list(column) for name, column in zip(names, columns, strict=True)}

    def event_row(self, row: Sequence[Any]) -> Sequence[Any]:
        """The twelve event columns. Claims bring times as bytes: most are never looked at. What stands behind the
        twelve columns does no harm."""
        if row[9].__class__ is bytes:
            return row
        times = (self.from_time(at) if isinstance(at, datetime) else at for at in row[9:12])
        return (*row[:9], *times)


class Postgres(Dialect):
    name = "postgres"
    capabilities = Capabilities(
        single_statement=True,
        listen=True,
        copy=True,
        skip_locked=True,
        transactional_ddl=True,
        advisory_keys=True,
        locked_keys=True,
        whole_claims=True,
    )

    def product(self, version: str) -> tuple[str, tuple[int, ...]]:
        return "PostgreSQL", (14,)

    def finish(self, text: str) -> str:
        return qualified(text)


class _Json(Dialect):
    """Lists travel as one JSON text each, so a statement's text never depends on how many rows it is about."""

    def numbers(self, values: Sequence[int]) -> Any:
        return as_json(sorted(values))

    def texts(self, values: Sequence[Any]) -> Any:
        return as_json(list(values))

    def pairs(self, held: Sequence[tuple[Any, ...]]) -> dict[str, Any]:
        return {"held": as_json(sorted((h[0], h[1]) for h in held))}

    def table(self, rows: Sequence[Sequence[Any]], *names: str) -> dict[str, Any]:
        return {"rows": as_json(rows)}

    def event_row(self, row: Sequence[Any]) -> Sequence[Any]:
        """Times become datetimes. All are NULL when somebody deleted the event under its pending row. A row that no
        writer of ours has made may hold anything: what cannot be read becomes an event that says so."""
        if (*map(type, row[1:9]),) not in USUAL:
            try:
                row = checked(row)
            except ValueError as error:
                return unreadable(row, str(error))
        try:
            times = [None if value is None else self.from_time(value) for value in row[9:12]]
        except (TypeError, ValueError, AttributeError, OverflowError):
            return unreadable(row, "its times are not times")
        return (*row[:9], *times)


class Mysql(_Json):
    name = "mysql"
    quote = "`"
    capabilities = Capabilities(
        single_statement=False, listen=False, copy=False, skip_locked=True, transactional_ddl=False, locked_keys=True
    )
    index = re.compile(r"\bKEY (\w+) \(")

    def product(self, version: str) -> tuple[str, tuple[int, ...]]:
        return ("MariaDB", (10, 6)) if "mariadb" in version.lower() else ("MySQL", (8, 0))

    def to_time(self, value: datetime | None) -> str | None:
        """Text, because the client libraries disagree on aware datetimes and on microseconds."""
        if value is None:
            return None
        return value.astimezone(UTC).replace(tzinfo=None).isoformat(" ", "microseconds")

    def from_time(self, value: Any) -> datetime:
        moment: datetime = value.replace(tzinfo=UTC)
        return moment

    def exact(self, text: str) -> bytes:
        """Binary columns: every text collation that both servers know takes 'a' and 'a ' for the same key."""
        return text.encode()


_TICK = timedelta(microseconds=1)


class Sqlite(_Json):
    """Times are integers, microseconds since 1970 UTC: they sort, and no text format can be got wrong."""

    name = "sqlite"
    capabilities = Capabilities(
        single_statement=False, listen=False, copy=False, skip_locked=False, transactional_ddl=True
    )

    def check(self, tables: Tables) -> None:
        if tables.schema is not None:
            raise ConfigError(
                f"SQLite has no schemas, got schema {tables.schema!r}; choose another table name or another file"
            )

    def to_time(self, value: datetime | None) -> int | None:
        return None if value is None else (value - EPOCH) // _TICK

    def from_time(self, value: Any) -> datetime:
        return EPOCH + timedelta(microseconds=value)


POSTGRES, MYSQL, SQLITE = Postgres(), Mysql(), Sqlite()
DIALECTS: Mapping[str, Dialect] = {dialect.name: dialect for dialect in (POSTGRES, SQLITE, MYSQL)}
