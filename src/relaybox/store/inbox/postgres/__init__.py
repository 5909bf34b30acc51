"""An inbox on PostgreSQL: accepting is one statement, and so is a claim where nothing decides but time."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

from ....errors import StoreError
from ....event import Event
from ....ids import key_hash
from ....op import Op, Statement
from ...claims import Claim, HeldRow
from ...dialect import POSTGRES
from ...event_rows import arrays, columns, lane_key
from .. import InboxStore
from ..accept import told
from ..claim import SUSPECT, Arrived, Share
from ..order import UNRANKED, Order, Priority, position_of, priority_of
from ..settle import GONE

PATIENCE = "100ms"  # for another transaction that has inserted the same id


class PostgresInboxStore(InboxStore):
    _dialect = POSTGRES

    def their_ids(self, ids: Sequence[Any]) -> Any:
        return [str(one) for one in ids]

    def insert_new(self, events: Sequence[Event], sender: str, now: datetime | None) -> Op[set[str]]:
        if len(events) == 1:
            return {events[0].id} if (yield from self.accept_one(events[0], sender, now))[0] else set()
        return {events[n].id for n in (yield from self._insert(events, [sender] * len(events), now))}

    def _insert(
        self,
        events: Sequence[Event],
        senders: Sequence[str],
        now: datetime | None,
        patience: str | None = None,
    ) -> Op[list[int]]:
        """The places in the list of those that were new."""
        result = yield self.sql["inbox.accept"].bind(
            **arrays(events),
            key_hashes=[key_hash(lane_key(event)) for event in events],
            positions=[position_of(event) for event in events],
            priorities=[priority_of(event) for event in events],
            senders=senders,
            patience=patience,
            now=now,
        )
        return [row[0] - 1 for row in result.rows]

    def accept_together(self, events: Sequence[Event], senders: Sequence[str], now: datetime | None) -> Op[list[bool]]:
        distinct: dict[tuple[str, str], Event] = {}
        for event, sender in zip(events, senders, strict=True):
            distinct.setdefault((event.id, sender), event)
        new = yield from self._insert(list(distinct.values()), [sender for _, sender in distinct], now, PATIENCE)
        keys = list(distinct)
        return told([(event.id, sender) for event, sender in zip(events, senders, strict=True)], {keys[n] for n in new})

    def accept_one(self, event: Event, sender: str, now: datetime | None) -> Op[list[bool]]:
        plain = event.headers_text is None
        params = columns(event, self.to_time) | {
            "sender": sender,
            "now": now,
            "key_hash": key_hash(lane_key(event)),
            "position": None if plain else position_of(event),
            "priority": UNRANKED if plain else priority_of(event),
        }
        del params["deliver_at"]  # which an inbox has not
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
        full: Collection[int] = (),
    ) -> Op[tuple[list[Arrived], bool]]:
        if not self.claims_at_once(order, priority):
            claimed = super().claim_messages(claim, limit, now, share=share, order=order, priority=priority, full=full)
            return (yield from claimed)
        result = yield self.sql["inbox.claim"].bind(
            token=claim.token,
            owner=claim.owner,
            lease=claim.lease.total_seconds(),
            limit=limit,
            worker=share.worker,
            workers=share.workers,
            suspect=SUSPECT,
            room=claim.room,
            now=now,
        )
        return self.arrived(result.rows), bool(result.rows)

    @property
    def last_word(self) -> Statement | None:
        return self.sql["inbox.settle.still"].bind()

    def still_marked(self, held: HeldRow, event: Event) -> Op[bool]:
        try:
            yield self.sql["inbox.settle.still"].bind()
        except StoreError as error:
            if GONE in str(error):
                return False
            raise
        return True

    def unpend(self, held: Sequence[HeldRow], *, counted: bool) -> Op[None]:
        """The mark has done it."""
        yield from ()

    def fold(self, limit: int) -> Op[int]:
        return int((yield self.sql["inbox.journal.fold"].bind(limit=limit)).rows[0][0])
