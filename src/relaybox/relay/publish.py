"""The relay's handler: check the contract, find the destination, render, publish, conclude.

A message that may never go out (contract, size, no destination) is rejected alone. While the broker is away the batch
stays here and is tried again when it is back: no attempt is counted, no order changes, and what was acknowledged is
settled meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta

from ..brokers.batches import grouped
from ..brokers.formats import Render
from ..brokers.spi import Answer, Message, Sink
from ..clock import Clock
from ..contracts import Contracts
from ..delivery import Delivery
from ..engine.protocols import RowBatch
from ..errors import BrokerUnavailable, DeliveryError, Reject
from ..event import SEALED, Event, opened
from ..facts import Observers, Published
from ..tasks import is_cancelled
from .circuit import Circuit
from .destinations import Destinations
from .pauses import Pauses

Prepare = Callable[[Event], Message]
Due = tuple[Delivery, Message]
SLOW = 0.1  # seconds to prepare a batch in which a lease may have run out


def addressed(event: Event, route: Callable[[Event], str] | None, contracts: Contracts | None) -> tuple[Event, str]:
    """The event as it goes out, and where."""
    destination = None
    if contracts is not None:
        if event.content_type == SEALED:  # checked before it was encrypted, it goes out in the version it has
            contract = contracts.resolve(event)
        else:
            event, contract = contracts.outgoing(event)
        destination = contract.to
    if destination is None:
        if route is None:
            raise Reject(f"neither the contract of {event.type!r} nor the relay names a destination")
        destination = route(event)
    return event, destination


def preparation(
    sink: Sink,
    render: Render,
    route: Callable[[Event], str] | None,
    contracts: Contracts | None,
    decrypt: bool = False,
) -> Prepare:
    """Everything between a stored event and the message that leaves. Raises Reject for what never can."""
    limit = sink.features.max_bytes
    if contracts is None and limit is None and route is not None and not decrypt:  # nothing to look into
        find = route
        return lambda event: render(event, find(event))

    def prepare(event: Event) -> Message:
        event, destination = addressed(opened(event) if decrypt else event, route, contracts)
        message = render(event, destination)
        if limit is not None and len(message.body) > limit:
            raise Reject(f"the message is {len(message.body):,} bytes, {sink.name} takes {limit:,}")
        return message

    return prepare


class Publisher:
    def __init__(
        self,
        sink: Sink,
        prepare: Prepare,
        circuit: Circuit,
        *,
        size: int,
        timeout: timedelta,
        observers: Observers,
        clock: Clock,
        queue: Destinations | None = None,
    ) -> None:
        """`queue`: of a sink with many destinations. It gives an event when there is a call for it."""
        self.queue = queue
        self.size = min(size, sink.features.batch) if queue is None else 1
        # Destinations are published to at the same time: two of them must not share a key.
        self.sequences = sink.features.sequences and not sink.features.by_destination
        self._sink = sink
        self._prepare = prepare
        self._circuit = circuit
        self._pauses = Pauses(clock)
        # A sink with many destinations bounds its calls itself: endpoints differ.
        self._timeout = None if sink.features.by_destination else timeout.total_seconds()
        self._observers = observers
        self._clock = clock

    async def handle(self, batch: RowBatch) -> None:
        prepared = await self._prepared(batch)
        while prepared:
            if self._circuit.is_open:
                await self._circuit.passage()
                prepared = await _still(batch, prepared)
            due = self._admitted(batch, prepared)
            if not due:
                return
            if self._timeout is not None or len(due) == 1:
                await self._publish(batch, due)
            else:
                async with asyncio.TaskGroup() as group:  # each destination by itself: none waits for a slow one
                    for some in grouped(due, lambda each: each[1].destination).values():
                        group.create_task(self._publish(batch, some))
            prepared = await _still(batch, prepared)

    async def _publish(self, batch: RowBatch, due: Sequence[Due]) -> None:
        started = self._clock.monotonic()
        if self.queue is None:
            answers = await self._answers([message for _, message in due])
        else:
            answers = await self._watched(self.queue, due)
        sent = self._conclude(batch, due, answers)
        if sent and self._observers:
            self._observers(Published(self._sink.name, sent, self._clock.monotonic() - started))

    async def _watched(self, queue: Destinations, due: Sequence[Due]) -> Sequence[Answer]:
        """All to one destination, whose pace is learned."""
        destination, started = due[0][1].destination, self._clock.monotonic()
        for delivery, _ in due:
            queue.called(delivery)
        answers = await self._answers([message for _, message in due])
        away = next((answer for answer in answers if isinstance(answer, BrokerUnavailable)), None)
        if away is None or away.destination is not None:
            took, outage = self._clock.monotonic() - started, None if away is None else str(away)
            queue.answered(destination, took, outage)
        return answers

    async def _answers(self, messages: Sequence[Message]) -> Sequence[Answer]:
        """One for each message, whatever the sink does: what it raises stands for all of them."""
        error: Answer
        try:
            async with asyncio.timeout(self._timeout):
                answers = await self._sink.publish(messages)
            if len(answers) == len(messages):
                return answers
            error = DeliveryError(f"{self._sink.name} gave {len(answers)} answers to {len(messages)} messages")
        except asyncio.CancelledError as raised:
            if is_cancelled():
                raise
            error = raised  # nobody cancelled us: a client gave up what we awaited
        except Exception as raised:
            error = raised
            if isinstance(raised, TimeoutError) and self._timeout is not None:
                error = BrokerUnavailable(f"no answer within {self._timeout:g} s")
        return [error] * len(messages)

    async def _prepared(self, batch: RowBatch) -> list[Due]:
        prepared, sure = [], True
        waiting, began = await batch.waiting(), self._clock.monotonic()
        for delivery in waiting:
            try:
                prepared.append((delivery, self._prepare(delivery.event)))
            except Exception as error:
                batch.failed(delivery, error)
                sure = False
        sure = sure and self._clock.monotonic() - began < SLOW
        return prepared if sure else await _still(batch, prepared)

    def _admitted(self, batch: RowBatch, waiting: list[Due]) -> list[Due]:
        """What may go out now: its destination is not resting."""
        if not len(self._pauses):
            return waiting
        admitted = []
        behind: set[str | None] = set()  # keys that wait for one whose destination rests
        for delivery, message in waiting:
            if delivery.lane is not None and delivery.lane in behind:
                continue
            resting = self._pauses.admit(message.destination)
            if resting is None:
                admitted.append((delivery, message))
            else:
                behind.add(delivery.lane)
                batch.failed(delivery, resting)
        return admitted

    def _conclude(self, batch: RowBatch, due: Sequence[Due], answers: Sequence[Answer]) -> int:
        if not len(self._pauses) and answers.count(None) == len(answers):
            batch.done_all([delivery for delivery, _ in due])
            self._circuit.succeeded()
            return len(due)
        sent = 0
        outage: BrokerUnavailable | None = None
        behind: set[str | None] = set()  # keys whose head stays here until the broker is back
        for (delivery, message), answer in zip(due, answers, strict=True):
            if delivery.lane is not None and delivery.lane in behind:
                continue
            if answer is None:
                batch.done(delivery)
                sent += 1
                if len(self._pauses):
                    self._pauses.succeeded(message.destination)
            elif isinstance(answer, BrokerUnavailable) and answer.destination is None:
                outage = answer
                behind.add(delivery.lane)
            elif isinstance(answer, BrokerUnavailable):
                batch.failed(delivery, self._failed(message.destination, answer))
            else:
                batch.failed(delivery, answer)
        if outage is not None:
            self._circuit.trip(outage)
        elif sent:
            self._circuit.succeeded()
        return sent

    def _failed(self, destination: str, outage: BrokerUnavailable) -> BrokerUnavailable:
        """What waits here for a destination of its own queue stays here while that rests."""
        again = self._pauses.failed(destination, outage)
        if self.queue is not None:
            self.queue.rests(destination, self._pauses.left(destination))
        return again


async def _still(batch: RowBatch, prepared: Sequence[Due]) -> list[Due]:
    """What is left to publish: neither concluded nor lost to another process."""
    waiting = {delivery.seq for delivery in await batch.waiting()}
    return [due for due in prepared if due[0].seq in waiting] if waiting else []
