"""What a maintainer needs to refresh feeds: rights on tables that are not ours, and on the logs of topics."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from ...op import Op, Query
from ..feeds import open_feed_store
from ..queries import fill, qualified, texts
from . import Statements

if TYPE_CHECKING:
    from ..feeds.store import FeedStore
    from ..topics.store import TopicStore


class Needed(NamedTuple):
    kind: str  # table or schema
    object: str  # qualified and quoted
    privileges: str
    held: bool  # by the current role

    def grant(self, words: Statements) -> str:
        if self.kind == "schema":
            return words.fill("grants.schema", self.object)
        return words.fill("grants.table", self.object, privileges=self.privileges)


def _asked(feeds: FeedStore, name: str, home: str) -> Query:
    names = replace(feeds.tables, schema=home).substitutions(feeds.quote)
    words = {"feed": names["feed"], "schedule": names["feed_schedule"], "source": names["feed_source"]}
    text, answer = texts("grants", feeds.dialect).queries[name]
    return Query(name, qualified(fill(text, words)), answer)


def needed(topics: TopicStore | None, role: str, home: str) -> Op[list[Needed]]:
    if role != "maintainer" or topics is None or not (feeds := (yield from _scheduled(topics))):
        return []
    return [Needed(*row) for row in (yield _asked(feeds, "grants.feeds", home).bind()).rows]


def fed(topics: TopicStore, role: str, home: str) -> Op[set[int]]:
    """The topics into whose logs a maintainer writes deltas."""
    if role != "maintainer" or not (feeds := (yield from _scheduled(topics))):
        return set()
    return {row[0] for row in (yield _asked(feeds, "grants.fed", home).bind()).rows}


def _scheduled(topics: TopicStore) -> Op[FeedStore | None]:
    """None: this database has no tables of feeds."""
    if topics.dialect != "postgres" or not (yield from topics.applied()):
        return None
    feeds = open_feed_store(topics.dialect, topics.tables)
    return feeds if (yield from feeds.there()) else None
