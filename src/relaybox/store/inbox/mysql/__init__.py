"""An inbox on MySQL and MariaDB."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from ....event import Event
from ....ids import new_token
from ....op import Op
from ...dialect import MYSQL
from ...event_rows import as_json, fields
from .. import InboxStore
from ..order import place_of


class MysqlInboxStore(InboxStore):
    _dialect = MYSQL

    def insert_new(self, events: Sequence[Event], sender: str, now: datetime | None) -> Op[set[str]]:
        at = self.to_time(now)
        who = self.exact(sender)
        new = yield from self._see({event.id for event in events}, sender, at)
        if fresh := [event for event in events if event.id in new]:
            rows = [{**fields(event, self.to_time), "payload": b64encode(event.body).decode()} for event in fresh]
            yield self.sql["inbox.accept.message"].bind(rows=as_json(rows), sender=who, now=at)
            ids = as_json([event.id for event in fresh])
            numbers: dict[str, int] = dict(
                (yield self.sql["inbox.accept.numbers"].bind(event_ids=ids, sender=who)).rows
            )
            pending = [(numbers[event.id], *place_of(event)) for event in fresh]
            yield self.sql["inbox.accept.pending"].bind(rows=as_json(pending), now=at)
            yield from self.journal_accepted(fresh)
        return new

    def _see(self, ids: set[str], sender: str, at: Any) -> Op[set[str]]:
        """There is no RETURNING: unless all or none were new, the token tells which are."""
        values = {"event_ids": as_json(sorted(ids)), "sender": self.exact(sender), "token": new_token()}
        seen = yield self.sql["inbox.accept.seen"].bind(**values, now=at)
        if seen.count in (0, len(ids)):
            return ids if seen.count else set()
        mine = yield self.sql["inbox.accept.new"].bind(**values)
        return {row[0] for row in mine.rows}

    # -- adopted tables ---------------------------------------------------------------------------

    def enter(self, name: str, **values: Any) -> Op[Sequence[int]]:
        found = yield self.sql[name].bind(**values)
        if not found.rows:
            return []
        ids, token = as_json([row[0] for row in found.rows]), new_token()
        yield self.sql["inbox.adopt.enter"].bind(ids=ids, token=token, now=values["now"])
        return [row[0] for row in (yield self.sql["inbox.adopt.entered"].bind(token=token)).rows]

    def see(self, ids: Sequence[str], sender: str, now: datetime | None) -> Op[set[str]]:
        return self._see(set(ids), sender, self.to_time(now))
