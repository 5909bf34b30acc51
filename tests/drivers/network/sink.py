"""A broker that takes everything."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from relaybox.spi import Answer, Features, Message


class Sink:
    name = "taking"
    features = Features(keyed_order=True, dedup=False)

    def __init__(self, work: Callable[[], Awaitable[None]]) -> None:
        self.arrived: list[int] = []
        self._work = work

    async def open(self) -> None: ...

    async def probe(self) -> None: ...

    async def publish(self, messages: Sequence[Message]) -> Sequence[Answer]:
        await self._work()
        self.arrived += [message.event.payload for message in messages]
        return [None] * len(messages)

    async def close(self) -> None: ...
