"""The members of a JSON object and the elements of an array, as the text they were written as: what a sender put into
an envelope comes out byte for byte."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from ..errors import InvalidEvent


class Member(NamedTuple):
    value: Any  # numbers as text
    text: str  # with the blanks around it


def members(body: bytes) -> dict[str, Member]:
    """Raises InvalidEvent for what is no object, or has a member twice."""
    found: dict[str, Member] = {}

    def read(text: str, at: int) -> int:
        name, end = STRICT.raw_decode(text, at)
        if not isinstance(name, str) or text[end - 1] != '"' or name in found:
            raise ValueError("expected a name that is new")
        begin = _past(text, end, ":")
        value, end = STRICT.raw_decode(text, _next(text, begin))
        found[name] = Member(value, text[begin : _next(text, end)])
        return end

    _scan(body, "{", "}", "a JSON object without repeated members", read)
    return found


def elements(body: bytes) -> list[bytes]:
    """Raises InvalidEvent for what is no array."""
    return [element.text.encode() for element in valued(body, STRICT)]


def valued(body: bytes, decoder: json.JSONDecoder) -> list[Member]:
    """The elements of an array, their values as this decoder reads them, and no blanks in their texts. InvalidEvent."""
    found: list[Member] = []

    def read(text: str, at: int) -> int:
        value, end = decoder.raw_decode(text, at)
        found.append(Member(value, text[at:end]))
        return end

    _scan(body, "[", "]", "a JSON array", read)
    return found


def _scan(body: bytes, opening: str, closing: str, expected: str, read: Callable[[str, int], int]) -> None:
    """`read` is called where an item begins, and returns where it ends."""
    try:
        text = body.decode()
        at = _next(text, _past(text, 0, opening))
        more = text[at] != closing
        while more:
            at = _next(text, read(text, at))
            more = text[at] != closing
            at = _next(text, _past(text, at, ",")) if more else at
        if _next(text, at + 1) != len(text):
            raise ValueError("expected nothing more")
    except (ValueError, IndexError, RecursionError):
        raise InvalidEvent(f"expected {expected}, the body is something else") from None


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
STRICT = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=_refuse)  # numbers of any length, as text
