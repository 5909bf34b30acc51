"""The part of a topic store that keeps topics in order: terms, partitions, cleanup, alerts, incarnation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ...facts import Alert
from ...op import Op

if TYPE_CHECKING:
    from . import TopicRow
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


class Condition(NamedTuple):
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


class UpkeepStore(Protocol):
    # terms.py
    def acquire_term(self, job: str, owner: str, ttl: timedelta, now: datetime | None) -> Op[Term | None]:
        """Take or prolong. None: another holds it."""
        ...

    def hold_term(self, term: Term, now: datetime | None) -> Op[None]:
        """First in every transaction of the job; raises TermLost. Needs a transaction."""
        ...

    def release_term(self, term: Term, now: datetime | None) -> Op[None]: ...
    def maintained(self, now: datetime | None) -> Op[bool]:
        """Whether somebody holds the term for the maintenance, or has held it within the last hour (cron)."""
        ...

    # partitions.py
    def partitions(self, topic: TopicRow) -> Op[list[Part]]: ...
    def ahead(self, topic: TopicRow, now: datetime | None) -> Op[int]:
        """Make what is missing for this and the next periods, as far as it needs no waiting. Needs a transaction."""
        ...

    def missing(self, topic: TopicRow, now: datetime | None) -> Op[list[Part]]: ...
    def make_part(self, topic: TopicRow, part: Part, patience: timedelta | None = None) -> Op[bool]: ...
    def verdict(self, topic: TopicRow, part: Part, now: datetime | None) -> Op[PartVerdict]: ...
    def unmark(self, topic: TopicRow, part: Part, shard: int, after: int, limit: int) -> Op[tuple[int, int]]: ...
    def lost_with(self, topic: TopicRow, part: Part, verdict: PartVerdict) -> Op[dict[int, int]]:
        """How many events of the partition each group was still to have, of those that cannot keep it."""
        ...

    def drop_part(
        self, topic: TopicRow, part: Part, lost: Mapping[int, int], patience: timedelta, now: datetime | None
    ) -> Op[tuple[PartVerdict, dict[str, int]] | None]:
        """Drops it if it still may go, and counts what groups lose by it, by name. None: the topic is busy; StoreBusy
        too. Needs a transaction of its own."""
        ...

    # cleanup.py
    def sweep_log(
        self, topic: TopicRow, places: Mapping[int, int], limit: int, now: datetime | None
    ) -> Op[Sweep | None]:
        """Delete what may go of the next `limit` events after each shard's place. None: the topic is busy. Needs a
        transaction."""
        ...

    def backlog(self, topic: TopicRow, limit: int, now: datetime | None) -> Op[int]: ...
    def purge_letters(self, retention: timedelta, limit: int, now: datetime | None) -> Op[int]: ...
    def old_groups(self, topic: TopicRow, retention: timedelta, now: datetime | None) -> Op[list[Leftover]]: ...
    def forget_group(self, topic: TopicRow, group: int, retention: timedelta, now: datetime | None) -> Op[bool]: ...
    def put_forward(self, topic: TopicRow, now: datetime | None) -> Op[list[Zombie]]: ...
    def forgive(self, topic: TopicRow, group: int, limit: int, now: datetime | None) -> Op[int]: ...
    def thin_ticks(
        self, topic: TopicRow, after: int, limit: int, now: datetime | None
    ) -> Op[tuple[int, int | None]]: ...

    # watch.py
    def without_groups(self) -> Op[list[tuple[str, bool]]]: ...
    def standing_still(
        self, patience: timedelta, few: int, now: datetime | None
    ) -> Op[list[tuple[str, str, timedelta, int]]]: ...
    def open_marks(
        self, topic: TopicRow, patience: timedelta, limit: int, now: datetime | None
    ) -> Op[tuple[int, timedelta | None]]: ...
    def mismatched(self, topic: TopicRow, limit: int) -> Op[int]: ...
    def ack_rows(self, topic: TopicRow) -> Op[int]: ...
    def written(self, topic: TopicRow) -> Op[int]: ...
    def horizon(self) -> Op[timedelta]: ...
    def orphans(self, silence: timedelta, now: datetime | None) -> Op[list[tuple[str, str, str, timedelta]]]: ...
    def change_alerts(
        self, looked: Sequence[str], found: Sequence[Condition], now: datetime | None
    ) -> Op[tuple[list[Condition], list[Condition]]]: ...
    def alerts(self) -> Op[list[OpenAlert]]: ...
    def notify_alert(self, alert: Alert) -> Op[None]:
        """Tell listeners on the alert channel, as JSON."""
        ...

    # incarnation.py
    def incarnation(self) -> Op[Incarnation]: ...
    def living_members(self, now: datetime | None) -> Op[int]: ...
    def place_again(self, topic: TopicRow, shard: int) -> Op[None]: ...
    def stamp(self, topic: TopicRow, shard: int, after: int, limit: int) -> Op[tuple[int, int | None]]: ...
    def go_on(self, topic: TopicRow, now: datetime | None) -> Op[None]: ...
    def note_incarnation(self) -> Op[None]: ...
