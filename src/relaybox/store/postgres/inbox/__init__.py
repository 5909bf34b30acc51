"""An inbox on PostgreSQL: accepting is one statement."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from ....event import Event
from ....ids import key_hash
from ....op import Op
from ...inbox import SqlInboxStore
from ...sql_store import lane_key
from .. import PostgresStore


class PostgresInboxStore(SqlInboxStore, PostgresStore):
    def insert_new(self, events: Sequence[Event], source: str | None, now: datetime | None) -> Op[set[str]]:
        hashes = [key_hash(lane_key(event)) for event in events]
        result = yield self.sql["inbox.accept"].bind(**self._arrays(events), key_hashes=hashes, source=source, now=now)
        return {row[0] for row in result.rows}
