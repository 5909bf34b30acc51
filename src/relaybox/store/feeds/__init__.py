"""The tables and functions of feeds: the result of a query kept as a table, and what changed in it. PostgreSQL only.

    feed      the catalog; one row per feed, locked by who refreshes it
    source    a table that a feed reads, and which of its columns say what a change there means
    stale     marks: the whole feed must be evaluated
    delta     deltas whose rows are in chunks; chunk: those rows
    hand_off  groups whose claim checks are read by other jobs; consumed: which of them were
    schedule  when a feed is refreshed by itself, and how that went

The work is done by functions in the database (migrations, from 002_capture.sql on), so that a scheduler or a
transformation tool there calls what Python calls. Deltas are events of a topic.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from ...errors import UnsupportedByEngine
from ..names import Tables
from ..schema import migration_files
from ..topics import TopicTables

if TYPE_CHECKING:
    from .store import FeedStore

_MADE = re.compile(r"^CREATE (TABLE|VIEW|TYPE|FUNCTION|PROCEDURE) \{(feed(?:_[a-z_]+)?)\}", re.MULTILINE)


@cache
def made() -> dict[str, str]:
    """What the migrations make, and what kind of thing each is."""
    texts = (text for _, _, text in migration_files("feeds", "postgres", None))
    return {name: kind for text in texts for kind, name in _MADE.findall(text)}


@dataclass(frozen=True, slots=True)
class FeedTables(TopicTables):
    """Named after the outbox, as the tables of its topics are. Those of one feed have its number in their names."""

    def substitutions(self, quote: str) -> dict[str, str]:
        parts = {part: self.part(part) for part in made()}
        parts |= {"migration": self.part("feed_migration"), "mark": self.part("mark")}
        return TopicTables(self.event, self.schema).substitutions(quote) | self.quoted(parts, quote)


class Refreshed(NamedTuple):
    """What a refresh did."""

    how: str  # full or differential; of a snapshot, which has all rows as inserted ones: snapshot
    inserted: int
    deleted: int
    delta: int | None  # its number in the feed; None: nothing changed
    number: int | None  # of its event in the topic
    claim_check: bool  # its rows are not in the event
    reasons: Sequence[str]  # why it had to be full, if nobody asked for that


class Drift(NamedTuple):
    """How far a feed is from its query."""

    rows: int  # that differ
    waiting: int  # changes that the next refresh looks at: rows may differ because of them
    captured: bool  # the triggers and partitions are as they were left


class FeedRow(NamedTuple):
    """A feed as the catalog has it."""

    id: int
    name: str
    topic: str
    own_topic: bool
    state: str
    mode: str
    table: str
    query: str
    key: Sequence[str]
    scope: Sequence[str]
    columns: Sequence[str]
    epoch: str
    deltas: int
    created_at: datetime
    refreshed_at: datetime | None
    how: str | None
    inserted: int | None
    deleted: int | None


class FeedCounts(NamedTuple):
    """What waits, and what is kept for readers."""

    waiting: int  # changed rows that no refresh has looked at
    stale: Sequence[str]  # why the next refresh is full
    kept_deltas: int  # deltas whose rows are in chunks
    kept_chunks: int
    kept_bytes: int
    table_bytes: int


class KeptDelta(NamedTuple):
    """A delta whose rows are in chunks."""

    feed: int
    n: int
    seq: int  # of its event in the topic
    held: bool  # by somebody besides the log: a job that reads its rows, or a group that parked it


class Kept(NamedTuple):
    """A delta whose rows are in chunks."""

    chunks: int
    inserted: int
    deleted: int


class Chunk(NamedTuple):
    op: str  # D or I
    payload: str  # a JSON array


def open_feed_store(dialect: str, tables: Tables) -> FeedStore:
    if dialect != "postgres":
        raise UnsupportedByEngine(f"feeds are kept by PostgreSQL; {dialect} has the outbox and the inbox")
    module = import_module(f"{__name__}.store")
    store: FeedStore = module.FeedStore(FeedTables(tables.event, tables.schema))
    return store
