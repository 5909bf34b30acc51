"""The deliver stage of an inbox: each message in a transaction, its effect and its mark standing or falling together.

    begin ─► mark ─► handler(event, handle) ─► commit, if the mark is still there

The mark comes first: it locks the pending row under our token, so nobody else runs the message meanwhile, and a lost
claim is noticed before anything is done. A batch locks all its rows first and marks what was done last. A crash
anywhere before the commit leaves the rows as they were.

A handler that ends the transaction has effects without a mark. Nobody can tell which, so the message is not repeated:
TransactionEnded makes it a dead letter. On PostgreSQL the question travels with the COMMIT; elsewhere the last of the
statements that make a mark finds out.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeAlias

from .. import faults
from ..clock import Clock
from ..delivery import Delivery
from ..engine.threads import ListenerThreads
from ..engine.work import Batch, BatchHandler, Handler
from ..errors import BrokerUnavailable, ConfigError, Reject, StoreError, TransactionEnded
from ..event import Event
from ..op import Op, arun, run
from ..settings import Settings
from ..store.claims import Held
from ..store.inbox import InboxStore
from ..store.inbox.order import Order
from .source import Message
from .transactions import AsyncFactory, Ours, RolledBack, SyncFactory, async_savepoint, ended, not_its_fault, savepoint

log = logging.getLogger("relaybox")

MessageHandler: TypeAlias = Callable[[Event, Any], Any]


class Marks:
    """What goes into the transaction beside the handler's writes."""

    def __init__(self, store: InboxStore, order: Order | None, clock: Clock) -> None:
        self._store = store
        self._ordered = order is not None
        self._clock = clock

    def one(self, message: Message) -> Op[None]:
        """Before the handler of a message that has the transaction for itself."""
        marked = yield from self._store.mark(_held(message), message.event, self._clock.database_now())
        if not marked:
            raise lost(message)
        yield from self.turn(message)

    def still(self, message: Message) -> Op[None]:
        """After the handler, unless the commit looks by itself."""
        if not (yield from self._store.still_marked(_held(message), message.event)):
            raise TransactionEnded

    def begin(self, messages: Sequence[Message]) -> Op[set[int]]:
        """Before a batch: which of it are ours."""
        return self._store.lock_messages([_held(message) for message in messages])

    def end(self, messages: Sequence[Message]) -> Op[None]:
        """After a batch: these are done."""
        if messages:
            yield from self._store.mark_all([_held(message) for message in messages], self._clock.database_now())

    def turn(self, message: Message) -> Op[None]:
        """In an ordered inbox: it is this number's turn, and then the next one's."""
        key, position = message.event.key, message.position
        if not self._ordered or position is None or key is None:
            return
        expected = yield from self._store.advance(key, position, self._clock.database_now())
        if expected is None or (message.replayed and position < expected):
            return
        if position < expected:
            raise Reject(
                f"number {position} came after its turn: its key expects {expected}. Another message had this number, "
                "or it was skipped; replay it to have it processed all the same"
            )
        raise BrokerUnavailable(f"number {position} is not next, its key expects {expected}")


def lost(message: Message) -> BrokerUnavailable:
    return BrokerUnavailable(f"message {message.event.id} is another processor's by now")


def told(event: Event, error: TransactionEnded) -> None:
    log.error("message %s (%s): %s", event.id, event.type, error)


def _held(message: Message) -> Held:
    return Held(message.seq, message.token)


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
        message = _message(delivery)
        try:
            async with begin() as tx:
                with not_its_fault():
                    await arun(marks.one(message), tx.connection)
                failure: Exception | None = None
                try:
                    with tx.connection.handed_out():
                        await handler(message.event, tx.handle)
                except Exception as error:
                    failure = error
                if ended(tx, failure):
                    if not tx.connection.in_transaction():
                        with suppress(StoreError, TransactionEnded):  # if it was committed with its mark, it counts
                            await arun(marks.still(message), tx.connection)
                    raise TransactionEnded from failure
                if failure is not None:
                    raise failure
                if not tx.looks:
                    with not_its_fault():
                        await arun(marks.still(message), tx.connection)
                faults.hit("settle.before")
            faults.hit("settle.after")
        except TransactionEnded as error:
            told(message.event, error)
            raise

    return one if batch == 1 else _AsyncBatches(handler, begin, marks, settings, batch)


def make_sync(
    handler: MessageHandler, begin: SyncFactory, marks: Marks, threads: ListenerThreads, settings: Settings, batch: int
) -> Handler | BatchHandler:
    def one(delivery: Delivery, call: _Call) -> None:
        message = _message(delivery)
        try:
            with begin() as tx, call.using(tx.connection):
                with not_its_fault():
                    run(marks.one(message), tx.connection)
                failure: Exception | None = None
                try:
                    handler(message.event, tx.handle)
                except Exception as error:
                    failure = error
                if ended(tx, failure):
                    if not tx.connection.in_transaction():
                        with suppress(StoreError, TransactionEnded):  # if it was committed with its mark, it counts
                            run(marks.still(message), tx.connection)
                    raise TransactionEnded from failure
                if failure is not None:
                    raise failure
                if not tx.looks:
                    with not_its_fault():
                        run(marks.still(message), tx.connection)
                faults.hit("settle.before")
            faults.hit("settle.after")
        except TransactionEnded as error:
            told(message.event, error)
            raise

    async def threaded(delivery: Delivery) -> None:
        call = _Call()
        try:
            await threads.call(one, delivery, call)
        finally:
            call.end()

    return threaded if batch == 1 else _SyncBatches(handler, begin, marks, threads, settings, batch)


