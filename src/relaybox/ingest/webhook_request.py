"""One HTTP request as ASGI hands it over: its headers, its body up to a limit, and the answer.

A body that is too long or too slow is not read to its end: nobody can fill our memory or keep us waiting.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, TypeAlias

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class Refused(Exception):
    """The answer to a request that is not accepted. The reason is for our log; the sender sees the status."""

    def __init__(self, status: int, reason: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(reason)
        self.status = status
        self.headers = headers or {}


class Gone(Exception):
    """The sender hung up; there is nobody to answer."""


def headers_of(scope: Scope) -> dict[str, str]:
    """By lower-case name. What comes several times is joined, as HTTP has it."""
    headers: dict[str, str] = {}
    for name, value in scope["headers"]:
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        headers[key] = f"{headers[key]}, {text}" if key in headers else text
    return headers


async def read_body(headers: Mapping[str, str], receive: Receive, limit: int, seconds: float) -> bytes:
    length = headers.get("content-length", "")
    if length.isdecimal() and (len(length) > 18 or int(length) > limit):
        raise Refused(413, f"a body of {length[:20]} bytes")
    body = bytearray()
    try:
        async with asyncio.timeout(seconds):
            while True:
                part = await receive()
                if part["type"] == "http.disconnect":
                    raise Gone
                body += part.get("body", b"")
                if len(body) > limit:
                    raise Refused(413, f"a body of more than {limit} bytes")
                if not part.get("more_body", False):
                    return bytes(body)
    except TimeoutError:
        raise Refused(408, f"the body did not come within {seconds:g} s") from None


async def respond(send: Send, status: int, headers: Mapping[str, str] | None = None) -> None:
    fields = {"content-length": "0", **(headers or {})}
    encoded = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in fields.items()]
    await send({"type": "http.response.start", "status": status, "headers": encoded})
    await send({"type": "http.response.body", "body": b""})
