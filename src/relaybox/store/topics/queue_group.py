"""The part of a topic store that serves the one group of a queue tracked by rows."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Protocol

from ...op import Op
from ..claims import Held

if TYPE_CHECKING:
    from . import Parked, ParkedState, TopicRow


class QueueGroupStore(Protocol):
    def renew_rows(
        self, topic: TopicRow, member: int, held: Sequence[Held], lease: timedelta, now: datetime | None
    ) -> Op[set[int]]: ...
    def abandon_rows(self, topic: TopicRow, member: int, known: Sequence[int], now: datetime | None) -> Op[int]: ...
    def leave_rows(self, topic: TopicRow, member: int, now: datetime | None) -> Op[None]: ...
    def parked_rows(
        self, topic: TopicRow, state: ParkedState | None, seqs: Sequence[int] | None, after: int, limit: int
    ) -> Op[list[Parked]]: ...
    def replay_rows(self, topic: TopicRow, seqs: Sequence[int], now: datetime | None) -> Op[list[int]]: ...
    def skip_rows(self, topic: TopicRow, seqs: Sequence[int]) -> Op[list[int]]: ...
