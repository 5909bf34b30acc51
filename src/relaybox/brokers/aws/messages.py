"""What SQS and SNS can carry, and how the rest is made to fit.

Bodies and attribute values are text without control characters, and not empty; there are at most ten attributes.
So a body of other bytes travels as base64 and an empty one as a placeholder, which the attribute `body_encoding` tells
(`base64`, `empty`). Attributes that do not fit travel together, as a JSON object in the attribute `headers`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from ..spi import Message

MOST_ATTRIBUTES = 10
OVERFLOW = "headers"
EMPTY = "(empty)"
_OURS = {"content_type", "body_encoding", OVERFLOW}
_NOT_TEXT = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_NAME = re.compile(r"(?!(?i:aws|amazon)\.)(?=.{1,256}$)[\w-]+(\.[\w-]+)*", re.ASCII)
_TOKEN = re.compile(r"[!-~]{1,128}")


class Encoded(NamedTuple):
    body: str
    attributes: dict[str, Any]
    size: int  # as AWS counts it


def encode(message: Message) -> Encoded:
    body, encoding = _text(message.body)
    values = {"content_type": message.content_type}
    if encoding is not None:
        values["body_encoding"] = encoding
    values |= _fitting(message, MOST_ATTRIBUTES - len(values))
    size = len(body.encode()) + sum(len(name) + len("String") + len(value.encode()) for name, value in values.items())
    return Encoded(body, {name: {"DataType": "String", "StringValue": v} for name, v in values.items()}, size)


class Decoded(NamedTuple):
    body: bytes
    content_type: str | None
    headers: dict[str, str]


def decode(text: str, values: Mapping[str, str]) -> Decoded:
    """The way back. Of somebody else's attributes, those that only look like ours stay headers."""
    headers = dict(values)
    body = text.encode(errors="replace")
    if headers.get("body_encoding") == "empty":
        del headers["body_encoding"]
        body = b""
    elif headers.get("body_encoding") == "base64":
        with suppress(ValueError):
            body = base64.b64decode(text, validate=True)
            del headers["body_encoding"]
    with suppress(ValueError, TypeError):
        rest = json.loads(headers.get(OVERFLOW, ""))
        if isinstance(rest, dict) and all(isinstance(value, str) for value in rest.values()):
            del headers[OVERFLOW]
            headers |= rest
    return Decoded(body, headers.pop("content_type", None), headers)


def token(text: str) -> str:
    """A message group or deduplication id: the text itself where AWS allows it, else its digest."""
    return text if _TOKEN.fullmatch(text) else hashlib.sha256(text.encode()).hexdigest()


def _text(body: bytes) -> tuple[str, str | None]:
    if not body:
        return EMPTY, "empty"
    try:
        text = body.decode()
    except UnicodeDecodeError:
        text = "\0"
    if _NOT_TEXT.search(text):
        return base64.b64encode(body).decode(), "base64"
    return text, None


def _fitting(message: Message, room: int) -> Mapping[str, str]:
    """Ours before the writer's headers, as far as there is room; the rest in one."""
    given, headers = message.attributes, message.event.headers
    order = sorted(given, key=lambda name: (given[name] == headers.get(name), name))
    carried = [name for name in order if _carries(name, given[name])]
    if len(carried) == len(given) <= room:
        return given
    alone = {name: given[name] for name in carried[: room - 1]}
    rest = {name: value for name, value in given.items() if name not in alone}
    return {**alone, OVERFLOW: json.dumps(rest, separators=(",", ":"))}


def _carries(name: str, value: str) -> bool:
    return bool(value) and name not in _OURS and bool(_NAME.fullmatch(name)) and not _NOT_TEXT.search(value)
