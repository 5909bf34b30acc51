"""Payload JSON, read strictly."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from .complaints import undecodable


def decoded(body: bytes) -> Any:
    """Unlike `json.loads`: UTF-8 only, no NaN, and nesting that is too deep is one more way to be wrong."""
    with suppress(ValueError, RecursionError):
        return _DECODER.decode(body.decode())
    raise undecodable()


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_no_number)
