"""Payload JSON: read strictly, and written so that the models read it."""

from __future__ import annotations

import dataclasses
import json
from contextlib import suppress
from datetime import date
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

from ..codec import JsonCodec
from .complaints import undecodable


def decoded(body: bytes) -> Any:
    """Unlike `json.loads`: UTF-8 only, no NaN, and nesting that is too deep is one more way to be wrong."""
    with suppress(ValueError, RecursionError):
        return _DECODER.decode(body.decode())
    raise undecodable()


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_no_number)


def _plain(value: Any) -> Any:
    match value:
        case Enum():
            return value.value
        case date():  # datetime too
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


class ModelCodec(JsonCodec):
    """Also writes times, decimals, UUIDs, enums and sets, and pydantic's fields by their aliases."""

    _encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_plain)


MODEL_CODEC = ModelCodec()
