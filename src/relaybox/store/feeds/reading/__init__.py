"""A feed as another database reads it: how far it is, its columns, its deltas from the log, all its rows."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ....errors import NotFound
from ....op import Op, Query
from ...names import Tables
from ...queries import Names, fill, texts
from .. import FeedTables
from ..store import FeedStore

PRODUCT = "feeds/reading"
CURSOR_BYTES = 4_000_000  # of rows that are fetched at once, if they are as large as those before


class FeedHead(NamedTuple):
    epoch: str
    n: int


class FeedPlace(NamedTuple):
    """Where a feed is kept."""

    epoch: str
    n: int
    topic_id: int
    relation: str
    key: Sequence[str]
    shard: int
    at: int  # microseconds since 1970: no earlier epoch writes after that


class StoredDelta(NamedTuple):
    seq: int
    headers: Mapping[str, str]
    body: bytes


class FeedReading(FeedStore):
    """Of one feed."""

    def __init__(self, tables: Tables, name: str) -> None:
        super().__init__(FeedTables(tables.event, tables.schema))
        self.name = name

    def _asked(self, name: str, **names: str) -> Query:
        found = texts(PRODUCT, self.dialect)
        text, answer = found.queries[name]
        slots = Names(self.tables.substitutions(self.quote) | names, found.slots)
        return Query(name, self._dialect.finish(fill(text, slots)), answer)

    def head(self) -> Op[FeedHead]:
        rows = (yield self._asked("feed.reading.head").bind(name=self.name)).rows
        if not rows:
            raise self._unknown()
        return FeedHead(*rows[0])

    def place(self) -> Op[FeedPlace]:
        rows = (yield self._asked("feed.reading.place").bind(name=self.name)).rows
        if not rows:
            raise self._unknown()
        return FeedPlace(*rows[0])

    def columns(self, place: FeedPlace) -> Op[dict[str, str]]:
        """Their types, by name."""
        rows = (yield self._asked("feed.reading.columns").bind(relation=place.relation)).rows
        return dict(rows)

    def after(self, place: FeedPlace, seq: int, most: int) -> Op[list[StoredDelta]]:
        asked = self._asked("feed.reading.after", **self._log(place)).bind(
            shard=place.shard, seq=seq, name=self.name, most=most
        )
        return [StoredDelta(row[0], json.loads(row[1]), bytes(row[2])) for row in (yield asked).rows]

    def last(self, place: FeedPlace) -> Op[int]:
        """0: the log has none."""
        rows = (yield self._asked("feed.reading.last", **self._log(place)).bind(shard=place.shard, name=self.name)).rows
        return int(rows[0][0]) if rows else 0

    def begin(self) -> Op[None]:
        """What follows sees one moment of the source, until `end`."""
        yield self._asked("feed.reading.begin").bind()
        yield self._asked("feed.reading.words").bind()

    def end(self) -> Op[None]:
        yield self._asked("feed.reading.end").bind()

    def open(self, place: FeedPlace, json_columns: Sequence[str]) -> Op[None]:
        """All rows, for `fetch`."""
        null = {name: f"json_typeof(to_json(m.{self._quoted(name)})) = 'null'" for name in json_columns}
        line = Names(
            {
                "null_there": " OR ".join(null.values()),
                "null_here": " OR ".join(f"e.key = {_literal(name)} AND {there}" for name, there in null.items()),
            },
            texts(PRODUCT, self.dialect).slots,
        )["row_without" if null else "row"]
        yield self._asked("feed.reading.open", line=line, relation=place.relation).bind()

    def fetch(self, most: int) -> Op[list[str]]:
        """The next rows as JSON; none: these were all."""
        return [row[0] for row in (yield self._asked("feed.reading.fetch", most=str(most)).bind()).rows]

    def _log(self, place: FeedPlace) -> dict[str, str]:
        tables: Any = self.tables
        log: dict[str, str] = tables.log(place.topic_id, self.quote)
        return log

    def _quoted(self, name: str) -> str:
        return self.quote + name.replace(self.quote, self.quote * 2) + self.quote

    def _unknown(self) -> NotFound:
        return NotFound("feed", self.name, f"there is no feed {self.name!r} in the source")


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
