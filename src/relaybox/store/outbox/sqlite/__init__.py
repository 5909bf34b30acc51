"""SQLite 3.35 or newer: the embedded default. One writer at a time, so BEGIN IMMEDIATE is the only lock."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from ....event import Event
from ....op import Op, Statement
from ...dialect import SQLITE
from ...event_rows import columns, in_one_blob
from ..stepped import SteppedOutboxStore


class SqliteStore(SteppedOutboxStore):
    _dialect = SQLITE

    def insert_events(self, events: Sequence[Event], now: datetime | None, *, spelled: bool = False) -> Op[list[int]]:
        at = self.to_time(now)
        if len(events) == 1:
            values = columns(events[0], self.to_time, spelled=spelled)
            values["now"] = at
            result = yield Statement(self.sql["outbox.write.one"], values)
            return [result.rows[0][0]]
        result = yield self.sql["outbox.write.many"].bind(**in_one_blob(events, self.to_time, spelled=spelled), now=at)
        return sorted(row[0] for row in result.rows)
