"""MySQL 8.0 or newer and MariaDB 10.6 or newer: the core outbox.

Claims expect READ COMMITTED, which relaybox sets on its own connections: then a locking scan keeps only the
rows it returns. A custom schema is a database of the same server.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Collection, Sequence
from datetime import datetime

from ....event import Event
from ....op import Op
from ...claims import Claim
from ...dialect import MYSQL
from ...event_rows import as_json, fields
from ..keys import KeyedOutboxStore, WaitingKey
from ..stepped import SteppedOutboxStore
from ..values import ClaimedRow, KeyChoice, KeyLease


class MysqlStore(SteppedOutboxStore, KeyedOutboxStore):
    """JSON_TABLE comes first in every join, and rows are found by an index that is named (STRAIGHT_JOIN, FORCE INDEX):
    else a small table may be read, and locked, as a whole, and a settle waits for a writer who has not committed."""

    _dialect = MYSQL

    def insert_events(self, events: Sequence[Event], now: datetime | None, *, spelled: bool = False) -> Op[list[int]]:
        """Payloads travel as base64: byte-exact whatever the connection's character set and quoting.

        The numbers are read back by id: there is no RETURNING, and LAST_INSERT_ID() + n is wrong where
        auto-increment steps are interleaved.
        """
        rows = [{**fields(e, self.to_time, spelled=spelled), "payload": b64encode(e.body).decode()} for e in events]
        yield self.sql["outbox.write.many"].bind(rows=as_json(rows), now=self.to_time(now))
        ids = [event.id for event in events]
        result = yield self.sql["outbox.write.numbers"].bind(event_ids=as_json(ids))
        number: dict[str, int] = dict(result.rows)
        return [number[event_id] for event_id in ids]

    # -- keys -------------------------------------------------------------------------------------

    def lease(
        self,
        claim: Claim,
        keys: Sequence[WaitingKey],
        limit: int,
        choice: KeyChoice,
        refused: Collection[int],
        now: datetime | None,
    ) -> Op[Sequence[int]]:
        at = self.to_time(now)
        heads = as_json([key.head for key in keys])
        locked = yield self.sql["outbox.keys.rows"].bind(seqs=heads, limit=limit, now=at)
        if not locked.rows:
            return []
        chosen = self.numbers([row[0] for row in locked.rows])
        expired = yield self.sql["outbox.lease.expired"].bind(keys=chosen, now=at)
        if expired.rows:
            yield self.sql["outbox.lease.expire"].bind(held=as_json(sorted(expired.rows)), now=at)
        stale = yield self.sql["outbox.lease.stale"].bind(keys=chosen)
        yield from self.free([KeyLease(*row) for row in stale.rows])
        yield self.sql["outbox.lease.take"].bind(keys=chosen, token=claim.token)
        mine = yield self.sql["outbox.lease.mine"].bind(keys=chosen, token=claim.token)
        return sorted(row[0] for row in mine.rows)

    def claim_leased(self, claim: Claim, keys: Sequence[int], limit: int, now: datetime | None) -> Op[list[ClaimedRow]]:
        picked = yield from self.pick(keys, limit, now)
        claimed = yield from self.take(claim, picked.rows, now)
        used = {row.key_hash for row in claimed}
        yield from self.free([KeyLease(key, claim.token) for key in keys if key not in used])
        return claimed

    def free(self, leases: Sequence[KeyLease]) -> Op[None]:
        if leases:
            yield self.sql["outbox.lease.free"].bind(free=as_json(sorted(leases)))

    def take_over(self, me: int | None, now: datetime | None, *, alone: bool = False) -> Op[tuple[int, int]]:
        freed = yield from super().take_over(me, now, alone=alone)
        stale = yield self.sql["outbox.lease.sweep"].bind()
        yield from self.free([KeyLease(*row) for row in stale.rows])
        return freed
