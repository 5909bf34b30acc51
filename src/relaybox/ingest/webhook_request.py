"""One HTTP request as ASGI hands it over: its headers, its body up to a limit, and the answer.

A body that is too long or too slow is not read to its end, and what all requests together have in memory is bounded:
nobody can fill it or keep us waiting.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from contextlib import asynccontextmanager
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


class Room:
    """What the bodies of all requests may take in memory together, in bytes."""

    def __init__(self, size: int) -> None:
        self._left = size

    @asynccontextmanager
    async def body(
        self, headers: Mapping[str, str], receive: Receive, limit: int, seconds: float
    ) -> AsyncIterator[bytes]:
        """The body, which has its room until the block ends."""
        length = headers.get("content-length", "")
        if length.isdecimal() and (len(length) > 18 or int(length) > limit):
            raise Refused(413, f"a body of {length[:20]} bytes")
        body = bytearray()
        try:
            try:
                async with asyncio.timeout(seconds):
                    await self._read(body, receive, limit)
            except TimeoutError:
                raise Refused(408, f"the body did not come within {seconds:g} s") from None
            yield bytes(body)
        finally:
            self._left += len(body)

    async def _read(self, body: bytearray, receive: Receive, limit: int) -> None:
        more = True
        while more:
            part = await receive()
            if part["type"] == "http.disconnect":
                raise Gone
            piece = part.get("body", b"")
            if len(piece) > self._left:
                raise Refused(503, "too many bodies at once", {"retry-after": "1"})
            self._left -= len(piece)
            body += piece
            if len(body) > limit:
                raise Refused(413, f"a body of more than {limit} bytes")
            more = part.get("more_body", False)


async def respond(send: Send, status: int, headers: Mapping[str, str] | None = None) -> None:
    fields = {"content-length": "0", **(headers or {})}
    encoded = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in fields.items()]
    await send({"type": "http.response.start", "status": status, "headers": encoded})
    await send({"type": "http.response.body", "body": b""})
