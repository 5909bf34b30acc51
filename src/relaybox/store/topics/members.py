"""Running consumers of groups. Each has a row of its own, so that thousands of heartbeats do not meet in one."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from ...op import Op
from . import Beat, GroupRow, GroupTotals, MemberRow
from .life import GroupState
from .logs import LogQueries


class MemberOps(LogQueries):
    def join(self, group: GroupRow, name: str, ttl: timedelta, now: datetime | None) -> Op[int]:
        gone = yield self.sql["topic.member.replace"].bind(group=group.id, name=name, now=now)
        join = self.sql["topic.member.join"].bind(group=group.id, name=name, ttl=ttl.total_seconds(), now=now)
        while not (joined := (yield join)).rows:
            pass  # somebody has that id
        for counts in gone.rows:
            yield from self._keep_counts(group.id, counts)
        yield self.sql["topic.member.joined"].bind(group=group.id, now=now)
        return int(joined.rows[0][0])

    def beat(self, beats: Sequence[Beat], ttl: timedelta, now: datetime | None) -> Op[dict[int, GroupState]]:
        """Signs of life of members, with what they have done since the last, in one statement. Answers with the
        states of their groups; one that is missing was removed, or its group was."""
        values = self.table(beats, "members", "processed", "failed", "filtered", "busy_ms")
        answer = yield self.sql["topic.member.beat"].bind(**values, ttl=ttl.total_seconds(), now=now)
        return {row[0]: row[1] for row in answer.rows}

    def leave(self, member: int, now: datetime | None) -> Op[None]:
        """What the member had taken is free; the group stays."""
        gone = yield self.sql["topic.member.leave"].bind(member=member)
        for group_id, *counts in gone.rows:
            yield from self._keep_counts(group_id, counts)

    def _keep_counts(self, group_id: int, counts: Sequence[int]) -> Op[None]:
        processed, failed, filtered, busy = counts
        yield self.sql["topic.member.left"].bind(
            group=group_id, processed=processed, failed=failed, filtered=filtered, busy_ms=busy
        )

    def members(self, group: GroupRow, now: datetime | None) -> Op[list[MemberRow]]:
        found = yield self.sql["topic.member.list"].bind(group=group.id, now=now)
        return self._member_rows(found.rows)

    def totals(self, group: GroupRow, now: datetime | None) -> Op[GroupTotals]:
        found = yield self.sql["topic.group.totals"].bind(group=group.id, now=now)
        return GroupTotals(self.from_time(found.rows[0][0]), *found.rows[0][1:])

    def time_ago(self, age: timedelta, now: datetime | None) -> Op[datetime]:
        """The moment that is so long ago by the database's clock."""
        found = yield self.sql["topic.member.time_ago"].bind(age=age, now=now)
        return self.from_time(found.rows[0][0])

    def unhealthy_members(self, window: timedelta, now: datetime | None) -> Op[list[MemberRow]]:
        """Members silent for `window` that nobody has been told of: each is named once."""
        found = yield self.sql["topic.member.unhealthy"].bind(window=window, now=now)
        return self._member_rows(found.rows)

    def reap_members(self, silence: timedelta, now: datetime | None) -> Op[list[MemberRow]]:
        """Remove those silent for longer; what they had taken is free."""
        found = yield self.sql["topic.member.silent"].bind(silence=silence, now=now)
        members = self._member_rows(found.rows)
        for member in members:
            yield from self.leave(member.id, now)
        return members

    def _member_rows(self, rows: Sequence[Sequence[Any]]) -> list[MemberRow]:
        return [MemberRow(*row[:5], *map(self.from_time, row[5:7]), *row[7:]) for row in rows]
