"""How a message becomes an event: as relaybox's sinks send it, as a CloudEvent 1.0, or as anybody else sends it.

    application/cloudevents+json      structured CloudEvent: the body is `data` byte for byte, or `data_base64` decoded
    ce_specversion, ce-, cloudEvents: binary CloudEvent: the body as it came
    event_id and event_type           plain, as `formats.py` writes it
    anything else                     the id is the broker's field for it or the header that `Reading` names, or else
                                      `at:` and the place where it was read

Names are compared as HTTP has it, without case, and with hyphens for underscores. Whatever has no place of its own in
an event becomes a header: extension attributes by their name, `source` and the like as `ce-source`.

An inbox knows messages by their ids and by who sent them, which its receiver says and no message can. So an id that is
too long for it is replaced by its digest, and so is that of a CloudEvent that need not be unique beyond its source:
neither a UUID or ULID, nor of a relaybox that says its aggregate type. The original is then a header. An id that looks
like a place is refused: it would make another message vanish.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any, Final
from urllib.parse import unquote

from ..clock import utc_now
from ..codec import BYTES, JSON, headers_to_text
from ..errors import InvalidEvent
from ..event import GLOBAL, LIMITS, MAX_BROKEN, MAX_HEADERS, PLACED, Event, placed
from .formats import spelled
from .json_members import Member, members
from .spi import Incoming

MALFORMED: Final = "relaybox.malformed"  # the type of a message that could not be read
STRUCTURED: Final = "application/cloudevents"
PREFIXES: Final = ("ce-", "cloudevents:", "cloudevents-")
PLAIN: Final = frozenset(["event-id", "event-type", "aggregate-type", "aggregate-id", "created-at", "tenant"])
_CONTEXT = frozenset(
    ["id", "type", "time", "specversion", "aggregatetype", "tenant", "partitionkey", "datacontenttype"]
)
_UNPLACED = frozenset(["source", "dataschema", "subject"])
_UNIQUE = re.compile(
    r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32}|[0-7][0-9a-hjkmnp-tv-z]{25}", re.IGNORECASE
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How a message is read that is neither relaybox's nor a CloudEvent.

    type          the type of what names none; None: the channel it came by
    type_header   the header that names the type; id_header and key_header likewise
    content_type  of what does not say it; None: application/octet-stream
    """

    type: str | None = None
    type_header: str | None = None
    id_header: str | None = None
    key_header: str | None = None
    content_type: str | None = None


def parse(message: Incoming, reading: Reading | None = None) -> Event:
    """Raises InvalidEvent for what cannot be read."""
    kind = (message.content_type or "").partition(";")[0].strip().lower()
    if kind.startswith(STRUCTURED):
        return _structured(message, kind, _decoded(message))
    names = {spelled(name) for name in message.headers}
    prefix = next((p for p in PREFIXES if p + "specversion" in names), None)
    ours = prefix or {"event-id", "event-type"} <= names
    headers = _decoded(message) if ours else message.headers
    if prefix:
        return _binary(message, prefix, headers)
    return _plain(message, headers) if ours else _foreign(message, reading or Reading())


def malformed(message: Incoming) -> Event:
    """What stands for a message that cannot be read: its bytes, under the id of the place where it was read. Of a giant
    only the beginning, or the database would refuse it and nothing behind it would ever come."""
    return Event.stored(
        (
            None,
            place_id(message.place),
            MALFORMED,
            GLOBAL,
            None,
            None,
            BYTES,
            message.body[:MAX_BROKEN],
            headers_to_text(_storable(message.headers)),
            message.sent_at or utc_now(),
            None,
            None,
        )
    )


def place_id(place: str) -> str:
    """A place as an id, which nobody can write."""
    return PLACED + folded(place, LIMITS["id"] - len(PLACED))


def folded(text: str, size: int = LIMITS["id"]) -> str:
    """The text itself where it fits an id, else its digest."""
    fits = 0 < len(text) <= size and text.isascii() and text.isprintable()
    return text if fits else _digest(text, size)


def _digest(text: str, size: int = LIMITS["id"]) -> str:
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:size]


def _short(given: str) -> str:
    return given if len(given) <= LIMITS["id"] else _digest(given)


def _plain(message: Incoming, headers: Mapping[str, str]) -> Event:
    own = {spelled(name): value for name, value in headers.items() if spelled(name) in PLAIN}
    rest = {name: value for name, value in headers.items() if spelled(name) not in PLAIN}
    if len(own["event-id"]) > LIMITS["id"]:
        rest["event-id"] = own["event-id"]
    return Event(
        own["event-type"],
        payload_bytes=message.body,
        id=_short(own["event-id"]),
        key=own.get("aggregate-id", message.key),
        aggregate_type=own.get("aggregate-type", GLOBAL),
        tenant=own.get("tenant"),
        occurred_at=_moment("created_at", own.get("created-at"), message),
        content_type=message.content_type or BYTES,
        headers=rest,
    )


