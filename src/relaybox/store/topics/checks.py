"""Which groups are dead: those without a sign for their whole timeout, and those that restart and get nowhere.

Time is cut into windows. A window counts against a group if nobody gave a sign in it, or if members joined and nothing
was done although there is work. After three of them in a row a restarting group has stalled."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import NamedTuple

from ...op import Op
from . import GroupCheck, Quiet
from .groups import GroupOps

LIMIT = 3  # windows without progress before a group counts as stalled


class CheckWindow(NamedTuple):
    """What happened in a group since its last window ended."""

    group: int
    timed_out: bool
    over: bool
    missed: bool
    restarted: bool
    done: int
    done_before: int
    silent: timedelta
    joins: int
    pending: bool

    @property
    def idle(self) -> bool:
        return self.restarted and self.pending and self.done == self.done_before


class Judgement(NamedTuple):
    failures: int
    reason: str = ""
    died: bool = False
    stalled: bool = False


def judge(window: CheckWindow, failures: int) -> Judgement:
    silence = f"no heartbeat for {window.silent.total_seconds():.0f} s"
    if window.over:
        failures = failures + 1 if window.missed or window.idle else 0
    if window.timed_out:
        return Judgement(failures, silence, died=True)
    if not window.over or not failures:
        return Judgement(failures)
    if not window.idle:
        return Judgement(failures, silence)
    reason = f"restarts without progress in {failures} windows in a row"
    return Judgement(failures, reason, failures >= LIMIT, failures >= LIMIT)


class CheckOps(GroupOps):
    def to_check(self, now: datetime | None) -> Op[list[int]]:
        """Topics with groups whose time or window is over."""
        found = yield self.sql["topic.group.to_check"].bind(now=now)
        return [row[0] for row in found.rows]

    def check_groups(self, topic_id: int, now: datetime | None) -> Op[list[GroupCheck]]:
        """End windows, count failures, declare groups dead. Needs a transaction; any number may run at once."""
        yield from self._lock_groups(topic_id)
        found = yield self.sql["topic.group.windows"].bind(topic=topic_id, now=now)
        checks = []
        for window in map(CheckWindow._make, found.rows):
            group = yield from self._group_by_id(window.group)
            failures, reason, died, stalled = judge(window, group.failures)
            if window.over:
                yield self.sql["topic.group.window_over"].bind(
                    id=group.id, failures=failures, joins=window.joins, done=window.done, now=now
                )
            if died:
                yield from self._apply(group, "stall" if stalled else "time out", reason, now)
            if reason:
                checks.append(GroupCheck(group.name, group.topic, failures, died, reason, stalled))
        return checks

    def near_timeout(self, now: datetime | None) -> Op[list[Quiet]]:
        """Active groups that have been silent for 80 % of their timeout."""
        found = yield self.sql["topic.group.near_timeout"].bind(now=now)
        return [Quiet(*row) for row in found.rows]
