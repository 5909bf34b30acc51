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
from .names import Tables
from .rows import EPOCH, EVENT_COLUMNS, as_json, readable


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
        """What `Settings.order_strategy` may be; shards need nothing special."""
        can = {"shards": True, "advisory": self.advisory_keys, "rows": self.locked_keys}
        return tuple(name for name, yes in can.items() if yes)


class Dialect:
    """PostgreSQL's ways where nothing else is said: times are datetimes, lists are arrays."""

    name: ClassVar[str]
    quote: ClassVar[str] = '"'
    capabilities: ClassVar[Capabilities]
    index: ClassVar[re.Pattern[str]] = re.compile(r"CREATE INDEX (\S+) ON")  # as a migration makes one
    words: ClassVar[Mapping[str, str]] = {}  # slots that the queries of several products use

    def check(self, tables: Tables) -> None:
        """Raise when tables cannot be called so here."""

    def to_time(self, value: datetime | None) -> Any:
        return value

    def from_time(self, value: Any) -> datetime:
        """psycopg answers in the session's time zone; asyncpg in UTC."""
        return value if value.tzinfo is UTC else value.astimezone(UTC)  # type: ignore[no-any-return]

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
        return dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))

    def event_row(self, row: Sequence[Any]) -> tuple[Any, ...]:
        """The twelve event columns. Claims bring times as bytes: most are never looked at. What stands behind the
        twelve columns does no harm."""
        if row[9].__class__ is bytes:
            return row  # type: ignore[return-value]  # a tuple, or what behaves like one
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
    words: ClassVar[Mapping[str, str]] = {"never": "'infinity'::timestamptz"}


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

    def event_row(self, row: Sequence[Any]) -> tuple[Any, ...]:
        return readable(row, self.from_time)


_MYSQL_CLOCK = "coalesce(CAST(:now AS datetime(6)), utc_timestamp(6))"
_MYSQL_TEXT = "CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"


class Mysql(_Json):
    name = "mysql"
    quote = "`"
    capabilities = Capabilities(
        single_statement=False, listen=False, copy=False, skip_locked=True, transactional_ddl=False, locked_keys=True
    )
    index = re.compile(r"\bKEY (\w+) \(")
    words: ClassVar[Mapping[str, str]] = {
        "clock": _MYSQL_CLOCK,
        "never": "CAST('9999-12-31' AS datetime(6))",
        "ready": f"(p.due <= {_MYSQL_CLOCK} OR (p.since IS NOT NULL AND p.token IS NULL))",
        "text": _MYSQL_TEXT,
        "database": "coalesce(nullif('{namespace}', ''), database())",
        # In a session of a narrower character set the server would unescape the text into that one, and lose it.
        "rows": "CONVERT(:rows USING utf8mb4)",
        "seqs": "JSON_TABLE(:seqs, '$[*]' COLUMNS (seq bigint PATH '$')) s",
        "held": "JSON_TABLE(:held, '$[*]' COLUMNS (seq bigint PATH '$[0]', token bigint PATH '$[1]')) s",
        "keys": "JSON_TABLE(:keys, '$[*]' COLUMNS (key_hash bigint PATH '$')) k",
        "ids": "JSON_TABLE(CONVERT(:event_ids USING utf8mb4), '$[*]' COLUMNS ("
        f"event_id varchar(36) {_MYSQL_TEXT} PATH '$')) s",
        # GET_LOCK takes 64 characters, and a lock belongs to the server, not to a database.
        "lock": "concat('relaybox.migrate.', md5(concat(coalesce(nullif('{namespace}', ''), database(), ''),"
        " '.{event_name}')))",
    }

    def to_time(self, value: datetime | None) -> str | None:
        """Text, because the client libraries disagree on aware datetimes and on microseconds."""
        if value is None:
            return None
        return value.astimezone(UTC).replace(tzinfo=None).isoformat(" ", "microseconds")

    def from_time(self, value: Any) -> datetime:
        return value.replace(tzinfo=UTC)  # type: ignore[no-any-return]

    def exact(self, text: str) -> bytes:
        """Binary columns: every text collation that both servers know takes 'a' and 'a ' for the same key."""
        return text.encode()


_TICK = timedelta(microseconds=1)
_SQLITE_CLOCK = "coalesce(:now, CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS integer) * 1000)"

# The columns of an event as they lie there, where the client library cannot read them: a type is only a wish here.
_RAW = ", ".join(
    [f"CAST(e.{name} AS blob)" for name in EVENT_COLUMNS[1:9]]
    + [f"CASE WHEN typeof(e.{name}) = 'text' THEN x'' ELSE e.{name} END" for name in EVENT_COLUMNS[9:12]]
)


class Sqlite(_Json):
    """Times are integers, microseconds since 1970 UTC: they sort, and no text format can be got wrong.

    SQLite's clock ticks in milliseconds; julianday() is a float whose error is far below one, so rounding
    gives the exact tick, on every version.
    """

    name = "sqlite"
    capabilities = Capabilities(
        single_statement=False, listen=False, copy=False, skip_locked=False, transactional_ddl=True
    )
    words: ClassVar[Mapping[str, str]] = {
        "clock": _SQLITE_CLOCK,
        "never": "9000000000000000000",
        "lease": "CAST(round(:lease * 1000000.0) AS integer)",
        "ttl": "CAST(round(:ttl * 1000000.0) AS integer)",
        "ready": f"(p.due <= {_SQLITE_CLOCK} OR (p.since IS NOT NULL AND p.token IS NULL))",
        "raw": _RAW,
        "seqs": "(SELECT value FROM json_each(:seqs))",
        "held": "(SELECT p.seq FROM json_each(:held) h CROSS JOIN {pending} p "
        "ON p.seq = json_extract(h.value, '$[0]') AND p.token = json_extract(h.value, '$[1]'))",
    }

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
