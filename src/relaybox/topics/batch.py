"""A pulled batch, and what its commit means for the ranges and parked events it was made of. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self, TypeVar, overload

from ..engine.decide import decide
from ..errors import ConfigError, DeliveryError
from ..event import Event
from ..ids import key_hash
from ..outcome import Dead, Outcome, RetryAt
from ..retry import Retry
from ..store.event_rows import lane_key
from ..store.topics import GroupRow, ParkedEvent, ParkedOutcome, Parking, Range, RangeSettlement

if TYPE_CHECKING:
    from .consumer import AsyncConsumer, Consumer

T = TypeVar("T")
NOW = timedelta(0)
Failures = Mapping[Event[Any], BaseException | str]


class BatchPage:
    """One range: the events shown to the consumer, and those that must wait behind a parked one of their key."""

    __slots__ = ("held", "range", "shown")

    def __init__(self, held_range: Range, events: Iterable[Event], held_keys: frozenset[int]) -> None:
        self.range = held_range
        self.shown: list[Event] = []
        self.held: list[Event] = []
        for event in events:
            (self.held if held_keys and key_hash(lane_key(event)) in held_keys else self.shown).append(event)


class _Batch(Sequence[Event[T]]):
    def __init__(self, pages: Sequence[BatchPage], parked: Sequence[tuple[ParkedEvent, Event]]) -> None:
        self.pages = pages
        self.parked = parked
        self.since = self.until = 0.0  # monotonic
        self.open = bool(pages or parked)
        self.doubtful = False  # a commit was begun and its reply lost
        self._events: list[Event[T]] = [event for _, event in parked] + [e for page in pages for e in page.shown]
        self._attempts = {event.seq: found.attempts for found, event in parked}
        for page in pages:
            self._attempts.update((event.seq, page.range.attempts) for event in page.shown)

    @overload
    def __getitem__(self, index: int) -> Event[T]: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Event[T]]: ...
    def __getitem__(self, index: int | slice) -> Event[T] | Sequence[Event[T]]:
        return self._events[index]

    def __len__(self) -> int:
        return len(self._events)

    def __iter__(self) -> Iterator[Event[T]]:
        return iter(self._events)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} events)"

    def attempts(self, event: Event) -> int:
        """How often it has been handed out, this time included."""
        return self._attempts[event.seq]

    @property
    def _tokens(self) -> list[int]:
        return [page.range.token for page in self.pages] + [found.token for found, _ in self.parked]

    def _settlement(
        self, group: GroupRow, done: Iterable[Event] | None, failed: Failures, retry: Retry
    ) -> RangeSettlement:
        """`done` None: all that did not fail. What is neither done nor failed is given back."""
        errors = {event.seq: _error(error) for event, error in failed.items()}
        finished = {event.seq for event in (self._events if done is None else done)} - set(errors)
        strangers = (finished | set(errors)) - set(self._attempts)
        if strangers:
            raise ConfigError(
                f"event number {min(s for s in strangers if s)} is not in this batch; commit its own batch"
            )
        whole: list[tuple[Range, Sequence[int]]] = []
        returned: list[tuple[Range, Sequence[int]]] = []
        parkings: list[tuple[int, Parking]] = []
        for page in self.pages:
            shard, attempts = page.range.place.shard, page.range.attempts
            leaving = [
                parking(event, shard, attempts, _decided(errors[event.seq], attempts, group, retry))
                for event in page.shown
                if event.seq in errors
            ]
            leaving += [parking(event, shard, 0, None) for event in page.held]
            parkings += [(page.range.token, gone) for gone in leaving]
            ends = sorted(seq for event in page.shown if (seq := event.seq) is not None and seq in finished)
            left = [gone.event.seq for gone in leaving if gone.event.seq is not None]
            complete = len(ends) + len(left) == len(page.shown) + len(page.held)
            (whole if complete else returned).append((page.range, sorted(ends + left)))
        outcomes = [self._outcome(found, event, finished, errors, group, retry) for found, event in self.parked]
        return RangeSettlement(whole, returned, parkings, outcomes)

    def _done(self, settlement: RangeSettlement) -> set[int]:
        """Numbers of the events that a settlement calls done."""
        seqs = {seq for _, ends in (*settlement.finished, *settlement.returned) for seq in ends}
        seqs |= {one.seq for one in settlement.parked if one.delay is None and not one.dead}
        return seqs.difference(parking.event.seq or 0 for _, parking in settlement.parkings)

    def _outcome(
        self,
        found: ParkedEvent,
        event: Event,
        finished: set[int | None],
        errors: Mapping[int | None, BaseException],
        group: GroupRow,
        retry: Retry,
    ) -> ParkedOutcome:
        assert event.seq is not None
        if event.seq in finished:
            return parked_outcome(event.seq, found.token, None)
        if event.seq not in errors:
            return given_back(event.seq, found.token)
        return parked_outcome(event.seq, found.token, _decided(errors[event.seq], found.attempts, group, retry))


class Batch(_Batch[T]):
    """Events under one lease. In an ordered group those of a key are in order.

    `with batch:` commits it at the end, or gives it back if an error passes."""

    consumer: Consumer[T]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        (self.consumer.commit if kind is None else self.consumer.release)(self)


class AsyncBatch(_Batch[T]):
    """Events under one lease. In an ordered group those of a key are in order.

    `async with batch:` commits it at the end, or gives it back if an error passes."""

    consumer: AsyncConsumer[T]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await (self.consumer.commit if kind is None else self.consumer.release)(self)


def parking(event: Event, shard: int, attempts: int, outcome: Outcome | None) -> Parking:
    """How an event leaves its range. Without an outcome it waits behind an earlier one of its key."""
    hashed = key_hash(lane_key(event))
    match outcome:
        case RetryAt(delay, error, counted):
            return Parking(event, shard, hashed, "retry", attempts if counted else attempts - 1, delay, error)
        case Dead(error):
            return Parking(event, shard, hashed, "dead", attempts, NOW, error)
        case _:
            return Parking(event, shard, hashed, "held", 0, NOW, None)


def parked_outcome(seq: int, token: int, outcome: Outcome | None) -> ParkedOutcome:
    """Of an event that was parked. Without an outcome it is done."""
    match outcome:
        case RetryAt(delay, error, counted):
            return ParkedOutcome(seq, token, delay, error, counted=counted)
        case Dead(error):
            return ParkedOutcome(seq, token, None, error, dead=True)
        case _:
            return ParkedOutcome(seq, token, None, None)


def given_back(seq: int, token: int) -> ParkedOutcome:
    return ParkedOutcome(seq, token, NOW, None, counted=False)


def _decided(error: BaseException, attempts: int, group: GroupRow, retry: Retry) -> Outcome:
    return decide(error, attempts, replace(retry, attempts=group.attempts), for_ever=group.blocks)


def _error(error: BaseException | str) -> BaseException:
    return DeliveryError(error) if isinstance(error, str) else error
