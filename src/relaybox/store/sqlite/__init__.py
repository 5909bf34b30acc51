"""SQLite 3.35 or newer: the embedded default. One writer at a time, so BEGIN IMMEDIATE is the only lock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, ClassVar

from ...codec import JSON_CODEC, Codec
from ...errors import ConfigError
from ...event import Event
from ...op import Op, Statement
from ..names import Tables
from ..spi import EVENT_COLUMNS, Capabilities
from ..steps import EPOCH, SteppedOutboxStore, as_json

_TICK = timedelta(microseconds=1)
_CLOCK = "coalesce(:now, CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS integer) * 1000)"

# The columns of an event as they lie there, where the client library cannot read them: a type is only a wish here.
_RAW = ", ".join(
    [f"CAST(e.{name} AS blob)" for name in EVENT_COLUMNS[1:9]]
    + [f"CASE WHEN typeof(e.{name}) = 'text' THEN x'' ELSE e.{name} END" for name in EVENT_COLUMNS[9:12]]
)


class SqliteStore(SteppedOutboxStore):
    """Times are integers, microseconds since 1970 UTC: they sort, and no text format can be got wrong.

    SQLite's clock ticks in milliseconds; julianday() is a float whose error is far below one, so rounding
    gives the exact tick, on every version.
    """

    dialect = "sqlite"
    capabilities = Capabilities(
        single_statement=False, listen=False, copy=False, skip_locked=False, transactional_ddl=True
    )
    words: ClassVar[Mapping[str, str]] = {
        "clock": _CLOCK,
        "lease": "CAST(round(:lease * 1000000.0) AS integer)",
        "ttl": "CAST(round(:ttl * 1000000.0) AS integer)",
        "ready": f"(p.due <= {_CLOCK} OR (p.since IS NOT NULL AND p.token IS NULL))",
        "raw": _RAW,
        "seqs": "(SELECT value FROM json_each(:seqs))",
        "held": "(SELECT p.seq FROM json_each(:held) h CROSS JOIN {pending} p "
        "ON p.seq = json_extract(h.value, '$[0]') AND p.token = json_extract(h.value, '$[1]'))",
    }

    def __init__(self, tables: Tables | None = None, codec: Codec = JSON_CODEC) -> None:
        if tables is not None and tables.schema is not None:
            raise ConfigError(
                f"SQLite has no schemas, got schema {tables.schema!r}; choose another table name or another file"
            )
        super().__init__(tables, codec)

    def to_time(self, value: datetime | None) -> int | None:
        return None if value is None else (value - EPOCH) // _TICK

    def from_time(self, value: Any) -> datetime:
        return EPOCH + timedelta(microseconds=value)

    def insert_events(self, events: Sequence[Event], now: datetime | None, *, spelled: bool = False) -> Op[list[int]]:
        """A batch carries its payloads as one BLOB from which each row cuts its part: nothing is encoded."""
        if len(events) == 1:
            result = yield Statement(self.sql["outbox.write.one"], self.columns(events[0], now, spelled=spelled))
            return [result.rows[0][0]]
        rows = []
        start = 1
        for event in events:
            size = len(event.body)
            rows.append({**self.event_fields(event, spelled=spelled), "start": start, "size": size})
            start += size
        result = yield self.sql["outbox.write.many"].bind(
            rows=as_json(rows), payloads=b"".join(event.body for event in events), now=self.to_time(now)
        )
        return sorted(row[0] for row in result.rows)
