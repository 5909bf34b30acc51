"""What jobs did, for people and programs."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Report:
    """The sum of what one or several runs of jobs did."""

    ticks: int = 0  # topics that have a fresh tick
    thinned: int = 0
    partitions_made: int = 0
    partitions_dropped: int = 0
    deleted: int = 0
    lost: int = 0  # deleted or passed over although a group was still to have them, counted for each group
    backlog: int = 0
    groups_died: int = 0
    released: int = 0  # open events that wait no more for dead groups
    put_forward: int = 0  # shards of groups that stood still for too long
    members_reaped: int = 0
    groups_forgotten: int = 0
    letters_purged: int = 0
    feeds_refreshed: int = 0
    feeds_failed: int = 0
    feeds_verified: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    leading: bool = True

    def add(self, other: Report) -> None:
        """The sum of both."""
        for name in self.__dataclass_fields__:
            value = getattr(other, name)
            if isinstance(value, dict):
                self.seconds |= value
            elif not isinstance(value, bool):
                setattr(self, name, getattr(self, name) + value)
