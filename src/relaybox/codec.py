"""Payload values to bytes and back, header maps to text and back.

A payload is encoded once, when the event is made; the same bytes are stored, handed to the hot path and
published. Decoding happens when somebody asks for `event.payload`, never on the way.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from datetime import date, time
from decimal import Decimal
from enum import Enum
from itertools import accumulate
from typing import Any, Protocol
from uuid import UUID

from .errors import InvalidEvent

# Levels of nesting. Reading takes a stack frame for each, of the thousand that Python allows.
MAX_DEPTH = 500
MAX_DIGITS = 4300  # of one number: as many as Python reads
# A string that never ends goes to the end of the text, or each of its quotes would be the start of another search.
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)', re.DOTALL)
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_DIGITS = bytes.maketrans(b"123456789", b"000000000")
_TOO_LONG = b"0" * (MAX_DIGITS + 1)

JSON = "application/json"
BYTES = "application/octet-stream"


class Codec(Protocol):
    """Replace it to use orjson or msgspec: `Event(..., codec=…)` to write, `Outbox(..., codec=…)` to read."""

    def encode(self, value: Any) -> bytes:
        """A payload as it is stored. InvalidEvent if it cannot be."""
        ...

    def decode(self, data: bytes) -> Any:
        """What was stored. ValueError: it cannot be read."""
        ...


class JsonCodec:
    """The standard library's json; also takes dataclasses, pydantic and msgspec models, and writes times, decimals,
    UUIDs and members of enums as text: a model reads them back."""

    _encoder = json.JSONEncoder(
        ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=lambda value: _plain(value)
    )

    def encode(self, value: Any) -> bytes:
        try:
            return self._encoder.encode(value).encode()
        except UnicodeEncodeError as error:
            raise InvalidEvent("payload contains a lone surrogate, which is not text; clean the value first") from error
        except RecursionError as error:
            raise InvalidEvent("payload is nested too deeply for JSON; flatten it") from error
        except (TypeError, ValueError) as error:
            raise InvalidEvent(
                f"payload of type {type(value).__name__} cannot be written as JSON: {error}. "
                "Pass JSON types, datetime, Decimal, UUID, a dataclass, a pydantic or msgspec model, or payload_bytes="
            ) from error

    def decode(self, data: bytes) -> Any:
        return json.loads(data)


def check_json(body: bytes) -> None:
    """InvalidEvent for JSON that readers cannot be expected to read: nested too deeply, or with a number too long. Most
    is too short for either. Takes no more time than the length of the text asks for, whatever is in it."""
    if body.count(b"[") + body.count(b"{") > MAX_DEPTH:
        steps = memoryview(_STRING.sub(b"", body).translate(_STEPS, _NO_BRACKETS)).cast("b")
        depth = max(accumulate(steps), default=0)
        if depth > MAX_DEPTH:
            raise InvalidEvent(
                f"the payload is nested {depth} levels deep, the limit is {MAX_DEPTH}; flatten it, or give it another "
                "content type than JSON"
            )
    numbers = body.translate(_DIGITS) if len(body) > MAX_DIGITS else b""
    if _TOO_LONG in numbers and _TOO_LONG in _STRING.sub(b'""', numbers):
        raise InvalidEvent(
            f"the payload has a number of more than {MAX_DIGITS} digits, which readers refuse; write it as text"
        )


def _plain(value: Any) -> Any:
    """What json cannot write itself: models of the three common kinds, and values that have one form as text."""
    match value:
        case Enum():
            return value.value
        case date() | time():  # datetime too
            return value.isoformat()
        case Decimal() | UUID():
            return str(value)
        case set() | frozenset():
            return list(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json", by_alias=True)
    if hasattr(value, "__struct_fields__"):
        import msgspec

        return msgspec.to_builtins(value)
    raise TypeError(f"{type(value).__name__} is not a JSON type")


JSON_CODEC = JsonCodec()


def headers_to_text(headers: Mapping[str, str]) -> str | None:
    """None for an empty map, so that most rows store no headers at all."""
    return json.dumps(dict(headers), ensure_ascii=False, separators=(",", ":")) if headers else None


def headers_from_text(text: str | None) -> dict[str, str]:
    if not text or text == "null":
        return {}
    headers = json.loads(text)
    if not isinstance(headers, dict):
        raise ValueError("stored headers are not a JSON object")
    if "\\ud" in text or "\\uD" in text:  # half a character may be written so, and nothing takes it further
        "".join((*headers, *(value for value in headers.values() if isinstance(value, str)))).encode()
    return headers
