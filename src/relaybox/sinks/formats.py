"""How an event becomes a message: plain, or CloudEvents 1.0 in binary or structured mode.

The body is the stored payload, byte for byte (structured mode: inside the envelope, still byte for byte). Trace
context and the writer's headers travel along; the envelope's own names win over a header of the same name, in whatever
spelling: HTTP ignores case, and some servers take an underscore for a hyphen.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Literal, TypeAlias, get_args
from urllib.parse import quote

from ..errors import ConfigError, Undecodable
from ..event import GLOBAL, Event
from .spi import Features, Message

MessageFormat: TypeAlias = Literal["plain", "cloudevents", "cloudevents-structured"]
Render: TypeAlias = Callable[[Event, str], Message]

CLOUDEVENTS_JSON = "application/cloudevents+json; charset=utf-8"
_EXTENSION = re.compile(r"[a-z0-9]{1,20}")
_RESERVED = frozenset(
    [
        "specversion",
        "id",
        "source",
        "type",
        "subject",
        "time",
        "datacontenttype",
        "dataschema",
        "data",
        "database64",
        "partitionkey",
    ]
)


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


_STRICT = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=_refuse)  # only looks: numbers of any length
# The HTTP binding percent-encodes space, double quote, percent, and everything beyond printable ASCII.
_PLAIN_HEADER = "".join(chr(c) for c in range(0x21, 0x7F) if chr(c) not in '"%')


def renderer(form: MessageFormat, source: str, features: Features) -> Render:
    """The function that makes messages of one form for one sink."""
    if form not in get_args(MessageFormat):
        raise ConfigError(f"expected format to be one of {', '.join(get_args(MessageFormat))}, got {form!r}")
    encode = _percent if features.percent_encoded else _as_it_is
    if form == "plain":
        return lambda event, destination: _plain(event, destination, encode)
    if not source:
        raise ConfigError("CloudEvents need a source that is not empty, such as 'https://shop.example/orders'")
    if form == "cloudevents":
        prefix = features.attribute_prefix
        return lambda event, destination: _binary(event, destination, source, prefix, encode)
    return lambda event, destination: _structured(event, destination, source, encode)


def _plain(event: Event, destination: str, encode: Callable[[str], str]) -> Message:
    own = {"event_id": event.id, "event_type": event.type, "aggregate_type": event.aggregate_type}
    if event.key is not None:
        own["aggregate_id"] = event.key
    own["created_at"] = timestamp(event.created_at or event.occurred_at)
    if event.tenant is not None:
        own["tenant"] = event.tenant
    return _message(event, destination, event.body, event.content_type, _with_headers(own, event), encode)


def _binary(event: Event, destination: str, source: str, prefix: str, encode: Callable[[str], str]) -> Message:
    own = {prefix + name: value for name, value in _context(event, source).items()}
    return _message(event, destination, event.body, event.content_type, _with_headers(own, event), encode)


def _structured(event: Event, destination: str, source: str, encode: Callable[[str], str]) -> Message:
    envelope = {**_context(event, source), "datacontenttype": event.content_type}
    rest = {}
    for name, value in _headers(event).items():
        if _EXTENSION.fullmatch(name) and name not in _RESERVED:
            envelope.setdefault(name, value)
        else:
            rest[name] = value
    if event.is_json:
        try:
            _STRICT.decode(event.body.decode())
        except (ValueError, RecursionError) as error:
            raise Undecodable(f"the payload of event {event.id} is not {event.content_type}") from error
        data = b',"data":' + event.body
    else:
        data = b',"data_base64":"' + base64.b64encode(event.body) + b'"'
    head = json.dumps(envelope, ensure_ascii=False, separators=(",", ":")).encode()
    return _message(event, destination, head[:-1] + data + b"}", CLOUDEVENTS_JSON, rest, encode)


def _context(event: Event, source: str) -> dict[str, str]:
    """The context attributes, with the official extensions for partitioning and tracing."""
    context = {
        "specversion": "1.0",
        "id": event.id,
        "source": source,
        "type": event.type,
        "time": timestamp(event.occurred_at),
    }
    if event.key is not None:
        context["subject"] = context["partitionkey"] = event.key
    if event.aggregate_type != GLOBAL:
        context["aggregatetype"] = event.aggregate_type
    if event.tenant is not None:
        context["tenant"] = event.tenant
    if event.headers_text:
        for name in ("traceparent", "tracestate"):
            if value := _headers(event).get(name):
                context[name] = value
    return context


def _with_headers(own: dict[str, str], event: Event) -> dict[str, str]:
    if not event.headers_text:
        return own
    taken = {_spelled(name) for name in own}
    return own | {name: value for name, value in _headers(event).items() if _spelled(name) not in taken}


def _spelled(name: str) -> str:
    return name.lower().replace("_", "-")


def _headers(event: Event) -> Mapping[str, str]:
    """Those of the writer, who may be a program that is not ours."""
    if not all(isinstance(value, str) for value in event.headers.values()):
        raise Undecodable(f"expected the headers of event {event.id} to be text")
    return event.headers


def _message(
    event: Event,
    destination: str,
    body: bytes,
    content_type: str,
    attributes: dict[str, str],
    encode: Callable[[str], str],
) -> Message:
    if encode is not _as_it_is:
        attributes = {name: encode(value) for name, value in attributes.items()}
    return Message(event, destination, event.key, body, content_type, attributes)


def timestamp(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _as_it_is(value: str) -> str:
    return value


def _percent(value: str) -> str:
    return quote(value, safe=_PLAIN_HEADER)
