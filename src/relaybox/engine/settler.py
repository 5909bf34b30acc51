"""The settle loop: what is decided is written together, a moment after the first of it, and until it is written."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

LINGER = 0.003  # seconds the first outcome waits for company while there is more work
FLUSH = 0.005  # seconds between two looks whether all is written


class Settler:
    def __init__(self, pending: Callable[[], object], write: Callable[[], Awaitable[None]]) -> None:
        """`write` writes all that `pending`; if it fails it is called again."""
        self._pending = pending
        self._write = write
        self._due = asyncio.Event()
        self._lingering = False
        self._writing = False

    def now(self) -> None:
        self._due.set()

    def soon(self) -> None:
        if not self._lingering:
            self._lingering = True
            asyncio.get_running_loop().call_later(LINGER, self._due.set)

    async def step(self) -> None:
        await self._due.wait()
        self._due.clear()
        self._lingering = False
        self._writing = True
        try:
            await self._write()
        except BaseException:
            self._due.set()  # what is left is tried again
            raise
        finally:
            self._writing = False

    async def flush(self, deadline: float) -> None:
        """Give the loop until `deadline` to write what has been decided."""
        loop = asyncio.get_running_loop()
        while (self._pending() or self._writing) and loop.time() < deadline:
            self._due.set()
            await asyncio.sleep(FLUSH)
