"""What a webhook's request becomes: one event, or those of a batch.

    application/cloudevents-batch+json    a JSON array of CloudEvents
    anything else                         as parse.py reads a message; the type of a stranger's JSON is its `type`

A signed request has the id it was signed under, whatever else it says: who repeats a genuine request with other headers
repeats a known one. Only the members of a batch have ids of their own.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from ..brokers.json_members import elements
from ..brokers.parse import PLAIN, STRUCTURED, Reading, folded, parse
from ..brokers.spi import Incoming
from ..errors import ConfigError, InvalidEvent
from ..event import PLACED, Event
from .webhook_request import Refused

CHANNEL = "webhook"
MAX_BATCH = 1_000  # events of one request: they are stored in one transaction
BATCH = STRUCTURED + "-batch"
_LOOK = json.JSONDecoder(parse_int=len, parse_float=len)  # only looks: numbers may be of any length
# With ours. Nothing else is kept: among the headers of a request are cookies, tokens and the marks of proxies.
USUAL = frozenset(["traceparent", "tracestate", "correlation-id", "sequence", "priority"])


class Requests:
    def __init__(self, reading: Reading, keep: Sequence[str], *, signed: bool) -> None:
        if signed and reading.id_header is not None:
            raise ConfigError(f"the header {reading.id_header!r} is not signed; the id of a signed webhook is its own")
        named = (*keep, reading.type_header or "", reading.id_header or "", reading.key_header or "")
        self._keep = PLAIN | USUAL | {name.lower() for name in named}
        self._reading = reading
        self._signed = signed

    def events(self, headers: Mapping[str, str], body: bytes) -> list[Event]:
        if headers.get("content-encoding", "identity").lower() != "identity":
            raise Refused(415, "a compressed body")
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind == BATCH + "+json":
            parts = elements(body)
            if len(parts) > MAX_BATCH:
                raise Refused(413, f"a batch of {len(parts):,} events, the limit is {MAX_BATCH:,}")
            return [parse(self._incoming({}, part, STRUCTURED + "+json", "")) for part in parts]
        if kind.startswith(STRUCTURED) and kind != STRUCTURED + "+json":
            raise Refused(415, f"CloudEvents as {kind[:60]!r}")
        id = headers.get("webhook-id", "")
        message = self._incoming(headers, body, headers.get("content-type"), id)
        ours = {"event-id", "event-type"} <= headers.keys()
        foreign = not (kind.startswith(STRUCTURED) or "ce-specversion" in headers or ours)
        event = parse(message, self._reading_of(kind, body) if foreign else None)
        if self._signed:
            return [_under(event, folded(id))]
        if event.id.startswith(PLACED):
            raise InvalidEvent("a webhook needs an id: webhook-id, or that of a CloudEvent")
        return [event]

    def _incoming(self, headers: Mapping[str, str], body: bytes, content_type: str | None, id: str) -> Incoming:
        kept = {name: value for name, value in headers.items() if name in self._keep or name.startswith("ce-")}
        if id and folded(id) != id:
            kept["webhook-id"] = id
        sent_at = datetime.fromtimestamp(int(headers["webhook-timestamp"]), UTC) if self._signed and id else None
        return Incoming(
            channel=CHANNEL,
            place="",
            id=folded(id) if id else None,
            body=body,
            headers=kept,
            content_type=content_type,
            sent_at=sent_at,
            percent_encoded=True,
        )

    def _reading_of(self, kind: str, body: bytes) -> Reading:
        if kind != "application/json" and not kind.endswith("+json"):
            return self._reading
        try:
            value: Any = _LOOK.decode(body.decode())
        except (ValueError, RecursionError):
            return self._reading
        named = value.get("type") if isinstance(value, dict) else None
        return dataclasses.replace(self._reading, type=named) if isinstance(named, str) and named else self._reading


def _under(event: Event, id: str) -> Event:
    """The same event with this id; what it called itself becomes a header."""
    if event.id == id:
        return event
    own = {} if "ce-id" in event.headers else {"event-id": event.id}
    return Event(
        event.type,
        payload_bytes=event.body,
        id=id,
        key=event.key,
        aggregate_type=event.aggregate_type,
        tenant=event.tenant,
        occurred_at=event.occurred_at,
        content_type=event.content_type,
        headers={**event.headers, **own},
    )
