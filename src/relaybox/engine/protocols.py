"""Where the engine's deliveries come from, and what handles them."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any, Protocol, TypeAlias

from ..delivery import Delivery
from ..outcome import Outcome

Settled: TypeAlias = tuple[Delivery, Outcome]


class Pulse(Protocol):
    """A sign of life as others see it."""

    alive_until: float  # on the clock's monotonic time: later this process may have been declared dead


class AlwaysAlive:
    """The pulse of a process that nobody declares dead."""

    alive_until = math.inf


class Origin(Protocol):
    """What every source of an engine has."""

    ordered: bool

    @property
    def pulse(self) -> Pulse: ...


class RowSource(Origin, Protocol):
    """Every method is one round trip; errors are raised, the engine retries."""

    @property
    def full(self) -> bool:
        """The last claim found no room for payloads: there is more when something that is here ends."""
        ...

    @property
    def silent(self) -> bool:
        """Too long without a sign of life to the database: what is here may be another's already."""
        ...

    async def claim(self, limit: int, past: Collection[str] = ()) -> list[Delivery]:
        """Nothing of the keys in `past`, of which there are plenty here, where the source is ordered."""
        ...

    async def settle(self, outcomes: Sequence[Settled]) -> int: ...

    async def release(self, deliveries: Sequence[Delivery]) -> None: ...

    async def renew(self, deliveries: Sequence[Delivery]) -> set[int]: ...

    async def oldest(self) -> timedelta: ...

    async def next_due(self) -> timedelta | None: ...


Handler: TypeAlias = Callable[[Delivery], Awaitable[Any]]


class RowBatch(Protocol):
    """What one call of a batch handler is about. Every delivery is concluded once, as soon as its fate is known."""

    async def waiting(self) -> list[Delivery]:
        """The deliveries not concluded yet that are still ours: ask again before every try."""
        ...

    def done(self, delivery: Delivery) -> None: ...

    def done_all(self, deliveries: Sequence[Delivery]) -> None:
        """`done` for many, and cheaper."""
        ...

    def failed(self, delivery: Delivery, error: BaseException) -> None:
        """Later deliveries of the same key in this batch are held back: conclude a key in its order."""
        ...


class WorkQueue(Protocol):
    """What waits for a worker, as a deque has it. False while nothing of it may begin."""

    def __bool__(self) -> bool: ...

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Delivery]: ...

    def extend(self, deliveries: Iterable[Delivery], /) -> None: ...

    def extendleft(self, deliveries: Iterable[Delivery], /) -> None: ...

    def popleft(self) -> Delivery: ...

    def clear(self) -> None: ...


class FairQueue(WorkQueue, Protocol):
    """A queue that knows what may begin, and what is not needed here."""

    workers: int
    wake: Callable[[], None]  # to be called when something may begin that could not before

    def ended(self, delivery: Delivery) -> None:
        """It is concluded, or given up, whether it had begun or not."""
        ...

    def excess(self) -> Iterable[Settled]:
        """Memory is short: what waits here needlessly, which is forgotten, and what is to become of it."""
        ...

    def resting(self) -> Iterable[Settled]:
        """What may not begin for a while, which is forgotten, and what is to become of it."""
        ...

    def stalled(self) -> Sequence[Delivery]:
        """What is here, begun or not, and will be for long."""
        ...


class BatchHandler(Protocol):
    """Handles many deliveries in one call, and watches the time itself: one may take as long as an outage. If it has a
    `queue` (a FairQueue), that decides what is next, and how many workers there are."""

    size: int  # most deliveries in one call
    sequences: bool  # several of one key may share a call, in their order

    async def handle(self, batch: RowBatch) -> None: ...
