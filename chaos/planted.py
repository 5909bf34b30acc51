"""Bugs put in on purpose, to see that the checker can fail. Applied inside the dispatcher processes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from relaybox.delivery import Delivery
from relaybox.engine.dispatch import Dispatch
from relaybox.op import Query
from relaybox.outbox.presence import OutboxRegistration
from relaybox.outbox.source import OutboxSource
from relaybox.outcome import DONE
from relaybox.store.outbox.postgres import PostgresStore

# Events are taken out of any claim that holds them, and the answer is always "all of them were yours".
UNFENCED = """
WITH s AS (SELECT array_agg(seq) AS seqs FROM unnest(:seqs::bigint[], :tokens::bigint[]) AS u(seq, token)),
gone AS (
  UPDATE {claim} c SET items = ARRAY(SELECT item FROM unnest(c.items) AS item WHERE item / 65536 <> ALL(s.seqs))
  FROM s WHERE EXISTS (SELECT 1 FROM unnest(c.items) AS item WHERE item / 65536 = ANY(s.seqs)))
SELECT cardinality(seqs) FROM s
"""


def ack_before_handler() -> None:
    """Done is written before the listener runs: a kill in between loses the event."""
    listen = Dispatch.row
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
    Dispatch.row = backwards  # type: ignore[method-assign]


def no_token() -> None:
    """Done is not fenced: a process that wakes up late settles what another holds by now."""
    init = PostgresStore.__init__

    def unfenced(self: PostgresStore, *args: Any) -> None:
        init(self, *args)
        name = self.sql["outbox.settle.done"].name
        self.sql["outbox.settle.done"] = Query(name, UNFENCED.format(claim=self.tables.part("claim")), "rows")

    PostgresStore.__init__ = unfenced  # type: ignore[method-assign]


def ghost() -> None:
    """The hand-over after a commit does not ask whether a savepoint took the rows away."""

    async def trusting(self: OutboxSource, deliveries: Sequence[Delivery]) -> set[int]:
        return {delivery.seq for delivery in deliveries}

    OutboxSource.verify = trusting  # type: ignore[method-assign]


def skip_takeover() -> None:
    """Nobody looks for dead instances: their events wait for the lease to end."""

    async def blind(self: OutboxRegistration, *, alone: bool) -> None:
        return None

    OutboxRegistration._take_over = blind  # type: ignore[method-assign]


# What to plant, and the violation that the checker must then report.
PLANTS: dict[str, tuple[Callable[[], None], str]] = {
    "none": (lambda: None, ""),
    "ack-before-handler": (ack_before_handler, "lost"),
    "no-token": (no_token, "fence"),
    "ghost": (ghost, "ghost"),
    "skip-takeover": (skip_takeover, "slow"),
}


def plant(name: str) -> None:
    PLANTS[name][0]()


def caught(name: str, report: Mapping[str, Any]) -> bool:
    """By the right violation: a trial that breaks for another reason proves nothing."""
    return bool(report["violations"].get(PLANTS[name][1])) and not report["violations"].get("harness")
