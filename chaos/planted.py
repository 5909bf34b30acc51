"""Bugs put in on purpose, to see that the checker can fail. Applied inside the dispatcher processes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from relaybox.op import Query
from relaybox.outbox.deliver import Dispatch
from relaybox.outbox.instance import InstanceService
from relaybox.outbox.source import OutboxSource
from relaybox.outcome import DONE
from relaybox.runtime.delivery import Delivery, DeliveryEngine
from relaybox.store.postgres import PostgresStore


def ack_before_handler() -> None:
    """Done is written before the listener runs: a kill in between loses the event."""
    listen = Dispatch.__call__
    sources: list[OutboxSource] = []
    init = OutboxSource.__init__

    def remember(self: OutboxSource, *args: Any) -> None:
        init(self, *args)
        sources.append(self)

    async def backwards(self: Dispatch, delivery: Delivery) -> None:
        await sources[-1].settle([(delivery, DONE)])
        await asyncio.sleep(0.02)
        await listen(self, delivery)

    OutboxSource.__init__ = remember  # type: ignore[method-assign]
    Dispatch.__call__ = backwards  # type: ignore[method-assign]


def no_token() -> None:
    """Done is not fenced: whoever wakes up late settles what another holds by now."""
    init = PostgresStore.__init__

    def unfenced(self: PostgresStore, *args: Any) -> None:
        init(self, *args)
        fenced = self.sql["outbox.settle.done"]
        text = fenced.text.replace("AND p.token = s.token", "AND s.token IS NOT NULL")
        assert text != fenced.text
        self.sql["outbox.settle.done"] = Query(fenced.name, text, fenced.answer)

    PostgresStore.__init__ = unfenced  # type: ignore[method-assign]


def ghost() -> None:
    """The hand-over after a commit does not ask whether a savepoint took the rows away."""

    async def trusting(self: DeliveryEngine, deliveries: Sequence[Delivery]) -> Sequence[Delivery]:
        return self.offer(deliveries)

    DeliveryEngine.offer_verified = trusting  # type: ignore[method-assign]


def skip_takeover() -> None:
    """Nobody looks for dead instances: their events wait for the lease to end."""

    async def blind(self: InstanceService, *, alone: bool) -> None:
        return None

    InstanceService._take_over = blind  # type: ignore[method-assign]


PLANTS = {
    "none": lambda: None,
    "ack-before-handler": ack_before_handler,
    "no-token": no_token,
    "ghost": ghost,
    "skip-takeover": skip_takeover,
}


def plant(name: str) -> None:
    PLANTS[name]()
