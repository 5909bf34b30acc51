"""Payloads that are stored encrypted: what products ask of a vault that was given to them as their codec.

A writer seals events before it inserts them; a reader loads their keys first, where nothing else waits, so that
`event.payload` decrypts without asking the database.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Any, Protocol, TypeVar

from .codec import Codec
from .event import Event
from .op import AsyncExecutor, Copy, Executor, Statement, adrive, drive

T = TypeVar("T")
# Statements on the caller's connection; and calls beside it, which may wait for a network.
SealingSteps = Generator[Statement | Copy | Callable[[], Any], Any, T]


class Sealing(Codec, Protocol):
    @property
    def inner(self) -> Codec:
        """What reads a payload that was decrypted."""
        ...

    def seal(self, events: Sequence[Event]) -> SealingSteps[list[Event]]:
        """The events with their payloads encrypted, in a transaction. InvalidEvent for one that cannot be."""
        ...

    def open(self, event: Event) -> tuple[bytes, str]:
        """A sealed event's payload and its content type. Undecodable, Erased: there is none."""
        ...

    def load(self, events: Sequence[Event]) -> Awaitable[None] | None:
        """What is to be awaited before these are opened; None: nothing. Never raises: what cannot be had is asked for
        again when the event is opened, and is the trouble of that event alone."""
        ...

    def reading(self, codec: Codec) -> Codec:
        """The same, but what was encrypted is read by this codec."""
        ...


def sealing(codec: Codec) -> Sealing | None:
    """The codec, if it encrypts."""
    found: Any = codec
    return found if hasattr(codec, "seal") else None


def reading(codec: Codec, other: Codec) -> Codec:
    """The other codec; if the first decrypts, what it has decrypted is read by the other."""
    found = sealing(codec)
    return other if found is None else found.reading(other)


def closed(codec: Codec) -> Codec:
    """The codec for who passes sealed payloads on as they are."""
    found = sealing(codec)
    return codec if found is None else found.inner


def run(steps: SealingSteps[T], connection: Executor) -> T:
    def answer(step: Statement | Copy | Callable[[], Any]) -> Any:
        return connection.execute(step) if isinstance(step, Statement | Copy) else step()

    return drive(steps, answer)


async def arun(steps: SealingSteps[T], connection: AsyncExecutor) -> T:
    async def answer(step: Statement | Copy | Callable[[], Any]) -> Any:
        if isinstance(step, Statement | Copy):
            return await connection.execute(step)
        return await asyncio.to_thread(step)

    return await adrive(steps, answer)
