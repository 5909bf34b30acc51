"""Order and priority at once: an ordered inbox per tier, so that neither has to give way.

    inbox = TieredInbox("postgresql://localhost/billing", "orders")     # orders_critical, orders_normal, …
    inbox.migrate()
    inbox.accept(None, event)                                           # by its header `priority`
    with inbox.process(handle): ...                                     # all tiers, each with workers of its own

The numbers of a key are counted inside one inbox: all messages of a key must have the same priority.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ..clock import SYSTEM_CLOCK, Clock
from ..codec import JSON_CODEC, Codec
from ..event import Event
from ..facts import Observer
from ..listeners import Listeners
from ..service import AsyncService, Owner, Owning, Service, stop_all
from ..settings import Settings
from ..store.inbox.claim import Share
from ..store.inbox.order import Order, Priority, priority_of
from ..twins import AsyncClosing, Closing, told_by
from ..values import Counts
from .inbox import AsyncInbox, Inbox
from .process import Processing

if TYPE_CHECKING:
    from ..vault import Vault

I = TypeVar("I", Inbox, AsyncInbox)  # noqa: E741


class _Tiers(AsyncService):
    """The services of all tiers as one."""

    def __init__(self, name: str, tiers: Sequence[AsyncService], clock: Clock, owner: Owner | None) -> None:
        super().__init__(clock, owner)
        self._pages = tiers[0]._pages
        self._name = name
        self._tiers = tiers

    @property
    def name(self) -> str:
        return f"processing of {self._name}"

    @property
    def counts(self) -> Counts:
        every = [tier.counts for tier in self._tiers]
        return Counts(*(sum(getattr(one, name) for one in every) for name in Counts.__slots__))

    async def _start(self) -> None:
        for tier in self._tiers:
            await tier.start()

    def halt(self) -> None:
        for tier in self._tiers:
            tier.halt()

    async def _stop(self, timeout: float | None) -> None:
        self.halt()
        await stop_all(self._tiers, timeout)

    async def _drain(self) -> None:
        await asyncio.gather(*(tier.drain() for tier in self._tiers))

    def _complaints(self) -> Iterator[str]:
        for tier in self._tiers:
            yield from (f"{tier.name}: {reason}" for reason in tier.health().reasons)


class _Tiered(Owning, Generic[I]):
    _kind: type[I]

    def __init__(
        self,
        target: Any,
        name: str = "inbox",
        *,
        priority: Priority | None = None,
        order: Order | None = None,
        schema: str | None = None,
        settings: Settings | None = None,
        observers: Sequence[Observer] = (),
        codec: Codec = JSON_CODEC,
        vault: Vault | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.name = name
        self._priority = priority or Priority()
        self._order = order or Order()
        self._clock = clock
        self._running: list[Any] = []
        options: Any = {"schema": schema, "settings": settings, "observers": observers, "codec": codec}
        options |= {"vault": vault, "clock": clock}
        self.inboxes: Mapping[str, I] = {
            tier.name: self._kind(target, f"{name}_{tier.name}", **options) for tier in self._priority.tiers
        }

    def inbox_of(self, event: Event) -> I:
        """The inbox of its tier."""
        return self.inboxes[self._priority.tier_of(priority_of(event)).name]

    def _processing(self, owner: Owner | None, handlers: Any, **options: Any) -> AsyncService:
        tiers = [Processing(inbox, None, handlers, **options) for inbox in self.inboxes.values()]
        return _Tiers(self.name, tiers, self._clock, owner)


class TieredInbox(_Tiered[Inbox], Closing):
    """An ordered inbox for each tier of priorities. Provisional: this may change within 1.x."""

    _kind = Inbox

    def migrate(self) -> None:
        """Creates or upgrades the tables of all tiers, and makes them ordered."""
        for inbox in self.inboxes.values():
            inbox.migrate()
            inbox.configure(order=self._order)

    def accept(self, handle: Any, event: Event, *, sender: str = "") -> bool:
        """As `Inbox.accept`, into the tier of its priority."""
        return self.inbox_of(event).accept(handle, event, sender=sender)

    def process(
        self,
        handlers: Listeners[Any] | Callable[..., object],
        *,
        session: Any = None,
        batch: int = 1,
        share: Share | None = None,
    ) -> Service:
        """As `Inbox.process`: one service for all tiers, each with workers of its own."""
        return Service(self._processing(None, handlers, session=session, batch=batch, share=share), self)

    def close(self) -> None:
        """Stops its services, then closes its connections."""
        with ExitStack() as last_first:
            for inbox in self.inboxes.values():
                last_first.callback(inbox.close)
            self._stop_services(last_first)


@told_by(TieredInbox)
class AsyncTieredInbox(_Tiered[AsyncInbox], AsyncClosing):
    """An ordered inbox for each tier of priorities. Provisional: this may change within 1.x."""

    _kind = AsyncInbox

    async def migrate(self) -> None:
        for inbox in self.inboxes.values():
            await inbox.migrate()
            await inbox.configure(order=self._order)

    async def accept(self, handle: Any, event: Event, *, sender: str = "") -> bool:
        return await self.inbox_of(event).accept(handle, event, sender=sender)

    def process(
        self,
        handlers: Listeners[Any] | Callable[..., object],
        *,
        session: Any = None,
        batch: int = 1,
        share: Share | None = None,
    ) -> AsyncService:
        return self._processing(self, handlers, session=session, batch=batch, share=share)

    async def close(self) -> None:
        async with AsyncExitStack() as last_first:
            for inbox in self.inboxes.values():
                last_first.push_async_callback(inbox.close)
            await stop_all(self._running)