class _Call:
    """A handler in a thread cannot be stopped. One that is given up loses its connection: what waits for an answer
    there ends, and nothing is committed when it comes back."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connection: Ours | None = None
        self._over = False

    @contextmanager
    def using(self, connection: Ours) -> Iterator[None]:
        try:
            self._set(connection)
            yield
        finally:
            self._set(None)

    def _set(self, connection: Ours | None) -> None:
        with self._lock:
            self._connection = connection
            if self._over:
                raise TimeoutError("the handler ran too long, or this process is stopping")

    def end(self) -> None:
        with self._lock:
            self._over = True
            if self._connection is not None:
                self._connection.abort()


class _Fates:
    """What became of the messages of a batch so far. Behind one that failed, its key waits."""

    def __init__(self, deliveries: Sequence[Delivery]) -> None:
        self.messages = [_message(delivery) for delivery in deliveries]
        self.done: list[Message] = []
        self.failed: dict[int, BaseException] = {}
        self._begun: set[int] = set()
        self._waiting: set[str] = set()

    def to_do(self, ours: set[int]) -> Iterator[Message]:
        for message in self.messages:
            if message.seq not in ours:
                self.fail(message, lost(message))
            elif message.lane not in self._waiting:
                self._begun.add(message.seq)
                yield message

    def fail(self, message: Message, error: BaseException) -> None:
        self.failed[message.seq] = error
        if message.lane is not None:
            self._waiting.add(message.lane)

    def ended(self, error: TransactionEnded) -> None:
        """Instead of a commit: nobody knows whether effects of those that ran stand; the others were not begun."""
        self.done.clear()
        for message in self.messages:
            if message.seq in self.failed:
                continue
            if message.seq in self._begun:
                self.fail(message, error)
            elif message.lane not in self._waiting:
                self.fail(message, BrokerUnavailable("the transaction of its batch was ended before its turn"))
        log.error("of a batch of %d messages: %s", len(self.messages), error)

    def tell(self, batch: Batch) -> None:
        """After the commit."""
        batch.done_all(self.done)
        for message in self.messages:
            if message.seq in self.failed:
                batch.failed(message, self.failed[message.seq])


class _Batches:
    """Several messages in one transaction, a savepoint for each: one that fails takes nothing else with it."""

    sequences = True

    def __init__(self, handler: MessageHandler, marks: Marks, settings: Settings, size: int) -> None:
        self._handler = handler
        self._marks = marks
        self._timeout = settings.delivery.timeout.total_seconds() if settings.delivery.timeout else None
        self.size = size


class _AsyncBatches(_Batches):
    def __init__(
        self, handler: MessageHandler, begin: AsyncFactory, marks: Marks, settings: Settings, size: int
    ) -> None:
        super().__init__(handler, marks, settings, size)
        self._begin = begin

    async def handle(self, batch: Batch) -> None:
        fates, marks = _Fates(await batch.waiting()), self._marks
        try:
            async with self._begin() as tx:
                with not_its_fault():
                    ours = await arun(marks.begin(fates.messages), tx.connection)
                for message in fates.to_do(ours):
                    try:
                        async with async_savepoint(tx):
                            with not_its_fault():
                                await arun(marks.turn(message), tx.connection)
                            with tx.connection.handed_out():
                                async with asyncio.timeout(self._timeout):
                                    await self._handler(message.event, tx.handle)
                        fates.done.append(message)
                    except Exception as error:
                        if tx.connection.broken() or isinstance(error, (TransactionEnded, RolledBack)):
                            raise
                        fates.fail(message, error)
                with not_its_fault():
                    await arun(marks.end(fates.done), tx.connection)
                faults.hit("settle.before")
            faults.hit("settle.after")
        except TransactionEnded as error:
            fates.ended(error)
        fates.tell(batch)


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
        fates, call = _Fates(await batch.waiting()), _Call()
        limit = None if self._timeout is None else self._timeout * max(len(fates.messages), 1)
        try:
            async with asyncio.timeout(limit):
                await self._threads.call(self._run, fates, call)
        except TransactionEnded as error:
            fates.ended(error)
        finally:
            call.end()
        fates.tell(batch)

    def _run(self, fates: _Fates, call: _Call) -> None:
        marks = self._marks
        with self._begin() as tx, call.using(tx.connection):
            with not_its_fault():
                ours = run(marks.begin(fates.messages), tx.connection)
            for message in fates.to_do(ours):
                try:
                    with savepoint(tx):
                        with not_its_fault():
                            run(marks.turn(message), tx.connection)
                        self._handler(message.event, tx.handle)
                    fates.done.append(message)
                except Exception as error:
                    if tx.connection.broken() or isinstance(error, (TransactionEnded, RolledBack)):
                        raise
                    fates.fail(message, error)
            with not_its_fault():
                run(marks.end(fates.done), tx.connection)
            faults.hit("settle.before")
        faults.hit("settle.after")


def _message(delivery: Delivery) -> Message:
    assert isinstance(delivery, Message)
    return delivery
