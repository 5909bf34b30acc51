"""What a feed is: a query whose result is kept as a table, and how its changes are told. Pure.

Feed("totals", "SELECT customer, sum(amount) AS total FROM orders GROUP BY customer", key="customer",
     sources={"orders": "customer"})
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal, get_args

from .durations import Duration, parse_duration
from .errors import ConfigError, InvalidEvent
from .event import MAX_PAYLOAD, check_topic

FeedMode = Literal["auto", "differential", "full"]
ColumnNames = str | Sequence[str]

LONGEST = 128  # characters of a name: it is the key of its deltas
SHORTEST = timedelta(milliseconds=100)  # between two refreshes, and for one


@dataclass(frozen=True)
class FeedSource:
    """What a change in a table means for a feed.

    columns  of the table; triggers store them of each changed row, as it was and as it is
    resolve  a query that makes scopes of them: SELECT … FROM touched t JOIN …; without one they are scopes
    by_row   triggers for each row: for a table that a subscription of logical replication fills
    """

    columns: ColumnNames
    resolve: str | None = None
    by_row: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", _names("columns", self.columns))


@dataclass(frozen=True)
class Feed:
    """The result of a query, kept as a table, and one delta for each refresh that changed it.

    name          of the feed, and of its topic if no other is given
    query         a SELECT
    key           columns of the result that identify a row; never NULL
    sources       tables that the query reads, and the columns by which a change there is mapped to the scope
    scope         columns by which the query is narrowed to what changed; the key, unless it is given
    mode          "differential": look at what changed; "full": evaluate all each time; "auto": as the changes are
                  many or few
    table         what the table is called; feed_<name>, unless it is given
    topic         where deltas go; made if it is not there
    inline_rows   a delta of more rows is stored in chunks, and its event says so
    inline_bytes  likewise of more bytes; an event takes 1 MiB
    chunk_rows    rows in a chunk at most
    auto_share    "auto" evaluates all if more than this part of the rows may have changed
    skip_empty    no delta if nothing changed
    every         how often a maintainer refreshes it; None: only who asks does
    timeout       of such a refresh
    """

    name: str
    query: str
    key: ColumnNames = field(kw_only=True)
    sources: Mapping[str, ColumnNames | FeedSource] = field(default_factory=dict, kw_only=True)
    scope: ColumnNames | None = field(default=None, kw_only=True)
    mode: FeedMode = field(default="auto", kw_only=True)
    table: str | None = field(default=None, kw_only=True)
    topic: str | None = field(default=None, kw_only=True)
    inline_rows: int = field(default=10_000, kw_only=True)
    inline_bytes: int = field(default=MAX_PAYLOAD, kw_only=True)
    chunk_rows: int = field(default=1_000, kw_only=True)
    auto_share: float = field(default=0.3, kw_only=True)
    skip_empty: bool = field(default=True, kw_only=True)
    every: Duration | None = field(default=None, kw_only=True)
    timeout: Duration = field(default="10m", kw_only=True)

    def __post_init__(self) -> None:
        for name in (self.name, self.topic) if self.topic is not None else (self.name,):
            try:
                check_topic(name)
            except InvalidEvent as error:
                raise ConfigError(f"not a feed's name or topic: {error}") from None
        if len(self.name) > LONGEST:
            raise ConfigError(f"expected the name of a feed to have at most {LONGEST} characters, got {len(self.name)}")
        if not isinstance(self.query, str) or not self.query.strip():
            raise ConfigError(f"expected the query of feed {self.name!r} to be a SELECT, got {self.query!r}")
        if str(self.mode) == "immediate":
            raise ConfigError(
                f"feed {self.name!r} cannot be refreshed by each statement that writes: its errors would be the "
                "writer's, and writers would wait for one another. Call feeds.refresh(handle, name) last in the "
                "transaction that writes"
            )
        if self.mode not in get_args(FeedMode):
            raise ConfigError(f"expected mode to be auto, differential or full, got {self.mode!r}")
        object.__setattr__(self, "key", _names("key", self.key))
        object.__setattr__(self, "scope", None if self.scope is None else _names("scope", self.scope))
        if not isinstance(self.sources, Mapping):
            raise ConfigError(f"expected sources to be a mapping of tables, got {type(self.sources).__name__}")
        if self.mode != "full" and not self.sources:
            raise ConfigError(
                f"feed {self.name!r} needs sources, such as {{'orders': 'customer'}}, to know what a change means; "
                "or mode='full'"
            )
        given = self.sources.items()
        mapped = {table: of if isinstance(of, FeedSource) else FeedSource(of) for table, of in given}
        object.__setattr__(self, "sources", mapped)
        for name, longest in (("inline_rows", 2**31 - 1), ("inline_bytes", MAX_PAYLOAD), ("chunk_rows", 1_000_000)):
            value, least = getattr(self, name), 1 if name == "chunk_rows" else 0
            if type(value) is not int or not least <= value <= longest:
                raise ConfigError(f"expected {name} to be an int from {least} to {longest:,}, got {value!r}")
        if not 0 <= self.auto_share <= 1:
            raise ConfigError(f"expected auto_share to be a part of 1, got {self.auto_share!r}")
        object.__setattr__(self, "every", None if self.every is None else _interval("every", self.every))
        object.__setattr__(self, "timeout", _interval("timeout", self.timeout))

    @property
    def options(self) -> dict[str, Any]:
        """As the database is told of them."""
        sources = [
            {"table": table, "columns": list(of.columns), "capture": "row" if of.by_row else "statement"}
            | ({"resolve": of.resolve} if of.resolve else {})
            for table, of in self.sources.items()
            if isinstance(of, FeedSource)
        ]
        options: dict[str, Any] = {"sources": sources if self.mode != "full" else []}
        options |= {"scope": None if self.scope is None else list(self.scope), "mode": self.mode}
        for name in ("inline_rows", "inline_bytes", "chunk_rows", "auto_share", "skip_empty"):
            options[name] = getattr(self, name)
        options["every"] = None if self.every is None else parse_duration(self.every).total_seconds()
        options["timeout"] = parse_duration(self.timeout).total_seconds()
        return options if self.table is None else options | {"table": self.table}


def _names(what: str, given: ColumnNames) -> tuple[str, ...]:
    names = (given,) if isinstance(given, str) else tuple(given)
    if not names or not all(isinstance(name, str) and name for name in names) or len(set(names)) < len(names):
        raise ConfigError(f"expected {what} to be names of columns, got {given!r}")
    return names


def _interval(name: str, given: Duration) -> timedelta:
    parsed = parse_duration(given, name)
    if not SHORTEST <= parsed <= timedelta(days=7):
        raise ConfigError(f"expected {name} to be a duration from 100ms to 7d, got {given!r}")
    return parsed


def key_number(text: str) -> str:
    """A number of a key in its one spelling: 1.0 and 1.00 are the same key to the database, and so to everybody."""
    if "." in text and "e" not in text and "E" not in text:
        text = text.rstrip("0").removesuffix(".")
    return "0" if text == "-0" else text
