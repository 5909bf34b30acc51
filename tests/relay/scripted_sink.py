"""A sink that does as it is told: away, slow, refusing, partly failing. For tests of the relay itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta

from relaybox.errors import BrokerUnavailable
from relaybox.spi import Answer, Features, Message


class ScriptedSink:
    name = "scripted"

    def __init__(self, verdict: Callable[[Message], Answer] | None = None, **features: object) -> None:
        declared: dict[str, object] = {"keyed_order": True, "dedup": False, **features}
        self.features = Features(**declared)  # type: ignore[arg-type]
        self.verdict = verdict or (lambda message: None)
        self.sent: list[Message] = []
        self.calls: list[list[Message]] = []
        self.away: str | None = None
        self.retry_after: timedelta | None = None
        self.gate: asyncio.Event | None = None
        self.refused = asyncio.Event()
        self.probes = self.opened = self.closed = 0

    def by_key(self) -> dict[str | None, list[int]]:
        found: dict[str | None, list[int]] = {}
        for message in self.sent:
            found.setdefault(message.key, []).append(message.event.payload)
        return found

    def _reach(self) -> None:
        if self.away is not None:
            self.refused.set()
            raise BrokerUnavailable(self.away, retry_after=self.retry_after)

    async def open(self) -> None:
        self._reach()
        self.opened += 1

    async def probe(self) -> None:
        self.probes += 1
        self._reach()

    async def publish(self, messages: Sequence[Message]) -> Sequence[Answer]:
        self.calls.append(list(messages))
        if self.gate is not None:
            await self.gate.wait()
        self._reach()
        answers = [self.verdict(message) for message in messages]
        self.sent += [message for message, answer in zip(messages, answers, strict=True) if answer is None]
        return answers

    async def close(self) -> None:
        self.closed += 1
