"""Payloads that are stored encrypted: what products ask of a vault that was given to them as their codec.

A writer seals events before it inserts them; a reader loads their keys first, where nothing else waits, so that
`event.payload` decrypts without asking the database.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Generator, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

from .codec import Codec
from .event import Event
from .op import AsyncExecutor, Copy, Executor, Op, Statement, adrive, drive

T = TypeVar("T")
# Statements on the caller's connection; and calls beside it, which may wait for a network.
SealingStep: TypeAlias = Statement | Copy | Callable[[], Any]
SealingSteps = Generator[SealingStep, Any, T]


class OpRunner(Protocol):
    """A database that is not the caller's."""

    def run(self, op: Op[T], *, tx: bool = True) -> T: ...


class Sealing(Codec, Protocol):
    @property
    def inner(self) -> Codec:
        """What reads a payload that was decrypted."""
        ...

    def seal(self, events: Sequence[Event]) -> SealingSteps[list[Event]]:
        """The events with their payloads encrypted, in a transaction. InvalidEvent for one that cannot be."""
        ...

    def seal_messages(
        self,
        events: Sequence[Event],
        senders: Sequence[str],
        *,
        shown: Collection[str],
        codec: Codec,
        letters: dict[str, str] | None = None,
    ) -> SealingSteps[list[Event]]:
        """Messages as an inbox keeps them."""
        ...

    def open_message(self, event: Event) -> Event:
        """A message that an inbox keeps, as it was sent. Undecodable, Erased: there is none."""
        ...

    def opened(self, event: Event) -> Event:
        """The same if that can be had at once, or else as it is."""
        ...

    @property
    def runner(self) -> OpRunner:
        """Connections of its own."""
        ...

    def verify(self) -> object:
        """SchemaMissing: there is no table of data keys."""
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
    def answer(step: SealingStep) -> Any:
        return connection.execute(step) if isinstance(step, Statement | Copy) else step()

    return drive(steps, answer)


async def arun(steps: SealingSteps[T], connection: AsyncExecutor) -> T:
    async def answer(step: SealingStep) -> Any:
        if isinstance(step, Statement | Copy):
            return await connection.execute(step)
        return await asyncio.to_thread(step)

    return await adrive(steps, answer)


def run_beside(steps: SealingSteps[T], vault: Sealing | None) -> T:
    """Before the caller's transaction: what these insert is committed, by a connection of the vault's own."""
    try:
        step = next(steps)
    except StopIteration as ended:
        value: T = ended.value
        return value
    assert vault is not None
    return _finish(steps, step, vault.runner)


async def arun_beside(steps: SealingSteps[T], vault: Sealing | None) -> T:
    """The same. In this thread only if there is nothing to wait for."""
    try:
        step = next(steps)
    except StopIteration as ended:
        value: T = ended.value
        return value
    assert vault is not None
    return await asyncio.to_thread(_finish, steps, step, vault.runner)


def _finish(steps: SealingSteps[T], step: SealingStep, db: OpRunner) -> T:
    try:
        while not isinstance(step, Statement | Copy):
            step = steps.send(step())
    except StopIteration as ended:
        value: T = ended.value
        return value
    return db.run(_statements(steps, step))


def _statements(steps: SealingSteps[T], step: SealingStep) -> Op[T]:
    try:
        while True:
            answer = (yield step) if isinstance(step, Statement | Copy) else step()
            step = steps.send(answer)
    except StopIteration as ended:
        value: T = ended.value
        return value
