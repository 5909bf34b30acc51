"""An inbox on SQLite."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import ClassVar

from ....event import Event
from ....ids import key_hash
from ....op import Op
from ...inbox import InboxStore
from ...inbox_order import position_of, priority_of
from ...sql_store import lane_key
from ...steps import as_json
from .. import SqliteStore


class SqliteInboxStore(InboxStore, SqliteStore):
    never: ClassVar[str] = "9000000000000000000"

    def insert_new(self, events: Sequence[Event], source: str | None, now: datetime | None) -> Op[set[str]]:
        at = self.to_time(now)
        seen = yield self.sql["inbox.accept.seen"].bind(event_ids=as_json([event.id for event in events]), now=at)
        new = {row[0] for row in seen.rows}
        fresh = [event for event in events if event.id in new]
        if not fresh:
            return new
        rows, start = [], 1
        for event in fresh:
            rows.append({**self.event_fields(event), "start": start, "size": len(event.body)})
            start += len(event.body)
        inserted = yield self.sql["inbox.accept.message"].bind(
            rows=as_json(rows), payloads=b"".join(event.body for event in fresh), source=source, now=at
        )
        seqs = sorted(row[0] for row in inserted.rows)
        pending = [
            (seq, key_hash(lane_key(event)), position_of(event), priority_of(event))
            for seq, event in zip(seqs, fresh, strict=True)
        ]
        yield self.sql["inbox.accept.pending"].bind(rows=as_json(pending), now=at)
        yield from self.journal_accepted(fresh)
        return new
