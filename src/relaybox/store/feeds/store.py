"""Feeds on PostgreSQL: ops over the functions of the migrations."""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Mapping, Sequence
from typing import Any, TypeVar

from ...errors import FeedError, NotFound, StoreError
from ...op import Copy, Op, Result, Statement
from ...words import did_you_mean
from ..dialect import POSTGRES
from ..queries import fill, texts
from . import Chunk, Drift, FeedCounts, FeedRow, FeedTables, Kept, KeptDelta, Refreshed, made
from .schedule import ScheduleOps

T = TypeVar("T")

_FUNCTION = re.compile(r"CREATE (?:FUNCTION|PROCEDURE).*?AS \$feed\$.*?\$feed\$", re.DOTALL)


class FeedStore(ScheduleOps):
    _dialect = POSTGRES
    _product = "feeds"

    def __init__(self, tables: FeedTables) -> None:
        super().__init__(tables)

    def fitting(self, text: str) -> str:
        """Functions name our objects by their schema: a search_path would let strangers in. If none is given, the
        server says which it is when they are made."""
        if self.tables.schema is not None:
            return text
        wrapped, names = texts(self._product, self.dialect).slots["at_home"], self.tables.substitutions(self.quote)
        home = {key: f"@home@.{name}" if name.startswith(self.quote) else name for key, name in names.items()}
        return _FUNCTION.sub(lambda made: fill(wrapped, {"function": fill(made[0], home)}), text)

    def drift(self) -> Op[list[str]]:
        """What differs, also in the functions."""
        lines = yield from super().drift()
        names = self.tables.substitutions(self.quote)
        functions = [names[name] for name, kind in made().items() if kind in ("FUNCTION", "PROCEDURE")]
        missing = yield self.sql["feed.missing"].bind(functions=functions)
        return lines + [f"function {row[0]} is missing" for row in missing.rows]

    # -- what there is ----------------------------------------------------------------------------

    def feed(self, name: str) -> Op[FeedRow]:
        found = yield from self.feeds(name)
        if not found:
            raise (yield from self._missing(name))
        return found[0]

    def feeds(self, name: str | None = None) -> Op[list[FeedRow]]:
        result = yield self.sql["feed.find"].bind(name=name)
        return [self._row(row) for row in result.rows]

    def _row(self, row: Sequence[Any]) -> FeedRow:
        created, refreshed = self.from_time(row[13]), None if row[14] is None else self.from_time(row[14])
        return FeedRow._make((*row[:13], created, refreshed, *row[15:]))

    def _missing(self, name: str) -> Op[NotFound]:
        """The error to raise, with a name that is like it."""
        hint = did_you_mean(name, [row.name for row in (yield from self.feeds())], _LISTED)
        return NotFound("feed", name, f"there is no feed {name!r}{hint}")

    def counts(self, name: str) -> Op[FeedCounts]:
        result = yield self.sql["feed.counts"].bind(name=name)
        if not result.rows:
            raise (yield from self._missing(name))
        return FeedCounts(*result.rows[0])

    def own_topic(self, name: str) -> Op[str | None]:
        """The topic that was made with the feed; None: there was one already."""
        result = yield self.sql["feed.own"].bind(name=name)
        if not result.rows:
            raise (yield from self._missing(name))
        return str(result.rows[0][0]) if result.rows[0][1] else None

    # -- what changes -----------------------------------------------------------------------------

    def create(self, name: str, query: str, key: list[str], topic: str, options: Mapping[str, Any]) -> Op[bool]:
        """False: it is so already."""
        ask = self.sql["feed.create"].bind(name=name, query=query, key=key, topic=topic, options=json.dumps(options))
        return bool((yield from _told(name, ask)).rows[0][0])

    def refresh(self, name: str, how: str | None) -> Op[Refreshed]:
        return (yield from self._refreshed(name, self.sql["feed.refresh"].bind(name=name, how=how)))

    def snapshot(self, name: str) -> Op[Refreshed]:
        return (yield from self._refreshed(name, self.sql["feed.snapshot"].bind(name=name)))

    def _refreshed(self, name: str, ask: Statement) -> Op[Refreshed]:
        result = yield from _told(name, ask)
        n, how, reasons, inserted, deleted, claim_check, seq = result.rows[0]
        return Refreshed(how, inserted, deleted, n if seq is not None else None, seq, claim_check, tuple(reasons))

    def differences(self, name: str) -> Op[Drift]:
        return Drift(*(yield from _told(name, self.sql["feed.drift"].bind(name=name))).rows[0])

    def pause(self, name: str) -> Op[bool]:
        return bool((yield from _told(name, self.sql["feed.pause"].bind(name=name))).rows[0][0])

    def resume(self, name: str) -> Op[bool]:
        return bool((yield from _told(name, self.sql["feed.resume"].bind(name=name))).rows[0][0])

    def drop(self, name: str) -> Op[None]:
        yield from _told(name, self.sql["feed.drop"].bind(name=name))

    # -- rows of deltas ---------------------------------------------------------------------------

    def chunk(self, name: str, epoch: str, n: int, chunk: int) -> Op[Chunk | None]:
        """None: that was the last. NotFound: the delta is not kept any more."""
        result = yield self.sql["feed.chunk"].bind(name=name, epoch=epoch, n=n, chunk=chunk)
        if not result.rows:
            raise _forgotten(name, n)
        chunks, op, payload = result.rows[0]
        if chunk < chunks and op is None:
            raise _forgotten(name, n)
        return None if chunk >= chunks else Chunk(op, payload)

    def kept(self, name: str, epoch: str, n: int) -> Op[Kept]:
        """NotFound: the delta is not kept any more."""
        result = yield self.sql["feed.kept"].bind(name=name, epoch=epoch, n=n)
        if not result.rows:
            raise _forgotten(name, n)
        return Kept(*result.rows[0])

    def there(self) -> Op[bool]:
        """Whether this database has the tables of feeds."""
        return bool((yield self.sql["feed.there"].bind()).rows[0][0])

    def of_topic(self, topic: str) -> Op[list[str]]:
        """Feeds whose deltas go there."""
        if not (yield from self.there()):
            return []
        return [row[0] for row in (yield self.sql["feed.of_topic"].bind(topic=topic)).rows]

    def sweep(self, topic: int, limit: int) -> Op[tuple[int, Sequence[str]]]:
        """Deletes the chunks of deltas whose events have left a topic: how many deltas that were, and for each that a
        job still had to read the job's group."""
        gone, lost = (yield self.sql["feed.sweep"].bind(topic=topic, limit=limit)).rows[0]
        return gone, lost

    # -- rows that are handed to other jobs -------------------------------------------------------

    def kept_deltas(self, *, name: str | None = None, group: int | None = None) -> Op[list[KeptDelta]]:
        """Deltas whose rows are in chunks: of a feed, or of all feeds whose rows a group hands over."""
        return [KeptDelta(*row) for row in (yield self.sql["feed.kept_deltas"].bind(name=name, group=group)).rows]

    def hand_off(self, name: str, group: int) -> Op[bool]:
        """False: it is so already."""
        return (yield self.sql["feed.hand_off"].bind(name=name, group=group)).count > 0

    def take_back(self, name: str, group: int) -> Op[bool]:
        return (yield self.sql["feed.take_back"].bind(name=name, group=group)).count > 0

    def pass_over(self, group: int, deltas: Sequence[KeptDelta]) -> Op[None]:
        """It is not to have these: nobody will say that their rows were read."""
        yield self.sql["feed.pass_over"].bind(group=group, **_named(deltas))

    def look_forward(self, group: int, deltas: Sequence[KeptDelta]) -> Op[None]:
        """It is to have these, perhaps once more."""
        yield self.sql["feed.look_forward"].bind(group=group, **_named(deltas))

    def rows_consumed(self, name: str, n: int, group: str, epoch: str | None) -> Op[bool]:
        ask = self.sql["feed.rows_consumed"].bind(name=name, n=n, group=group, epoch=epoch)
        return bool((yield from _told(name, ask)).rows[0][0])


def _named(deltas: Sequence[KeptDelta]) -> dict[str, list[int]]:
    return {"feeds": [delta.feed for delta in deltas], "numbers": [delta.n for delta in deltas]}


_LISTED = "; feeds.list() names those there are"


def _unknown(name: str) -> NotFound:
    """After an error of the database, which answers no question in this transaction."""
    return NotFound("feed", name, f"there is no feed {name!r}{_LISTED}")


def _forgotten(name: str, n: int) -> NotFound:
    return NotFound(
        "delta",
        f"{name}/{n}",
        f"the rows of delta {n} of feed {name!r} are not kept any more: its event is "
        "past the retention of its topic, or the feed was dropped. A small one has them in its event",
    )


def _told(name: str, ask: Statement) -> Generator[Statement | Copy, Result, Result]:
    """The answer to a call, whose errors are about this feed."""
    try:
        return (yield ask)
    except FeedError as error:
        if error.reason == "unknown":
            raise _unknown(name) from error
        raise
    except StoreError as error:
        if "(42501)" in str(error):
            text = f"feed {name!r}: this role may not do that: {error}. Do it as its owner, or grant what is missing"
            raise FeedError(text, "rights") from error
        raise
