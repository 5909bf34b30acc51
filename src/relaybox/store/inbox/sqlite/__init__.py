"""An inbox on SQLite."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from ....event import Event
from ....op import Op
from ...dialect import SQLITE
from ...event_rows import as_json, in_one_blob
from .. import InboxStore
from ..order import place_of


class SqliteInboxStore(InboxStore):
    _dialect = SQLITE

    def insert_new(self, events: Sequence[Event], sender: str, now: datetime | None) -> Op[set[str]]:
        at = self.to_time(now)
        seen = yield self.sql["inbox.accept.seen"].bind(
            event_ids=as_json([event.id for event in events]), sender=sender, now=at
        )
        new = {row[0] for row in seen.rows}
        fresh = [event for event in events if event.id in new]
        if not fresh:
            return new
        inserted = yield self.sql["inbox.accept.message"].bind(
            **in_one_blob(fresh, self.to_time), sender=sender, now=at
        )
        seqs = sorted(row[0] for row in inserted.rows)
        pending = [(seq, *place_of(event)) for seq, event in zip(seqs, fresh, strict=True)]
        yield self.sql["inbox.accept.pending"].bind(rows=as_json(pending), now=at)
        yield from self.journal_accepted(fresh)
        return new
