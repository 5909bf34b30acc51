"""`outbox.deliver(listeners)`: the service that delivers the events of an outbox in this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from ..delivery import Delivery
from ..drivers.spi import AsyncRunner
from ..engine.dispatch import Dispatch, RowBatches
from ..engine.threads import ListenerThreads
from ..errors import ConfigError
from ..listeners import Listeners
from ..service import AsyncService, Owner
from ..settings import Fair, OnExhausted
from ..values import Counts
from .node import Node
from .purge import OutboxPurgeLoop
from .source import with_fair

if TYPE_CHECKING:
    from .outbox import _Shared


class BoxService(AsyncService):
    """A service on the connections of an outbox."""

    def __init__(self, box: _Shared, owner: Owner | None) -> None:
        super().__init__(box._clock, owner)
        self._pages = box.settings.listen
        self._box = box
        self._closing = AsyncExitStack()

    async def _start(self) -> None:
        await self._begin(self._box._connect(self._closing))

    async def _stop(self, timeout: float | None) -> None:
        async with self._closing:
            await self._end(timeout)

    async def _begin(self, db: AsyncRunner) -> None:
        raise NotImplementedError

    async def _end(self, timeout: float | None) -> None:
        raise NotImplementedError


class OutboxDelivery(BoxService):
    def __init__(
        self,
        box: _Shared,
        owner: Owner | None,
        listeners: Listeners[Delivery],
        *,
        ordered: bool,
        on_exhausted: OnExhausted | None,
        alone: bool,
        fair: Fair | None = None,
    ) -> None:
        super().__init__(box, owner)
        wish = {} if on_exhausted is None else {"order.on_exhausted": on_exhausted}
        self._settings = settings = with_fair(box.settings.replaced(wish), fair, ordered=ordered)
        self._ordered = ordered
        self._alone = alone
        self._threads = ListenerThreads(settings.delivery.workers, box._observers)
        self._dispatch = Dispatch(listeners, self._threads, timeout=settings.delivery.timeout, clock=box._clock)
        self._node: Node | None = None

    @property
    def name(self) -> str:
        return f"delivery of {self._box.store.tables.event}"

    async def _begin(self, db: AsyncRunner) -> None:
        box, dispatch = self._box, self._dispatch
        node = Node(
            "ordered" if self._ordered else "delivery",
            db,
            box.store,
            RowBatches(dispatch) if dispatch.size else dispatch.row,
            self._settings,
            observers=box._observers,
            clock=box._clock,
            asked=dispatch,
            alone=self._alone,
        )
        await node.start()
        self._node = node
        box._hand_over_to(node)

    def halt(self) -> None:
        if self._node is not None:
            self._node.halt()

    async def _end(self, timeout: float | None) -> None:
        try:
            if self._node is not None:
                self._box._hand_over_to(None)
                await self._node.stop(timeout)
        finally:
            self._threads.close()

    async def _drain(self) -> None:
        assert self._node is not None
        await self._node.drain()

    def _complaints(self) -> Iterator[str]:
        return iter(()) if self._node is None else self._node.complaints()

    def _worries(self) -> Iterator[str]:
        return iter(()) if self._node is None else self._node.engine.worries()

    @property
    def counts(self) -> Counts:
        return Counts() if self._node is None else replace(self._node.engine.counts, ignored=self._dispatch.ignored)


class OutboxPurger(BoxService):
    """Deletes what is older than the settings say, every `outbox.purge_interval`."""

    def __init__(self, box: _Shared, owner: Owner | None, *, by_age: bool) -> None:
        super().__init__(box, owner)
        settings = box.settings.outbox
        if settings.retention is None and settings.dead_retention is None:
            raise ConfigError("expected outbox.retention or outbox.dead_retention to be set; nothing would be purged")
        self._by_age = by_age
        self._purge: OutboxPurgeLoop | None = None

    @property
    def name(self) -> str:
        return f"purge of {self._box.store.tables.event}"

    async def _begin(self, db: AsyncRunner) -> None:
        box = self._box
        patient = db.within(box.settings.delivery.batch_seconds)
        self._purge = OutboxPurgeLoop(patient, box.store, box.settings, box._observers, box._clock, by_age=self._by_age)
        self._purge.start()

    async def _end(self, timeout: float | None) -> None:
        if self._purge is not None:
            await self._purge.stop()

    async def _drain(self) -> None:
        assert self._purge is not None
        await self._purge.run_once()

    def _complaints(self) -> Iterator[str]:
        return iter(())

    @property
    def counts(self) -> Counts:
        return Counts(done=0 if self._purge is None else self._purge.purged)
