"""Order and priority at once: an ordered inbox per tier, so that neither has to give way.

    inbox = TieredInbox("postgresql://localhost/billing", "orders")     # orders_critical, orders_normal, …
    inbox.migrate()
    inbox.accept(None, event)                                           # by its header `priority`
    with inbox.processor(handle): ...                                   # all tiers, each with workers of its own

The numbers of a key are counted inside one inbox: all messages of a key must have the same priority.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from typing import Any, Generic, Self, TypeVar, Unpack

from ..clock import SYSTEM_CLOCK, Clock
from ..event import Event
from ..facts import Observer
from ..store.inbox.order import Order, Priority, priority_of
from .inbox import AsyncInbox, Inbox
from .process import MessageHandler
from .processor import AsyncProcessor, Options, Processor

I = TypeVar("I", Inbox, AsyncInbox)  # noqa: E741


class _Tiered(Generic[I]):
    _kind: type[I]

    def __init__(
        self,
        target: Any,
        name: str = "inbox",
        *,
        priority: Priority | None = None,
        order: Order | None = None,
        schema: str | None = None,
        observers: Sequence[Observer] = (),
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._priority = priority or Priority()
        options: Any = {"schema": schema, "order": order or Order(), "observers": observers, "clock": clock}
        self.inboxes: Mapping[str, I] = {
            tier.name: self._kind(target, f"{name}_{tier.name}", **options) for tier in self._priority.tiers
        }

    def inbox_of(self, event: Event) -> I:
        return self.inboxes[self._priority.tier_of(priority_of(event)).name]


class TieredInbox(_Tiered[Inbox]):
    _kind = Inbox

    def migrate(self) -> None:
        for inbox in self.inboxes.values():
            inbox.migrate()

    def accept(self, handle: Any, event: Event, *, source: str | None = None) -> bool:
        return self.inbox_of(event).accept(handle, event, source=source)

    @contextmanager
    def processor(self, handler: MessageHandler, **options: Unpack[Options]) -> Iterator[Sequence[Processor]]:
        with ExitStack() as stack:
            yield [stack.enter_context(inbox.processor(handler, **options)) for inbox in self.inboxes.values()]

    def close(self) -> None:
        for inbox in self.inboxes.values():
            inbox.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class AsyncTieredInbox(_Tiered[AsyncInbox]):
    _kind = AsyncInbox

    async def migrate(self) -> None:
        for inbox in self.inboxes.values():
            await inbox.migrate()

    async def accept(self, handle: Any, event: Event, *, source: str | None = None) -> bool:
        return await self.inbox_of(event).accept(handle, event, source=source)

    @asynccontextmanager
    async def processor(
        self, handler: MessageHandler, **options: Unpack[Options]
    ) -> AsyncIterator[Sequence[AsyncProcessor]]:
        async with AsyncExitStack() as stack:
            yield [
                await stack.enter_async_context(inbox.processor(handler, **options)) for inbox in self.inboxes.values()
            ]

    async def close(self) -> None:
        for inbox in self.inboxes.values():
            await inbox.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()
