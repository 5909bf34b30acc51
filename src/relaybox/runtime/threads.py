"""Threads for synchronous listeners. A listener that hangs costs its thread, never a worker."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any


class ListenerThreads:
    def __init__(self, size: int) -> None:
        self._size = size
        self._executor: ThreadPoolExecutor | None = None

    async def call(self, function: Callable[..., Any], *args: Any) -> Any:
        if self._executor is None:
            self._executor = ThreadPoolExecutor(self._size, thread_name_prefix="relaybox-listener")
        context = contextvars.copy_context()
        future = asyncio.get_running_loop().run_in_executor(self._executor, lambda: context.run(function, *args))
        try:
            return await future
        except asyncio.CancelledError:
            if not future.done() or future.cancelled():
                self._abandon()
            raise

    def _abandon(self) -> None:
        """Python cannot stop a thread. Leave the hung one behind and start afresh, so that others get one."""
        if self._executor is not None:
            self._executor.shutdown(wait=False)
            self._executor = None

    def close(self) -> None:
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)
            self._executor = None
