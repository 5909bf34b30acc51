"""Tables that follow a feed of another database, and how far each of them is: ops of the database that has them.

In its files `{position}` is the table of places, one row for each replicated table. Ops on such a table itself are in
`kept`. A set of migrations and queries of its own: who receives needs no outbox.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from ...errors import ConfigError
from ...op import Op
from ..dialect import DIALECTS, Dialect
from ..names import Tables
from ..schema import Schema

TABLE = "relaybox_replica"


@dataclass(frozen=True, slots=True)
class ReplicaTables(Tables):
    def substitutions(self, quote: str) -> dict[str, str]:
        names = Tables.substitutions(self, quote)
        return names | {"position": names["event"], "position_name": names["event_name"]}


class Position(NamedTuple):
    """How far a table is."""

    feed: str
    key: Sequence[str]
    types: Mapping[str, str]  # the feed's columns and their types; empty: nobody said them
    epoch: str | None  # None: the table has nothing of the feed yet
    n: int  # every delta up to this one is in the table
    seq: int | None = None  # where that one stands in the source's log
    era: int = 0  # a message of this epoch was written then: microseconds since 1970
    by_rows: bool = False  # messages of single rows go beyond n
    snapshot: int = 0  # the newest snapshot whose rows arrive one by one
    arrived: int = 0  # how many of them did
    applied_at: datetime | None = None


class ReplicaStore(Schema):
    _product = "replica"

    def __init__(self, dialect: Dialect, tables: ReplicaTables) -> None:
        self._dialect = dialect
        super().__init__(tables)

    @property
    def advice(self) -> str:
        return "call migrate() of the replica"

    def position(self, kept: str, *, how: str = "find") -> Op[Position | None]:
        """`how`: find, lock, or take: None where another transaction has it, too."""
        asked = {"find": self.sql["replica.find"], "lock": self.sql["replica.lock"], "take": self.sql["replica.take"]}
        rows = (yield asked[how].bind(kept=self.exact(kept))).rows
        if not rows:
            return None
        feed, key, types, *place, by_rows, snapshot, arrived, at = rows[0]
        at = None if at is None else self.from_time(at)
        made = (feed, json.loads(key), json.loads(types), *place, bool(by_rows), snapshot, arrived, at)
        return Position._make(made)

    def begin(self, kept: str, feed: str, key: Sequence[str], types: Mapping[str, str]) -> Op[None]:
        """From nothing, whatever was known."""
        yield self.sql["replica.forget"].bind(kept=self.exact(kept))
        told = {"key_columns": json.dumps(list(key)), "types": json.dumps(dict(types))}
        yield self.sql["replica.begin"].bind(kept=self.exact(kept), feed=feed, **told)

    def move(self, kept: str, to: Position, now: datetime | None) -> Op[None]:
        place = {"epoch": to.epoch, "n": to.n, "seq": to.seq, "era": to.era, "by_rows": int(to.by_rows)}
        rows = {"snapshot": to.snapshot, "arrived": to.arrived}
        yield self.sql["replica.move"].bind(kept=self.exact(kept), now=self.to_time(now), **place, **rows)


def open_replica_store(dialect: str, schema: str | None) -> ReplicaStore:
    if dialect not in DIALECTS:
        raise ConfigError(f"a replica cannot be in {dialect!r}; it can be in {', '.join(DIALECTS)}")
    return ReplicaStore(DIALECTS[dialect], ReplicaTables(TABLE, schema))