def _binary(message: Incoming, prefix: str, headers: Mapping[str, str]) -> Event:
    attributes, rest = {}, {}
    for name, value in headers.items():
        if spelled(name).startswith(prefix):
            attributes[spelled(name).removeprefix(prefix)] = value
        else:
            rest[name] = value
    return _event(message, attributes, rest, message.body, message.content_type or BYTES)


def _structured(message: Incoming, kind: str, headers: Mapping[str, str]) -> Event:
    if kind != STRUCTURED + "+json":
        raise InvalidEvent(f"expected a CloudEvent as {STRUCTURED}+json, got {kind[:60]!r}")
    envelope = members(message.body)
    data, encoded = envelope.pop("data", None), envelope.pop("data_base64", None)
    attributes = {name: _attribute(name, m.value) for name, m in envelope.items() if m.value is not None}
    content_type = attributes.get("datacontenttype", JSON)
    return _event(message, attributes, headers, _data(data, encoded, content_type), content_type)


def _data(data: Member | None, encoded: Member | None, content_type: str) -> bytes:
    kind = content_type.partition(";")[0].strip().lower()
    is_json = kind == JSON or kind.endswith("+json")
    if data is not None and encoded is not None:
        raise InvalidEvent("a CloudEvent has data or data_base64, this one has both")
    if encoded is not None:
        try:
            return base64.b64decode(encoded.value, validate=True)
        except (TypeError, ValueError):
            raise InvalidEvent("data_base64 is not base64") from None
    if data is None:
        return b"null" if is_json else b""
    try:
        return (data.text if is_json or not isinstance(data.value, str) else data.value).encode()
    except UnicodeEncodeError:
        raise InvalidEvent("data contains a lone surrogate, which is not text") from None


def _event(
    message: Incoming, attributes: Mapping[str, str], rest: Mapping[str, str], body: bytes, content_type: str
) -> Event:
    """The event of a CloudEvent's attributes. An extension that also came as a header of its own is kept once."""
    if attributes.get("specversion") != "1.0":
        raise InvalidEvent(f"expected a CloudEvent of specversion 1.0, got {attributes.get('specversion', '')[:20]!r}")
    for name in ("id", "source", "type"):
        if not attributes.get(name):
            raise InvalidEvent(f"a CloudEvent needs the attribute {name!r}")
    given = event_id = attributes["id"]
    if "aggregatetype" not in attributes and not _UNIQUE.fullmatch(given):
        event_id = _digest(f"{attributes['source']}\n{given}")
    key = attributes.get("partitionkey") or attributes.get("subject") or message.key
    kept = dict(rest)
    known = {spelled(name) for name in rest}
    for name, value in attributes.items():
        if name in _UNPLACED and not (name == "subject" and value == key):
            kept[f"ce-{name}"] = value
        elif name not in _CONTEXT | _UNPLACED and name not in known:
            kept[name] = value
    if _short(event_id) != given:
        kept["ce-id"] = given
    return Event(
        attributes["type"],
        payload_bytes=body,
        id=_short(event_id),
        key=key,
        aggregate_type=attributes.get("aggregatetype", GLOBAL),
        tenant=attributes.get("tenant"),
        occurred_at=_moment("time", attributes.get("time"), message),
        content_type=content_type,
        headers=kept,
    )


def _foreign(message: Incoming, reading: Reading) -> Event:
    def named(header: str | None) -> str | None:
        wanted = spelled(header) if header else None
        return next((value for name, value in message.headers.items() if spelled(name) == wanted), None)

    given = named(reading.id_header) or message.id
    event = Event(
        named(reading.type_header) or reading.type or message.channel,
        payload_bytes=message.body,
        id=_short(given) if given else None,
        key=named(reading.key_header) or message.key or None,
        occurred_at=message.sent_at,
        content_type=message.content_type or reading.content_type or BYTES,
        headers=message.headers,
    )
    return event if given else placed(event, place_id(message.place))


def _storable(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers that an event can have, of some that may be what makes a message unreadable."""
    kept: dict[str, str] = {}
    for name, value in islice(headers.items(), MAX_HEADERS):
        with suppress(InvalidEvent):
            kept = dict(Event(MALFORMED, None, headers={**kept, name: value}).headers)
    return kept


def _decoded(message: Incoming) -> Mapping[str, str]:
    headers = message.headers
    if not message.percent_encoded:
        return headers
    try:
        return {unquote(name, errors="strict"): unquote(value, errors="strict") for name, value in headers.items()}
    except UnicodeDecodeError:
        raise InvalidEvent("a header is percent-encoded and not UTF-8") from None


def _moment(name: str, text: str | None, message: Incoming) -> datetime | None:
    if text is None:
        return message.sent_at
    try:
        return datetime.fromisoformat(text.upper())
    except ValueError:
        raise InvalidEvent(f"expected {name} to be a time such as 2026-01-31T12:00:00Z, got {text[:40]!r}") from None


def _attribute(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str):
        raise InvalidEvent(f"expected the CloudEvents attribute {name[:40]!r} to be text, got {type(value).__name__}")
    return value
