"""Wait for facts, not for seconds.

    probe = Probe()
    async with AsyncOutbox(url, observers=[probe]) as box, box.deliver(listeners):
        ...
        await probe.wait(Delivered, count=3)
        assert not probe.of(Died)

A fact that carries a `count` counts that often: one Delivered(3) is three deliveries. What happened before
`wait` was called counts too; `clear()` forgets it.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from typing import TypeVar

from ..facts import Fact

F = TypeVar("F", bound=Fact)


class Probe:
    """An observer that remembers every fact. Safe from any thread."""

    def __init__(self) -> None:
        self._facts: list[Fact] = []
        self._changed = threading.Condition()
        self._waiters: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    def __call__(self, fact: Fact) -> None:
        with self._changed:
            self._facts.append(fact)
            self._changed.notify_all()
            waiters = list(self._waiters)
        for loop, woken in waiters:
            if not loop.is_closed():
                loop.call_soon_threadsafe(woken.set)

    @property
    def facts(self) -> list[Fact]:
        """All facts so far."""
        with self._changed:
            return list(self._facts)

    def of(self, kind: type[F], where: Callable[[F], bool] | None = None) -> list[F]:
        """The facts of one kind, in the order they happened."""
        return [f for f in self.facts if isinstance(f, kind) and (where is None or where(f))]

    def count(self, kind: type[F], where: Callable[[F], bool] | None = None) -> int:
        """How many things the facts of this kind tell of: the sum of their `count`, or one for each."""
        return sum(getattr(fact, "count", 1) for fact in self.of(kind, where))

    def clear(self) -> None:
        """Forget the facts so far."""
        with self._changed:
            self._facts.clear()

    async def wait(
        self, kind: type[F], count: int = 1, timeout: float = 5.0, *, where: Callable[[F], bool] | None = None
    ) -> list[F]:
        """Until `count` of them have happened. Returns them all."""
        woken = asyncio.Event()
        entry = (asyncio.get_running_loop(), woken)
        with self._changed:
            self._waiters.append(entry)
        try:
            async with asyncio.timeout(timeout):
                while self.count(kind, where) < count:
                    await woken.wait()
                    woken.clear()
        except TimeoutError:
            raise TimeoutError(self._missing(kind, count, timeout)) from None
        finally:
            with self._changed:
                self._waiters.remove(entry)
        return self.of(kind, where)

    def wait_sync(
        self, kind: type[F], count: int = 1, timeout: float = 5.0, *, where: Callable[[F], bool] | None = None
    ) -> list[F]:
        """The same from a thread without an event loop."""
        with self._changed:
            if not self._changed.wait_for(lambda: self.count(kind, where) >= count, timeout):
                raise TimeoutError(self._missing(kind, count, timeout))
        return self.of(kind, where)

    def _missing(self, kind: type[Fact], count: int, timeout: float) -> str:
        seen: Counter[str] = Counter()
        for fact in self.facts:
            seen[type(fact).__name__] += getattr(fact, "count", 1)
        happened = ", ".join(f"{name} {n}" for name, n in seen.items()) or "nothing"
        return f"expected {count} {kind.__name__} within {timeout} s; there were: {happened}"
