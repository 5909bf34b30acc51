"""Events as rows, and rows as events: the columns, batches of them, and rows that somebody else has written."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from ..codec import JSON
from ..event import GLOBAL, Event

# The order in which every dialect returns an event row; `Event.stored` reads it by position.
EVENT_COLUMNS = (
    "seq",
    "event_id",
    "event_type",
    "aggregate_type",
    "aggregate_id",
    "tenant_id",
    "content_type",
    "payload",
    "headers",
    "occurred_at",
    "deliver_at",
    "created_at",
)
# One statement carries at most this much; servers limit a packet (16 MB by default on MariaDB).
CHUNK_ROWS = 1_000
CHUNK_BYTES = 4_000_000
ERROR_LIMIT = 4_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FOREVER = 1e12  # seconds


def cut(error: str) -> str:
    """Error text as stored: bounded, and without the NUL that no text column takes."""
    return error[:ERROR_LIMIT].replace("\x00", "�").encode(errors="replace").decode()


def seconds(value: Any) -> timedelta:
    """A time between two others as a database answers it. One of them may be what no writer of ours has written: then
    it is as long as a timedelta can say, or nothing."""
    try:
        return timedelta(seconds=min(max(float(value or 0), -FOREVER), FOREVER))
    except (TypeError, ValueError):  # not a number
        return timedelta()


def lane_key(event: Event) -> str:
    """What the shard is computed from; an event without a key is ordered with nothing, so its id will do."""
    return (event.id or "") if event.key is None else event.key


def as_json(value: object) -> str:
    """ASCII only, so that it survives a caller's connection of any character set."""
    return json.dumps(value, separators=(",", ":"))


# -- written ----------------------------------------------------------------------------------------


def columns(event: Event, to_time: Callable[[datetime | None], Any], *, spelled: bool = False) -> dict[str, Any]:
    """`spelled`: no NULL for the usual values, as other readers than relaybox do not know what it stands for."""
    return {
        "event_id": event.id,
        "event_type": event.type,
        "aggregate_type": event.aggregate_type if spelled or event.aggregate_type != GLOBAL else None,
        "aggregate_id": event.key,
        "tenant_id": event.tenant,
        "content_type": event.content_type if spelled or event.content_type != JSON else None,
        "payload": event.body,
        "headers": event.headers_text,
        "occurred_at": to_time(event.occurred_at),
        "deliver_at": to_time(event.deliver_at),
    }


def fields(event: Event, to_time: Callable[[datetime | None], Any], *, spelled: bool = False) -> dict[str, Any]:
    """The columns for a JSON batch, without the payload and without what is NULL."""
    found = columns(event, to_time, spelled=spelled)
    del found["payload"]
    return {name: value for name, value in found.items() if value is not None}


def in_one_blob(
    events: Sequence[Event], to_time: Callable[[datetime | None], Any], *, spelled: bool = False
) -> dict[str, Any]:
    """A batch carries its payloads as one BLOB from which each row cuts its part: nothing is encoded."""
    rows, start = [], 1
    for event in events:
        rows.append({**fields(event, to_time, spelled=spelled), "start": start, "size": len(event.body)})
        start += len(event.body)
    return {"rows": as_json(rows), "payloads": b"".join(event.body for event in events)}


def by_column(events: Sequence[Event]) -> dict[str, list[Any]]:
    """Every column of many events, for arrays and COPY."""
    return {
        "event_id": [e.id for e in events],
        "event_type": [e.type for e in events],
        "aggregate_type": [None if e.aggregate_type == GLOBAL else e.aggregate_type for e in events],
        "aggregate_id": [e.key for e in events],
        "tenant_id": [e.tenant for e in events],
        "content_type": [None if e.content_type == JSON else e.content_type for e in events],
        "payload": [e.body for e in events],
        "headers": [e.headers_text for e in events],
        "occurred_at": [e.occurred_at for e in events],
        "deliver_at": [e.deliver_at for e in events],
    }


def arrays(events: Sequence[Event]) -> dict[str, list[Any]]:
    """`by_column` as parameters of an unnest: event_ids, event_types, … payloads, headers."""
    plural = {"payload": "payloads", "headers": "headers"}
    return {plural.get(name, f"{name}s"): values for name, values in by_column(events).items()}


def chunks(events: Sequence[Event]) -> Iterator[Sequence[Event]]:
    start = size = 0
    for i, event in enumerate(events):
        if i > start and (i - start >= CHUNK_ROWS or size + len(event.body) > CHUNK_BYTES):
            yield events[start:i]
            start, size = i, 0
        size += len(event.body)
    if start < len(events):
        yield events[start:]


def in_one_statement(events: Sequence[Event]) -> bool:
    return len(next(chunks(events), ())) == len(events)


# -- read -------------------------------------------------------------------------------------------

_TEXTS = {place: name for place, name in enumerate(EVENT_COLUMNS[:9]) if name not in ("seq", "payload")}
USUAL: set[tuple[type, ...]] = set()  # types of the columns between number and times that need no look


def checked(row: Sequence[Any]) -> Sequence[Any]:
    """A row with text and bytes where they belong, or ValueError with the column in which there is something else."""
    values = list(row)
    for place, name in _TEXTS.items():
        if isinstance(row[place], bytes):
            try:
                values[place] = row[place].decode()
            except UnicodeDecodeError:
                raise ValueError(f"its column {name!r} is not UTF-8 text") from None
        elif not isinstance(row[place], str | None):
            raise ValueError(f"its column {name!r} is not text")
    if isinstance(row[7], str):
        values[7] = row[7].encode()
    elif not isinstance(row[7], bytes | None):
        raise ValueError("its column 'payload' is not bytes")
    if None in values[1:3] and values[7] is not None:
        raise ValueError("a column that every event has is NULL")
    if values == list(row):
        USUAL.add((*map(type, row[1:9]),))
    return values


class Unreadable(tuple[Any, ...]):
    """The row of an event that cannot be read. One whose payload was only not asked for is no such row."""

    __slots__ = ()


def unreadable(row: Sequence[Any], reason: str) -> Unreadable:
    """No body, and the reason in place of headers: see `Event.stored`. Of the rest what is text."""
    texts = [as_text(value) for value in row[1:7]]
    return Unreadable((row[0], texts[0] or "?", texts[1] or "?", *texts[2:], None, reason, EPOCH, None, EPOCH))


def as_text(value: object) -> str | None:
    """None: it is none."""
    try:
        return value.decode() if isinstance(value, bytes) else value if isinstance(value, str) else None
    except UnicodeDecodeError:
        return None


def legible(value: object) -> str | None:
    """A text of a row that may be anybody's, so that people can read it."""
    return value.decode(errors="replace") if isinstance(value, bytes) else None if value is None else str(value)
