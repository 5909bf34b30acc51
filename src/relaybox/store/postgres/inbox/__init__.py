"""An inbox on PostgreSQL: accepting is one statement."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, ClassVar

from ....event import Event
from ....ids import key_hash
from ....op import Op
from ...inbox import InboxStore
from ...inbox_order import position_of, priority_of
from ...spi import Held
from ...sql_store import lane_key
from .. import PostgresStore, event_arrays


class PostgresInboxStore(InboxStore, PostgresStore):
    never: ClassVar[str] = "'infinity'::timestamptz"

    def table(self, rows: Sequence[Sequence[Any]], *names: str) -> dict[str, Any]:
        return dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))

    def event_ids(self, ids: Sequence[str]) -> Any:
        return list(ids)

    def insert_new(self, events: Sequence[Event], source: str | None, now: datetime | None) -> Op[set[str]]:
        result = yield self.sql["inbox.accept"].bind(
            **event_arrays(events),
            key_hashes=[key_hash(lane_key(event)) for event in events],
            positions=[position_of(event) for event in events],
            priorities=[priority_of(event) for event in events],
            source=source,
            now=now,
        )
        return {row[0] for row in result.rows}

    def unpend(self, held: Sequence[Held]) -> Op[None]:
        """The mark has done it."""
        yield from ()
