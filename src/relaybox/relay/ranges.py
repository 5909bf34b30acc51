"""A publisher as the handler of the range engine: for relays that read the log of a topic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..delivery import Delivery
from ..engine.dispatch import Durations
from ..engine.ranges.workers import RangeBatch
from ..errors import BatchFailed
from ..event import Event
from .publish import Publisher


class RangePublisher:
    def __init__(
        self,
        publisher: Publisher,
        durations: Durations,
        *,
        ordered: bool,
        wanted: Callable[[Event], bool] = lambda event: True,
    ) -> None:
        """`wanted`: what goes out; the rest is passed over."""
        self.size = publisher.size
        self.passed = 0  # events that were not wanted
        self._wanted = wanted
        self._durations = durations
        self._publisher = publisher
        self._ordered = ordered

    async def handle(self, batch: RangeBatch) -> None:
        started = self._durations.now()
        one_per_key = self._ordered and not self._publisher.sequences
        events = [event for event in batch.events if self._wanted(event)]
        publication = _Publication(batch, events, ordered=self._ordered, one_per_key=one_per_key)
        try:
            while before := len(publication):
                await self._publisher.handle(publication)
                if len(publication) == before:  # what is left is not ours any more
                    break
            publication.conclude()
            self.passed += len(batch.events) - len(events)
        finally:
            self._durations.since(started, len(batch.events))


class _Publication:
    """The batch of one call, as a publisher wants it: each delivery is concluded once."""

    def __init__(self, batch: RangeBatch, events: Sequence[Event], *, ordered: bool, one_per_key: bool) -> None:
        self._batch = batch
        self._one_per_key = one_per_key
        self._open: dict[int, Delivery] = {}
        for event in events:
            assert event.seq is not None
            self._open[event.seq] = Delivery(event, event.seq, 0, 1, 0.0, hot=False, ordered=ordered)
        self._errors: dict[Event, BaseException] = {}
        self._skipped: set[Event] = set()

    def __len__(self) -> int:
        return len(self._open)

    async def waiting(self) -> list[Delivery]:
        """With a sink that keeps no sequences, the first of each key: the next one follows when it is acknowledged."""
        ours = await self._batch.ours()
        mine = [delivery for delivery in self._open.values() if delivery.event.id in ours]
        if not self._one_per_key:
            return mine
        heads: dict[Any, Delivery] = {}
        for delivery in mine:
            heads.setdefault(delivery.seq if delivery.lane is None else delivery.lane, delivery)
        return list(heads.values())

    def done(self, delivery: Delivery) -> None:
        self.done_all([delivery])

    def done_all(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            self._open.pop(delivery.seq, None)

    def failed(self, delivery: Delivery, error: BaseException) -> None:
        """If an earlier one of its key is under way yet, it is tried again behind that."""
        lane = [each for each in self._open.values() if delivery.lane is not None and each.lane == delivery.lane]
        if delivery.seq not in self._open:
            return
        if not lane or lane[0] is delivery:
            self._errors[delivery.event] = error
            del self._open[delivery.seq]
            lane = lane[1:]
        else:
            lane = lane[lane.index(delivery) :]
        for follower in lane:
            self._skipped.add(follower.event)
            del self._open[follower.seq]

    def conclude(self) -> None:
        self._skipped |= {delivery.event for delivery in self._open.values()}
        if self._errors or self._skipped:
            raise BatchFailed(self._errors, self._skipped)
