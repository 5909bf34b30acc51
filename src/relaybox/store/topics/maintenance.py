"""What the ops of maintenance take and return: terms, partitions, cleanup, alerts, incarnation."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from .life import GroupState


class Term(NamedTuple):
    """The right to do a job, fenced by its number."""

    job: str
    owner: str
    number: int


class Part(NamedTuple):
    """One partition of a log: what was created from `start` up to, not including, `end`."""

    name: str
    start: datetime
    end: datetime


class PartVerdict(NamedTuple):
    """Whether a partition may go: past the retention, past the longest one; not read or finished by a live group."""

    aged: bool
    forced: bool
    unread: bool

    @property
    def droppable(self) -> bool:
        return self.forced or (self.aged and not self.unread)


class Sweep(NamedTuple):
    """What one batch of cleanup did. `places`: where each shard goes on; shards that are done are not in it."""

    deleted: int
    lost: Mapping[str, int]  # by group: what it was still to have
    places: dict[int, int]


class AlertCondition(NamedTuple):
    """Something that is the case and that somebody should know."""

    name: str
    topic: str
    group: str
    text: str


class OpenAlert(NamedTuple):
    """A condition that was told of and is not over."""

    name: str
    topic: str
    group: str
    text: str
    since: datetime


class Incarnation(NamedTuple):
    """The cluster that the logs' transaction numbers are from, and the one we are in."""

    noted: int
    here: int
    noted_timeline: int
    timeline: int

    @property
    def foreign(self) -> bool:
        return self.noted != self.here


class Leftover(NamedTuple):
    """A group that is dead or cancelled for long; `pending`: something of it is parked yet."""

    id: int
    topic: str
    name: str
    state: GroupState
    pending: bool


class Zombie(NamedTuple):
    """A shard of a group that stood still for too long, and the ticks it was moved between."""

    group_id: int
    group: str
    shard: int
    base: int
    to: int
    lost: int = 0  # events it was still to have
