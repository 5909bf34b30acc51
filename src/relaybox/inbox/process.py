"""The deliver stage of an inbox: each message in a transaction, its effect and its mark standing or falling together.

    begin ─► mark ─► handler(event, handle) ─► commit

The mark comes first: it locks the pending row under our token, so nobody else runs the message meanwhile, and a lost
claim is noticed before anything is done. A crash anywhere before the commit leaves the row as it was.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from .. import faults
from ..clock import Clock
from ..errors import ConfigError, Reject, SinkUnavailable
from ..event import Event
from ..op import Op, arun, run
from ..runtime.threads import ListenerThreads
from ..runtime.work import Batch, BatchHandler, Delivery, Handler
from ..settings import Settings
from ..store.inbox import InboxStore
from ..store.inbox_order import Order
from ..store.spi import Held
from .source import Message
from .transactions import AsyncFactory, Open, SyncFactory, async_savepoint, not_its_fault, savepoint

MessageHandler: TypeAlias = Callable[[Event, Any], Any]


class Marks:
    """What goes into the transaction before the handler."""

    def __init__(self, store: InboxStore, order: Order | None, clock: Clock) -> None:
        self._store = store
        self._ordered = order is not None
        self._clock = clock

    def op(self, message: Message) -> Op[None]:
        now = self._clock.database_now()
        event = message.event
        marked = yield from self._store.mark(Held(message.seq, message.token), event.created_at, now)
        if not marked:
            raise SinkUnavailable(f"message {event.id} is another processor's by now")
        if not self._ordered or message.position is None or event.key is None:
            return
        expected = yield from self._store.advance(event.key, message.position, now)
        if expected is None or (message.replayed and message.position < expected):
            return
        if message.position < expected:
            raise Reject(
                f"number {message.position} came after its turn: its key expects {expected}. Another message had this "
                "number, or it was skipped; replay it to have it processed all the same"
            )
        raise SinkUnavailable(f"number {message.position} is not next, its key expects {expected}")


def is_async(handler: Any) -> bool:
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
        getattr(handler, "__call__", None)  # noqa: B004 - an object with an async __call__
    )


def check_handler(handler: Any) -> None:
    if not callable(handler):
        raise ConfigError(f"expected a handler to be a function of (event, handle), got {type(handler).__qualname__}")
    try:
        inspect.signature(handler).bind(None, None)
    except TypeError:
        raise ConfigError(
            f"expected handler {getattr(handler, '__name__', handler)!r} to take (event, handle): the message, and the "
            "connection or session of its transaction"
        ) from None
    except ValueError:
        return  # no signature to look at


def make_async(
    handler: MessageHandler, begin: AsyncFactory, marks: Marks, settings: Settings, batch: int
) -> Handler | BatchHandler:
    async def one(delivery: Delivery) -> None:
        async with begin() as tx:
            with not_its_fault():
                await arun(marks.op(_message(delivery)), tx.connection)
            await handler(delivery.event, tx.handle)
            faults.hit("settle.before")
        faults.hit("settle.after")

    return one if batch == 1 else _AsyncBatches(handler, begin, marks, settings, batch)


def make_sync(
    handler: MessageHandler, begin: SyncFactory, marks: Marks, threads: ListenerThreads, settings: Settings, batch: int
) -> Handler | BatchHandler:
    def one(delivery: Delivery, call: _Call) -> None:
        with begin() as tx:
            with not_its_fault():
                run(marks.op(_message(delivery)), tx.connection)
            handler(delivery.event, tx.handle)
            faults.hit("settle.before")
            call.check()
        faults.hit("settle.after")

    async def threaded(delivery: Delivery) -> None:
        call = _Call()
        try:
            await threads.call(one, delivery, call)
        finally:
            call.over = True

    return threaded if batch == 1 else _SyncBatches(handler, begin, marks, threads, settings, batch)


class _Call:
    """A handler in a thread cannot be stopped; one that was given up must not commit when it comes back."""

    over = False

    def check(self) -> None:
        if self.over:
            raise TimeoutError("the handler ran too long, or this process is stopping")


class _Batches:
    """Several messages in one transaction, a savepoint for each: one that fails takes nothing else with it."""

    sequences = True

    def __init__(self, handler: MessageHandler, marks: Marks, settings: Settings, size: int) -> None:
        self._handler = handler
        self._marks = marks
        self._timeout = settings.handler_timeout.total_seconds() if settings.handler_timeout else None
        self.size = size

    def _conclude(
        self, batch: Batch, deliveries: Sequence[Delivery], failed: dict[int, BaseException], held: set[int]
    ) -> None:
        """After the commit. What was held back behind a failed one goes with it."""
        batch.done_all([d for d in deliveries if d.seq not in failed and d.seq not in held])
        for delivery in deliveries:
            if delivery.seq in failed:
                batch.failed(delivery, failed[delivery.seq])


class _AsyncBatches(_Batches):
    def __init__(
        self, handler: MessageHandler, begin: AsyncFactory, marks: Marks, settings: Settings, size: int
    ) -> None:
        super().__init__(handler, marks, settings, size)
        self._begin = begin

    async def handle(self, batch: Batch) -> None:
        deliveries = await batch.waiting()
        failed: dict[int, BaseException] = {}
        held, lanes = set[int](), set[str]()
        async with self._begin() as tx:
            for delivery in deliveries:
                if delivery.lane in lanes:
                    held.add(delivery.seq)
                    continue
                try:
                    async with async_savepoint(tx):
                        with not_its_fault():
                            await arun(self._marks.op(_message(delivery)), tx.connection)
                        async with asyncio.timeout(self._timeout):
                            await self._handler(delivery.event, tx.handle)
                except Exception as error:
                    if tx.connection.broken():
                        raise
                    failed[delivery.seq] = error
                    lanes |= {delivery.lane} if delivery.lane is not None else set()
            faults.hit("settle.before")
        faults.hit("settle.after")
        self._conclude(batch, deliveries, failed, held)


class _SyncBatches(_Batches):
    def __init__(
        self,
        handler: MessageHandler,
        begin: SyncFactory,
        marks: Marks,
        threads: ListenerThreads,
        settings: Settings,
        size: int,
    ) -> None:
        super().__init__(handler, marks, settings, size)
        self._begin = begin
        self._threads = threads

    async def handle(self, batch: Batch) -> None:
        deliveries = await batch.waiting()
        call = _Call()
        limit = None if self._timeout is None else self._timeout * max(len(deliveries), 1)
        try:
            async with asyncio.timeout(limit):
                failed, held = await self._threads.call(self._run, deliveries, call)
        finally:
            call.over = True
        self._conclude(batch, deliveries, failed, held)

    def _run(self, deliveries: Sequence[Delivery], call: _Call) -> tuple[dict[int, BaseException], set[int]]:
        failed: dict[int, BaseException] = {}
        held, lanes = set[int](), set[str]()
        with self._begin() as tx:
            for delivery in deliveries:
                if delivery.lane in lanes:
                    held.add(delivery.seq)
                    continue
                try:
                    self._one(tx, delivery)
                except Exception as error:
                    if tx.connection.broken():
                        raise
                    failed[delivery.seq] = error
                    lanes |= {delivery.lane} if delivery.lane is not None else set()
            faults.hit("settle.before")
            call.check()
        faults.hit("settle.after")
        return failed, held

    def _one(self, tx: Open, delivery: Delivery) -> None:
        with savepoint(tx):
            with not_its_fault():
                run(self._marks.op(_message(delivery)), tx.connection)
            self._handler(delivery.event, tx.handle)


def _message(delivery: Delivery) -> Message:
    assert isinstance(delivery, Message)
    return delivery
