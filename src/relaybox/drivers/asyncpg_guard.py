"""asyncpg tells a password in clear text to any server that asks for it so. It takes the event loop that it shall use:
this one looks at what a server asks for before asyncpg hears it, and steps aside once it has let us in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

_AUTHENTICATION = ord("R")
_OK, _CLEAR_TEXT = 0, 3


class Doorkeeper:
    """The running loop, for one connection. `refused`: the server asked for the password in clear text."""

    def __init__(self) -> None:
        self.refused = False
        self._loop = asyncio.get_running_loop()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)

    async def create_connection(self, factory: Callable[[], Any], *args: Any, **named: Any) -> tuple[Any, Any]:
        transport, door = await self._loop.create_connection(lambda: _Door(factory(), self), *args, **named)
        return _Transport(transport, self), door.behind

    async def start_tls(self, transport: Any, *args: Any, **named: Any) -> Any:
        """What is encrypted needs no guard."""
        return await self._loop.start_tls(transport.real, *args, **named)


class _Transport:
    """asyncpg replaces the protocol that asked for TLS by the one that logs in."""

    def __init__(self, real: Any, guard: Doorkeeper) -> None:
        self.real = real
        self.write, self.writelines = real.write, real.writelines
        self._guard = guard

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def set_protocol(self, protocol: Any) -> None:
        door = _Door(protocol, self._guard)
        door.transport = self.real
        self.real.set_protocol(door)


class _Door(asyncio.Protocol):
    def __init__(self, behind: Any, guard: Doorkeeper) -> None:
        self.behind = behind
        self.transport: Any = None
        self._guard = guard
        self._seen = bytearray()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.behind.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        self._seen += data
        asked = self._asked()
        if asked == _CLEAR_TEXT:
            self._guard.refused = True
            self.transport.abort()
            return
        if asked == _OK:
            self.transport.set_protocol(self.behind)
        self.behind.data_received(data)

    def _asked(self) -> int | None:
        """The last thing that the server asks for to let us in, of what has come whole; the rest waits for more."""
        asked = None
        while len(self._seen) >= 9:  # kind, length, and what is asked for
            size = int.from_bytes(self._seen[1:5], "big") + 1
            if size < 5:  # nothing that a server says
                return _CLEAR_TEXT
            if self._seen[0] == _AUTHENTICATION:
                asked = int.from_bytes(self._seen[5:9], "big")
            if asked in (_OK, _CLEAR_TEXT) or len(self._seen) < size:
                break
            del self._seen[:size]
        return asked

    def eof_received(self) -> Any:
        return self.behind.eof_received()

    def connection_lost(self, error: Exception | None) -> None:
        self.behind.connection_lost(error)

    def pause_writing(self) -> None:
        self.behind.pause_writing()

    def resume_writing(self) -> None:
        self.behind.resume_writing()
