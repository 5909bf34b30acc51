"""A pulled batch, and what its commit means for the ranges and parked events it was made of. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import overload

from ..errors import ConfigError, DeliveryError
from ..event import Event
from ..ids import key_hash
from ..outcome import Dead, RetryAt
from ..retry import RetryPolicy
from ..runtime.decide import decide
from ..store.sql_store import lane_key
from ..store.topics import GroupRow, ParkedEvent, ParkedOutcome, Parking, Range, RangeSettlement

Failures = Mapping[Event, BaseException | str]


class Page:
    """One range: the events shown to the consumer, and those that must wait behind a parked one of their key."""

    __slots__ = ("held", "range", "shown")

    def __init__(self, held_range: Range, events: Iterable[Event], held_keys: frozenset[int]) -> None:
        self.range = held_range
        self.shown: list[Event] = []
        self.held: list[Event] = []
        for event in events:
            (self.held if held_keys and key_hash(lane_key(event)) in held_keys else self.shown).append(event)


class Batch(Sequence[Event]):
    """Events under one lease. In an ordered group those of a key are in order."""

    def __init__(self, pages: Sequence[Page], parked: Sequence[tuple[ParkedEvent, Event]]) -> None:
        self.pages = pages
        self.parked = parked
        self.since = self.until = 0.0  # monotonic
        self.open = bool(pages or parked)
        self.doubtful = False  # a commit was begun and its reply lost
        self._events = [event for _, event in parked] + [event for page in pages for event in page.shown]
        self._attempts = {event.seq: found.attempts for found, event in parked}
        for page in pages:
            self._attempts.update((event.seq, page.range.attempts) for event in page.shown)

    @overload
    def __getitem__(self, index: int) -> Event: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Event]: ...
    def __getitem__(self, index: int | slice) -> Event | Sequence[Event]:
        return self._events[index]

    def __len__(self) -> int:
        return len(self._events)

    def __iter__(self) -> Iterator[Event]:
        return iter(self._events)

    def __repr__(self) -> str:
        return f"Batch({len(self)} events)"

    def attempts(self, event: Event) -> int:
        """How often it has been handed out, this time included."""
        return self._attempts[event.seq]

    @property
    def tokens(self) -> list[int]:
        return [page.range.token for page in self.pages] + [found.token for found, _ in self.parked]

    def settlement(
        self, group: GroupRow, done: Iterable[Event] | None, failed: Failures, retry: RetryPolicy
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
            leaving = [
                self._parking(page, event, group, errors[event.seq], retry)
                for event in page.shown
                if event.seq in errors
            ]
            leaving += [_behind(page, event) for event in page.held]
            parkings += [(page.range.token, parking) for parking in leaving]
            ends = sorted(seq for event in page.shown if (seq := event.seq) is not None and seq in finished)
            gone = [parking.event.seq for parking in leaving if parking.event.seq is not None]
            complete = len(ends) + len(gone) == len(page.shown) + len(page.held)
            (whole if complete else returned).append((page.range, sorted(ends + gone)))
        outcomes = [self._outcome(found, event, finished, errors, group, retry) for found, event in self.parked]
        return RangeSettlement(whole, returned, parkings, outcomes)

    def done(self, settlement: RangeSettlement) -> set[int]:
        """Numbers of the events that a settlement calls done."""
        seqs = {seq for _, ends in (*settlement.finished, *settlement.returned) for seq in ends}
        seqs |= {one.seq for one in settlement.parked if one.delay is None and not one.dead}
        return seqs.difference(parking.event.seq or 0 for _, parking in settlement.parkings)

    def _parking(self, page: Page, event: Event, group: GroupRow, error: BaseException, retry: RetryPolicy) -> Parking:
        attempts = page.range.attempts
        outcome = _decided(error, attempts, group, retry)
        hashed, shard = key_hash(lane_key(event)), page.range.place.shard
        if isinstance(outcome, RetryAt):
            counted = attempts if outcome.counted else attempts - 1
            return Parking(event, shard, hashed, "retry", counted, outcome.delay, outcome.error)
        return Parking(event, shard, hashed, "dead", attempts, timedelta(0), outcome.error)

    def _outcome(
        self,
        found: ParkedEvent,
        event: Event,
        finished: set[int | None],
        errors: Mapping[int | None, BaseException],
        group: GroupRow,
        retry: RetryPolicy,
    ) -> ParkedOutcome:
        assert event.seq is not None
        if event.seq in finished:
            return ParkedOutcome(event.seq, found.token, None, None)
        if event.seq not in errors:
            return ParkedOutcome(event.seq, found.token, timedelta(0), None, counted=False)
        outcome = _decided(errors[event.seq], found.attempts, group, retry)
        if isinstance(outcome, RetryAt):
            return ParkedOutcome(event.seq, found.token, outcome.delay, outcome.error, counted=outcome.counted)
        return ParkedOutcome(event.seq, found.token, None, outcome.error, dead=True)


def _behind(page: Page, event: Event) -> Parking:
    return Parking(event, page.range.place.shard, key_hash(lane_key(event)), "held", 0, timedelta(0), None)


def _decided(error: BaseException, attempts: int, group: GroupRow, retry: RetryPolicy) -> RetryAt | Dead:
    outcome = decide(
        error,
        attempts,
        max_attempts=group.max_attempts,
        retry=retry,
        retry_for_ever=group.on_exhausted == "block",
    )
    assert isinstance(outcome, RetryAt | Dead)
    return outcome


def _error(error: BaseException | str) -> BaseException:
    return DeliveryError(error) if isinstance(error, str) else error
