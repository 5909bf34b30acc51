"""Threads for synchronous listeners. A listener that hangs costs its thread, never a worker.

Python cannot stop a thread. One whose time is over is left behind, with its stack in the log, and another takes its
place: up to STRAYS times, for every one of them may hold a connection.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import sys
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from ..around import frameworks
from ..facts import Observers, Strayed
from ..listeners import Changed, Listener, Listeners
from ..printable import Lines

log = logging.getLogger("relaybox")

STRAYS = 16  # threads that may hang before no more are replaced


class ListenerThreads:
    def __init__(self, size: int, observers: Observers | None = None) -> None:
        self._size = size
        self._observers = observers or Observers()
        self._executor: ThreadPoolExecutor | None = None
        self._strays: set[Future[Any]] = set()
        self._frameworks = [made() for made in frameworks]

    def around(self, listeners: Listeners[Any]) -> Listeners[Any]:
        """The same, each within what frameworks do around it."""
        return Changed(listeners, self._within) if self._frameworks else listeners

    def _within(self, listener: Listener) -> Listener:
        for framework in self._frameworks:
            within = framework.awaited if listener.is_async else framework.plain
            listener = replace(listener, call=within(listener.call))
        return listener

    async def call(self, function: Callable[..., Any], *args: Any) -> Any:
        if self._executor is None:
            self._executor = ThreadPoolExecutor(self._size, thread_name_prefix="relaybox-listener")
        context = contextvars.copy_context()
        place: list[threading.Thread] = []

        def run() -> Any:
            place.append(threading.current_thread())
            return context.run(function, *args)

        future = self._executor.submit(run)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if place and not future.done():
                self._abandon(future, place[0])
            raise

    def _abandon(self, future: Future[Any], thread: threading.Thread) -> None:
        self._strays.add(future)
        future.add_done_callback(self._returned)
        hung = len(self._strays)
        frame = sys._current_frames().get(thread.ident or 0)
        log.error(
            "a listener ran out of time and is left behind in thread %s (%d hang, up to %d are replaced):\n%s",
            thread.name,
            hung,
            STRAYS,
            Lines("".join(traceback.format_stack(frame)) if frame is not None else "it has just ended"),
        )
        self._observers(Strayed(hung))
        if hung <= STRAYS and self._executor is not None:
            self._executor.shutdown(wait=False)
            self._executor = None

    def _returned(self, future: Future[Any]) -> None:
        self._strays.discard(future)
        self._observers(Strayed(len(self._strays)))

    def close(self) -> None:
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)
            self._executor = None
        for framework in self._frameworks:
            framework.close()
