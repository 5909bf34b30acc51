"""The deliver stage of an inbox: each message in a transaction, its effect and its mark standing or falling together.

    begin ─► mark ─► listener(event, handle) ─► commit, if the mark is still there

The mark comes first: it locks the pending row under our token, so nobody else runs the message meanwhile, and a lost
claim is noticed before anything is done. A batch locks all its rows first and marks what was done last. A crash
anywhere before the commit leaves the rows as they were.

A listener that ends the transaction has effects without a mark. Nobody can tell which, so the message is not repeated:
TransactionEnded makes it a dead letter. On PostgreSQL the question travels with the COMMIT; elsewhere the last of the
statements that make a mark finds out.

Interceptors stand around the transaction: after it they learn whether it was committed.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from .. import faults
from ..clock import Clock
from ..delivery import Delivery
from ..drivers.limits import Deadlines
from ..engine.dispatch import Dispatch, read
from ..engine.protocols import RowBatch
from ..engine.threads import ListenerThreads
from ..errors import BrokerUnavailable, ConfigError, Erased, NoTransaction, Reject, StoreError, TransactionEnded
from ..event import Event, opened_message
from ..listeners import Listener, Listeners
from ..op import Op
from ..settings import DeliverySettings
from ..store.claims import HeldRow
from ..store.inbox import InboxStore
from ..store.inbox.order import LONGEST, Order
from .source import MessageDelivery
from .transactions import Call, MessageTransaction, RolledBack, Step, Steps, TransactionBody, aplay, ended, savepoint

log = logging.getLogger("relaybox")


class MessageMarks:
    """What goes into the transaction beside the listener's writes."""

    def __init__(self, store: InboxStore, order: Order | None, clock: Clock) -> None:
        self._store = store
        self._ordered = order is not None
        self._clock = clock

    def mark(self, message: MessageDelivery) -> Op[None]:
        """Before the listener of a message that has the transaction for itself."""
        marked = yield from self._store.mark(_held(message), message.event, self._clock.database_now())
        if not marked:
            raise lost(message)
        yield from self.take_turn(message)

    def check(self, message: MessageDelivery) -> Op[None]:
        """After the listener: the mark is still there. Not needed where the commit looks for it."""
        if not (yield from self._store.still_marked(_held(message), message.event)):
            raise TransactionEnded

    def lock(self, messages: Sequence[MessageDelivery]) -> Op[set[int]]:
        """Before a batch: locks its rows, and says which are still ours."""
        return self._store.lock_messages([_held(message) for message in messages])

    def mark_all(self, messages: Sequence[MessageDelivery]) -> Op[None]:
        """After a batch: these are done."""
        if messages:
            yield from self._store.mark_all([_held(message) for message in messages], self._clock.database_now())

    def take_turn(self, message: MessageDelivery) -> Op[None]:
        """In an ordered inbox: checks that this number is next, and moves its key on."""
        key, position = message.event.key, message.position
        if not self._ordered or position is None or key is None:
            return
        if len(key) > LONGEST:
            raise Reject(f"its key has {len(key):,} characters, in an ordered inbox the limit is {LONGEST}")
        expected = yield from self._store.advance(key, position, self._clock.database_now())
        if expected is None or (message.replayed and position < expected):
            return
        if position < expected:
            raise Reject(
                f"number {position} came after its turn: its key expects {expected}. Another message had this number, "
                "or it was skipped; replay it to have it processed all the same"
            )
        raise BrokerUnavailable(f"number {position} is not next, its key expects {expected}")


def lost(message: MessageDelivery) -> BrokerUnavailable:
    return BrokerUnavailable(f"message {message.event.id} is another processor's by now")


def _held(message: MessageDelivery) -> HeldRow:
    return HeldRow(message.seq, message.token)


