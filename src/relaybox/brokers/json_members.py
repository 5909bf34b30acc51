"""The members of a JSON object, each as a value and as the text it was written as: what a sender put into an envelope
comes out byte for byte."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from ..errors import InvalidEvent


class Member(NamedTuple):
    value: Any  # numbers as text
    text: str  # with the blanks around it


def members(body: bytes) -> dict[str, Member]:
    found: dict[str, Member] = {}
    try:
        for name, member in _walk(body.decode()):
            if name in found:
                raise ValueError("a member occurs twice")
            found[name] = member
    except (ValueError, IndexError, RecursionError):
        raise InvalidEvent("expected a JSON object without repeated members, the body is something else") from None
    return found


def _walk(text: str) -> Iterator[tuple[str, Member]]:
    at = _past(text, 0, "{")
    end = _next(text, at)
    if text[end] != "}":
        while True:
            name, at = _LOOK.raw_decode(text, _next(text, at))
            if not isinstance(name, str) or text[at - 1] != '"':
                raise ValueError("expected a name")
            begin = _past(text, at, ":")
            value, at = _LOOK.raw_decode(text, _next(text, begin))
            end = _next(text, at)
            yield name, Member(value, text[begin:end])
            if text[end] == "}":
                break
            at = _past(text, end, ",")
    if _next(text, end + 1) != len(text):
        raise ValueError("expected nothing more")


def _next(text: str, at: int) -> int:
    found = _BLANKS.match(text, at)
    return found.end() if found else at


def _past(text: str, at: int, sign: str) -> int:
    at = _next(text, at)
    if text[at] != sign:
        raise ValueError(f"expected {sign}")
    return at + 1


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


_BLANKS = re.compile(r"[ \t\n\r]*")
_LOOK = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=_refuse)  # numbers of any length
