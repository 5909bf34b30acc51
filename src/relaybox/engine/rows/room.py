"""Memory for payloads: how many events a claim may bring, and how large."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from ...delivery import Delivery
from ...settings.sections import DeliverySettings


class Ask(NamedTuple):
    """At most `events`, and of those the payloads that take no more than `room` bytes each."""

    events: int
    room: int


class PayloadRoom:
    """`delivery.payload_bytes`, shared by what is here. While payloads are so small that as many as may be here have
    room, nothing is measured. Once one is larger, claims ask for as many as there is room for, going by those that the
    last one met."""

    def __init__(self, settings: DeliverySettings) -> None:
        self._bytes = settings.payload_bytes
        self._usual = max(1, settings.payload_bytes // settings.cold_queue)
        self._mean = 0  # bytes of a payload, while some are not usual
        self.here: Callable[[], Iterable[Delivery]] = tuple  # what takes the room; set by who has the engine
        self.full = False  # until something that is here ends

    @property
    def measures(self) -> bool:
        return self._mean > 0

    @property
    def left(self) -> int:
        return self._bytes - sum([len(delivery.event.body or b"") for delivery in self.here()])

    @property
    def empty(self) -> bool:
        """Nothing is here: then there is room for one event, whatever its size."""
        return self.left == self._bytes

    def ask(self, limit: int) -> Ask:
        """No events: there is no room."""
        self.full = False
        if not self._mean:
            return Ask(limit, self._usual)
        left = self.left
        self.full = left < self._mean and left < self._bytes
        if self.full:
            return Ask(0, 0)
        events = max(1, min(limit, left // self._mean))
        return Ask(events, max(left // events, self._usual))

    def met(self, sizes: Sequence[int]) -> None:
        """The payloads that a claim met, also those that had to stay in the database."""
        unusual = any(size > self._usual for size in sizes)
        self._mean = max(1, sum(sizes) // len(sizes)) if unusual else 0
