"""MySQL 8.0 or newer and MariaDB 10.6 or newer: the core outbox.

Claims expect READ COMMITTED, which relaybox sets on its own connections: then a locking scan keeps only the
rows it returns. A custom schema is a database of the same server.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, ClassVar

from ...errors import StoreBusy, StoreError
from ...event import Event
from ...op import Op
from ..keys import KeyedOutboxStore, WaitingKey
from ..spi import Capabilities, Claim, Claimed, KeyChoice, KeyLease, Migration
from ..steps import SteppedOutboxStore, as_json

_CLOCK = "coalesce(CAST(:now AS datetime(6)), utc_timestamp(6))"
_TEXT = "CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"


class MysqlStore(SteppedOutboxStore, KeyedOutboxStore):
    """JSON_TABLE comes first in every join, and rows are found by an index that is named (STRAIGHT_JOIN, FORCE INDEX):
    else a small table may be read, and locked, as a whole, and a settle waits for a writer who has not committed."""

    dialect = "mysql"
    quote = "`"
    capabilities = Capabilities(
        single_statement=False, listen=False, copy=False, skip_locked=True, transactional_ddl=False, locked_keys=True
    )
    words: ClassVar[Mapping[str, str]] = {
        "clock": _CLOCK,
        "ready": f"(p.due <= {_CLOCK} OR (p.since IS NOT NULL AND p.token IS NULL))",
        "text": _TEXT,
        "database": "coalesce(nullif('{namespace}', ''), database())",
        # In a session of a narrower character set the server would unescape the text into that one, and lose it.
        "rows": "CONVERT(:rows USING utf8mb4)",
        "seqs": "JSON_TABLE(:seqs, '$[*]' COLUMNS (seq bigint PATH '$')) s",
        "held": "JSON_TABLE(:held, '$[*]' COLUMNS (seq bigint PATH '$[0]', token bigint PATH '$[1]')) s",
        "keys": "JSON_TABLE(:keys, '$[*]' COLUMNS (key_hash bigint PATH '$')) k",
        "ids": "JSON_TABLE(CONVERT(:event_ids USING utf8mb4), '$[*]' COLUMNS ("
        f"event_id varchar(36) {_TEXT} PATH '$')) s",
        # GET_LOCK takes 64 characters, and a lock belongs to the server, not to a database.
        "lock": "concat('relaybox.migrate.', md5(concat(coalesce(nullif('{namespace}', ''), database(), ''),"
        " '.{event_name}')))",
    }

    def to_time(self, value: datetime | None) -> str | None:
        """Text, because the client libraries disagree on aware datetimes and on microseconds."""
        if value is None:
            return None
        return value.astimezone(UTC).replace(tzinfo=None).isoformat(" ", "microseconds")

    def from_time(self, value: Any) -> datetime:
        return value.replace(tzinfo=UTC)  # type: ignore[no-any-return]

    def insert_events(self, events: Sequence[Event], now: datetime | None, *, spelled: bool = False) -> Op[list[int]]:
        """Payloads travel as base64: byte-exact whatever the connection's character set and quoting.

        The numbers are read back by id: there is no RETURNING, and LAST_INSERT_ID() + n is wrong where
        auto-increment steps are interleaved.
        """
        rows = [{**self.event_fields(e, spelled=spelled), "payload": b64encode(e.body).decode()} for e in events]
        yield self.sql["outbox.write.many"].bind(rows=as_json(rows), now=self.to_time(now))
        ids = [event.id for event in events]
        result = yield self.sql["outbox.write.numbers"].bind(event_ids=as_json(ids))
        number: dict[str, int] = dict(result.rows)
        return [number[event_id] for event_id in ids]

    # -- keys -------------------------------------------------------------------------------------

    def lease(
        self, claim: Claim, keys: Sequence[WaitingKey], limit: int, choice: KeyChoice, now: datetime | None
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

    def claim_leased(self, claim: Claim, keys: Sequence[int], limit: int, now: datetime | None) -> Op[list[Claimed]]:
        picked = yield from self.pick(keys, limit, now)
        claimed = yield from self.take(claim, picked.rows, now)
        used = {row.key_hash for row in claimed}
        yield from self.free([KeyLease(key, claim.token) for key in keys if key not in used])
        return claimed

    def free(self, leases: Sequence[KeyLease]) -> Op[None]:
        if leases:
            yield self.sql["outbox.lease.free"].bind(free=as_json(sorted(leases)))

    def take_over(self, survivor: int | None, now: datetime | None) -> Op[tuple[int, int]]:
        freed = yield from super().take_over(survivor, now)
        stale = yield self.sql["outbox.lease.sweep"].bind()
        yield from self.free([KeyLease(*row) for row in stale.rows])
        return freed

    # -- schema -----------------------------------------------------------------------------------

    def migrate(self) -> Op[list[Migration]]:
        """DDL commits by itself, so every statement may be run again and a session lock guards the whole."""
        try:
            done = yield from super().migrate()
        except GeneratorExit:
            raise
        except BaseException:
            with suppress(StoreError):
                yield self.sql["schema.unlock"].bind()
            raise
        yield self.sql["schema.unlock"].bind()
        return done

    def lock_schema(self) -> Op[None]:
        got = yield self.sql["schema.lock"].bind()
        if got.rows[0][0] != 1:
            raise StoreBusy(f"another process is migrating {self.tables.event!r} since 30 seconds; try again")

    def expected_indexes(self) -> set[str]:
        return {name for migration in self.migrations() for name in re.findall(r"\bKEY (\w+) \(", migration.sql)}
