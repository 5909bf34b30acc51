"""An inbox on PostgreSQL: accepting is one statement, and so is a claim where nothing decides but time."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, ClassVar

from ....event import Event
from ....ids import key_hash
from ....op import Op, Statement
from ...inbox import InboxStore
from ...inbox_claim import SUSPECT, Arrived, Share
from ...inbox_order import Order, Priority, position_of, priority_of
from ...spi import Claim, Held
from ...sql_store import lane_key
from .. import PostgresStore, event_arrays


class PostgresInboxStore(InboxStore, PostgresStore):
    never: ClassVar[str] = "'infinity'::timestamptz"

    def table(self, rows: Sequence[Sequence[Any]], *names: str) -> dict[str, Any]:
        return dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))

    def event_ids(self, ids: Sequence[str]) -> Any:
        return list(ids)

    def their_ids(self, ids: Sequence[Any]) -> Any:
        return [str(one) for one in ids]

    def insert_new(self, events: Sequence[Event], source: str | None, now: datetime | None) -> Op[set[str]]:
        if len(events) == 1:
            return {events[0].id} if (yield from self.accept_one(events[0], source, now))[0] else set()
        result = yield self.sql["inbox.accept"].bind(
            **event_arrays(events),
            key_hashes=[key_hash(lane_key(event)) for event in events],
            positions=[position_of(event) for event in events],
            priorities=[priority_of(event) for event in events],
            source=source,
            now=now,
        )
        return {row[0] for row in result.rows}

    def accept_one(self, event: Event, source: str | None, now: datetime | None) -> Op[list[bool]]:
        params = self.columns(event, now)
        params["source"] = source
        params["key_hash"] = key_hash(lane_key(event))
        params["position"] = position_of(event)
        params["priority"] = priority_of(event)
        return [(yield Statement(self.sql["inbox.accept.one"], params)).count > 0]

    def claim_messages(
        self,
        claim: Claim,
        limit: int,
        now: datetime | None,
        *,
        share: Share,
        order: Order | None = None,
        priority: Priority | None = None,
    ) -> Op[tuple[list[Arrived], bool]]:
        if not self.claims_at_once(order, priority):
            return (yield from super().claim_messages(claim, limit, now, share=share, order=order, priority=priority))
        result = yield self.sql["inbox.claim"].bind(
            **self._claim(claim, limit, now), worker=share.worker, workers=share.workers, suspect=SUSPECT
        )
        return self.arrived(result.rows), bool(result.rows)

    def unpend(self, held: Sequence[Held]) -> Op[None]:
        """The mark has done it."""
        yield from ()

    def fold(self, limit: int) -> Op[int]:
        return int((yield self.sql["inbox.journal.fold"].bind(limit=limit)).rows[0][0])
