"""A source that does what its test says: an outage at will, and a record of what was asked of it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from relaybox import Event
from relaybox.errors import BrokerUnavailable
from relaybox.spi import Incoming

from .ingest_kit import plain


class ScriptedSource:
    """Keeps what is not acknowledged and gives it again after `open`, as every broker does."""

    name = "scripted"

    def __init__(self) -> None:
        self.queue: list[Incoming] = []
        self.acknowledged: list[str] = []
        self.opened = self.closed = 0
        self.away: str | None = None
        self._given = 0
        self._news = asyncio.Event()

    def put(self, *messages: Event | Incoming) -> None:
        for message in messages:
            self.queue.append(message if isinstance(message, Incoming) else self.incoming(message))
        self._news.set()

    def incoming(self, event: Event) -> Incoming:
        sent = plain(event)
        return Incoming(
            channel="orders",
            place=f"orders/{len(self.queue)}",
            body=sent.body,
            headers=sent.attributes,
            key=sent.key,
            content_type=sent.content_type,
        )

    def break_off(self, reason: str = "pulled out") -> None:
        self.away = reason
        self._news.set()

    async def open(self) -> None:
        self._check()
        self.opened += 1
        self._given = 0

    async def receive(self, limit: int, wait: float) -> Sequence[Incoming]:
        if len(self.queue) == self._given:
            self._news.clear()
            try:
                async with asyncio.timeout(wait):
                    await self._news.wait()
            except TimeoutError:
                return []
        self._check()
        batch = self.queue[self._given : self._given + limit]
        self._given += len(batch)
        return batch

    async def acknowledge(self, messages: Sequence[Incoming]) -> None:
        self._check()
        assert self.queue[: len(messages)] == list(messages), "not in the order in which they were received"
        del self.queue[: len(messages)]
        self._given -= len(messages)
        self.acknowledged += [message.place for message in messages]

    async def close(self) -> None:
        self.closed += 1

    def _check(self) -> None:
        if self.away is not None:
            raise BrokerUnavailable(self.away)