class Handling(Dispatch):
    """The handler of the engine: `row` for one message in a transaction, `handle` for `size` of them."""

    sequences = True

    def __init__(
        self,
        listeners: Listeners[Any],
        threads: ListenerThreads,
        marks: MessageMarks,
        begin: Callable[[bool, TransactionBody], Steps[None]],
        bare: Callable[[TransactionBody], Steps[None]],
        settings: DeliverySettings,
        clock: Clock,
        *,
        seconds: float | None,
        size: int,
    ) -> None:
        """
        begin    a transaction with that work in it, for an async listener or for a plain one
        bare     one in the event loop without anything of a listener in it
        seconds  for each statement of ours
        """
        super().__init__(listeners, threads, timeout=settings.timeout, clock=clock)
        self.size = size
        self._marks = marks
        self._begin, self._bare = begin, bare
        self._seconds = seconds
        self._limits = Deadlines()
        self._plain = any(not listener.is_async for listener in listeners.all())

    async def try_session(self) -> None:
        """One transaction with nothing in it. A session of the wrong kind is refused before a message is claimed: each
        message would fail of it. One whose database is away is not: it is waited for."""

        def nothing(_: MessageTransaction) -> Steps[None]:
            yield from ()

        steps = self._begin(not self._plain, nothing)
        try:
            async with asyncio.timeout(self._seconds):
                await (self._threaded_steps(steps) if self._plain else aplay(steps, self._limits, self._seconds))
        except (ConfigError, NoTransaction):
            raise
        except Exception as error:
            log.warning("the session gave no transaction yet: %s", type(error).__name__)

    def _listen(self, event: Event, second: Delivery | int) -> Awaitable[Any]:
        assert isinstance(second, MessageDelivery)
        return self._alone(second, self._listener(event))

    def _listener(self, event: Event) -> Listener | None:
        """None: no listener wants it, and it counts as done. Raises Unroutable if it is to die."""
        listener = self._listeners.find(event)
        if listener is None:
            self._unmatched(event)
        return listener

    async def _alone(self, message: MessageDelivery, listener: Listener | None) -> None:
        def work(tx: MessageTransaction) -> Steps[None]:
            return self._one(tx, message, listener)

        try:
            if listener is None:
                await aplay(self._bare(work), self._limits, self._seconds)
            elif listener.is_async:
                await aplay(self._begin(True, work), self._limits, self._seconds)
            else:
                await self._threaded_steps(self._begin(False, work))
            faults.hit("settle.after")
        except TransactionEnded as error:
            log.error("message %s (%s): %s", message.event.id, message.event.type, error)
            raise

    async def _threaded_steps(self, steps: Steps[None]) -> None:
        call = Call(self._seconds)
        try:
            await self._threads.call(call.play, steps)
        finally:
            call.end()

    def _one(self, tx: MessageTransaction, message: MessageDelivery, listener: Listener | None) -> Steps[None]:
        yield from tx.run(self._marks.mark(message))
        if listener is not None:
            failure: Exception | None = None
            try:
                yield from self._call(tx, message, listener, listener.call)
            except Exception as error:
                failure = error
            if ended(tx, failure):
                if not tx.connection.in_transaction():  # if it was committed with its mark, it counts
                    with suppress(StoreError, BrokerUnavailable, TransactionEnded):
                        yield from tx.run(self._marks.check(message))
                raise TransactionEnded from failure
            if failure is not None:
                raise failure
        if not tx.looks:
            yield from tx.run(self._marks.check(message))
        faults.hit("settle.before")

    def _call(self, tx: MessageTransaction, message: MessageDelivery, listener: Listener, call: Any) -> Steps[None]:
        if self.stopping:  # the transaction may have waited long for a connection, a lock or the others of its batch
            raise BrokerUnavailable("this process is stopping, and its listener was not called")
        try:
            event = read(listener, opened_message(message.event))
            arguments = (event, tx.handle) if listener.takes_two else (event,)
            answer = yield Step(call, arguments, tx.connection, limited=False)
        except Erased:
            message.erased = True
            raise
        if answer is not None and inspect.isawaitable(answer):
            raise TypeError(f"{listener.name} is a plain function and returned what must be awaited; write async def")

    # -- several in one transaction ---------------------------------------------------------------------

    async def handle(self, batch: RowBatch) -> None:
        """A savepoint for each: one that fails takes nothing else with it."""
        fates = _Fates(await batch.waiting())
        async with self._around(fates.messages) as errors:
            try:
                await self._together(fates)
                faults.hit("settle.after")
            except TransactionEnded as error:
                fates.ended(error)
            errors |= fates.failed
        fates.tell(batch)

    async def _together(self, fates: _Fates) -> None:
        def work(tx: MessageTransaction) -> Steps[None]:
            return self._many(tx, fates)

        if not self._plain:
            await aplay(self._begin(True, work), self._limits, self._seconds)
            return
        limits = [self.timeout(message.event) for message in fates.messages]
        seconds = [limit.total_seconds() for limit in limits if limit is not None]
        async with asyncio.timeout(sum(seconds) if len(seconds) == len(limits) else None):
            await self._threaded_steps(self._begin(False, work))

    def _many(self, tx: MessageTransaction, fates: _Fates) -> Steps[None]:
        ours = yield from tx.run(self._marks.lock(fates.messages))
        for message in fates.to_do(ours):
            try:
                yield from savepoint(tx, self._turn(tx, message, self._listener(message.event)))
                fates.done.append(message)
            except Exception as error:
                if tx.connection.broken() or isinstance(error, (TransactionEnded, RolledBack)):
                    raise
                fates.fail(message, error)
        yield from tx.run(self._marks.mark_all(fates.done))
        faults.hit("settle.before")

    def _turn(self, tx: MessageTransaction, message: MessageDelivery, listener: Listener | None) -> Steps[None]:
        yield from tx.run(self._marks.take_turn(message))
        if listener is not None:

            async def in_time(*arguments: Any) -> None:
                async with self._limited(listener):
                    await listener.call(*arguments)

            yield from self._call(tx, message, listener, in_time if listener.is_async else listener.call)


class _Fates:
    """What became of the messages of a batch so far. Behind one that failed, its key waits."""

    def __init__(self, deliveries: Sequence[Delivery]) -> None:
        self.messages = [delivery for delivery in deliveries if isinstance(delivery, MessageDelivery)]
        self.done: list[MessageDelivery] = []
        self.failed: dict[int, Exception] = {}
        self._begun: set[int] = set()
        self._waiting: set[str] = set()

    def to_do(self, ours: set[int]) -> Iterator[MessageDelivery]:
        for message in self.messages:
            if message.seq not in ours:
                self.fail(message, lost(message))
            elif message.lane not in self._waiting:
                self._begun.add(message.seq)
                yield message

    def fail(self, message: MessageDelivery, error: Exception) -> None:
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

    def tell(self, batch: RowBatch) -> None:
        """After the commit."""
        batch.done_all(self.done)
        for message in self.messages:
            if message.seq in self.failed:
                batch.failed(message, self.failed[message.seq])
