"""Renewing leases while synchronous blocks run: one thread per guard, and only while something is held."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from ..forks import renew_after_fork


class HeldKey(NamedTuple):
    """A key that this process has entered, and the token that proves it."""

    key: str
    token: int


class LeaseRenewer:
    def __init__(self, renew: Callable[[HeldKey], bool], every: float) -> None:
        self._renew = renew
        self._every = every
        self.after_fork()
        renew_after_fork(self)

    def after_fork(self) -> None:
        """What its parent holds is renewed there."""
        self._held: set[HeldKey] = set()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()

    @contextmanager
    def renewing(self, held: HeldKey) -> Iterator[None]:
        with self._lock:
            self._held.add(held)
            if self._thread is None:
                self._thread = threading.Thread(target=self._main, name="relaybox-guard", daemon=True)
                self._thread.start()
        try:
            yield
        finally:
            with self._lock:
                self._held.discard(held)

    def _main(self) -> None:
        while not self._closed.wait(self._every):
            with self._lock:
                if not self._held:
                    self._thread = None
                    return
                held = list(self._held)
            for one in held:
                if one in self._held and not self._renew(one):
                    with self._lock:
                        self._held.discard(one)

    def close(self) -> None:
        self._closed.set()
